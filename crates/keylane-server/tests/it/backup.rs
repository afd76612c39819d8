//! `keylane backup`.

use keylane_router::testing::{Answer, Target, fixed};

use crate::keylane;
use crate::server::{Folder, messages, within};

async fn backup(folder: &Folder, server: &str, file: &str) -> (Option<i32>, String, String) {
    let command = keylane(&["backup", file, "--server", server], folder.path());
    let output = tokio::process::Command::from(command).output();
    crate::ended(within(output).await.unwrap())
}

#[tokio::test]
async fn a_live_copy_has_everything_and_can_be_served() {
    let hanging = Target::start(fixed(Answer::Hang)).await;
    let folder = Folder::new();
    let server = folder.start().await;
    server.publish(messages(&hanging, "k", 5)).await;
    within(hanging.recorder().started(1)).await;

    let (code, out, err) = backup(&folder, &server.url, "copy.db").await;
    assert_eq!(code, Some(0), "{err}");
    let copy = folder.path().join("copy.db");
    assert_eq!(out.trim(), copy.to_str().unwrap());
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        let mode = std::fs::metadata(&copy).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "messages carry tokens");
    }
    let (code, _, err) = backup(&folder, &server.url, "copy.db").await;
    assert_eq!(code, Some(5), "{err}");
    assert!(err.contains("exists"), "{err}");
    server.kill().await;

    let other = Folder::new();
    std::fs::create_dir(other.path().join("data")).unwrap();
    std::fs::copy(copy, other.path().join("data/keylane.db")).unwrap();
    let restored = other.start().await;
    let queues = restored.get("/api/v1/queues").await.json();
    assert_eq!(queues[0]["depth"], 5, "{queues}");
}

#[tokio::test]
async fn without_a_server_the_exit_code_is_3() {
    let folder = Folder::new();
    let (code, _, err) = backup(&folder, "http://127.0.0.1:1", "copy.db").await;
    assert_eq!(code, Some(3), "{err}");
    assert!(err.contains("is a server running there?"), "{err}");
}

#[tokio::test]
async fn a_server_that_is_no_url_is_a_usage_error() {
    let folder = Folder::new();
    let (code, _, err) = backup(&folder, "localhost", "copy.db").await;
    assert_eq!(code, Some(2), "{err}");
}
