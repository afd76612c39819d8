//! An HTTP server in front of SQS that passes calls on, unless a test says otherwise.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::{Request, Response, StatusCode};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use tokio::net::TcpListener;

/// What a call asks for.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    /// `ReceiveMessage`, …
    pub(crate) action: String,
    pub(crate) body: Value,
}

impl Call {
    /// How many entries it has.
    pub(crate) fn entries(&self) -> usize {
        self.body["Entries"].as_array().map_or(0, Vec::len)
    }

    /// The visibility that its entries ask for.
    pub(crate) fn visibility(&self) -> Option<u64> {
        self.body["Entries"][0]["VisibilityTimeout"].as_u64()
    }
}

/// What becomes of a call.
pub(crate) enum Reply {
    /// It is passed on.
    Pass,
    /// It is passed on without these of its entries, which get this error.
    PassWithout(Vec<usize>, Value),
    /// It is passed on, and the connection cut instead of an answer.
    Cut,
    /// It is not passed on, and there is no answer for long.
    Silence,
    /// It is answered like this and not passed on.
    Answer(StatusCode, Value),
}

impl Reply {
    /// SQS is not well.
    pub(crate) fn internal() -> Self {
        Self::error(500, "InternalFailure", "We encountered an internal error.")
    }

    /// An error as AWS answers it.
    pub(crate) fn error(status: u16, code: &str, text: &str) -> Self {
        let body = json!({ "__type": format!("com.amazonaws.sqs#{code}"), "message": text });
        Self::Answer(StatusCode::from_u16(status).expect("a status"), body)
    }
}

type Rule = Arc<dyn Fn(&Call) -> Reply + Send + Sync>;

/// The server. Dropped, it ends with its runtime.
pub(crate) struct Front {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    sqs: Sqs,
    rule: Mutex<Rule>,
    calls: Mutex<Vec<Call>>,
    /// How many calls of each action are under way, and were at once.
    under_way: Mutex<HashMap<String, (usize, usize)>>,
    /// The newest handle of each message that was received and not deleted.
    out: Mutex<HashMap<String, String>>,
}

impl Front {
    pub(crate) async fn start(sqs: Sqs) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await;
        let listener = listener.expect("loopback has a free port");
        let address = listener.local_addr().expect("it is bound");
        let shared = Arc::new(Shared {
            sqs,
            rule: Mutex::new(Arc::new(|_| Reply::Pass)),
            calls: Mutex::default(),
            under_way: Mutex::default(),
            out: Mutex::default(),
        });
        tokio::spawn(run(listener, shared.clone()));
        Self { address, shared }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// From now on calls are answered so.
    pub(crate) fn rule(&self, rule: impl Fn(&Call) -> Reply + Send + Sync + 'static) {
        *lock(&self.shared.rule) = Arc::new(rule);
    }

    /// The calls of this action so far.
    pub(crate) fn calls(&self, action: &str) -> Vec<Call> {
        let calls = lock(&self.shared.calls);
        let of_it = calls.iter().filter(|call| call.action == action);
        of_it.cloned().collect()
    }

    /// How many calls of this action are under way.
    pub(crate) fn now(&self, action: &str) -> usize {
        let under_way = lock(&self.shared.under_way);
        under_way.get(action).map_or(0, |(now, _)| *now)
    }

    /// How many of them were under way at once.
    pub(crate) fn most_at_once(&self, action: &str) -> usize {
        let under_way = lock(&self.shared.under_way);
        under_way.get(action).map_or(0, |(_, most)| *most)
    }

    /// Ends all loans.
    pub(crate) async fn end_loans(&self, queue: &str) {
        let handles: Vec<String> = lock(&self.shared.out).values().cloned().collect();
        for handles in handles.chunks(10) {
            let entry = |(n, handle)| json!({ "Id": format!("{n}"), "ReceiptHandle": handle, "VisibilityTimeout": 0 });
            let entries: Vec<Value> = (0..).zip(handles).map(entry).collect();
            let body = json!({ "QueueUrl": queue, "Entries": entries });
            let sqs = &self.shared.sqs;
            let ended = sqs.call("ChangeMessageVisibilityBatch", body).await;
            ended.expect("SQS ends loans");
        }
    }
}

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no panic while locked")
}

async fn run(listener: TcpListener, shared: Arc<Shared>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            continue;
        };
        let _ = stream.set_nodelay(true);
        let shared = shared.clone();
        let service = hyper::service::service_fn(move |request| {
            let shared = shared.clone();
            async move { shared.serve(request).await }
        });
        let serving = hyper::server::conn::http1::Builder::new();
        tokio::spawn(serving.serve_connection(TokioIo::new(stream), service));
    }
}

/// The connection is to be cut.
#[derive(Debug)]
struct Gone;

impl std::fmt::Display for Gone {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("cut by the test")
    }
}

impl std::error::Error for Gone {}

impl From<Infallible> for Gone {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

/// A call that has not ended.
struct UnderWay<'a>(&'a Shared, String);

impl<'a> UnderWay<'a> {
    fn begin(shared: &'a Shared, action: &str) -> Self {
        let mut all = lock(&shared.under_way);
        let (now, most) = all.entry(action.to_owned()).or_default();
        *now += 1;
        *most = (*most).max(*now);
        Self(shared, action.to_owned())
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        if let Some((now, _)) = lock(&self.0.under_way).get_mut(&self.1) {
            *now -= 1;
        }
    }
}

impl Shared {
    async fn serve(&self, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Gone> {
        let target = request.headers().get("x-amz-target");
        let action = target.and_then(|value| value.to_str().ok()).unwrap_or("");
        let action = action.rsplit('.').next().unwrap_or("").to_owned();
        let body = request.into_body().collect().await.map_err(|_| Gone)?;
        let body = serde_json::from_slice(&body.to_bytes()).unwrap_or(Value::Null);
        let call = Call { action, body };
        let _under_way = UnderWay::begin(self, &call.action);
        lock(&self.calls).push(call.clone());
        let rule = lock(&self.rule).clone();
        match rule(&call) {
            Reply::Pass => self.pass(call).await,
            Reply::Cut => {
                let _ = self.pass(call).await;
                Err(Gone)
            }
            Reply::Silence => std::future::pending().await,
            Reply::PassWithout(left_out, error) => self.pass_without(call, left_out, error).await,
            Reply::Answer(status, body) => Ok(answer(status, &body)),
        }
    }

    async fn pass(&self, call: Call) -> Result<Response<Full<Bytes>>, Gone> {
        let (status, value) = self.sqs.raw(&call.action, &call.body).await.ok_or(Gone)?;
        self.note(&call, &value);
        Ok(answer(status, &value))
    }

    async fn pass_without(
        &self,
        mut call: Call,
        left_out: Vec<usize>,
        error: Value,
    ) -> Result<Response<Full<Bytes>>, Gone> {
        let entries = call.body["Entries"].as_array().cloned().unwrap_or_default();
        let (mut kept, mut failed) = (Vec::new(), Vec::new());
        for (n, entry) in entries.into_iter().enumerate() {
            if left_out.contains(&n) {
                let mut error = error.clone();
                error["Id"] = entry["Id"].clone();
                failed.push(error);
            } else {
                kept.push(entry);
            }
        }
        let mut value = json!({ "Successful": [], "Failed": [] });
        if !kept.is_empty() {
            call.body["Entries"] = kept.into();
            (_, value) = self.sqs.raw(&call.action, &call.body).await.ok_or(Gone)?;
            self.note(&call, &value);
        }
        let all = value["Failed"].as_array_mut().expect("a list");
        all.extend(failed);
        Ok(answer(StatusCode::OK, &value))
    }

    /// Who is out, from what SQS answered.
    fn note(&self, call: &Call, answer: &Value) {
        let mut out = lock(&self.out);
        for message in answer["Messages"].as_array().into_iter().flatten() {
            let text = |name: &str| message[name].as_str().unwrap_or_default().to_owned();
            out.insert(text("MessageId"), text("ReceiptHandle"));
        }
        if call.action == "DeleteMessageBatch" {
            for entry in call.body["Entries"].as_array().into_iter().flatten() {
                let handle = entry["ReceiptHandle"].as_str().unwrap_or_default();
                out.retain(|_, known| known != handle);
            }
        }
    }
}

fn answer(status: StatusCode, body: &Value) -> Response<Full<Bytes>> {
    let response = Response::builder().status(status);
    let response = response.header("content-type", "application/x-amz-json-1.0");
    let body = Full::new(Bytes::from(body.to_string()));
    response.body(body).expect("a response")
}

/// SQS itself, by its JSON protocol.
#[derive(Clone)]
pub(crate) struct Sqs {
    url: String,
    client: Client<HttpConnector, Full<Bytes>>,
}

impl Sqs {
    pub(crate) fn new(url: &str) -> Self {
        Self {
            url: url.trim_end_matches('/').to_owned(),
            client: Client::builder(TokioExecutor::new()).build_http(),
        }
    }

    /// A new queue; answers its URL.
    pub(crate) async fn create(&self, name: &str, attributes: Value) -> Result<String, String> {
        let body = json!({ "QueueName": name, "Attributes": attributes });
        let answer = self.call("CreateQueue", body).await?;
        let url = answer["QueueUrl"].as_str();
        url.map(str::to_owned).ok_or(format!("no URL in {answer}"))
    }

    /// A call that must succeed.
    pub(crate) async fn call(&self, action: &str, body: Value) -> Result<Value, String> {
        match self.raw(action, &body).await {
            Some((StatusCode::OK, value)) => Ok(value),
            Some((status, value)) => Err(format!("{action}: {status} {value}")),
            None => Err(format!("{action}: no answer")),
        }
    }

    async fn raw(&self, action: &str, body: &Value) -> Option<(StatusCode, Value)> {
        let request = Request::post(&self.url)
            .header("content-type", "application/x-amz-json-1.0")
            .header("x-amz-target", format!("AmazonSQS.{action}"))
            .body(Full::new(Bytes::from(body.to_string())))
            .expect("a request");
        let response = self.client.request(request).await.ok()?;
        let status = response.status();
        let body = response.into_body().collect().await.ok()?.to_bytes();
        let value = serde_json::from_slice(&body).unwrap_or(Value::Null);
        Some((status, value))
    }
}
