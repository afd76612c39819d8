//! TLS and HTTP/2.

use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::{HeaderMap, Response, Version};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use keylane_router::dispatch::Root;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::certificate;

/// A TLS target that counts connections and streams, and answers when it is let.
struct Secure {
    address: SocketAddr,
    root: Vec<Root>,
    seen: Arc<Seen>,
    accept: tokio::task::AbortHandle,
}

struct Seen {
    connections: AtomicUsize,
    /// The most requests at once on one connection.
    most: AtomicUsize,
    requests: Mutex<Vec<(Version, http::Uri, HeaderMap)>>,
    /// One permit, one answer.
    let_go: Semaphore,
    headers: usize,
}

impl Drop for Secure {
    fn drop(&mut self) {
        self.accept.abort();
    }
}

struct Setup {
    alpn: &'static [&'static str],
    streams: u32,
    answers: usize,
    headers: usize,
    name: &'static str,
}

const USUAL: Setup = Setup {
    alpn: &["h2", "http/1.1"],
    streams: 100,
    answers: 1 << 20,
    headers: 0,
    name: "localhost",
};

impl Secure {
    async fn start(setup: Setup) -> Self {
        let (acceptor, root) = certificate::server(setup.name, setup.alpn);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let seen = Arc::new(Seen {
            connections: AtomicUsize::new(0),
            most: AtomicUsize::new(0),
            requests: Mutex::default(),
            let_go: Semaphore::new(setup.answers),
            headers: setup.headers,
        });
        let shared = seen.clone();
        let accept = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.expect("a connection");
                let (acceptor, seen) = (acceptor.clone(), shared.clone());
                connections.spawn(serve(stream, acceptor, seen, setup.streams));
            }
        });
        Self {
            address,
            root,
            seen,
            accept: accept.abort_handle(),
        }
    }

    fn message(&self) -> Message {
        message(format!(
            "https://localhost:{}/hook?a=b",
            self.address.port()
        ))
    }

    fn trusting(&self) -> HttpDispatch {
        HttpDispatch::new(HttpOptions {
            extra_roots: self.root.clone(),
            ..options()
        })
    }

    fn connections(&self) -> usize {
        self.seen.connections.load(Ordering::SeqCst)
    }
}

async fn serve(
    stream: tokio::net::TcpStream,
    acceptor: TlsAcceptor,
    seen: Arc<Seen>,
    streams: u32,
) {
    let Ok(stream) = acceptor.accept(stream).await else {
        return;
    };
    seen.connections.fetch_add(1, Ordering::SeqCst);
    let http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    let open = Arc::new(AtomicUsize::new(0));
    let service = service_fn(move |request| answer(request, seen.clone(), open.clone()));
    let stream = TokioIo::new(stream);
    let _ = match http2 {
        true => {
            hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                .timer(TokioTimer::new())
                .max_concurrent_streams(streams)
                .serve_connection(stream, service)
                .await
        }
        false => {
            hyper::server::conn::http1::Builder::new()
                .serve_connection(stream, service)
                .await
        }
    };
}

async fn answer(
    request: hyper::Request<Incoming>,
    seen: Arc<Seen>,
    open: Arc<AtomicUsize>,
) -> Result<Response<Full<Bytes>>, std::convert::Infallible> {
    let now = open.fetch_add(1, Ordering::SeqCst) + 1;
    seen.most.fetch_max(now, Ordering::SeqCst);
    let (head, body) = request.into_parts();
    let _ = body.collect().await;
    let head = (head.version, head.uri, head.headers);
    seen.requests.lock().unwrap().push(head);
    seen.let_go.acquire().await.expect("never closed").forget();
    open.fetch_sub(1, Ordering::SeqCst);
    let mut response = Response::new(Full::new(Bytes::from_static(b"{\"ack\":true}")));
    for n in 0..seen.headers {
        let name = http::HeaderName::try_from(format!("x-{n}")).unwrap();
        let value = http::HeaderValue::from_static("y");
        response.headers_mut().insert(name, value);
    }
    Ok(response)
}

fn spawn(dispatch: &HttpDispatch, message: &Message, count: usize) -> JoinSet<Outcome> {
    let mut attempts = JoinSet::new();
    for _ in 0..count {
        let (dispatch, message) = (dispatch.clone(), message.clone());
        attempts.spawn(async move { dispatch.attempt(&message, &attempt()).await });
    }
    attempts
}

async fn all_delivered(mut attempts: JoinSet<Outcome>) {
    while let Some(outcome) = attempts.join_next().await {
        assert_eq!(outcome.unwrap(), Outcome::Delivered);
    }
}

#[tokio::test]
async fn a_certificate_that_nobody_vouches_for_fails_by_tls() {
    let target = Secure::start(USUAL).await;
    let reason = failed(http().attempt(&target.message(), &attempt()).await);
    assert_eq!((&*reason.class, reason.breaker_failure), ("tls", true));
    assert!(target.seen.requests.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_certificate_for_another_name_fails_by_tls() {
    let target = Secure::start(Setup {
        name: "example.com",
        ..USUAL
    })
    .await;
    let dispatch = target.trusting();
    let reason = failed(dispatch.attempt(&target.message(), &attempt()).await);
    assert_eq!(reason.class, "tls");
}

#[tokio::test]
async fn an_extra_root_is_trusted_over_http_1_and_http_2() {
    for (alpn, version) in [
        (&["h2", "http/1.1"][..], Version::HTTP_2),
        (&["http/1.1"][..], Version::HTTP_11),
        (&[][..], Version::HTTP_11),
    ] {
        let target = Secure::start(Setup { alpn, ..USUAL }).await;
        let dispatch = target.trusting();
        let message = Message {
            auth_token: Some("s3cret".into()),
            ..target.message()
        };
        for _ in 0..3 {
            assert_eq!(
                dispatch.attempt(&message, &attempt()).await,
                Outcome::Delivered
            );
        }
        assert_eq!(target.connections(), 1);
        let requests = target.seen.requests.lock().unwrap();
        let (used, uri, headers) = &requests[0];
        assert_eq!(*used, version);
        assert_eq!(uri.path_and_query().unwrap().as_str(), "/hook?a=b");
        assert_eq!(headers["authorization"], "Bearer s3cret");
        assert_eq!(headers["keylane-key"], "k1");
        let host = format!("localhost:{}", target.address.port());
        match version == Version::HTTP_2 {
            true => assert_eq!(uri.authority().unwrap().as_str(), host),
            false => assert_eq!(headers["host"], host),
        }
    }
}

#[tokio::test]
async fn requests_at_once_share_an_http_2_connection() {
    let target = Secure::start(Setup {
        answers: 0,
        ..USUAL
    })
    .await;
    let attempts = spawn(&target.trusting(), &target.message(), 50);
    crate::eventually(|| target.seen.requests.lock().unwrap().len() == 50).await;
    assert!(target.connections() <= 3, "{}", target.connections());
    target.seen.let_go.add_permits(50);
    all_delivered(attempts).await;
}

#[tokio::test]
async fn no_more_requests_are_sent_on_an_http_2_connection_than_the_peer_takes() {
    let target = Secure::start(Setup {
        streams: 2,
        answers: 0,
        ..USUAL
    })
    .await;
    let dispatch = target.trusting();
    for round in 1..=2 {
        let attempts = spawn(&dispatch, &target.message(), 10);
        // All at the target at once: none waits for another's answer.
        crate::eventually(|| target.seen.requests.lock().unwrap().len() == 10 * round).await;
        target.seen.let_go.add_permits(10);
        all_delivered(attempts).await;
    }
    assert_eq!(target.seen.most.load(Ordering::SeqCst), 2);
    assert!((5..=10).contains(&target.connections()));
}

#[tokio::test]
async fn an_http_2_connection_that_was_late_is_not_relied_on_again() {
    let target = Secure::start(Setup {
        answers: 0,
        ..USUAL
    })
    .await;
    let dispatch = target.trusting();
    let mut short = attempt();
    short.timeout.first_byte = SHORT;
    let reason = failed(dispatch.attempt(&target.message(), &short).await);
    assert_eq!(reason.class, "timeout");
    target.seen.let_go.add_permits(10);
    assert_eq!(
        dispatch.attempt(&target.message(), &attempt()).await,
        Outcome::Delivered
    );
    assert_eq!(target.connections(), 2);
}

#[tokio::test]
async fn an_http_2_answer_may_have_a_hundred_headers_and_no_more() {
    for (headers, fits) in [(80, true), (120, false)] {
        let target = Secure::start(Setup { headers, ..USUAL }).await;
        let outcome = target
            .trusting()
            .attempt(&target.message(), &attempt())
            .await;
        match fits {
            true => assert_eq!(outcome, Outcome::Delivered),
            false => assert_eq!(failed(outcome).class, "protocol"),
        }
    }
}
