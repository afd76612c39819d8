//! The conformance suite on every source; those of brokers that are not there are left out.

#[cfg(feature = "activemq")]
pub(crate) mod activemq;
mod bad;
#[cfg(feature = "embedded")]
mod embedded;
#[cfg(feature = "rabbitmq")]
mod rabbitmq;
#[cfg(feature = "sqs")]
mod sqs;

use std::path::{Path, PathBuf};
use std::process::Command;

use keylane_router::conformance::{Queue, run_child};

/// Tells this program that it is a router on the queue in this folder or file.
const QUEUE: &str = "KEYLANE_TEST_ROUTER_ON";

/// Whether the project's own command started this broker: another is nobody's here to stop.
#[cfg(any(feature = "activemq", feature = "rabbitmq", feature = "sqs"))]
fn is_ours(broker: &str) -> bool {
    let ours = format!("KEYLANE_TEST_{}_OURS", broker.to_uppercase());
    std::env::var_os(ours).is_some() && std::env::var_os("KEYLANE_XTASK").is_some()
}

/// Stops, kills or starts a broker of ours; answers when it is done.
#[cfg(any(feature = "activemq", feature = "rabbitmq", feature = "sqs"))]
async fn operate(verb: &'static str, broker: &'static str) -> Result<(), String> {
    let run = move || {
        let xtask = std::env::var_os("KEYLANE_XTASK").ok_or("KEYLANE_XTASK is not set")?;
        let ran = Command::new(xtask).args(["brokers", verb, broker]).output();
        let ran = ran.map_err(|error| error.to_string())?;
        match ran.status.success() {
            true => Ok(()),
            false => Err(String::from_utf8_lossy(&ran.stderr).into_owned()),
        }
    };
    let ran = tokio::task::spawn_blocking(run).await;
    ran.map_err(|error| error.to_string())?
}

/// This program, as a router on a queue and nothing else.
fn as_a_router(test: &str, queue: &Path) -> Option<Command> {
    let mut command = Command::new(std::env::current_exe().ok()?);
    command.args(["--exact", &format!("conformance::{test}"), "--nocapture"]);
    command.env(QUEUE, queue);
    Some(command)
}

/// Runs the router if this process was started to be one.
fn be_a_router<Q: Queue>(open: impl FnOnce(PathBuf) -> Q) {
    let Some(queue) = std::env::var_os(QUEUE) else {
        return;
    };
    let runtime = tokio::runtime::Runtime::new().expect("a runtime can be made");
    runtime.block_on(run_child(open(queue.into())));
}

#[test]
fn router_on_a_bad_source() {
    be_a_router(|journal| bad::Bad::new().open(&journal));
}

#[test]
fn router_on_a_locking_source() {
    be_a_router(|journal| bad::Bad::locking().open(&journal));
}

#[test]
fn router_on_a_lending_source() {
    be_a_router(|journal| bad::Bad::lending().open(&journal));
}

#[cfg(feature = "embedded")]
#[test]
fn router_on_the_embedded_queue() {
    be_a_router(|folder| embedded::EmbeddedQueue::open(&folder));
}

#[cfg(feature = "activemq")]
#[test]
fn router_on_activemq() {
    be_a_router(|told| activemq::ActiveMqQueue::of_child(&told));
}

#[cfg(feature = "rabbitmq")]
#[test]
fn router_on_rabbitmq() {
    be_a_router(|queue| rabbitmq::Rabbit::EXCLUSIVE.open(&queue));
}

#[cfg(feature = "rabbitmq")]
#[test]
fn router_on_a_quorum_queue_of_rabbitmq() {
    be_a_router(|queue| rabbitmq::Rabbit::QUORUM.open(&queue));
}

#[cfg(feature = "rabbitmq")]
#[test]
fn router_on_rabbitmq_as_one_of_many() {
    be_a_router(|queue| rabbitmq::Rabbit::PLAIN.open(&queue));
}

#[cfg(feature = "sqs")]
#[test]
fn router_on_sqs_fifo() {
    be_a_router(|name| sqs::SqsQueue::of_child(&name, sqs::Kind::Fifo));
}

#[cfg(feature = "sqs")]
#[test]
fn router_on_sqs_standard() {
    be_a_router(|name| sqs::SqsQueue::of_child(&name, sqs::Kind::Standard));
}

#[cfg(feature = "sqs")]
#[test]
fn router_on_sqs_standard_by_group() {
    be_a_router(|name| sqs::SqsQueue::of_child(&name, sqs::Kind::ByGroup));
}

/// The example of the docs.
#[path = "../../examples/own_source.rs"]
#[expect(dead_code, reason = "its main is for those who run it")]
mod own_source;

/// What strangers are told to begin with.
mod on_own {
    keylane_router::conformance_tests!(super::own_source::Shelves);
}

/// A source that promises next to nothing: what holds here is the router's own doing.
mod on_bad {
    keylane_router::conformance_tests!(super::bad::Bad::new());
}

/// The same broker with a lock on keys, leases and a return: what a good queue service promises.
mod on_locking {
    keylane_router::conformance_tests!(super::bad::Bad::locking());
}

/// The same broker with leases and no return: keys are spilled while loans end.
mod on_lending {
    keylane_router::conformance_tests!(super::bad::Bad::lending());
}

#[cfg(feature = "embedded")]
mod on_embedded {
    keylane_router::conformance_tests!(super::embedded::Embedded);
}

#[cfg(feature = "activemq")]
mod on_activemq {
    use super::activemq::{ActiveMq, Server};
    keylane_router::conformance_tests!(ActiveMq(Server::Classic));
}

#[cfg(feature = "activemq")]
mod on_artemis {
    use super::activemq::{ActiveMq, Server};
    keylane_router::conformance_tests!(ActiveMq(Server::Artemis));
}

/// A classic queue with an exclusive consumer.
#[cfg(feature = "rabbitmq")]
mod on_rabbitmq {
    keylane_router::conformance_tests!(super::rabbitmq::Rabbit::EXCLUSIVE);
}

/// A quorum queue with a single active consumer.
#[cfg(feature = "rabbitmq")]
mod on_rabbitmq_quorum {
    keylane_router::conformance_tests!(super::rabbitmq::Rabbit::QUORUM);
}

/// The same without a delivery limit: what is about order, and about connections made anew.
#[cfg(feature = "rabbitmq")]
mod on_rabbitmq_quorum_without_limit {
    use keylane_router::conformance::test;

    use super::rabbitmq::Rabbit;

    #[test]
    fn order_with_failing_heads() {
        test(Rabbit::QUORUM_WITHOUT_LIMIT, "order_with_failing_heads");
    }

    #[test]
    fn lease_lost() {
        test(Rabbit::QUORUM_WITHOUT_LIMIT, "lease_lost");
    }

    #[test]
    fn cut_while_holding() {
        test(Rabbit::QUORUM_WITHOUT_LIMIT, "cut_while_holding");
    }

    #[test]
    fn cut_while_settling() {
        test(Rabbit::QUORUM_WITHOUT_LIMIT, "cut_while_settling");
    }

    #[test]
    fn router_drained() {
        test(Rabbit::QUORUM_WITHOUT_LIMIT, "router_drained");
    }

    #[test]
    fn instance_leaves() {
        test(Rabbit::QUORUM_WITHOUT_LIMIT, "instance_leaves");
    }
}

/// A consumer like any other, which is not ordered across reconnect.
#[cfg(feature = "rabbitmq")]
mod on_rabbitmq_plain {
    keylane_router::conformance_tests!(super::rabbitmq::Rabbit::PLAIN);
}

#[cfg(feature = "sqs")]
mod on_sqs_fifo {
    keylane_router::conformance_tests!(super::sqs::OnSqs(super::sqs::Kind::Fifo));
}

/// No order is promised here; everything else is.
#[cfg(feature = "sqs")]
mod on_sqs_standard {
    keylane_router::conformance_tests!(super::sqs::OnSqs(super::sqs::Kind::Standard));
}

#[cfg(feature = "sqs")]
mod on_sqs_standard_by_group {
    keylane_router::conformance_tests!(super::sqs::OnSqs(super::sqs::Kind::ByGroup));
}
