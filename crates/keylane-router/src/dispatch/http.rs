//! The HTTP call: a message as POST, the answer as outcome.

use std::error::Error;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use http::uri::PathAndQuery;
use http::{HeaderMap, Method, Request, Version};
use hyper::body::Body;
use hyper::client::conn::http2::SendRequest;
use tokio::time::{Instant, Sleep};
use tokio_util::either::Either;

use super::answer::{self, Failure};
use super::body::{Answer, End};
use super::connections::{Connections, Lease, LeaseLost, Limits, Line, NoConnection, Payload};
use super::dial::{DialError, Resolve, SystemResolver};
use super::guard::Guard;
use super::http1::{Connection, NoAnswer, Post};
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
        stream: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin + 'static,
    ) -> Outcome {
        let mut call = match self.prepare(message, attempt) {
            Ok(call) => call,
            Err(outcome) => return outcome,
        };
        let clock = pin!(Clock::start(&attempt.timeout));
        let mut lease = self.connections.over(stream, &call.target);
        let sent = self.send(&mut call, &mut lease, clock).await;
        let (outcome, end) = sent.expect("only a used connection takes no request");
        lease.done(end);
        masked(outcome, message, attempt)
    }

    /// What one attempt sends, and to whom, or why it cannot be sent.
    fn prepare<'a>(&self, message: &'a Message, attempt: &'a Attempt) -> Result<Call<'a>, Outcome> {
        let target = self.target(message, attempt)?;
        let headers = headers::of(message, attempt)
            .map_err(|error| answer::refused("header", error.to_string()))?;
        Ok(Call {
            message,
            attempt,
            target,
            headers,
        })
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

    /// Calls the target, on a kept connection or a new one.
    async fn call(&self, message: &Message, attempt: &Attempt) -> Outcome {
        let mut call = match self.prepare(message, attempt) {
            Ok(call) => call,
            Err(outcome) => return outcome,
        };
        let mut clock = pin!(Clock::start(&attempt.timeout));
        loop {
            let mut lease = match tokio::select! {
                biased;
                got = self.connections.get(&call.target, attempt) => got,
                late = clock.as_mut().connect() => return answer::failed(late, None),
            } {
                Ok(lease) => lease,
                Err(error) => return no_connection(error),
            };
            if !attempt.lease_holds() {
                lease.keep();
                return answer::lease_lost();
            }
            let sent = self.send(&mut call, &mut lease, clock.as_mut()).await;
            if let Some((outcome, end)) = sent {
                lease.done(end);
                return outcome;
            }
        }
    }

    /// Sends the request and reads the answer: what that means, and how the answer ended. `None`
    /// when the peer had closed the connection, which was used before, and saw nothing of it.
    ///
    /// No `async fn`: each of those has its arguments in memory twice.
    fn send<'a>(
        &'a self,
        call: &'a mut Call<'_>,
        lease: &'a mut Lease,
        clock: Pin<&'a mut Clock<'_>>,
    ) -> impl Future<Output = Option<(Outcome, End)>> + Send + 'a {
        let used_before = lease.used_before;
        match lease.line() {
            Line::Http1(line) => {
                let line = &mut line.connection;
                Either::Left(self.send_http1(call, line, used_before, clock))
            }
            // In a box: it is larger, and every attempt would have to be.
            Line::Http2(_, send) => {
                Either::Right(Box::pin(self.send_http2(call, send, used_before, clock)))
            }
        }
    }

    async fn send_http1(
        &self,
        call: &Call<'_>,
        line: &mut Connection,
        used_before: bool,
        mut clock: Pin<&mut Clock<'_>>,
    ) -> Option<(Outcome, End)> {
        let head = tokio::select! {
            biased;
            head = line.post(call.post()) => head,
            late = clock.as_mut().first_byte() => return failed(late),
        };
        let mut head = match head {
            Ok(head) => head,
            Err(NoAnswer::Unsent) if used_before => return None,
            Err(error) => return Some((no_answer(&error), End::Cut(Failure::Reset))),
        };
        let mut read = Answer::default();
        let end = read
            .read_http1(&mut head.body, line, self.answer_limit, clock)
            .await;
        let headers = head.headers.map_or_else(HeaderMap::new, |headers| *headers);
        let outcome = answer::outcome(head.status, &headers, read.ended(end));
        Some((outcome, end))
    }

    async fn send_http2(
        &self,
        call: &mut Call<'_>,
        send: &mut SendRequest<Payload>,
        used_before: bool,
        mut clock: Pin<&mut Clock<'_>>,
    ) -> Option<(Outcome, End)> {
        let sent = send.try_send_request(call.request());
        let (head, mut body) = match tokio::select! {
            biased;
            sent = sent => sent,
            late = clock.as_mut().first_byte() => return failed(late),
        } {
            Ok(response) => response.into_parts(),
            Err(mut error) => match error.take_message() {
                Some(unsent) if used_before => {
                    call.take_back(unsent);
                    return None;
                }
                _ => return Some((no_answer(error.error()), End::Cut(Failure::Reset))),
            },
        };
        if head.headers.len() > self.answer_headers {
            let text = Some("the answer has too many headers");
            let outcome = answer::failed(Failure::Protocol, text);
            return Some((outcome, End::Cut(Failure::Protocol)));
        }
        let mut read = Answer::default();
        let end = match body.is_end_stream() {
            true => End::Whole,
            false => read.read_http2(&mut body, self.answer_limit, clock).await,
        };
        let outcome = answer::outcome(head.status, &head.headers, read.ended(end));
        Some((outcome, end))
    }
}

/// Our time was up.
fn failed(late: Failure) -> Option<(Outcome, End)> {
    Some((answer::failed(late, None), End::Cut(late)))
}

/// What one attempt sends, and to whom.
struct Call<'a> {
    message: &'a Message,
    attempt: &'a Attempt,
    target: Arc<TargetUrl>,
    headers: HeaderMap,
}

impl Call<'_> {
    /// The request over HTTP/1, which wants the path and `Host`.
    fn post(&self) -> Post<'_> {
        Post {
            path: self
                .target
                .path()
                .path_and_query()
                .map_or("/", PathAndQuery::as_str),
            host: self.target.host_header(),
            headers: &self.headers,
            payload: &self.message.payload,
            lease: self.attempt.lease.as_deref(),
        }
    }

    /// The request over HTTP/2, which wants the whole URL.
    fn request(&mut self) -> Request<Payload> {
        let payload = self.message.payload.clone();
        let mut request = Request::new(Payload::new(payload, self.attempt));
        *request.method_mut() = Method::POST;
        *request.version_mut() = Version::HTTP_2;
        *request.uri_mut() = self.target.uri().clone();
        *request.headers_mut() = std::mem::take(&mut self.headers);
        request
    }

    /// Nobody saw anything of the request: it is to be made again.
    fn take_back(&mut self, mut request: Request<Payload>) {
        self.headers = std::mem::take(request.headers_mut());
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        headers::spare(std::mem::take(&mut self.headers));
    }
}

impl Dispatch for HttpDispatch {
    async fn attempt<'a>(&'a self, message: &'a Message, attempt: &'a Attempt) -> Outcome {
        let outcome = self.call(message, attempt).await;
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

pin_project_lite::pin_project! {
    /// The limits of one attempt, with one timer for all of them. It is set only when something
    /// has to be waited for.
    pub(super) struct Clock<'a> {
        #[pin]
        timer: Sleep,
        begun: Instant,
        limits: &'a TimeoutPlan,
    }
}

impl<'a> Clock<'a> {
    fn start(limits: &'a TimeoutPlan) -> Self {
        let begun = Instant::now();
        Self {
            timer: tokio::time::sleep_until(begun + limits.connect.min(limits.total)),
            begun,
            limits,
        }
    }

    /// Ends when the connection is late; counts from the beginning.
    fn connect(self: Pin<&mut Self>) -> impl Future<Output = Failure> {
        let limit = self.begun + self.limits.connect;
        self.wait(move || limit, Failure::ConnectTimeout)
    }

    /// Ends when the answer's head is late; counts from the first poll.
    fn first_byte(self: Pin<&mut Self>) -> impl Future<Output = Failure> {
        let limit = self.limits.first_byte;
        self.wait(move || Instant::now() + limit, Failure::FirstByteTimeout)
    }

    /// Ends when the next piece of the body is late; counts from the first poll.
    pub(super) fn body(self: Pin<&mut Self>) -> impl Future<Output = Failure> {
        let limit = self.limits.idle_body;
        self.wait(move || Instant::now() + limit, Failure::IdleBodyTimeout)
    }

    /// Waits for a limit, or for that of the whole attempt if that comes first. No `async fn`, for
    /// those are larger.
    fn wait(
        mut self: Pin<&mut Self>,
        limit: impl Fn() -> Instant,
        failure: Failure,
    ) -> impl Future<Output = Failure> {
        let mut ends = None;
        std::future::poll_fn(move |cx| {
            let mut this = self.as_mut().project();
            let ends = *ends.get_or_insert_with(|| {
                let (limit, total) = (limit(), *this.begun + this.limits.total);
                this.timer.as_mut().reset(limit.min(total));
                match limit <= total {
                    true => failure,
                    false => Failure::TotalTimeout,
                }
            });
            this.timer.poll(cx).map(|()| ends)
        })
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
fn no_answer(error: &(dyn Error + 'static)) -> Outcome {
    let failure = match error.downcast_ref::<NoAnswer>() {
        Some(NoAnswer::LeaseLost) => return answer::lease_lost(),
        Some(NoAnswer::Protocol(_)) => Failure::Protocol,
        Some(_) => Failure::Reset,
        None if chain(error).any(|error| error.is::<LeaseLost>()) => return answer::lease_lost(),
        None => error.downcast_ref().map_or(Failure::Protocol, failure),
    };
    answer::failed(failure, Some(&innermost(error).to_string()))
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Each attempt takes that much memory, however little of it it needs. With the opening of a
    /// connection inside it was 9 KB; up to 1032 bytes are the allocator's quick way.
    #[test]
    fn an_attempt_is_small() {
        type Of = (&'static HttpDispatch, &'static Message, &'static Attempt);
        let size = crate::size_of_result(|(dispatch, message, attempt): Of| {
            dispatch.attempt(message, attempt)
        });
        assert!(size <= 1032, "{size} bytes");
    }
}
