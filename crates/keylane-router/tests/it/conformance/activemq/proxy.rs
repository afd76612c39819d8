//! A proxy that knows enough of AMQP to swallow an ack and to spoil a password.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// A disposition with the state `accepted`, in the encoding of the only client that comes this way.
const DISPOSITION: [u8; 3] = [0x00, 0x53, 0x15];
const ACCEPTED: [u8; 3] = [0x00, 0x53, 0x24];

/// A running proxy. Dropped, it ends with its connections.
pub(crate) struct Proxy {
    port: u16,
    faults: Arc<Faults>,
    _stop: watch::Sender<()>,
}

struct Faults {
    broker: (String, u16),
    /// Changed when all connections are to end.
    cut: watch::Sender<u64>,
    now: Mutex<Now>,
}

#[derive(Default)]
struct Now {
    away: bool,
    acks_to_lose: usize,
    /// These bytes are spoilt on their way up.
    garbled: Option<String>,
    /// Nothing is passed on before this.
    still_until: Option<Instant>,
}

impl Proxy {
    pub(crate) async fn start(broker: (String, u16)) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("bound").port();
        let faults = Arc::new(Faults {
            broker,
            cut: watch::Sender::new(0),
            now: Mutex::default(),
        });
        let (stop, stopped) = watch::channel(());
        tokio::spawn(run(listener, faults.clone(), stopped));
        Self {
            port,
            faults,
            _stop: stop,
        }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn cut(&self) {
        self.faults.cut.send_modify(|times| *times += 1);
    }

    pub(crate) fn away(&self) {
        self.now(|now| now.away = true);
        self.cut();
    }

    pub(crate) fn back(&self) {
        self.now(|now| now.away = false);
    }

    /// The next ack goes nowhere.
    pub(crate) fn lose_an_ack(&self) {
        self.now(|now| now.acks_to_lose += 1);
    }

    /// Passes nothing on for so long.
    pub(crate) fn stand_still(&self, time: Duration) {
        self.now(|now| now.still_until = Some(Instant::now() + time));
    }

    /// Spoils these bytes from now on.
    pub(crate) fn garble(&self, bytes: Option<String>) {
        self.now(|now| now.garbled = bytes);
    }

    fn now(&self, change: impl FnOnce(&mut Now)) {
        change(&mut self.faults.now.lock().expect("no panic while locked"));
    }
}

async fn run(listener: TcpListener, faults: Arc<Faults>, mut stopped: watch::Receiver<()>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            _ = stopped.changed() => return,
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => {
                let Ok((near, _)) = accepted else { continue };
                let faults = faults.clone();
                connections.spawn(async move {
                    let mut cut = faults.cut.subscribe();
                    if faults.now.lock().expect("no panic while locked").away {
                        return;
                    }
                    tokio::select! {
                        _ = cut.changed() => {}
                        // Whoever goes away is what tests are about.
                        _ = pass(near, &faults) => {}
                    }
                });
            }
        }
    }
}

async fn pass(near: TcpStream, faults: &Faults) -> std::io::Result<()> {
    let (host, port) = &faults.broker;
    let far = TcpStream::connect((host.as_str(), *port)).await?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    let (near_read, near_write) = near.into_split();
    let (far_read, far_write) = far.into_split();
    tokio::select! {
        ended = up(near_read, far_write, faults) => ended,
        ended = down(far_read, near_write, faults) => ended,
    }
}

async fn down(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    faults: &Faults,
) -> std::io::Result<()> {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let n = from.read(&mut buffer).await?;
        if n == 0 {
            return Ok(());
        }
        faults.move_on().await;
        to.write_all(&buffer[..n]).await?;
    }
}

/// Frame by frame.
async fn up(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    faults: &Faults,
) -> std::io::Result<()> {
    loop {
        let mut frame = vec![0; 8];
        from.read_exact(&mut frame).await?;
        if !frame.starts_with(b"AMQP") {
            let size = u32::from_be_bytes([frame[0], frame[1], frame[2], frame[3]]);
            frame.resize(size as usize, 0);
            from.read_exact(&mut frame[8..]).await?;
        }
        faults.move_on().await;
        if faults.filter(&mut frame) {
            to.write_all(&frame).await?;
        }
    }
}

impl Faults {
    /// Waits while everything stands still.
    async fn move_on(&self) {
        let until = self.now.lock().expect("no panic while locked").still_until;
        if let Some(until) = until {
            tokio::time::sleep_until(until).await;
        }
    }

    /// Spoils a frame, or says that it goes nowhere.
    fn filter(&self, frame: &mut [u8]) -> bool {
        let mut now = self.now.lock().expect("no panic while locked");
        if let Some(bytes) = now.garbled.as_ref().filter(|bytes| !bytes.is_empty())
            && let Some(at) = find(frame, bytes.as_bytes())
        {
            frame[at] ^= 1;
        }
        // Of the first session: over others the adapter asks the broker about the queue.
        let ack = frame.get(6..8) == Some(&[0, 0])
            && frame
                .get(8..)
                .is_some_and(|body| body.starts_with(&DISPOSITION));
        if ack && now.acks_to_lose > 0 && find(frame, &ACCEPTED).is_some() {
            now.acks_to_lose -= 1;
            return false;
        }
        true
    }
}

fn find(bytes: &[u8], part: &[u8]) -> Option<usize> {
    bytes.windows(part.len()).position(|found| found == part)
}
