//! A target that breaks HTTP: it reads a request, writes it down, and answers with raw bytes.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::target::{Open, Recorder, Request, number};

/// How large a head and a body of a request may be here.
const LARGEST: usize = 4 << 20;

/// What a raw target does with one request: step by step.
#[derive(Clone, Debug)]
pub struct RawAnswer {
    steps: Vec<Step>,
    /// The word for it in a history, when it is known before the first step: `delivered`.
    /// Otherwise the end is written down when the connection ends.
    outcome: Option<&'static str>,
    again: bool,
}

/// One step of an answer.
#[derive(Clone, Debug)]
pub enum Step {
    /// Sends these bytes.
    Send(Bytes),
    /// Sends these bytes again and again, until the peer is gone.
    Forever(Bytes),
    /// Sends these bytes one by one, each after a while.
    Trickle(Bytes, Duration),
    /// Waits.
    Wait(Duration),
    /// Says that nothing more comes, and goes on reading.
    HalfClose,
    /// Waits until the peer is gone.
    Hang,
    /// Resets the connection.
    Reset,
}

impl RawAnswer {
    /// These steps, and then the connection is closed; the router cannot take it for delivered.
    pub fn failing(steps: impl Into<Vec<Step>>) -> Self {
        Self {
            steps: steps.into(),
            outcome: None,
            again: false,
        }
    }

    /// These steps, which the router must take for delivered.
    pub fn delivered(steps: impl Into<Vec<Step>>) -> Self {
        Self {
            steps: steps.into(),
            outcome: Some("delivered"),
            again: false,
        }
    }

    /// 200 without a body; the connection takes another request.
    pub fn ok() -> Self {
        Self {
            again: true,
            ..Self::delivered([Step::send("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")])
        }
    }
}

impl Step {
    /// Sends this text.
    pub fn send(text: &'static str) -> Self {
        Self::Send(Bytes::from_static(text.as_bytes()))
    }
}

/// A running raw target. Dropped, it closes its port and its connections.
#[derive(Debug)]
pub struct RawTarget {
    address: SocketAddr,
    _stop: watch::Sender<()>,
}

impl RawTarget {
    /// Starts on a free loopback port.
    pub async fn start<R: Recorder>(
        behaviour: impl Fn(&Request) -> RawAnswer + Send + Sync + 'static,
        recorder: Arc<R>,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await;
        let listener = listener.expect("loopback has a free port");
        let address = listener.local_addr();
        let address = address.expect("a bound socket has an address");
        let (stop, mut stopped) = watch::channel(());
        let behaviour = Arc::new(behaviour);
        tokio::spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                tokio::select! {
                    _ = stopped.changed() => return,
                    Some(_) = connections.join_next() => {}
                    accepted = listener.accept() => {
                        let Ok((stream, _)) = accepted else { continue };
                        let (behaviour, recorder) = (behaviour.clone(), recorder.clone());
                        connections.spawn(async move {
                            // A peer that goes away in the middle is what tests are about.
                            let _ = serve(stream, &*behaviour, &*recorder).await;
                        });
                    }
                }
            }
        });
        Self {
            address,
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
}

async fn serve<R: Recorder>(
    mut stream: TcpStream,
    behaviour: &(dyn Fn(&Request) -> RawAnswer + Send + Sync),
    recorder: &R,
) -> io::Result<()> {
    let mut buffer = BytesMut::new();
    while let Some(request) = read(&mut stream, &mut buffer).await? {
        let open = Open::start(recorder, &request);
        let answer = behaviour(&request);
        let mut open = Some(open);
        if let Some(outcome) = answer.outcome
            && let Some(open) = open.take()
        {
            open.end(outcome);
        }
        for step in answer.steps {
            take(&mut stream, step).await?;
        }
        if !answer.again {
            break;
        }
    }
    Ok(())
}

async fn take(stream: &mut TcpStream, step: Step) -> io::Result<()> {
    match step {
        Step::Send(bytes) => stream.write_all(&bytes).await,
        Step::Forever(bytes) => loop {
            stream.write_all(&bytes).await?;
            tokio::task::yield_now().await;
        },
        Step::Trickle(bytes, every) => {
            for byte in &bytes {
                stream.write_all(std::slice::from_ref(byte)).await?;
                tokio::time::sleep(every).await;
            }
            Ok(())
        }
        Step::Wait(time) => {
            let mut rest = [0; 1024];
            tokio::select! {
                () = tokio::time::sleep(time) => Ok(()),
                // The peer is gone: so is the request.
                gone = stream.read(&mut rest) => Err(gone.err().unwrap_or_else(ended)),
            }
        }
        Step::HalfClose => stream.shutdown().await,
        Step::Hang => {
            let mut rest = [0; 1024];
            while stream.read(&mut rest).await? > 0 {}
            Err(ended())
        }
        Step::Reset => {
            stream.set_zero_linger()?;
            Err(ended())
        }
    }
}

fn ended() -> io::Error {
    io::Error::other("the peer is gone")
}

/// The next request of a connection; `None` when the peer sends no more.
async fn read(stream: &mut TcpStream, buffer: &mut BytesMut) -> io::Result<Option<Request>> {
    let head = loop {
        if let Some(at) = find(buffer, b"\r\n\r\n") {
            break buffer.split_to(at + 4);
        }
        if buffer.len() > LARGEST || stream.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
    };
    let (path, headers) = parse(&head).ok_or_else(|| io::Error::other("no request"))?;
    let length = headers.get(http::header::CONTENT_LENGTH);
    let length = length.and_then(|value| value.to_str().ok()?.parse().ok());
    let length: usize = length.unwrap_or(0).min(LARGEST);
    while buffer.len() < length {
        if stream.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
    }
    let mut request = Request {
        path,
        headers,
        body: buffer.split_to(length).freeze(),
        key: String::new(),
        number: None,
        attempt: 0,
    };
    number(&mut request);
    Ok(Some(request))
}

fn parse(head: &[u8]) -> Option<(String, HeaderMap)> {
    let text = std::str::from_utf8(head).ok()?;
    let mut lines = text.split("\r\n");
    let path = lines.next()?.split(' ').nth(1)?.to_owned();
    let mut headers = HeaderMap::new();
    for line in lines.filter(|line| !line.is_empty()) {
        let (name, value) = line.split_once(':')?;
        headers.append(
            HeaderName::from_bytes(name.as_bytes()).ok()?,
            HeaderValue::from_str(value.trim()).ok()?,
        );
    }
    Some((path, headers))
}

fn find(hay: &[u8], needle: &[u8]) -> Option<usize> {
    hay.windows(needle.len())
        .position(|window| window == needle)
}
