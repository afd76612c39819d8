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
    Key { owner: Arc<Owner>, key: Key },
    /// The one lane of all keyless messages.
    Keyless { owner: Arc<Owner> },
    /// A lane of its own: a keyless message among keyless messages that run side by side.
    Alone { owner: Arc<Owner>, id: BrokerId },
}

/// Whose lanes they are. Apart, because many have the same.
#[derive(Debug)]
pub(crate) struct Owner {
    source: Arc<str>,
    /// Whose turn it is when theirs comes. Stores do not know it: it is no part of what a lane is
    /// known by, and a lane is of the tenant of whoever made it.
    tenant: Option<Arc<str>>,
}

impl Owner {
    pub(crate) fn new(source: Arc<str>, tenant: Option<Arc<str>>) -> Arc<Self> {
        Arc::new(Self { source, tenant })
    }

    pub(crate) fn source(&self) -> &Arc<str> {
        &self.source
    }
}

impl PartialEq for Owner {
    fn eq(&self, other: &Self) -> bool {
        self.source == other.source
    }
}

impl Eq for Owner {}

impl Hash for Owner {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.source.hash(state);
    }
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
    pub(crate) fn key_of(owner: Arc<Owner>, key: Key) -> Self {
        Self::new(Lane::Key { owner, key })
    }

    /// The one lane of all keyless messages.
    pub(crate) fn keyless(owner: Arc<Owner>) -> Self {
        Self::new(Lane::Keyless { owner })
    }

    /// A lane of its own: a keyless message among keyless messages that run side by side.
    pub(crate) fn alone(owner: Arc<Owner>, id: BrokerId) -> Self {
        Self::new(Lane::Alone { owner, id })
    }

    /// What the lane is known by among those of all pools, in this process.
    pub(crate) fn number(&self, pool: &str) -> u64 {
        HASH.hash_one((pool, self.0.hash))
    }

    /// Whether it is one message's own.
    pub(crate) fn is_alone(&self) -> bool {
        matches!(self.0.lane, Lane::Alone { .. })
    }

    fn owner(&self) -> &Owner {
        match &self.0.lane {
            Lane::Key { owner, .. } | Lane::Keyless { owner } | Lane::Alone { owner, .. } => owner,
        }
    }

    pub(crate) fn source(&self) -> &Arc<str> {
        self.owner().source()
    }

    /// Whose turns it takes part in, if it is anybody's.
    pub(crate) fn tenant(&self) -> Option<&Arc<str>> {
        self.owner().tenant.as_ref()
    }

    /// Whether sources share it.
    pub(crate) fn has_sources(&self) -> bool {
        &**self.source() == ANY_SOURCE
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
        let owner = Owner::new(name.source.clone(), None);
        match (&name.key, &name.alone) {
            (Some(key), _) => Self::key_of(owner, key.clone()),
            (None, Some(id)) => Self::alone(owner, id.clone()),
            (None, None) => Self::keyless(owner),
        }
    }
}

/// The source part of lanes that all sources share.
pub(crate) fn any_source() -> Arc<str> {
    ANY_SOURCE.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// There may be very many: a tenant costs them nothing.
    #[test]
    fn a_lane_is_small() {
        assert!(size_of::<Named>() <= 40, "{}", size_of::<Named>());
    }

    #[test]
    fn a_lane_is_the_same_lane_whoever_it_is_of() {
        let id = BrokerId::Sequence(7);
        let of = Owner::new("s".into(), Some("t".into()));
        let lane = LaneId::alone(of.clone(), id.clone());
        assert_eq!(lane.tenant().map(|tenant| &**tenant), Some("t"));
        let stored = LaneId::of(&lane.name(&"p".into()));
        assert_eq!(stored, lane);
        assert_eq!(stored.0.hash, lane.0.hash);
        assert_eq!(stored.tenant(), None);
        let other = Owner::new("other".into(), Some("t".into()));
        assert_ne!(LaneId::alone(other, id), lane);
    }
}
