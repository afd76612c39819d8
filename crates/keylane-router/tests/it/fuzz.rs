//! The corpus of the fuzz targets, and random inputs made of it, without a fuzzer.
//!
//! `KEYLANE_FUZZ` says how many random inputs each check gets, `KEYLANE_SEED` which.

use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

use keylane_router::testing::fuzz::{ALL, Check};

fn corpus(name: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    let files = std::fs::read_dir(folder.join(name)).expect("every check has a corpus");
    let mut files: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
    files.sort();
    let read = |path: PathBuf| {
        let bytes = std::fs::read(&path).unwrap();
        (path, bytes)
    };
    files.into_iter().map(read).collect()
}

fn env(name: &str, default: u64) -> u64 {
    let text = std::env::var(name).ok();
    text.map_or(default, |text| text.parse().expect("a number"))
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    /// An input like one of the corpus, changed here and there, or none like it.
    fn input(&mut self, corpus: &[(PathBuf, Vec<u8>)]) -> Vec<u8> {
        if self.below(10) == 0 {
            return (0..self.below(200)).map(|_| self.next() as u8).collect();
        }
        let mut bytes = corpus[self.below(corpus.len())].1.clone();
        for _ in 0..=self.below(6) {
            self.change(&mut bytes, corpus);
        }
        bytes
    }

    fn change(&mut self, bytes: &mut Vec<u8>, corpus: &[(PathBuf, Vec<u8>)]) {
        let at = self.below(bytes.len() + 1);
        match self.below(6) {
            0 if at < bytes.len() => bytes[at] = self.next() as u8,
            1 if at < bytes.len() => bytes[at] ^= 1 << self.below(8),
            2 => bytes.truncate(at),
            3 => bytes.insert(at, b"\0\r\n\"{}:/@%[]0."[self.below(14)]),
            4 => {
                let other = &corpus[self.below(corpus.len())].1;
                let from = self.below(other.len() + 1);
                bytes.truncate(at);
                bytes.extend_from_slice(&other[from..]);
            }
            _ => {
                let end = at + self.below(bytes.len() - at + 1);
                let again = bytes[at..end].to_vec();
                bytes.splice(at..at, again);
            }
        }
    }
}

fn holds(check: Check, bytes: &[u8]) -> bool {
    catch_unwind(|| check(bytes)).is_ok()
}

/// The shortest input that still fails, as far as leaving bytes out finds it.
fn shortest(check: Check, mut bytes: Vec<u8>) -> Vec<u8> {
    let mut at = 0;
    while at < bytes.len() {
        let mut fewer = bytes.clone();
        fewer.remove(at);
        match holds(check, &fewer) {
            true => at += 1,
            false => bytes = fewer,
        }
    }
    bytes
}

#[test]
fn every_input_of_the_corpus_is_harmless() {
    for (name, check) in ALL {
        let corpus = corpus(name);
        assert!(corpus.len() >= 5, "{name} has a corpus of {}", corpus.len());
        for (path, bytes) in corpus {
            assert!(holds(check, &bytes), "{}", path.display());
        }
    }
}

#[test]
fn random_inputs_are_harmless() {
    let count = env("KEYLANE_FUZZ", 2000);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let seed = env("KEYLANE_SEED", now.unwrap().as_nanos() as u64);
    for (name, check) in ALL {
        let corpus = corpus(name);
        let mut random = Random(seed);
        for _ in 0..count {
            let input = random.input(&corpus);
            if !holds(check, &input) {
                let shortest = String::from_utf8_lossy(&shortest(check, input)).into_owned();
                panic!("{name} fails with KEYLANE_SEED={seed}: {shortest:?}");
            }
        }
    }
}
