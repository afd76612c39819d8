//! An HTTP/1.1 server on loopback that records every request it gets and answers by a script.

use std::future::{Future, pending};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use super::script::{Answer, Behaviour};

/// A request as the target got it.
#[derive(Clone, Debug)]
pub struct Request {
    /// Its path and query.
    pub path: String,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Bytes,
    /// The producer's key: `k` of the JSON body, else `keylane-key`, else empty.
    pub key: String,
    /// The producer's number within the key: `n` of the JSON body.
    pub number: Option<u64>,
    /// `keylane-attempt`.
    pub attempt: u32,
}

/// Whether a request came or ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// It was read whole; now the answer begins.
    Start,
    /// The answer is decided; it is recorded before its first byte leaves, so that nothing the
    /// router does because of it is recorded earlier. Without an answer: the connection ended.
    End,
}

/// One line of the target's history.
#[derive(Clone, Debug)]
pub struct Event {
    /// On this process's monotonic clock.
    pub at: Instant,
    /// Start or end.
    pub kind: EventKind,
    /// As [`Request::key`].
    pub key: String,
    /// As [`Request::number`].
    pub number: Option<u64>,
    /// As [`Request::attempt`].
    pub attempt: u32,
    /// For an end: `delivered`, `not-yet`, `busy`, `failed`, `refused`.
    pub outcome: Option<&'static str>,
}

/// Takes down what happens. Called on the serving task: it must not block.
pub trait Recorder: Send + Sync + 'static {
    /// Whether events are wanted at all; without, requests are not even read for key and number.
    fn wanted(&self) -> bool {
        true
    }

    /// Takes one event.
    fn record(&self, event: Event, request: &Request);
}

/// Records nothing, for benchmarks.
impl Recorder for () {
    fn wanted(&self) -> bool {
        false
    }

    fn record(&self, _: Event, _: &Request) {}
}

/// Keeps everything in memory, for tests that wait for what they expect.
#[derive(Debug, Default)]
pub struct Events {
    kept: Mutex<Kept>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Kept {
    events: Vec<Event>,
    requests: Vec<Request>,
}

impl Recorder for Events {
    fn record(&self, event: Event, request: &Request) {
        let mut kept = self.kept();
        if event.kind == EventKind::Start {
            kept.requests.push(request.clone());
        }
        kept.events.push(event);
        drop(kept);
        self.changed.notify_waiters();
    }
}

impl Events {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().expect("never poisoned")
    }

    /// Everything so far.
    pub fn all(&self) -> Vec<Event> {
        self.kept().events.clone()
    }

    /// The requests so far, in the order they came.
    pub fn requests(&self) -> Vec<Request> {
        self.kept().requests.clone()
    }

    /// Waits until the events so far satisfy `enough`, and returns them.
    pub async fn until(&self, enough: impl Fn(&[Event]) -> bool) -> Vec<Event> {
        loop {
            let changed = self.changed.notified();
            let mut changed = std::pin::pin!(changed);
            // Before looking, or a change in between would be missed.
            changed.as_mut().enable();
            if enough(&self.kept().events) {
                return self.all();
            }
            changed.await;
        }
    }

    /// Waits until so many requests have ended.
    pub async fn ended(&self, count: usize) -> Vec<Event> {
        let ends = |events: &[Event]| events.iter().filter(|e| e.kind == EventKind::End).count();
        self.until(|events| ends(events) >= count).await
    }

    /// Waits until so many requests have come.
    pub async fn started(&self, count: usize) -> Vec<Event> {
        let starts = |events: &[Event]| {
            let started = events.iter().filter(|e| e.kind == EventKind::Start);
            started.count()
        };
        self.until(|events| starts(events) >= count).await
    }
}

/// A running test target. Dropped, it closes its port and its connections.
#[derive(Debug)]
pub struct Target<R = Events> {
    address: SocketAddr,
    recorder: Arc<R>,
    _stop: watch::Sender<()>,
}

impl Target {
    /// Starts on a free loopback port and keeps its events in memory.
    pub async fn start(behaviour: impl Behaviour) -> Self {
        Self::start_with(behaviour, Events::default()).await
    }

    /// Starts one that answers 200 to everything.
    pub async fn always_ok() -> Self {
        Self::start(super::fixed(Answer::ok())).await
    }
}

impl<R: Recorder> Target<R> {
    /// Starts on a free loopback port with a recorder of the caller's.
    pub async fn start_with(behaviour: impl Behaviour, recorder: R) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0")
            .await
            .expect("loopback has a free port");
        let address = listener
            .local_addr()
            .expect("a bound socket has an address");
        let recorder = Arc::new(recorder);
        let (stop, mut stopped) = watch::channel(());
        let shutdown = async move {
            let _ = stopped.changed().await;
        };
        tokio::spawn(run(listener, behaviour, recorder.clone(), shutdown));
        Self {
            address,
            recorder,
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

    /// What was recorded.
    pub fn recorder(&self) -> &Arc<R> {
        &self.recorder
    }
}

/// Serves until `shutdown` ends, then closes every connection.
pub async fn run<R: Recorder>(
    listener: TcpListener,
    behaviour: impl Behaviour,
    recorder: Arc<R>,
    shutdown: impl Future<Output = ()>,
) {
    let behaviour: Arc<dyn Behaviour> = Arc::new(behaviour);
    let mut connections = JoinSet::new();
    let mut shutdown = std::pin::pin!(shutdown);
    loop {
        tokio::select! {
            () = &mut shutdown => return,
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => {
                let Ok((stream, _)) = accepted else { continue };
                connections.spawn(serve(stream, behaviour.clone(), recorder.clone()));
            }
        }
    }
}

async fn serve<R: Recorder>(stream: TcpStream, behaviour: Arc<dyn Behaviour>, recorder: Arc<R>) {
    let _ = stream.set_nodelay(true);
    let service = service_fn(|request| respond(request, &*behaviour, &*recorder));
    // Peers that go away in the middle are what tests are about.
    let _ = http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

async fn respond<R: Recorder>(
    request: hyper::Request<Incoming>,
    behaviour: &dyn Behaviour,
    recorder: &R,
) -> Result<Response<Reply>, Ended> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map_err(|_| Ended)?.to_bytes();
    let came = tokio::time::Instant::now();
    let request = read(head, body, recorder.wanted());
    let open = Open::start(recorder, &request);
    let answer = behaviour.answer(&request);
    let answer = match answer {
        Answer::After(delay, then) => {
            behaviour.wait(came + delay).await;
            *then
        }
        now => now,
    };
    reply(answer, open).await
}

async fn reply<R: Recorder>(answer: Answer, open: Open<'_, R>) -> Result<Response<Reply>, Ended> {
    // Only for those who look: the plain 200 of a benchmark must be cheap.
    let outcome = if open.recorder.wanted() {
        answer.outcome()
    } else {
        ""
    };
    let response = match answer {
        Answer::Status {
            code,
            headers,
            body,
        } => status(code, headers, body),
        Answer::Hang | Answer::After(..) => pending().await,
        Answer::Reset => return Err(Ended),
        Answer::SlowBody => Response::new(Reply::broken(End::Stall)),
        Answer::CutBody => Response::new(Reply::broken(End::Flush)),
    };
    open.end(outcome);
    Ok(response)
}

fn status(code: u16, headers: Vec<(&'static str, String)>, body: Bytes) -> Response<Reply> {
    let mut response = Response::new(Reply::whole(body));
    *response.status_mut() = code.try_into().expect("a script's status is one");
    for (name, value) in headers {
        let value = HeaderValue::try_from(value).expect("a script's header is one");
        response
            .headers_mut()
            .insert(HeaderName::from_static(name), value);
    }
    response
}

fn read(head: http::request::Parts, body: Bytes, wanted: bool) -> Request {
    let mut request = Request {
        path: String::new(),
        headers: head.headers,
        body,
        key: String::new(),
        number: None,
        attempt: 0,
    };
    if wanted {
        request.path = head.uri.to_string();
        number(&mut request);
    }
    request
}

/// What a producer puts into the payload.
#[derive(Deserialize)]
struct Numbered {
    k: Option<String>,
    n: Option<u64>,
}

pub(super) fn number(request: &mut Request) {
    let header = |name| {
        request
            .headers
            .get(name)
            .and_then(|value| value.to_str().ok())
    };
    let attempt = header("keylane-attempt").and_then(|text| text.parse().ok());
    let key = header("keylane-key").map(str::to_owned);
    let numbered = serde_json::from_slice::<Numbered>(&request.body).ok();
    let (k, n) = numbered.map_or((None, None), |numbered| (numbered.k, numbered.n));
    request.attempt = attempt.unwrap_or(0);
    request.key = k.or(key).unwrap_or_default();
    request.number = n;
}

/// A request being answered. Dropped without an end, the connection ended: that is recorded too.
pub(super) struct Open<'a, R: Recorder> {
    recorder: &'a R,
    request: &'a Request,
    ended: bool,
}

impl<'a, R: Recorder> Open<'a, R> {
    pub(super) fn start(recorder: &'a R, request: &'a Request) -> Self {
        let open = Self {
            recorder,
            request,
            ended: false,
        };
        open.record(EventKind::Start, None);
        open
    }

    pub(super) fn end(mut self, outcome: &'static str) {
        self.ended = true;
        self.record(EventKind::End, Some(outcome));
    }

    fn record(&self, kind: EventKind, outcome: Option<&'static str>) {
        if !self.recorder.wanted() {
            return;
        }
        let event = Event {
            at: Instant::now(),
            kind,
            key: self.request.key.clone(),
            number: self.request.number,
            attempt: self.request.attempt,
            outcome,
        };
        self.recorder.record(event, self.request);
    }
}

impl<R: Recorder> Drop for Open<'_, R> {
    fn drop(&mut self) {
        if !self.ended {
            self.record(EventKind::End, Some("failed"));
        }
    }
}

/// The connection ends here.
#[derive(Debug, thiserror::Error)]
#[error("the script ends the connection")]
struct Ended;

/// An answer's body.
struct Reply {
    data: Option<Bytes>,
    length: u64,
    end: End,
}

/// What comes after a body's data.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Whole,
    Stall,
    Flush,
    Cut,
}

impl Reply {
    fn whole(body: Bytes) -> Self {
        Self {
            length: body.len() as u64,
            data: Some(body).filter(|body| !body.is_empty()),
            end: End::Whole,
        }
    }

    /// The beginning of a body whose rest never comes.
    fn broken(end: End) -> Self {
        Self {
            data: Some(Bytes::from_static(b"{\"ack\":")),
            length: 100,
            end,
        }
    }
}

impl Body for Reply {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        if let Some(data) = self.data.take() {
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        match self.end {
            End::Whole => Poll::Ready(None),
            End::Stall => Poll::Pending,
            End::Flush => {
                // The server writes what it has only when the body has nothing for it.
                self.end = End::Cut;
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            End::Cut => Poll::Ready(Some(Err(io::Error::other("cut by the script")))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.data.is_none() && self.end == End::Whole
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.length)
    }
}
