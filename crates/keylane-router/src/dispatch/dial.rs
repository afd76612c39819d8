//! Opens connections: the one place that knows which address is dialled.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use http::uri::Scheme;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tower_service::Service;

/// How long one of several addresses may take before the next is tried.
const NEXT_ADDRESS: Duration = Duration::from_secs(1);

/// Resolves a host and connects to the first of its addresses that answers.
///
/// Our own instead of hyper-util's, so that a rule about addresses holds for what is dialled (a
/// name may resolve to anything, and differently each time), and so that errors say what failed.
#[derive(Clone, Debug)]
pub(super) struct Dial;

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(super) enum DialError {
    #[error("{0}")]
    Dns(#[source] io::Error),
    #[error("{0}")]
    Connect(#[source] io::Error),
}

impl Service<Uri> for Dial {
    type Response = TokioIo<TcpStream>;
    type Error = DialError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, DialError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), DialError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        Box::pin(async move {
            let addresses = resolve(&uri).await.map_err(DialError::Dns)?;
            let stream = connect(&addresses).await.map_err(DialError::Connect)?;
            Ok(TokioIo::new(stream))
        })
    }
}

async fn resolve(uri: &Uri) -> io::Result<Vec<SocketAddr>> {
    let host = uri.host().unwrap_or_default();
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let tls = uri.scheme() == Some(&Scheme::HTTPS);
    let port = uri.port_u16().unwrap_or(if tls { 443 } else { 80 });
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    let found: Vec<_> = tokio::net::lookup_host((host, port)).await?.collect();
    if found.is_empty() {
        return Err(io::Error::other("the name has no address"));
    }
    Ok(found)
}

async fn connect(addresses: &[SocketAddr]) -> io::Result<TcpStream> {
    let (last, others) = addresses.split_last().expect("at least one address");
    for address in others {
        // Not without an end: the first of two addresses may be a black hole.
        if let Ok(Ok(stream)) = tokio::time::timeout(NEXT_ADDRESS, open(*address)).await {
            return Ok(stream);
        }
    }
    open(*last).await
}

async fn open(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address).await?;
    // A request is one write: waiting for more to send only costs latency.
    stream.set_nodelay(true)?;
    Ok(stream)
}
