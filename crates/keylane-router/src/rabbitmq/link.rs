//! One connection to the broker with the channels of one source, until it is lost.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use futures_util::{FutureExt, StreamExt};
use lapin::options::{BasicAckOptions, BasicNackOptions, BasicQosOptions};
use lapin::{Channel, Connection, Event};

use super::queue::error_text;
use crate::lease::{BootClock, LeaseClock};
use crate::source::Bond;

/// Why a link is over that was closed to give everything back.
pub(super) const GAVE_BACK: &str = "messages were given back";
/// As long as this a connection may take to end as it should.
const CLOSE: Duration = Duration::from_secs(5);
/// Why a link is over that the router wants nothing more of.
const GIVEN_UP: &str = "what came over it was given up";

/// A connection, and what of it is out. It is never mended: what was out on one that is lost is
/// lost, and the next one is a new link.
pub(super) struct Link {
    /// Dropped with the link, which closes it.
    connection: Connection,
    channels: Vec<Out>,
    /// Counts links, so that what came over one is told from what came over another.
    pub(super) number: u64,
    /// How long the broker may take for an answer.
    patience: Duration,
    /// When the broker surely knew last that we are here, in nanoseconds of the lease clock.
    heard: AtomicU64,
    /// Nothing more is received: what is given back waits for the end.
    stopping: AtomicBool,
    /// Why it is over; written once, before the bond is cut by us.
    why: OnceLock<String>,
    /// Cut when the link ends. Whoever cuts it ends the link.
    pub(super) bond: Bond,
}

/// A channel, with the deliveries that were handed to the router and are not settled.
struct Out {
    channel: Channel,
    prefetch: u16,
    tags: Mutex<BTreeSet<u64>>,
}

impl Out {
    fn tags(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        self.tags.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Link {
    pub(super) fn new(
        connection: Connection,
        channels: Vec<(Channel, u16)>,
        number: u64,
        heartbeat: Duration,
    ) -> Arc<Self> {
        let out = |(channel, prefetch)| Out {
            channel,
            prefetch,
            tags: Mutex::default(),
        };
        Arc::new(Self {
            connection,
            channels: channels.into_iter().map(out).collect(),
            number,
            patience: heartbeat / 2,
            heard: AtomicU64::new(now()),
            stopping: AtomicBool::new(false),
            why: OnceLock::new(),
            bond: Bond::new(),
        })
    }

    /// A delivery is handed to the router.
    pub(super) fn hand_out(&self, shard: usize, tag: u64) {
        self.channels[shard].tags().insert(tag);
    }

    /// Nobody will settle this any more. If it still is out, only the end of the link brings it back.
    pub(super) fn let_go(&self, shard: usize, tag: u64) {
        let is_out = self.channels[shard].tags().contains(&tag);
        if is_out && self.ended().is_none() && !self.is_stopping() {
            self.end("what was out could not be renewed in time");
        }
    }

    /// It is over, for the first reason that is given.
    pub(super) fn end(&self, why: impl Into<String>) {
        if self.why.set(why.into()).is_ok() {
            // Somebody may hold receipts of it for long, and the broker would keep what is out for
            // as long as there are heartbeats. The frame is on its way at the first poll.
            let _ = self.connection.close(200, "".into()).now_or_never();
        }
        self.bond.cut();
    }

    /// Why it is over, if it is.
    pub(super) fn ended(&self) -> Option<&str> {
        let given_up = || (!self.bond.holds()).then_some(GIVEN_UP);
        self.why.get().map(String::as_str).or_else(given_up)
    }

    /// Ends it as soon as the connection is lost, whoever is busy with what: the broker hands to
    /// others what was out. Also when the router gives up what came over it.
    pub(super) async fn watch(self: Arc<Self>) {
        let mut events = std::pin::pin!(self.connection.events_listener());
        loop {
            let event = tokio::select! {
                () = self.bond.ended() => return self.end(GIVEN_UP),
                event = events.next() => event,
            };
            match event {
                Some(Event::Error(error)) => return self.end(error_text(&error)),
                Some(_) if self.connection.status().connected() => {}
                Some(_) => return self.end("the connection is closed"),
                None => return,
            }
        }
    }

    pub(super) fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// For how long nothing proves that the broker knows of us.
    pub(super) fn silence(&self) -> Duration {
        Duration::from_nanos(now().saturating_sub(self.heard.load(Ordering::SeqCst)))
    }

    /// Asks the broker something, so that it has to answer: then it knows that we are here, and has
    /// done what it was told on this channel before. No answer is the end of the link.
    pub(super) async fn ask(&self, shard: usize) -> Result<(), String> {
        let Out {
            channel, prefetch, ..
        } = &self.channels[shard];
        let asked = now();
        // Says what it knows already, and changes nothing.
        let asking = channel.basic_qos(*prefetch, BasicQosOptions::default());
        let why = tokio::select! {
            biased;
            answer = tokio::time::timeout(self.patience, asking) => match answer {
                Ok(Ok(())) => {
                    self.heard.fetch_max(asked, Ordering::SeqCst);
                    return Ok(());
                }
                Ok(Err(error)) => error.to_string(),
                Err(_) => format!("the broker did not answer within {:?}", self.patience),
            },
            () = self.bond.ended() => self.ended().unwrap_or_default().to_owned(),
        };
        self.end(why.clone());
        Err(why)
    }

    /// Acks these deliveries of one channel, given in lane order. It is done once the broker has
    /// answered a later question.
    pub(super) fn ack(&self, shard: usize, acked: &[u64]) {
        let out = &self.channels[shard];
        let mut tags = out.tags();
        let done: BTreeSet<u64> = acked.iter().copied().collect();
        // Whatever is before the first that stays out is done: one command for all of it.
        let whole = tags.iter().take_while(|tag| done.contains(tag)).count();
        let up_to = tags.iter().take(whole).next_back().copied();
        tags.retain(|tag| !done.contains(tag));
        drop(tags);
        if let Some(tag) = up_to {
            send_ack(&out.channel, tag, true);
        }
        for tag in acked
            .iter()
            .filter(|tag| up_to.is_none_or(|up_to| **tag > up_to))
        {
            send_ack(&out.channel, *tag, false);
        }
    }

    /// Hands these to the queue's dead-letter exchange; done as with acks.
    pub(super) fn reject(&self, shard: usize, rejected: &[u64]) {
        let out = &self.channels[shard];
        for tag in rejected {
            out.tags().remove(tag);
            let options = BasicNackOptions {
                multiple: false,
                requeue: false,
            };
            let _ = out.channel.basic_nack(*tag, options).now_or_never();
        }
    }

    /// Ends it well: the broker takes back what is out, in the order in which it gave it.
    ///
    /// Not by nacks: while the consumer lives it would be handed at once what comes back, and once
    /// it is cancelled another consumer is handed what follows, before what comes back is there. A
    /// quorum queue without a delivery limit would even put it to its end.
    pub(super) async fn close(&self, why: &str) {
        let closing = async {
            for out in &self.channels {
                let _ = out.channel.close(200, "".into()).await;
            }
            let _ = self.connection.close(200, "".into()).await;
        };
        let _ = tokio::time::timeout(CLOSE, closing).await;
        self.end(why);
    }
}

/// Sends the frame; the channel keeps the order in which this is called.
fn send_ack(channel: &Channel, tag: u64, multiple: bool) {
    // The frame is on its way at the first poll. Whether it arrived is told by a later answer.
    let _ = channel
        .basic_ack(tag, BasicAckOptions { multiple })
        .now_or_never();
}

fn now() -> u64 {
    u64::try_from(BootClock.now().as_nanos()).unwrap_or(u64::MAX)
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Link({})", self.number)
    }
}
