//! Makes the sources of brokers: the one place that names them all.

use std::sync::Arc;

use keylane_router::Router;
use keylane_router::activemq::ActiveMqSource;
use keylane_router::plan::{Instances, SourceKind, SourcePlan};
use keylane_router::rabbitmq::RabbitmqSource;
use keylane_router::sqs::SqsSource;

use crate::sources::SourceError;

/// Whether a source of this kind reads a broker's queue, and not one of ours.
pub(crate) fn is_one(kind: &SourceKind) -> bool {
    !matches!(kind, SourceKind::Embedded { .. } | SourceKind::Custom)
}

/// Has the router read the queue. A broker that is away at the moment is no error: the source
/// connects when it can, and says so.
pub(crate) async fn connect(
    router: &Router,
    name: Arc<str>,
    plan: SourcePlan,
) -> Result<(), SourceError> {
    match plan.kind.clone() {
        SourceKind::Embedded { .. } | SourceKind::Custom => Ok(()),
        SourceKind::Rabbitmq(options) => {
            let source = RabbitmqSource::new(name.clone(), *options, &plan);
            let source = source.map_err(|wrong| {
                SourceError::Broker(format!("source `{name}`: {}", wrong.join("; ")))
            })?;
            Ok(router.add_source(name, source, plan).await?)
        }
        SourceKind::Sqs(options) => {
            let source = SqsSource::new(name.clone(), options);
            let mut source = source.map_err(|problems| {
                let problems = problems.iter().map(ToString::to_string);
                let problems = problems.collect::<Vec<_>>().join("; ");
                SourceError::Broker(format!("source `{name}`: {problems}"))
            })?;
            let checked = source.check().await;
            checked.map_err(|error| SourceError::Broker(error.to_string()))?;
            Ok(router.add_source(name, source, plan).await?)
        }
        SourceKind::Activemq(mut options) => {
            options.alone = plan.instances == Instances::One;
            let source = ActiveMqSource::new(name.clone(), options);
            Ok(router.add_source(name, source, plan).await?)
        }
    }
}
