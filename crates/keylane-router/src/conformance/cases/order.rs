//! Each key in order, whatever fails and whatever the policy.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use crate::chance::Chance;
use crate::conformance::rig::{Rig, Setup, ensure, fail, keys};
use crate::conformance::suite::{End, Summary};
use crate::conformance::target::{Answer, Call};
use crate::plan::OnExhausted;
use crate::store::Store;

const MS: Duration = Duration::from_millis(1);

/// Fails about one call in five, in one way or another, and takes its time with some.
fn flaky(chance: Arc<Chance>) -> impl Fn(&Call) -> Answer + Send + Sync {
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
            pool.on_exhausted = Some(policy);
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
        .pool(|pool| pool.on_exhausted = Some(OnExhausted::DeadLetter))
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
