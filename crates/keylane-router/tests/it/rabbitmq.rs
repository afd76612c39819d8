//! RabbitMQ beyond the conformance suite: start-up checks, declarations, its own dead letters,
//! shards. Without a broker these say that they are skipped.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use keylane_router::Router;
use keylane_router::conformance::{MemoryStore, share};
use keylane_router::dispatch::handler_fn;
use keylane_router::message::Message;
use keylane_router::outcome::{Outcome, Reason};
use keylane_router::plan::{Envelope, Instances, OnExhausted, Plan, SourcePlan};
use keylane_router::rabbitmq::{DeadLetterTo, Declare, Options, QueueType, RabbitmqSource, Reader};
use keylane_router::source::{Room, Source};
use keylane_router::testing::{Accept, Fault as ProxyFault, Proxy};
use lapin::options::{
    BasicGetOptions, BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions,
    QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};

use super::spans::{PARENT, Spans, TRACE, assert_is_of};

/// A queue's name of its own, and a channel to make, fill and delete it with.
struct Here {
    url: String,
    name: String,
    channel: Channel,
    _connection: Connection,
    /// Nobody stops the broker meanwhile.
    _shared: Box<dyn std::any::Any>,
}

impl Here {
    /// `None`, and says so, where there is no broker.
    async fn new() -> Option<Self> {
        let Ok(url) = std::env::var("KEYLANE_TEST_RABBITMQ_URL") else {
            println!("skipped: KEYLANE_TEST_RABBITMQ_URL is not set");
            return None;
        };
        let shared = share("rabbitmq");
        let connection = Connection::connect(&url, ConnectionProperties::default()).await;
        let connection = connection.expect("the broker is there");
        let channel = connection.create_channel().await.unwrap();
        let confirm = ConfirmSelectOptions::default();
        channel.confirm_select(confirm).await.unwrap();
        Some(Self {
            url,
            name: format!("test-{}", uuid::Uuid::now_v7().simple()),
            channel,
            _connection: connection,
            _shared: Box::new(shared),
        })
    }

    fn options(&self) -> Options {
        Options::new(&self.url, &self.name)
    }

    async fn declare(&self, arguments: &[(&str, AMQPValue)]) {
        let mut table = FieldTable::default();
        for (name, value) in arguments {
            table.insert((*name).into(), value.clone());
        }
        let durable = QueueDeclareOptions {
            durable: true,
            ..QueueDeclareOptions::default()
        };
        let name = self.name.as_str().into();
        let declared = self.channel.queue_declare(name, durable, table).await;
        declared.unwrap();
    }

    async fn publish(&self, exchange: &str, routing_key: &str, key: &str, body: String) {
        let headers = [("x-group-id", key)];
        self.publish_with(exchange, routing_key, &headers, body)
            .await;
    }

    /// Answers the id that it gave the message.
    async fn publish_with(
        &self,
        exchange: &str,
        routing_key: &str,
        with: &[(&str, &str)],
        body: String,
    ) -> String {
        let mut headers = FieldTable::default();
        for (name, value) in with {
            headers.insert((*name).into(), AMQPValue::LongString((*value).into()));
        }
        let id = uuid::Uuid::now_v7().to_string();
        let properties = BasicProperties::default()
            .with_headers(headers)
            .with_message_id(id.as_str().into())
            .with_delivery_mode(2);
        let options = BasicPublishOptions::default();
        let (exchange, routing_key) = (exchange.into(), routing_key.into());
        let sent =
            self.channel
                .basic_publish(exchange, routing_key, options, body.as_bytes(), properties);
        sent.await.unwrap().await.unwrap();
        id
    }

    async fn delete(&self, queues: &[String]) {
        for queue in queues {
            let queue = queue.as_str().into();
            let deleted = self
                .channel
                .queue_delete(queue, QueueDeleteOptions::default());
            deleted.await.unwrap();
        }
    }
}

impl Here {
    /// A proxy in front of the broker.
    async fn proxy(&self) -> Proxy {
        let mut parts = self.url.split(['@', '/']);
        let address = parts.find_map(|part| part.parse().ok());
        Proxy::start(address.expect("its URL has an address")).await
    }

    /// The next message of a queue, once there is one.
    async fn next_of(&self, queue: &str) -> lapin::message::BasicGetMessage {
        loop {
            let get = BasicGetOptions { no_ack: true };
            match self.channel.basic_get(queue.into(), get).await.unwrap() {
                Some(message) => return message,
                None => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    }

    /// Waits until the queue is there and so many read it.
    async fn is_read(&self, queue: &str, consumers: u32) {
        loop {
            tokio::time::sleep(Duration::from_millis(50)).await;
            // A look that fails ends its channel.
            let other = self._connection.create_channel().await.unwrap();
            let passive = QueueDeclareOptions {
                passive: true,
                ..QueueDeclareOptions::default()
            };
            let declared = other.queue_declare(queue.into(), passive, FieldTable::default());
            if declared
                .await
                .is_ok_and(|queue| queue.consumer_count() >= consumers)
            {
                return;
            }
        }
    }
}

/// What a first receive with these options says is wrong.
async fn refused(options: Options, instances: Instances) -> String {
    let plan = SourcePlan {
        instances,
        ..SourcePlan::custom()
    };
    let mut source = RabbitmqSource::new("s", options, &plan).expect("they fit");
    let room = Room::new(10, 1 << 20);
    let received = tokio::time::timeout(Duration::from_secs(30), source.receive(room)).await;
    match received.expect("it answers") {
        Ok(batch) => panic!("{} messages were received", batch.len()),
        Err(error) => error.to_string(),
    }
}

fn raw() -> Envelope {
    Envelope::Raw {
        pool: "default".into(),
        target: "http://unused.example/".into(),
    }
}

/// A router whose handler is this.
async fn router<F, Fut>(plan: Plan, handler: F) -> Router
where
    F: Fn(Arc<Message>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Outcome> + Send + 'static,
{
    let router = Router::builder()
        .plan(plan)
        .store(MemoryStore::default())
        .dispatch(handler_fn(handler));
    router.start().await.unwrap()
}

async fn add(router: &Router, options: Options) {
    let plan = SourcePlan {
        envelope: raw(),
        ..options.plan()
    };
    let source = RabbitmqSource::new("s", options, &plan).unwrap();
    router.add_source("s", source, plan).await.unwrap();
}

#[tokio::test]
async fn a_queue_that_is_not_there_is_named_with_the_remedy() {
    let Some(here) = Here::new().await else {
        return;
    };
    let said = refused(here.options(), Instances::One).await;
    for part in [&*here.name, "does not exist", "declare = \"create\""] {
        assert!(said.contains(part), "{said}");
    }
    let look = here.channel.queue_declare(
        here.name.as_str().into(),
        QueueDeclareOptions {
            passive: true,
            ..QueueDeclareOptions::default()
        },
        FieldTable::default(),
    );
    assert!(look.await.is_err(), "looking does not make it");
}

#[tokio::test]
async fn a_queue_that_is_not_what_the_options_need_is_not_read() {
    let Some(here) = Here::new().await else {
        return;
    };
    let quorum = AMQPValue::LongString("quorum".into());
    here.declare(&[
        ("x-queue-type", quorum),
        ("x-delivery-limit", AMQPValue::LongInt(7)),
        ("x-max-length", AMQPValue::LongInt(1000)),
        (
            "x-dead-letter-exchange",
            AMQPValue::LongString("nowhere".into()),
        ),
    ])
    .await;
    let mut options = here.options();
    options.reader = Reader::SingleActive;
    let said = refused(options.clone(), Instances::One).await;
    assert!(said.contains("x-single-active-consumer"), "{said}");
    options.reader = Reader::Plain;
    let said = refused(options.clone(), Instances::One).await;
    assert!(said.contains("delivery limit of 7"), "{said}");
    options.delivery_limit_accepted = true;
    options.dead_letter = DeadLetterTo::Broker;
    let said = refused(options.clone(), Instances::One).await;
    assert!(said.contains("bound to exchange `nowhere`"), "{said}");
    options.dead_letter = DeadLetterTo::Store;
    options.reader = Reader::Exclusive;
    let said = refused(options, Instances::One).await;
    assert!(said.contains("is a quorum queue"), "{said}");
    here.delete(std::slice::from_ref(&here.name)).await;
}

#[tokio::test]
async fn gb_105_a_queue_that_is_there_with_other_arguments_is_left_alone_and_both_values_are_named()
{
    let Some(here) = Here::new().await else {
        return;
    };
    here.declare(&[]).await;
    let mut options = here.options();
    options.declare = Declare::Create;
    options.queue_type = QueueType::Quorum;
    options.reader = Reader::SingleActive;
    let said = refused(options, Instances::One).await;
    for part in [&*here.name, "not as configured", "received", "current is"] {
        assert!(said.contains(part), "{said}");
    }
    here.delete(std::slice::from_ref(&here.name)).await;
}

#[tokio::test]
async fn a_second_consumer_of_an_exclusive_queue_is_told_where_one_instance_was_promised() {
    let Some(here) = Here::new().await else {
        return;
    };
    here.declare(&[]).await;
    let first = router(Plan::default(), |_| async { Outcome::Delivered }).await;
    add(&first, here.options()).await;
    // Whoever is first: one of them has it.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let said = refused(here.options(), Instances::One).await;
    assert!(said.contains("has another consumer"), "{said}");
    first.stop(Duration::from_secs(5)).await;
    here.delete(std::slice::from_ref(&here.name)).await;
}

#[tokio::test]
async fn gb_140_what_fails_for_good_goes_to_the_dead_letter_queue_with_x_death() {
    let Some(here) = Here::new().await else {
        return;
    };
    let mut options = here.options();
    options.declare = Declare::Create;
    options.dead_letter = DeadLetterTo::Broker;
    let mut plan = Plan::default();
    let pool = plan.pools.get_mut("default").unwrap();
    pool.on_exhausted = OnExhausted::DeadLetter;
    pool.retry.max_attempts = NonZeroUsize::new(2).unwrap();
    pool.retry.initial = Duration::from_millis(1);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let noted = seen.clone();
    let router = router(plan, move |message| {
        let text = String::from_utf8_lossy(&message.payload).into_owned();
        noted.lock().unwrap().push(text.clone());
        async move {
            match text.as_str() {
                "bad" => Outcome::Failed(Reason::default()),
                _ => Outcome::Delivered,
            }
        }
    })
    .await;
    add(&router, options).await;
    super::eventually(|| router.problems().is_empty()).await;
    let letters = format!("{}.dlq", here.name);
    // The router makes it when it connects.
    here.is_read(&here.name, 0).await;
    for body in ["good", "bad", "after"] {
        here.publish("", &here.name, "k", body.to_owned()).await;
    }
    super::eventually(|| seen.lock().unwrap().len() == 4).await;
    assert_eq!(*seen.lock().unwrap(), ["good", "bad", "bad", "after"]);
    let letter = here.next_of(&letters).await;
    assert_eq!(letter.delivery.data, b"bad");
    let headers = letter.delivery.properties.headers().clone().unwrap();
    assert!(headers.inner().contains_key("x-death"), "{headers:?}");
    assert!(headers.inner().contains_key("x-group-id"), "{headers:?}");
    router.stop(Duration::from_secs(5)).await;
    here.delete(&[here.name.clone(), letters]).await;
}

#[tokio::test]
async fn shards_are_made_and_keep_each_key_in_order() {
    let Some(here) = Here::new().await else {
        return;
    };
    let mut options = here.options();
    options.declare = Declare::Create;
    options.reader = Reader::SingleActive;
    options.shards = NonZeroUsize::new(3);
    let queues = options.queues();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let noted = seen.clone();
    let router = router(Plan::default(), move |message| {
        let text = String::from_utf8_lossy(&message.payload).into_owned();
        let noted = noted.clone();
        async move {
            tokio::task::yield_now().await;
            noted.lock().unwrap().push(text);
            Outcome::Delivered
        }
    })
    .await;
    add(&router, options).await;
    here.is_read(&queues[2], 1).await;
    for n in 0..20 {
        for key in 0..30 {
            let body = format!("k{key} {n}");
            here.publish(&here.name, "", &format!("k{key}"), body).await;
        }
    }
    super::eventually(|| seen.lock().unwrap().len() == 600).await;
    let seen = seen.lock().unwrap().clone();
    for key in 0..30 {
        let begins = format!("k{key} ");
        let of_key = seen.iter().filter_map(|text| text.strip_prefix(&begins));
        let of_key: Vec<u64> = of_key.map(|n| n.parse().unwrap()).collect();
        assert_eq!(of_key, (0..20).collect::<Vec<u64>>(), "k{key}");
    }
    router.stop(Duration::from_secs(5)).await;
    here.delete(&queues).await;
}

/// A panic fails its own message only: it is tried again, and others go on beside it.
#[tokio::test]
async fn gb_49_to_51_a_handler_that_panics_fails_its_own_message_only() {
    let (Some(here), Some(beside)) = (Here::new().await, Here::new().await) else {
        return;
    };
    here.declare(&[]).await;
    beside.declare(&[]).await;
    let mut plan = Plan::default();
    let pool = plan.pools.get_mut("default").unwrap();
    pool.retry.initial = Duration::from_millis(1);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let noted = seen.clone();
    let router = router(plan, move |message| {
        let text = String::from_utf8_lossy(&message.payload).into_owned();
        let first = {
            let mut noted = noted.lock().unwrap();
            noted.push(text.clone());
            noted.iter().filter(|other| **other == text).count() == 1
        };
        async move {
            assert!(!(text == "bad" && first), "this handler panics");
            Outcome::Delivered
        }
    })
    .await;
    add(&router, here.options()).await;
    let plan = SourcePlan {
        envelope: raw(),
        ..beside.options().plan()
    };
    let source = RabbitmqSource::new("beside", beside.options(), &plan).unwrap();
    router.add_source("beside", source, plan).await.unwrap();
    for body in ["bad", "after"] {
        here.publish("", &here.name, "k", body.to_owned()).await;
    }
    here.publish("", &here.name, "l", "other".to_owned()).await;
    beside
        .publish("", &beside.name, "k", "beside".to_owned())
        .await;
    super::eventually(|| seen.lock().unwrap().len() == 5).await;
    let seen = seen.lock().unwrap().clone();
    let of_key: Vec<_> = seen
        .iter()
        .filter(|text| *text == "bad" || *text == "after")
        .collect();
    assert_eq!(of_key, ["bad", "bad", "after"]);
    for other in ["other", "beside"] {
        assert!(seen.iter().any(|text| text == other), "{seen:?}");
    }
    router.stop(Duration::from_secs(5)).await;
    for here in [&here, &beside] {
        here.delete(std::slice::from_ref(&here.name)).await;
    }
}

#[tokio::test]
async fn gb_56_a_delivery_is_a_span_with_its_queue_its_id_and_its_traceparent() {
    let Some(here) = Here::new().await else {
        return;
    };
    here.declare(&[]).await;
    let (spans, _guard) = Spans::start();
    let mut plan = Plan::default();
    let pool = plan.pools.get_mut("default").unwrap();
    pool.retry.initial = Duration::from_millis(1);
    let calls = Arc::new(Mutex::new(0));
    let counted = calls.clone();
    let router = router(plan, move |_| {
        let mut calls = counted.lock().unwrap();
        *calls += 1;
        let outcome = match *calls {
            1 => Outcome::Failed(Reason {
                class: "timeout".into(),
                ..Reason::default()
            }),
            _ => Outcome::Delivered,
        };
        async move { outcome }
    })
    .await;
    add(&router, here.options()).await;
    let traceparent = format!("00-{TRACE}-{PARENT}-01");
    let headers = [("x-group-id", "k"), ("traceparent", &*traceparent)];
    let sent = here.publish_with("", &here.name, &headers, "body".to_owned());
    let id = sent.await;
    super::eventually(|| *calls.lock().unwrap() == 2).await;
    router.stop(Duration::from_secs(5)).await;

    let spans = spans.of(&id);
    assert_eq!(spans.len(), 2, "{spans:?}");
    for span in &spans {
        assert_is_of(span, "rabbitmq", &here.name);
        assert_eq!(span["trace_id"], TRACE);
        assert_eq!(span["parent_span_id"], PARENT);
    }
    assert_eq!(spans[0]["error.type"], "timeout");
    assert!(!spans[1].contains_key("error.type"), "{spans:?}");
    here.delete(std::slice::from_ref(&here.name)).await;
}

/// Nothing that was on its way is dropped: each of the eight is handled once.
#[tokio::test]
async fn gb_38_a_connection_that_closes_with_eight_on_their_way_loses_none() {
    let Some(here) = Here::new().await else {
        return;
    };
    here.declare(&[]).await;
    for n in 0..8 {
        here.publish("", &here.name, &format!("k{n}"), n.to_string())
            .await;
    }
    let proxy = here.proxy().await;
    let mut options = here.options();
    options.url = format!("amqp://guest:guest@{}/%2f", proxy.address());
    let seen = Arc::new(Mutex::new(Vec::new()));
    let noted = seen.clone();
    let go = Arc::new(tokio::sync::Semaphore::new(0));
    let gate = go.clone();
    let router = router(Plan::default(), move |message| {
        let text = String::from_utf8_lossy(&message.payload).into_owned();
        noted.lock().unwrap().push(text);
        let gate = gate.clone();
        async move {
            gate.acquire().await.unwrap().forget();
            Outcome::Delivered
        }
    })
    .await;
    add(&router, options).await;
    super::eventually(|| seen.lock().unwrap().len() == 8).await;
    proxy.cut_all();
    // What ran goes on, and what comes again meanwhile is not called beside it.
    super::eventually(|| !router.problems().is_empty()).await;
    go.add_permits(100);
    super::eventually(|| router.problems().is_empty()).await;
    let counters = router.counters().of(&"s".into(), &"default".into());
    super::eventually(|| counters.delivered.get() + counters.redelivered.get() >= 8).await;
    let mut handled = seen.lock().unwrap().clone();
    handled.sort();
    assert_eq!(handled, ["0", "1", "2", "3", "4", "5", "6", "7"]);
    router.stop(Duration::from_secs(5)).await;
    here.delete(std::slice::from_ref(&here.name)).await;
}

/// Of two instances one is active on each shard; when it dies the other goes on, in order.
#[tokio::test]
async fn shards_keep_each_key_in_order_when_one_of_two_instances_dies() {
    let Some(here) = Here::new().await else {
        return;
    };
    let mut options = here.options();
    options.declare = Declare::Create;
    options.reader = Reader::SingleActive;
    options.shards = NonZeroUsize::new(3);
    let queues = options.queues();
    let proxy = here.proxy().await;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let instance = || {
        let noted = seen.clone();
        router(Plan::default(), move |message| {
            let text = String::from_utf8_lossy(&message.payload).into_owned();
            let noted = noted.clone();
            async move {
                tokio::time::sleep(Duration::from_millis(1)).await;
                noted.lock().unwrap().push(text);
                Outcome::Delivered
            }
        })
    };
    let join = async |router: &Router, options: Options| {
        let plan = SourcePlan {
            envelope: raw(),
            instances: Instances::Many,
            ..options.plan()
        };
        let source = RabbitmqSource::new("s", options, &plan).unwrap();
        router.add_source("s", source, plan).await.unwrap();
    };
    let first = instance().await;
    let mut through = options.clone();
    through.url = format!("amqp://guest:guest@{}/%2f", proxy.address());
    join(&first, through).await;
    here.is_read(&queues[2], 1).await;
    let second = instance().await;
    join(&second, options).await;
    here.is_read(&queues[2], 2).await;
    for n in 0..20 {
        for key in 0..30 {
            let body = format!("k{key} {n:02}");
            here.publish(&here.name, "", &format!("k{key}"), body).await;
        }
        if n == 10 {
            // It is gone from one moment to the next, and does not come back.
            proxy.set(ProxyFault::accept(Accept::Close));
            proxy.cut_all();
        }
    }
    let firsts = |key: u64| {
        let begins = format!("k{key} ");
        let mut of_key: Vec<String> = Vec::new();
        for text in seen.lock().unwrap().iter() {
            if let Some(n) = text.strip_prefix(&begins)
                && !of_key.iter().any(|other| other == n)
            {
                of_key.push(n.to_owned());
            }
        }
        of_key
    };
    super::eventually(|| (0..30).all(|key| firsts(key).len() == 20)).await;
    for key in 0..30 {
        assert!(firsts(key).is_sorted(), "k{key}: {:?}", firsts(key));
    }
    for router in [first, second] {
        router.stop(Duration::from_secs(5)).await;
    }
    here.delete(&queues).await;
}

/// Somebody else made the queue and its dead letters: a probe tells whether they are kept.
#[tokio::test]
async fn dead_letters_of_a_queue_that_is_there_are_proven_by_a_probe_that_leaves_nothing() {
    let Some(here) = Here::new().await else {
        return;
    };
    let exchange = format!("{}-letters", here.name);
    let letters = format!("{}-kept", here.name);
    let fanout = lapin::options::ExchangeDeclareOptions {
        auto_delete: true,
        ..Default::default()
    };
    let none = FieldTable::default;
    let made = here.channel.exchange_declare(
        exchange.as_str().into(),
        lapin::ExchangeKind::Fanout,
        fanout,
        none(),
    );
    made.await.unwrap();
    let to = AMQPValue::LongString(exchange.as_str().into());
    here.declare(&[("x-dead-letter-exchange", to)]).await;
    let mut options = here.options();
    options.dead_letter = DeadLetterTo::Broker;
    let said = refused(options.clone(), Instances::One).await;
    assert!(said.contains("no queue is bound to exchange"), "{said}");
    let made = here.channel.queue_declare(
        letters.as_str().into(),
        QueueDeclareOptions::default(),
        none(),
    );
    made.await.unwrap();
    let bound = here.channel.queue_bind(
        letters.as_str().into(),
        exchange.as_str().into(),
        "".into(),
        lapin::options::QueueBindOptions::default(),
        none(),
    );
    bound.await.unwrap();
    let mut plan = Plan::default();
    let pool = plan.pools.get_mut("default").unwrap();
    pool.on_refused = keylane_router::plan::OnRefused::DeadLetter;
    let router = router(plan, |_| async { Outcome::Refused(Reason::default()) }).await;
    add(&router, options).await;
    here.publish("", &here.name, "k", "bad".to_owned()).await;
    let letter = here.next_of(&letters).await;
    assert_eq!(letter.delivery.data, b"bad", "the probe is not kept");
    router.stop(Duration::from_secs(5)).await;
    here.delete(&[here.name.clone(), letters]).await;
}
