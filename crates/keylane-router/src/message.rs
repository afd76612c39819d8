//! What is to be processed: a message, its key and its identity.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

/// The ordering key: any bytes, compared byte by byte, cheap to clone.
///
/// Other systems call it message group id, `JMSXGroupID` or ordering key.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(Arc<[u8]>);

impl Key {
    /// The key made of these bytes; an empty or blank key is a key like any other here. That a
    /// blank group id means "keyless" is decided where the message is read.
    pub fn new(bytes: impl AsRef<[u8]>) -> Self {
        Self(Arc::from(bytes.as_ref()))
    }

    /// The key's bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({self})")
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.0))
    }
}

impl From<&str> for Key {
    fn from(text: &str) -> Self {
        Self::new(text)
    }
}

/// The broker's own id of a message within one source.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum BrokerId {
    /// A sequence that never repeats (embedded queue, one partition's offset).
    Sequence(u64),
    /// Whatever text the broker calls the message by.
    Text(Arc<str>),
}

impl fmt::Display for BrokerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sequence(n) => write!(f, "{n}"),
            Self::Text(text) => f.write_str(text),
        }
    }
}

/// Source plus the broker's own id: what dedup, receipts, attempts and stores go by. Never the
/// body's `id`, which may repeat.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Identity {
    /// The source's name in the config.
    pub source: Arc<str>,
    /// The broker's own id.
    pub id: BrokerId,
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.source, self.id)
    }
}

/// A parsed message: where it goes and what the target gets.
#[derive(Clone)]
pub struct Message {
    /// The publisher's id; may repeat, see [`Identity`].
    pub id: Arc<str>,
    /// The ordering key, or `None` for a keyless message.
    pub key: Option<Key>,
    /// The pool it asks for; `None` means the default pool.
    pub pool: Option<Arc<str>>,
    /// The URL it is delivered to.
    pub target: Arc<str>,
    /// How it is delivered; only `HTTP` is known to the HTTP dispatch.
    pub mediation_type: Arc<str>,
    /// Sent as `Authorization: Bearer …` when given. Never logged.
    pub auth_token: Option<Arc<str>>,
    /// The tenant for fairness, when the broker or the publisher names one.
    pub tenant: Option<Arc<str>>,
    /// Exactly what the target gets as body.
    pub payload: Bytes,
    /// The body's content type.
    pub content_type: Arc<str>,
    /// Extra request headers the publisher asked for (already filtered of what is ours).
    pub headers: Vec<(Arc<str>, Arc<str>)>,
}

// By hand: tokens, payloads and headers may be secrets.
impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("id", &self.id)
            .field("key", &self.key)
            .field("pool", &self.pool)
            .field("payload", &format_args!("{} bytes", self.payload.len()))
            .finish_non_exhaustive()
    }
}
