//! What keeps the program from starting, and what it says then.

use std::time::Duration;

use crate::http::ask;
use crate::run;
use crate::server::{Folder, within};

#[tokio::test]
async fn a_second_process_on_the_same_data_is_refused() {
    let folder = Folder::new();
    let server = folder.start().await;
    let mut second = folder.spawn(&[]);
    assert_eq!(second.ended().await, Some(1));
    let log = second.log();
    let pid = server.process.child.id().unwrap();
    assert!(log.contains(&format!("held by process {pid}")), "{log}");
    assert!(log.contains("--standby"), "{log}");
    assert_eq!(server.get("/readyz").await.status, 200);
}

#[tokio::test]
async fn a_port_in_use_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let folder = Folder::new();
    let (code, out, err) = run(&["--listen", &address], folder.path());
    assert_eq!((code, out.as_str()), (Some(1), ""));
    assert!(
        err.contains(&format!("cannot listen on {address}")),
        "{err}"
    );
    assert!(err.contains("--listen"), "{err}");
    // It released the data folder on its way out.
    let (code, _, err) = run(&["--listen", &address], folder.path());
    assert_eq!(code, Some(1));
    assert!(err.contains("cannot listen"), "{err}");
}

#[test]
fn a_data_folder_that_cannot_be_made_is_named() {
    let folder = Folder::new();
    std::fs::write(folder.path().join("file"), "").unwrap();
    let (code, _, err) = run(
        &["--listen", "127.0.0.1:0", "--data", "file/data"],
        folder.path(),
    );
    assert_eq!(code, Some(1));
    assert!(err.contains("file/data"), "{err}");
    assert!(err.contains("may write to"), "{err}");
}

#[cfg(unix)]
#[test]
fn a_read_only_data_folder_is_named() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = Folder::new();
    let data = folder.path().join("data");
    std::fs::create_dir(&data).unwrap();
    std::fs::set_permissions(&data, std::fs::Permissions::from_mode(0o500)).unwrap();
    let args = ["--listen", "127.0.0.1:0", "--data", "data"];
    let mut command = crate::keylane(&args, folder.path());
    if rustix::process::geteuid().is_root() {
        // Root may write everywhere: somebody else tries.
        command = by_nobody(&command, folder.path());
    }
    let (code, _, err) = crate::ended(command.output().unwrap());
    assert_eq!(code, Some(1));
    assert!(err.contains("data/keylane.lock"), "{err}");
    assert!(err.contains("may write to"), "{err}");
}

/// The same command by a user without rights, to whom the folder is given.
#[cfg(unix)]
fn by_nobody(command: &std::process::Command, folder: &std::path::Path) -> std::process::Command {
    use std::os::unix::fs::chown;
    use std::os::unix::process::CommandExt as _;
    const NOBODY: u32 = 65534;
    // Where they can reach it, whoever's folder it was built in.
    let program = folder.join("keylane");
    std::fs::hard_link(command.get_program(), &program)
        .or_else(|_| std::fs::copy(command.get_program(), &program).map(drop))
        .unwrap();
    for path in [folder, &folder.join("data")] {
        chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let mut by_nobody = std::process::Command::new(program);
    by_nobody.args(command.get_args()).current_dir(folder);
    by_nobody.uid(NOBODY).gid(NOBODY);
    by_nobody
}

#[test]
fn a_file_that_is_no_database_is_named() {
    let folder = Folder::new();
    std::fs::create_dir(folder.path().join("data")).unwrap();
    std::fs::write(folder.path().join("data/keylane.db"), "hello ".repeat(1000)).unwrap();
    let (code, _, err) = run(
        &["--listen", "127.0.0.1:0", "--data", "data"],
        folder.path(),
    );
    assert_eq!(code, Some(1));
    assert!(err.contains("keylane.db is not a database"), "{err}");
}

#[tokio::test]
async fn the_log_is_json_when_asked_for() {
    let folder = Folder::new();
    let server = folder.spawn(&["--log-format", "json"]).listening().await;
    server.process.logs("\n").await;
    let log = server.process.log();
    let line = log.lines().next().unwrap();
    let line: serde_json::Value = serde_json::from_str(line).expect("a line is JSON");
    assert_eq!(line["level"], "INFO");
}

#[test]
fn a_wrong_log_filter_is_a_usage_error() {
    let folder = Folder::new();
    let mut command = crate::keylane(&["--listen", "127.0.0.1:0"], folder.path());
    command.env("KEYLANE_LOG", "keylane=loud");
    let (code, _, err) = crate::ended(command.output().unwrap());
    assert_eq!(code, Some(2));
    assert!(err.contains("KEYLANE_LOG"), "{err}");
}

#[tokio::test]
async fn a_connection_that_says_nothing_does_not_hold_up_the_stop() {
    let folder = Folder::new();
    let server = folder.start().await;
    let address = server.url.strip_prefix("http://").unwrap().to_owned();
    let _silent = tokio::net::TcpStream::connect(&address).await.unwrap();
    assert!(within(ask("GET", &server.url, &[], "")).await.is_some());
    let stopped = tokio::time::timeout(Duration::from_secs(15), server.stop()).await;
    assert_eq!(stopped, Ok(Some(0)));
}
