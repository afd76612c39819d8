//! Where a queue is and how it is read.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::dispatch::Root;

/// Where a queue is and how it is read. Made by [`Options::new`] and changed by hand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Where the broker is.
    pub host: String,
    /// The port of its AMQP 1.0 connector.
    pub port: u16,
    /// Whether the connector speaks TLS.
    pub tls: bool,
    /// Certificates to trust besides the system's.
    pub roots: Vec<Root>,
    /// Who we are, by SASL PLAIN; `None` = SASL ANONYMOUS.
    pub login: Option<Login>,
    /// Which of the two it is: they do not promise the same.
    pub broker: Broker,
    /// The queue. On Artemis also `address::queue`.
    pub queue: String,
    /// No other instance reads the queue, and the broker sees to that: it refuses a second connection
    /// until the first has ended, with all that was out over it back in the queue.
    pub alone: bool,
    /// For how long messages are ours after the last proof that the broker has our connection. Less
    /// than the broker's own idle timeout.
    pub lease: Duration,
    /// How long connecting may take.
    pub connect_timeout: Duration,
    /// What tells a message that comes again from another one.
    pub identity: Identified,
    /// What is done about settings of the queue that break order or lose messages.
    pub queue_settings: QueueSettings,
}

/// Which broker it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broker {
    /// ActiveMQ Classic. When a connection is lost, keys may be out of order.
    Classic,
    /// ActiveMQ Artemis. Nothing is read where it turns out to be Classic.
    Artemis,
}

/// Who we are.
#[derive(Clone, PartialEq, Eq)]
pub struct Login {
    /// The user.
    pub user: String,
    /// Never shown.
    pub password: String,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:***", self.user)
    }
}

/// What tells a message that comes again from another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identified {
    /// Its `message-id`, which AMQP wants to be unique and JMS clients always set.
    MessageId,
    /// Nothing: publishers use an id more than once.
    Nothing,
}

/// What is done about settings of a queue that break order or lose messages, where the broker shows
/// them (Artemis).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueSettings {
    /// The queue is not read.
    Refuse,
    /// It is said, and the queue read.
    Warn,
    /// Nobody asks for them.
    Ignore,
}

impl Options {
    /// The usual ones for this queue at `amqp://[user:password@]host[:port]`, or `amqps://` for TLS.
    ///
    /// # Errors
    /// What is wrong with the URL or the queue's name.
    pub fn new(url: &str, queue: &str) -> Result<Self, String> {
        let (tls, rest) = match (url.strip_prefix("amqp://"), url.strip_prefix("amqps://")) {
            (Some(rest), _) => (false, rest),
            (_, Some(rest)) => (true, rest),
            _ => return Err("give amqp://host:5672, or amqps://host:5671 for TLS".to_owned()),
        };
        let (login, at) = match rest.trim_end_matches('/').rsplit_once('@') {
            Some((login, at)) => (Some(read_login(login)?), at),
            None => (None, rest.trim_end_matches('/')),
        };
        let (host, port) = read_address(at, if tls { 5671 } else { 5672 })?;
        if queue.trim().is_empty() {
            return Err("the queue has no name".to_owned());
        }
        Ok(Self {
            host,
            port,
            tls,
            roots: Vec::new(),
            login,
            broker: Broker::Classic,
            queue: queue.to_owned(),
            alone: true,
            lease: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(10),
            identity: Identified::MessageId,
            queue_settings: QueueSettings::Refuse,
        })
    }

    /// Where it is, for people.
    pub(super) fn place(&self) -> Arc<str> {
        let scheme = if self.tls { "amqps" } else { "amqp" };
        format!("{scheme}://{}:{}", self.host, self.port).into()
    }
}

fn read_login(text: &str) -> Result<Login, String> {
    let (user, password) = text.split_once(':').unwrap_or((text, ""));
    Ok(Login {
        user: decoded(user)?,
        password: decoded(password)?,
    })
}

/// `host`, `host:port`, `[::1]:port`.
fn read_address(text: &str, usual: u16) -> Result<(String, u16), String> {
    if text.contains('/') {
        return Err("the URL ends with the port: the queue is an option of its own".to_owned());
    }
    let (host, port) = match text.rsplit_once(':') {
        // The colons of an address without a port.
        Some((_, end)) if end.ends_with(']') => (text, None),
        Some((host, port)) => (host, Some(port)),
        None => (text, None),
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    if host.is_empty() {
        return Err("the URL has no host".to_owned());
    }
    let port = match port {
        Some(port) => port
            .parse()
            .map_err(|_| format!("{port:?} is no port; use 1 to 65535"))?,
        None => usual,
    };
    Ok((host.to_owned(), port))
}

/// Without percent signs.
fn decoded(text: &str) -> Result<String, String> {
    let wrong = || "user and password: write % as %25, @ as %40, : as %3A, / as %2F".to_owned();
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digits = after.get(..2).and_then(|two| std::str::from_utf8(two).ok());
        let byte = digits.and_then(|two| u8::from_str_radix(two, 16).ok());
        bytes.push(byte.ok_or_else(wrong)?);
        rest = &after[2..];
    }
    String::from_utf8(bytes).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new(url: &str) -> Options {
        Options::new(url, "q").expect(url)
    }

    #[test]
    fn a_url_has_a_host_and_perhaps_a_port_a_user_and_tls() {
        let plain = new("amqp://broker");
        assert_eq!((plain.host.as_str(), plain.port), ("broker", 5672));
        assert_eq!((plain.tls, &plain.login), (false, &None));
        let tls = new("amqps://broker.example/");
        assert_eq!((tls.tls, tls.port), (true, 5671));
        let v6 = new("amqp://[::1]:61");
        assert_eq!((v6.host.as_str(), v6.port), ("::1", 61));
        assert_eq!(new("amqp://[::1]").host, "::1");
        let login = new("amqp://me:p%40ss%3A@h:1").login.expect("a login");
        assert_eq!((&*login.user, &*login.password), ("me", "p@ss:"));
    }

    #[test]
    fn what_is_wrong_with_a_url_is_told() {
        let error = |url, queue| Options::new(url, queue).expect_err(url);
        assert!(error("tcp://h:61616", "q").contains("amqp://"));
        assert!(error("amqp://", "q").contains("no host"));
        assert!(error("amqp://h:port", "q").contains("no port"));
        assert!(error("amqp://h/orders", "q").contains("the queue is an option"));
        assert!(error("amqp://me:100%@h", "q").contains("%25"));
        assert!(error("amqp://h", " ").contains("no name"));
    }

    #[test]
    fn a_password_is_never_shown() {
        let shown = format!("{:?}", new("amqp://me:hush@h"));
        assert!(shown.contains("me") && !shown.contains("hush"), "{shown}");
    }
}
