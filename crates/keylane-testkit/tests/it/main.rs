//! Scenarios that once broke a promise, and that a seed is the same history in each process.

use std::path::{Path, PathBuf};

use keylane_testkit::simulate::case::Case;
use keylane_testkit::simulate::draw::draw;
use keylane_testkit::simulate::judge::judge;
use keylane_testkit::simulate::run::{digest, run};

fn of_the_crate(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn scenarios() -> Vec<PathBuf> {
    let folder = std::fs::read_dir(of_the_crate("scenarios")).expect("the folder is there");
    let mut files: Vec<PathBuf> = folder
        .map(|entry| entry.expect("an entry").path())
        .collect();
    files.sort();
    files
}

fn read(file: &Path) -> Case {
    let text = std::fs::read_to_string(file).expect("it can be read");
    Case::from_toml(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

#[test]
fn every_scenario_keeps_all_promises() {
    let mut broken = Vec::new();
    for file in scenarios() {
        let case = read(&file);
        let faults = judge(&case, &run(&case));
        broken.extend(
            faults
                .iter()
                .map(|fault| format!("{}: {fault}", file.display())),
        );
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn a_scenario_file_is_written_as_it_is_read() {
    for seed in 0..20 {
        let case = draw(seed);
        assert_eq!(Case::from_toml(&case.to_toml()), Ok(case));
    }
}

/// Hash seeds, addresses and the environment are others in each process. After a change that
/// moves events, `KEYLANE_WRITE_DIGESTS=1` writes the file anew.
#[test]
fn a_seed_is_the_same_history_in_each_process() {
    let digests: String = (0..20)
        .map(|seed| format!("{seed} {}\n", digest(&run(&draw(seed)))))
        .collect();
    let file = of_the_crate("tests/digests.txt");
    if std::env::var_os("KEYLANE_WRITE_DIGESTS").is_some() {
        std::fs::write(&file, &digests).expect("it can be written");
    }
    let known = std::fs::read_to_string(file).expect("it can be read");
    assert_eq!(digests, known);
}
