//! Which queues are read: those of the config, and those made by publishing to them. How a broker's
//! source is made is in `brokers`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use keylane_router::embedded::Db;
use keylane_router::plan::{Envelope, Keyless, SourceKind, SourcePlan};
use keylane_router::store::StoreError;
use keylane_router::{Router, StartError};
use tokio::task::JoinSet;

use crate::brokers;
use crate::config::Config;
use crate::config::sources::embedded::{QUEUE_NAMES, is_queue_name};

/// The sources of a running router.
pub(crate) struct Sources {
    db: Db,
    router: Router,
    /// Of the embedded queues, by the queue. Read by every publish; written by whoever holds
    /// `changing`.
    read: RwLock<BTreeMap<Arc<str>, Reader>>,
    /// Of the brokers, by name.
    brokers: Mutex<BTreeMap<Arc<str>, SourcePlan>>,
    /// Changes, one after the other.
    changing: tokio::sync::Mutex<()>,
}

/// How a queue is read.
#[derive(Clone, Debug, PartialEq)]
struct Reader {
    source: Arc<str>,
    plan: SourcePlan,
}

/// Why a queue cannot be published to or read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SourceError {
    /// Nothing reads it, and queues are not made.
    #[error("there is no queue `{0}`; configure a source that reads it")]
    Unknown(String),
    /// It cannot be a queue.
    #[error("`{0}` cannot be a queue; {QUEUE_NAMES}")]
    Name(String),
    /// Its source would need a name that is taken.
    #[error("source `{0}` reads another queue; configure a source that reads queue `{0}`")]
    Taken(Arc<str>),
    /// The broker's queue must not be read as it is.
    #[error("{0}")]
    Broker(String),
    /// It could not be made.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The router does not take it.
    #[error(transparent)]
    Start(#[from] StartError),
}

impl Sources {
    /// Reads what the config says.
    pub(crate) async fn start(
        db: Db,
        router: Router,
        config: &Config,
    ) -> Result<Self, SourceError> {
        let sources = Self {
            db,
            router,
            read: RwLock::default(),
            brokers: Mutex::default(),
            changing: tokio::sync::Mutex::default(),
        };
        sources.change(config).await?;
        Ok(sources)
    }

    /// What the messages of this queue look like; those of a queue yet to be made as usual.
    pub(crate) fn envelope(&self, queue: &str) -> Envelope {
        let readers = self.readers();
        let envelope = readers.get(queue).map(|reader| &reader.plan.envelope);
        envelope.cloned().unwrap_or(Envelope::Keylane)
    }

    /// Sees to it that somebody reads this queue; it is made first if it may be.
    pub(crate) async fn ready(&self, queue: &str, create: bool) -> Result<(), SourceError> {
        if self.readers().contains_key(queue) {
            return Ok(());
        }
        if !is_queue_name(queue) {
            return Err(SourceError::Name(queue.into()));
        }
        if !create {
            return Err(SourceError::Unknown(queue.into()));
        }
        let _one_at_a_time = self.changing.lock().await;
        if self.readers().contains_key(queue) {
            return Ok(());
        }
        self.add(queue.into(), Reader::made(queue.into())).await?;
        tracing::info!(queue, "the queue was made by a publish");
        Ok(())
    }

    /// Reads what the config says and nothing else. A source that is no longer wanted, or wanted
    /// otherwise, has settled or returned everything before its successor takes anything.
    pub(crate) async fn change(&self, config: &Config) -> Result<(), SourceError> {
        let _one_at_a_time = self.changing.lock().await;
        let queues = self.wanted_queues(config);
        let brokers = wanted_brokers(config);
        let (read, connected) = (self.readers().clone(), self.connected().clone());
        let unread = read
            .iter()
            .filter(|(queue, reader)| queues.get(*queue) != Some(reader));
        let cut = connected
            .iter()
            .filter(|(name, plan)| brokers.get(*name) != Some(plan));
        self.remove(
            unread
                .map(|(_, reader)| &reader.source)
                .chain(cut.map(|(name, _)| name)),
        )
        .await;
        let mut result = Ok(());
        // One that cannot be read keeps no other from being read.
        for (queue, reader) in queues {
            if read.get(&queue) != Some(&reader) {
                result = result.and(self.add(queue, reader).await);
            }
        }
        for (name, plan) in brokers {
            if connected.get(&name) != Some(&plan) {
                result = result.and(self.connect(name, plan).await);
            }
        }
        self.warn_of_unread();
        self.router.check_stored_keys();
        result
    }

    fn wanted_queues(&self, config: &Config) -> BTreeMap<Arc<str>, Reader> {
        let configured = config.plan.sources.iter().filter_map(|(name, plan)| {
            let SourceKind::Embedded { queue } = &plan.kind else {
                return None;
            };
            let reader = Reader {
                source: name.clone(),
                plan: plan.clone(),
            };
            Some((queue.clone(), reader))
        });
        let mut wanted: BTreeMap<_, _> = configured.collect();
        if config.dev.create_queues {
            // What was published before a restart is read again.
            for queue in self.db.queues() {
                let name = queue.name;
                if !config.plan.sources.contains_key(&name) {
                    wanted
                        .entry(name.clone())
                        .or_insert_with(|| Reader::made(name));
                }
            }
        }
        wanted
    }

    async fn add(&self, queue: Arc<str>, reader: Reader) -> Result<(), SourceError> {
        let name = reader.source.clone();
        if self.readers().values().any(|other| other.source == name) {
            return Err(SourceError::Taken(name));
        }
        let keyless = reader.plan.keyless.unwrap_or(Keyless::Serial);
        let source = self.db.source(name.clone(), &queue, keyless).await?;
        self.router
            .add_source(name, source, reader.plan.clone())
            .await?;
        let mut read = self.read.write().unwrap_or_else(PoisonError::into_inner);
        read.insert(queue, reader);
        Ok(())
    }

    async fn connect(&self, name: Arc<str>, plan: SourcePlan) -> Result<(), SourceError> {
        if self.readers().values().any(|other| other.source == name) {
            return Err(SourceError::Taken(name));
        }
        brokers::connect(&self.router, name.clone(), plan.clone()).await?;
        self.connected().insert(name, plan);
        Ok(())
    }

    async fn remove<'a>(&self, gone: impl Iterator<Item = &'a Arc<str>>) {
        let mut removals = JoinSet::new();
        for name in gone {
            let (router, name) = (self.router.clone(), name.clone());
            removals.spawn(async move {
                router.remove_source(&name).await;
                name
            });
        }
        while let Some(removed) = removals.join_next().await {
            let Ok(name) = removed else { continue };
            self.connected().remove(&name);
            let mut read = self.read.write().unwrap_or_else(PoisonError::into_inner);
            read.retain(|_, reader| reader.source != name);
        }
    }

    fn warn_of_unread(&self) {
        let read = self.readers();
        for queue in self.db.queues() {
            if queue.depth > 0 && !read.contains_key(&queue.name) {
                let (name, depth) = (&*queue.name, queue.depth);
                tracing::warn!(queue = name, depth, "this queue has messages and no source");
            }
        }
    }

    fn connected(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, SourcePlan>> {
        self.brokers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn readers(&self) -> std::sync::RwLockReadGuard<'_, BTreeMap<Arc<str>, Reader>> {
        self.read.read().unwrap_or_else(PoisonError::into_inner)
    }
}

fn wanted_brokers(config: &Config) -> BTreeMap<Arc<str>, SourcePlan> {
    let sources = config.plan.sources.iter();
    let brokers = sources.filter(|(_, plan)| brokers::is_one(&plan.kind));
    brokers
        .map(|(name, plan)| (name.clone(), plan.clone()))
        .collect()
}

impl Reader {
    fn made(queue: Arc<str>) -> Self {
        Self {
            source: queue.clone(),
            plan: SourcePlan::embedded(queue),
        }
    }
}
