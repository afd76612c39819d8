//! What the suite is run on: a broker with queues, and what can be done to it.

use std::future::Future;
use std::pin::Pin;
use std::process::Command;
use std::sync::Arc;

use bytes::Bytes;

use super::watched::{Watch, Watched};
use crate::plan::SourcePlan;
use crate::router::StartError;
use crate::source::{Features, Source};
use crate::store::Store;
use crate::{Router, conformance::End};

/// A broker with an adapter of yours.
pub trait Subject: Send + Sync + 'static {
    /// One queue of it.
    type Queue: Queue;

    /// What its sources declare. The suite goes by it: what is declared must hold, and cases that
    /// need more are left out and say so.
    fn features(&self) -> Features;

    /// Whether neither broker nor adapter does any input or output: then the suite pauses the
    /// clock, and nothing takes time.
    fn in_memory(&self) -> bool {
        false
    }

    /// Why nothing can be tried: the broker is not there. Every case is left out then, and says so.
    fn absent(&self) -> Option<String> {
        None
    }

    /// Whether [`Queue::fault`] can do this. What cannot be done is left out, and said.
    fn can(&self, fault: Fault) -> bool {
        let _ = fault;
        false
    }

    /// Whether the broker takes such a message; some take no empty body, or no key of these bytes.
    fn takes(&self, message: &Published) -> bool {
        let _ = message;
        true
    }

    /// A new, empty queue.
    fn queue(&self) -> impl Future<Output = Result<Self::Queue, String>> + Send;
}

/// One queue of a broker, with its two ends.
pub trait Queue: Send + Sync + 'static {
    /// The adapter.
    type Source: Source;

    /// A source of this name that reads the queue, made as a program would make it. Where the
    /// broker is not there at the moment, its `receive` says so: a source comes back by itself.
    ///
    /// Asked again while an earlier source is open, it is another instance: it has a connection of
    /// its own, or is refused where [`Features::several`] says so.
    fn connect(
        &self,
        name: Arc<str>,
        plan: &SourcePlan,
    ) -> impl Future<Output = Result<Self::Source, String>> + Send;

    /// Puts messages into the queue, in this order; answers when the broker has them.
    fn publish(&self, messages: Vec<Published>) -> impl Future<Output = Result<(), String>> + Send;

    /// How many messages the queue holds, those that are out included; `None` when the broker does
    /// not say.
    fn left(&self) -> impl Future<Output = Result<Option<u64>, String>> + Send {
        std::future::ready(Ok(None))
    }

    /// Does this to the broker or to the connections of the queue's sources, and answers when it is
    /// done.
    fn fault(&self, fault: Fault) -> impl Future<Output = Result<(), String>> + Send {
        std::future::ready(Err(format!("nobody said how to do this: {fault:?}")))
    }

    /// Answers when the broker would not forget the queue if it were killed. Some answer that a queue
    /// is made before they have written it down.
    fn kept(&self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }

    /// Where dead letters and parked keys are kept; `None` = in memory.
    fn store(&self) -> Option<Arc<dyn Store>> {
        None
    }

    /// A command that runs a router on this queue in a process of its own, by
    /// [`run_child`](super::run_child); `None` = the case is left out. What this process must not
    /// have open meanwhile is closed by this.
    fn child(&self) -> impl Future<Output = Option<Command>> + Send {
        std::future::ready(None)
    }
}

/// A message to be put into a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    /// The broker's own key.
    pub key: Option<Bytes>,
    /// The body.
    pub body: Bytes,
    /// The broker's own headers.
    pub headers: Vec<(String, String)>,
}

/// What can be done to a broker, or to the connections to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// All connections of the queue's sources end. They may connect again at once.
    Cut,
    /// The queue's sources do not reach the broker …
    Away,
    /// … until now.
    Back,
    /// The broker is stopped as its operator would …
    Stop,
    /// … or its process killed …
    Kill,
    /// … and it is started, and takes connections.
    Start,
    /// The next ack does not take effect. Where acks are confirmed it gets no good answer, elsewhere
    /// nobody notices.
    LoseAck,
    /// Everything that is out is handed out once more, the newest first.
    Redeliver,
    /// All loans end, as if nobody had renewed them.
    EndLeases,
    /// The next few renewals fail, or get no answer, for longer than a lease.
    LoseRenewals,
    /// The password is wrong for who connects from now on …
    WrongPassword,
    /// … and right again.
    RightPassword,
    /// The queue does not exist any more …
    DeleteQueue,
    /// … and is made anew, empty.
    CreateQueue,
}

pub(super) type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// [`Subject`] behind a pointer: the cases are compiled once, for all of them.
pub(super) trait AnySubject: Send + Sync {
    fn in_memory(&self) -> bool;
    fn can(&self, fault: Fault) -> bool;
    fn takes(&self, message: &Published) -> bool;
    fn queue(&self) -> Boxed<'_, Result<Arc<dyn AnyQueue>, String>>;
}

/// [`Queue`] behind a pointer.
pub(super) trait AnyQueue: Send + Sync {
    /// Connects and hands the source to the router, watched.
    fn attach<'a>(
        &'a self,
        router: &'a Router,
        name: Arc<str>,
        plan: SourcePlan,
        watch: Arc<Watch>,
    ) -> Boxed<'a, Result<(), Attach>>;
    fn publish(&self, messages: Vec<Published>) -> Boxed<'_, Result<(), String>>;
    fn left(&self) -> Boxed<'_, Result<Option<u64>, String>>;
    fn fault(&self, fault: Fault) -> Boxed<'_, Result<(), String>>;
    fn kept(&self) -> Boxed<'_, ()>;
    fn store(&self) -> Option<Arc<dyn Store>>;
    fn child(&self) -> Boxed<'_, Option<Command>>;
}

/// Why a source did not come to work.
#[derive(Debug)]
pub(super) enum Attach {
    /// The adapter said no.
    Refused(String),
    /// The router said no.
    Start(StartError),
}

impl From<Attach> for End {
    fn from(attach: Attach) -> Self {
        Self::Failed(match attach {
            Attach::Refused(text) => format!("the source cannot be made: {text}"),
            Attach::Start(error) => format!("the router does not take the source: {error}"),
        })
    }
}

impl<S: Subject> AnySubject for S {
    fn in_memory(&self) -> bool {
        Subject::in_memory(self)
    }

    fn can(&self, fault: Fault) -> bool {
        Subject::can(self, fault)
    }

    fn takes(&self, message: &Published) -> bool {
        Subject::takes(self, message)
    }

    fn queue(&self) -> Boxed<'_, Result<Arc<dyn AnyQueue>, String>> {
        Box::pin(async move {
            let queue: Arc<dyn AnyQueue> = Arc::new(Subject::queue(self).await?);
            Ok(queue)
        })
    }
}

impl<Q: Queue> AnyQueue for Q {
    fn attach<'a>(
        &'a self,
        router: &'a Router,
        name: Arc<str>,
        plan: SourcePlan,
        watch: Arc<Watch>,
    ) -> Boxed<'a, Result<(), Attach>> {
        Box::pin(async move {
            let source = self.connect(name.clone(), &plan).await;
            let source = Watched::new(source.map_err(Attach::Refused)?, watch);
            let added = router.add_source(name, source, plan).await;
            added.map_err(Attach::Start)
        })
    }

    fn publish(&self, messages: Vec<Published>) -> Boxed<'_, Result<(), String>> {
        Box::pin(Queue::publish(self, messages))
    }

    fn left(&self) -> Boxed<'_, Result<Option<u64>, String>> {
        Box::pin(Queue::left(self))
    }

    fn kept(&self) -> Boxed<'_, ()> {
        Box::pin(Queue::kept(self))
    }

    fn fault(&self, fault: Fault) -> Boxed<'_, Result<(), String>> {
        Box::pin(Queue::fault(self, fault))
    }

    fn store(&self) -> Option<Arc<dyn Store>> {
        Queue::store(self)
    }

    fn child(&self) -> Boxed<'_, Option<Command>> {
        Box::pin(Queue::child(self))
    }
}
