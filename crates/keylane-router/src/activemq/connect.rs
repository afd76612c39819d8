//! From a socket to a link that messages come over.

use std::fmt::Display;
use std::io;
use std::sync::Arc;

use fe2o3_amqp::connection::{ConnectionHandle, ConnectionStopReason, OpenError};
use fe2o3_amqp::link::ReceiverAttachError;
use fe2o3_amqp::link::receiver::CreditMode;
use fe2o3_amqp::sasl_profile::SaslProfile;
use fe2o3_amqp::session::{BeginError, SessionHandle};
use fe2o3_amqp::types::definitions::{Error, SenderSettleMode};
use fe2o3_amqp::types::messaging::Source;
use fe2o3_amqp::types::primitives::Symbol;
use fe2o3_amqp::{Connection, Receiver, Session};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::options::Options;
use super::peer::{Heard, Overheard, Peer};

/// We end a connection over which nothing came for this long; brokers send something in half of it.
const SILENCE: u32 = 30_000;
/// A second connection of ours is refused until the broker has ended the first: what was out over
/// that is given back before anything comes over this.
const ONLY_ONE: &str = "sole-connection-for-container";
/// How a queue is told from a topic of the same name.
const QUEUE: &str = "queue";

/// Why there is no connection, and whether somebody has to do something about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) text: String,
    pub(super) permanent: bool,
}

impl Failure {
    pub(super) fn passing(text: impl Display) -> Self {
        Self {
            text: text.to_string(),
            permanent: false,
        }
    }

    pub(super) fn permanent(text: impl Display) -> Self {
        Self {
            text: text.to_string(),
            permanent: true,
        }
    }
}

/// An open link with all it hangs on.
pub(super) struct Connected {
    pub(super) connection: ConnectionHandle<()>,
    pub(super) session: SessionHandle<()>,
    pub(super) receiver: Receiver,
    pub(super) peer: Peer,
}

/// Makes connections.
#[derive(Clone)]
pub(super) struct Connector {
    pub(super) options: Arc<Options>,
    /// What the broker knows this instance by, over all of its connections.
    pub(super) container: Arc<str>,
    /// For `amqps`.
    pub(super) tls: Option<TlsConnector>,
}

impl Connector {
    /// Connects, within the time that this may take.
    pub(super) async fn connect(&self) -> Result<Connected, Failure> {
        let limit = self.options.connect_timeout;
        match tokio::time::timeout(limit, self.connect_anyhow()).await {
            Ok(connected) => connected,
            Err(_) => Err(Failure::passing(format!(
                "{} does not answer within {limit:?}; is it an AMQP 1.0 connector?",
                self.options.place()
            ))),
        }
    }

    async fn connect_anyhow(&self) -> Result<Connected, Failure> {
        let (mut connection, peer) = self.open().await?;
        let broken = |error| match error {
            BeginError::ConnectionStopped(ConnectionStopReason::RemoteClosedWithError(error)) => {
                Failure::passing(self.refused(&error))
            }
            other => Failure::passing(format!("the broker opens no session: {other}")),
        };
        let mut session = Session::begin(&mut connection).await.map_err(broken)?;
        let receiver = self.attach(&mut session).await?;
        Ok(Connected {
            connection,
            session,
            receiver,
            peer,
        })
    }

    /// Classic opens a connection before it looks at whose it is.
    fn refused(&self, error: &Error) -> String {
        let text = described(error);
        // What is wrong with it is its name, which another connection has.
        let taken = text.contains("InvalidField");
        match self.options.alone && taken {
            true => format!(
                "queue `{}` is read by another instance, or the broker has not noticed its end yet; if several are to read it, set instances = \"many\": {text}",
                self.options.queue
            ),
            false => format!("{} ended the connection: {text}", self.options.place()),
        }
    }

    async fn open(&self) -> Result<(ConnectionHandle<()>, Peer), Failure> {
        let (host, port) = (self.options.host.as_str(), self.options.port);
        let away = |error: io::Error| {
            Failure::passing(format!("{} is not there: {error}", self.options.place()))
        };
        let stream = TcpStream::connect((host, port)).await.map_err(away)?;
        // Otherwise each small frame waits for the answer to the one before it.
        stream.set_nodelay(true).map_err(away)?;
        let Some(tls) = &self.tls else {
            return self.open_over(stream).await;
        };
        let name = ServerName::try_from(host.to_owned());
        let name = name.map_err(|_| Failure::permanent(format!("{host:?} is no host's name")))?;
        let no_tls = |error| {
            let place = self.options.place();
            Failure::passing(format!(
                "no TLS with {place}: {error}; does it speak TLS, and is its certificate trusted?"
            ))
        };
        let stream = tls.connect(name, stream).await.map_err(no_tls)?;
        self.open_over(stream).await
    }

    async fn open_over<Io>(&self, inner: Io) -> Result<(ConnectionHandle<()>, Peer), Failure>
    where
        Io: AsyncRead + AsyncWrite + std::fmt::Debug + Send + Unpin + 'static,
    {
        let sasl = match &self.options.login {
            Some(login) => SaslProfile::Plain {
                username: login.user.clone(),
                password: login.password.clone(),
            },
            None => SaslProfile::Anonymous,
        };
        let heard = Heard::new();
        let stream = Overheard {
            inner,
            heard: heard.clone(),
        };
        let opened = Connection::builder()
            .container_id(&*self.container)
            .hostname(self.options.host.as_str())
            .idle_time_out(SILENCE)
            .add_desired_capabilities(ONLY_ONE)
            .sasl_profile(sasl)
            .open_with_stream(stream)
            .await;
        let connection = opened.map_err(|error| self.not_opened(error))?;
        Ok((connection, heard.peer()))
    }

    fn not_opened(&self, error: OpenError) -> Failure {
        let place = self.options.place();
        match (&error, &self.options.login) {
            (OpenError::SaslError { .. }, Some(login)) => Failure::permanent(format!(
                "{place} refuses user `{}`: check user and password",
                login.user
            )),
            (OpenError::SaslError { .. }, None) => {
                Failure::permanent(format!("{place} wants a user: give user and password"))
            }
            (OpenError::RemoteClosedWithError(error), _) => Failure::passing(self.refused(error)),
            _ => Failure::passing(format!("{place} opens no connection: {error}")),
        }
    }

    async fn attach(&self, session: &mut SessionHandle<()>) -> Result<Receiver, Failure> {
        let queue = &self.options.queue;
        let source = Source::builder()
            .address(queue.as_str())
            .capabilities(vec![Symbol::from(QUEUE)])
            .build();
        let attached = Receiver::builder()
            .name(format!("{}-{queue}", self.container))
            .source(source)
            .sender_settle_mode(SenderSettleMode::Unsettled)
            .credit_mode(CreditMode::Manual)
            .auto_accept(false)
            .attach(session)
            .await;
        attached.map_err(|error| match error {
            ReceiverAttachError::RemoteClosedWithError(error) => Failure::passing(format!(
                "the broker does not let us read queue `{queue}`: {}",
                described(&error)
            )),
            other => Failure::passing(format!("queue `{queue}` cannot be read: {other}")),
        })
    }
}

/// An error of the broker in its own words.
pub(super) fn described(error: &Error) -> String {
    let condition = format!("{:?}", error.condition);
    match &error.description {
        Some(text) => format!("{text} ({condition})"),
        None => condition,
    }
}
