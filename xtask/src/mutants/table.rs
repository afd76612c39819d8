//! The mutations: every property has at least one that makes it red. `docs/proof.md` says what each shows.
//!
//! To add one, copy an entry. `find` is copied from the code as it stands, long enough to occur only
//! once; when the code moves on, a test of xtask says that it no longer applies.

use super::mutation::{Mutation, TestRun};

const LANES: &str = "crates/keylane/src/lanes/mod.rs";
const ITEMS: &str = "crates/keylane/src/lanes/items.rs";
const TURNS: &str = "crates/keylane/src/lanes/turns.rs";
const RATE: &str = "crates/keylane/src/lanes/rate.rs";

const SHELL: &str = "crates/keylane/src/shell/mod.rs";
const SHELL_DRIVEN: &str = "crates/keylane/src/shell/driven.rs";
const SHELL_ENDS: &str = "crates/keylane/src/shell/ends.rs";
const SHELL_FIRST_POLLS: &str = "crates/keylane/src/shell/first_polls.rs";
const SHELL_IDLE: &str = "crates/keylane/src/shell/idle.rs";
const SHELL_RELIEF: &str = "crates/keylane/src/shell/relief.rs";
const SHELL_RUNNER: &str = "crates/keylane/src/shell/runner.rs";
const SHELL_STARTS: &str = "crates/keylane/src/shell/starts.rs";
const SHELL_SUBMIT: &str = "crates/keylane/src/shell/submit.rs";
const STOPS: &str = "crates/keylane/src/stops.rs";
const RULES: &str = "crates/keylane/src/rules.rs";
const EXECUTOR: &str = "crates/keylane/src/executor.rs";
const CALLER: &str = "crates/keylane/src/cell/caller.rs";
const CELL: &str = "crates/keylane/src/cell.rs";
const JOINT: &str = "crates/keylane/src/joint.rs";
const TASKS: &str = "crates/keylane/src/tasks.rs";
const TRACKED: &str = "crates/keylane/src/tracked.rs";
const PERMITS: &str = "crates/keylane/src/permits.rs";
const RT: &str = "crates/keylane/src/rt.rs";

const POOL: &str = "crates/keylane-router/src/pool.rs";
const PROCESS: &str = "crates/keylane-router/src/process.rs";
const AUDIT: &str = "crates/keylane-router/src/audit.rs";
const CONSUME: &str = "crates/keylane-router/src/consume.rs";
const SEATS: &str = "crates/keylane-router/src/seats.rs";
const SETTLE_AGAIN: &str = "crates/keylane-router/src/settle_again.rs";
const DELIVERY: &str = "crates/keylane-router/src/delivery.rs";
const LEASE: &str = "crates/keylane-router/src/lease.rs";
const RENEW: &str = "crates/keylane-router/src/renew.rs";
const ROUTE: &str = "crates/keylane-router/src/route.rs";
const ROUTER: &str = "crates/keylane-router/src/router.rs";
const BREAKER: &str = "crates/keylane-router/src/breaker.rs";
const WAITS: &str = "crates/keylane-router/src/waits.rs";
const WATCH: &str = "crates/keylane-router/src/watch.rs";
const VERBS: &str = "crates/keylane-router/src/verbs.rs";
const PARSE: &str = "crates/keylane-router/src/parse/mod.rs";
const HEALTH: &str = "crates/keylane-router/src/health.rs";

const SQS_SETTLE: &str = "crates/keylane-router/src/sqs/settle.rs";
const SHELF: &str = "crates/keylane-router/src/embedded/shelf.rs";
const EMBEDDED_SOURCE: &str = "crates/keylane-router/src/embedded/source.rs";
const EMBEDDED_LOCK: &str = "crates/keylane-router/src/embedded/lock.rs";
const EMBEDDED_WRITER: &str = "crates/keylane-router/src/embedded/writer.rs";
const EMBEDDED_SYNC: &str = "crates/keylane-router/src/embedded/sync.rs";
const SPILL: &str = "crates/keylane-router/src/spill.rs";
const STORES: &str = "crates/keylane-router/src/embedded/stores.rs";
const SERVER_SOURCES: &str = "crates/keylane-server/src/config/sources/mod.rs";

/// The embedded queue's tests on real files, its state machine among them.
const EMBEDDED: TestRun = TestRun {
    package: "keylane-router",
    target: &["--test", "it"],
    filter: "embedded::",
    env: &[],
};

/// Stored keys that are moved, in the stores
const STORED_MOVES: TestRun = TestRun {
    package: "keylane-router",
    target: &["--test", "it"],
    filter: "embedded::moves",
    env: &[],
};

/// and in the router.
const MOVES: TestRun = TestRun {
    package: "keylane-router",
    target: &["--test", "it"],
    filter: "router::moves",
    env: &[],
};

/// The embedded queue's plain data.
const EMBEDDED_SHELF: TestRun = TestRun {
    package: "keylane-router",
    target: &["--lib"],
    filter: "embedded::shelf",
    env: &[],
};

/// What of the embedded queue need not wait for the disk.
const EMBEDDED_DISK: TestRun = TestRun {
    package: "keylane-router",
    target: &["--lib"],
    filter: "embedded::",
    env: &[],
};

/// The server's config.
const CONFIG: TestRun = TestRun {
    package: "keylane-server",
    target: &["--bins"],
    filter: "config::",
    env: &[],
};

const HISTORY_CHECK: &str = "crates/keylane-router/src/history/check/mod.rs";

/// The plain parts of the SQS source.
const SQS: TestRun = TestRun {
    package: "keylane-router",
    target: &["--lib"],
    filter: "sqs::",
    env: &[],
};

/// The checker of histories.
const CHECKED: TestRun = TestRun {
    package: "keylane-router",
    target: &["--lib"],
    filter: "history::check",
    env: &[],
};

/// The router's tests over real HTTP and a real file.
const ROUTED: TestRun = TestRun {
    package: "keylane-router",
    target: &["--test", "it"],
    filter: "router::",
    env: &[],
};

/// Pools, their codes and their limits.
const ROUTED_POOLS: TestRun = TestRun {
    package: "keylane-router",
    target: &["--test", "it"],
    filter: "router::pools::",
    env: &[],
};

/// How messages find room in their lanes and go back, on the paused clock.
const ROUTED_ROOM: TestRun = TestRun {
    package: "keylane-router",
    target: &["--test", "it"],
    filter: "router::room::",
    env: &[],
};

/// What goes back behind a head. Where nothing does, tests of the router wait for it in vain, each for
/// as long as it has patience.
const CASCADES: TestRun = TestRun {
    package: "keylane-router",
    target: &["--test", "it"],
    filter: "router::cascade::",
    env: &[],
};

/// The conformance suite on the sources that need no broker.
const CONFORMS: TestRun = TestRun {
    package: "keylane-router",
    target: &["--test", "it"],
    filter: "conformance::on_",
    env: &[],
};

/// The conformance suite on the sources in memory that have leases.
const CONFORMS_WITH_LEASES: TestRun = TestRun {
    package: "keylane-router",
    target: &["--test", "it"],
    filter: "conformance::on_l",
    env: &[],
};

/// Leases on the paused clock.
const LEASES: TestRun = TestRun {
    package: "keylane-router",
    target: &["--test", "it"],
    filter: "router::lease",
    env: &[],
};

/// Lanes that wait for an origin.
const ORIGINS: TestRun = TestRun {
    package: "keylane-router",
    target: &["--test", "it"],
    filter: "router::origins::",
    env: &[],
};

/// The breakers as plain data.
const BROKEN_CIRCUITS: TestRun = TestRun {
    package: "keylane-router",
    target: &["--test", "it"],
    filter: "breaker::",
    env: &[],
};

/// Sources with few workers.
const WORKED: TestRun = TestRun {
    package: "keylane-router",
    target: &["--test", "it"],
    filter: "router::workers::",
    env: &[],
};

const RABBITMQ_MESSAGE: &str = "crates/keylane-router/src/rabbitmq/message.rs";

/// What a delivery of RabbitMQ is as a message.
const RABBITMQ_KEYS: TestRun = TestRun {
    package: "keylane-router",
    target: &["--lib"],
    filter: "rabbitmq::message::",
    env: &[],
};

/// Bodies as messages.
const PARSED: TestRun = TestRun {
    package: "keylane-router",
    target: &["--test", "it"],
    filter: "parse::",
    env: &[],
};

/// What follows when attempts are exhausted.
const EXHAUSTED: TestRun = TestRun {
    package: "keylane-router",
    target: &["--test", "it"],
    filter: "router::exhausted::",
    env: &[],
};

/// The progress watchdog.
const WATCHED: TestRun = TestRun {
    package: "keylane-router",
    target: &["--test", "it"],
    filter: "router::watch::",
    env: &[],
};

const CONNECTIONS: &str = "crates/keylane-router/src/dispatch/connections.rs";
const DIAL: &str = "crates/keylane-router/src/dispatch/dial.rs";
const GUARD: &str = "crates/keylane-router/src/dispatch/guard.rs";
const ADDRESS: &str = "crates/keylane-router/src/dispatch/address.rs";
const HTTP: &str = "crates/keylane-router/src/dispatch/http.rs";
const HTTP1: &str = "crates/keylane-router/src/dispatch/http1.rs";
const BODY: &str = "crates/keylane-router/src/dispatch/body.rs";
const HEADERS: &str = "crates/keylane-router/src/dispatch/headers.rs";
const SIGN: &str = "crates/keylane-router/src/dispatch/sign.rs";
const RETRY_AFTER: &str = "crates/keylane-router/src/dispatch/retry_after.rs";

/// Attempts over real HTTP.
const DISPATCHED: TestRun = TestRun {
    package: "keylane-router",
    target: &["--test", "it"],
    filter: "dispatch::",
    env: &[],
};

/// What is gathered before it is settled.
const SETTLEMENTS: TestRun = TestRun {
    package: "keylane-router",
    target: &["--lib"],
    filter: "settlements::",
    env: &[],
};

/// One HTTP/1 connection, without a network.
const HTTP1_ALONE: TestRun = TestRun {
    package: "keylane-router",
    target: &["--lib"],
    filter: "dispatch::http1::",
    env: &[],
};

/// The router behind the fault proxy.
const FAULTS: TestRun = TestRun {
    package: "keylane-router",
    target: &["--test", "it"],
    filter: "faults::",
    env: &[],
};

/// The corpus and random inputs, always the same ones.
const FUZZ: TestRun = TestRun {
    package: "keylane-router",
    target: &["--test", "it"],
    filter: "fuzz::",
    env: &[("KEYLANE_SEED", "1")],
};

/// The real program with planted secrets.
const SECRETS: TestRun = TestRun {
    package: "keylane-server",
    target: &["--test", "it"],
    filter: "secrets::",
    env: &[],
};

/// Only the tests that look at what the router says of its own order.
const AUDITED: TestRun = TestRun {
    package: "keylane-router",
    target: &["--test", "it"],
    filter: "router::audit::",
    env: &[],
};

/// The executor's interleavings.
const SHUTTLE: TestRun = TestRun {
    package: "keylane",
    target: &["--test", "it"],
    filter: "shuttle::",
    env: &[("RUSTFLAGS", "--cfg keylane_shuttle")],
};

/// What is only seen from inside.
const UNIT: TestRun = TestRun {
    package: "keylane",
    target: &["--lib"],
    filter: "",
    env: &[],
};

/// Fewer histories than usual, and always the same ones.
const HISTORIES: TestRun = TestRun {
    package: "keylane",
    target: &["--test", "it"],
    filter: "lanes_model",
    env: &[("KEYLANE_HISTORIES", "20000"), ("KEYLANE_SEED", "1")],
};

/// In which order tasks run, also on several workers.
const ORDERED: TestRun = TestRun {
    package: "keylane",
    target: &["--test", "it"],
    filter: "order::",
    env: &[],
};

/// Handles and results, waiting until a key is idle.
const HANDLES: TestRun = TestRun {
    package: "keylane",
    target: &["--test", "it"],
    filter: "handles::",
    env: &[],
};

/// Limits, and changes of them.
const LIMITED: TestRun = TestRun {
    package: "keylane",
    target: &["--test", "it"],
    filter: "limits::",
    env: &[],
};

/// Results that nobody takes.
const OUTPUTS: TestRun = TestRun {
    package: "keylane",
    target: &["--test", "it"],
    filter: "outputs::",
    env: &[],
};

/// What happens without room.
const REJECTION: TestRun = TestRun {
    package: "keylane",
    target: &["--test", "it"],
    filter: "rejection::",
    env: &[],
};

/// Panics of tasks.
const PANICS: TestRun = TestRun {
    package: "keylane",
    target: &["--test", "it"],
    filter: "panics::",
    env: &[],
};

/// How an executor and its keys end.
const SHUTDOWN: TestRun = TestRun {
    package: "keylane",
    target: &["--test", "it"],
    filter: "shutdown::",
    env: &[],
};

/// Permits of several executors.
const SHARED_PERMITS: TestRun = TestRun {
    package: "keylane",
    target: &["--test", "it"],
    filter: "permits::",
    env: &[],
};

/// What keys are.
const KEYS: TestRun = TestRun {
    package: "keylane",
    target: &["--test", "it"],
    filter: "keys::",
    env: &[],
};

/// What single steps do with lanes of plain data.
const STEPS: TestRun = TestRun {
    package: "keylane",
    target: &["--test", "it"],
    filter: "lanes_cost",
    env: &[],
};

pub(crate) const MUTATIONS: &[Mutation] = &[
    Mutation {
        name: "newest-first",
        invariant: "L1",
        file: ITEMS,
        find: "            self.rest.push_back(item);",
        replace: "            self.rest.push_front(item);",
        test: HISTORIES,
    },
    Mutation {
        name: "put-back-to-the-front",
        invariant: "L2",
        file: ITEMS,
        find: "        self.rest.insert(at, item);",
        replace: "        self.rest.push_front(item);",
        test: HISTORIES,
    },
    Mutation {
        name: "put-back-to-the-end",
        invariant: "L2",
        file: ITEMS,
        find: "        let at = self.rest.partition_point(|other| other.seq < item.seq);",
        replace: "        let at = self.rest.len();",
        test: HISTORIES,
    },
    Mutation {
        name: "hold-releases-the-lane",
        invariant: "L2",
        file: LANES,
        find: "            || self.front_hold() != Hold::Free",
        replace: "            || self.front_hold() == Hold::UntilReleased",
        test: HISTORIES,
    },
    Mutation {
        name: "lane-limit-is-not-asked",
        invariant: "L3",
        file: LANES,
        find: "        !self.items.is_empty() && self.free(default) > 0",
        replace: "        !self.items.is_empty() && !self.blocked() && default.turn < u32::MAX",
        test: HISTORIES,
    },
    Mutation {
        name: "failure-stops-nothing",
        invariant: "L3",
        file: LANES,
        find: "            || self.flush != Flush::No\n            || self.rate_wait()",
        replace: "            || self.flush == Flush::Out\n            || self.rate_wait()",
        test: HISTORIES,
    },
    Mutation {
        name: "evict-forgets-an-item",
        invariant: "L4",
        file: LANES,
        find: "        jobs.into_iter().map(|(_, job)| job).collect()",
        replace: "        jobs.into_iter().skip(1).map(|(_, job)| job).collect()",
        test: HISTORIES,
    },
    Mutation {
        name: "put-back-is-not-counted",
        invariant: "L4",
        file: LANES,
        find: "        self.waiting += 1;\n        self.lanes[index].items.insert(seq, job);",
        replace: "        self.lanes[index].items.insert(seq, job);",
        test: HISTORIES,
    },
    Mutation {
        name: "one-more-than-the-total",
        invariant: "L5",
        file: LANES,
        find: "            if self.running.len() >= self.limits.total {",
        replace: "            if self.running.len() > self.limits.total {",
        test: HISTORIES,
    },
    Mutation {
        name: "waiting-takes-a-permit",
        invariant: "L5",
        file: LANES,
        find: "            if self.running.len() >= self.limits.total {",
        replace: "            if self.running.len() + self.waiting > self.limits.total {",
        test: HISTORIES,
    },
    Mutation {
        name: "lost-wake-up",
        invariant: "L6",
        file: LANES,
        find: "        let index = self.end(&ticket);\n        self.refresh_all(index);",
        replace: "        let index = self.end(&ticket);\n        if self.lanes[index].is_empty() {\n            self.refresh_all(index);\n        }",
        test: HISTORIES,
    },
    Mutation {
        name: "rate-says-too-late",
        invariant: "L6",
        file: LANES,
        find: "        (at > self.now).then_some(at)",
        replace: "        (at > self.now).then_some(Time(at.0 + 1))",
        test: HISTORIES,
    },
    Mutation {
        name: "room-is-not-passed-on",
        invariant: "L6",
        file: LANES,
        find: "                self.refresh_all(index);\n                continue;",
        replace: "                self.refresh(index);\n                continue;",
        test: HISTORIES,
    },
    Mutation {
        name: "served-lane-stays-in-front",
        invariant: "L7",
        file: LANES,
        find: "lane.turn_used >= self.limits.turn.max(1)",
        replace: "lane.turn_used > self.limits.turn.max(1)",
        test: HISTORIES,
    },
    Mutation {
        name: "newly-ready-goes-first",
        invariant: "L7",
        file: LANES,
        find: "            lane.turn_used = 0;\n            self.turns.push_back(&mut self.lanes, index);",
        replace: "            lane.turn_used = 0;\n            self.turns.push_front(&mut self.lanes, index);",
        test: HISTORIES,
    },
    Mutation {
        name: "tenant-keeps-its-turn",
        invariant: "L7",
        file: TURNS,
        find: "        if tenant.deficit == 0 && self.last != first {",
        replace: "        if tenant.deficit > tenant.weight && self.last != first {",
        test: HISTORIES,
    },
    Mutation {
        name: "old-weight-lasts",
        invariant: "L7",
        file: TURNS,
        find: "        tenant.deficit = tenant.deficit.min(tenant.weight);\n",
        replace: "",
        test: HISTORIES,
    },
    Mutation {
        name: "who-ends-first-is-first",
        invariant: "L7",
        file: TURNS,
        find: "        for _ in 0..PASSES {",
        replace: "        for _ in PASSES..PASSES {",
        test: STEPS,
    },
    Mutation {
        name: "empty-lane-is-kept",
        invariant: "L8",
        file: LANES,
        find: "        if lane.paused || timer.is_some() {",
        replace: "        if lane.paused || timer.is_some() || self.index.len() < 2 {",
        test: HISTORIES,
    },
    Mutation {
        name: "tenant-is-kept",
        invariant: "L8",
        file: TURNS,
        find: "        if tenant.lanes == 0 {",
        replace: "        if tenant.lanes == 0 && self.names.len() > 1 {",
        test: HISTORIES,
    },
    Mutation {
        name: "rate-is-forgotten-with-the-lane",
        invariant: "L8",
        file: LANES,
        find: "            return (lane.is_empty() && full_at > self.now).then_some(full_at);",
        replace: "            return (lane.paused && lane.is_empty() && full_at > self.now).then_some(full_at);",
        test: HISTORIES,
    },
    Mutation {
        name: "late-hold",
        invariant: "L9",
        file: LANES,
        find: "            Hold::Until(at) => Some(at),",
        replace: "            Hold::Until(at) => Some(Time(at.0 + 1)),",
        test: HISTORIES,
    },
    Mutation {
        name: "one-timer-for-all",
        invariant: "L9",
        file: LANES,
        find: "        if let Some(at) = at {\n            self.timers.insert((at, index));",
        replace: "        if let Some(at) = at {\n            self.timers.clear();\n            self.timers.insert((at, index));",
        test: HISTORIES,
    },
    Mutation {
        name: "release-misses-those-behind",
        invariant: "L9",
        file: LANES,
        find: "            extra.holds.clear();\n        }\n        self.refresh_all(index);\n        true",
        replace: "            if let Some(front) = lane.items.front_seq() {\n                extra.holds.set(front, Hold::Free);\n            }\n        }\n        self.refresh_all(index);\n        true",
        test: HISTORIES,
    },
    Mutation {
        name: "hold-outlives-its-item",
        invariant: "L9",
        file: LANES,
        find: "        lane.set_hold(item.seq, Hold::Free);\n",
        replace: "",
        test: HISTORIES,
    },
    Mutation {
        name: "nothing-special-about-a-flushed-lane",
        invariant: "L10",
        file: LANES,
        find: "            && self.flush == Flush::No\n            && !self.paused",
        replace: "            && !self.paused",
        test: HISTORIES,
    },
    Mutation {
        name: "flush-does-not-wait",
        invariant: "L10",
        file: LANES,
        find: "lane.flush == Flush::Wanted && lane.running > 0;",
        replace: "false;",
        test: HISTORIES,
    },
    Mutation {
        name: "flush-behind-waits-for-what-runs",
        invariant: "L10",
        file: LANES,
        find: "Flush::No if !lane.items.is_empty() => Flush::Now,",
        replace: "Flush::No if !lane.items.is_empty() => Flush::Wanted,",
        test: HISTORIES,
    },
    Mutation {
        name: "flush-leaves-the-newest",
        invariant: "L10",
        file: LANES,
        find: "        let jobs = lane.items.take();\n        self.waiting -= jobs.len();\n        if",
        replace: "        let mut jobs = lane.items.take();\n        self.waiting -= jobs.len();\n        jobs.truncate(2);\n        if",
        test: HISTORIES,
    },
    Mutation {
        name: "cancelled-still-counts",
        invariant: "L11",
        file: ITEMS,
        find: " + self.rest.len() - self.marks as usize",
        replace: " + self.rest.len()",
        test: HISTORIES,
    },
    Mutation {
        name: "cancel-frees-nothing",
        invariant: "L11",
        file: LANES,
        find: "        self.no_longer_over(item);\n        self.refresh_all(item.lane);",
        replace: "        self.no_longer_over(item);",
        test: HISTORIES,
    },
    Mutation {
        name: "refill-by-a-full-interval",
        invariant: "L12",
        file: RATE,
        find: "        self.full_at = Time(base.saturating_add(rate.interval));",
        replace: "        let base = if now.0 > self.full_at.0.saturating_sub(rate.slack) { now.0 } else { base };\n        self.full_at = Time(base.saturating_add(rate.interval));",
        test: HISTORIES,
    },
    Mutation {
        name: "one-more-in-a-burst",
        invariant: "L12",
        file: RATE,
        find: "u64::from(burst.max(1) - 1)",
        replace: "u64::from(burst.max(1))",
        test: HISTORIES,
    },
    Mutation {
        name: "asking-spends-a-token",
        invariant: "L12",
        file: LANES,
        find: "                return Next::RateUntil(at);",
        replace: "                self.bucket.full_at.0 += 1;\n                return Next::RateUntil(at);",
        test: HISTORIES,
    },
    Mutation {
        name: "scan-for-the-next",
        invariant: "L13",
        file: LANES,
        find: "        self.tick(now);\n        while",
        replace: "        self.tick(now);\n        let lanes = self.lanes.indices();\n        let passed = lanes.iter().take_while(|&&lane| !self.lanes[lane].link.is_listed());\n        self.visited += passed.count() as u64;\n        while",
        test: HISTORIES,
    },
    Mutation {
        name: "limits-for-new-lanes-only",
        invariant: "L14",
        file: LANES,
        find: "            extra.limits = spec.limits;",
        replace: "            extra.limits = extra.limits.or(spec.limits);",
        test: HISTORIES,
    },
    Mutation {
        name: "new-limits-wake-nobody",
        invariant: "L14",
        file: LANES,
        find: "        for index in lanes {\n            self.refresh(index);\n        }",
        replace: "        for index in lanes {\n            self.count_room(index);\n        }",
        test: HISTORIES,
    },
    Mutation {
        name: "pause-from-the-next-start-on",
        invariant: "L14",
        file: LANES,
        find: "        self.lanes[index].paused = true;\n        self.refresh_all(index);",
        replace: "        self.lanes[index].paused = true;\n        if self.lanes[index].is_empty() {\n            self.refresh_all(index);\n        }",
        test: HISTORIES,
    },
    Mutation {
        name: "new-rate-owes-the-old-debt",
        invariant: "L14",
        file: LANES,
        find: "        self.bucket.rebase(limits.rate, self.now);\n        let lanes",
        replace: "        let lanes",
        test: HISTORIES,
    },
    Mutation {
        name: "two-of-a-lane-at-once",
        invariant: "R1",
        file: POOL,
        find: "    own.unwrap_or(plan.lane_concurrency).get()\n",
        replace: "    own.unwrap_or(plan.lane_concurrency).get() + 1\n",
        test: ROUTED,
    },
    Mutation {
        name: "dead-letter-nowhere",
        invariant: "R2",
        file: POOL,
        find: "        self.shared.store.dead_letter(vec![letter]).await\n",
        replace: "        drop(letter);\n        Ok(())\n",
        test: ROUTED,
    },
    Mutation {
        name: "settles-on-after-giving-up",
        invariant: "R15",
        file: SETTLE_AGAIN,
        find: "            _ if self.gave_up => return None,\n",
        replace: "            _ if self.gave_up => return Some(one),\n",
        test: ROUTED,
    },
    Mutation {
        name: "old-receipt",
        invariant: "R3",
        file: CONSUME,
        find: "            entry.receipt = received.receipt.clone();\n",
        replace: "            let _ = &received.receipt;\n",
        test: ROUTED,
    },
    Mutation {
        name: "redelivered-is-called-again",
        invariant: "R4",
        file: CONSUME,
        find: "            let Some(entry) = out.table.get_mut(id) else {\n                return false;",
        replace: "            let Some(entry) = out.table.get_mut(id).filter(|_| false) else {\n                return false;",
        test: ROUTED,
    },
    Mutation {
        name: "head-goes-back-alone",
        invariant: "R5",
        file: POOL,
        find: "            only.is_none_or(|batches| batches.contains(&queued.job.batch))\n",
        replace: "            only.is_none_or(|batches| batches.contains(&queued.job.batch)) && queued.job.fate == Fate::Return\n",
        test: CASCADES,
    },
    Mutation {
        name: "rest-of-a-batch-stays",
        invariant: "R5",
        file: POOL,
        find: "        if self.follows_what_went_back(&delivery) {\n",
        replace: "        if false && self.follows_what_went_back(&delivery) {\n",
        test: ROUTED,
    },
    Mutation {
        name: "spilled-behind-what-went-back",
        invariant: "R6",
        file: SPILL,
        find: "        if self.follow_what_went_back(&mut jobs) {\n",
        replace: "        if false && self.follow_what_went_back(&mut jobs) {\n",
        test: MOVES,
    },
    Mutation {
        name: "spill-without-what-runs",
        invariant: "R6",
        file: "crates/keylane-router/src/spill.rs",
        find: "        if heads.len() != running {\n",
        replace: "        heads.clear();\n        if false {\n",
        test: ROUTED,
    },
    Mutation {
        name: "arrivals-wait-behind-what-is-under-way",
        invariant: "R9",
        file: SPILL,
        find: "        if pool.lane(lane).is_some_and(|lane| lane.waiting > 0) {\n",
        replace: "        if pool.lane(lane).is_some_and(|lane| lane.waiting > 0) && false {\n",
        test: ROUTED,
    },
    Mutation {
        name: "acked-although-the-store-failed",
        invariant: "R6",
        file: "crates/keylane-router/src/spill.rs",
        find: "                drop(heads);\n                return self.keep_until_stored(lane, jobs, &error).await;\n",
        replace: "                drop((heads, error));\n                return self.keep_some(&lane, jobs, Some(\"spilled\"));\n",
        test: ROUTED,
    },
    Mutation {
        name: "row-outlives-its-outcome",
        invariant: "R6",
        file: "crates/keylane-router/src/feed.rs",
        find: "        match self.router.store.unpark(self.lane.clone(), rows).await {\n",
        replace: "        match self.router.store.unpark(self.lane.clone(), rows[1..].to_vec()).await {\n",
        test: ROUTED,
    },
    Mutation {
        name: "row-goes-before-its-source-knows",
        invariant: "R6",
        file: "crates/keylane-router/src/feed.rs",
        find: "!router.is_out(&done.identity);\n",
        replace: "true || !router.is_out(&done.identity);\n",
        test: ROUTED,
    },
    Mutation {
        name: "fed-without-its-order",
        invariant: "R6",
        file: "crates/keylane-router/src/embedded/stores.rs",
        find: "                 WHERE lane = ? AND row > ? ORDER BY row LIMIT ?\",\n",
        replace: "                 WHERE lane = ? AND row > ? ORDER BY row DESC LIMIT ?\",\n",
        test: ROUTED,
    },
    Mutation {
        name: "stored-keys-return",
        invariant: "R6",
        file: "crates/keylane-router/src/pool.rs",
        find: "            returns: !delivery.is_stored() && self.shared.returns(&delivery.identity.source),\n",
        replace: "            returns: self.shared.returns(&delivery.identity.source),\n",
        test: ROUTED,
    },
    Mutation {
        name: "held-lanes-keep-the-window",
        invariant: "R9",
        file: "crates/keylane-router/src/room.rs",
        find: "if self.held_messages * 2 < self.window || self.is_one_lane() {",
        replace: "if self.held_messages * 2 < usize::MAX {",
        test: ROUTED,
    },
    Mutation {
        name: "slow-lanes-keep-the-window",
        invariant: "R9",
        file: SEATS,
        find: "            && part.unwrap_or(0) < most.part\n",
        replace: "",
        test: ROUTED,
    },
    Mutation {
        name: "held-lanes-do-not-go-back",
        invariant: "R9",
        file: CONSUME,
        find: "            Overflow::Wait if shared.only_returns(&place.lane, &self.name) => {\n",
        replace: "            Overflow::Wait if false => {\n",
        test: ROUTED_ROOM,
    },
    Mutation {
        name: "a-full-lane-stops-its-batch",
        invariant: "R9",
        file: CONSUME,
        find: "        if look.behind.contains(&place) {\n            return Some(arrival);",
        replace: "        if !look.behind.is_empty() {\n            return Some(arrival);",
        test: ROUTED_ROOM,
    },
    Mutation {
        name: "plan-makes-room-unheard",
        invariant: "R11",
        file: ROUTER,
        find: "        self.inner.shared.room.notify_waiters();\n",
        replace: "",
        test: ROUTED_ROOM,
    },
    Mutation {
        name: "what-comes-again-before-its-return-is-known",
        invariant: "R5",
        file: CONSUME,
        find: "            if out.table.get(id).is_some_and(|entry| entry.goes_back) {\n",
        replace: "            if false {\n",
        test: ROUTED_ROOM,
    },
    Mutation {
        name: "what-waits-for-room-stays-when-its-lane-goes-back",
        invariant: "R5",
        file: POOL,
        find: "            if let Some(batch) = batch.filter(goes).filter(|_| ordered != Some(false)) {\n",
        replace: "            if let Some(batch) = batch.filter(goes).filter(|batch| *batch == of_source[0].batch) {\n",
        test: ROUTED_ROOM,
    },
    Mutation {
        name: "settlements-wait-for-another-lane",
        invariant: "R9",
        file: CONSUME,
        find: "        again.add(failed.collect(), self.router.shared.machine.random());\n",
        replace: "        again.add(failed.collect(), self.router.shared.machine.random());\n        while again.due().is_some_and(|at| at > Instant::now()) {\n            tokio::task::yield_now().await;\n            tokio::time::sleep(std::time::Duration::from_secs(3600)).await;\n        }\n",
        test: ROUTED_ROOM,
    },
    Mutation {
        name: "followers-of-a-failed-ack-go-with-it",
        invariant: "R15",
        file: SETTLE_AGAIN,
        find: "            false => lane.behind.push(one),\n",
        replace: "            false => lane.failed.push(one),\n",
        test: ROUTED,
    },
    Mutation {
        name: "bytes-are-not-counted",
        invariant: "R9",
        file: "crates/keylane-router/src/weight.rs",
        find: "        self.used == 0 || self.used + bytes <= self.budget\n",
        replace: "        self.used + bytes < u64::MAX\n",
        test: ROUTED,
    },
    Mutation {
        name: "router-knows-no-tenants",
        invariant: "L7",
        file: "crates/keylane-router/src/pool.rs",
        find: "            .maybe_tenant_by(|lane| lane.tenant().cloned());\n",
        replace: "            .maybe_tenant_by(|lane| lane.tenant().cloned().filter(|_| false));\n",
        test: ROUTED,
    },
    Mutation {
        name: "held-rows-keep-the-bytes",
        invariant: "R9",
        file: "crates/keylane-router/src/pool.rs",
        find: "                    if let Some(lane) = self.overflowing.longest_held_row() {\n",
        replace: "                    if let Some(lane) = self.overflowing.longest_held_row().filter(|_| false) {\n",
        test: ROUTED,
    },
    Mutation {
        name: "calls-are-not-filled",
        invariant: "R15",
        file: "crates/keylane-router/src/settlements.rs",
        find: "            let more = call.min(out()).saturating_sub(waiting.len());\n",
        replace: "            let more = call.min(out()).min(waiting.len()).saturating_sub(waiting.len());\n",
        test: SETTLEMENTS,
    },
    Mutation {
        name: "window-without-end",
        invariant: "R9",
        file: "crates/keylane-router/src/consume.rs",
        find: "            let room = window.saturating_sub(self.len());\n",
        replace: "            let room = window;\n",
        test: ROUTED,
    },
    Mutation {
        name: "lane-is-moved-onto-itself",
        invariant: "R6",
        file: STORES,
        find: "    if from == to {\n        return Ok(());\n    }\n    let Some(lane)",
        replace: "    let Some(lane)",
        test: STORED_MOVES,
    },
    Mutation {
        name: "moved-rows-keep-their-places",
        invariant: "R6",
        file: STORES,
        find: "        move_row.execute((last, into, row))?;",
        replace: "        move_row.execute((row, into, row))?;",
        test: STORED_MOVES,
    },
    Mutation {
        name: "moved-lane-is-fed-although-it-waits",
        invariant: "R7",
        file: STORES,
        find: "            stop_feeding_as(sql, into, lane)?;\n",
        replace: "",
        test: STORED_MOVES,
    },
    Mutation {
        name: "renamed-source-leaves-its-rows",
        invariant: "R6",
        file: STORES,
        find: "        \"UPDATE OR IGNORE parked SET source = ?2 WHERE source = ?1\",\n",
        replace: "",
        test: STORED_MOVES,
    },
    Mutation {
        name: "rows-without-a-lane-are-left",
        invariant: "R6",
        file: STORES,
        find: "    if lost.is_empty() {\n        return Ok(Vec::new());",
        replace: "    if true {\n        return Ok(Vec::new());",
        test: STORED_MOVES,
    },
    Mutation {
        name: "park-goes-on-feeding",
        invariant: "R7",
        file: "crates/keylane-router/src/embedded/stores.rs",
        find: "            if lane.replaying {\n                lane.replaying = false;\n",
        replace: "            if lane.replaying && lane.messages == 0 {\n                lane.replaying = false;\n",
        test: ROUTED,
    },
    Mutation {
        name: "parked-keys-go-on",
        invariant: "R7",
        file: POOL,
        find: "        } else if self.belongs_to_the_store(&delivery) {\n",
        replace: "        } else if false && self.belongs_to_the_store(&delivery) {\n",
        test: ROUTED,
    },
    Mutation {
        name: "waiting-uses-attempts",
        invariant: "R8",
        file: PROCESS,
        find: "        Outcome::NotYet { after } if head.age < plan.patience => {\n",
        replace: "        Outcome::NotYet { after } if head.age > plan.patience => {\n",
        test: ROUTED,
    },
    Mutation {
        name: "unset-is-return",
        invariant: "R8",
        file: PROCESS,
        find: "        OnExhausted::Return if head.returns => OnExhausted::Return,\n",
        replace: "        OnExhausted::Return | OnExhausted::Block if head.returns => OnExhausted::Return,\n",
        test: EXHAUSTED,
    },
    Mutation {
        name: "keyless-messages-are-blocked",
        invariant: "R8",
        file: PROCESS,
        find: "        _ if head.keyless => OnExhausted::DeadLetter,\n",
        replace: "        _ if head.keyless && false => OnExhausted::DeadLetter,\n",
        test: EXHAUSTED,
    },
    Mutation {
        name: "each-round-numbers-from-1",
        invariant: "R8",
        file: POOL,
        find: "            number: delivery.stay.next_attempt(),\n",
        replace: "            number: delivery.stay.failed + 1,\n",
        test: EXHAUSTED,
    },
    Mutation {
        name: "blocked-key-on-disk-is-no-alert",
        invariant: "R8",
        file: SPILL,
        find: "            let _ = feeder.send(Fed::Blocked(head));\n",
        replace: "            drop((feeder, head));\n",
        test: EXHAUSTED,
    },
    Mutation {
        name: "endless-returns-are-not-logged",
        invariant: "R8",
        file: POOL,
        find: "        if self.returns_logged.allows(Instant::now().into_std()) {\n",
        replace: "        if self.returns_logged.allows(Instant::now().into_std()) && false {\n",
        test: EXHAUSTED,
    },
    Mutation {
        name: "attempts-only-in-memory",
        invariant: "R8",
        file: POOL,
        find: ".failed_attempt(&delivery.identity, attempt)",
        replace: ".failed_attempt(&Identity { source: \"nobody\".into(), ..delivery.identity.clone() }, attempt)",
        test: ROUTED,
    },
    Mutation {
        name: "one-more-in-flight",
        invariant: "R9",
        file: ROUTER,
        find: "        .map_or(usize::MAX, std::num::NonZeroUsize::get)\n",
        replace: "        .map_or(usize::MAX, |most| most.get() + 1)\n",
        test: ROUTED,
    },
    Mutation {
        name: "running-ones-need-no-room",
        invariant: "R9",
        file: SEATS,
        find: "        taken.messages < most.messages\n",
        replace: "        taken.messages <= most.messages\n",
        test: ROUTED_POOLS,
    },
    Mutation {
        name: "stop-starts-what-waits",
        invariant: "R10",
        file: ROUTER,
        find: "            drains.spawn(async move { pool.drain(deadline).await });\n",
        replace: "            drains.spawn(async move { tokio::time::timeout(deadline, pool.all_idle()).await.is_ok() });\n",
        test: ROUTED,
    },
    Mutation {
        name: "new-route-at-once",
        invariant: "R11",
        file: ROUTE,
        find: "            if self.has(pool, &lane) {\n",
        replace: "            if false && self.has(pool, &lane) {\n",
        test: ROUTED,
    },
    Mutation {
        name: "pool-that-comes-back-is-another",
        invariant: "R11",
        file: ROUTER,
        find: "            let pool = match self.inner.routes.find(&name) {\n",
        replace: "            let pool = match self.inner.routes.pool(&name) {\n",
        test: MOVES,
    },
    Mutation {
        name: "drain-is-not-called-off",
        invariant: "R11",
        file: ROUTE,
        find: "                leaving.called_off.cancel();\n",
        replace: "                drop(leaving);\n",
        test: MOVES,
    },
    Mutation {
        name: "pool-goes-although-its-lanes-have-not-moved",
        invariant: "R11",
        file: ROUTER,
        find: "            self.shared.store_trouble.fails(&error);\n            return false;\n        }\n        self.shared.store_trouble.works();",
        replace: "            self.shared.store_trouble.fails(&error);\n        }\n        self.shared.store_trouble.works();",
        test: MOVES,
    },
    Mutation {
        name: "default-pool-comes-before-a-keys-own",
        invariant: "R11",
        file: ROUTE,
        find: "        let names = [Some(code), default].into_iter().flatten();\n",
        replace: "        let names = [default, Some(code)].into_iter().flatten();\n",
        test: MOVES,
    },
    Mutation {
        name: "workers-change-over-stored-keys",
        invariant: "R11",
        file: ROUTER,
        find: "        self.inner.keeps_lanes(&plan).await?;\n",
        replace: "",
        test: MOVES,
    },
    Mutation {
        name: "source-starts-with-other-lanes",
        invariant: "R11",
        file: ROUTER,
        find: "            if keys > 0 && before.one_lane != reads.one_lane {",
        replace: "            if keys > 0 && before.one_lane != reads.one_lane && false {",
        test: MOVES,
    },
    Mutation {
        name: "raw-pool-changes-without-what-is-stored",
        invariant: "R11",
        file: ROUTER,
        find: "        if let Envelope::Raw { pool, .. } = &plan.envelope {\n",
        replace: "        if let Envelope::Raw { pool, .. } = &plan.envelope && false {\n",
        test: MOVES,
    },
    Mutation {
        name: "source-changes-its-name-without-what-is-stored",
        invariant: "R11",
        file: ROUTER,
        find: "            self.rename(&before.source, &reads.source).await?;\n",
        replace: "            let _ = before;\n",
        test: MOVES,
    },
    Mutation {
        name: "rows-are-moved-while-they-are-fed",
        invariant: "R11",
        file: ROUTER,
        find: "            if fed.is_empty() {\n                return Ok(barred);",
        replace: "            if fed.is_empty() || true {\n                return Ok(barred);",
        test: MOVES,
    },
    Mutation {
        name: "names-are-exchanged-over-stored-keys",
        invariant: "R11",
        file: ROUTER,
        find: "            0 => Ok(()),\n            keys => Err(StartError::NameExchanged {",
        replace: "            0.. if true => Ok(()),\n            keys => Err(StartError::NameExchanged {",
        test: MOVES,
    },
    Mutation {
        name: "wish-outlives-its-lane",
        invariant: "R5",
        file: POOL,
        find: "        if is_empty && !state.is_some_and(|lane| lane.flushing) {",
        replace: "        if false && is_empty && !state.is_some_and(|lane| lane.flushing) {",
        test: MOVES,
    },
    Mutation {
        name: "removed-pool-gives-back-whatever-it-has",
        invariant: "R11",
        file: SPILL,
        find: "        self.shared.stops() || jobs.iter().all(takes_back)\n",
        replace: "        self.shared.stops() || jobs.iter().all(takes_back) || true\n",
        test: ROUTED,
    },
    Mutation {
        name: "removed-pool-goes-whatever-it-has",
        invariant: "R11",
        file: POOL,
        find: "        let closes = !self.executor.keys().iter().any(stays);\n",
        replace: "        let closes = !self.executor.keys().iter().any(stays) || true;\n",
        test: ROUTED,
    },
    Mutation {
        name: "keys-that-nobody-feeds-are-not-told-of",
        invariant: "R7",
        file: ROUTER,
        find: "            if !self.inner.knows_source(&stored.lane.source) {\n",
        replace: "            if self.inner.plan().pools.is_empty() {\n",
        test: ROUTED,
    },
    Mutation {
        name: "replayed-though-nobody-feeds-it",
        invariant: "R7",
        file: VERBS,
        find: "        if !self.inner.knows_source(&lane.source) {\n",
        replace: "        if !self.inner.knows_source(&lane.source) && false {\n",
        test: ROUTED,
    },
    Mutation {
        name: "any-sources-share-lanes",
        invariant: "R5",
        file: ROUTER,
        find: "        if pool_plan.lane_scope == LaneScope::Pool && !returns {\n",
        replace: "        if pool_plan.lane_scope == LaneScope::Pool && !returns && false {\n",
        test: ROUTED,
    },
    Mutation {
        name: "parked-here-while-others-go-on",
        invariant: "R7",
        file: VERBS,
        find: "        match self.inner.shared.read_by_many(lane) {\n",
        replace: "        match self.inner.shared.read_by_many(lane).filter(|_| false) {\n",
        test: ROUTED,
    },
    Mutation {
        name: "many-may-park-by-policy",
        invariant: "R7",
        file: ROUTER,
        find: "        if pool_plan.on_exhausted == OnExhausted::Park && source.instances == Instances::Many {\n",
        replace: "        if source.instances == Instances::Many && false {\n",
        test: ROUTED,
    },
    Mutation {
        name: "what-a-source-cannot-do-is-found-at-the-start-only",
        invariant: "R5",
        file: SERVER_SOURCES,
        find: "        check_returns(&source, pools);\n",
        replace: "        let _ = check_returns;\n",
        test: CONFIG,
    },
    Mutation {
        name: "new-pool-has-a-way-of-its-own-at-once",
        invariant: "R11",
        file: ROUTER,
        find: "true => named.intersection(&known).cloned().collect(),",
        replace: "true => named.clone(),",
        test: ROUTED,
    },
    Mutation {
        name: "skip-whatever-is-first",
        invariant: "R13",
        file: VERBS,
        find: "            if row.1 != identity {\n",
        replace: "            if false {\n",
        test: ROUTED,
    },
    Mutation {
        name: "skipped-though-not-on-disk",
        invariant: "R13",
        file: POOL,
        find: "        if written.is_ok() {\n",
        replace: "        if true {\n",
        test: ROUTED,
    },
    Mutation {
        name: "a-panic-takes-its-message",
        invariant: "R3",
        file: DELIVERY,
        find: "        if self.lender.is_some() && rescue::keeps() {\n",
        replace: "        if false && rescue::keeps() {\n",
        test: ROUTED,
    },
    Mutation {
        name: "waits-for-a-breaker-unseen",
        invariant: "R9",
        file: POOL,
        find: "            Err(()) => return ask_again(delivery),\n",
        replace: "            Err(()) => {\n                self.breaker_allows(&delivery);\n                return Reply::Hold { job: delivery, until: None };\n            }\n",
        test: ROUTED,
    },
    Mutation {
        name: "counted-twice",
        invariant: "R14",
        file: CONSUME,
        find: "            arrival.delivery.counters.received.one();\n",
        replace: "            arrival.delivery.counters.received.add(2);\n",
        test: ROUTED,
    },
    Mutation {
        name: "acks-in-any-order",
        invariant: "R15",
        file: CONSUME,
        find: "        run.settled.push(settled);\n",
        replace: "        run.settled.insert(0, settled);\n",
        test: ROUTED,
    },
    Mutation {
        name: "newest-of-a-batch-first",
        invariant: "R1",
        file: CONSUME,
        find: "        for (received, known) in batch.into_iter().zip(known) {",
        replace: "        for (received, known) in batch.into_iter().zip(known).rev() {",
        test: AUDITED,
    },
    Mutation {
        name: "audit-looks-away",
        invariant: "R1",
        file: AUDIT,
        find: "        let late = judged && at < self.count;\n",
        replace: "        let late = judged && at > self.count;\n",
        test: AUDITED,
    },
    Mutation {
        name: "audit-goes-by-the-code",
        invariant: "R1",
        file: POOL,
        find: "            pool: &self.name,\n            // Not the lane's",
        replace: "            pool: delivery.parcel.address.pool.as_deref().unwrap_or(\"default\"),\n            // Not the lane's",
        test: AUDITED,
    },
    Mutation {
        name: "audit-cries-over-what-comes-again",
        invariant: "R1",
        file: AUDIT,
        find: "        let at = found.err()?;\n",
        replace: "        let at = found.unwrap_or_else(|at| at);\n",
        test: AUDITED,
    },
    Mutation {
        name: "runner-retires-without-looking-again",
        invariant: "L6",
        file: SHELL_RUNNER,
        find: "if !inbox.queue.is_empty() || std::mem::take(&mut inbox.again) {",
        replace: "if !inbox.queue.is_empty() {",
        test: SHUTTLE,
    },
    Mutation {
        name: "result-before-its-permit-is-free",
        invariant: "L5",
        file: TASKS,
        find: "            Ran::Done | Ran::Other(_) => Ended::Done(Some(finished)),\n        })",
        replace: "            Ran::Done | Ran::Other(_) => {\n                self.publish(finished);\n                Ended::Done(None)\n            }\n        })",
        test: SHUTTLE,
    },
    Mutation {
        name: "first-polls-are-anybodys",
        invariant: "L1",
        file: SHELL_FIRST_POLLS,
        find: "        let by = *self.by.entry(lane).or_insert(runner);",
        replace: "        let by = *self.by.entry(lane).insert(runner).get();",
        test: SHUTTLE,
    },
    Mutation {
        name: "handed-starts-are-anybodys-again",
        invariant: "L1",
        file: SHELL_FIRST_POLLS,
        find: "            self.by.insert(lane, runner);\n            starts.push",
        replace: "            starts.push",
        test: SHUTTLE,
    },
    Mutation {
        name: "surplus-runner-goes-with-what-was-taken-for-it",
        invariant: "L4",
        file: SHELL_RUNNER,
        find: "            if self.shell.has_surplus_runner() && self.lets_go() {",
        replace: "            if self.shell.has_surplus_runner() {",
        test: SHUTTLE,
    },
    Mutation {
        name: "run-that-ends-polls-the-next-out-of-order",
        invariant: "L1",
        file: SHELL_DRIVEN,
        find: "        let next = match self.is_one_by_one(&state) {",
        replace: "        let next = match true || self.is_one_by_one(&state) {",
        test: SHUTTLE,
    },
    Mutation {
        name: "first-polls-by-any-worker",
        invariant: "L1",
        file: SHELL_RUNNER,
        find: "        let polls = !(self.one_by_one && shell.are_pending());",
        replace: "        let polls = !shell.are_pending();",
        test: ORDERED,
    },
    Mutation {
        name: "left-end-that-nobody-reports",
        invariant: "L4",
        file: SHELL_ENDS,
        find: "        inbox.runners += 1;\n        inbox.collector = true;\n        drop(inbox);\n        self.start_collector();",
        replace: "        inbox.again = true;",
        test: SHUTTLE,
    },
    Mutation {
        name: "collector-starts-something-with-ends-left",
        invariant: "L6",
        file: SHELL_RUNNER,
        find: "        if self.any_ends.load(Ordering::Acquire) {\n            self.call_collector(inbox);\n        }",
        replace: "        drop(inbox);",
        test: SHUTTLE,
    },
    Mutation {
        name: "collector-that-went-is-counted-on",
        invariant: "L4",
        file: SHELL_RUNNER,
        find: "        self.collector &= !collects;",
        replace: "        let _ = collects;",
        test: SHUTTLE,
    },
    Mutation {
        name: "task-that-has-ended-stays-in-memory",
        invariant: "L8",
        file: SHELL_ENDS,
        find: "        self.stops.forget(tickets, &mut ends.tasks);",
        replace: "        tickets.for_each(drop);",
        test: UNIT,
    },
    Mutation {
        name: "ends-keep-shared-permits",
        invariant: "L4",
        file: SHELL_ENDS,
        find: "            permits.give(freed);",
        replace: "            permits.give(freed.min(0));",
        test: SHUTTLE,
    },
    Mutation {
        name: "shared-permit-is-kept-where-nothing-starts",
        invariant: "L4",
        file: SHELL_STARTS,
        find: "                self.give_permit();\n                None",
        replace: "                None",
        test: SHARED_PERMITS,
    },
    Mutation {
        name: "closed-is-asked-before-the-lock",
        invariant: "L4",
        file: SHELL_SUBMIT,
        find: "        let mut inbox = lock(&self.inbox.0);\n        if inbox.closed {\n            return Err(NotTaken::Closed(job));\n        }\n        if inbox.direct {",
        replace: "        if self.is_closed() {\n            return Err(NotTaken::Closed(job));\n        }\n        let mut inbox = lock(&self.inbox.0);\n        if inbox.direct {",
        test: SHUTTLE,
    },
    Mutation {
        name: "permit-is-asked-for-and-waited-for-apart",
        invariant: "L6",
        file: PERMITS,
        find: "        shared.waiting.extend(waiter());\n        false",
        replace: "        drop(shared);\n        lock(&self.shared).waiting.extend(waiter());\n        false",
        test: SHUTTLE,
    },
    Mutation {
        name: "stopped-run-keeps-its-permit",
        invariant: "L4",
        file: SHELL_DRIVEN,
        find: "        let after = self.shell.work.abandon(run, stop);\n        let ended = self.ended(ticket, Ended::Done(after));\n        self.shell.end_one(ended);",
        replace: "        let after = self.shell.work.abandon(run, stop);\n        std::mem::forget((ticket, after));",
        test: SHUTTLE,
    },
    Mutation {
        name: "stop-that-came-before-the-first-wait-is-missed",
        invariant: "L4",
        file: STOPS,
        find: "        if let Some(stop) = place.asked(at, ticket.sequence()) {\n            return Some(stop);\n        }\n        place.set",
        replace: "        place.set",
        test: SHUTTLE,
    },
    Mutation {
        name: "stop-of-a-run-that-waits-is-not-looked-for",
        invariant: "L4",
        file: SHELL_DRIVEN,
        find: "        let mut stop = this.is_to_stop();",
        replace: "        let mut stop = None;",
        test: SHUTTLE,
    },
    Mutation {
        name: "index-forgets-a-lane-when-it-grows",
        invariant: "L4",
        file: LANES,
        find: "        for lane in lanes {\n            let hash",
        replace: "        for lane in lanes.into_iter().skip(1) {\n            let hash",
        test: HISTORIES,
    },
    Mutation {
        name: "start-at-once-passes-those-that-are-ready",
        invariant: "L6",
        file: LANES,
        find: "        self.turns.ready() == 0\n            && self.running",
        replace: "        self.running",
        test: HISTORIES,
    },
    Mutation {
        name: "start-at-once-beyond-the-total",
        invariant: "L5",
        file: LANES,
        find: "            && self.running.len() < self.limits.total\n            && self.limits.queue == usize::MAX",
        replace: "            && self.limits.queue == usize::MAX",
        test: HISTORIES,
    },
    Mutation {
        name: "start-at-once-whatever-the-rate",
        invariant: "L12",
        file: LANES,
        find: "            && self.limits.queue == usize::MAX\n            && !self.needs_clock()",
        replace: "            && self.limits.queue == usize::MAX",
        test: HISTORIES,
    },
    Mutation {
        name: "start-at-once-beside-its-lane",
        invariant: "L3",
        file: LANES,
        find: "        found.is_new() && self.index.find(found.hash, same).is_none()",
        replace: "        let _ = same;\n        found.is_new()",
        test: ORDERED,
    },
    Mutation {
        name: "idle-key-with-a-submit-on-its-way",
        invariant: "L8",
        file: SHELL_IDLE,
        find: "        state.take_all(&mut lock(&self.inbox.0));\n",
        replace: "",
        test: HANDLES,
    },
    Mutation {
        name: "lane-of-another-key-with-the-same-hash",
        invariant: "L6",
        file: LANES,
        find: "            Some(index) if self.lanes[index].key == key && !self.lanes[index].stale => index,",
        replace: "            Some(index) if !self.lanes[index].stale => index,",
        test: KEYS,
    },
    Mutation {
        name: "runner-goes-with-the-run-it-came-from",
        invariant: "L4",
        file: SHELL_RUNNER,
        find: "        if !self.retired {\n            let (ended, batch)",
        replace: "        if false {\n            let (ended, batch)",
        test: SHUTTLE,
    },
    Mutation {
        name: "limits-of-a-lane-that-went",
        invariant: "L3",
        file: SHELL_SUBMIT,
        find: "                return self.change(state, |state, inbox| change(state, inbox, key, spec));",
        replace: "                drop(state);\n                return self.with(|state, inbox| change(state, inbox, key, spec));",
        test: SHUTTLE,
    },
    Mutation {
        name: "idle-before-the-results",
        invariant: "L4",
        file: SHELL_IDLE,
        find: "        if self.is_idle(&state) && !lock(&self.publishing).wait_for_all() {",
        replace: "        if self.is_idle(&state) {",
        test: SHUTTLE,
    },
    Mutation {
        name: "idle-with-submits-in-the-inbox",
        invariant: "L4",
        file: SHELL_IDLE,
        find: "        state.lanes.is_idle() && state.taken.is_empty() && lock(&self.inbox.0).queue.is_empty()",
        replace: "        state.lanes.is_idle()",
        test: SHUTTLE,
    },
    Mutation {
        name: "what-is-half-way-in-is-forgotten",
        invariant: "L6",
        file: SHELL,
        find: "        let run = untaken || can_start;",
        replace: "        let run = can_start;",
        test: SHUTTLE,
    },
    Mutation {
        name: "runner-retires-with-submits-half-way-in",
        invariant: "L6",
        file: SHELL_RUNNER,
        find: "            if self.batch.is_empty() && !self.untaken {",
        replace: "            if self.batch.is_empty() {",
        test: SHUTTLE,
    },
    Mutation {
        name: "what-was-taken-first-goes-in-last",
        invariant: "L1",
        file: SHELL_SUBMIT,
        find: "        self.push_taken(usize::MAX, push);\n        std::mem::swap(&mut self.taken, &mut inbox.queue);\n        self.push_taken(usize::MAX, push);",
        replace: "        std::mem::swap(&mut self.taken, &mut inbox.queue);\n        self.push_taken(usize::MAX, push);\n        std::mem::swap(&mut self.taken, &mut inbox.queue);\n        self.push_taken(usize::MAX, push);",
        test: SHUTTLE,
    },
    Mutation {
        name: "key-is-idle-before-its-results",
        invariant: "L4",
        file: SHELL_IDLE,
        find: "            of_keys.into_iter().for_each(|key| publishing.wait(key));",
        replace: "            return of_keys;",
        test: SHUTTLE,
    },
    Mutation {
        name: "caller-is-stopped-in-the-middle-of-a-poll",
        invariant: "L3",
        file: TRACKED,
        find: "            if B::is_busy(cell) {",
        replace: "            if B::is_busy(cell) && why == Why::ItSaid {",
        test: SHUTTLE,
    },
    Mutation {
        name: "caller-is-cut-off-in-the-middle-of-a-poll",
        invariant: "L3",
        file: SHELL_DRIVEN,
        find: "        self.stopping = self.shell.work.stops_by_itself(run, stop);",
        replace: "        self.stopping = false && self.shell.work.stops_by_itself(run, stop);",
        test: SHUTTLE,
    },
    Mutation {
        name: "cancel-before-the-first-poll-is-lost",
        invariant: "L4",
        file: CELL,
        find: "        slow.rare().cancel.get_or_insert(why);\n        self.state.ask();",
        replace: "        if slow.driver.is_some() {\n            slow.rare().cancel.get_or_insert(why);\n            self.state.ask();\n        }",
        test: SHUTTLE,
    },
    Mutation {
        name: "callers-turn-comes-unseen",
        invariant: "L6",
        file: CELL,
        find: "        let mut slow = lock(&self.slow);\n        if let Some(seen) = self.take_result() {\n            return Poll::Ready(seen);\n        }\n        let old = wait(&mut slow);\n        drop(slow);\n        drop(old);\n        if self.state.be_waited_for()\n            && let Some(seen) = self.take_locked()\n        {\n            return Poll::Ready(seen);\n        }\n        // Only now: a turn that comes a moment later finds somebody to wake.\n        self.poll_as_caller();\n        Poll::Pending",
        replace: "        self.poll_as_caller();\n        let mut slow = lock(&self.slow);\n        if let Some(seen) = self.take_result() {\n            return Poll::Ready(seen);\n        }\n        let old = wait(&mut slow);\n        drop(slow);\n        drop(old);\n        if self.state.be_waited_for()\n            && let Some(seen) = self.take_locked()\n        {\n            return Poll::Ready(seen);\n        }\n        Poll::Pending",
        test: SHUTTLE,
    },
    Mutation {
        name: "caller-run-task-wakes-only-who-polled-it",
        invariant: "L6",
        file: CALLER,
        find: "        let mut cx = Context::from_waker(&wakes);",
        replace: "        let latest = lock(&self.slow).rare().sharers.values().next_back().cloned();\n        let latest = latest.unwrap_or(wakes);\n        let mut cx = Context::from_waker(&latest);",
        test: REJECTION,
    },
    Mutation {
        name: "caller-run-task-woken-in-a-poll-wakes-nobody",
        invariant: "L6",
        file: CALLER,
        find: "        let waiting = woken.then(|| slow.take_waiting());",
        replace: "        let waiting = (woken && false).then(|| slow.take_waiting());",
        test: REJECTION,
    },
    Mutation {
        name: "callers-turn-ends-before-its-remains",
        invariant: "L3",
        file: CALLER,
        find: "                Caller::Ran(status_of(verdict), Panicked::dropping(|| drop(run)))",
        replace: "                self.end_turn(Caller::Ran(status_of(verdict), Panicked::default()));\n                return drop(run);",
        test: REJECTION,
    },
    Mutation {
        name: "blocking-work-begins-although-it-was-cancelled",
        invariant: "L11",
        file: TRACKED,
        find: "            && (B::STOPS_WHEN_DROPPED || !begun)",
        replace: "            && B::STOPS_WHEN_DROPPED",
        test: HANDLES,
    },
    Mutation {
        name: "value-is-cloned-under-the-lock",
        invariant: "L4",
        file: CELL,
        find: "            (seen.outcome.to_status(), seen.at)",
        replace: "            let held = lock(&self.slow);\n            let status = seen.outcome.to_status();\n            drop(held);\n            (status, seen.at)",
        test: HANDLES,
    },
    Mutation {
        name: "panic-that-panics-again-is-let-out",
        invariant: "L4",
        file: RT,
        find: "                drop_panic(panic);",
        replace: "                drop(panic);",
        test: PANICS,
    },
    Mutation {
        name: "timer-of-a-task-that-has-ended",
        invariant: "L8",
        file: CELL,
        find: "            if let Some(timer) = timer {\n                timer.abort();",
        replace: "            if let Some(timer) = timer {\n                drop(timer);",
        test: HANDLES,
    },
    Mutation {
        name: "result-comes-between-a-look-and-a-wait",
        invariant: "L6",
        file: CELL,
        find: "        if self.state.be_waited_for()\n            && let",
        replace: "        if self.state.be_waited_for()\n            && std::hint::black_box(false)\n            && let",
        test: SHUTTLE,
    },
    Mutation {
        name: "result-is-handed-over-past-who-waits",
        invariant: "L6",
        file: JOINT,
        find: "        if old & (Self::WAITED | Self::RARE) != 0 || Self::owners(old) == 1 {",
        replace: "        if old & Self::RARE != 0 || Self::owners(old) == 1 {",
        test: SHUTTLE,
    },
    Mutation {
        name: "last-owner-frees-nothing",
        invariant: "L8",
        file: JOINT,
        find: "        self.is_alone() || Self::owners(self.0.fetch_sub(Self::OWNER, Ordering::AcqRel)) == 1",
        replace: "        self.0.fetch_sub(Self::OWNER, Ordering::AcqRel);\n        false",
        test: SHUTTLE,
    },
    Mutation {
        name: "executor-outlives-its-runtime",
        invariant: "L4",
        file: EXECUTOR,
        find: "        if let Some(owner) = self.0.upgrade() {\n            owner.stop();",
        replace: "        if let Some(owner) = self.0.upgrade() {\n            owner.shell.close();",
        test: SHUTDOWN,
    },
    Mutation {
        name: "panic-of-a-dropped-result-is-not-contained",
        invariant: "L4",
        file: SHELL_ENDS,
        find: "            contain(|| afters.by_ref().for_each(|after| self.work.after(after)))",
        replace: "            Ok::<(), String>(afters.by_ref().for_each(|after| self.work.after(after)))",
        test: OUTPUTS,
    },
    Mutation {
        name: "runner-that-never-comes-is-waited-for",
        invariant: "L4",
        file: SHELL_RUNNER,
        find: "            shell.never_comes();",
        replace: "            let _ = shell;",
        test: SHUTDOWN,
    },
    Mutation {
        name: "idle-before-what-was-taken-out-has-ended",
        invariant: "L4",
        file: SHELL,
        find: "            let unseen = (!jobs.is_empty()).then(|| self.unseen());\n            (jobs, unseen)",
        replace: "            let unseen = (!jobs.is_empty()).then_some(());\n            (jobs, unseen)",
        test: SHUTTLE,
    },
    Mutation {
        name: "stopped-by-another-is-nothing-left",
        invariant: "L4",
        file: SHELL,
        find: "            self.stopped.get_or_init(|| (waiting.len(), running.len()));",
        replace: "",
        test: SHUTDOWN,
    },
    Mutation {
        name: "latest-limits-by-their-value",
        invariant: "L3",
        file: RULES,
        find: "        *live = (limits, live.1 + 1);",
        replace: "        *live = (limits, limits.max_in_flight_per_key.unwrap_or(0) as u64);",
        test: LIMITED,
    },
    Mutation {
        name: "runner-in-a-long-poll-is-waited-for",
        invariant: "L6",
        file: SHELL_RELIEF,
        find: "        if self.pace.0.turns.load(Ordering::Relaxed) == turns\n            && called.replace(turns) != Some(turns)\n        {",
        replace: "        if turns == u32::MAX {",
        test: ORDERED,
    },
    Mutation {
        name: "what-was-taken-begins-although-it-may-not-any-more",
        invariant: "L14",
        file: SHELL_RUNNER,
        find: "            if shell.changes.load(Ordering::Acquire) != self.changes {",
        replace: "            if self.changes == u32::MAX {",
        test: LIMITED,
    },
    Mutation {
        name: "stop-of-what-goes-back-is-forgotten",
        invariant: "L4",
        file: SHELL_ENDS,
        find: "        asked.or_else(|| self.work.is_asked(job).then_some(Stop::Asked))",
        replace: "        let _ = asked;\n        self.work.is_asked(job).then_some(Stop::Asked)",
        test: LIMITED,
    },
    Mutation {
        name: "cancel-of-what-goes-back-is-forgotten",
        invariant: "L11",
        file: SHELL_ENDS,
        find: "        asked.or_else(|| self.work.is_asked(job).then_some(Stop::Asked))",
        replace: "        let _ = job;\n        asked",
        test: LIMITED,
    },
    Mutation {
        name: "blocking-work-begins-although-it-was-stopped",
        invariant: "L11",
        file: SHELL_DRIVEN,
        find: "(self.stoppable || !self.begun)",
        replace: "(self.stoppable || self.begun && false)",
        test: SHUTDOWN,
    },
    Mutation {
        name: "return-is-taken-anywhere",
        invariant: "R5",
        file: ROUTER,
        find: "    let returns = features.returns();\n    let no_spill",
        replace: "    let returns = features.returns() || true;\n    let no_spill",
        test: CONFORMS,
    },
    Mutation {
        name: "blocked-head-is-a-dead-letter",
        invariant: "R2",
        file: PROCESS,
        find: "        OnExhausted::Block => Next::Block(reason, plan.retry.max),\n",
        replace: "        OnExhausted::Block => Next::DeadLetter {\n            class: \"exhausted\",\n            reason,\n        },\n",
        test: CONFORMS,
    },
    Mutation {
        name: "nobody-tells-of-room",
        invariant: "R9",
        file: SEATS,
        find: "        if rings {\n",
        replace: "        if rings && false {\n",
        test: ROUTED_ROOM,
    },
    Mutation {
        name: "equal-ids-are-one",
        invariant: "R2",
        file: CONSUME,
        find: "            let acked = self.held.was_acked(&received.identity.id);\n",
        replace: "            let twin = parse::parse(&self.plan.envelope, &received).map(|message| message.id);\n            let acked = self.held.lock().values().any(|entry| twin.as_ref() == Ok(&entry.message));\n",
        test: CONFORMS,
    },
    Mutation {
        name: "lost-acks-are-forgotten",
        invariant: "R4",
        file: CONSUME,
        find: "        remember: !features.confirmed_acks,\n",
        replace: "        remember: false,\n",
        test: CONFORMS,
    },
    Mutation {
        name: "cut-source-is-given-up",
        invariant: "R2",
        file: CONSUME,
        find: "                    self.router.health.trouble(trouble, error.to_string());\n",
        replace: "                    self.router.health.trouble(trouble, error.to_string());\n                    if error.text.len() > 1 {\n                        break;\n                    }\n",
        test: CONFORMS,
    },
    Mutation {
        name: "lost-loan-is-settled-for-ever",
        invariant: "R12",
        file: CONSUME,
        find: "                    self.late(one, &text);\n                    over.push(one);",
        replace: "                    self.late(one, &text);\n                    again.push(at);",
        test: CONFORMS,
    },
    Mutation {
        name: "given-back-is-acked",
        invariant: "R2",
        file: POOL,
        find: "        delivery.settle(Settlement::Return { delay });\n    }\n",
        replace: "        let _ = delay;\n        delivery.settle(Settlement::Ack);\n    }\n",
        test: CONFORMS,
    },
    Mutation {
        name: "acked-on-receipt",
        invariant: "R2",
        file: CONSUME,
        find: "            arrivals.push_back(arrival);\n        }\n        self.put_all",
        replace: "            let id = arrival.delivery.identity.id.clone();\n            let _ = self.end.to_settle.send(Settled {\n                id,\n                loan: self.loans,\n                settlement: Settlement::Ack,\n                counted: None,\n            });\n            arrivals.push_back(arrival);\n        }\n        self.put_all",
        test: CONFORMS,
    },
    Mutation {
        name: "keys-are-text",
        invariant: "R1",
        file: PARSE,
        find: "    key.cloned()\n",
        replace: "    key.map(|key| Key::new(key.to_string().trim()))\n",
        test: CONFORMS,
    },
    Mutation {
        name: "odd-key-is-no-key",
        invariant: "R1",
        file: RABBITMQ_MESSAGE,
        find: "            None => Err(format!(\n",
        replace: "            None if other.get_type() != lapin::types::AMQPType::Void => Ok(None),\n            None => Err(format!(\n",
        test: RABBITMQ_KEYS,
    },
    Mutation {
        name: "number-with-a-point-is-no-key",
        invariant: "R1",
        file: RABBITMQ_MESSAGE,
        find: "        AMQPValue::Double(value) => Some(value.to_string()),\n",
        replace: "        AMQPValue::Double(_) => None,\n",
        test: RABBITMQ_KEYS,
    },
    Mutation {
        name: "malformed-outside-its-body-is-called",
        invariant: "R1",
        file: PARSE,
        find: "    if let Some((_, why)) = incoming.headers.iter().find(malformed) {\n",
        replace: "    if let Some((_, why)) = incoming.headers.iter().find(malformed).filter(|_| false) {\n",
        test: PARSED,
    },
    Mutation {
        name: "the-bodys-key-wins",
        invariant: "R1",
        file: PARSE,
        find: "    let key = given_key(incoming).or_else(own_key);\n",
        replace: "    let key = own_key().or_else(|| given_key(incoming));\n",
        test: CONFORMS,
    },
    Mutation {
        name: "raw-bodies-are-wrapped",
        invariant: "R2",
        file: PARSE,
        find: "    Parcel::whole(incoming.body, id, key, addresses.get(spelled, headers))\n",
        replace: "    let payload = Cow::Owned(pointer_payload(&id));\n    Parcel::new(incoming.body, Cow::Owned(id), payload, key, addresses.get(spelled, headers))\n",
        test: CONFORMS,
    },
    Mutation {
        name: "window-is-not-counted",
        invariant: "R9",
        file: CONSUME,
        find: "            let room = window.saturating_sub(self.len());",
        replace: "            let room = window.saturating_sub(self.len() / window);",
        test: CONFORMS,
    },
    Mutation {
        name: "trouble-is-said-every-time",
        invariant: "R9",
        file: HEALTH,
        find: "        if self.note(trouble.clone(), text.clone()) {\n            tracing::error!",
        replace: "        if self.note(trouble.clone(), text.clone()) || !text.is_empty() {\n            tracing::error!",
        test: CONFORMS,
    },
    Mutation {
        name: "tried-again-to-the-beat",
        invariant: "R9",
        file: CONSUME,
        find: "                        () = stop.cancelled() => break,\n                        () = tokio::time::sleep(jitter::between(random, back_off, 0.5, 1.0)) => {}\n",
        replace: "                        () = stop.cancelled() => break,\n                        () = tokio::time::sleep(back_off) => {}\n",
        test: CONFORMS,
    },
    Mutation {
        name: "trying-is-holding-out",
        invariant: "R9",
        file: CONSUME,
        find: "                    failed = Some(TRIES);\n",
        replace: "                    failed = Some(back_off.min(TRIES));\n",
        test: ROUTED,
    },
    Mutation {
        name: "folder-has-two-owners",
        invariant: "R1",
        file: EMBEDDED_LOCK,
        find: "            Err(TryLockError::WouldBlock) => Err(OpenError::Held {\n                by: holder(&path),\n                lock: path,\n            }),\n            Err(TryLockError::Error(source)) => Err(OpenError::Folder { path, source }),\n        }\n    }\n",
        replace: "            Err(TryLockError::WouldBlock) => Ok(Self { _file: file }),\n            Err(TryLockError::Error(source)) => Err(OpenError::Folder { path, source }),\n        }\n    }\n",
        test: CONFORMS,
    },
    Mutation {
        name: "key-not-locked",
        invariant: "R1",
        file: SHELF,
        find: "        let locked = !parallel && (out || self.waits_for_renamed(id));\n",
        replace: "        let locked = false;\n",
        test: EMBEDDED,
    },
    Mutation {
        name: "queue-tells-lanes-apart-by-code",
        invariant: "R1",
        file: "crates/keylane-router/src/embedded/claim.rs",
        find: "        Some(codes) => Some(&**codes.pool(code)),\n",
        replace: "        Some(_) => code,\n",
        test: ROUTED_POOLS,
    },
    Mutation {
        name: "what-is-out-locks-its-old-lane-only",
        invariant: "R11",
        file: SHELF,
        find: "            key.out += lane.out;\n",
        replace: "",
        test: EMBEDDED,
    },
    Mutation {
        name: "queue-hands-out-more-than-the-capacity",
        invariant: "R9",
        file: SHELF,
        find: "                false => most.min(capacity(&lane.name).max(1)),\n",
        replace: "                false => most.max(capacity(&lane.name).min(1)),\n",
        test: EMBEDDED,
    },
    Mutation {
        name: "former-pools-have-names-of-their-own",
        invariant: "R11",
        file: ROUTE,
        find: "            let pools = self.may_hold(code).chain([self.pool_for(code)]);\n",
        replace: "            let pools = [self.pool_for(code)].into_iter();\n",
        test: ROUTED_POOLS,
    },
    Mutation {
        name: "run-over-another-lane",
        invariant: "R1",
        file: SHELF,
        find: "            Some(run) if run.last == before && run.due.is_none() => {\n",
        replace: "            Some(run) if run.due.is_none() => {\n",
        test: EMBEDDED_SHELF,
    },
    Mutation {
        name: "acked-but-not-deleted",
        invariant: "R2",
        file: EMBEDDED_SOURCE,
        find: "                acks::add(tx.sql, self.queue.n, &self.seqs)?;\n",
        replace: "                acks::add(tx.sql, self.queue.n, &[])?;\n",
        test: EMBEDDED,
    },
    Mutation {
        name: "acked-row-read-again",
        invariant: "R2",
        file: SHELF,
        find: "        if self.is_over(seq) || self.out.contains_key(&seq) {\n",
        replace: "        if self.out.contains_key(&seq) {\n",
        test: EMBEDDED,
    },
    Mutation {
        name: "repeats-of-the-last-crash",
        invariant: "R15",
        file: HISTORY_CHECK,
        find: "            .partition_point(|incident| incident.ended < delivered_epoch);\n",
        replace: "            .partition_point(|incident| incident.ended < delivered_epoch)\n            .max(self.incidents.len() - 1);\n",
        test: CHECKED,
    },
    Mutation {
        name: "unlocked-while-others-read",
        invariant: "R15",
        file: SHELF,
        find: "        if alone && std::mem::replace(&mut out.locks, false) {\n",
        replace: "        if std::mem::replace(&mut out.locks, false) {\n",
        test: EMBEDDED_SHELF,
    },
    Mutation {
        name: "lane-forgotten-while-acks-are-on-their-way",
        invariant: "L4",
        file: SHELF,
        find: "        self.waiting == 0 && self.later == 0 && self.out == 0 && self.ending == 0\n",
        replace: "        self.waiting == 0 && self.later == 0 && self.out == 0\n",
        test: EMBEDDED_SHELF,
    },
    Mutation {
        name: "sequence-begins-anew",
        invariant: "R2",
        file: EMBEDDED_WRITER,
        find: "UPDATE meta SET value = ? WHERE name = 'next_seq'",
        replace: "UPDATE meta SET value = ? WHERE name = 'nobody'",
        test: EMBEDDED,
    },
    Mutation {
        name: "publishes-do-not-wait-for-the-disk",
        invariant: "R2",
        file: EMBEDDED_WRITER,
        find: "            None => self.durability,\n",
        replace: "            None => Durability::Normal,\n",
        test: EMBEDDED_DISK,
    },
    Mutation {
        name: "any-number-of-acks-is-ahead-of-the-disk",
        invariant: "R15",
        file: EMBEDDED_WRITER,
        find: "acks.filter(|_| self.syncer.behind() < UNSYNCED)",
        replace: "acks.filter(|_| self.syncer.behind() < u64::MAX)",
        test: EMBEDDED_DISK,
    },
    Mutation {
        name: "acks-are-never-synced",
        invariant: "R15",
        file: EMBEDDED_WRITER,
        find: "            self.syncer.committed(acks);\n",
        replace: "            let _ = acks;\n",
        test: EMBEDDED_DISK,
    },
    Mutation {
        name: "log-of-a-failed-sync-is-relied-on",
        invariant: "R2",
        file: EMBEDDED_WRITER,
        find: "        if !self.syncer.has_failed() {\n",
        replace: "        if !self.syncer.has_failed() || true {\n",
        test: EMBEDDED_DISK,
    },
    Mutation {
        name: "committed-during-a-sync-counts-as-synced",
        invariant: "R15",
        file: EMBEDDED_SYNC,
        find: "                        Ok(()) => shared.synced.store(committed, Ordering::SeqCst),\n",
        replace: "                        Ok(()) => {\n                            let later = shared.committed.load(Ordering::SeqCst);\n                            shared.synced.store(later.max(committed), Ordering::SeqCst);\n                        }\n",
        test: EMBEDDED_DISK,
    },
    Mutation {
        name: "stop-does-not-wait-for-the-sync",
        invariant: "R15",
        file: EMBEDDED_SYNC,
        find: "            let _ = thread.join();\n",
        replace: "            drop(thread);\n",
        test: EMBEDDED_DISK,
    },
    Mutation {
        name: "unused-to-the-wrong-place",
        invariant: "R5",
        file: SHELF,
        find: "        if !lane.parallel && lane.has_returned() {\n",
        replace: "        if false {\n",
        test: EMBEDDED,
    },
    Mutation {
        name: "kept-connection-is-not-checked",
        invariant: "H1",
        file: CONNECTIONS,
        find: "            let checked = self.guard.check(target, attempt, lease.address());\n",
        replace: "            let checked = self.guard.check_name(target, attempt);\n",
        test: DISPATCHED,
    },
    Mutation {
        name: "name-is-checked-instead-of-the-address",
        invariant: "H1",
        file: DIAL,
        find: "        match guard.check(target, attempt, address) {\n",
        replace: "        match guard.check_name(target, attempt) {\n",
        test: DISPATCHED,
    },
    Mutation {
        name: "resolved-again-for-the-dial",
        invariant: "H1",
        file: DIAL,
        find: "        (false, _) => connect(&allowed).await.map_err(DialError::Connect),\n",
        replace: "        (false, _) => {\n            let again = resolve(resolver, target).await.map_err(DialError::Dns)?;\n            connect(&again).await.map_err(DialError::Connect)\n        }\n",
        test: DISPATCHED,
    },
    Mutation {
        name: "every-source-may-call-this-machine",
        invariant: "H1",
        file: GUARD,
        find: "        self.loopback.load(Ordering::Relaxed) || sources().contains(source)\n",
        replace: "        self.loopback.load(Ordering::Relaxed) || !sources().contains(source) || true\n",
        test: DISPATCHED,
    },
    Mutation {
        name: "mapped-addresses-are-public",
        invariant: "H2",
        file: ADDRESS,
        find: "        [0, 0, 0, 0, 0, 0xffff | 0, a, b] => v4(embedded(a, b)),\n",
        replace: "        [0, 0, 0, 0, 0, 0xffff | 0, ..] => Place::Public,\n",
        test: DISPATCHED,
    },
    Mutation {
        name: "own-listener-is-called",
        invariant: "H2",
        file: GUARD,
        find: "        if self.is_own(address) && !self.is_test_target(target) {\n",
        replace: "        if self.is_own(address) && self.is_test_target(target) && false {\n",
        test: DISPATCHED,
    },
    Mutation {
        name: "late-http-2-connection-is-relied-on",
        invariant: "H3",
        file: CONNECTIONS,
        find: "            shared.retired.store(true, Ordering::Relaxed);\n",
        replace: "",
        test: DISPATCHED,
    },
    Mutation {
        name: "no-limit-for-an-idle-body",
        invariant: "H4",
        file: HTTP,
        find: "        let limit = self.limits.idle_body;\n",
        replace: "        let limit = self.limits.total;\n",
        test: DISPATCHED,
    },
    Mutation {
        name: "no-limit-for-a-head",
        invariant: "H4",
        file: CONNECTIONS,
        find: "            bytes: self.limits.header_bytes,\n",
        replace: "            bytes: usize::MAX,\n",
        test: DISPATCHED,
    },
    Mutation {
        name: "given-up-connection-is-used-again",
        invariant: "H3",
        file: HTTP1,
        find: "        let reusable = std::mem::take(&mut self.reusable);\n",
        replace: "        let reusable = self.reusable;\n",
        test: HTTP1_ALONE,
    },
    Mutation {
        name: "interrupted-request-is-followed",
        invariant: "H3",
        file: HTTP1,
        find: "                self.reusable &= matches!(written, Poll::Ready(Ok(())));\n",
        replace: "",
        test: HTTP1_ALONE,
    },
    Mutation {
        name: "two-lengths-are-one",
        invariant: "H3",
        file: HTTP1,
        find: "        let ambiguous = self.coded.is_some() && self.length.is_some();\n",
        replace: "        let ambiguous = false;\n",
        test: HTTP1_ALONE,
    },
    Mutation {
        name: "cut-body-is-whole",
        invariant: "R2",
        file: "crates/keylane-router/src/dispatch/framing.rs",
        find: "        matches!(self, Self::UntilEnd | Self::Length(0))\n",
        replace: "        self != Self::Length(u64::MAX)\n",
        test: FAULTS,
    },
    Mutation {
        name: "written-on-a-lost-lease",
        invariant: "R12",
        file: HTTP1,
        find: "            if self.written == 0 && !post.lease.is_none_or(Lease::holds) {\n",
        replace: "            if self.written == 1 && !post.lease.is_none_or(Lease::holds) {\n",
        test: HTTP1_ALONE,
    },
    Mutation {
        name: "large-body-is-a-failure",
        invariant: "H5",
        file: BODY,
        find: "                Ok(Progress::More) if self.bytes().len() > limit => return End::OverLimit,\n",
        replace: "                Ok(Progress::More) if self.bytes().len() > limit => {\n                    return End::Cut(Failure::CutBody);\n                }\n",
        test: DISPATCHED,
    },
    Mutation {
        name: "signed-with-the-first-secret-only",
        invariant: "H6",
        file: SIGN,
        find: "        for secret in &*self.0 {\n",
        replace: "        for secret in self.0.iter().take(1) {\n",
        test: DISPATCHED,
    },
    Mutation {
        name: "signed-once-for-all-attempts",
        invariant: "H6",
        file: HEADERS,
        find: "    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);\n",
        replace: "    static FIRST: std::sync::OnceLock<SystemTime> = std::sync::OnceLock::new();\n    let now = FIRST.get_or_init(SystemTime::now).duration_since(SystemTime::UNIX_EPOCH);\n",
        test: DISPATCHED,
    },
    Mutation {
        name: "echoed-token-is-kept",
        invariant: "H7",
        file: HTTP,
        find: "    reason.answer = shown;\n",
        replace: "    drop(shown);\n",
        test: SECRETS,
    },
    Mutation {
        name: "message-sets-our-headers",
        invariant: "H8",
        file: HEADERS,
        find: "        if !is_theirs(name) {\n",
        replace: "        if !is_theirs(name) && false {\n",
        test: DISPATCHED,
    },
    Mutation {
        name: "more-streams-than-the-peer-takes",
        invariant: "H9",
        file: CONNECTIONS,
        find: "        self.streams() < most.min(MOST_STREAMS)\n",
        replace: "        self.streams() < most.max(MOST_STREAMS)\n",
        test: DISPATCHED,
    },
    Mutation {
        name: "no-answer-is-delivered",
        invariant: "R2",
        file: HTTP,
        find: "    answer::failed(failure, Some(&innermost(error).to_string()))\n",
        replace: "    let _ = (failure, innermost(error));\n    Outcome::Delivered\n",
        test: FAULTS,
    },
    Mutation {
        name: "retry-after-without-a-bound",
        invariant: "H4",
        file: RETRY_AFTER,
        find: "        return Some(Duration::from_secs(seconds).min(LONGEST));\n",
        replace: "        return Some(Duration::from_secs(seconds));\n",
        test: FUZZ,
    },
    Mutation {
        name: "lost-lease-is-not-looked-at",
        invariant: "R12",
        file: DELIVERY,
        find: "        self.lease.as_ref().is_some_and(|lease| !lease.holds())\n",
        replace: "        self.lease.as_ref().is_some_and(|lease| !lease.holds()) && false\n",
        test: LEASES,
    },
    Mutation {
        name: "what-a-lost-connection-lent-is-ours",
        invariant: "R12",
        file: LEASE,
        find: "        if self.bond().as_ref().is_some_and(|bond| !bond.holds()) {\n",
        replace: "        if self.bond().as_ref().is_some_and(|bond| !bond.holds()) && false {\n",
        test: LEASES,
    },
    Mutation {
        name: "the-broker-is-not-told-of-a-loan-that-ended",
        invariant: "R12",
        file: LEASE,
        find: "            bond.cut();\n",
        replace: "            let _ = bond;\n",
        test: LEASES,
    },
    Mutation {
        name: "lost-turn-leaves-its-lender-in-keeping",
        invariant: "R6",
        file: POOL,
        find: "            if let Some(lent) = lent {\n                self.overflowing.take_back(&mut delivery, lent).await;\n            }\n            return self.lost_turn(delivery);",
        replace: "            return self.lost_turn(delivery);",
        test: CONFORMS,
    },
    Mutation {
        name: "request-is-written-without-a-look-at-the-lease",
        invariant: "R12",
        file: POOL,
        find: "            lease: delivery.lease.clone(),\n",
        replace: "            lease: None,\n",
        test: LEASES,
    },
    Mutation {
        name: "result-of-a-lost-lease-is-followed",
        invariant: "R12",
        file: POOL,
        find: "        if delivery.is_lost() {\n            return self.lost_result(delivery, outcome).await;",
        replace: "        if delivery.is_lost() && false {\n            return self.lost_result(delivery, outcome).await;",
        test: LEASES,
    },
    Mutation {
        name: "late-ack-is-sent",
        invariant: "R12",
        file: CONSUME,
        find: "            if holds {\n                receipts.sent.push",
        replace: "            if holds || true {\n                receipts.sent.push",
        test: LEASES,
    },
    Mutation {
        name: "only-the-lost-one-leaves-its-lane",
        invariant: "R12",
        file: POOL,
        find: "    let behind = jobs.split_off(from + first).into_iter();\n",
        replace: "    let mut behind = jobs.split_off(from + first);\n    jobs.extend(behind.split_off(1));\n    let behind = behind.into_iter();\n",
        test: LEASES,
    },
    Mutation {
        name: "lease-is-renewed-late",
        invariant: "R12",
        file: RENEW,
        find: "left < self.terms.length / 2",
        replace: "left < self.terms.length / 5",
        test: LEASES,
    },
    Mutation {
        name: "leases-are-not-renewed",
        invariant: "R12",
        file: RENEW,
        find: "} else if doubted || left < self.terms.length / 2 {",
        replace: "} else if doubted {",
        test: CONFORMS_WITH_LEASES,
    },
    Mutation {
        name: "lease-counts-from-when-it-was-seen",
        invariant: "R12",
        file: CONSUME,
        find: "received = &mut receiving => return Ok((received?, lent)),",
        replace: "received = &mut receiving => return Ok((received?, terms.clock.now())),",
        test: LEASES,
    },
    Mutation {
        name: "delivered-on-a-lost-lease-is-forgotten",
        invariant: "R12",
        file: CONSUME,
        find: "            if lost.delivered {\n",
        replace: "            if lost.delivered && false {\n",
        test: LEASES,
    },
    Mutation {
        name: "lost-before-its-call-is-not-taken-back",
        invariant: "R6",
        file: POOL,
        find: "        if delivery.is_lost() {\n            drop(call);\n            if let Some(lent) = lent {\n",
        replace: "        if delivery.is_lost() {\n            drop(call);\n            if let Some(lent) = lent.filter(|_| false) {\n",
        test: LEASES,
    },
    Mutation {
        name: "longest-loan-is-not-looked-at",
        invariant: "R12",
        file: RENEW,
        find: "longest.is_some_and(|longest| out_for + 2 * self.terms.length > longest)",
        replace: "longest.is_some_and(|longest| out_for > longest * 2)",
        test: LEASES,
    },
    Mutation {
        name: "sqs-deletes-of-a-key-side-by-side",
        invariant: "R15",
        file: SQS_SETTLE,
        find: "and_then(|key| last.insert(key, n));",
        replace: "and_then(|key| last.insert(key, n)).filter(|_| false);",
        test: SQS,
    },
    Mutation {
        name: "sqs-expired-handle-is-tried-again",
        invariant: "R12",
        file: SQS_SETTLE,
        find: "error.text.contains(\"expired\")",
        replace: "error.text.contains(\"nothing\")",
        test: SQS,
    },
    Mutation {
        name: "lane-scope-changes-by-a-reload",
        invariant: "R11",
        file: ROUTER,
        find: "        self.inner.keeps_scopes(&plan)?;\n",
        replace: "",
        test: MOVES,
    },
    Mutation {
        name: "stored-lanes-keep-their-scope",
        invariant: "R11",
        file: ROUTER,
        find: "|| shared != LaneId::is_shared(&lane)",
        replace: "|| (false && shared)",
        test: MOVES,
    },
    Mutation {
        name: "moved-lanes-keep-their-scope",
        invariant: "R11",
        file: ROUTER,
        find: "        if scope == LaneScope::Pool {\n            return Ok(vec![to(&any_source(), None)]);",
        replace: "        if scope == LaneScope::Pool {\n            return Ok(vec![to(&lane.source, None)]);",
        test: MOVES,
    },
    Mutation {
        name: "breaker-wakes-whoever-waited-once",
        invariant: "R9",
        file: WAITS,
        find: "pool.upgrade().is_some_and(|pool| pool.wake(&lane))",
        replace: "pool.upgrade().is_some_and(|pool| pool.release(&lane))",
        test: ORIGINS,
    },
    Mutation {
        name: "breaker-releases-the-front-only",
        invariant: "R17",
        file: POOL,
        find: "        self.executor.release_waiting(lane)\n",
        replace: "        let state = self.executor.lane(lane);\n        let waits = |state: LaneState| state.hold == keylane::lanes::Hold::UntilReleased;\n        state.is_some_and(waits) && self.executor.release(lane)\n",
        test: ORIGINS,
    },
    Mutation {
        name: "release-uses-up-a-probe-of-a-paused-lane",
        invariant: "R17",
        file: LANES,
        find: "        waited && self.lanes[index].link.is_listed() && self.rate_of_lane_allows(index)\n",
        replace: "        waited\n",
        test: ORIGINS,
    },
    Mutation {
        name: "lanes-wait-for-workers-of-a-source-that-went",
        invariant: "R17",
        file: ROUTER,
        find: "            workers.close();\n",
        replace: "            drop(workers);\n",
        test: WORKED,
    },
    Mutation {
        name: "breaker-counts-calls",
        invariant: "R9",
        file: BREAKER,
        find: "        if let Some(&place) = self.of.get(&lane) {\n            self.forget(place);\n        }\n",
        replace: "",
        test: BROKEN_CIRCUITS,
    },
    Mutation {
        name: "breaker-counts-retries",
        invariant: "R9",
        file: POOL,
        find: "        let lane = first.then(|| delivery.lane.number(&self.name));\n",
        replace: "        let lane = (first || true).then(|| delivery.lane.number(&self.name));\n",
        test: ORIGINS,
    },
    Mutation {
        name: "few-lanes-open-a-breaker",
        invariant: "R9",
        file: BREAKER,
        find: "        let enough = lanes >= self.min_lanes.min(self.window).get();\n",
        replace: "        let enough = lanes >= 1;\n",
        test: ORIGINS,
    },
    Mutation {
        name: "old-results-open-a-breaker",
        invariant: "R9",
        file: BREAKER,
        find: "        self.keep_since(now, plan.open);\n",
        replace: "",
        test: BROKEN_CIRCUITS,
    },
    Mutation {
        name: "one-good-probe-closes-a-breaker",
        invariant: "R9",
        file: BREAKER,
        find: "                    let enough = *good >= self.plan.probes.get();\n",
        replace: "                    let enough = *good >= 1;\n",
        test: BROKEN_CIRCUITS,
    },
    Mutation {
        name: "whatever-waits-longest-probes",
        invariant: "R9",
        file: POOL,
        find: "        let failed = !delivery.is_first_attempt();\n",
        replace: "        let failed = false;\n",
        test: ORIGINS,
    },
    Mutation {
        name: "open-breaker-is-no-problem",
        invariant: "R9",
        file: ROUTER,
        find: "        problems.extend(self.inner.shared.open_breaker());\n",
        replace: "",
        test: ORIGINS,
    },
    Mutation {
        name: "every-lane-looks-whether-the-origin-is-back",
        invariant: "R9",
        file: WAITS,
        find: "            let probes = self.lock().probes;\n",
        replace: "            let probes = usize::MAX;\n",
        test: ORIGINS,
    },
    Mutation {
        name: "what-is-held-is-a-stall",
        invariant: "FC-14",
        file: WATCH,
        find: "        if pool.ready() == 0 {\n",
        replace: "        if pool.is_empty() {\n",
        test: WATCHED,
    },
    Mutation {
        name: "lost-lane-is-no-stall",
        invariant: "R17",
        file: WATCH,
        find: "            if pool.waiting_for_release() > shared.listed(pool) {\n",
        replace: "            if pool.waiting_for_release() > shared.listed(pool) && false {\n",
        test: ORIGINS,
    },
    Mutation {
        name: "every-lane-that-waits-is-a-stall",
        invariant: "R17",
        file: WATCH,
        find: "            if overdue || shared.breakers.is_closed(&waits.origin) {\n",
        replace: "            if overdue || true {\n",
        test: ORIGINS,
    },
    Mutation {
        name: "a-rate-is-a-stall",
        invariant: "FC-14",
        file: WATCH,
        find: "    after.max(plan.timeout.total).max(rate)\n",
        replace: "    let _ = rate;\n    after.max(plan.timeout.total)\n",
        test: WATCHED,
    },
    Mutation {
        name: "a-stall-has-no-end",
        invariant: "FC-14",
        file: WATCH,
        find: "            health.well(over.clone());\n",
        replace: "            let _ = over;\n",
        test: WATCHED,
    },
    Mutation {
        name: "hanging-acks-are-no-stall",
        invariant: "FC-14",
        file: WATCH,
        find: "        && now - since >= after\n    {\n        let seconds",
        replace: "        && now - since >= after * 1000\n    {\n        let seconds",
        test: WATCHED,
    },
];
