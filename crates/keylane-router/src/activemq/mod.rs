//! Queues of ActiveMQ Classic and Artemis, over AMQP 1.0.
//!
//! Both brokers give a key (`group-id`, which JMS calls `JMSXGroupID`) to one consumer until that
//! goes, and then everything that it had not settled to another, in order. So a link is read by one
//! task (`link`) into a buffer that a receive takes from, with as much credit as the router has
//! room; what the router gives back waits in that buffer again; and when the link ends, for whatever
//! reason, all that was lent over it is lost at once and comes again over the next, in order.

mod checks;
mod connect;
mod link;
mod message;
mod options;
mod peer;
mod settle;

use std::sync::Arc;

use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;

use crate::message::Identity;
use crate::source::{
    BatchId, Declared, Features, Order, Received, Room, Several, Source, SourceError,
};
use checks::Checks;
use connect::{Connector, Failure};
use link::{Lent, Link, Naming, OwnIds};

pub use options::{Broker, Identified, Login, Options, QueueSettings};
pub use settle::{ActiveMqSettler, Receipt};

const fn features(broker: Broker) -> Features {
    Features {
        order: match broker {
            Broker::Classic => Order::UntilReconnect,
            Broker::Artemis => Order::Kept,
        },
        identity: true,
        ordered_return: true,
        lease: Some(std::time::Duration::from_secs(10)),
        settles: 256,
        keyless_serial: true,
        several: Several::KeyOwner,
        ..Features::none("activemq")
    }
}

/// What a queue of ActiveMQ Classic promises.
pub const DECLARED_CLASSIC: Declared = Declared {
    name: "activemq (Classic)",
    features: features(Broker::Classic),
    key_from: "`group-id` (`JMSXGroupID`)",
    why_not_more: "a connection that is lost while acks are under way (a crash, a cut) may leave a long queue out of order: Classic then hands out some of what was behind before what was out; a stop does not. The broker has no return with a delay, so a head that fails is retried in place; an ack has no answer, so what was acked is remembered for a while. Several instances with more than 1,024 keys at once need `messageGroupMapFactoryType=\"bucket\"`. [More](sources/activemq.md).",
};

/// What a queue of Artemis promises.
pub const DECLARED_ARTEMIS: Declared = Declared {
    name: "activemq (Artemis)",
    features: features(Broker::Artemis),
    key_from: "`group-id` (`JMSXGroupID`)",
    why_not_more: "no return with a delay and no answer to an ack, as on Classic; the id is the `message-id`, which JMS clients set and Artemis does not: a message without one may be called again after a cut. A redelivery delay or group rebalancing on the queue would break order, an attempt limit without a dead-letter queue would lose messages: such a queue is not read. [More](sources/activemq.md).",
};

/// One queue of a broker, read under a source's name.
pub struct ActiveMqSource {
    name: Arc<str>,
    features: Features,
    connector: Connector,
    own_ids: Arc<OwnIds>,
    checks: Checks,
    link: Option<Arc<Link>>,
    /// Those of the links; aborted with the source, if it is not closed.
    tasks: JoinSet<()>,
    /// Names each message: they come one by one (FC-8).
    batches: u64,
}

impl std::fmt::Debug for ActiveMqSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ActiveMqSource")
            .field("name", &self.name)
            .field("options", &self.connector.options)
            .finish_non_exhaustive()
    }
}

impl ActiveMqSource {
    /// A source of this name. It connects when it is read.
    pub fn new(name: impl Into<Arc<str>>, options: Options) -> Self {
        let name = name.into();
        let config = || crate::dispatch::tls::config(&options.roots);
        let tls = options.tls.then(|| TlsConnector::from(Arc::new(config())));
        Self {
            features: Features {
                lease: Some(options.lease),
                identity: options.identity == Identified::MessageId,
                ..features(options.broker)
            },
            own_ids: Arc::new(OwnIds::new(options.identity)),
            connector: Connector {
                container: container(&options),
                options: Arc::new(options),
                tls,
            },
            name,
            checks: Checks::default(),
            link: None,
            tasks: JoinSet::new(),
            batches: 0,
        }
    }

    /// Reads the queue over a new link.
    async fn connect(&mut self) -> Result<(), Failure> {
        // What ended is not waited for: the broker refuses us until it has ended, too.
        while self.tasks.try_join_next().is_some() {}
        let mut connected = self.connector.connect().await?;
        let options = &self.connector.options;
        self.checks
            .check(&self.name, options, &mut connected)
            .await?;
        let naming = Naming::new(self.name.clone(), self.own_ids.clone());
        self.link = Some(Link::start(connected, naming, &mut self.tasks));
        Ok(())
    }

    fn received(&mut self, lent: Arc<Lent>) -> Received<Receipt> {
        self.batches += 1;
        Received {
            identity: Identity {
                source: self.name.clone(),
                id: lent.id.clone(),
            },
            key: lent.key.clone(),
            tenant: None,
            position: None,
            batch: BatchId(self.batches),
            body: lent.body.clone(),
            headers: lent.headers.clone(),
            receipt: Receipt(lent),
        }
    }

    fn error(&self, failure: Failure) -> SourceError {
        SourceError {
            source_name: self.name.clone(),
            text: failure.text,
            permanent: failure.permanent,
        }
    }
}

/// What the broker knows us by. The same over all connections, so that there is one at a time: also
/// over those of other processes, where no other is to read the queue. Classic hands out what is
/// behind before what a dead consumer held, if another consumer was there when it died.
fn container(options: &Options) -> Arc<str> {
    let queue = &options.queue;
    match options.alone {
        true => format!("keylane/{queue}").into(),
        false => format!("keylane/{queue}/{}", uuid::Uuid::now_v7().simple()).into(),
    }
}

impl Source for ActiveMqSource {
    type Receipt = Receipt;
    type Settler = ActiveMqSettler;

    fn features(&self) -> Features {
        self.features.clone()
    }

    fn destination(&self) -> Option<Arc<str>> {
        Some(self.connector.options.queue.as_str().into())
    }

    async fn receive(&mut self, room: Room) -> Result<Vec<Received<Receipt>>, SourceError> {
        let Some(link) = self.link.clone() else {
            let connected = self.connect().await;
            // Nothing yet, but all is well: that is to be known before the first message.
            return connected
                .map(|()| Vec::new())
                .map_err(|failure| self.error(failure));
        };
        match link.take(room).await {
            Ok(taken) => Ok(taken.into_iter().map(|lent| self.received(lent)).collect()),
            Err(failure) => {
                self.link = None;
                Err(self.error(failure))
            }
        }
    }

    fn settler(&self) -> ActiveMqSettler {
        ActiveMqSettler
    }

    async fn close(mut self) {
        if let Some(link) = self.link.take() {
            link.close();
        }
        while self.tasks.join_next().await.is_some() {}
    }
}
