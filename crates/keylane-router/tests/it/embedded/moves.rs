//! The law of moving stored lanes: random histories of both stores against a naive model.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use keylane_router::conformance::MemoryStore;
use keylane_router::embedded::{Db, Options};
use keylane_router::message::{BrokerId, Identity};
use keylane_router::store::{AuditEntry, FailedAttempt, LaneName, Move, ReadQueue, Store, Stored};
use proptest::prelude::*;

use super::clock::TestClock;

/// A lane: source (the third is the one that sources share), pool, key (0 is keyless).
type At = (u8, u8, u8);

#[derive(Clone, Debug)]
enum Op {
    /// Each message is of the lane's source, or of the first or second where sources share it.
    Spill(At, Vec<bool>),
    Park(At, Vec<bool>),
    /// The first so many rows of a lane leave.
    Unpark(At, u8),
    Replay(At, bool),
    /// The last row of a lane failed.
    Fails(At),
    /// Several moves in one command.
    Move(Vec<(At, Option<u8>, At)>),
    Rename(u8, u8),
    Restart,
}

fn at() -> impl Strategy<Value = At> {
    (0..3_u8, 0..2_u8, 0..3_u8)
}

fn op() -> impl Strategy<Value = Op> {
    let messages = || prop::collection::vec(any::<bool>(), 0..4);
    let one = (at(), prop::option::weighted(0.3, 0..2_u8), at());
    prop_oneof![
        4 => (at(), messages()).prop_map(|(at, of)| Op::Spill(at, of)),
        2 => (at(), messages()).prop_map(|(at, of)| Op::Park(at, of)),
        1 => (at(), 1..3_u8).prop_map(|(at, n)| Op::Unpark(at, n)),
        1 => (at(), any::<bool>()).prop_map(|(at, on)| Op::Replay(at, on)),
        1 => at().prop_map(Op::Fails),
        4 => prop::collection::vec(one, 1..4).prop_map(Op::Move),
        1 => (0..2_u8, 0..2_u8).prop_map(|(from, to)| Op::Rename(from, to)),
        1 => Just(Op::Restart),
    ]
}

fn source(n: u8) -> Arc<str> {
    ["a", "b", "*"][usize::from(n)].into()
}

fn lane((of, pool, key): At) -> LaneName {
    LaneName {
        source: source(of),
        pool: ["p", "q"][usize::from(pool)].into(),
        key: (key > 0).then(|| ["k", "l"][usize::from(key) - 1].into()),
        alone: None,
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Lane {
    rows: Vec<Identity>,
    fed: bool,
    spilled: bool,
}

#[derive(Debug, Default)]
struct Model {
    lanes: BTreeMap<LaneName, Lane>,
    stays: BTreeMap<Identity, u32>,
    pauses: Vec<LaneName>,
    next: u64,
}

impl Model {
    fn make(&mut self, at: At, of: &[bool]) -> Vec<Stored> {
        let mut made = Vec::new();
        for second in of {
            self.next += 1;
            let of = match at.0 {
                2 => u8::from(*second),
                own => own,
            };
            made.push(Stored {
                identity: Identity {
                    source: source(of),
                    id: BrokerId::Sequence(self.next),
                },
                lane: lane(at),
                body: self.next.to_string().into(),
                headers: Vec::new(),
                position: Some(self.next),
            });
        }
        made
    }

    fn put(&mut self, at: At, messages: &[Stored], spilled: bool) {
        let new = Lane {
            rows: Vec::new(),
            fed: spilled,
            spilled,
        };
        let lane = self.lanes.entry(lane(at)).or_insert(new);
        if !spilled && lane.fed {
            (lane.fed, lane.spilled) = (false, false);
        }
        lane.rows
            .extend(messages.iter().map(|m| m.identity.clone()));
    }

    fn move_lane(&mut self, from: &LaneName, of: Option<&Arc<str>>, to: LaneName) {
        if *from == to || !self.lanes.contains_key(from) {
            return;
        }
        let mut old = self.lanes.remove(from).unwrap();
        let goes = |identity: &Identity| of.is_none_or(|of| identity.source == *of);
        let (rows, stay): (Vec<_>, Vec<_>) = old.rows.drain(..).partition(goes);
        let leaves = stay.is_empty() && (of.is_none() || !rows.is_empty());
        if of.is_none() || !rows.is_empty() {
            let like = old.clone();
            let there = self.lanes.entry(to).or_insert(like);
            if !old.fed {
                (there.fed, there.spilled) = (false, false);
            }
            there.rows.extend(rows);
        }
        if !leaves {
            old.rows = stay;
            self.lanes.insert(from.clone(), old);
        }
    }

    fn rename(&mut self, from: &Arc<str>, to: &Arc<str>) {
        let lanes: Vec<LaneName> = self.lanes.keys().cloned().collect();
        let new = |lane: &LaneName| match lane.source == *from {
            true => LaneName {
                source: to.clone(),
                ..lane.clone()
            },
            false => lane.clone(),
        };
        for lane in lanes {
            self.move_lane(&lane, None, new(&lane));
        }
        let identity = |identity: &mut Identity| {
            if identity.source == *from {
                identity.source = to.clone();
            }
        };
        self.lanes
            .values_mut()
            .flat_map(|lane| &mut lane.rows)
            .for_each(identity);
        let stays = std::mem::take(&mut self.stays).into_iter();
        self.stays = stays
            .map(|(mut of, failed)| {
                identity(&mut of);
                (of, failed)
            })
            .collect();
        self.pauses = self.pauses.iter().map(new).collect();
        self.pauses.sort();
    }
}

/// A store that may be opened again.
enum Stores {
    Memory(MemoryStore),
    File(tempfile::TempDir, Arc<TestClock>, Option<Db>),
}

impl Stores {
    fn file() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let clock = Arc::new(TestClock::new());
        let db = Db::open(folder.path(), options(&clock)).unwrap();
        Self::File(folder, clock, Some(db))
    }

    fn store(&self) -> Arc<dyn Store> {
        match self {
            Self::Memory(store) => Arc::new(store.clone()),
            Self::File(_, _, db) => Arc::new(db.as_ref().unwrap().store()),
        }
    }

    async fn restart(&mut self) {
        if let Self::File(folder, clock, db) = self {
            db.take().unwrap().close().await;
            *db = Some(
                Db::open_standby(folder.path(), options(clock))
                    .await
                    .unwrap(),
            );
        }
    }
}

fn options(clock: &Arc<TestClock>) -> Options {
    Options {
        machine: clock.clone(),
        risk_losing_accepted_messages_on_power_loss: true,
        ..Options::default()
    }
}

fn audit() -> AuditEntry {
    AuditEntry {
        at: SystemTime::UNIX_EPOCH,
        who: "ann".into(),
        verb: "v".into(),
        lane: None,
        identity: None,
        why: String::new(),
    }
}

async fn history(mut stores: Stores, ops: &[Op]) {
    let mut model = Model::default();
    for source in ["a", "b"] {
        let paused = LaneName::keyed(source, "p", source);
        stores.store().pause(paused.clone(), audit()).await.unwrap();
        model.pauses.push(paused);
    }
    for op in ops {
        step(&mut stores, &mut model, op).await;
        check(&*stores.store(), &model).await;
    }
}

async fn step(stores: &mut Stores, model: &mut Model, op: &Op) {
    let store = stores.store();
    match op {
        Op::Spill(at, of) => {
            let messages = model.make(*at, of);
            model.put(*at, &messages, true);
            let spilled = store.spill(lane(*at), "no room".into(), messages);
            assert_eq!(spilled.await.unwrap().len(), of.len());
        }
        Op::Park(at, of) => {
            let messages = model.make(*at, of);
            model.put(*at, &messages, false);
            store
                .park(lane(*at), "no hope".into(), messages)
                .await
                .unwrap();
        }
        Op::Unpark(at, n) => {
            let rows = store
                .parked_names(lane(*at), 0, usize::from(*n))
                .await
                .unwrap();
            if let Some(of) = model.lanes.get_mut(&lane(*at))
                && !rows.is_empty()
            {
                of.rows.drain(..rows.len());
                if of.rows.is_empty() {
                    model.lanes.remove(&lane(*at));
                }
                let rows = rows.into_iter().map(|(row, _)| row).collect();
                store.unpark(lane(*at), rows).await.unwrap();
            }
        }
        Op::Replay(at, on) => {
            if *on
                && model
                    .lanes
                    .get(&lane(*at))
                    .is_some_and(|of| of.rows.is_empty())
            {
                // Nothing would end its replay.
                model.lanes.remove(&lane(*at));
            } else if let Some(of) = model.lanes.get_mut(&lane(*at)) {
                of.fed = *on;
                of.spilled &= *on;
            }
            store.set_replaying(lane(*at), *on, audit()).await.unwrap();
        }
        Op::Fails(at) => {
            let last = model
                .lanes
                .get(&lane(*at))
                .and_then(|lane| lane.rows.last());
            if let Some(identity) = last.cloned() {
                let attempt = FailedAttempt {
                    at: SystemTime::UNIX_EPOCH,
                    class: "c".into(),
                    text: "t".into(),
                    answer: Vec::new(),
                };
                store.failed_attempt(&identity, attempt).await.unwrap();
                *model.stays.entry(identity).or_default() += 1;
            }
        }
        Op::Move(moves) => {
            let mut command = Vec::new();
            for (from, of, to) in moves {
                let of = of.map(source);
                model.move_lane(&lane(*from), of.as_ref(), lane(*to));
                let (from, to) = (lane(*from), lane(*to));
                command.push(Move::Lane { from, of, to });
            }
            store.move_lanes(command).await.unwrap();
        }
        Op::Rename(from, to) => {
            let (from, to) = (source(*from), source(*to));
            model.rename(&from, &to);
            store
                .move_lanes(vec![Move::Source { from, to }])
                .await
                .unwrap();
        }
        Op::Restart => {
            drop(store);
            stores.restart().await;
        }
    }
}

async fn check(store: &dyn Store, model: &Model) {
    let mut stored = BTreeMap::new();
    for parked in store.parked() {
        let rows = store
            .parked_rows(parked.lane.clone(), 0, 1000)
            .await
            .unwrap();
        assert_eq!(parked.messages, rows.len() as u64, "{parked:?}");
        assert!(
            rows.iter().all(|row| row.message.lane == parked.lane),
            "{rows:?}"
        );
        let names = store
            .parked_names(parked.lane.clone(), 0, 1000)
            .await
            .unwrap();
        let lane = Lane {
            rows: names.into_iter().map(|(_, identity)| identity).collect(),
            fed: parked.replaying,
            spilled: parked.spilled,
        };
        stored.insert(parked.lane, lane);
    }
    assert_eq!(stored, model.lanes);
    for (identity, failed) in &model.stays {
        assert_eq!(store.stay(identity).failed, *failed, "{identity}");
    }
    let mut pauses = store.pauses();
    pauses.sort();
    assert_eq!(pauses, model.pauses);
    assert_eq!(store.recovered(), []);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn r6_moved_lanes_keep_their_messages_and_order_in_the_file(
        ops in prop::collection::vec(op(), 1..40)
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(history(Stores::file(), &ops));
    }

    #[test]
    fn r6_moved_lanes_keep_their_messages_and_order_in_memory(
        ops in prop::collection::vec(op(), 1..40)
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(history(Stores::Memory(MemoryStore::default()), &ops));
    }
}

fn stored(source: &str, id: u64) -> Stored {
    Stored {
        identity: Identity {
            source: source.into(),
            id: BrokerId::Sequence(id),
        },
        lane: LaneName::keyed(source, "p", "k"),
        body: id.to_string().into(),
        headers: Vec::new(),
        position: None,
    }
}

#[tokio::test]
async fn a_row_whose_new_identity_is_stored_already_keeps_the_old_one() {
    for stores in [Stores::file(), Stores::Memory(MemoryStore::default())] {
        let store = stores.store();
        for (source, ids) in [("b", [1, 2]), ("a", [2, 3])] {
            let messages = ids.map(|id| stored(source, id)).to_vec();
            let lane = messages[0].lane.clone();
            store.spill(lane, "no room".into(), messages).await.unwrap();
        }
        let (from, to) = (source(0), source(1));
        store
            .move_lanes(vec![Move::Source { from, to }])
            .await
            .unwrap();
        let names = store.parked_names(LaneName::keyed("b", "p", "k"), 0, 10);
        let names: Vec<String> = names
            .await
            .unwrap()
            .iter()
            .map(|n| n.1.to_string())
            .collect();
        let wanted = [("b", 1), ("b", 2), ("a", 2), ("b", 3)];
        assert_eq!(
            names,
            wanted.map(|(of, id)| stored(of, id).identity.to_string())
        );
    }
}

#[tokio::test]
async fn with_a_source_the_queues_that_it_read_have_its_new_name() {
    let read = |queue: &str, at, one_lane| ReadQueue {
        kind: "test".into(),
        queue: queue.into(),
        source: source(at),
        one_lane,
    };
    for stores in [Stores::file(), Stores::Memory(MemoryStore::default())] {
        let store = stores.store();
        let before = [
            read("q", 0, true),
            read("both", 0, true),
            read("both", 1, false),
        ];
        store.set_read_queues(before.into()).await.unwrap();
        let (from, to) = (source(0), source(1));
        let renamed = store.move_lanes(vec![Move::Source { from, to }]);
        renamed.await.unwrap();
        let after = [read("q", 1, true), read("both", 1, false)];
        assert_eq!(store.read_queues(), after.into());
    }
}

/// A file in which the lane of these rows was deleted.
async fn damaged(messages: Vec<Stored>) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let db = Db::open(folder.path(), Options::default()).unwrap();
    for message in messages {
        let lane = message.lane.clone();
        let spilled = db.store().spill(lane, "no room".into(), vec![message]);
        spilled.await.unwrap();
    }
    db.close().await;
    let file = rusqlite::Connection::open(folder.path().join("keylane.db")).unwrap();
    // As a file of the version before: nothing kept a lane that had rows.
    file.execute_batch(
        "DROP TRIGGER rows_have_lanes; DROP TABLE read_queues; DELETE FROM parked_lanes WHERE pool = 'lost';
         PRAGMA user_version = 6;",
    )
    .unwrap();
    folder
}

fn lost(id: u64, body: &str) -> Stored {
    Stored {
        lane: LaneName::keyed("a", "lost", "k"),
        body: body.to_owned().into(),
        ..stored("a", id)
    }
}

#[tokio::test]
async fn rows_without_a_lane_are_given_back_to_their_key_and_wait_for_an_operator() {
    let of_key = |id, pool: &str| {
        let pool = format!(r#""poolCode":"{pool}","#);
        lost(
            id,
            &format!(r#"{{{pool}"messageGroupId":"k","mediationTarget":"http://t/"}}"#),
        )
    };
    let folder = damaged(vec![
        of_key(1, "p"),
        lost(2, "no envelope"),
        of_key(3, "q"),
        stored("a", 4),
        of_key(5, "p"),
    ])
    .await;
    for start in ["the first", "the next"] {
        let db = Db::open_standby(folder.path(), Options::default())
            .await
            .unwrap();
        let store = db.store();
        let ids = |lane: LaneName| {
            let names = store.parked_names(lane, 0, 10);
            async move {
                let id = |(_, identity): &(u64, Identity)| identity.id.to_string();
                names.await.unwrap().iter().map(id).collect::<Vec<_>>()
            }
        };
        let of = |pool, key: &str| LaneName::keyed("a", pool, key);
        assert_eq!(ids(of("p", "k")).await, ["1", "4", "5"], "{start}");
        assert_eq!(ids(of("q", "k")).await, ["3"]);
        assert_eq!(ids(of("default", "keylane:recovered")).await, ["2"]);
        let fed = |lane| store.parked_lane(&lane).unwrap().replaying;
        assert!(fed(of("p", "k")), "it was there, and spilled");
        assert!(!fed(of("q", "k")) && !fed(of("default", "keylane:recovered")));
        let found: u64 = store.recovered().iter().map(|(_, rows)| rows).sum();
        assert_eq!(found, if start == "the first" { 4 } else { 0 });
        db.close().await;
    }
}

#[tokio::test]
async fn a_lane_that_has_rows_cannot_be_deleted() {
    let folder = damaged(vec![stored("a", 1)]).await;
    Db::open(folder.path(), Options::default())
        .unwrap()
        .close()
        .await;
    let file = rusqlite::Connection::open(folder.path().join("keylane.db")).unwrap();
    let refused = file.execute("DELETE FROM parked_lanes", ());
    assert!(refused.unwrap_err().to_string().contains("has rows"));
}
