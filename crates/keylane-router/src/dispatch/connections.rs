//! Connections to targets, kept open between requests.
//!
//! Our own and not hyper-util's client: a request on a kept connection is checked against the
//! address behind it, and a request costs half of it.
//!
//! An HTTP/1 connection has no task of its own: the attempt that waits for its answer is woken by the
//! socket itself. While it is kept nobody reads from it, so whether its peer has closed it is seen when
//! it is taken, or looked at by the reaper.
//!
//! How many idle connections an origin has needs no limit of its own: each was opened by an attempt
//! under way, so there are never more than the pools' concurrency, and what is not used any more
//! goes after a while. Only all of them together are bounded, because origins come from messages.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::{Body, Frame, SizeHint};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::time::Instant;
use tokio_rustls::client::TlsStream;

use super::Attempt;
use super::body::End;
use super::dial::{self, DialError, Resolve};
use super::guard::Guard;
use super::http1::{self, HeadLimits};
use super::target::TargetUrl;
use super::tls::{self, Tls};
use crate::map::Map;

/// What is sent over HTTP/2, if the lease of its message still holds when it is written.
#[derive(Debug)]
pub(super) struct Payload {
    bytes: Full<Bytes>,
    lease: Option<Arc<crate::lease::Lease>>,
}

/// The lease ended between the last look and the writing.
#[derive(Debug, thiserror::Error)]
#[error("the lease was lost")]
pub(super) struct LeaseLost;

impl Payload {
    pub(super) fn new(bytes: Bytes, attempt: &Attempt) -> Self {
        Self {
            bytes: Full::new(bytes),
            lease: attempt.lease.clone(),
        }
    }
}

impl Body for Payload {
    type Data = Bytes;
    type Error = LeaseLost;

    // The connection asks for it, perhaps a while after the request was handed over.
    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, LeaseLost>>> {
        if self.lease.as_ref().is_some_and(|lease| !lease.holds()) {
            return Poll::Ready(Some(Err(LeaseLost)));
        }
        let polled = Pin::new(&mut self.bytes).poll_frame(cx);
        polled.map_err(|never| match never {})
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.bytes.size_hint()
    }
}

/// Requests at once on one HTTP/2 connection, whatever the peer allows: on one connection all wait
/// for a lost packet.
const MOST_STREAMS: usize = 128;
/// How many requests at once the peer takes before it has said so: a number that none says.
const UNTOLD: usize = 1_048_583;
/// How often we look whether it has.
const TOLD: Duration = Duration::from_millis(1);
/// Pings show that the peer of an HTTP/2 connection with requests under way is still there.
const PING_EVERY: Duration = Duration::from_secs(20);
const PING_ANSWER: Duration = Duration::from_secs(10);

/// How many connections are kept, and what a peer may send on them.
#[derive(Clone, Debug)]
pub(super) struct Limits {
    pub(super) idle: usize,
    pub(super) idle_for: Duration,
    pub(super) headers: usize,
    pub(super) header_bytes: usize,
}

/// All connections of a dispatch.
#[derive(Debug)]
pub(super) struct Connections {
    limits: Limits,
    resolver: Arc<dyn Resolve>,
    pub(super) guard: Guard,
    tls: Tls,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    origins: Map<Arc<str>, Origin>,
    /// Idle HTTP/1 connections of all origins: counting them anew at each return would cost more
    /// than the request.
    idle: usize,
    /// Whether a task closes what is idle for too long.
    reaped: bool,
}

/// The connections to one origin.
#[derive(Debug, Default)]
struct Origin {
    /// HTTP/1, the one used last at the end.
    idle: Vec<Idle>,
    /// HTTP/2.
    shared: Vec<Arc<Shared>>,
    speaks: Speaks,
    /// Held while a connection is opened that others may share.
    opening: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Speaks {
    #[default]
    Unknown,
    Http1,
    Http2,
}

#[derive(Debug)]
struct Idle {
    line: Http1,
    since: Instant,
}

/// An HTTP/1 connection and where it leads.
pub(super) struct Http1 {
    /// In a box: it goes from hand to hand.
    pub(super) connection: Box<http1::Connection>,
    address: SocketAddr,
}

impl std::fmt::Debug for Http1 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Http1({})", self.address)
    }
}

#[derive(Debug)]
pub(super) struct Shared {
    send: http2::SendRequest<Payload>,
    /// Driven by a task; asked by us how many requests the peer takes. `None` when it has ended.
    driven: Arc<Mutex<Option<Driven>>>,
    address: SocketAddr,
    /// Requests under way. Raised under the lock of all connections, so that two do not take the
    /// last place.
    streams: AtomicUsize,
    /// Not to be used for another request.
    retired: AtomicBool,
    used: Mutex<Instant>,
}

type Driven = http2::Connection<TokioIo<TlsStream<tokio::net::TcpStream>>, Payload, TokioExecutor>;

/// A connection for one request. Dropped without [`Lease::keep`] it is used for no other: an
/// answer that comes late finds nobody.
#[derive(Debug)]
pub(super) struct Lease {
    connections: Arc<Connections>,
    origin: Arc<str>,
    /// `None` only while it is given back.
    line: Option<Line>,
    /// Whether it was used before: then the peer may have closed it meanwhile.
    pub(super) used_before: bool,
}

#[derive(Debug)]
pub(super) enum Line {
    Http1(Http1),
    Http2(Arc<Shared>, http2::SendRequest<Payload>),
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoConnection {
    #[error(transparent)]
    Dial(#[from] DialError),
    #[error("{0}")]
    Tls(#[source] std::io::Error),
    #[error("{0}")]
    Http(#[source] hyper::Error),
}

impl Connections {
    pub(super) fn new(limits: Limits, resolver: Arc<dyn Resolve>, guard: Guard, tls: Tls) -> Self {
        Self {
            limits,
            resolver,
            guard,
            tls,
            kept: Mutex::default(),
        }
    }

    /// A connection on which this attempt may call the target: a kept one, else a new one.
    pub(super) async fn get(
        self: &Arc<Self>,
        target: &TargetUrl,
        attempt: &Attempt,
    ) -> Result<Lease, NoConnection> {
        match self.kept_for(target, attempt).await {
            Some(lease) => Ok(lease),
            // In a box: it is seldom, and every attempt would have to be as large.
            None => Box::pin(self.new_for(target, attempt)).await,
        }
    }

    /// A new connection, or one that was opened for somebody else meanwhile.
    async fn new_for(
        self: &Arc<Self>,
        target: &TargetUrl,
        attempt: &Attempt,
    ) -> Result<Lease, NoConnection> {
        let Some(opening) = self.gate(target) else {
            return self.open(target, attempt).await;
        };
        // One after the other: the first may open a connection that serves them all.
        let _one = opening.lock().await;
        match self.kept_for(target, attempt).await {
            Some(lease) => Ok(lease),
            None => self.open(target, attempt).await,
        }
    }

    /// A kept connection that this attempt may use.
    async fn kept_for(self: &Arc<Self>, target: &TargetUrl, attempt: &Attempt) -> Option<Lease> {
        while let Some(mut lease) = self.take(target.origin()) {
            let checked = self.guard.check(target, attempt, lease.address());
            if checked.is_err() {
                // It is as good as before for those who may use it. The name may have another
                // address that this attempt may call: dialling finds out.
                lease.keep();
                return None;
            }
            if lease.is_ready().await {
                return Some(lease);
            }
        }
        None
    }

    /// A kept connection, if there is one.
    fn take(self: &Arc<Self>, origin: &Arc<str>) -> Option<Lease> {
        let mut kept = self.kept();
        let kept = &mut *kept;
        let found = kept.origins.get_mut(origin)?;
        let line = match found.stream() {
            Some(line) => line,
            None => {
                let idle = found.idle.pop()?;
                kept.idle -= 1;
                Line::Http1(idle.line)
            }
        };
        Some(Lease {
            connections: self.clone(),
            origin: origin.clone(),
            line: Some(line),
            used_before: true,
        })
    }

    /// Held by whoever opens a connection that others may share.
    fn gate(&self, target: &TargetUrl) -> Option<Arc<tokio::sync::Mutex<()>>> {
        if !target.is_tls() {
            return None;
        }
        let mut kept = self.kept();
        let origin = kept.origins.entry(target.origin().clone()).or_default();
        (origin.speaks != Speaks::Http1).then(|| origin.opening.clone())
    }

    async fn open(
        self: &Arc<Self>,
        target: &TargetUrl,
        attempt: &Attempt,
    ) -> Result<Lease, NoConnection> {
        let (stream, address) = dial::dial(&*self.resolver, &self.guard, target, attempt).await?;
        let line = if target.is_tls() {
            let shaken = self.tls.shake(target, stream).await;
            let stream = shaken.map_err(NoConnection::Tls)?;
            match tls::is_http2(&stream) {
                true => self.http2(stream, address, target.origin()).await?,
                false => {
                    self.learn(target.origin(), Speaks::Http1);
                    self.http1(stream, address)
                }
            }
        } else {
            self.http1(stream, address)
        };
        Ok(Lease {
            connections: self.clone(),
            origin: target.origin().clone(),
            line: Some(line),
            used_before: false,
        })
    }

    /// A lease on HTTP/1 over any stream, for tests without a network.
    #[cfg(feature = "testing")]
    pub(super) fn over(
        self: &Arc<Self>,
        stream: impl http1::Stream + 'static,
        target: &TargetUrl,
    ) -> Lease {
        let address = SocketAddr::from(([127, 0, 0, 1], 9));
        Lease {
            connections: self.clone(),
            origin: target.origin().clone(),
            line: Some(self.http1(stream, address)),
            used_before: false,
        }
    }

    fn http1(&self, stream: impl http1::Stream + 'static, address: SocketAddr) -> Line {
        let limits = HeadLimits {
            headers: self.limits.headers,
            bytes: self.limits.header_bytes,
        };
        Line::Http1(Http1 {
            connection: Box::new(http1::Connection::new(Box::new(stream), limits)),
            address,
        })
    }

    async fn http2(
        &self,
        stream: TlsStream<tokio::net::TcpStream>,
        address: SocketAddr,
        origin: &Arc<str>,
    ) -> Result<Line, NoConnection> {
        let limit = u32::try_from(self.limits.header_bytes).unwrap_or(u32::MAX);
        let handshake = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PING_ANSWER)
            .max_header_list_size(limit)
            .initial_max_send_streams(UNTOLD)
            .handshake(TokioIo::new(stream));
        let (send, connection) = handshake.await.map_err(NoConnection::Http)?;
        let driven = Arc::new(Mutex::new(Some(connection)));
        // Ends with the last of its senders.
        tokio::spawn(drive_shared(driven.clone()));
        let shared = Arc::new(Shared {
            send,
            driven,
            address,
            streams: AtomicUsize::new(1),
            retired: AtomicBool::new(false),
            used: Mutex::new(Instant::now()),
        });
        // Its settings are the first it sends. Without them too many requests might be sent at
        // once, or a connection opened for each.
        while shared.most_streams() == Some(UNTOLD) {
            tokio::time::sleep(TOLD).await;
        }
        let mut kept = self.kept();
        let known = kept.origins.entry(origin.clone()).or_default();
        known.speaks = Speaks::Http2;
        known.shared.push(shared.clone());
        let send = shared.send.clone();
        Ok(Line::Http2(shared, send))
    }

    fn learn(&self, origin: &Arc<str>, speaks: Speaks) {
        let mut kept = self.kept();
        kept.origins.entry(origin.clone()).or_default().speaks = speaks;
    }

    /// Keeps an HTTP/1 connection for the next request.
    fn put(self: &Arc<Self>, origin: Arc<str>, mut line: Http1) {
        if !line.connection.is_reusable() {
            return;
        }
        line.connection.shrink();
        let mut kept = self.kept();
        if kept.idle >= self.limits.idle {
            kept.drop_oldest(self.limits.idle);
        }
        let since = Instant::now();
        let idle = Idle { line, since };
        kept.idle += 1;
        match kept.origins.get_mut(&origin) {
            Some(known) => known.idle.push(idle),
            None => kept.origins.entry(origin).or_default().idle.push(idle),
        }
        self.see_to_reaping(&mut kept);
    }

    fn see_to_reaping(self: &Arc<Self>, kept: &mut Kept) {
        if !kept.reaped {
            kept.reaped = true;
            // Ends when nothing is kept, or nobody is left to keep it for.
            tokio::spawn(reap(Arc::downgrade(self), self.limits.idle_for));
        }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many connections are idle and open.
    #[cfg(feature = "testing")]
    pub(super) fn idle(&self) -> usize {
        let mut kept = self.kept();
        kept.retain(|idle| idle.line.connection.is_idle());
        kept.idle
    }
}

/// Drives an HTTP/2 connection to its end.
async fn drive_shared(driven: Arc<Mutex<Option<Driven>>>) {
    std::future::poll_fn(move |cx| {
        let mut driven = driven.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(connection) = driven.as_mut() else {
            return Poll::Ready(());
        };
        let ended = Pin::new(connection).poll(cx).is_ready();
        if !ended {
            return Poll::Pending;
        }
        *driven = None;
        Poll::Ready(())
    })
    .await;
}

/// Closes what was idle for too long, until nothing is left.
async fn reap(connections: Weak<Connections>, idle_for: Duration) {
    loop {
        tokio::time::sleep(idle_for / 2).await;
        let Some(connections) = connections.upgrade() else {
            return;
        };
        let mut kept = connections.kept();
        kept.drop_expired(idle_for);
        if kept.origins.is_empty() {
            kept.reaped = false;
            return;
        }
    }
}

impl Kept {
    fn drop_expired(&mut self, idle_for: Duration) {
        let now = Instant::now();
        let fresh = |since: Instant| now.duration_since(since) < idle_for;
        self.retain(|idle| fresh(idle.since) && idle.line.connection.is_idle());
        self.origins.retain(|_, origin| {
            origin.shared.retain(|shared| {
                shared.is_usable() && (shared.streams() > 0 || fresh(shared.used()))
            });
            // Who opens a connection now holds the gate too.
            let opening = Arc::strong_count(&origin.opening) > 1;
            opening || !origin.idle.is_empty() || !origin.shared.is_empty()
        });
    }

    /// Makes room: a whole part of them at once, so that it is not done for each request.
    fn drop_oldest(&mut self, most: usize) {
        let mut times: Vec<Instant> = Vec::with_capacity(self.idle);
        for origin in self.origins.values() {
            times.extend(origin.idle.iter().map(|idle| idle.since));
        }
        let Some(last) = most.div_ceil(8).min(times.len()).checked_sub(1) else {
            return;
        };
        let (_, last, _) = times.select_nth_unstable(last);
        let last = *last;
        self.retain(|idle| idle.since > last);
    }

    fn retain(&mut self, mut keep: impl FnMut(&mut Idle) -> bool) {
        let mut left = 0;
        for origin in self.origins.values_mut() {
            origin.idle.retain_mut(&mut keep);
            left += origin.idle.len();
        }
        self.idle = left;
    }
}

impl Origin {
    /// A place on a connection that is shared.
    fn stream(&mut self) -> Option<Line> {
        self.shared.retain(|shared| shared.is_usable());
        let free = self.shared.iter().find(|shared| shared.has_room())?;
        free.streams.fetch_add(1, Ordering::Relaxed);
        Some(Line::Http2(free.clone(), free.send.clone()))
    }
}

impl Shared {
    fn is_usable(&self) -> bool {
        !self.retired.load(Ordering::Relaxed) && !self.send.is_closed()
    }

    /// Whether the peer takes another request now.
    fn has_room(&self) -> bool {
        let most = self.most_streams().unwrap_or(0);
        self.streams() < most.min(MOST_STREAMS)
    }

    /// How many requests at once the peer takes; `None` when the connection has ended.
    fn most_streams(&self) -> Option<usize> {
        let driven = self.driven.lock().unwrap_or_else(PoisonError::into_inner);
        driven.as_ref().map(Driven::current_max_send_streams)
    }

    fn streams(&self) -> usize {
        self.streams.load(Ordering::Relaxed)
    }

    fn used(&self) -> Instant {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn leave(&self) {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        self.streams.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Lease {
    fn is_http2(&self) -> bool {
        matches!(self.line, Some(Line::Http2(..)))
    }

    /// What the request goes over.
    pub(super) fn line(&mut self) -> &mut Line {
        self.line.as_mut().expect("given back only at the end")
    }

    fn address(&self) -> SocketAddr {
        match self.line.as_ref().expect("given back only at the end") {
            Line::Http1(line) => line.address,
            Line::Http2(shared, _) => shared.address,
        }
    }

    async fn is_ready(&mut self) -> bool {
        match self.line() {
            Line::Http1(line) => line.connection.is_idle(),
            Line::Http2(_, send) => send.ready().await.is_ok(),
        }
    }

    /// The answer ended so.
    pub(super) fn done(self, end: End) {
        match end {
            End::Whole => self.keep(),
            End::OverLimit => self.leave(),
            End::Cut(_) => drop(self),
        }
    }

    /// The answer was read whole: the connection is fit for the next request.
    pub(super) fn keep(mut self) {
        match self.line.take() {
            Some(Line::Http1(line)) => self.connections.put(self.origin.clone(), line),
            Some(Line::Http2(shared, send)) => {
                drop(send);
                shared.leave();
                let mut kept = self.connections.kept();
                self.connections.see_to_reaping(&mut kept);
            }
            None => {}
        }
    }

    /// The answer's rest is left. That ends an HTTP/1 connection, and nothing but the request on
    /// an HTTP/2 one.
    fn leave(self) {
        if self.is_http2() {
            self.keep();
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(Line::Http2(shared, _)) = self.line.take() {
            // It was late: others on it may go on, but nobody new should rely on it.
            shared.retired.store(true, Ordering::Relaxed);
            shared.leave();
        }
    }
}
