//! Which lane a message belongs to.

use std::sync::Arc;

use crate::message::{BrokerId, Key};
use crate::store::LaneName;

/// Stands for "whatever the source" in lanes that sources share.
const ANY_SOURCE: &str = "*";

/// A lane of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum LaneId {
    /// The lane of one key.
    Key { source: Arc<str>, key: Key },
    /// The one lane of all keyless messages.
    Keyless { source: Arc<str> },
    /// A lane of its own: a keyless message among keyless messages that run side by side.
    Alone { source: Arc<str>, id: BrokerId },
}

impl LaneId {
    pub(crate) fn source(&self) -> &Arc<str> {
        match self {
            Self::Key { source, .. } | Self::Keyless { source } | Self::Alone { source, .. } => {
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
        match self {
            Self::Key { key, .. } => Some(key),
            Self::Keyless { .. } | Self::Alone { .. } => None,
        }
    }

    /// The lane as stores call it.
    pub(crate) fn name(&self, pool: &Arc<str>) -> LaneName {
        LaneName {
            source: self.source().clone(),
            pool: pool.clone(),
            key: self.key().cloned(),
            alone: match self {
                Self::Alone { id, .. } => Some(id.clone()),
                _ => None,
            },
        }
    }

    /// The lane a store's name means.
    pub(crate) fn of(name: &LaneName) -> Self {
        let source = name.source.clone();
        match (&name.key, &name.alone) {
            (Some(key), _) => Self::Key {
                source,
                key: key.clone(),
            },
            (None, Some(id)) => Self::Alone {
                source,
                id: id.clone(),
            },
            (None, None) => Self::Keyless { source },
        }
    }
}

/// The source part of lanes that all sources share.
pub(crate) fn any_source() -> Arc<str> {
    ANY_SOURCE.into()
}
