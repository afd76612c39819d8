//! Each key in order, whatever fails and whatever the policy.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::chance::Chance;
use crate::conformance::rig::{Rig, Run, Setup, ensure, fail, keys};
use crate::conformance::suite::{End, Summary};
use crate::conformance::target::{Answer, Call, label};
use crate::plan::{OnExhausted, Overflow, PoolPlan};
use crate::store::Store;
use crate::verbs::By;

const MS: Duration = Duration::from_millis(1);

/// A switch that a script looks at.
#[derive(Clone, Default)]
struct Switch(Arc<AtomicBool>);

impl Switch {
    fn set(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

/// Fails calls that `is_bad` means until the switch is set.
fn failing_until<F: Fn(&Call) -> bool + Send + Sync>(
    switch: &Switch,
    is_bad: F,
) -> impl Fn(&Call) -> Answer + Send + Sync + use<F> {
    let switch = switch.clone();
    move |call| match is_bad(call) && !switch.is_set() {
        true => Answer::failed(),
        false => Answer::delivered(),
    }
}

/// Fails about one call in five, in one way or another, and takes its time with some.
pub(in crate::conformance) fn flaky(chance: Arc<Chance>) -> impl Fn(&Call) -> Answer + Send + Sync {
    move |_| match chance.next() % 20 {
        0..3 => Answer::failed(),
        3 => Answer::not_yet(3 * MS),
        4 | 5 => Answer::delivered().after(3 * MS),
        _ => Answer::delivered(),
    }
}

pub(super) async fn order_with_failing_heads(rig: Rig) -> Result<Summary, End> {
    let setup = Setup::new().patient().window(400);
    let run = rig.start(setup.script(flaky(rig.chance.clone()))).await?;
    let keys = keys(200);
    run.publish(&keys, 0..10).await?;
    run.delivered(2000).await?;
    let report = run.finish().await?;
    let retries = report.counts.retries;
    ensure(retries > 100, || {
        format!("only {retries} heads failed: this shows nothing")
    })?;
    Ok(format!("2000 messages of 200 keys, {retries} retries"))
}

pub(super) async fn return_with_cascade(rig: Rig) -> Result<Summary, End> {
    let returning = |policy| {
        Setup::new().pool(|pool| {
            pool.on_exhausted = policy;
            pool.retry.max_attempts = NonZeroUsize::MIN;
        })
    };
    let setup = returning(OnExhausted::Return).script(flaky(rig.chance.clone()));
    if !rig.returns() {
        return match rig.start(setup).await {
            Ok(_) => fail("`return` was accepted, and the source cannot".to_owned()),
            Err(End::Failed(text)) if text.contains("cannot take messages back") => {
                Ok("the config is refused, and says why".to_owned())
            }
            Err(other) => Err(other),
        };
    }
    let run = rig.start(setup).await?;
    run.publish(&keys(40), 0..15).await?;
    run.delivered(600).await?;
    let report = run.finish().await?;
    let returned = report.counts.returned;
    ensure(returned > 60, || {
        format!("only {returned} returns: this shows nothing")
    })?;
    Ok(format!("600 messages, {returned} returns"))
}

pub(super) async fn dead_letter(rig: Rig) -> Result<Summary, End> {
    // Every seventh message fails for good.
    let is_bad = |call: &Call| call.n % 7 == 3;
    let setup = Setup::new()
        .pool(|pool| pool.on_exhausted = OnExhausted::DeadLetter)
        .script(move |call| match is_bad(call) {
            true => Answer::failed(),
            false => Answer::delivered(),
        });
    let run = rig.start(setup).await?;
    run.publish(&keys(30), 0..14).await?;
    run.delivered(30 * 12).await?;
    run.empty().await?;
    let store: Arc<dyn Store> = run.store.clone();
    let letters = store.dead_letter_count().await;
    let report = run.finish().await?;
    ensure(
        letters == Ok(60) && report.counts.dead_lettered == 60,
        || format!("60 messages fail for good, {letters:?} are dead letters"),
    )?;
    Ok("360 delivered, 60 dead letters".to_owned())
}

pub(super) async fn park(rig: Rig) -> Result<Summary, End> {
    rig.needs_keys()?;
    // The fourth message of four keys fails until the keys are replayed.
    let mended = Switch::default();
    let bad: Vec<String> = keys(4);
    let is_bad = move |call: &Call| call.n == 3 && bad.iter().any(|key| **key == *call.key);
    let setup = Setup::new()
        .pool(|pool| pool.on_exhausted = OnExhausted::Park)
        .script(failing_until(&mended, is_bad));
    let run = rig.start(setup).await?;
    run.publish(&keys(10), 0..6).await?;
    run.until("four keys are parked", || run.store.parked().len() == 4)
        .await?;
    delivered_or_parked(&run, 60).await?;
    run.publish(&keys(10), 6..8).await?;
    delivered_or_parked(&run, 80).await?;
    run.empty().await?;
    // Where they come as they come, others may have been before the fourth.
    let (rows, delivered) = (parked(&run), run.target.delivered());
    let right = match rig.in_order() {
        true => rows == 4 * 5,
        false => rows >= 4 && delivered >= 6 * 8,
    };
    ensure(right && rows + delivered == 80, || {
        format!("{rows} messages are parked and {delivered} delivered, not 20 and 60")
    })?;
    mended.set();
    for key in keys(4) {
        let by = By {
            who: "the suite".to_owned(),
            why: "it is mended".to_owned(),
        };
        let replayed = run.router.replay(run.lane(&key), by).await;
        replayed.map_err(|error| End::Failed(format!("{key} cannot be replayed: {error:?}")))?;
    }
    run.delivered(80).await?;
    run.finish().await?;
    Ok("80 messages of 10 keys, 4 of them parked and replayed".to_owned())
}

fn parked(run: &Run) -> usize {
    let rows: u64 = run.store.parked().iter().map(|lane| lane.messages).sum();
    usize::try_from(rows).expect("they are few")
}

async fn delivered_or_parked(run: &Run, count: usize) -> Result<(), End> {
    let so = || run.target.delivered() + parked(run) >= count;
    let waited = run.until("", so).await;
    waited.map_err(|_| {
        let (rows, delivered) = (parked(run), run.target.delivered());
        End::Failed(format!(
            "{delivered} of {count} messages were delivered and {rows} parked"
        ))
    })
}

pub(super) async fn block(rig: Rig) -> Result<Summary, End> {
    rig.needs_keys()?;
    let mended = Switch::default();
    let setup = Setup::new()
        .pool(|pool| pool.on_exhausted = OnExhausted::Block)
        .script(failing_until(&mended, |call| &*call.key == "k0"));
    let run = rig.start(setup).await?;
    run.publish(&keys(20), 0..5).await?;
    run.delivered(19 * 5).await?;
    let calls = || (0..5).map(|n| run.target.calls(&label("k0", n)));
    run.until("its head is tried again and again", || {
        calls().any(|calls| calls > 6)
    })
    .await?;
    let head = calls().position(|calls| calls > 0);
    ensure(head == Some(0) || !rig.in_order(), || {
        format!("the head is k0#{head:?}, not k0#0")
    })?;
    ensure(calls().filter(|calls| *calls > 0).count() == 1, || {
        format!(
            "another was called while the head of its key is blocked: {:?}",
            calls().collect::<Vec<_>>()
        )
    })?;
    mended.set();
    run.delivered(100).await?;
    run.finish().await?;
    Ok("100 messages, one key blocked while 19 went on".to_owned())
}

/// A lane that has more than it may hold, and whose head fails until the others are through.
async fn overflowing(rig: &Rig, overflow: Overflow) -> Result<(Run, Switch), End> {
    rig.needs_keys()?;
    let mended = Switch::default();
    let setup = Setup::new()
        .patient()
        .pool(|pool| {
            pool.overflow = Some(overflow);
            pool.lane_capacity = NonZeroUsize::new(5).expect("not zero");
        })
        .script(failing_until(&mended, |call| {
            &*call.key == "k0" && call.n == 0
        }));
    let run = rig.start(setup).await?;
    run.publish(&["k0"], 0..40).await?;
    run.publish(&keys(10)[1..], 0..10).await?;
    Ok((run, mended))
}

pub(super) async fn spill(rig: Rig) -> Result<Summary, End> {
    let (run, mended) = overflowing(&rig, Overflow::Spill).await?;
    run.delivered(90).await?;
    ensure(run.target.calls("k0#1") == 0 || !rig.in_order(), || {
        "k0#1 was called before the head of its key had an end".to_owned()
    })?;
    mended.set();
    run.delivered(130).await?;
    run.finish().await?;
    Ok("40 messages of a key spilled while 9 keys went on".to_owned())
}

pub(super) async fn wait(rig: Rig) -> Result<Summary, End> {
    let (run, mended) = overflowing(&rig, Overflow::Wait).await?;
    run.until("its head is tried again and again", || {
        run.target.calls("k0#0") > 3
    })
    .await?;
    mended.set();
    run.delivered(130).await?;
    let most = run.watch.most_out();
    run.finish().await?;
    ensure(most <= 100, || {
        format!("{most} were out; the window is 100")
    })?;
    Ok(format!("130 messages, at most {most} out"))
}

/// The defaults, all times a hundredth of what they are.
fn defaults() -> Setup {
    Setup::new().pool(|pool| {
        let usual = PoolPlan::default();
        pool.retry.initial = usual.retry.initial / 100;
        pool.retry.max = usual.retry.max / 100;
        pool.retry.max_attempts = usual.retry.max_attempts;
        pool.return_delay = usual.return_delay / 100;
    })
}

pub(super) async fn one_failing_key(rig: Rig) -> Result<Summary, End> {
    rig.needs_keys()?;
    let mended = Switch::default();
    let setup = defaults().script(failing_until(&mended, |call| &*call.key == "bad"));
    let run = rig.start(setup).await?;
    run.publish(&["bad"], 0..300).await?;
    run.until("it was tried", || run.target.all_calls() > 0)
        .await?;
    run.publish(&keys(20), 0..5).await?;
    run.delivered(100).await?;
    mended.set();
    run.delivered(400).await?;
    run.finish().await?;
    Ok("300 messages of a failing key and a window of 100: 20 others went on".to_owned())
}

pub(super) async fn every_head_failing(rig: Rig) -> Result<Summary, End> {
    rig.needs_keys()?;
    let mended = Switch::default();
    let setup = defaults().script(failing_until(&mended, |call| call.key.starts_with("bad")));
    let run = rig.start(setup).await?;
    let bad: Vec<String> = (0..150).map(|k| format!("bad{k}")).collect();
    run.publish(&bad, 0..2).await?;
    run.until("they were tried", || run.target.all_calls() > 50)
        .await?;
    run.publish(&keys(20), 0..5).await?;
    run.delivered(100).await?;
    mended.set();
    run.delivered(400).await?;
    run.finish().await?;
    Ok("150 keys whose heads fail and a window of 100: 20 others went on".to_owned())
}
