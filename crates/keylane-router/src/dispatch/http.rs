//! The HTTP call: a message as POST, the answer as outcome.

use std::error::Error;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request, Response};
use hyper::body::{Body, Incoming};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::{self, Client};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::{ClientConfig, RootCertStore};
use tokio::time::{Instant, Sleep};

use super::answer::{self, Failure};
use super::body::{Answer, End, Payload, Sent};
use super::dial::{Dial, DialError};
use super::target::{Known, TargetUrl};
use super::{Attempt, Dispatch, headers};
use crate::message::Message;
use crate::outcome::Outcome;
use crate::plan::TimeoutPlan;

/// Settings of [`HttpDispatch`]; time limits come with each attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpOptions {
    /// Idle connections kept per target origin: as many as may call it at once, or the surplus is
    /// opened anew each time.
    pub idle_connections: usize,
    /// How long an idle connection is kept.
    pub idle_for: Duration,
    /// How much of an answer's body is read; the rest is left.
    pub answer_limit: usize,
}

impl Default for HttpOptions {
    fn default() -> Self {
        Self {
            idle_connections: 1024,
            idle_for: Duration::from_secs(30),
            answer_limit: 64 << 10,
        }
    }
}

/// Delivers over HTTP/1.1, or HTTP/2 where a TLS peer offers it. Cheap to clone; clones share
/// their connections.
#[derive(Clone, Debug)]
pub struct HttpDispatch {
    client: Client<HttpsConnector<Dial>, Payload>,
    /// Parsed targets.
    known: Arc<Known>,
    answer_limit: usize,
}

impl HttpDispatch {
    /// Makes a client with the system's root certificates. Without any (a bare container) it
    /// warns, and every `https` target fails.
    pub fn new(options: HttpOptions) -> Self {
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(tls_config())
            .https_or_http()
            .enable_http1()
            .enable_http2()
            .wrap_connector(Dial);
        let client = Client::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(options.idle_for)
            .pool_max_idle_per_host(options.idle_connections)
            .build(connector);
        Self {
            client,
            known: Arc::default(),
            answer_limit: options.answer_limit,
        }
    }

    /// The request of one attempt, or why there can be none.
    fn request(
        &self,
        message: &Message,
        attempt: &Attempt,
        sent: &Sent,
    ) -> Result<Request<Payload>, Outcome> {
        let target = self.target(message, attempt)?;
        let headers = headers::of(message, attempt)
            .map_err(|error| answer::refused("header", error.to_string()))?;
        let mut request = Request::new(Payload::new(message.payload.clone(), sent.clone()));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = target.uri().clone();
        *request.headers_mut() = headers;
        Ok(request)
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
        if !target.is_listed(&attempt.targets) {
            let text = format!(
                "{} is not in `targets` of pool `{}`",
                target.origin(),
                attempt.pool
            );
            return Err(answer::refused("target-not-allowed", text));
        }
        Ok(target)
    }

    async fn call(&self, request: Request<Payload>, sent: Sent, timeout: &TimeoutPlan) -> Outcome {
        let mut clock = pin!(Clock::start(timeout, sent));
        let head = tokio::select! {
            biased;
            head = self.client.request(request) => head,
            late = clock.as_mut().head() => return answer::failed(late, None),
        };
        match head {
            Ok(response) => self.finish(response, clock).await,
            Err(error) => no_answer(&error),
        }
    }

    async fn finish(&self, response: Response<Incoming>, clock: Pin<&mut Clock>) -> Outcome {
        let (head, body) = response.into_parts();
        let mut read = Answer::default();
        let end = if body.is_end_stream() {
            End::Whole
        } else {
            tokio::select! {
                biased;
                end = read.read(body, self.answer_limit) => end,
                () = clock.total() => End::Cut(Failure::TotalTimeout),
            }
        };
        answer::outcome(head.status, &head.headers, read.ended(end))
    }
}

impl Dispatch for HttpDispatch {
    async fn attempt<'a>(&'a self, message: &'a Message, attempt: &'a Attempt) -> Outcome {
        let sent = Sent::default();
        match self.request(message, attempt, &sent) {
            Ok(request) => self.call(request, sent, &attempt.timeout).await,
            Err(outcome) => outcome,
        }
    }

    fn origin(&self, message: &Message) -> Option<Arc<str>> {
        let target = self.known.get(&message.target).ok()?;
        Some(target.origin().clone())
    }
}

pin_project_lite::pin_project! {
    /// The limits of one attempt, with one timer for all of them: it is set again only when the
    /// limit before it has passed.
    struct Clock {
        #[pin]
        timer: Sleep,
        begun: Instant,
        limits: TimeoutPlan,
        sent: Sent,
    }
}

impl Clock {
    fn start(limits: &TimeoutPlan, sent: Sent) -> Self {
        let begun = Instant::now();
        Self {
            timer: tokio::time::sleep_until(begun + limits.connect.min(limits.total)),
            begun,
            limits: limits.clone(),
            sent,
        }
    }

    /// Ends when the answer's head is late, and says for which limit.
    async fn head(self: Pin<&mut Self>) -> Failure {
        let mut this = self.project();
        this.timer.as_mut().await;
        let total = *this.begun + this.limits.total;
        let Some(sent) = this.sent.at() else {
            return if this.limits.connect <= this.limits.total {
                Failure::ConnectTimeout
            } else {
                Failure::TotalTimeout
            };
        };
        let first_byte = sent + this.limits.first_byte;
        this.timer.as_mut().reset(first_byte.min(total));
        this.timer.await;
        if first_byte <= total {
            Failure::FirstByteTimeout
        } else {
            Failure::TotalTimeout
        }
    }

    /// Ends when the whole attempt is late.
    fn total(self: Pin<&mut Self>) -> impl Future<Output = ()> {
        let this = self.project();
        let (mut timer, total) = (this.timer, *this.begun + this.limits.total);
        async move {
            // Only here, at the first poll: most bodies are there already.
            timer.as_mut().reset(total);
            timer.await;
        }
    }
}

/// What a call without an answer came to.
fn no_answer(error: &legacy::Error) -> Outcome {
    let detail = innermost(error).to_string();
    answer::failed(failure(error), Some(&detail))
}

fn failure(error: &legacy::Error) -> Failure {
    match find::<DialError>(error) {
        Some(DialError::Dns(_)) => return Failure::Dns,
        Some(DialError::Connect(_)) => return Failure::Connect,
        None => {}
    }
    if error.is_connect() {
        // The connection stands, and only TLS comes between it and the request.
        return Failure::Tls;
    }
    match find::<hyper::Error>(error) {
        Some(error) if error.is_parse() || error.is_user() => Failure::Protocol,
        Some(error) if error.is_incomplete_message() || error.is_closed() => Failure::Reset,
        Some(error) if error.is_canceled() || find::<std::io::Error>(error).is_some() => {
            Failure::Reset
        }
        Some(_) => Failure::Protocol,
        None => Failure::Reset,
    }
}

fn find<'a, E: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a E> {
    chain(error).find_map(|error| error.downcast_ref())
}

fn innermost<'a>(error: &'a (dyn Error + 'static)) -> &'a (dyn Error + 'static) {
    chain(error).last().unwrap_or(error)
}

fn chain<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |&error| error.source())
}

fn tls_config() -> ClientConfig {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the provider has what TLS 1.2 and 1.3 need")
        .with_root_certificates(system_roots())
        .with_no_client_auth()
}

fn system_roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        tracing::warn!("no root certificates found on this system: https targets will fail");
    }
    roots
}
