//! Opens connections: the one place that knows which address is dialled.

use std::fmt::Debug;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Duration;

use tokio::net::TcpStream;

use super::Attempt;
use super::guard::{Denied, Guard};
use super::target::TargetUrl;

/// How long one of several addresses may take before the next is tried.
const NEXT_ADDRESS: Duration = Duration::from_secs(1);

/// Finds the addresses of a host.
pub trait Resolve: Debug + Send + Sync + 'static {
    /// All addresses of the host, with the port.
    fn resolve<'a>(&'a self, host: &'a str, port: u16) -> Resolving<'a>;
}

/// What [`Resolve::resolve`] gives.
pub type Resolving<'a> = Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send + 'a>>;

/// Asks the system.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemResolver;

impl Resolve for SystemResolver {
    fn resolve<'a>(&'a self, host: &'a str, port: u16) -> Resolving<'a> {
        Box::pin(async move { Ok(tokio::net::lookup_host((host, port)).await?.collect()) })
    }
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(super) enum DialError {
    #[error("{0}")]
    Denied(#[from] Denied),
    #[error("{0}")]
    Dns(#[source] io::Error),
    #[error("{0}")]
    Connect(#[source] io::Error),
}

/// Connects to the first address of the target that may be called and answers.
///
/// What was resolved is what is dialled: a name that is asked for twice may answer differently.
pub(super) async fn dial(
    resolver: &dyn Resolve,
    guard: &Guard,
    target: &TargetUrl,
    attempt: &Attempt,
) -> Result<(TcpStream, SocketAddr), DialError> {
    let found = resolve(resolver, target).await.map_err(DialError::Dns)?;
    let mut denied = None;
    let mut allowed = Vec::new();
    for address in found {
        match guard.check(target, attempt, address) {
            Ok(()) => allowed.push(address),
            Err(why) => denied = Some(why),
        }
    }
    match (allowed.is_empty(), denied) {
        (true, Some(why)) => Err(why.into()),
        (true, None) => Err(DialError::Dns(io::Error::other("the name has no address"))),
        (false, _) => connect(&allowed).await.map_err(DialError::Connect),
    }
}

async fn resolve(resolver: &dyn Resolve, target: &TargetUrl) -> io::Result<Vec<SocketAddr>> {
    match target.ip() {
        Some(ip) => Ok(vec![SocketAddr::new(ip, target.port())]),
        None => resolver.resolve(target.host(), target.port()).await,
    }
}

async fn connect(addresses: &[SocketAddr]) -> io::Result<(TcpStream, SocketAddr)> {
    let (last, others) = addresses.split_last().expect("at least one address");
    for address in others {
        // Not without an end: the first of two addresses may be a black hole.
        if let Ok(Ok(opened)) = tokio::time::timeout(NEXT_ADDRESS, open(*address)).await {
            return Ok(opened);
        }
    }
    open(*last).await
}

async fn open(address: SocketAddr) -> io::Result<(TcpStream, SocketAddr)> {
    let stream = TcpStream::connect(address).await?;
    // A request is one write: waiting for more to send only costs latency.
    stream.set_nodelay(true)?;
    Ok((stream, address))
}
