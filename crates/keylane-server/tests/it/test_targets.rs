//! `/api/test/…`.

use serde_json::json;

use crate::server::Folder;

#[tokio::test]
async fn each_target_answers_as_its_name_says() {
    let folder = Folder::new();
    let server = folder.start().await;
    for (target, status, body) in [
        ("fast", 200, Some(json!({"ack": true}))),
        ("success", 200, Some(json!({"ack": true}))),
        ("pending", 200, Some(json!({"ack": false}))),
        ("fail", 500, None),
        ("server-error", 500, None),
        ("client-error", 400, None),
    ] {
        let answer = server.post(&format!("/api/test/{target}")).await;
        assert_eq!(answer.status, status, "{target}");
        if let Some(body) = body {
            assert_eq!(answer.json(), body, "{target}");
        }
    }
    let faulty = server.post("/api/test/faulty").await.status;
    assert!([200, 400, 500].contains(&faulty), "{faulty}");
    server.post("/api/test/unknown").await.problem(404);
}

#[tokio::test]
async fn the_stats_count_and_begin_anew() {
    let folder = Folder::new();
    let server = folder.start().await;
    for target in ["success", "success", "fail"] {
        server.post(&format!("/api/test/{target}")).await;
    }
    let stats = json!({"total": 3, "underWay": 0, "targets": {"success": 2, "fail": 1}});
    assert_eq!(server.get("/api/test/stats").await.json(), stats);
    assert_eq!(server.post("/api/test/stats/reset").await.json(), stats);
    let none = json!({"total": 0, "underWay": 0, "targets": {}});
    assert_eq!(server.get("/api/test/stats").await.json(), none);
}

#[tokio::test]
async fn they_and_the_seeds_are_there_only_in_dev() {
    let folder = Folder::with_config("[dev]\nenabled = false\n");
    let server = folder.start().await;
    server.post("/api/test/success").await.problem(404);
    server.get("/api/test/stats").await.problem(404);
    server.post("/api/seed/messages").await.problem(404);
}
