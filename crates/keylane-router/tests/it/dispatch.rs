//! Attempts over real HTTP: what the target gets, and what its answers come to.

mod addresses;
mod connections;
mod limits;
mod signing;
mod tls;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use keylane_router::dispatch::{
    Attempt, Dispatch, DynDispatch, HttpDispatch, HttpOptions, Secrets, TargetList, handler,
    handler_fn,
};
use keylane_router::history::{self, History};
use keylane_router::message::{BrokerId, Identity, Key, Message};
use keylane_router::outcome::{Outcome, Reason};
use keylane_router::plan::{Targets, TimeoutPlan};
use keylane_router::testing::{self, Answer, Request, Target};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

const SHORT: Duration = Duration::from_millis(40);
const LONG: Duration = Duration::from_secs(20);

fn message(target: impl Into<Arc<str>>) -> Message {
    Message {
        id: "m-1".into(),
        key: Some(Key::from("k1")),
        pool: None,
        target: target.into(),
        mediation_type: "HTTP".into(),
        auth_token: None,
        tenant: None,
        payload: Bytes::from_static(b"{\"k\":\"k1\",\"n\":7}"),
        content_type: "application/json".into(),
        headers: Vec::new(),
    }
}

fn attempt() -> Attempt {
    Attempt {
        identity: Identity {
            source: "s".into(),
            id: BrokerId::Sequence(1),
        },
        number: 2,
        round: 0,
        pool: "mail".into(),
        position: Some(41),
        slot: 0,
        timeout: TimeoutPlan {
            connect: LONG,
            first_byte: LONG,
            total: LONG,
            idle_body: LONG,
        },
        targets: Arc::new(Targets::Any),
        secrets: Secrets::default(),
        lease: None,
    }
}

/// Every test target is on this machine.
fn options() -> HttpOptions {
    HttpOptions {
        loopback: true,
        ..HttpOptions::default()
    }
}

fn http() -> HttpDispatch {
    HttpDispatch::new(options())
}

async fn send(message: &Message) -> Outcome {
    http().attempt(message, &attempt()).await
}

/// One attempt at a target that answers so.
async fn answered(answer: Answer) -> Outcome {
    let target = Target::start(testing::fixed(answer)).await;
    send(&message(target.url("/"))).await
}

/// One attempt at a target that answers so, within these limits.
async fn limited(answer: Answer, change: impl Fn(&mut TimeoutPlan)) -> Outcome {
    let target = Target::start(testing::fixed(answer)).await;
    let mut attempt = attempt();
    change(&mut attempt.timeout);
    http().attempt(&message(target.url("/")), &attempt).await
}

/// What the target gets of this message.
async fn received(change: impl Fn(&mut Message)) -> Request {
    let target = Target::always_ok().await;
    let mut message = message(target.url("/hook?a=b"));
    change(&mut message);
    assert_eq!(send(&message).await, Outcome::Delivered);
    target.recorder().requests().remove(0)
}

fn header<'a>(request: &'a Request, name: &str) -> Option<&'a str> {
    request.headers.get(name).map(|v| v.to_str().expect("text"))
}

fn failed(outcome: Outcome) -> Reason {
    match outcome {
        Outcome::Failed(reason) => reason,
        other => panic!("not failed: {other:?}"),
    }
}

fn refused(outcome: Outcome) -> Reason {
    match outcome {
        Outcome::Refused(reason) => reason,
        other => panic!("not refused: {other:?}"),
    }
}

/// A peer that answers the first request with these bytes and then closes.
async fn raw_peer(bytes: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}/", listener.local_addr().expect("bound"));
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("a connection");
        let mut request = [0; 4096];
        let _ = stream.read(&mut request).await;
        let _ = stream.write_all(bytes).await;
    });
    url
}

#[tokio::test]
async fn the_target_gets_the_payload_as_post_with_our_headers() {
    let request = received(|_| {}).await;
    assert_eq!(request.path, "/hook?a=b");
    assert_eq!(&request.body[..], b"{\"k\":\"k1\",\"n\":7}");
    assert_eq!(header(&request, "content-type"), Some("application/json"));
    assert_eq!(header(&request, "webhook-id"), Some("m-1"));
    assert_eq!(header(&request, "keylane-key"), Some("k1"));
    assert_eq!(header(&request, "keylane-key-truncated"), None);
    assert_eq!(header(&request, "keylane-attempt"), Some("2"));
    assert_eq!(header(&request, "keylane-pool"), Some("mail"));
    assert_eq!(header(&request, "keylane-position"), Some("41"));
    assert_eq!(header(&request, "authorization"), None);
    assert_eq!(header(&request, "accept-encoding"), None);
}

#[tokio::test]
async fn the_auth_token_is_sent_as_bearer() {
    let request = received(|m| m.auth_token = Some("s3cret".into())).await;
    assert_eq!(header(&request, "authorization"), Some("Bearer s3cret"));
}

#[tokio::test]
async fn an_empty_payload_is_sent_as_such() {
    let request = received(|m| m.payload = Bytes::new()).await;
    assert!(request.body.is_empty());
    assert_eq!(header(&request, "content-length"), Some("0"));
}

#[tokio::test]
async fn keys_and_ids_of_any_bytes_are_percent_encoded() {
    let request = received(|m| {
        m.key = Some(Key::new(b"a b/\xff%~"));
        m.id = "id ü\n".into();
    })
    .await;
    assert_eq!(header(&request, "keylane-key"), Some("a%20b%2F%FF%25~"));
    assert_eq!(header(&request, "webhook-id"), Some("id%20%C3%BC%0A"));
}

#[tokio::test]
async fn a_key_over_1_kib_is_sent_as_its_hash() {
    let request = received(|m| m.key = Some(Key::new([b'x'; 1025]))).await;
    let hash = header(&request, "keylane-key").expect("a key");
    assert_eq!(hash.len(), 64);
    assert_eq!(header(&request, "keylane-key-truncated"), Some("true"));
    let request = received(|m| m.key = Some(Key::new([b'x'; 1024]))).await;
    assert_eq!(header(&request, "keylane-key"), Some(&*"x".repeat(1024)));
}

#[tokio::test]
async fn a_message_may_set_headers_but_not_ours() {
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let theirs = [
        ("X-Tenant", "blue"),
        ("traceparent", trace),
        ("User-Agent", "mine"),
    ];
    let ours = [
        "Host",
        "Origin",
        "Authorization",
        "Content-Length",
        "Transfer-Encoding",
        "Connection",
        "Upgrade",
        "TE",
        "Trailer",
        "Expect",
        "Webhook-Signature",
        "webhook-id",
        "Keylane-Key",
        "KEYLANE-x",
        "Proxy-Authorization",
        "Accept-Encoding",
    ];
    let request = received(|m| {
        let all = theirs.into_iter().chain(ours.map(|name| (name, "forged")));
        m.headers = all
            .map(|(name, value)| (name.into(), value.into()))
            .collect();
    })
    .await;
    for (name, value) in theirs {
        assert_eq!(header(&request, name), Some(value));
    }
    for name in ours {
        assert_ne!(header(&request, name), Some("forged"), "{name}");
    }
}

#[tokio::test]
async fn a_2xx_is_delivered() {
    assert_eq!(answered(Answer::ok()).await, Outcome::Delivered);
    assert_eq!(answered(Answer::status(204)).await, Outcome::Delivered);
    let text = Answer::status(202).body("thanks");
    assert_eq!(answered(text).await, Outcome::Delivered);
}

#[tokio::test]
async fn a_2xx_with_a_body_over_the_limit_is_delivered() {
    let mut body = b"{\"ack\":false,\"x\":\"".to_vec();
    body.resize(200 << 10, b'x');
    body.extend(b"\"}");
    assert_eq!(answered(Answer::ok().body(body)).await, Outcome::Delivered);
}

#[tokio::test]
async fn ack_false_is_not_yet() {
    let after = Some(Duration::from_secs(7));
    assert_eq!(
        answered(Answer::not_yet(7)).await,
        Outcome::NotYet { after }
    );
    let plain = Answer::ok().body("{\"ack\":false}");
    assert_eq!(answered(plain).await, Outcome::NotYet { after: None });
}

#[tokio::test]
async fn busy_answers_are_busy_for_as_long_as_they_say() {
    for code in [408, 425, 429, 503] {
        let answer = Answer::status(code).header("retry-after", "3");
        let Outcome::Busy { after, reason } = answered(answer).await else {
            panic!("{code} is not busy");
        };
        assert_eq!(after, Some(Duration::from_secs(3)));
        assert_eq!(reason.status, Some(code));
    }
    let outcome = answered(Answer::status(429)).await;
    assert!(matches!(outcome, Outcome::Busy { after: None, .. }));
}

#[tokio::test]
async fn a_date_to_retry_after_is_read_against_the_answers_date() {
    let answer = Answer::status(503)
        .header("date", "Sun, 06 Nov 1994 08:49:00 GMT")
        .header("retry-after", "Sun, 06 Nov 1994 08:50:00 GMT");
    let outcome = answered(answer).await;
    let minute = Some(Duration::from_secs(60));
    assert!(matches!(outcome, Outcome::Busy { after, .. } if after == minute));
}

#[tokio::test]
async fn other_5xx_fail_and_count_for_the_breaker() {
    for code in [500, 502, 503, 504] {
        let reason = failed(answered(Answer::status(code).body("oh no")).await);
        assert_eq!(
            (reason.status, &*reason.answer),
            (Some(code), &b"oh no"[..])
        );
        assert!(reason.breaker_failure);
    }
}

#[tokio::test]
async fn upgrades_and_misdirected_requests_fail() {
    let url =
        raw_peer(b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n")
            .await;
    assert_eq!(failed(send(&message(url)).await).status, Some(101));
    assert_eq!(
        failed(answered(Answer::status(421)).await).status,
        Some(421)
    );
}

#[tokio::test]
async fn redirects_are_never_followed() {
    let elsewhere = Target::always_ok().await;
    for code in [301, 302, 303, 307, 308] {
        let answer = Answer::status(code).header("location", elsewhere.url("/"));
        assert_eq!(failed(answered(answer).await).status, Some(code));
    }
    assert!(elsewhere.recorder().all().is_empty());
}

#[tokio::test]
async fn what_a_deploy_or_a_token_mends_fails_without_the_breaker() {
    for code in [401, 403, 404, 407, 410] {
        let reason = failed(answered(Answer::status(code)).await);
        assert_eq!((reason.status, reason.breaker_failure), (Some(code), false));
    }
}

#[tokio::test]
async fn other_4xx_and_501_are_refused() {
    for code in [400, 409, 413, 422, 501] {
        let reason = refused(answered(Answer::status(code)).await);
        assert_eq!((reason.status, reason.breaker_failure), (Some(code), false));
    }
}

#[tokio::test]
async fn a_closed_port_fails_to_connect() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}/", listener.local_addr().expect("bound"));
    drop(listener);
    let reason = failed(send(&message(url)).await);
    assert_eq!((&*reason.class, reason.breaker_failure), ("connect", true));
}

#[tokio::test]
async fn a_name_without_address_fails_by_dns() {
    let reason = failed(send(&message("http://no-such-host.invalid/")).await);
    assert_eq!(reason.class, "dns");
}

#[tokio::test]
async fn a_peer_without_tls_fails_by_tls() {
    let target = Target::always_ok().await;
    let url = target.url("/").replace("http:", "https:");
    assert_eq!(failed(send(&message(url)).await).class, "tls");
}

#[tokio::test]
async fn a_peer_that_speaks_no_http_fails_by_protocol() {
    let url = raw_peer(b"SSH-2.0-OpenSSH_9.2\r\n\r\n\r\n").await;
    assert_eq!(failed(send(&message(url)).await).class, "protocol");
}

#[tokio::test]
async fn a_connection_closed_before_the_answer_fails_by_reset() {
    assert_eq!(failed(answered(Answer::Reset).await).class, "reset");
}

#[tokio::test]
async fn a_2xx_whose_body_is_cut_fails() {
    let reason = failed(answered(Answer::CutBody).await);
    assert_eq!((&*reason.class, reason.status), ("cut-body", Some(200)));
    assert_eq!(reason.answer, b"{\"ack\":");
}

#[tokio::test]
async fn an_answer_that_does_not_come_fails_by_first_byte() {
    let reason =
        failed(limited(Answer::Hang, |t| (t.connect, t.first_byte) = (SHORT, SHORT)).await);
    assert_eq!(reason.class, "timeout");
    assert!(reason.text.contains("first_byte"), "{}", reason.text);
}

#[tokio::test]
async fn a_connection_that_is_slow_to_answer_is_not_slow_to_connect() {
    let late = Answer::ok().after(3 * SHORT);
    let outcome = limited(late, |t| t.connect = SHORT).await;
    assert_eq!(outcome, Outcome::Delivered);
}

#[tokio::test]
async fn a_peer_that_does_not_finish_tls_fails_by_connect_timeout() {
    // Accepts, and never says a word.
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("https://{}/", listener.local_addr().expect("bound"));
    let mut attempt = attempt();
    attempt.timeout.connect = SHORT;
    let reason = failed(http().attempt(&message(url), &attempt).await);
    assert_eq!(reason.class, "timeout");
    assert!(reason.text.contains("connect"), "{}", reason.text);
}

#[tokio::test]
async fn a_body_that_does_not_end_fails_by_the_total_limit() {
    let reason = failed(limited(Answer::SlowBody, |t| t.total = SHORT).await);
    assert_eq!((&*reason.class, reason.status), ("timeout", Some(200)));
}

#[tokio::test]
async fn the_total_limit_holds_while_waiting_for_the_answer() {
    let reason = failed(limited(Answer::Hang, |t| t.total = SHORT).await);
    assert!(reason.text.contains("total"), "{}", reason.text);
}

#[tokio::test]
async fn an_answer_that_came_too_late_never_meets_the_next_request() {
    let target = Target::start(|request: &Request| match request.path.as_str() {
        "/slow" => Answer::status(400).after(3 * SHORT),
        _ => Answer::ok().after(4 * SHORT),
    })
    .await;
    let dispatch = http();
    let mut short = attempt();
    short.timeout.total = SHORT;
    failed(
        dispatch
            .attempt(&message(target.url("/slow")), &short)
            .await,
    );
    let outcome = dispatch
        .attempt(&message(target.url("/next")), &attempt())
        .await;
    assert_eq!(outcome, Outcome::Delivered);
}

#[tokio::test]
async fn what_cannot_be_called_is_refused_without_a_call() {
    let target = Target::always_ok().await;
    let other_type = Message {
        mediation_type: "SMTP".into(),
        ..message(target.url("/"))
    };
    let with_user = message(target.url("/").replace("://", "://user:pw@"));
    let bad_token = Message {
        auth_token: Some("a\nb: c".into()),
        ..message(target.url("/"))
    };
    let cases = [
        (other_type, "mediation-type"),
        (message("not a url"), "target"),
        (message("ftp://127.0.0.1/"), "target"),
        (with_user, "target"),
        (bad_token, "header"),
    ];
    for (message, class) in cases {
        let reason = refused(send(&message).await);
        assert_eq!((&*reason.class, reason.breaker_failure), (class, false));
        assert!(!reason.text.contains("pw") && !reason.text.contains("a\nb"));
    }
    assert!(target.recorder().all().is_empty());
}

#[tokio::test]
async fn a_target_that_is_not_listed_is_refused() {
    let target = Target::always_ok().await;
    let message = message(target.url("/"));
    let mut attempt = attempt();
    attempt.targets = Arc::new(Targets::Only(TargetList::parse(["example.com"]).unwrap()));
    let reason = refused(http().attempt(&message, &attempt).await);
    assert_eq!(reason.class, "target-not-allowed");
    attempt.targets = Arc::new(Targets::Only(TargetList::parse(["127.0.0.1"]).unwrap()));
    assert_eq!(http().attempt(&message, &attempt).await, Outcome::Delivered);
}

#[tokio::test]
async fn connections_are_used_again() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}/", listener.local_addr().expect("bound"));
    let dispatch = http();
    // One connection is accepted; a second attempt on another would hang.
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("a connection");
        let mut request = [0; 4096];
        while stream.read(&mut request).await.is_ok_and(|n| n > 0) {
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
            stream.write_all(answer).await.expect("the peer is there");
        }
        std::future::pending::<()>().await;
    });
    let message = message(url);
    let mut attempt = attempt();
    attempt.timeout.first_byte = Duration::from_secs(2);
    attempt.timeout.connect = Duration::from_secs(2);
    for _ in 0..3 {
        assert_eq!(
            dispatch.attempt(&message, &attempt).await,
            Outcome::Delivered
        );
        // The connection's own task puts it back.
        tokio::task::yield_now().await;
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn the_origin_of_a_message_is_what_a_breaker_goes_by() {
    let dispatch = http();
    let origin = dispatch.origin("https://API.example.com/a");
    assert_eq!(origin.as_deref(), Some("https://api.example.com:443"));
    assert_eq!(dispatch.origin("nonsense"), None);
}

#[tokio::test]
async fn a_function_of_the_program_is_a_dispatch() {
    async fn by_reference(message: &Message) -> Outcome {
        assert_eq!(&*message.id, "m-1");
        Outcome::Delivered
    }
    let owned = handler_fn(|message| async move {
        assert_eq!(&*message.id, "m-1");
        Outcome::NotYet { after: None }
    });
    let both: [Arc<dyn DynDispatch>; 2] = [Arc::new(handler(by_reference)), Arc::new(owned)];
    let message = message("local");
    let mut outcomes = Vec::new();
    for dispatch in both {
        assert_eq!(dispatch.origin_of(&message.target), None);
        outcomes.push(dispatch.attempt_boxed(&message, &attempt()).await);
    }
    assert_eq!(
        outcomes,
        [Outcome::Delivered, Outcome::NotYet { after: None }]
    );
}

#[tokio::test]
async fn the_test_target_records_key_number_and_attempt() {
    let target = Target::always_ok().await;
    send(&message(target.url("/"))).await;
    let events = target.recorder().ended(1).await;
    assert_eq!(events.len(), 2);
    for event in &events {
        assert_eq!(
            (&*event.key, event.number, event.attempt),
            ("k1", Some(7), 2)
        );
    }
    assert_eq!(events[1].outcome, Some("delivered"));
}

#[tokio::test]
async fn a_seed_draws_the_same_row_of_answers() {
    async fn row(seed: u64) -> Vec<Outcome> {
        let answers = vec![
            (3, Answer::ok()),
            (1, Answer::status(500)),
            (1, Answer::status(400)),
        ];
        let target = Target::start(testing::random(seed, answers)).await;
        let (dispatch, message) = (http(), message(target.url("/")));
        let mut row = Vec::new();
        for _ in 0..30 {
            row.push(dispatch.attempt(&message, &attempt()).await);
        }
        row
    }
    let first = row(1).await;
    assert_eq!(first, row(1).await);
    assert!(first.iter().any(|o| matches!(o, Outcome::Refused(_))));
    assert!(first.contains(&Outcome::Delivered));
}

#[tokio::test]
async fn the_test_target_writes_a_history_that_the_checker_reads() {
    let script = |request: &Request| match request.attempt {
        1 => Answer::status(500),
        _ => Answer::ok(),
    };
    let target = Target::start_with(script, history::Recorder::in_memory()).await;
    let (dispatch, mut message) = (http(), message(target.url("/")));
    for n in 0..3 {
        message.payload = format!("{{\"k\":\"k1\",\"n\":{n}}}").into();
        for number in [1, 2] {
            let attempt = Attempt {
                number,
                ..attempt()
            };
            dispatch.attempt(&message, &attempt).await;
        }
    }
    let events = target.recorder().events();
    let outcomes: Vec<_> = events.iter().filter_map(|e| e.outcome.as_deref()).collect();
    assert_eq!(outcomes, ["failed", "delivered"].repeat(3));
    let mut history = History::default();
    for event in &events {
        history.push(event);
    }
    let report = history::check(history, &history::Options::default());
    assert!(report.is_green(), "{report:?}");
}
