//! The shortest history that breaks the same check: no step and no bit can be left out.

use std::any::Any;
use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

use super::Checked;

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs a history; a panic of the lanes is a failure like others, and is not printed.
pub(super) fn run(words: &[u64]) -> Checked {
    keep_quiet_where_asked();
    QUIET.set(true);
    let ended = panic::catch_unwind(AssertUnwindSafe(|| super::run(words, false)));
    QUIET.set(false);
    ended.unwrap_or_else(|panic| Err(format!("panicked: {}", text_of(&*panic))))
}

/// Leaves out what can be left out. `words` must fail.
pub(super) fn of(mut words: Vec<u64>) -> (Vec<u64>, String) {
    let mut why = run(&words).expect_err("it failed before");
    while let Some((fewer, still)) = simpler(&words, &why) {
        (words, why) = (fewer, still);
    }
    (words, why)
}

fn simpler(words: &[u64], why: &str) -> Option<(Vec<u64>, String)> {
    let mut candidates = without_a_word(words).chain(without_a_bit(words));
    candidates.find_map(|fewer| {
        let still = run(&fewer).err()?;
        (check_of(&still) == check_of(why)).then_some((fewer, still))
    })
}

fn without_a_word(words: &[u64]) -> impl Iterator<Item = Vec<u64>> {
    (1..words.len()).rev().map(|at| {
        let mut fewer = words.to_vec();
        fewer.remove(at);
        fewer
    })
}

fn without_a_bit(words: &[u64]) -> impl Iterator<Item = Vec<u64>> {
    let places = (0..words.len()).flat_map(|at| (0..64).rev().map(move |bit| (at, bit)));
    let set = places.filter(|&(at, bit)| words[at] & (1 << bit) != 0);
    set.map(|(at, bit)| {
        let mut fewer = words.to_vec();
        fewer[at] &= !(1 << bit);
        fewer
    })
}

fn check_of(why: &str) -> &str {
    why.split(':').next().unwrap_or(why)
}

fn keep_quiet_where_asked() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !QUIET.get() {
                usual(info);
            }
        }));
    });
}

fn text_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("without a text")
}
