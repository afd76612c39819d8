//! The HTTP call: a message as POST, the answer as outcome.

use std::error::Error;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use http::header::HOST;
use http::{Method, Request, Response, Version};
use hyper::body::{Body, Incoming};
use hyper::client::conn::TrySendError;
use tokio::time::{Instant, Sleep};

use super::answer::{self, Failure};
use super::body::{Answer, End};
use super::connections::{Connections, Lease, LeaseLost, Limits, NoConnection, Payload};
use super::dial::{DialError, Resolve, SystemResolver};
use super::guard::Guard;
use super::target::{Known, TargetUrl};
use super::tls::{Root, Tls};
use super::{Attempt, Dispatch, headers};
use crate::message::Message;
use crate::outcome::{Outcome, Reason};
use crate::plan::{SourceKind, TimeoutPlan};

/// What stands for a secret that a target sent back.
const MASK: &[u8] = b"***";

/// Settings of [`HttpDispatch`]; time limits come with each attempt.
#[derive(Clone, Debug)]
pub struct HttpOptions {
    /// Idle connections kept to all origins together. An origin has no limit of its own: there are
    /// never more than attempts were under way to it at once.
    pub idle_connections: usize,
    /// How long an idle connection is kept.
    pub idle_for: Duration,
    /// How much of an answer's body is read; the rest is left.
    pub answer_limit: usize,
    /// How many headers an answer may have.
    pub answer_headers: usize,
    /// How large an answer's head may be.
    pub answer_head_limit: usize,
    /// Whether messages of every source may call this machine; else only those of the embedded
    /// queue and of the program's own sources, or where a pool lists it.
    pub loopback: bool,
    /// Where this router listens itself: it is not called there.
    pub listeners: Vec<SocketAddr>,
    /// Whether `/api/test/*` of the listeners may be called all the same.
    pub test_targets: bool,
    /// Certificates to trust besides the system's.
    pub extra_roots: Vec<Root>,
    /// Finds the addresses of hosts.
    pub resolver: Arc<dyn Resolve>,
}

impl Default for HttpOptions {
    fn default() -> Self {
        Self {
            idle_connections: 4096,
            idle_for: Duration::from_secs(30),
            answer_limit: 64 << 10,
            answer_headers: 100,
            answer_head_limit: 64 << 10,
            loopback: false,
            listeners: Vec::new(),
            test_targets: false,
            extra_roots: Vec::new(),
            resolver: Arc::new(SystemResolver),
        }
    }
}

/// Delivers over HTTP/1.1, or HTTP/2 where a TLS peer offers it. Cheap to clone; clones share
/// their connections.
#[derive(Clone, Debug)]
pub struct HttpDispatch {
    connections: Arc<Connections>,
    /// Parsed targets.
    known: Arc<Known>,
    answer_limit: usize,
    answer_headers: usize,
}

impl HttpDispatch {
    /// Makes a client.
    pub fn new(options: HttpOptions) -> Self {
        let guard = Guard::new(options.listeners, options.loopback, options.test_targets);
        let limits = Limits {
            idle: options.idle_connections,
            idle_for: options.idle_for,
            headers: options.answer_headers,
            header_bytes: options.answer_head_limit,
        };
        let tls = Tls::new(&options.extra_roots);
        Self {
            connections: Arc::new(Connections::new(limits, options.resolver, guard, tls)),
            known: Arc::default(),
            answer_limit: options.answer_limit,
            answer_headers: options.answer_headers,
        }
    }

    /// Whether this is for trying things out: every message may call this machine, and the
    /// router's own test targets.
    pub fn set_dev(&self, on: bool) {
        self.connections.guard.set_dev(on);
    }

    /// How many connections wait for their next request.
    #[cfg(feature = "testing")]
    pub fn idle_connections(&self) -> usize {
        self.connections.idle()
    }

    /// Whether this attempt may call the target at this address.
    #[cfg(feature = "testing")]
    pub fn may_call(&self, message: &Message, attempt: &Attempt, address: SocketAddr) -> bool {
        let target = self.target(message, attempt);
        target.is_ok_and(|target| {
            let guard = &self.connections.guard;
            guard.check(&target, attempt, address).is_ok()
        })
    }

    /// Sets the time limits of one attempt and takes them off again, to be measured.
    #[cfg(feature = "testing")]
    pub async fn set_limits_of(&self, attempt: &Attempt) {
        let mut clock = pin!(Clock::start(&attempt.timeout));
        let mut late = pin!(clock.as_mut().first_byte());
        std::future::poll_fn(|cx| std::task::Poll::Ready(late.as_mut().poll(cx).is_ready())).await;
    }

    /// Takes an answer of one piece up to the limits, to be measured: how many bytes are kept of it.
    #[cfg(feature = "testing")]
    pub fn take_answer(&self, headers: &http::HeaderMap, body: bytes::Bytes) -> Option<usize> {
        let mut read = Answer::default();
        read.push(body, self.answer_limit);
        (headers.len() <= self.answer_headers).then(|| read.bytes().len())
    }

    /// One attempt on this stream instead of a connection of its own, for tests without a network.
    #[cfg(feature = "testing")]
    pub async fn attempt_over(
        &self,
        message: &Message,
        attempt: &Attempt,
        stream: impl hyper::rt::Read + hyper::rt::Write + Send + Unpin + 'static,
    ) -> Outcome {
        let (target, request) = match self.request(message, attempt) {
            Ok(made) => made,
            Err(outcome) => return outcome,
        };
        let mut clock = pin!(Clock::start(&attempt.timeout));
        let outcome = match self.connections.over(stream, &target).await {
            Ok(mut lease) => match self
                .send(&target, request, &mut lease, clock.as_mut())
                .await
            {
                Ok(response) => self.finish(response, lease, clock).await,
                Err(Sent::Late(late)) => answer::failed(late, None),
                Err(Sent::Error(error)) => no_answer(error.error()),
            },
            Err(error) => no_connection(error),
        };
        masked(outcome, message, attempt)
    }

    /// The request of one attempt with its target, or why there can be none.
    fn request(
        &self,
        message: &Message,
        attempt: &Attempt,
    ) -> Result<(Arc<TargetUrl>, Request<Payload>), Outcome> {
        let target = self.target(message, attempt)?;
        let headers = headers::of(message, attempt)
            .map_err(|error| answer::refused("header", error.to_string()))?;
        let mut request = Request::new(Payload::new(message.payload.clone(), attempt));
        *request.method_mut() = Method::POST;
        *request.headers_mut() = headers;
        Ok((target, request))
    }

    fn target(&self, message: &Message, attempt: &Attempt) -> Result<Arc<TargetUrl>, Outcome> {
        if !message.mediation_type.eq_ignore_ascii_case("HTTP") {
            let text = "the mediation type is not supported; `HTTP` is";
            return Err(answer::refused("mediation-type", text));
        }
        let target = self
            .known
            .get(&message.target)
            .map_err(|error| answer::refused("target", error.to_string()))?;
        let checked = self.connections.guard.check_name(&target, attempt);
        checked.map_err(|denied| answer::refused("target-not-allowed", denied.to_string()))?;
        Ok(target)
    }

    async fn call(
        &self,
        target: &TargetUrl,
        mut request: Request<Payload>,
        attempt: &Attempt,
    ) -> Outcome {
        let mut clock = pin!(Clock::start(&attempt.timeout));
        loop {
            let got = tokio::select! {
                biased;
                got = self.connections.get(target, attempt) => got,
                late = clock.as_mut().connect() => return answer::failed(late, None),
            };
            let mut lease = match got {
                Ok(lease) => lease,
                Err(error) => return no_connection(error),
            };
            if !attempt.lease_holds() {
                lease.keep();
                return answer::lease_lost();
            }
            match self.send(target, request, &mut lease, clock.as_mut()).await {
                Ok(response) => return self.finish(response, lease, clock).await,
                Err(Sent::Late(late)) => return answer::failed(late, None),
                Err(Sent::Error(mut error)) => match error.take_message() {
                    // The peer had closed it, and saw nothing of the request.
                    Some(unsent) if lease.used_before => request = unsent,
                    _ => return no_answer(error.error()),
                },
            }
        }
    }

    async fn send(
        &self,
        target: &TargetUrl,
        mut request: Request<Payload>,
        lease: &mut Lease,
        clock: Pin<&mut Clock>,
    ) -> Result<Response<Incoming>, Sent> {
        address(&mut request, target, lease.is_http2());
        tokio::select! {
            biased;
            sent = lease.send(request) => sent.map_err(|error| Sent::Error(Box::new(error))),
            late = clock.first_byte() => Err(Sent::Late(late)),
        }
    }

    async fn finish(
        &self,
        response: Response<Incoming>,
        mut lease: Lease,
        clock: Pin<&mut Clock>,
    ) -> Outcome {
        let (head, body) = response.into_parts();
        if head.headers.len() > self.answer_headers {
            return answer::failed(Failure::Protocol, Some("the answer has too many headers"));
        }
        let mut read = Answer::default();
        let end = if body.is_end_stream() {
            End::Whole
        } else {
            read.read(body, &mut lease, self.answer_limit, clock).await
        };
        match end {
            End::Whole => lease.keep(),
            End::OverLimit => lease.leave(),
            End::Cut(_) => drop(lease),
        }
        answer::outcome(head.status, &head.headers, read.ended(end))
    }
}

impl Dispatch for HttpDispatch {
    async fn attempt<'a>(&'a self, message: &'a Message, attempt: &'a Attempt) -> Outcome {
        let outcome = match self.request(message, attempt) {
            Ok((target, request)) => self.call(&target, request, attempt).await,
            Err(outcome) => outcome,
        };
        masked(outcome, message, attempt)
    }

    fn origin(&self, target: &str) -> Option<Arc<str>> {
        let target = self.known.get(target).ok()?;
        Some(target.origin().clone())
    }

    fn source_added(&self, name: &Arc<str>, kind: &SourceKind) {
        self.connections.guard.source_added(name, kind);
    }
}

/// Why a request that was sent has no answer.
enum Sent {
    Late(Failure),
    Error(Box<TrySendError<Request<Payload>>>),
}

/// HTTP/1 wants the path and `Host`, HTTP/2 the whole URL.
fn address(request: &mut Request<Payload>, target: &TargetUrl, http2: bool) {
    if http2 {
        *request.version_mut() = Version::HTTP_2;
        *request.uri_mut() = target.uri().clone();
        request.headers_mut().remove(HOST);
        return;
    }
    *request.version_mut() = Version::HTTP_11;
    *request.uri_mut() = target.path().clone();
    let host = target.host_header().clone();
    request.headers_mut().insert(HOST, host);
}

pin_project_lite::pin_project! {
    /// The limits of one attempt, with one timer for all of them. It is set only when something
    /// has to be waited for.
    pub(super) struct Clock {
        #[pin]
        timer: Sleep,
        begun: Instant,
        limits: TimeoutPlan,
    }
}

impl Clock {
    fn start(limits: &TimeoutPlan) -> Self {
        let begun = Instant::now();
        Self {
            timer: tokio::time::sleep_until(begun + limits.connect.min(limits.total)),
            begun,
            limits: limits.clone(),
        }
    }

    /// Ends when the connection is late; counts from the beginning.
    async fn connect(self: Pin<&mut Self>) -> Failure {
        let limit = self.begun + self.limits.connect;
        self.wait(limit, Failure::ConnectTimeout).await
    }

    /// Ends when the answer's head is late; counts from the first poll.
    async fn first_byte(self: Pin<&mut Self>) -> Failure {
        let limit = Instant::now() + self.limits.first_byte;
        self.wait(limit, Failure::FirstByteTimeout).await
    }

    /// Ends when the next piece of the body is late; counts from the first poll.
    pub(super) async fn body(self: Pin<&mut Self>) -> Failure {
        let limit = Instant::now() + self.limits.idle_body;
        self.wait(limit, Failure::IdleBodyTimeout).await
    }

    /// Waits for a limit, or for that of the whole attempt if that comes first.
    async fn wait(self: Pin<&mut Self>, limit: Instant, failure: Failure) -> Failure {
        let mut this = self.project();
        let total = *this.begun + this.limits.total;
        this.timer.as_mut().reset(limit.min(total));
        this.timer.await;
        if limit <= total {
            failure
        } else {
            Failure::TotalTimeout
        }
    }
}

/// What a call without a connection came to.
fn no_connection(error: NoConnection) -> Outcome {
    let failure = match &error {
        NoConnection::Dial(DialError::Denied(denied)) => {
            return answer::refused("target-not-allowed", denied.to_string());
        }
        NoConnection::Dial(DialError::Dns(_)) => Failure::Dns,
        NoConnection::Dial(DialError::Connect(_)) => Failure::Connect,
        NoConnection::Tls(_) => Failure::Tls,
        NoConnection::Http(_) => Failure::Protocol,
    };
    answer::failed(failure, Some(&innermost(&error).to_string()))
}

/// What a call without an answer came to.
fn no_answer(error: &hyper::Error) -> Outcome {
    if chain(error).any(|error| error.is::<LeaseLost>()) {
        return answer::lease_lost();
    }
    answer::failed(failure(error), Some(&innermost(error).to_string()))
}

fn failure(error: &hyper::Error) -> Failure {
    if error.is_parse() || error.is_user() {
        return Failure::Protocol;
    }
    let ended = error.is_incomplete_message() || error.is_closed() || error.is_canceled();
    if ended || chain(error).any(|error| error.is::<std::io::Error>()) {
        return Failure::Reset;
    }
    Failure::Protocol
}

fn innermost<'a>(error: &'a (dyn Error + 'static)) -> &'a (dyn Error + 'static) {
    chain(error).last().unwrap_or(error)
}

fn chain<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |&error| error.source())
}

/// Hides the message's token and the pool's secrets in what is kept of an answer: a target may
/// send back what it was sent, and operators read it.
fn masked(mut outcome: Outcome, message: &Message, attempt: &Attempt) -> Outcome {
    let reason = match &mut outcome {
        Outcome::Busy { reason, .. } | Outcome::Failed(reason) | Outcome::Refused(reason) => reason,
        Outcome::Delivered | Outcome::NotYet { .. } => return outcome,
    };
    if let Some(token) = message.auth_token.as_deref() {
        mask(reason, token.as_bytes());
    }
    for secret in attempt.secrets.texts() {
        mask(reason, secret.as_bytes());
    }
    outcome
}

fn mask(reason: &mut Reason, secret: &[u8]) {
    if secret.is_empty() || reason.answer.is_empty() {
        return;
    }
    let mut shown = Vec::with_capacity(reason.answer.len());
    let mut rest = &reason.answer[..];
    while let Some(at) = rest.windows(secret.len()).position(|part| part == secret) {
        shown.extend_from_slice(&rest[..at]);
        shown.extend_from_slice(MASK);
        rest = &rest[at + secret.len()..];
    }
    // It may be cut off in the middle of the secret.
    let cut = (1..secret.len().min(rest.len() + 1))
        .rev()
        .find(|part| rest.ends_with(&secret[..*part]) && *part > 3);
    if let Some(part) = cut {
        shown.extend_from_slice(&rest[..rest.len() - part]);
        shown.extend_from_slice(MASK);
    } else {
        shown.extend_from_slice(rest);
    }
    reason.answer = shown;
}
