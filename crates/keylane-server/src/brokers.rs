//! Makes the sources of brokers: the one place that names them all.

use std::sync::Arc;

use keylane_router::activemq::ActiveMqSource;
use keylane_router::plan::{Instances, SourceKind, SourcePlan};
use keylane_router::{Router, StartError};

/// Whether a source of this kind reads a broker's queue, and not one of ours.
pub(crate) fn is_one(kind: &SourceKind) -> bool {
    !matches!(kind, SourceKind::Embedded { .. } | SourceKind::Custom)
}

/// Has the router read the queue. A broker that is away at the moment is no error: the source
/// connects when it can, and says so.
pub(crate) fn connect(router: &Router, name: Arc<str>, plan: SourcePlan) -> Result<(), StartError> {
    match plan.kind.clone() {
        SourceKind::Embedded { .. } | SourceKind::Custom => Ok(()),
        SourceKind::Activemq(mut options) => {
            options.alone = plan.instances == Instances::One;
            let source = ActiveMqSource::new(name.clone(), options);
            router.add_source(name, source, plan)
        }
    }
}
