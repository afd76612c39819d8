//! ActiveMQ Classic and Artemis as sources, beside what the suite asks of every source.

use std::collections::{BTreeMap, HashSet};
use std::process::Command;
use std::time::Duration;

use keylane_router::activemq::{ActiveMqSource, Identified, Options, QueueSettings, Receipt};
use keylane_router::conformance::share;
use keylane_router::source::{Received, Room, SettleError, Settler, Source, SourceError};
use serde_json::json;
use tokio::time::timeout;

use crate::certificate::Front;
use crate::conformance::activemq::{Client, Outgoing, Proxy, Server};

const BOTH: [Server; 2] = [Server::Classic, Server::Artemis];
const LONG: Duration = Duration::from_secs(30);

const ROOM: Room = Room::new(1000, 1 << 20);

/// A queue of one of the servers, with nothing in it.
struct Place {
    server: Server,
    options: Options,
    client: Client,
}

impl Place {
    async fn new(server: Server, options: Options) -> Self {
        let mut client = Client::connect(server, &options).await.expect("a broker");
        client.create(&options.queue).await.expect("a queue");
        Self {
            server,
            options,
            client,
        }
    }

    /// `k0`, `k1`, … of one key.
    async fn publish(&mut self, numbers: std::ops::Range<u64>) {
        let all: Vec<_> = numbers.map(|n| self.outgoing(n)).collect();
        self.put(&all).await;
    }

    fn outgoing(&self, n: u64) -> Outgoing {
        Outgoing {
            id: (self.server == Server::Artemis).then(|| format!("{}-{n}", self.options.queue)),
            key: Some("k".to_owned()),
            body: format!("k{n}").into_bytes(),
            headers: Vec::new(),
        }
    }

    async fn put(&mut self, all: &[Outgoing]) {
        let put = self.client.publish(&self.options.queue, all).await;
        put.expect("published");
    }

    fn source(&self) -> ActiveMqSource {
        ActiveMqSource::new("s", self.options.clone())
    }

    async fn left(&mut self) -> u64 {
        self.client
            .left(&self.options.queue)
            .await
            .expect("a number")
    }

    async fn is_empty(&mut self) {
        while self.left().await > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// Runs a test on each server that is there, in a queue of its own, while nobody stops it.
fn on_each(test: &str, run: impl AsyncFn(Place)) {
    for server in BOTH {
        on(server, test, &run);
    }
}

fn on(server: Server, test: &str, run: impl AsyncFn(Place)) {
    let queue = format!("keylane.{test}.{}", uuid::Uuid::now_v7().simple());
    let Some(options) = server.options(&queue) else {
        eprintln!("skipped {test}: there is no {}", server.name());
        return;
    };
    let _nobody_stops_it = share("activemq");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let done = timeout(LONG * 2, async {
            run(Place::new(server, options).await).await;
        });
        assert!(done.await.is_ok(), "{test} hangs on {}", server.name());
    });
}

/// Waits for so many messages. Until the broker has noticed the end of another connection it refuses
/// the next: a source is asked again then.
async fn take(source: &mut ActiveMqSource, count: usize) -> Vec<Received<Receipt>> {
    let mut all = Vec::new();
    while all.len() < count {
        let room = Room {
            messages: count - all.len(),
            ..ROOM
        };
        let received = timeout(LONG, source.receive(room)).await;
        let received = received.unwrap_or_else(|_| panic!("{} of {count} came", all.len()));
        match received {
            Ok(received) => all.extend(received),
            Err(error) if error.permanent => panic!("{error}"),
            Err(_) => tokio::time::sleep(std::time::Duration::from_millis(20)).await,
        }
    }
    all
}

/// The source's error, after however many good answers.
async fn error(source: &mut ActiveMqSource) -> SourceError {
    loop {
        let received = timeout(LONG, source.receive(ROOM)).await;
        if let Err(error) = received.expect("an answer") {
            return error;
        }
    }
}

fn bodies(received: &[Received<Receipt>]) -> Vec<String> {
    let bodies = received.iter();
    bodies
        .map(|one| String::from_utf8_lossy(&one.body).into_owned())
        .collect()
}

fn numbered(numbers: std::ops::Range<u64>) -> Vec<String> {
    numbers.map(|n| format!("k{n}")).collect()
}

fn receipts(received: &[Received<Receipt>]) -> Vec<Receipt> {
    received.iter().map(|one| one.receipt.clone()).collect()
}

async fn ack(source: &ActiveMqSource, received: &[Received<Receipt>]) {
    let acked = source.settler().ack(receipts(received)).await;
    assert!(acked.iter().all(Result::is_ok), "{acked:?}");
}

#[test]
fn what_is_given_back_comes_again_before_what_is_behind_it() {
    on_each("back", async |mut place| {
        place.publish(0..10).await;
        let mut source = place.source();
        let first = take(&mut source, 5).await;
        // There is room for more, and the broker may hand it out.
        let more = take(&mut source, 2).await;
        let back = receipts(&[&first[1..], &more].concat());
        let given = source.settler().give_back(back, Duration::ZERO).await;
        assert!(given.iter().all(Result::is_ok), "{given:?}");
        let again = take(&mut source, 9).await;
        assert_eq!(bodies(&again), numbered(1..10));
        ack(&source, &first[..1]).await;
        ack(&source, &again).await;
        place.is_empty().await;
        source.close().await;
    });
}

/// Artemis moves what it handed out ten times to its dead letters, unless it was given back well.
#[test]
fn a_stop_gives_everything_back_in_order_however_often() {
    on_each("stop", async |mut place| {
        place.publish(0..8).await;
        for stop in 0..15 {
            let mut source = place.source();
            let held = take(&mut source, 5).await;
            assert_eq!(bodies(&held), numbered(0..5), "after {stop} stops");
            if stop % 2 == 0 {
                let given = source
                    .settler()
                    .give_back(receipts(&held), Duration::ZERO)
                    .await;
                assert!(given.iter().all(Result::is_ok), "{given:?}");
            }
            source.close().await;
        }
        let mut source = place.source();
        let all = take(&mut source, 8).await;
        assert_eq!(bodies(&all), numbered(0..8));
        ack(&source, &all).await;
        // A link that is closed has had its acks heard, though they may not be counted yet.
        source.close().await;
        place.is_empty().await;
    });
}

#[test]
fn a_receive_that_is_dropped_loses_nothing() {
    on_each("dropped", async |mut place| {
        let mut source = place.source();
        let mut all = Vec::new();
        for n in 0..40 {
            place.publish(n * 5..(n + 1) * 5).await;
            // Somewhere between asking and taking, and at the beginning of connecting too.
            let short = Duration::from_micros(50 * n);
            if let Ok(received) = timeout(short, source.receive(ROOM)).await {
                all.extend(received.expect("the broker is there"));
            }
        }
        let rest = take(&mut source, 200 - all.len()).await;
        all.extend(rest);
        assert_eq!(bodies(&all), numbered(0..200));
        ack(&source, &all).await;
        place.is_empty().await;
        source.close().await;
    });
}

#[test]
fn no_more_is_on_its_way_than_there_is_room_for() {
    on(Server::Artemis, "room", async |mut place| {
        place.publish(0..100).await;
        let mut source = place.source();
        let held = take(&mut source, 10).await;
        let queue = format!("queue.{}", place.options.queue);
        let delivering = place.client.manage(&queue, "getDeliveringCount", json!([]));
        assert_eq!(delivering.await.expect("a number"), "[10]");
        ack(&source, &held).await;
        source.close().await;
    });
}

#[test]
fn without_a_user_sasl_is_anonymous() {
    on_each("anonymous", async |mut place| {
        place.publish(0..1).await;
        place.options.login = None;
        let mut source = place.source();
        let one = take(&mut source, 1).await;
        ack(&source, &one).await;
        source.close().await;
    });
}

#[test]
fn a_wrong_password_is_told_without_it() {
    on_each("password", async |place| {
        let mut options = place.options.clone();
        let login = options.login.as_mut().expect("the test brokers have one");
        login.password = "not-the-password".to_owned();
        let mut source = ActiveMqSource::new("s", options);
        let error = error(&mut source).await;
        assert!(
            error.permanent && error.text.contains("refuses user `keylane`"),
            "{error}"
        );
        assert!(!error.to_string().contains("not-the-password"), "{error}");
    });
}

#[test]
fn over_tls_the_certificate_is_looked_at() {
    on_each("tls", async |mut place| {
        place.publish(0..3).await;
        let broker = format!("{}:{}", place.options.host, place.options.port);
        let front = Front::of(broker.parse().expect("an address")).await;
        place.options.host = "localhost".to_owned();
        place.options.port = front.address.port();
        place.options.tls = true;
        let mut stranger = place.source();
        let refused = error(&mut stranger).await;
        assert!(refused.text.contains("certificate"), "{refused}");
        place.options.roots = front.roots.clone();
        let mut source = place.source();
        let all = take(&mut source, 3).await;
        assert_eq!(bodies(&all), numbered(0..3));
        ack(&source, &all).await;
        source.close().await;
    });
}

/// Plain AMQP publishers need not set a message-id, and Artemis sets none.
#[test]
fn without_message_ids_nothing_is_lost_or_overtaken_when_the_connection_is_cut() {
    on(Server::Artemis, "no-ids", async |mut place| {
        let all: Vec<_> = (0..6)
            .map(|n| Outgoing {
                id: None,
                ..place.outgoing(n)
            })
            .collect();
        place.put(&all).await;
        let proxy = Proxy::start((place.options.host.clone(), place.options.port)).await;
        let mut options = place.options.clone();
        (options.host, options.port) = ("127.0.0.1".to_owned(), proxy.port());
        let mut source = ActiveMqSource::new("s", options);
        let held = take(&mut source, 6).await;
        let ids: HashSet<_> = held.iter().map(|one| one.identity.clone()).collect();
        assert_eq!(ids.len(), 6, "each is a message of its own");
        proxy.cut();
        error(&mut source).await;
        let late = source.settler().ack(receipts(&held)).await;
        let lost = |result: &Result<(), SettleError>| matches!(result, Err(SettleError::Lost(_)));
        assert!(late.iter().all(lost), "{late:?}");
        let again = take(&mut source, 6).await;
        assert_eq!(bodies(&again), numbered(0..6));
        assert!(again.iter().all(|one| !ids.contains(&one.identity)));
        ack(&source, &again).await;
        place.is_empty().await;
        source.close().await;
    });
}

#[test]
fn two_messages_with_one_message_id_are_two_messages() {
    on(Server::Artemis, "same-ids", async |mut place| {
        let same = |n| Outgoing {
            id: Some("same".to_owned()),
            ..place.outgoing(n)
        };
        let all: Vec<_> = (0..4).map(same).collect();
        place.put(&all).await;
        for identity in [Identified::MessageId, Identified::Nothing] {
            let mut options = place.options.clone();
            options.identity = identity;
            let mut source = ActiveMqSource::new("s", options);
            assert_eq!(
                source.features().identity,
                identity == Identified::MessageId
            );
            let held = take(&mut source, 4).await;
            let ids: HashSet<_> = held.iter().map(|one| one.identity.clone()).collect();
            assert_eq!((ids.len(), bodies(&held)), (4, numbered(0..4)));
            source.close().await;
        }
    });
}

#[test]
fn a_queue_of_artemis_that_breaks_order_or_loses_messages_is_not_read() {
    on(Server::Artemis, "settings", async |mut place| {
        place.publish(0..1).await;
        let settings = [
            (
                json!({"redeliveryDelay": 100}),
                "redelivery-delay is 100 ms",
            ),
            (
                json!({"maxDeliveryAttempts": 3, "deadLetterAddress": "keylane.nowhere"}),
                "no queue on the dead-letter address `keylane.nowhere`",
            ),
        ];
        for (settings, text) in settings {
            place.set(settings).await;
            let refused = error(&mut place.source()).await;
            assert!(
                refused.permanent && refused.text.contains(text),
                "{refused}"
            );
        }
        let mut options = place.options.clone();
        options.queue_settings = QueueSettings::Warn;
        let mut told = ActiveMqSource::new("s", options);
        take(&mut told, 1).await;
        told.close().await;
        place.set(json!({"maxDeliveryAttempts": -1})).await;
        let mut source = place.source();
        take(&mut source, 1).await;
        source.close().await;
    });
}

impl Place {
    /// Sets these for the queue's address, and nothing else.
    async fn set(&mut self, mut settings: serde_json::Value) {
        settings["autoCreateQueues"] = false.into();
        let parameters = json!([self.options.queue, settings.to_string()]);
        let set = self
            .client
            .manage("broker", "addAddressSettings", parameters);
        set.await.expect("settings");
    }
}

#[test]
fn a_lease_longer_than_the_broker_waits_for_us_is_refused() {
    on_each("lease", async |mut place| {
        place.options.lease = Duration::from_secs(600);
        let refused = error(&mut place.source()).await;
        assert!(refused.text.contains("set lease to at most"), "{refused}");
    });
}

/// Not only our own code talks to the broker here: its own client publishes by its own protocol.
#[test]
fn messages_of_a_jms_client_come_in_order_of_their_group_with_their_bodies() {
    on_each("jms", async |mut place| {
        let Some(mut producer) = jms_producer(place.server, &place.options.queue) else {
            eprintln!(
                "skipped jms on {}: nobody says where its client is",
                place.server.name()
            );
            return;
        };
        let ran = tokio::task::spawn_blocking(move || producer.output()).await;
        let ran = ran.expect("no panic").expect("java is there");
        assert!(
            ran.status.success(),
            "{}",
            String::from_utf8_lossy(&ran.stderr)
        );
        let mut source = place.source();
        let all = take(&mut source, 33).await;
        let mut keys: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for one in &all[..30] {
            let key = one.key.as_ref().expect("it has a group").to_string();
            let body = String::from_utf8(one.body.to_vec()).expect("text");
            keys.entry(key).or_default().push(body);
            let traced = one.headers.iter().any(|(name, _)| &**name == "traceparent");
            assert!(traced, "{:?}", one.headers);
        }
        for (key, bodies) in keys {
            let wanted: Vec<_> = (0..10)
                .map(|n| format!("{{\"id\":\"{key}#{n}\"}}"))
                .collect();
            assert_eq!(bodies, wanted);
        }
        let map: serde_json::Value = serde_json::from_slice(&all[30].body).expect("JSON");
        assert_eq!(map, json!({"text": "ü", "number": 7}));
        assert_eq!(bodies(&all[31..]), [r#"["a",2]"#, ""]);
        assert!(all[30..].iter().all(|one| one.key.is_none()));
        let ids: HashSet<_> = all.iter().map(|one| one.identity.to_string()).collect();
        assert!(
            ids.len() == 33 && ids.iter().all(|id| id.contains("ID:")),
            "{ids:?}"
        );
        ack(&source, &all).await;
        place.is_empty().await;
        source.close().await;
    });
}

/// A program of the broker's own JMS client that publishes to this queue.
fn jms_producer(server: Server, queue: &str) -> Option<Command> {
    let told = |what| {
        let name = server.name().to_uppercase();
        std::env::var(format!("KEYLANE_TEST_{name}_{what}")).ok()
    };
    let factory = match server {
        Server::Classic => "org.apache.activemq.ActiveMQConnectionFactory",
        Server::Artemis => "org.apache.activemq.artemis.jms.client.ActiveMQConnectionFactory",
    };
    let mut java = Command::new("java");
    java.args(["-cp", &format!("{}/lib/*", told("HOME")?)]);
    java.arg("-Dorg.slf4j.simpleLogger.defaultLogLevel=error");
    java.arg(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/it/activemq/Producer.java"
    ));
    java.args([factory, &told("JMS_URL")?, queue]);
    Some(java)
}
