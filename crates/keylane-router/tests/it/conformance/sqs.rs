//! SQS as the suite's subject: queues of a real server, with a server in front that loses calls and
//! a proxy in front of that which cuts connections.

use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use keylane_router::conformance::{Fault, Published, Queue, Subject};
use keylane_router::plan::SourcePlan;
use keylane_router::source::Features;
use keylane_router::sqs::{KeyFrom, Options, SqsSource};
use keylane_router::testing::{Accept, Fault as Network, Proxy};
use serde_json::{Value, json};

use crate::sqs::front::{Front, Reply, Sqs};

/// Short, so that loans end within a test.
const VISIBILITY: Duration = Duration::from_secs(4);
/// SQS's own limit of a message, and of all messages sent at once.
const MIB: usize = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Fifo,
    Standard,
    /// A standard queue with `key = "group-id"`.
    ByGroup,
}

impl Kind {
    fn options(self, queue: &str) -> Options {
        let key = match self {
            Self::Fifo | Self::Standard => KeyFrom::None,
            Self::ByGroup => KeyFrom::GroupId,
        };
        Options {
            key,
            region: crate::sqs::region(),
            credentials: crate::sqs::credentials(),
            visibility_timeout: VISIBILITY,
            wait_time: Duration::from_secs(1),
            ..Options::new(queue)
        }
    }

    /// A name that no other queue has.
    fn new_name(self) -> String {
        let end = match self {
            Self::Fifo => ".fifo",
            Self::Standard | Self::ByGroup => "",
        };
        format!("q{}{end}", uuid::Uuid::now_v7().simple())
    }
}

/// The subject.
pub(crate) struct OnSqs(pub(crate) Kind);

impl Subject for OnSqs {
    type Queue = SqsQueue;

    fn features(&self) -> Features {
        self.0.options(&self.0.new_name()).features()
    }

    fn absent(&self) -> Option<String> {
        let absent = crate::sqs::url().is_none();
        absent.then(|| crate::sqs::ABSENT.to_owned())
    }

    fn can(&self, fault: Fault) -> bool {
        match fault {
            Fault::Stop | Fault::Start => super::is_ours("sqs"),
            // The emulator keeps nothing through that; SQS itself is never killed by anybody.
            Fault::Kill => false,
            _ => true,
        }
    }

    /// What SQS takes by its documentation; the emulator is less strict.
    fn takes(&self, message: &Published) -> bool {
        let key = match &message.key {
            Some(key) => (1..=128).contains(&key.len()) && key.iter().all(u8::is_ascii_graphic),
            None => self.0 != Kind::Fifo,
        };
        let body = std::str::from_utf8(&message.body);
        key && body.is_ok_and(|body| (1..=MIB).contains(&body.len()))
    }

    async fn queue(&self) -> Result<SqsQueue, String> {
        let name = self.0.new_name();
        let url = crate::sqs::url().ok_or(crate::sqs::ABSENT)?;
        let mut queue = SqsQueue::open(&url, &name, self.0);
        queue.create().await?;
        queue.between = Some(Between::new(queue.sqs.clone()).await);
        Ok(queue)
    }
}

pub(crate) struct SqsQueue {
    sqs: Sqs,
    sqs_url: String,
    name: String,
    kind: Kind,
    /// What stands between its sources and SQS; nothing in a process that is to be killed.
    between: Option<Between>,
}

struct Between {
    front: Front,
    proxy: Proxy,
    /// What the server in front does wrong at the moment.
    wrong: Arc<Mutex<Wrong>>,
}

#[derive(Default)]
struct Wrong {
    password: bool,
    acks_to_lose: u32,
    renewals_lost_until: Option<Instant>,
}

impl SqsQueue {
    /// The queue of this name.
    fn open(url: &str, name: &str, kind: Kind) -> Self {
        Self {
            kind,
            sqs: Sqs::new(url),
            sqs_url: url.to_owned(),
            name: name.to_owned(),
            between: None,
        }
    }

    /// The queue of this name, in a process of its own.
    pub(crate) fn of_child(name: &Path, kind: Kind) -> Self {
        let url = crate::sqs::url().expect("who started us has one");
        Self::open(&url, &name.to_string_lossy(), kind)
    }

    async fn create(&self) -> Result<(), String> {
        let attributes = match self.kind {
            Kind::Fifo => json!({ "FifoQueue": "true" }),
            Kind::Standard | Kind::ByGroup => json!({}),
        };
        self.sqs.create(&self.name, attributes).await.map(drop)
    }

    fn url(&self) -> String {
        format!("{}/000000000000/{}", self.sqs_url, self.name)
    }

    async fn send(&self, entries: Vec<Value>) -> Result<(), String> {
        let body = json!({ "QueueUrl": self.url(), "Entries": entries });
        let answer = self.sqs.call("SendMessageBatch", body).await?;
        match answer["Failed"].as_array() {
            Some(failed) if !failed.is_empty() => Err(format!("{answer}")),
            _ => Ok(()),
        }
    }
}

impl Between {
    async fn new(sqs: Sqs) -> Self {
        let front = Front::start(sqs).await;
        let wrong = Arc::new(Mutex::new(Wrong::default()));
        let rule = wrong.clone();
        front.rule(move |call| rule.lock().expect("no panic while locked").reply(call));
        Self {
            proxy: Proxy::start(front.address).await,
            front,
            wrong,
        }
    }

    fn set(&self, change: impl FnOnce(&mut Wrong)) {
        change(&mut self.wrong.lock().expect("no panic while locked"));
    }
}

impl Wrong {
    fn reply(&mut self, call: &crate::sqs::front::Call) -> Reply {
        let renewal = call.visibility() == Some(VISIBILITY.as_secs());
        if self.password {
            let text = "The security token included in the request is invalid.";
            return Reply::error(403, "UnrecognizedClientException", text);
        }
        if self.acks_to_lose > 0 && call.action == "DeleteMessageBatch" {
            self.acks_to_lose -= 1;
            return Reply::internal();
        }
        if renewal
            && self
                .renewals_lost_until
                .is_some_and(|at| at > Instant::now())
        {
            return Reply::internal();
        }
        Reply::Pass
    }
}

impl Queue for SqsQueue {
    type Source = SqsSource;

    async fn connect(&self, name: Arc<str>, _: &SourcePlan) -> Result<SqsSource, String> {
        let between = self.between.as_ref();
        let url = between.map_or(self.sqs_url.clone(), |between| between.proxy.url(""));
        let options = Options {
            endpoint_url: Some(url.into()),
            ..self.kind.options(&self.name)
        };
        let mut source = SqsSource::new(name, options).map_err(|errors| format!("{errors:?}"))?;
        source.check().await.map_err(|error| error.to_string())?;
        Ok(source)
    }

    async fn publish(&self, messages: Vec<Published>) -> Result<(), String> {
        let (mut entries, mut bytes) = (Vec::new(), 0);
        for message in messages {
            let size = message.body.len();
            if entries.len() == 10 || (bytes + size > MIB && !entries.is_empty()) {
                self.send(std::mem::take(&mut entries)).await?;
                bytes = 0;
            }
            bytes += size;
            entries.push(entry(entries.len(), &message, self.kind == Kind::Fifo));
        }
        self.send(entries).await
    }

    async fn left(&self) -> Result<Option<u64>, String> {
        let body = json!({ "QueueUrl": self.url(), "AttributeNames": ["All"] });
        let answer = self.sqs.call("GetQueueAttributes", body).await?;
        let names = ["", "NotVisible", "Delayed"];
        let count = |name: &&str| {
            let count = &answer["Attributes"][format!("ApproximateNumberOfMessages{name}")];
            count.as_str().and_then(|count| count.parse::<u64>().ok())
        };
        Ok(Some(names.iter().filter_map(count).sum()))
    }

    async fn fault(&self, fault: Fault) -> Result<(), String> {
        let between = self.between.as_ref().ok_or("nothing is between")?;
        let (proxy, front) = (&between.proxy, &between.front);
        match fault {
            Fault::Cut => proxy.cut_all(),
            Fault::Away => {
                proxy.set(Network::accept(Accept::Reset));
                proxy.cut_all();
            }
            Fault::Back => proxy.set(Network::none()),
            Fault::Stop => return super::operate("stop", "sqs").await,
            Fault::Start => return super::operate("start", "sqs").await,
            Fault::Kill => return Err("the emulator keeps nothing through it".to_owned()),
            Fault::LoseAck => between.set(|wrong| wrong.acks_to_lose += 1),
            Fault::Redeliver | Fault::EndLeases => front.end_loans(&self.url()).await,
            Fault::LoseRenewals => {
                let until = Instant::now() + 2 * VISIBILITY;
                between.set(|wrong| wrong.renewals_lost_until = Some(until));
            }
            Fault::WrongPassword => between.set(|wrong| wrong.password = true),
            Fault::RightPassword => between.set(|wrong| wrong.password = false),
            Fault::DeleteQueue => {
                let body = json!({ "QueueUrl": self.url() });
                self.sqs.call("DeleteQueue", body).await?;
            }
            Fault::CreateQueue => self.create().await?,
        }
        Ok(())
    }

    async fn child(&self) -> Option<Command> {
        let test = match self.kind {
            Kind::Fifo => "router_on_sqs_fifo",
            Kind::Standard => "router_on_sqs_standard",
            Kind::ByGroup => "router_on_sqs_standard_by_group",
        };
        super::as_a_router(test, Path::new(&self.name))
    }
}

/// A message as SQS takes it in a batch.
fn entry(n: usize, message: &Published, fifo: bool) -> Value {
    let attribute = |value: &String| json!({ "DataType": "String", "StringValue": value });
    let attributes: serde_json::Map<String, Value> = message
        .headers
        .iter()
        .map(|(name, value)| (name.clone(), attribute(value)))
        .collect();
    let mut entry = json!({
        "Id": n.to_string(),
        "MessageBody": String::from_utf8_lossy(&message.body),
        "MessageAttributes": attributes,
    });
    if let Some(key) = &message.key {
        entry["MessageGroupId"] = String::from_utf8_lossy(key).into();
    }
    if fifo {
        let id = uuid::Uuid::now_v7().to_string();
        entry["MessageDeduplicationId"] = id.into();
    }
    entry
}
