//! Secrets are in no log line, metric, answer, error or view of a store: they are planted, every
//! kind of failure is driven with the log at its loudest, and all that comes out is searched.

use std::time::Duration;

use keylane_router::embedded::{Db, Options};
use keylane_router::store::Store as _;
use keylane_router::testing::{Answer, Request, Target};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::run;
use crate::server::{Folder, Server};

/// What must not come out.
const PLANTED: [(&str, &str); 8] = [
    ("token", "tok3n-Zx81kQ-planted"),
    ("token that no header carries", "bad-t0ken-Qp55-planted"),
    ("header", "h3ader-Lm20-planted"),
    ("query of a target", "qu3ry-Ww07-planted"),
    ("password of a target", "passw0rd-Er64-planted"),
    ("payload", "payl0ad-Ty93-planted"),
    ("signing secret", "c2lnbmluZyBzZWNyZXQsIHBsYW50ZWQgaGVyZQ"),
    ("wrong signing secret", "bm90IGxvbmc"),
];

fn planted(name: &str) -> &'static str {
    let found = PLANTED.iter().find(|(known, _)| *known == name);
    found.expect("it is planted").1
}

/// Everything that came out, each with where.
#[derive(Default)]
struct Shown(Vec<(String, String)>);

impl Shown {
    fn add(&mut self, place: &str, text: impl Into<String>) {
        self.0.push((place.to_owned(), text.into()));
    }

    fn assert_no_secret(&self) {
        for (place, text) in &self.0 {
            for (name, secret) in PLANTED {
                let at = text.lines().find(|line| line.contains(secret));
                assert!(at.is_none(), "{place} shows the {name}: {at:?}");
            }
        }
    }
}

fn config() -> String {
    let secret = planted("signing secret");
    format!(
        "[breaker]\nfailures = 0\n\
         [pools.default]\non_exhausted = \"dead-letter\"\nsigning_secrets = [\"whsec_{secret}==\"]\n\
         [pools.default.timeout]\nfirst_byte = \"200ms\"\n\
         [pools.default.retry]\nmax_attempts = 2\ninitial = \"10ms\"\nmax = \"20ms\"\n\
         [pools.parking]\non_exhausted = \"park\"\nretry.max_attempts = 1\n"
    )
}

/// A target that sends back what it was sent, with any status, or breaks off.
fn echo(request: &Request) -> Answer {
    let authorization = request.headers.get("authorization");
    let authorization = authorization.map_or("", |value| value.to_str().unwrap());
    let body = format!("you sent {authorization}, and {authorization}");
    let path = request.path.split('?').next().unwrap_or_default();
    match path.trim_start_matches('/') {
        "reset" => Answer::Reset,
        "hang" => Answer::Hang,
        "cut" => Answer::CutBody,
        "busy" if request.attempt < 2 => Answer::status(500).body(body),
        "busy" => Answer::status(429).header("retry-after", "0").body(body),
        status => Answer::status(status.parse().unwrap()).body(body),
    }
}

fn secret_message(id: &str, target: &str) -> Value {
    json!({
        "id": id,
        "messageGroupId": id,
        "authToken": planted("token"),
        "mediationType": "HTTP",
        "mediationTarget": target,
        "headers": {"X-Api-Key": planted("header")},
        "payload": {"card": planted("payload")},
    })
}

/// Messages whose attempts fail in every way there is.
fn failing(target: &Target) -> Vec<Value> {
    let query = format!("?token={}", planted("query of a target"));
    let at = |path: &str| target.url(&format!("/{path}{query}"));
    let mut messages = Vec::new();
    for path in [
        "200", "301", "400", "401", "404", "500", "501", "reset", "hang", "cut",
    ] {
        messages.push(secret_message(path, &at(path)));
    }
    for (id, url) in [
        ("refused", "http://127.0.0.1:1/".to_owned()),
        ("dns", "http://no-such-host.invalid/".to_owned()),
        ("tls", at("200").replace("http:", "https:")),
        ("metadata", format!("http://169.254.169.254/{query}")),
    ] {
        messages.push(secret_message(id, &url));
    }
    let mut other = secret_message("type", &at("200"));
    other["mediationType"] = "SMTP".into();
    messages.push(other);
    for path in ["500", "reset"] {
        let mut parked = secret_message(&format!("parked-{path}"), &at(path));
        parked["poolCode"] = "parking".into();
        messages.push(parked);
    }
    messages
}

/// Bodies that the API must refuse, each with a secret in what is wrong with it.
fn wrong() -> Vec<String> {
    let (token, header) = (planted("token"), planted("header"));
    let good = secret_message("w", "http://127.0.0.1:1/");
    let mut with_number = good.clone();
    with_number["authToken"] = json!([token]);
    let mut with_header = good.clone();
    with_header["headers"] = json!({ format!("bad name {header}"): header, "x": [header] });
    let mut with_line_break = good.clone();
    let bad = planted("token that no header carries");
    with_line_break["authToken"] = format!("{bad}\n").into();
    let mut with_both = good.clone();
    with_both["payloadBase64"] = planted("payload").into();
    let at = |url: &str| secret_message("w", url).to_string();
    let (password, query) = (
        planted("password of a target"),
        planted("query of a target"),
    );
    vec![
        at(&format!("http://user:{password}@127.0.0.1:1/")),
        at(&format!("ftp://127.0.0.1/?{query}")),
        at(&format!("no url {query}")),
        with_number.to_string(),
        with_line_break.to_string(),
        with_header.to_string(),
        with_both.to_string(),
        format!("{{\"authToken\": \"{token}"),
        format!("{{\"authToken\": {token}}}"),
        format!(
            "[{{\"id\": \"{}\", \"authToken\": \"{token}\"}}, 7]",
            "i".repeat(5000)
        ),
    ]
}

async fn publish_wrong(server: &Server, shown: &mut Shown) {
    let json = [("content-type", "application/json")];
    let path = "/api/v1/queues/default/messages";
    for body in wrong() {
        let answer = server.ask("POST", path, &json, &body).await;
        assert_eq!(answer.status, 400, "{body}: {}", answer.text());
        shown.add("an answer to a wrong publish", answer.text());
    }
    // The same id with another body is a conflict.
    let mut other = secret_message("200", "http://127.0.0.1:1/");
    other["authToken"] = planted("token that no header carries").into();
    let answer = server.publish_to("default", &other).await;
    assert_eq!(answer.status, 409, "{}", answer.text());
    shown.add("the answer to a conflict", answer.text());
}

async fn reload_wrong(server: &Server, folder: &Folder, shown: &mut Shown) {
    let secret = planted("wrong signing secret");
    for line in [
        format!("[pools.default]\nsigning_secrets = [\"whsec_{secret}=\"]\n"),
        format!("[pools.default]\nsigning_secrets = \"whsec_{secret}=\"\n"),
        format!("[pools.default]\nsigning_secrets = [\"whsec_{secret}\n"),
        format!("[pools.default]\nsigning_secret = [\"whsec_{secret}\"]\n"),
    ] {
        folder.write_config(&line);
        let answer = server.post("/api/v1/config/reload").await;
        assert_ne!(answer.status, 200, "{}", answer.text());
        shown.add("the answer to a wrong reload", answer.text());
        let (code, out, err) = run(&["config", "check", "--config", "k.toml"], folder.path());
        assert_eq!(code, Some(2));
        shown.add("config check", out + &err);
    }
    folder.write_config(&config());
    let (code, out, err) = run(&["config", "show", "--config", "k.toml"], folder.path());
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains("signing_secrets = [\"***\"]"), "{out}");
    shown.add("config show", out + &err);
}

/// All pages that can be read.
async fn read_all(server: &Server, shown: &mut Shown) {
    for path in [
        "/",
        "/livez",
        "/readyz",
        "/metrics",
        "/api/v1/queues",
        "/api/test/stats",
        "/nowhere",
    ] {
        shown.add(path, server.get(path).await.text());
    }
}

/// What the stores say of each message: why, and what was tried.
async fn read_stores(folder: &Folder, shown: &mut Shown) -> (usize, usize) {
    let db = Db::open(folder.path().join("data"), Options::default()).unwrap();
    let store = db.store();
    let letters = store.dead_letters(0, 1000).await.unwrap();
    for letter in &letters {
        shown.add("a dead letter", format!("{letter:?}"));
        shown.add("why it is one", &*letter.text);
        for attempt in &letter.attempts {
            shown.add("an attempt", &*attempt.text);
            shown.add("an answer", String::from_utf8_lossy(&attempt.answer));
        }
    }
    shown.add(
        "the audit log",
        format!("{:?}", store.audit_log(1000).await),
    );
    let parked = store.parked();
    for lane in &parked {
        shown.add("a parked key", format!("{lane:?}"));
        for row in store.parked_rows(lane.lane.clone(), 0, 10).await.unwrap() {
            shown.add("a parked message", format!("{row:?}"));
        }
    }
    db.close().await;
    (letters.len(), parked.len())
}

#[tokio::test]
async fn planted_secrets_come_out_nowhere() {
    let target = Target::start(echo).await;
    let folder = Folder::with_config(&config());
    let loud = |mut command: std::process::Command| {
        command.env("KEYLANE_LOG", "trace");
        command
    };
    let server = folder.spawn_by(&[], loud).listening().await;
    let mut shown = Shown::default();

    let messages = failing(&target);
    let (sent, delivered) = (messages.len(), 1);
    server.publish(messages).await;
    publish_wrong(&server, &mut shown).await;
    server.empty().await;
    read_all(&server, &mut shown).await;
    reload_wrong(&server, &folder, &mut shown).await;
    server.process.signal(Signal::HUP);
    server.process.logs("the config was reloaded").await;
    // Busy and held when it is stopped.
    server
        .publish(vec![secret_message("busy", &target.url("/busy"))])
        .await;
    tokio::time::timeout(Duration::from_secs(60), target.recorder().until(busy))
        .await
        .expect("it is busy");
    read_all(&server, &mut shown).await;
    let log = server.process.log();
    assert!(log.contains("TRACE") || log.contains("DEBUG"), "{log}");
    let Server { mut process, .. } = server;
    process.signal(Signal::TERM);
    assert_eq!(process.ended().await, Some(0));
    shown.add("the log", process.log());

    let (letters, parked) = read_stores(&folder, &mut shown).await;
    assert_eq!((letters, parked), (sent - delivered - 2, 2));
    // The target got the token: it was there to be shown.
    let tokens = target.recorder().requests();
    assert!(tokens.iter().all(|request| {
        let value = request.headers["authorization"].to_str().unwrap();
        value.contains(planted("token"))
    }));
    shown.assert_no_secret();
}

fn busy(events: &[keylane_router::testing::Event]) -> bool {
    events.iter().any(|event| event.outcome == Some("busy"))
}
