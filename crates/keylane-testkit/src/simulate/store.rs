//! The real store behind a door: each call can fail or end the process.

use std::collections::BTreeSet;
use std::sync::Arc;

use keylane_router::embedded::EmbeddedStore;
use keylane_router::message::Identity;
use keylane_router::store::{
    AuditEntry, DeadLetter, Durable, FailedAttempt, LaneName, Move, ParkedLane, ParkedRow,
    ReadQueue, Stay, Store, StoreError, Stored,
};

use super::case::Call;
use super::target::number_in;
use super::world::{Pass, Place, What, World};

/// An [`EmbeddedStore`] of one process.
pub(crate) struct Guarded {
    pub(crate) store: EmbeddedStore,
    pub(crate) world: Arc<World>,
}

impl Guarded {
    /// Carries the call out at once, or never; the answer comes when it is durable.
    fn call<T: Send + 'static>(
        &self,
        what: Call,
        lane: Option<&LaneName>,
        call: impl FnOnce() -> Durable<T>,
        done: impl FnOnce(&World) + Send + 'static,
    ) -> Durable<T> {
        let key = lane
            .and_then(|lane| lane.key.as_ref())
            .map(|k| k.to_string());
        let world = self.world.clone();
        match self.world.pass(what, &[key]) {
            Pass::Never => Box::pin(std::future::pending()),
            Pass::Go => {
                let answer = call();
                Box::pin(async move {
                    let answer = answer.await;
                    if !world.is_open() {
                        std::future::pending::<()>().await;
                    }
                    if answer.is_ok() {
                        done(&world);
                    }
                    answer
                })
            }
            Pass::Fails(super::case::Effect::CrashAfter) => {
                let answer = call();
                Box::pin(async move {
                    let _ = answer.await;
                    world.crash();
                    std::future::pending().await
                })
            }
            Pass::Fails(_) => Box::pin(async move {
                world.latency(5).await;
                Err(StoreError::Unwritable("simulated".to_owned()))
            }),
        }
    }
}

fn numbers(messages: &[Stored]) -> Vec<usize> {
    let numbers = messages.iter().map(|message| number_in(&message.body));
    numbers.flatten().collect()
}

fn stored(numbers: Vec<usize>, place: Place) -> impl FnOnce(&World) + Send + 'static {
    move |world| {
        for n in numbers {
            world.note(What::Stored { n, place });
        }
    }
}

fn nothing(_: &World) {}

/// Notes every dead letter that the store has.
pub(crate) async fn note_letters(store: &EmbeddedStore, world: &World) {
    let letters = store.dead_letters(0, i64::MAX as usize).await;
    let letters: Vec<Stored> = letters.into_iter().flatten().map(|l| l.message).collect();
    if world.is_open() {
        stored(numbers(&letters), Place::DeadLetter)(world);
    }
}

/// Notes what the store has: a crash may have come between a write and its answer.
pub(crate) async fn note_all(store: &EmbeddedStore, world: &World) {
    note_letters(store, world).await;
    for parked in store.parked() {
        let rows = store.parked_rows(parked.lane, 0, i64::MAX as usize).await;
        let rows: Vec<Stored> = rows.into_iter().flatten().map(|row| row.message).collect();
        if world.is_open() {
            stored(numbers(&rows), Place::Parked)(world);
        }
    }
}

impl Store for Guarded {
    fn stay(&self, identity: &Identity) -> Stay {
        self.store.stay(identity)
    }

    fn failed_attempt(&self, identity: &Identity, attempt: FailedAttempt) -> Durable<Stay> {
        let call = || self.store.failed_attempt(identity, attempt);
        self.call(Call::FailedAttempt, None, call, nothing)
    }

    fn new_round(&self, identities: Vec<Identity>) -> Durable<()> {
        let call = || self.store.new_round(identities);
        self.call(Call::NewRound, None, call, nothing)
    }

    fn forget(&self, identities: Vec<Identity>) -> Durable<()> {
        let call = || self.store.forget(identities);
        self.call(Call::Forget, None, call, nothing)
    }

    fn dead_letter(&self, letters: Vec<DeadLetter>) -> Durable<()> {
        let messages: Vec<Stored> = letters.iter().map(|l| l.message.clone()).collect();
        let lane = messages.first().map(|message| message.lane.clone());
        let done = stored(numbers(&messages), Place::DeadLetter);
        let call = || self.store.dead_letter(letters);
        self.call(Call::DeadLetter, lane.as_ref(), call, done)
    }

    fn dead_letters(&self, after: u64, limit: usize) -> Durable<Vec<DeadLetter>> {
        self.store.dead_letters(after, limit)
    }

    fn dead_letter_count(&self) -> Durable<u64> {
        self.store.dead_letter_count()
    }

    fn trim_dead_letters(&self, numbers: Vec<u64>, audit: AuditEntry) -> Durable<u64> {
        self.store.trim_dead_letters(numbers, audit)
    }

    fn park(&self, lane: LaneName, reason: String, messages: Vec<Stored>) -> Durable<()> {
        let done = stored(numbers(&messages), Place::Parked);
        let of = lane.clone();
        let call = || self.store.park(lane, reason, messages);
        self.call(Call::Park, Some(&of), call, done)
    }

    fn park_behind(&self, lane: LaneName, messages: Vec<Stored>) -> Durable<bool> {
        let numbers = numbers(&messages);
        let of = lane.clone();
        let world = self.world.clone();
        let call = || {
            let answer = self.store.park_behind(lane, messages);
            let answer: Durable<bool> = Box::pin(async move {
                let behind = answer.await?;
                if behind && world.is_open() {
                    stored(numbers, Place::Parked)(&world);
                }
                Ok(behind)
            });
            answer
        };
        self.call(Call::ParkBehind, Some(&of), call, nothing)
    }

    fn spill(&self, lane: LaneName, reason: String, messages: Vec<Stored>) -> Durable<Vec<u64>> {
        let done = stored(numbers(&messages), Place::Spilled);
        let of = lane.clone();
        let call = || self.store.spill(lane, reason, messages);
        self.call(Call::Spill, Some(&of), call, done)
    }

    fn parks_any(&self) -> bool {
        self.store.parks_any()
    }

    fn parked(&self) -> Vec<ParkedLane> {
        self.store.parked()
    }

    fn parked_lane(&self, lane: &LaneName) -> Option<ParkedLane> {
        self.store.parked_lane(lane)
    }

    fn parked_rows(&self, lane: LaneName, after: u64, limit: usize) -> Durable<Vec<ParkedRow>> {
        let of = lane.clone();
        let call = || self.store.parked_rows(lane, after, limit);
        self.call(Call::Rows, Some(&of), call, nothing)
    }

    fn parked_names(
        &self,
        lane: LaneName,
        after: u64,
        limit: usize,
    ) -> Durable<Vec<(u64, Identity)>> {
        let of = lane.clone();
        let call = || self.store.parked_names(lane, after, limit);
        self.call(Call::Rows, Some(&of), call, nothing)
    }

    fn parked_sizes(&self, lane: LaneName, after: u64, limit: usize) -> Durable<Vec<u64>> {
        let of = lane.clone();
        let call = || self.store.parked_sizes(lane, after, limit);
        self.call(Call::Rows, Some(&of), call, nothing)
    }

    fn move_lanes(&self, moves: Vec<Move>) -> Durable<()> {
        let call = || self.store.move_lanes(moves);
        self.call(Call::Move, None, call, nothing)
    }

    fn recovered(&self) -> Vec<(LaneName, u64)> {
        self.store.recovered()
    }

    fn rows_before(&self) -> u64 {
        self.store.rows_before()
    }

    fn unpark(&self, lane: LaneName, rows: Vec<u64>) -> Durable<()> {
        let of = lane.clone();
        let call = || self.store.unpark(lane, rows);
        self.call(Call::Unpark, Some(&of), call, nothing)
    }

    fn set_replaying(&self, lane: LaneName, replaying: bool, audit: AuditEntry) -> Durable<()> {
        let of = lane.clone();
        let call = || self.store.set_replaying(lane, replaying, audit);
        self.call(Call::Replaying, Some(&of), call, nothing)
    }

    fn remove_parked(
        &self,
        lane: LaneName,
        rows: Vec<u64>,
        as_letter: Option<(String, String)>,
        audit: AuditEntry,
    ) -> Durable<()> {
        let of = lane.clone();
        let (store, world, is_letter) =
            (self.store.clone(), self.world.clone(), as_letter.is_some());
        let call = || {
            let answer: Durable<()> = Box::pin(async move {
                let all = store.parked_rows(lane.clone(), 0, 1 << 30).await?;
                let gone = all.into_iter().filter(|row| rows.contains(&row.row));
                let gone: Vec<Stored> = gone.map(|row| row.message).collect();
                store.remove_parked(lane, rows, as_letter, audit).await?;
                match is_letter {
                    true => note_letters(&store, &world).await,
                    false => numbers(&gone)
                        .into_iter()
                        .for_each(|n| world.note(What::Dropped { n })),
                }
                Ok(())
            });
            answer
        };
        self.call(Call::Remove, Some(&of), call, nothing)
    }

    fn separate_pools(&self) -> BTreeSet<Arc<str>> {
        self.store.separate_pools()
    }

    fn set_separate_pools(&self, pools: BTreeSet<Arc<str>>) -> Durable<()> {
        let call = || self.store.set_separate_pools(pools);
        self.call(Call::Move, None, call, nothing)
    }

    fn read_queues(&self) -> BTreeSet<ReadQueue> {
        self.store.read_queues()
    }

    fn set_read_queues(&self, queues: BTreeSet<ReadQueue>) -> Durable<()> {
        let call = || self.store.set_read_queues(queues);
        self.call(Call::Move, None, call, nothing)
    }

    fn pause(&self, lane: LaneName, audit: AuditEntry) -> Durable<()> {
        let of = lane.clone();
        let call = || self.store.pause(lane, audit);
        self.call(Call::Pause, Some(&of), call, nothing)
    }

    fn resume(&self, lane: LaneName, audit: AuditEntry) -> Durable<()> {
        let of = lane.clone();
        let call = || self.store.resume(lane, audit);
        self.call(Call::Resume, Some(&of), call, nothing)
    }

    fn pauses(&self) -> Vec<LaneName> {
        self.store.pauses()
    }

    fn audit(&self, entry: AuditEntry) -> Durable<()> {
        let lane = entry.lane.clone();
        let call = || self.store.audit(entry);
        self.call(Call::Audit, lane.as_ref(), call, nothing)
    }

    fn audit_log(&self, limit: usize) -> Durable<Vec<AuditEntry>> {
        self.store.audit_log(limit)
    }
}
