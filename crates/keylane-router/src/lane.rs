//! Which lane a message belongs to.

use std::fmt;
use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::{Arc, LazyLock};

use foldhash::quality::RandomState;

use crate::message::{BrokerId, Key};
use crate::store::LaneName;

/// Stands for "whatever the source" in lanes that sources share.
const ANY_SOURCE: &str = "*";

/// Lanes' names are hashed once, when they are made: each message's way asks for its lane many times.
static HASH: LazyLock<RandomState> = LazyLock::new(RandomState::default);

/// A lane of a pool. One pointer, cheap to clone and to hash.
#[derive(Clone)]
pub(crate) struct LaneId(Arc<Named>);

#[derive(PartialEq, Eq)]
struct Named {
    hash: u64,
    lane: Lane,
}

#[derive(Debug, PartialEq, Eq, Hash)]
enum Lane {
    /// The lane of one key.
    Key { source: Arc<str>, key: Key },
    /// The one lane of all keyless messages.
    Keyless { source: Arc<str> },
    /// A lane of its own: a keyless message among keyless messages that run side by side.
    Alone { source: Arc<str>, id: BrokerId },
}

impl PartialEq for LaneId {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0 == other.0
    }
}

impl Eq for LaneId {}

impl Hash for LaneId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.0.hash);
    }
}

impl fmt::Debug for LaneId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.lane.fmt(f)
    }
}

impl LaneId {
    fn new(lane: Lane) -> Self {
        let hash = HASH.hash_one(&lane);
        Self(Arc::new(Named { hash, lane }))
    }

    /// The lane of one key.
    pub(crate) fn key_of(source: Arc<str>, key: Key) -> Self {
        Self::new(Lane::Key { source, key })
    }

    /// The one lane of all keyless messages.
    pub(crate) fn keyless(source: Arc<str>) -> Self {
        Self::new(Lane::Keyless { source })
    }

    /// A lane of its own: a keyless message among keyless messages that run side by side.
    pub(crate) fn alone(source: Arc<str>, id: BrokerId) -> Self {
        Self::new(Lane::Alone { source, id })
    }

    /// Whether it is one message's own.
    pub(crate) fn is_alone(&self) -> bool {
        matches!(self.0.lane, Lane::Alone { .. })
    }

    pub(crate) fn source(&self) -> &Arc<str> {
        match &self.0.lane {
            Lane::Key { source, .. } | Lane::Keyless { source } | Lane::Alone { source, .. } => {
                source
            }
        }
    }

    /// Whether lanes of this name are shared by sources.
    pub(crate) fn is_shared(name: &LaneName) -> bool {
        &*name.source == ANY_SOURCE
    }

    /// Whose messages it has, for people.
    pub(crate) fn in_words(&self) -> String {
        match self.key() {
            Some(key) => format!("key `{key}`"),
            None => "keyless messages".to_owned(),
        }
    }

    pub(crate) fn key(&self) -> Option<&Key> {
        match &self.0.lane {
            Lane::Key { key, .. } => Some(key),
            Lane::Keyless { .. } | Lane::Alone { .. } => None,
        }
    }

    /// The lane as stores call it.
    pub(crate) fn name(&self, pool: &Arc<str>) -> LaneName {
        LaneName {
            source: self.source().clone(),
            pool: pool.clone(),
            key: self.key().cloned(),
            alone: match &self.0.lane {
                Lane::Alone { id, .. } => Some(id.clone()),
                _ => None,
            },
        }
    }

    /// The lane a store's name means.
    pub(crate) fn of(name: &LaneName) -> Self {
        let source = name.source.clone();
        match (&name.key, &name.alone) {
            (Some(key), _) => Self::key_of(source, key.clone()),
            (None, Some(id)) => Self::alone(source, id.clone()),
            (None, None) => Self::keyless(source),
        }
    }
}

/// The source part of lanes that all sources share.
pub(crate) fn any_source() -> Arc<str> {
    ANY_SOURCE.into()
}
