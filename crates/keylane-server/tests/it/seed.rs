//! `POST /api/seed/messages` (FC-7).

use std::collections::BTreeSet;

use keylane_router::testing::Target;

use crate::server::{Folder, Server, within};

/// Seeds for a recording target and answers the keys it saw.
async fn keys(server: &Server, mode: &str, count: usize) -> Vec<String> {
    let target = Target::always_ok().await;
    let url = target.url("/hook").replace('/', "%2F");
    let path = format!("/api/seed/messages?count={count}&endpoint={url}{mode}");
    let answer = server.post(&path).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let answer = answer.json();
    assert_eq!(answer["count"], count);
    assert_eq!(answer["ids"].as_array().unwrap().len(), count);
    within(target.recorder().ended(count)).await;
    let requests = target.recorder().requests();
    requests.into_iter().map(|request| request.key).collect()
}

#[tokio::test]
async fn unique_gives_each_message_its_own_key() {
    let folder = Folder::new();
    let server = folder.start().await;
    let keys = keys(&server, "&messageGroupMode=unique", 30).await;
    let expected: BTreeSet<String> = (0..30).map(|n| format!("msg-{n}")).collect();
    assert_eq!(keys.into_iter().collect::<BTreeSet<_>>(), expected);
}

#[tokio::test]
async fn one_of_eight_is_the_default() {
    let folder = Folder::new();
    let server = folder.start().await;
    let eight: BTreeSet<String> = (0..8).map(|n| format!("group-{n}")).collect();
    for mode in ["", "&messageGroupMode=1of8"] {
        // That one of them is left out by chance happens once in 10^22 runs.
        let keys = keys(&server, mode, 400).await;
        assert_eq!(keys.into_iter().collect::<BTreeSet<_>>(), eight);
    }
}

#[tokio::test]
async fn single_gives_all_messages_one_key() {
    let folder = Folder::new();
    let server = folder.start().await;
    let keys = keys(&server, "&messageGroupMode=single", 10).await;
    assert_eq!(keys, ["single-group"; 10]);
}

#[tokio::test]
async fn without_options_ten_go_to_the_fast_target() {
    let folder = Folder::new();
    let server = folder.start().await;
    let answer = server.post("/api/seed/messages").await.json();
    assert_eq!(
        (&answer["count"], &answer["queue"]),
        (&10.into(), &"default".into())
    );
    server.empty().await;
    let stats = server.get("/api/test/stats").await.json();
    assert_eq!(stats["targets"]["fast"], 10, "{stats}");
}

#[tokio::test]
async fn random_draws_from_the_test_targets() {
    let folder = Folder::new();
    let server = folder.start().await;
    let path = "/api/seed/messages?count=40&endpoint=random&messageGroupMode=unique&queue=mixed";
    assert_eq!(server.post(path).await.status, 200);
    let drawn = |answer: &crate::http::Answer| {
        let stats = answer.json();
        let targets = stats["targets"].as_object().unwrap();
        targets.len() > 1
    };
    server.until("/api/test/stats", drawn).await;
}

#[tokio::test]
async fn what_makes_no_sense_is_refused() {
    let folder = Folder::new();
    let server = folder.start().await;
    for query in [
        "count=0",
        "count=many",
        "endpoint=nowhere",
        "messageGroupMode=2of8",
        "quue=x",
        "queue=a%20b",
    ] {
        let answer = server.post(&format!("/api/seed/messages?{query}")).await;
        answer.problem(400);
    }
}
