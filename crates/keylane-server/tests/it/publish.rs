//! `POST /api/v1/queues/{queue}/messages`.

use keylane_router::testing::{Answer, Target};
use serde_json::{Value, json};

use crate::server::{Folder, delivered, message, messages, within};

#[tokio::test]
async fn what_is_published_is_delivered_in_order() {
    let target = Target::always_ok().await;
    let folder = Folder::new();
    let server = folder.start().await;
    let (a, b) = (messages(&target, "a", 20), messages(&target, "b", 20));
    let mixed: Vec<Value> = a.into_iter().zip(b).flat_map(|(a, b)| [a, b]).collect();

    server.publish(mixed).await;

    let events = within(target.recorder().ended(40)).await;
    for key in ["a", "b"] {
        assert_eq!(delivered(&events, key), (1..=20).collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn the_answer_has_the_ids_and_what_was_there_before() {
    let target = Target::always_ok().await;
    let folder = Folder::new();
    let server = folder.start().await;
    let (one, two) = (message(&target, "k", 1), message(&target, "k", 2));

    let first = server.publish_to("default", &one).await;
    assert_eq!(first.status, 202);
    assert_eq!(
        first.json(),
        json!({"accepted": 1, "ids": ["k-1"], "duplicates": []})
    );

    let second = server.publish_to("default", &json!([one, two])).await;
    assert_eq!(second.status, 202);
    let expected = json!({"accepted": 2, "ids": ["k-1", "k-2"], "duplicates": ["k-1"]});
    assert_eq!(second.json(), expected);

    server.empty().await;
    let events = target.recorder().all();
    assert_eq!(delivered(&events, "k"), [1, 2]);
}

#[tokio::test]
async fn an_id_is_made_up_where_there_is_none() {
    let target = Target::always_ok().await;
    let folder = Folder::new();
    let server = folder.start().await;

    let body = json!({"mediationTarget": target.url("/hook")});
    let answer = server.publish_to("default", &body).await;
    assert_eq!(answer.status, 202, "{}", answer.text());
    let id = answer.json()["ids"][0].as_str().unwrap().to_owned();

    within(target.recorder().ended(1)).await;
    let request = &target.recorder().requests()[0];
    assert_eq!(request.headers["webhook-id"], id);
}

#[tokio::test]
async fn an_id_with_another_body_is_a_conflict_and_nothing_is_stored() {
    let target = Target::always_ok().await;
    let folder = Folder::new();
    let server = folder.start().await;
    server.publish(vec![message(&target, "k", 1)]).await;
    server.empty().await;
    let mut other = message(&target, "k", 1);
    other["payload"] = json!({"k": "k", "n": 9});

    let body = json!([message(&target, "k", 2), other]);
    let problem = server.publish_to("default", &body).await.problem(409);

    assert_eq!(problem["errors"][0]["pointer"], "/1/id");
    assert!(problem["errors"][0]["remedy"].is_string());
    server.publish(vec![message(&target, "k", 3)]).await;
    server.empty().await;
    assert_eq!(delivered(&target.recorder().all(), "k"), [1, 3]);
}

#[tokio::test]
async fn an_unknown_queue_is_404_where_queues_are_not_made() {
    let target = Target::always_ok().await;
    let folder = Folder::with_config("[dev]\ncreate_queues = false\n");
    let server = folder.start().await;
    let body = message(&target, "k", 1);
    let problem = server.publish_to("other", &body).await.problem(404);
    assert!(problem["detail"].as_str().unwrap().contains("`other`"));
}

#[tokio::test]
async fn a_queue_that_a_publish_made_is_read_at_once_and_after_a_restart() {
    let folder = Folder::new();
    let hanging =
        Target::start(
            |request: &keylane_router::testing::Request| match request.number {
                Some(1) => Answer::ok(),
                _ => Answer::Hang,
            },
        )
        .await;
    let server = folder.start().await;
    for n in 1..=2 {
        let body = message(&hanging, "k", n);
        let answer = server.publish_to("other", &body).await;
        assert_eq!(answer.status, 202, "{}", answer.text());
    }
    within(hanging.recorder().started(2)).await;
    // Until the first one's ack is on disk, it may come again.
    let one_is_left = |answer: &crate::http::Answer| {
        let queues = answer.json();
        let mut queues = queues.as_array().unwrap().iter();
        queues.any(|queue| queue["name"] == "other" && queue["depth"] == 1)
    };
    server.until("/api/v1/queues", one_is_left).await;
    server.kill().await;

    let _server = folder.start().await;

    let events = within(hanging.recorder().started(3)).await;
    assert_eq!(events.last().unwrap().number, Some(2));
}

#[tokio::test]
async fn what_cannot_be_a_queue_is_not_made() {
    let target = Target::always_ok().await;
    let folder = Folder::new();
    let server = folder.start().await;
    let body = message(&target, "k", 1);
    server.publish_to("a%20b", &body).await.problem(400);
    let queues = server.get("/api/v1/queues").await.json();
    assert_eq!(queues.as_array().unwrap().len(), 1, "{queues}");
}

#[tokio::test]
async fn everything_that_is_wrong_is_told_with_its_place() {
    let folder = Folder::new();
    let server = folder.start().await;
    let body = json!([
        {"id": "good", "mediationTarget": "http://127.0.0.1:1/"},
        {"id": 5, "authToken": "geheim"},
        {"id": "c", "mediationTarget": "ftp://x/", "headers": {"Host": "x"}},
    ]);
    let answer = server.publish_to("default", &body).await;
    let problem = answer.problem(400);
    let errors = problem["errors"].as_array().unwrap();
    let pointers: Vec<&str> = errors
        .iter()
        .map(|error| error["pointer"].as_str().unwrap())
        .collect();
    assert_eq!(
        pointers,
        [
            "/1/id",
            "/1/mediationTarget",
            "/2/mediationTarget",
            "/2/headers/Host"
        ]
    );
    assert!(!answer.text().contains("geheim"));
    let queues = server.get("/api/v1/queues").await.json();
    assert_eq!(queues[0]["depth"], 0);
}

#[tokio::test]
async fn bodies_that_are_no_json_are_refused() {
    let folder = Folder::new();
    let server = folder.start().await;
    let path = "/api/v1/queues/default/messages";
    let json = [("content-type", "application/json")];
    let form = [("content-type", "application/x-www-form-urlencoded")];
    for body in ["", "{", "[{]", "[]", "7"] {
        server.ask("POST", path, &json, body).await.problem(400);
    }
    server.ask("POST", path, &form, "{}").await.problem(415);
    let large = "x".repeat((32 << 20) + 1);
    server.ask("POST", path, &json, &large).await.problem(413);
}

#[tokio::test]
async fn a_raw_queue_takes_the_body_as_the_payload() {
    let target = Target::always_ok().await;
    let folder = Folder::with_config(&format!(
        "[sources.raw]\nenvelope = \"raw\"\ntarget = \"{}\"\n",
        target.url("/raw")
    ));
    let server = folder.start().await;
    let headers = [
        ("content-type", "text/csv"),
        ("keylane-key", "a%20b"),
        ("webhook-id", "m1"),
    ];
    let path = "/api/v1/queues/raw/messages";
    let answer = server.ask("POST", path, &headers, "1;2").await;
    assert_eq!(answer.status, 202, "{}", answer.text());
    assert_eq!(answer.json()["ids"], json!(["m1"]));

    within(target.recorder().ended(1)).await;
    let request = &target.recorder().requests()[0];
    assert_eq!(&request.body[..], b"1;2");
    assert_eq!(request.headers["content-type"], "text/csv");
    assert_eq!(request.headers["keylane-key"], "a%20b");
}

#[tokio::test]
async fn the_trace_goes_on_to_the_target() {
    let target = Target::always_ok().await;
    let folder = Folder::new();
    let server = folder.start().await;
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let headers = [("content-type", "application/json"), ("traceparent", trace)];
    let body = message(&target, "k", 1).to_string();
    let path = "/api/v1/queues/default/messages";
    assert_eq!(server.ask("POST", path, &headers, &body).await.status, 202);

    within(target.recorder().ended(1)).await;
    let request = &target.recorder().requests()[0];
    assert_eq!(request.headers["traceparent"], trace);
}

#[tokio::test]
async fn pages_of_other_sites_cannot_publish() {
    let folder = Folder::new();
    let server = folder.start().await;
    let strange = [("origin", "https://evil.example")];
    let path = "/api/seed/messages";
    server.ask("POST", path, &strange, "").await.problem(403);
    let own = [("origin", server.url.as_str())];
    assert_eq!(server.ask("POST", path, &own, "").await.status, 200);
}

#[tokio::test]
async fn routes_that_are_not_there_are_problems() {
    let folder = Folder::new();
    let server = folder.start().await;
    server.get("/nothing").await.problem(404);
    server.get("/api/v1/config/reload").await.problem(405);
    let home = server.get("/").await;
    assert!(home.text().contains("/metrics"), "{}", home.text());
}
