//! Queues of ActiveMQ Classic and Artemis as the suite's subjects, each behind a proxy of its own.

mod client;
mod proxy;

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use keylane_router::activemq::{
    ActiveMqSource, Broker, DECLARED_ARTEMIS, DECLARED_CLASSIC, Options,
};
use keylane_router::conformance::{Fault, Published, Queue, Subject};
use keylane_router::plan::{Instances, SourcePlan};
use keylane_router::source::Features;

pub(crate) use client::{Client, Outgoing};
pub(crate) use proxy::Proxy;

/// Short, so that cases which wait for its end are over soon.
const LEASE: Duration = Duration::from_millis(1500);

/// Which of the two servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Server {
    Classic,
    Artemis,
}

impl Server {
    /// What its tests and its commands call it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Classic => "activemq",
            Self::Artemis => "artemis",
        }
    }

    fn variable(self) -> String {
        format!("KEYLANE_TEST_{}_URL", self.name().to_uppercase())
    }

    /// Where it is, for a queue of this name; `None` = there is none.
    pub(crate) fn options(self, queue: &str) -> Option<Options> {
        let url = std::env::var(self.variable()).ok()?;
        let options = Options::new(&url, queue);
        let options = options.unwrap_or_else(|error| panic!("{}: {error}", self.variable()));
        let broker = match self {
            Self::Classic => Broker::Classic,
            Self::Artemis => Broker::Artemis,
        };
        Some(Options { broker, ..options })
    }

    fn features(self) -> Features {
        match self {
            Self::Classic => DECLARED_CLASSIC.features,
            Self::Artemis => DECLARED_ARTEMIS.features,
        }
    }
}

pub(crate) struct ActiveMq(pub(crate) Server);

/// One queue, with a way to it that can be broken.
pub(crate) struct ActiveMqQueue {
    server: Server,
    options: Options,
    /// `None` in a process of its own, which nobody breaks.
    proxy: Option<Proxy>,
    client: tokio::sync::Mutex<Option<Client>>,
    published: AtomicU64,
}

/// What is wanted of the broker.
enum Ask {
    Publish(Vec<Outgoing>),
    Create,
    Delete,
    /// How many messages it holds.
    Left,
}

impl Subject for ActiveMq {
    type Queue = ActiveMqQueue;

    fn features(&self) -> Features {
        Features {
            lease: Some(LEASE),
            ..self.0.features()
        }
    }

    fn absent(&self) -> Option<String> {
        let absent = self.0.options("q").is_none();
        absent.then(|| format!("{} is not set", self.0.variable()))
    }

    fn can(&self, fault: Fault) -> bool {
        let login = || self.0.options("q").is_some_and(|at| at.login.is_some());
        match fault {
            Fault::Stop | Fault::Kill | Fault::Start => super::is_ours(self.0.name()),
            Fault::WrongPassword | Fault::RightPassword => login(),
            // Classic deletes no queue that is read, and makes the one that is wanted.
            Fault::DeleteQueue | Fault::CreateQueue => self.0 == Server::Artemis,
            _ => true,
        }
    }

    fn takes(&self, message: &Published) -> bool {
        // A string of AMQP is UTF-8.
        let key = message.key.as_deref();
        key.is_none_or(|key| std::str::from_utf8(key).is_ok())
    }

    async fn queue(&self) -> Result<ActiveMqQueue, String> {
        let name = format!("keylane.{}", uuid::Uuid::now_v7().simple());
        let mut queue = ActiveMqQueue::open(self.0, &name)?;
        let broker = (queue.options.host.clone(), queue.options.port);
        queue.proxy = Some(Proxy::start(broker).await);
        // It exists from the beginning.
        queue.ask(Ask::Create).await?;
        Ok(queue)
    }
}

impl ActiveMqQueue {
    fn open(server: Server, name: &str) -> Result<Self, String> {
        let options = server.options(name);
        let mut options = options.ok_or_else(|| format!("{} is not set", server.variable()))?;
        options.lease = LEASE;
        Ok(Self {
            server,
            options,
            proxy: None,
            client: tokio::sync::Mutex::default(),
            published: AtomicU64::new(0),
        })
    }

    /// As told by [`Queue::child`].
    pub(crate) fn of_child(told: &Path) -> Self {
        let told = told.to_str().expect("it is text");
        let (server, queue) = told.split_once('/').expect("a server and a queue");
        let servers = [Server::Classic, Server::Artemis];
        let mut servers = servers.into_iter();
        let server = servers.find(|known| known.name() == server);
        Self::open(server.expect("a server"), queue).expect("the broker is there")
    }

    /// Does something over a connection that is not broken; connects again if the broker was away.
    async fn ask(&self, what: Ask) -> Result<u64, String> {
        let mut client = self.client.lock().await;
        let mut ours = match client.take() {
            Some(ours) => ours,
            None => Client::connect(self.server, &self.options).await?,
        };
        let queue = &self.options.queue;
        let done = match what {
            Ask::Publish(all) => ours.publish(queue, &all).await.map(|()| 0),
            Ask::Create => ours.create(queue).await.map(|()| 0),
            Ask::Delete => ours.delete(queue).await.map(|()| 0),
            Ask::Left => ours.left(queue).await,
        };
        if done.is_ok() {
            *client = Some(ours);
        }
        done
    }

    fn proxy(&self) -> &Proxy {
        self.proxy.as_ref().expect("this process breaks it")
    }

    async fn operate(&self, verb: &'static str) -> Result<(), String> {
        if verb != "start" {
            *self.client.lock().await = None;
        }
        super::operate(verb, self.server.name()).await
    }
}

impl Queue for ActiveMqQueue {
    type Source = ActiveMqSource;

    async fn connect(&self, name: Arc<str>, plan: &SourcePlan) -> Result<ActiveMqSource, String> {
        let mut options = self.options.clone();
        options.alone = plan.instances == Instances::One;
        if let Some(proxy) = &self.proxy {
            (options.host, options.port) = ("127.0.0.1".to_owned(), proxy.port());
        }
        Ok(ActiveMqSource::new(name, options))
    }

    async fn publish(&self, messages: Vec<Published>) -> Result<(), String> {
        let outgoing = |message: &Published| {
            let n = self.published.fetch_add(1, Ordering::Relaxed);
            Outgoing {
                // Artemis gives none, Classic does.
                id: (self.server == Server::Artemis).then(|| format!("{}-{n}", self.options.queue)),
                key: message.key.as_deref().map(|key| {
                    let key = std::str::from_utf8(key).expect("the broker takes it");
                    key.to_owned()
                }),
                body: message.body.to_vec(),
                headers: message.headers.clone(),
            }
        };
        let outgoing = messages.iter().map(outgoing).collect();
        self.ask(Ask::Publish(outgoing)).await.map(drop)
    }

    async fn left(&self) -> Result<Option<u64>, String> {
        self.ask(Ask::Left).await.map(Some)
    }

    async fn fault(&self, fault: Fault) -> Result<(), String> {
        match fault {
            // What is out comes again over the next connection.
            Fault::Cut | Fault::Redeliver | Fault::EndLeases => self.proxy().cut(),
            Fault::Away => self.proxy().away(),
            Fault::Back => self.proxy().back(),
            Fault::LoseAck => self.proxy().lose_an_ack(),
            Fault::LoseRenewals => self.proxy().stand_still(LEASE * 2),
            Fault::WrongPassword => {
                let login = self.options.login.as_ref();
                let login = login.ok_or("there is no password")?;
                self.proxy().garble(Some(login.password.clone()));
                self.proxy().cut();
            }
            Fault::RightPassword => self.proxy().garble(None),
            Fault::Stop => return self.operate("stop").await,
            Fault::Kill => return self.operate("kill").await,
            Fault::Start => return self.operate("start").await,
            Fault::DeleteQueue => return self.ask(Ask::Delete).await.map(drop),
            Fault::CreateQueue => return self.ask(Ask::Create).await.map(drop),
        }
        Ok(())
    }

    async fn child(&self) -> Option<Command> {
        let told = format!("{}/{}", self.server.name(), self.options.queue);
        super::as_a_router("router_on_activemq", Path::new(&told))
    }
}
