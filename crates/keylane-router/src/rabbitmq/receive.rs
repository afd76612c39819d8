//! The receiving side: connects, takes deliveries as they come, connects again when that is lost.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{SelectAll, Stream};
use futures_util::{FutureExt, StreamExt};
use lapin::message::Delivery;
use lapin::options::{BasicConsumeOptions, BasicQosOptions};
use lapin::tcp::OwnedTLSConfig;
use lapin::types::FieldTable;
use lapin::uri::AMQPUri;
use lapin::{Channel, Connection, ConnectionProperties, Consumer};
use tokio::task::JoinSet;

use super::link::{GAVE_BACK, Link};
use super::message::{Names, Which, headers, key};
use super::options::{Options, QueueType, Reader};
use super::queue::{self, Refused, error_text};
use super::settle::{RabbitmqSettler, Receipt};
use super::sizes::How;
use crate::jitter;
use crate::machine::{Machine, RealMachine};
use crate::message::Identity;
use crate::plan::{Instances, SourcePlan};
use crate::source::{BatchId, Features, Received, Room, Source, SourceError};

/// As long as this the broker may take to let us in.
const CONNECT: Duration = Duration::from_secs(15);
/// How often an instance that waits for the end of another looks.
const STANDBY: Duration = Duration::from_millis(500);

/// What comes of a channel: a delivery, or why there will be no more.
type Item = (usize, Result<Delivery, String>);
type Deliveries = SelectAll<Pin<Box<dyn Stream<Item = Item> + Send + Sync>>>;

/// A queue of RabbitMQ, or its shards.
pub struct RabbitmqSource {
    name: Arc<str>,
    options: Arc<Options>,
    window: usize,
    instances: Instances,
    names: Names,
    reading: Option<Reading>,
    /// How many connections there were.
    links: u64,
    batches: u64,
    /// It was said that another instance has the queue.
    standby: bool,
    /// The queue was seen to be as the options say, and was there ever since.
    verified: bool,
    /// The last receive failed.
    failed: bool,
    /// Each ends with its link.
    watches: JoinSet<()>,
}

/// An open connection with what it delivers.
struct Reading {
    link: Arc<Link>,
    deliveries: Deliveries,
    /// Taken off the channels and not handed out: still the broker's, as long as nobody acts on it.
    waiting: VecDeque<(usize, Delivery)>,
}

impl RabbitmqSource {
    /// A source of this name. Nothing is connected before the first receive.
    ///
    /// The plan's window is the prefetch: the broker hands out no more than that.
    ///
    /// # Errors
    /// All that is wrong with the options.
    pub fn new(
        name: impl Into<Arc<str>>,
        options: Options,
        plan: &SourcePlan,
    ) -> Result<Self, Vec<String>> {
        let mut wrong = options.check();
        let shards = options.shards.map_or(1, std::num::NonZero::get);
        let window = plan.window.get();
        if !(shards..=usize::from(u16::MAX)).contains(&window) {
            wrong.push(format!(
                "the window (prefetch) is {window}; it must be at least 1 for each of {shards} queues, and at most 65535"
            ));
        }
        let name = name.into();
        announce(&name, &options);
        match wrong.is_empty() {
            false => Err(wrong),
            true => Ok(Self {
                name,
                names: Names::new(options.identity),
                options: Arc::new(options),
                window,
                instances: plan.instances,
                reading: None,
                links: 0,
                batches: 0,
                standby: false,
                verified: false,
                failed: false,
                watches: JoinSet::new(),
            }),
        }
    }

    fn error(&self, text: impl Into<String>) -> SourceError {
        SourceError {
            source_name: self.name.clone(),
            text: text.into(),
            permanent: false,
        }
    }

    /// An open connection, made if need be. Where another instance has the queue, this waits for its
    /// end.
    async fn connected(&mut self) -> Result<&mut Reading, SourceError> {
        if self.reading.is_none() {
            let reading = loop {
                match tokio::time::timeout(CONNECT, self.connect()).await {
                    Ok(Ok(reading)) => break reading,
                    Ok(Err(Refused::InUse(_))) if self.instances == Instances::Many => {
                        self.wait_for_the_other().await;
                    }
                    Ok(Err(refused)) => {
                        self.verified = false;
                        return Err(self.error(refused.to_string()));
                    }
                    Err(_) => {
                        let address = self.options.address();
                        let text = format!("{address} did not let us in within {CONNECT:?}");
                        return Err(self.error(text));
                    }
                }
            };
            self.standby = false;
            self.reading = Some(reading);
        }
        Ok(self.reading.as_mut().expect("it is there now"))
    }

    async fn wait_for_the_other(&mut self) {
        if !std::mem::replace(&mut self.standby, true) {
            let (source, queue) = (&*self.name, &*self.options.queue);
            tracing::info!(
                source,
                queue,
                "another instance has the queue: waiting for its end"
            );
        }
        tokio::time::sleep(jitter::between(RealMachine.random(), STANDBY, 0.5, 1.0)).await;
    }

    async fn connect(&mut self) -> Result<Reading, Refused> {
        let connection = self.open().await?;
        queue::prepare(&connection, &self.options, self.instances).await?;
        if !self.verified {
            queue::verify(&self.name, &connection, &self.options).await?;
            self.verified = true;
        }
        let queues = self.options.queues();
        let mut channels = Vec::new();
        let mut deliveries = SelectAll::new();
        for (shard, queue) in queues.iter().enumerate() {
            // The first ones get what does not divide.
            let prefetch = (self.window + queues.len() - 1 - shard) / queues.len();
            let prefetch = u16::try_from(prefetch).expect("it was checked");
            let (channel, consumer) = self.consume(&connection, queue, prefetch).await?;
            channels.push((channel, prefetch));
            deliveries.push(of_shard(shard, consumer));
        }
        self.links += 1;
        let link = Link::new(connection, channels, self.links, self.options.heartbeat);
        while self.watches.try_join_next().is_some() {}
        self.watches.spawn(link.clone().watch());
        Ok(Reading {
            link,
            deliveries,
            waiting: VecDeque::new(),
        })
    }

    async fn open(&self) -> Result<Connection, Refused> {
        let mut uri: AMQPUri = self.options.url.parse().expect("it was checked");
        let heartbeat = u16::try_from(self.options.heartbeat.as_secs()).expect("it was checked");
        uri.query.heartbeat = Some(heartbeat);
        let mut tls = OwnedTLSConfig::default();
        if let Some(file) = &self.options.ca_file {
            let pem = std::fs::read_to_string(file);
            let pem = pem.map_err(|error| Refused::Other(format!("ca_file {file}: {error}")))?;
            tls.cert_chain = Some(pem);
        }
        let title = match self.options.event_type.as_str() {
            "" => format!("keylane {}", self.name),
            event_type => format!("keylane {} ({event_type})", self.name),
        };
        // Not with lapin's own recovery: it goes on with a queue that has handed out other messages
        // meanwhile.
        let properties = ConnectionProperties::default().with_connection_name(title.into());
        let runtime = lapin::runtime::default_runtime().expect("it is tokio's");
        let connected = Connection::connect_uri_with_config(uri, properties, tls, runtime).await;
        connected.map_err(|error| {
            let address = self.options.address();
            Refused::Other(format!("{address}: {}", error_text(&error)))
        })
    }

    async fn consume(
        &self,
        connection: &Connection,
        queue: &str,
        prefetch: u16,
    ) -> Result<(Channel, Consumer), Refused> {
        let refused = |error| Refused::by(queue, &error);
        let channel = connection.create_channel().await.map_err(refused)?;
        let qos = channel.basic_qos(prefetch, BasicQosOptions::default());
        qos.await.map_err(refused)?;
        let options = BasicConsumeOptions {
            exclusive: self.options.reader == Reader::Exclusive,
            ..BasicConsumeOptions::default()
        };
        let tag = self.options.consumer_tag.as_str().into();
        let consumer = channel.basic_consume(queue.into(), tag, options, FieldTable::default());
        let consumer = consumer.await.map_err(refused)?;
        Ok((channel, consumer))
    }

    /// Waits until something is here that the broker knows to be ours. Whatever is dropped in the
    /// middle of it, what came waits.
    async fn wait(&mut self) -> Result<(), SourceError> {
        let fresh = self.options.heartbeat / 4;
        loop {
            let reading = self.connected().await?;
            let Some(why) = reading.next_is_ours(fresh).await else {
                return Ok(());
            };
            self.reading = None;
            if why != GAVE_BACK {
                return Err(self.error(format!("the connection was lost: {why}")));
            }
        }
    }

    /// What is here, no more than there is room for.
    fn take(&mut self, room: Room) -> Vec<Received<Receipt>> {
        let Some(reading) = &mut self.reading else {
            return Vec::new();
        };
        self.batches += 1;
        let mut taken = Vec::new();
        let mut bytes = 0;
        while taken.len() < room.messages && bytes < room.bytes {
            let Some((shard, delivery)) = reading.next() else {
                break;
            };
            bytes += delivery.data.len();
            let which = Which {
                link: reading.link.number,
                shard,
                tag: delivery.delivery_tag,
            };
            let (key, malformed) = match key(&self.options, &delivery) {
                Ok(key) => (key, None),
                Err(why) => (None, Some(why)),
            };
            taken.push(Received {
                identity: Identity {
                    source: self.name.clone(),
                    id: self.names.name(&self.name, &delivery, which),
                },
                key,
                tenant: None,
                position: None,
                batch: BatchId(self.batches),
                headers: headers(&delivery, malformed),
                receipt: Receipt::new(reading.link.clone(), shard, delivery.delivery_tag),
                body: Bytes::from(delivery.data),
            });
        }
        taken
    }
}

/// Says how large it is, and why.
fn announce(source: &str, options: &Options) {
    let (Some(workers), Some(prefetch)) = (options.workers, options.prefetch) else {
        return;
    };
    tracing::info!(source, %workers, %prefetch, "sizes of the consumer");
    for (option, size) in [("workers", workers), ("prefetch", prefetch)] {
        if size.how == How::Capped {
            let most = size.number;
            tracing::warn!(source, "{option} is more than {most}, and {most} is taken");
        }
    }
}

impl Reading {
    /// Waits until something is here, and it is this fresh that the broker knows of us; answers why
    /// if the link ended instead.
    async fn next_is_ours(&mut self, fresh: Duration) -> Option<String> {
        loop {
            if let Some(why) = self.link.ended() {
                return Some(why.to_owned());
            }
            if !self.waiting.is_empty() {
                // A delivery is no proof: it may have been here for long.
                if self.link.silence() < fresh {
                    return None;
                }
                // If that fails the link has ended.
                let _ = self.link.ask(0).await;
                continue;
            }
            tokio::select! {
                biased;
                () = self.link.bond.ended() => {}
                item = self.deliveries.next() => match item {
                    Some((shard, Ok(delivery))) => self.waiting.push_back((shard, delivery)),
                    Some((_, Err(why))) => self.link.end(why),
                    None => self.link.end("its channels are closed"),
                },
            }
        }
    }

    /// The next that is here already. What ends a channel is found when it is waited for.
    fn next(&mut self) -> Option<(usize, Delivery)> {
        if let Some(waiting) = self.waiting.pop_front() {
            return Some(waiting);
        }
        match self.deliveries.next().now_or_never()?? {
            (shard, Ok(delivery)) => Some((shard, delivery)),
            (_, Err(why)) => {
                self.link.end(why);
                None
            }
        }
    }
}

/// The deliveries of a channel, and at their end why there are no more.
fn of_shard(shard: usize, consumer: Consumer) -> Pin<Box<dyn Stream<Item = Item> + Send + Sync>> {
    let cancelled = || {
        Err("the broker ended the consumer: the queue was deleted, or its node is gone".to_owned())
    };
    let ended = futures_util::stream::once(std::future::ready(()));
    let deliveries = consumer.map(|delivery| delivery.map_err(|error| error_text(&error)));
    let deliveries = deliveries.chain(ended.map(move |()| cancelled()));
    Box::pin(deliveries.map(move |delivery| (shard, delivery)))
}

impl Source for RabbitmqSource {
    type Receipt = Receipt;
    type Settler = RabbitmqSettler;

    fn features(&self) -> Features {
        super::features(&self.options)
    }

    fn destination(&self) -> Option<Arc<str>> {
        Some(self.options.queue.as_str().into())
    }

    async fn receive(&mut self, room: Room) -> Result<Vec<Received<Receipt>>, SourceError> {
        if self.failed {
            self.connected().await?;
            self.failed = false;
            // Nothing yet, but all is well: that is to be known before the first message.
            return Ok(Vec::new());
        }
        let waited = self.wait().await;
        self.failed = waited.is_err();
        waited?;
        // No await from here on: what is taken is handed out.
        Ok(self.take(room))
    }

    fn settler(&self) -> RabbitmqSettler {
        RabbitmqSettler
    }

    async fn stop_taking(&mut self) {
        if let Some(reading) = &self.reading {
            reading.link.stop();
        }
    }

    async fn close(self) {
        if let Some(reading) = &self.reading {
            if self.options.queue_type == QueueType::Quorum && reading.link.ended().is_none() {
                tokio::time::sleep(QUORUM_TAKES_ACKS).await;
            }
            reading.link.close("the source was closed").await;
        }
    }
}

/// A quorum queue takes acks in the background, after the channel has answered for them: those that
/// it has not taken when the channel closes are lost, and their messages come again.
const QUORUM_TAKES_ACKS: Duration = Duration::from_secs(1);

impl Drop for RabbitmqSource {
    /// Without a close this is the loss of the connection, whoever still has receipts of it.
    fn drop(&mut self) {
        if let Some(reading) = &self.reading {
            reading.link.end("the source was dropped");
        }
    }
}

impl std::fmt::Debug for RabbitmqSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RabbitmqSource")
            .field("name", &self.name)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}
