//! What the same calls cost without a router: hyper-util's client, and hyper's bare connections,
//! with the router's headers and payload.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::Result;
use super::rig::{Mark, Pace, payload};

type Request = hyper::Request<Full<Bytes>>;

/// Not counted at the beginning: connections are opened.
const WARM_UP: Duration = Duration::from_millis(300);

/// What the loops share.
#[derive(Clone)]
struct Calls {
    done: Arc<AtomicU64>,
    payload: Bytes,
}

impl Calls {
    fn new() -> Self {
        Self {
            done: Arc::default(),
            // Number 0: the target does not look at the order.
            payload: Bytes::from(payload(0)),
        }
    }

    fn request(&self, uri: &str) -> Request {
        hyper::Request::post(uri)
            .header("content-type", "application/json")
            .header("user-agent", "keylane/0.1.0")
            .header("webhook-id", "4711-12")
            .header("keylane-key", "k4711")
            .header("keylane-attempt", "1")
            .header("keylane-pool", "default")
            .header("keylane-position", "123456")
            .body(Full::new(self.payload.clone()))
            .expect("a request")
    }

    async fn pace(&self, time: Duration) -> Pace {
        tokio::time::sleep(WARM_UP).await;
        let begun = Mark::now(self.done.load(Ordering::Relaxed));
        tokio::time::sleep(time).await;
        begun.until(&Mark::now(self.done.load(Ordering::Relaxed)))
    }

    fn one_done(&self) {
        self.done.fetch_add(1, Ordering::Relaxed);
    }
}

/// hyper-util's client, so many calls at a time.
pub(super) async fn client(url: &str, concurrency: usize, time: Duration) -> Result<Pace> {
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    let client: Client<HttpConnector, Full<Bytes>> = Client::builder(TokioExecutor::new())
        .pool_max_idle_per_host(concurrency)
        .build(connector);
    let calls = Calls::new();
    let mut tasks = JoinSet::new();
    for _ in 0..concurrency {
        tasks.spawn(call_on(client.clone(), url.to_owned(), calls.clone()));
    }
    // The tasks end with the set.
    Ok(calls.pace(time).await)
}

async fn call_on(client: Client<HttpConnector, Full<Bytes>>, url: String, calls: Calls) {
    loop {
        let answer = client.request(calls.request(&url)).await;
        let body = answer.expect("an answer").into_body().collect().await;
        body.expect("a whole answer");
        calls.one_done();
    }
}

/// Bare connections, one call at a time on each.
pub(super) async fn connections(url: &str, count: usize, time: Duration) -> Result<Pace> {
    let address = url.trim_start_matches("http://").trim_end_matches("/hook");
    let calls = Calls::new();
    let mut tasks = JoinSet::new();
    for _ in 0..count {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        tasks.spawn(async move { drop(connection.await) });
        tasks.spawn(send_on(sender, address.to_owned(), calls.clone()));
    }
    Ok(calls.pace(time).await)
}

async fn send_on(mut sender: SendRequest<Full<Bytes>>, host: String, calls: Calls) {
    let host = hyper::header::HeaderValue::try_from(host).expect("an address");
    loop {
        let mut request = calls.request("/hook");
        let headers = request.headers_mut();
        headers.insert(hyper::header::HOST, host.clone());
        // The connection's task may end before this one, when the time is over.
        if sender.ready().await.is_err() {
            return;
        }
        let Ok(answer) = sender.send_request(request).await else {
            return;
        };
        if answer.into_body().collect().await.is_err() {
            return;
        }
        calls.one_done();
    }
}
