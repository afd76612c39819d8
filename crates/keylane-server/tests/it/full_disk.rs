//! A disk that takes no more: as the server's own limit on the size of files.

use std::process::Command;

use keylane_router::testing::Target;
use rustix::process::{Resource, Rlimit, prlimit};

use crate::server::{Folder, Server, delivered, message};

/// Ignores the signal that would end it at the limit, so that the write fails instead.
fn without_signal(program: Command) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\""]);
    shell.arg(program.get_program()).args(program.get_args());
    for (name, value) in program.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    if let Some(folder) = program.get_current_dir() {
        shell.current_dir(folder);
    }
    shell
}

fn limit(server: &Server, bytes: Option<u64>) {
    let limit = Rlimit {
        current: bytes,
        maximum: None,
    };
    prlimit(Some(server.process.pid()), Resource::Fsize, limit).unwrap();
}

#[tokio::test]
async fn what_cannot_be_stored_is_refused_until_there_is_room_again() {
    let target = Target::always_ok().await;
    let folder = Folder::new();
    let server = folder.spawn_by(&[], without_signal).listening().await;
    limit(&server, Some(64 << 10));
    let mut large = message(&target, "k", 1);
    large["payload"]["text"] = "x".repeat(100 << 10).into();

    let refused = server.publish_to("default", &large).await;

    refused.problem(503);
    assert!(refused.header("retry-after").is_some());
    let ready = server.get("/readyz").await;
    assert_eq!(ready.status, 503);
    assert_eq!(ready.json()["problems"][0]["trouble"], "publish");

    limit(&server, None);
    server.publish(vec![large]).await;
    server.empty().await;
    assert_eq!(delivered(&target.recorder().all(), "k"), [1]);
    assert_eq!(server.get("/readyz").await.status, 200);
}
