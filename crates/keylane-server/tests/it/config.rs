//! `keylane config check` and `keylane config show`.

use crate::{ended, keylane, run};

fn folder_with(text: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("k.toml"), text).unwrap();
    folder
}

#[test]
fn without_a_file_the_defaults_are_right() {
    let folder = folder_with("");
    let (code, out, err) = run(&["config", "check"], folder.path());
    assert_eq!((code, out.as_str(), err.as_str()), (Some(0), "ok\n", ""));
}

#[test]
fn all_errors_are_printed_and_the_exit_code_is_2() {
    let folder = folder_with("lissten = 1\n[pools.a]\noverflow = \"x\"\n");
    let (code, out, err) = run(&["config", "check", "--config", "k.toml"], folder.path());
    assert_eq!((code, out.as_str()), (Some(2), ""));
    assert_eq!(err.lines().count(), 2, "{err}");
    assert!(err.contains("k.toml:1: lissten"), "{err}");
    assert!(err.contains("k.toml:3: pools.a.overflow"), "{err}");
}

#[test]
fn a_wrong_config_stops_serve_with_exit_code_2() {
    let folder = folder_with("lissten = 1\n");
    let (code, _, err) = run(&["--config", "k.toml"], folder.path());
    assert_eq!(code, Some(2), "{err}");
    assert!(err.contains("did you mean `listen`?"), "{err}");
}

#[test]
fn a_missing_file_is_named() {
    let folder = folder_with("");
    let (code, _, err) = run(&["config", "check", "--config", "no.toml"], folder.path());
    assert_eq!(code, Some(2));
    assert!(err.contains("no.toml cannot be read"), "{err}");
}

#[test]
fn notices_are_printed() {
    let folder = folder_with("[pools.a]\ncascade = \"batch\"\n");
    let (code, out, _) = run(&["config", "check", "--config", "k.toml"], folder.path());
    assert_eq!(code, Some(0));
    assert!(
        out.starts_with("notice: pool `a`: cascade") && out.ends_with("\nok\n"),
        "{out}"
    );
}

#[test]
fn flags_win_over_the_environment_and_that_over_the_file() {
    let folder = folder_with("listen = \"127.0.0.1:1\"\ndata = \"file\"\nmax_in_flight = 1\n");
    let args = [
        "config",
        "show",
        "--config",
        "k.toml",
        "--listen",
        "127.0.0.1:3",
    ];
    let mut command = keylane(&args, folder.path());
    command
        .env("KEYLANE_LISTEN", "127.0.0.1:2")
        .env("KEYLANE_DATA", "env");
    let (code, out, err) = ended(command.output().unwrap());
    assert_eq!(code, Some(0), "{err}");
    for (value, origin) in [
        ("listen = \"127.0.0.1:3\"", "# --listen"),
        ("data = \"env\"", "# KEYLANE_DATA"),
        ("max_in_flight = 1", "# k.toml:3"),
        ("stop_deadline = \"30s\"", "# default"),
    ] {
        let found = out
            .lines()
            .any(|line| line.starts_with(value) && line.ends_with(origin));
        assert!(found, "{value} {origin}\n{out}");
    }
}

#[test]
fn the_example_is_right() {
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/as-flowcatalyst.toml");
    let folder = folder_with("");
    let (code, _, err) = run(&["config", "check", "--config", example], folder.path());
    assert_eq!(code, Some(0), "{err}");
}

#[test]
fn variables_that_an_orchestrator_sets_are_passed_over_with_a_notice() {
    let folder = folder_with("");
    let mut command = keylane(&["config", "check"], folder.path());
    command.env("KEYLANE_SERVICE_HOST", "10.0.0.1");
    let (code, out, err) = ended(command.output().unwrap());
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains("passed over: KEYLANE_SERVICE_HOST"), "{out}");
}
