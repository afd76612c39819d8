//! RabbitMQ beyond the conformance suite: start-up checks, declarations, its own dead letters,
//! shards. Without a broker these say that they are skipped.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use keylane_router::Router;
use keylane_router::conformance::MemoryStore;
use keylane_router::dispatch::handler_fn;
use keylane_router::message::Message;
use keylane_router::outcome::{Outcome, Reason};
use keylane_router::plan::{Envelope, Instances, OnExhausted, Plan, SourcePlan};
use keylane_router::rabbitmq::{DeadLetterTo, Declare, Options, QueueType, RabbitmqSource, Reader};
use keylane_router::source::{Room, Source};
use lapin::options::{
    BasicGetOptions, BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions,
    QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};

/// A queue's name of its own, and a channel to make, fill and delete it with.
struct Here {
    url: String,
    name: String,
    channel: Channel,
    _connection: Connection,
}

impl Here {
    /// `None`, and says so, where there is no broker.
    async fn new() -> Option<Self> {
        let Ok(url) = std::env::var("KEYLANE_TEST_RABBITMQ_URL") else {
            println!("skipped: KEYLANE_TEST_RABBITMQ_URL is not set");
            return None;
        };
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
        let mut headers = FieldTable::default();
        headers.insert("x-group-id".into(), AMQPValue::LongString(key.into()));
        let properties = BasicProperties::default()
            .with_headers(headers)
            .with_message_id(uuid::Uuid::now_v7().to_string().into())
            .with_delivery_mode(2);
        let options = BasicPublishOptions::default();
        let (exchange, routing_key) = (exchange.into(), routing_key.into());
        let sent =
            self.channel
                .basic_publish(exchange, routing_key, options, body.as_bytes(), properties);
        sent.await.unwrap().await.unwrap();
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

/// What a first receive with these options says is wrong.
async fn refused(options: Options, instances: Instances) -> String {
    let plan = SourcePlan {
        instances,
        ..SourcePlan::custom()
    };
    let mut source = RabbitmqSource::new("s", options, &plan).expect("they fit");
    let room = Room {
        messages: 10,
        bytes: 1 << 20,
    };
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

fn add(router: &Router, options: Options) {
    let plan = SourcePlan {
        envelope: raw(),
        ..options.plan()
    };
    let source = RabbitmqSource::new("s", options, &plan).unwrap();
    router.add_source("s", source, plan).unwrap();
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
    add(&first, here.options());
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
    pool.on_exhausted = Some(OnExhausted::DeadLetter);
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
    add(&router, options);
    super::eventually(|| router.problems().is_empty()).await;
    let letters = format!("{}.dlq", here.name);
    let mut made = false;
    while !made {
        // The router makes it when it connects.
        tokio::time::sleep(Duration::from_millis(50)).await;
        let other = here._connection.create_channel().await.unwrap();
        let passive = QueueDeclareOptions {
            passive: true,
            ..QueueDeclareOptions::default()
        };
        let name = here.name.as_str().into();
        let declared = other.queue_declare(name, passive, FieldTable::default());
        made = declared.await.is_ok();
    }
    for body in ["good", "bad", "after"] {
        here.publish("", &here.name, "k", body.to_owned()).await;
    }
    super::eventually(|| seen.lock().unwrap().len() == 4).await;
    assert_eq!(*seen.lock().unwrap(), ["good", "bad", "bad", "after"]);
    let letter = loop {
        let get = BasicGetOptions { no_ack: true };
        let got = here.channel.basic_get(letters.as_str().into(), get).await;
        match got.unwrap() {
            Some(letter) => break letter,
            None => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    };
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
    add(&router, options);
    let mut bound = false;
    while !bound {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let other = here._connection.create_channel().await.unwrap();
        let passive = QueueDeclareOptions {
            passive: true,
            ..QueueDeclareOptions::default()
        };
        let last = queues[2].as_str().into();
        let declared = other.queue_declare(last, passive, FieldTable::default());
        bound = declared.await.is_ok_and(|queue| queue.consumer_count() > 0);
    }
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
