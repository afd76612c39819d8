//! The same message again, equal ids, lost acks (FC-11 … FC-13).

use std::time::Duration;

use bytes::Bytes;

use crate::conformance::rig::{Rig, Run, Setup, ensure, envelope, keys};
use crate::conformance::subject::{Fault, Published};
use crate::conformance::suite::{End, Summary};
use crate::conformance::target::{Answer, label};

pub(super) async fn redelivered_while_running(rig: Rig) -> Result<Summary, End> {
    rig.needs_faults(&[Fault::Redeliver])?;
    let long = Answer::delivered().after(Duration::from_millis(50));
    let run = rig
        .start_to_cut(Setup::new().script(move |_| long.clone()))
        .await?;
    let keys = keys(5);
    let each = 6 * rig.times;
    let all = 5 * each as usize;
    for time in 0..rig.times {
        // Each time: on a busy machine the others are through before the last fault is.
        run.publish(&keys, 6 * time..6 * (time + 1)).await?;
        run.until("messages run", || run.target.running() >= 5)
            .await?;
        // Before: a broker may be quicker than the answer that it was done.
        let received = run.watch.received();
        run.fault(Fault::Redeliver).await?;
        run.until("they come again", || run.watch.received() > received)
            .await?;
    }
    run.delivered(all).await?;
    let target = run.target.clone();
    let report = run.finish().await?;
    let calls = target.all_calls();
    ensure(calls == 5 * each, || {
        format!("{all} messages, {calls} calls: some were called again")
    })?;
    let again = report.counts.events;
    Ok(format!("{all} messages, {calls} calls, {again} events"))
}

pub(super) async fn equal_ids(rig: Rig) -> Result<Summary, End> {
    let run = rig.start(Setup::new()).await?;
    run.note_published("k", 0);
    let same = Published {
        key: Some(Bytes::from_static(b"k")),
        body: envelope(&label("k", 0)),
        headers: Vec::new(),
    };
    run.put(vec![same.clone(), same]).await?;
    run.until("both are called", || run.target.calls("k#0") == 2)
        .await?;
    run.empty().await?;
    run.stop().await;
    let counters = run.router.counters().of(&"s".into(), &"default".into());
    let (received, delivered) = (counters.received.get(), counters.delivered.get());
    ensure((received, delivered) == (2, 2), || {
        format!("two messages with one id: {received} received, {delivered} delivered")
    })?;
    Ok("two messages with one id, two deliveries".to_owned())
}

pub(super) async fn ack_lost(rig: Rig) -> Result<Summary, End> {
    rig.needs_faults(&[Fault::LoseAck, Fault::Redeliver])?;
    let run = rig.start_to_cut(Setup::new()).await?;
    let mut published = 0;
    for _ in 0..rig.times {
        let received = run.watch.received();
        run.fault(Fault::LoseAck).await?;
        run.publish(&keys(5), published..published + 1).await?;
        published += 1;
        run.delivered(5 * published as usize).await?;
        if rig.features.confirmed_acks {
            // It is known and tried again, whether or not it comes again meanwhile.
            run.fault(Fault::Redeliver).await?;
        } else {
            comes_again(&run, received + 5).await?;
        }
        run.empty().await?;
    }
    let (target, calls) = (run.target.clone(), 5 * published);
    run.finish().await?;
    let made = target.all_calls();
    ensure(made == calls, || {
        format!("{calls} messages, {made} calls: a lost ack led to a second one")
    })?;
    Ok(format!("{published} lost acks, no second call"))
}

/// What nobody knows to be lost is found out when it comes again: by itself, or when it is made to.
async fn comes_again(run: &Run, received: u64) -> Result<(), End> {
    run.until("all is acked", || run.watch.out() == 0).await?;
    if run.watch.received() == received {
        run.fault(Fault::Redeliver).await?;
    }
    run.until("it comes again", || run.watch.received() > received)
        .await
}
