//! The mutations: every property has at least one that makes it red. `docs/proof.md` says what each shows.
//!
//! To add one, copy an entry. `find` is copied from the code as it stands, long enough to occur only
//! once; when the code moves on, a test of xtask says that it no longer applies.

use super::mutation::{Mutation, TestRun};

const LANES: &str = "crates/keylane/src/lanes/mod.rs";
const ITEMS: &str = "crates/keylane/src/lanes/items.rs";
const TURNS: &str = "crates/keylane/src/lanes/turns.rs";
const RATE: &str = "crates/keylane/src/lanes/rate.rs";

const SHELL: &str = "crates/keylane/src/shell.rs";
const JOB: &str = "crates/keylane/src/job.rs";
const PERMITS: &str = "crates/keylane/src/permits.rs";

const POOL: &str = "crates/keylane-router/src/pool.rs";
const PROCESS: &str = "crates/keylane-router/src/process.rs";
const AUDIT: &str = "crates/keylane-router/src/audit.rs";
const CONSUME: &str = "crates/keylane-router/src/consume.rs";
const ROUTE: &str = "crates/keylane-router/src/route.rs";
const ROUTER: &str = "crates/keylane-router/src/router.rs";
const VERBS: &str = "crates/keylane-router/src/verbs.rs";

const SHELF: &str = "crates/keylane-router/src/embedded/shelf.rs";
const EMBEDDED_SOURCE: &str = "crates/keylane-router/src/embedded/source.rs";
const EMBEDDED_WRITER: &str = "crates/keylane-router/src/embedded/writer.rs";

/// The embedded queue's tests on real files, its state machine among them.
const EMBEDDED: TestRun = TestRun {
    package: "keylane-router",
    target: &["--test", "it"],
    filter: "embedded::",
    env: &[],
};

/// The embedded queue's plain data.
const EMBEDDED_SHELF: TestRun = TestRun {
    package: "keylane-router",
    target: &["--lib"],
    filter: "embedded::shelf",
    env: &[],
};

/// The router's tests over real HTTP and a real file.
const ROUTED: TestRun = TestRun {
    package: "keylane-router",
    target: &["--test", "it"],
    filter: "router::",
    env: &[],
};

const CONNECTIONS: &str = "crates/keylane-router/src/dispatch/connections.rs";
const DIAL: &str = "crates/keylane-router/src/dispatch/dial.rs";
const GUARD: &str = "crates/keylane-router/src/dispatch/guard.rs";
const ADDRESS: &str = "crates/keylane-router/src/dispatch/address.rs";
const HTTP: &str = "crates/keylane-router/src/dispatch/http.rs";
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

/// Fewer histories than usual, and always the same ones.
const HISTORIES: TestRun = TestRun {
    package: "keylane",
    target: &["--test", "it"],
    filter: "lanes_model",
    env: &[("KEYLANE_HISTORIES", "20000"), ("KEYLANE_SEED", "1")],
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
        find: "self.extra.is_none() && self.flush == Flush::No && !self.paused",
        replace: "self.extra.is_none() && !self.paused",
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
        replace: "        self.tick(now);\n        let lanes = self.lanes.indices();\n        let passed = lanes.iter().take_while(|&&lane| !self.lanes[lane].link.listed);\n        self.visited += passed.count() as u64;\n        while",
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
        name: "old-receipt",
        invariant: "R3",
        file: CONSUME,
        find: "        entry.receipt = receipt.clone();\n",
        replace: "        let _ = receipt;\n",
        test: ROUTED,
    },
    Mutation {
        name: "redelivered-is-called-again",
        invariant: "R4",
        file: CONSUME,
        find: "        let entry = out.table.get_mut(id)?;\n",
        replace: "        let entry = out.table.get_mut(id).filter(|_| false)?;\n",
        test: ROUTED,
    },
    Mutation {
        name: "head-goes-back-alone",
        invariant: "R5",
        file: POOL,
        find: "only_batch.is_none_or(|batch| queued.job.batch == batch)",
        replace: "only_batch.is_none_or(|batch| queued.job.batch == batch) && queued.job.fate == Fate::Return",
        test: ROUTED,
    },
    Mutation {
        name: "parked-keys-go-on",
        invariant: "R7",
        file: POOL,
        find: "        if self.belongs_to_the_store(&delivery) {\n",
        replace: "        if false && self.belongs_to_the_store(&delivery) {\n",
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
        file: POOL,
        find: "let before = state.map_or(0, |lane| lane.running + lane.waiting);",
        replace: "let before = state.map_or(0, |lane| lane.waiting);",
        test: ROUTED,
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
        find: "                if self.has(pool, &lane) {\n",
        replace: "                if false && self.has(pool, &lane) {\n",
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
        name: "counted-twice",
        invariant: "R14",
        file: CONSUME,
        find: "        counters.received.one();\n",
        replace: "        counters.received.add(2);\n",
        test: ROUTED,
    },
    Mutation {
        name: "acks-in-any-order",
        invariant: "R15",
        file: CONSUME,
        find: "        run.ids.push(settled.id);\n",
        replace: "        run.ids.insert(0, settled.id);\n",
        test: ROUTED,
    },
    Mutation {
        name: "newest-of-a-batch-first",
        invariant: "R1",
        file: CONSUME,
        find: "        for received in batch {\n",
        replace: "        for received in batch.into_iter().rev() {\n",
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
        file: SHELL,
        find: "if !inbox.queue.is_empty() || std::mem::take(&mut inbox.again) {",
        replace: "if !inbox.queue.is_empty() {",
        test: SHUTTLE,
    },
    Mutation {
        name: "result-before-its-permit-is-free",
        invariant: "L5",
        file: JOB,
        find: "        this.cell.set_status(status);\n        Poll::Ready(ran.and",
        replace: "        this.cell.complete(status);\n        Poll::Ready(ran.and",
        test: SHUTTLE,
    },
    Mutation {
        name: "closed-is-asked-before-the-lock",
        invariant: "L4",
        file: SHELL,
        find: "        let mut inbox = lock(&self.inbox);\n        if inbox.closed {\n            return Err(NotTaken::Closed(job));\n        }\n        if inbox.direct {",
        replace: "        if self.is_closed() {\n            return Err(NotTaken::Closed(job));\n        }\n        let mut inbox = lock(&self.inbox);\n        if inbox.direct {",
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
        name: "stopped-before-its-first-poll-keeps-its-permit",
        invariant: "L4",
        file: SHELL,
        find: "                    let driven = Driven {\n                        shell: shell.clone(),\n                        run: Some((run, ticket)),\n                    };\n                    let handle = shell.spawner.spawn(driven.drive());",
        replace: "                    let (same, run) = (shell.clone(), Some((run, ticket)));\n                    let handle = shell\n                        .spawner\n                        .spawn(async move { Driven { shell: same, run }.drive().await });",
        test: SHUTTLE,
    },
    Mutation {
        name: "runner-goes-with-the-run-it-came-from",
        invariant: "L4",
        file: SHELL,
        find: "        if !self.retired {\n            let (ended, spawned)",
        replace: "        if false {\n            let (ended, spawned)",
        test: SHUTTLE,
    },
    Mutation {
        name: "limits-of-a-lane-that-went",
        invariant: "L3",
        file: SHELL,
        find: "                return self.change(state, |state, inbox| change(state, inbox, key, spec));",
        replace: "                drop(state);\n                return self.with(|state, inbox| change(state, inbox, key, spec));",
        test: SHUTTLE,
    },
    Mutation {
        name: "idle-before-the-results",
        invariant: "L4",
        file: SHELL,
        find: "        state.lanes.is_idle() && self.unpublished.load(Ordering::SeqCst) == 0",
        replace: "        state.lanes.is_idle()",
        test: SHUTTLE,
    },
    Mutation {
        name: "caller-is-stopped-in-the-middle-of-a-poll",
        invariant: "L3",
        file: JOB,
        find: "            if self.cell.is_polled() {",
        replace: "            if self.cell.is_polled() && why == Why::ItSaid {",
        test: SHUTTLE,
    },
    Mutation {
        name: "cancel-before-the-first-poll-is-lost",
        invariant: "L4",
        file: JOB,
        find: "        state.cancel.get_or_insert(why);\n        let driver = state.driver.take();",
        replace: "        if state.driver.is_some() {\n            state.cancel.get_or_insert(why);\n        }\n        let driver = state.driver.take();",
        test: SHUTTLE,
    },
    Mutation {
        name: "callers-turn-comes-unseen",
        invariant: "L6",
        file: JOB,
        find: "        {\n            let mut state = lock(&self.state);\n            if state.published {\n                let status = keep(&mut state.status);\n                let (started, ended) = (state.started, state.ended_at);\n                drop(state);\n                return Poll::Ready(self.result(status, started, ended));\n            }\n            state.wait(cx.waker());\n        }\n        // Only now: a turn that comes a moment later finds somebody to wake.\n        self.poll_as_caller(cx);\n        Poll::Pending",
        replace: "        self.poll_as_caller(cx);\n        {\n            let mut state = lock(&self.state);\n            if state.published {\n                let status = keep(&mut state.status);\n                let (started, ended) = (state.started, state.ended_at);\n                drop(state);\n                return Poll::Ready(self.result(status, started, ended));\n            }\n            state.wait(cx.waker());\n        }\n        Poll::Pending",
        test: SHUTTLE,
    },
    Mutation {
        name: "key-not-locked",
        invariant: "R1",
        file: SHELF,
        find: "        let locked = lane.out > 0 && !lane.parallel;\n",
        replace: "        let locked = false;\n",
        test: EMBEDDED,
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
        find: "        self.deleted = delete_rows(tx, &self.queue, &self.seqs)?;\n",
        replace: "        self.deleted = delete_rows(tx, &self.queue, &[])?;\n",
        test: EMBEDDED,
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
        name: "unused-to-the-wrong-place",
        invariant: "R5",
        file: SHELF,
        find: "        if !lane.parallel && !lane.returned.is_empty() {\n",
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
        find: "                shared.retired.store(true, Ordering::Relaxed);\n",
        replace: "",
        test: DISPATCHED,
    },
    Mutation {
        name: "no-limit-for-an-idle-body",
        invariant: "H4",
        file: HTTP,
        find: "        let limit = Instant::now() + self.limits.idle_body;\n",
        replace: "        let limit = Instant::now() + self.limits.total;\n",
        test: DISPATCHED,
    },
    Mutation {
        name: "no-limit-for-a-head",
        invariant: "H4",
        file: CONNECTIONS,
        find: "            .max_header_size(self.limits.header_bytes)\n",
        replace: "",
        test: DISPATCHED,
    },
    Mutation {
        name: "large-body-is-a-failure",
        invariant: "H5",
        file: BODY,
        find: "                return End::OverLimit;\n",
        replace: "                return End::Cut(Failure::CutBody);\n",
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
        find: "    answer::failed(failure(error), Some(&innermost(error).to_string()))\n",
        replace: "    let _ = (failure(error), innermost(error));\n    Outcome::Delivered\n",
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
];
