//! Watches that the first starts of a key follow the broker's own positions.
//!
//! The lanes keep the order; this looks at it from outside and knows nothing of them. It goes by
//! what the source said of each message, in a table that outlives lanes and never grows. What it
//! reports happened; what it does not see may have happened all the same:
//!
//! * A place of the table belongs to one key at a time, chosen by hash. A key whose place is taken
//!   is not watched until the other has been quiet for long.
//! * Of a key the last [`REMEMBERED`] starts are known. Who is overtaken by more than those could
//!   also be a message that comes again, and is not reported.
//! * A message that was started before may start again at any time: its lease was lost, it was
//!   returned, it is a retry. What comes from a store is in its place among the others and judged
//!   like them.
//! * A row of an earlier process says that the source gave that process everything up to its
//!   position. Redeliveries from there are not reported. Rows of an earlier process are not compared
//!   with each other, as they may be of several pools, but with the fresh messages behind them.
//! * Where several of a lane may run at once, or order is promised per batch only, nothing is
//!   judged, nor later anything that may have been waiting then.

use std::collections::HashMap;
use std::hash::BuildHasher as _;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use foldhash::quality::RandomState;

use crate::log_limit::LogLimit;
use crate::message::Key;

/// How many keys are watched at once.
const PLACES: usize = 4096;
/// How many starts of a key are known.
const REMEMBERED: usize = 16;
/// After so many starts of other keys that wanted its place, a key loses it.
const PATIENCE: u32 = 1000;

/// Positions of the same scale can be compared: those that one consumer of a source received for
/// one pool. Its successor may read another queue under the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Scale(NonZeroU64);

/// The scales of one consumer, by pool.
#[derive(Default)]
pub(crate) struct Scales(Mutex<HashMap<Arc<str>, (u64, Scale)>>);

impl Scales {
    /// The scale of what arrives in this pool now. `codes` is how often messages that name another
    /// pool began to go there: their lanes were others until then, so nothing from before is
    /// compared with what comes after.
    pub(crate) fn of(&self, audit: &Audit, pool: &Arc<str>, codes: u64) -> Scale {
        let mut scales = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match scales.get(pool) {
            Some((at, scale)) if *at == codes => *scale,
            _ => {
                let scale = audit.new_scale();
                scales.insert(pool.clone(), (codes, scale));
                scale
            }
        }
    }
}

/// What is kept in order: the messages of a key in one pool, which is the lane they are in.
#[derive(Clone, Copy, Debug, Hash)]
pub(crate) struct Line<'a> {
    pub(crate) scale: Scale,
    pub(crate) pool: &'a str,
    /// `None` for keyless messages.
    pub(crate) key: Option<&'a Key>,
}

/// What kind of start it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// The first attempt, as far as the router knows.
    First,
    /// The first attempt here of a row that an earlier process stored.
    Earlier,
    /// It was tried before: known from now on, not judged.
    Again,
    /// No order is promised here: neither it nor anything before it is judged.
    Loose,
}

/// A first start that came too late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Violation {
    /// Where the message is in its queue.
    pub(crate) position: u64,
    /// The furthest one of its key that had started by then.
    pub(crate) after: u64,
}

/// The starts of sampled keys.
pub(crate) struct Audit {
    hasher: RandomState,
    places: Box<[Mutex<Place>]>,
    scales: AtomicU64,
    logged: LogLimit,
}

impl Default for Audit {
    fn default() -> Self {
        Self::with_places(PLACES)
    }
}

impl Audit {
    fn with_places(count: usize) -> Self {
        Self {
            hasher: RandomState::default(),
            places: (0..count).map(|_| Mutex::default()).collect(),
            scales: AtomicU64::new(1),
            logged: LogLimit::default(),
        }
    }

    /// A scale of its own for a new consumer.
    pub(crate) fn new_scale(&self) -> Scale {
        let number = self.scales.fetch_add(1, Ordering::Relaxed);
        Scale(NonZeroU64::new(number).expect("nobody starts that many consumers"))
    }

    /// An attempt starts. Must be told in the order of the starts of a key.
    pub(crate) fn start(&self, line: Line<'_>, position: u64, start: Start) -> Option<Violation> {
        let hash = self.hasher.hash_one(line);
        let at = hash as usize % self.places.len();
        let mut place = self.places[at]
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if !place.belongs_to(hash, position) {
            return None;
        }
        place.start(position, start)
    }

    /// Whether a violation at this time gets a line in the log.
    pub(crate) fn may_log(&self, now: Instant) -> bool {
        self.logged.allows(now)
    }
}

/// What is known of one key.
#[derive(Debug, Default)]
struct Place {
    /// The key's hash. Two keys with the same 64 bits would be taken for one.
    owner: Option<u64>,
    /// Starts of other keys that wanted this place since the owner's last.
    wanted: u32,
    /// The furthest start of any key that has this place or wanted it.
    furthest: u64,
    /// Nothing before this position is judged: it may have been started unseen.
    judged_from: u64,
    /// The source gave everything before this position to an earlier process.
    given_from: u64,
    /// The furthest starts but those of [`Start::Earlier`], lowest first; the rest is not used.
    recent: [u64; REMEMBERED],
    count: usize,
}

impl Place {
    /// Whether it is this key's, from now on if need be.
    fn belongs_to(&mut self, hash: u64, position: u64) -> bool {
        let before = self.furthest;
        self.furthest = before.max(position);
        match self.owner {
            Some(owner) if owner == hash => self.wanted = 0,
            Some(_) if self.wanted < PATIENCE => {
                self.wanted += 1;
                return false;
            }
            // Nobody was ever here: then this is the key's first start of all.
            None => self.owner = Some(hash),
            // What the key started before is not known, only that it was not further than this.
            Some(_) => {
                *self = Self {
                    owner: Some(hash),
                    furthest: self.furthest,
                    judged_from: before.saturating_add(1),
                    ..Self::default()
                };
            }
        }
        true
    }

    fn start(&mut self, position: u64, start: Start) -> Option<Violation> {
        let known = &self.recent[..self.count];
        let after = known.last().copied();
        let found = match known.last() {
            Some(last) if *last < position => Err(self.count),
            _ => known.binary_search(&position),
        };
        if start == Start::Earlier {
            self.given_from = self.given_from.max(position);
        } else if position < self.given_from {
            return None;
        }
        let judged = matches!(start, Start::First | Start::Earlier) && position >= self.judged_from;
        if start == Start::Loose {
            self.judged_from = self.judged_from.max(position.saturating_add(1));
        }
        let at = found.err()?;
        let late = judged && at < self.count;
        if start != Start::Earlier {
            self.remember(position, at);
        }
        after
            .filter(|_| late)
            .map(|after| Violation { position, after })
    }

    fn remember(&mut self, position: u64, mut at: usize) {
        if self.count == REMEMBERED {
            let forgotten = if at == 0 { position } else { self.recent[0] };
            self.judged_from = self.judged_from.max(forgotten.saturating_add(1));
            if at == 0 {
                return;
            }
            self.recent.copy_within(1.., 0);
            self.count -= 1;
            at -= 1;
        }
        self.recent.copy_within(at..self.count, at + 1);
        self.recent[at] = position;
        self.count += 1;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use proptest::prelude::*;

    use super::*;

    fn line<'a>(audit: &Audit, key: &'a Key) -> Line<'a> {
        Line {
            scale: audit.new_scale(),
            pool: "default",
            key: Some(key),
        }
    }

    /// What is reported of these first starts of one key.
    fn firsts(audit: &Audit, line: Line<'_>, positions: &[u64]) -> Vec<Violation> {
        let start = |position: &u64| audit.start(line, *position, Start::First);
        positions.iter().filter_map(start).collect()
    }

    fn late(position: u64, after: u64) -> Violation {
        Violation { position, after }
    }

    #[test]
    fn a_first_start_behind_a_later_one_is_reported_with_both_positions() {
        let (audit, key) = (Audit::with_places(1), Key::from("k"));
        let found = firsts(&audit, line(&audit, &key), &[3, 7, 5, 9, 0]);
        assert_eq!(found, [late(5, 7), late(0, 9)]);
    }

    #[test]
    fn a_message_that_was_started_before_may_start_again() {
        let (audit, key) = (Audit::with_places(1), Key::from("k"));
        let found = firsts(&audit, line(&audit, &key), &[1, 2, 3, 2, 3, 1, 4, 4]);
        assert_eq!(found, []);
    }

    #[test]
    fn a_retry_or_replay_is_not_judged_but_known() {
        let (audit, key) = (Audit::with_places(1), Key::from("k"));
        let line = line(&audit, &key);
        firsts(&audit, line, &[5]);
        assert_eq!(audit.start(line, 2, Start::Again), None);
        assert_eq!(audit.start(line, 8, Start::Again), None);
        assert_eq!(firsts(&audit, line, &[2, 7]), [late(7, 8)]);
    }

    #[test]
    fn what_was_given_before_this_process_may_be_given_again() {
        let (audit, key) = (Audit::with_places(1), Key::from("k"));
        let line = line(&audit, &key);
        assert_eq!(audit.start(line, 5, Start::Earlier), None);
        assert_eq!(firsts(&audit, line, &[3]), []);
        assert_eq!(audit.start(line, 4, Start::Earlier), None);
        assert_eq!(firsts(&audit, line, &[9, 7]), [late(7, 9)]);
        assert_eq!(audit.start(line, 8, Start::Earlier), Some(late(8, 9)));
        assert_eq!(firsts(&audit, line, &[6]), []);
    }

    #[test]
    fn where_no_order_is_promised_nothing_that_waited_then_is_judged() {
        let (audit, key) = (Audit::with_places(1), Key::from("k"));
        let line = line(&audit, &key);
        for position in [2, 1, 4] {
            assert_eq!(audit.start(line, position, Start::Loose), None);
        }
        assert_eq!(firsts(&audit, line, &[3, 9, 8]), [late(8, 9)]);
    }

    #[test]
    fn what_may_have_been_forgotten_is_not_reported() {
        let (audit, key) = (Audit::with_places(1), Key::from("k"));
        let line = line(&audit, &key);
        let many: Vec<u64> = (1..=20).map(|n| n * 2).collect();
        assert_eq!(firsts(&audit, line, &many), []);
        // 2, 4, 6 and 8 are forgotten.
        assert_eq!(firsts(&audit, line, &[2, 7, 9]), [late(9, 40)]);
    }

    #[test]
    fn keys_pools_and_consumers_are_not_compared_with_each_other() {
        let (audit, a, b) = (Audit::default(), Key::from("a"), Key::from("b"));
        let scale = audit.new_scale();
        let of = |scale, pool, key| Line { scale, pool, key };
        let lines = [
            of(scale, "p", Some(&a)),
            of(scale, "p", Some(&b)),
            of(scale, "q", Some(&a)),
            of(scale, "p", None),
            of(audit.new_scale(), "p", Some(&a)),
        ];
        for (position, line) in (0..5).rev().zip(lines) {
            assert_eq!(firsts(&audit, line, &[position]), []);
        }
    }

    #[test]
    fn a_place_is_kept_from_others_until_its_key_is_quiet_for_long() {
        let (audit, a, b) = (Audit::with_places(1), Key::from("a"), Key::from("b"));
        let (first, second) = (line(&audit, &a), line(&audit, &b));
        firsts(&audit, first, &[10]);
        for _ in 0..PATIENCE {
            assert_eq!(firsts(&audit, second, &[30, 20]), []);
            firsts(&audit, first, &[11]);
        }
        for position in 0..u64::from(PATIENCE) {
            firsts(&audit, second, &[position]);
        }
        // From here on it is the other's; what that did up to 999 is not known.
        let found = firsts(&audit, second, &[2000, 500, 3000, 2500]);
        assert_eq!(found, [late(2500, 3000)]);
        assert_eq!(firsts(&audit, first, &[5]), []);
    }

    /// Remembers everything.
    #[derive(Default)]
    struct Naive {
        started: HashSet<u64>,
    }

    impl Naive {
        fn start(&mut self, position: u64) -> Option<Violation> {
            let after = self.started.iter().copied().max();
            let new = self.started.insert(position);
            after
                .filter(|after| new && position < *after)
                .map(|after| late(position, after))
        }
    }

    proptest! {
        #[test]
        fn few_starts_of_a_key_are_judged_as_by_one_that_remembers_everything(
            positions in proptest::collection::vec(0_u64..30, 0..=REMEMBERED)
        ) {
            let (audit, key) = (Audit::with_places(1), Key::from("k"));
            let line = line(&audit, &key);
            let mut naive = Naive::default();
            for position in positions {
                let judged = audit.start(line, position, Start::First);
                prop_assert_eq!(judged, naive.start(position));
            }
        }

        #[test]
        fn what_is_reported_is_true_however_many_keys_share_a_place(
            starts in proptest::collection::vec((0_u8..3, 0_u64..200, 1_u32..PATIENCE), 0..300)
        ) {
            let audit = Audit::with_places(1);
            let keys: Vec<Key> = ["a", "b", "c"].into_iter().map(Key::from).collect();
            let scale = audit.new_scale();
            let mut naive: HashMap<u8, Naive> = HashMap::new();
            for (key, position, wanted) in starts {
                let pool = "default";
                let line = Line { scale, pool, key: Some(&keys[usize::from(key)]) };
                let judged = audit.start(line, position, Start::First);
                let truth = naive.entry(key).or_default().start(position);
                if let Some(violation) = judged {
                    prop_assert_eq!(Some(violation.position), truth.map(|truth| truth.position));
                }
                // As if others had wanted it as often.
                audit.places[0].lock().unwrap().wanted += wanted;
            }
        }
    }
}
