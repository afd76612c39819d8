//! A TCP proxy that breaks connections on purpose, in front of a target or a broker.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::lock;

/// What a proxy does with one connection.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Fault {
    /// What becomes of the connection itself.
    pub accept: Accept,
    /// From the one who connects to the one behind the proxy.
    pub up: Way,
    /// Back.
    pub down: Way,
}

/// What becomes of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Accept {
    /// It is passed on.
    #[default]
    Pass,
    /// It is closed at once.
    Close,
    /// It is reset at once.
    Reset,
    /// It stays open, and nothing ever comes of it.
    Ignore,
}

/// What happens to the bytes of one direction.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Way {
    /// Before each piece.
    pub delay: Duration,
    /// The largest piece that is passed on at once; 0 = as they come.
    pub piece: usize,
    /// Sent before the first byte that is passed on, when that comes.
    pub garbage: Bytes,
    /// When more than so many bytes come, it ends like this.
    pub end: Option<(u64, End)>,
}

/// How a direction ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Both directions are closed.
    Cut,
    /// Both directions are reset.
    Reset,
    /// This direction is closed, the other goes on.
    HalfClose,
    /// Nothing more is passed on, everything stays open.
    Stall,
}

impl Fault {
    /// None: everything is passed on as it comes.
    pub fn none() -> Self {
        Self::default()
    }

    /// The connection itself.
    pub fn accept(accept: Accept) -> Self {
        Self {
            accept,
            ..Self::default()
        }
    }

    /// What comes back.
    pub fn down(down: Way) -> Self {
        Self {
            down,
            ..Self::default()
        }
    }

    /// What goes there.
    pub fn up(up: Way) -> Self {
        Self {
            up,
            ..Self::default()
        }
    }
}

impl Way {
    /// Ends after so many bytes.
    pub fn ends(after: u64, end: End) -> Self {
        Self {
            end: Some((after, end)),
            ..Self::default()
        }
    }

    /// In pieces of at most so many bytes, each after a while.
    pub fn trickles(piece: usize, delay: Duration) -> Self {
        Self {
            piece,
            delay,
            ..Self::default()
        }
    }

    /// Begins with these bytes.
    pub fn garbage(bytes: impl Into<Bytes>) -> Self {
        Self {
            garbage: bytes.into(),
            ..Self::default()
        }
    }
}

/// Chooses the fault of each connection, which are counted from 0.
type Choose = Arc<dyn Fn(u64) -> Fault + Send + Sync>;

/// A running proxy. Dropped, it closes its port and its connections.
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    _stop: watch::Sender<()>,
}

struct Shared {
    upstream: SocketAddr,
    choose: Mutex<Choose>,
    accepted: AtomicU64,
    /// Changed when all connections are to be cut.
    cut: watch::Sender<u64>,
    /// Nothing is passed on before then.
    stalled: Mutex<Option<Instant>>,
    /// What has these bytes on its way there is swallowed, once, and its connection cut.
    swallow: Mutex<Option<Bytes>>,
}

impl Proxy {
    /// Starts on a free loopback port, without a fault.
    pub async fn start(upstream: SocketAddr) -> Self {
        Self::start_at(([127, 0, 0, 1], 0).into(), upstream).await
    }

    /// As [`Proxy::start`], at this address: for brokers that tell their clients where to go.
    ///
    /// # Panics
    /// When somebody listens there already.
    pub async fn start_at(listen: SocketAddr, upstream: SocketAddr) -> Self {
        let listener = TcpListener::bind(listen).await;
        let listener = listener.expect("the address is free");
        let address = listener.local_addr();
        let address = address.expect("a bound socket has an address");
        let shared = Arc::new(Shared {
            upstream,
            choose: Mutex::new(Arc::new(|_| Fault::none())),
            accepted: AtomicU64::new(0),
            cut: watch::Sender::new(0),
            stalled: Mutex::default(),
            swallow: Mutex::default(),
        });
        let (stop, stopped) = watch::channel(());
        tokio::spawn(run(listener, shared.clone(), stopped));
        Self {
            address,
            shared,
            _stop: stop,
        }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its URL with this path (`/hook`).
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// From now on every new connection has this fault.
    pub fn set(&self, fault: Fault) {
        self.choose(move |_| fault.clone());
    }

    /// From now on each new connection has the fault chosen for it; they are counted from 0.
    pub fn choose(&self, choose: impl Fn(u64) -> Fault + Send + Sync + 'static) {
        *lock(&self.shared.choose) = Arc::new(choose);
    }

    /// Cuts every open connection.
    pub fn cut_all(&self) {
        self.shared.cut.send_modify(|times| *times += 1);
    }

    /// Passes nothing on for so long, in neither direction; then everything, as it came.
    pub fn stall_for(&self, time: Duration) {
        let until = Instant::now() + time;
        *lock(&self.shared.stalled) = Some(until);
    }

    /// The next that goes there and has these bytes in it does not arrive, and its connection is cut.
    pub fn swallow(&self, bytes: impl Into<Bytes>) {
        *lock(&self.shared.swallow) = Some(bytes.into());
    }

    /// How many connections there were.
    pub fn accepted(&self) -> u64 {
        self.shared.accepted.load(Ordering::Relaxed)
    }
}

impl std::fmt::Debug for Proxy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Proxy({} to {})", self.address, self.shared.upstream)
    }
}

async fn run(listener: TcpListener, shared: Arc<Shared>, mut stopped: watch::Receiver<()>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            _ = stopped.changed() => return,
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => {
                let Ok((stream, _)) = accepted else { continue };
                let number = shared.accepted.fetch_add(1, Ordering::Relaxed);
                let fault = shared.fault(number);
                connections.spawn(pass(stream, shared.clone(), fault));
            }
        }
    }
}

impl Shared {
    fn fault(&self, number: u64) -> Fault {
        let choose = lock(&self.choose).clone();
        choose(number)
    }

    async fn while_stalled(&self) {
        let until = *lock(&self.stalled);
        if let Some(until) = until {
            tokio::time::sleep_until(until).await;
        }
    }

    /// Whether this is what is to be swallowed.
    fn swallows(&self, bytes: &[u8]) -> bool {
        let mut swallow = lock(&self.swallow);
        let found = swallow
            .as_ref()
            .is_some_and(|one| bytes.windows(one.len()).any(|part| part == one));
        if found {
            *swallow = None;
        }
        found
    }
}

async fn pass(stream: TcpStream, shared: Arc<Shared>, fault: Fault) {
    let mut cut = shared.cut.subscribe();
    tokio::select! {
        _ = cut.changed() => {}
        // A peer that goes away in the middle is what tests are about.
        _ = pass_on(stream, &shared, fault) => {}
    }
}

async fn pass_on(stream: TcpStream, shared: &Shared, fault: Fault) -> io::Result<()> {
    match fault.accept {
        Accept::Pass => {}
        Accept::Close => return Ok(()),
        Accept::Reset => return stream.set_zero_linger(),
        Accept::Ignore => return std::future::pending().await,
    }
    let behind = TcpStream::connect(shared.upstream).await?;
    stream.set_nodelay(true)?;
    behind.set_nodelay(true)?;
    let ((near_read, near_write), (far_read, far_write)) =
        (stream.into_split(), behind.into_split());
    let up = copy(
        (near_read, far_write),
        fault.up,
        |bytes| shared.swallows(bytes),
        shared,
    );
    let down = copy((far_read, near_write), fault.down, |_| false, shared);
    // Both, unless one of them ends everything: then the halves are dropped.
    let (up, down) = tokio::try_join!(up, down)?;
    drop((up, down));
    Ok(())
}

type Halves = (OwnedReadHalf, OwnedWriteHalf);

/// Passes one direction on to its end. An error ends the other direction too.
async fn copy(
    (mut from, mut to): Halves,
    way: Way,
    swallows: impl Fn(&[u8]) -> bool,
    shared: &Shared,
) -> io::Result<Halves> {
    let mut garbage = way.garbage.clone();
    let mut buffer = vec![0; 16 << 10];
    let mut passed = 0;
    loop {
        let most = way.left(passed).min(buffer.len());
        // At least one byte: an end comes when there is more, not before.
        let n = from.read(&mut buffer[..most.max(1)]).await?;
        if n == 0 {
            to.shutdown().await?;
            return Ok((from, to));
        }
        shared.while_stalled().await;
        if swallows(&buffer[..n]) {
            return Err(io::Error::other("swallowed by the proxy"));
        }
        to.write_all(&std::mem::take(&mut garbage)).await?;
        if most == 0 {
            return way.finish(from, to).await;
        }
        for piece in buffer[..n].chunks(way.piece_of(n)) {
            if !way.delay.is_zero() {
                tokio::time::sleep(way.delay).await;
            }
            to.write_all(piece).await?;
        }
        passed += n as u64;
    }
}

impl Way {
    fn left(&self, passed: u64) -> usize {
        let left = |(after, _): (u64, End)| after.saturating_sub(passed);
        let left = self.end.map_or(u64::MAX, left);
        usize::try_from(left).unwrap_or(usize::MAX)
    }

    fn piece_of(&self, n: usize) -> usize {
        if self.piece == 0 { n } else { self.piece }
    }

    async fn finish(&self, mut from: OwnedReadHalf, mut to: OwnedWriteHalf) -> io::Result<Halves> {
        let ended = || io::Error::other("cut by the proxy");
        match self.end.map(|(_, end)| end) {
            Some(End::HalfClose) => {
                to.shutdown().await?;
                // What still comes is swallowed, so that the peer is not told.
                let mut rest = [0; 4096];
                while from.read(&mut rest).await? > 0 {}
                Ok((from, to))
            }
            Some(End::Stall) => {
                // Until the peer goes away: then there is nothing left to be stalled.
                let mut rest = [0; 4096];
                while from.read(&mut rest).await? > 0 {}
                std::future::pending().await
            }
            Some(End::Reset) => {
                to.as_ref().set_zero_linger()?;
                Err(ended())
            }
            Some(End::Cut) | None => Err(ended()),
        }
    }
}
