//! `keylane verify`.

use crate::run;

const GREEN: [&str; 3] = [
    r#"{"t":1,"ev":"publish","key":"a","n":0,"by":"producer"}"#,
    r#"{"t":2,"ev":"start","key":"a","n":0,"by":"target"}"#,
    r#"{"t":3,"ev":"end","key":"a","n":0,"outcome":"delivered","by":"target"}"#,
];

fn folder_with(files: &[(&str, &[&str])]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, lines) in files {
        std::fs::write(folder.path().join(name), lines.join("\n") + "\n").unwrap();
    }
    folder
}

#[test]
fn a_green_history_ends_with_0() {
    let folder = folder_with(&[("h", &GREEN)]);
    let (code, out, _) = run(&["verify", "h"], folder.path());
    assert_eq!(code, Some(0));
    assert!(
        out.contains("published    1") && out.contains("green"),
        "{out}"
    );
}

#[test]
fn several_files_are_one_history() {
    let folder = folder_with(&[("target", &GREEN[1..]), ("producer", &GREEN[..1])]);
    let (code, out, _) = run(&["verify", "target", "producer"], folder.path());
    assert_eq!(code, Some(0), "{out}");
    let (code, out, _) = run(&["verify", "producer"], folder.path());
    assert_eq!(code, Some(1));
    assert!(out.contains("lost: \"a\" message 0"), "{out}");
}

#[test]
fn a_bad_line_is_named_with_its_file() {
    let folder = folder_with(&[("h", &[GREEN[0], "nonsense"])]);
    let (code, _, err) = run(&["verify", "h"], folder.path());
    assert_eq!(code, Some(2));
    assert!(err.starts_with("h: line 2: "), "{err}");
}

#[test]
fn a_missing_file_and_no_file_end_with_2() {
    let folder = folder_with(&[]);
    let (code, _, err) = run(&["verify", "no"], folder.path());
    assert_eq!(code, Some(2));
    assert!(err.starts_with("no: "), "{err}");
    assert_eq!(run(&["verify"], folder.path()).0, Some(2));
}

#[test]
fn the_report_can_be_read_by_machines() {
    let folder = folder_with(&[("h", &GREEN[..1])]);
    let (code, out, _) = run(&["verify", "--json", "h"], folder.path());
    assert_eq!(code, Some(1));
    let report: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(report["counts"]["published"], 1);
    assert_eq!(report["totals"]["lost"], 1);
    assert_eq!(report["violations"][0]["excerpt"][0]["ev"], "publish");
}

#[test]
fn what_was_promised_can_be_told() {
    let crash = [
        &GREEN[..],
        &[
            r#"{"t":4,"ev":"crash","by":"router"}"#,
            r#"{"t":5,"ev":"start","key":"a","n":0,"by":"target"}"#,
            r#"{"t":6,"ev":"end","key":"a","n":0,"outcome":"delivered","by":"target"}"#,
        ],
    ]
    .concat();
    let folder = folder_with(&[("h", &crash)]);
    assert_eq!(run(&["verify", "h"], folder.path()).0, Some(0));
    let bounded = ["verify", "--max-duplicates-per-crash", "0", "h"];
    assert_eq!(run(&bounded, folder.path()).0, Some(1));
}
