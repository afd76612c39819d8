//! A source that is broken: it says so, harms nobody, and comes back by itself.

use std::fmt::Write;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tracing::field::{Field, Visit};
use tracing::span;

use crate::conformance::listen::listen;
use crate::conformance::rig::{Rig, Setup, ensure, keys};
use crate::conformance::subject::Fault;
use crate::conformance::suite::{End, Summary};
use crate::conformance::watched::Watch;
use crate::health::Trouble;

/// The name of the source that is broken.
const BROKEN: &str = "broken";
/// How long it stays so.
const GONE: Duration = Duration::from_secs(5);

pub(super) async fn wrong_password(rig: Rig) -> Result<Summary, End> {
    breaks(rig, Fault::WrongPassword, Fault::RightPassword).await
}

pub(super) async fn queue_deleted(rig: Rig) -> Result<Summary, End> {
    breaks(rig, Fault::DeleteQueue, Fault::CreateQueue).await
}

pub(super) async fn broker_gone(rig: Rig) -> Result<Summary, End> {
    breaks(rig, Fault::Away, Fault::Back).await
}

async fn breaks(rig: Rig, fault: Fault, mended: Fault) -> Result<Summary, End> {
    rig.needs_faults(&[fault, mended])?;
    let log = Log::default();
    let _here = listen(log.clone());
    let run = rig.start(Setup::new()).await?;
    let other = rig.queue().await?;
    let watch = Watch::new(rig.features.clone(), run.history.clone());
    let attached = other.attach(
        &run.router,
        BROKEN.into(),
        run.source.clone(),
        watch.clone(),
    );
    attached.await?;
    let other = run.beside(other);
    other.publish(&["b"], 0..5).await?;
    run.delivered(5).await?;
    other.empty().await?;
    other.fault(fault).await?;
    run.until("its trouble is known", || trouble(&run.router).is_some())
        .await?;
    let begun = Instant::now();
    // Nobody else is harmed.
    run.publish(&keys(20), 0..20).await?;
    run.delivered(405).await?;
    tokio::time::sleep_until(begun + GONE).await;
    // On a slow machine connecting takes its time, too.
    run.until("it was tried a few times", || watch.failures().len() >= 3)
        .await?;
    let text = trouble(&run.router).unwrap_or_default();
    ensure(
        text.contains(BROKEN) && text.len() > BROKEN.len() + 20,
        || format!("the trouble does not say which source or what is wrong: {text:?}"),
    )?;
    other.fault(mended).await?;
    // Before there is anything to receive.
    run.until("its trouble is over", || trouble(&run.router).is_none())
        .await?;
    other.publish(&["b"], 5..10).await?;
    run.delivered(410).await?;
    other.empty().await?;
    run.finish().await?;
    let said = log.lines_with(BROKEN);
    ensure(said.len() == 1, || {
        format!("the log says it not once: {said:?}")
    })?;
    backed_off(&watch.failures())?;
    Ok(format!(
        "{} receives failed; the log says {:?}",
        watch.failures().len(),
        said[0]
    ))
}

fn trouble(router: &crate::Router) -> Option<String> {
    let mut problems = router.problems().into_iter();
    let broken = Trouble::Source(BROKEN.into());
    let problem = problems.find(|problem| problem.trouble == broken);
    problem.map(|problem| problem.text)
}

/// Tries again and again, less and less often, and not to the beat.
fn backed_off(failures: &[Instant]) -> Result<(), End> {
    let count = failures.len();
    ensure((3..=20).contains(&count), || {
        format!("{count} receives failed in {GONE:?}: that is no back-off")
    })?;
    let gaps: Vec<f64> = failures
        .windows(2)
        .map(|pair| (pair[1] - pair[0]).as_secs_f64())
        .collect();
    // Doubled from one to the next, they would be alike after this.
    let even: Vec<f64> = (0..)
        .zip(&gaps)
        .map(|(n, gap)| gap / 2_f64.powi(n))
        .collect();
    let (first, rest) = even.split_first().expect("there are two");
    let jitter = rest.iter().any(|gap| (gap / first - 1.0).abs() > 0.01);
    ensure(jitter, || format!("it tries again to the beat: {gaps:?}"))
}

/// Keeps what the router warns of, on this thread.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn lines_with(&self, word: &str) -> Vec<String> {
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let lines = lines.iter().filter(|line| line.contains(word));
        lines.cloned().collect()
    }
}

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let _ = match field.name() {
            "message" => write!(self.0, "{value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
    }
}

impl tracing::Subscriber for Log {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::ERROR && metadata.target().starts_with("keylane")
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut text = Text(String::new());
        event.record(&mut text);
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines.push(text.0);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}
