//! The brokers there are: their names, their recipes, and the variables that point the tests at them.

use std::fmt::{self, Display};

use super::install;
use super::ports::Ports;
use crate::Result;

/// A server that Keylane takes messages from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Broker {
    Rabbitmq,
    Activemq,
    Artemis,
    Sqs,
    Kafka,
    Pulsar,
}

macro_rules! recipe {
    ($broker:literal: $($file:literal),+) => {
        &[$(($file, include_str!(concat!("../../brokers/", $broker, "/", $file)))),+]
    };
}

impl Broker {
    pub(crate) const ALL: [Broker; 6] = [
        Broker::Rabbitmq,
        Broker::Activemq,
        Broker::Artemis,
        Broker::Sqs,
        Broker::Kafka,
        Broker::Pulsar,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Broker::Rabbitmq => "rabbitmq",
            Broker::Activemq => "activemq",
            Broker::Artemis => "artemis",
            Broker::Sqs => "sqs",
            Broker::Kafka => "kafka",
            Broker::Pulsar => "pulsar",
        }
    }

    /// The files of `xtask/brokers/<name>`: `start.sh` starts it, the others are what that and the install need.
    pub(crate) fn recipe(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Broker::Rabbitmq => recipe!("rabbitmq": "start.sh"),
            Broker::Activemq => recipe!("activemq": "start.sh", "pom.xml", "Classic.java"),
            Broker::Artemis => recipe!("artemis": "start.sh", "pom.xml", "Artemis.java"),
            Broker::Sqs => recipe!("sqs": "start.sh", "requirements.txt"),
            Broker::Kafka => {
                recipe!("kafka": "start.sh", "pom.xml", "server.properties", "log4j2.properties")
            }
            Broker::Pulsar => {
                recipe!("pulsar": "start.sh", "pom.xml", "standalone.conf", "log4j2.properties")
            }
        }
    }

    /// The ports that its recipe wants, by name. Every one has `client`, which the tests and the probe use.
    pub(crate) fn ports(self) -> &'static [&'static str] {
        match self {
            Broker::Rabbitmq => &["client", "admin", "dist", "epmd"],
            Broker::Activemq | Broker::Artemis => &["client", "jms"],
            Broker::Sqs => &["client"],
            Broker::Kafka => &["client", "behind_proxy", "proxy", "controller"],
            Broker::Pulsar => &["client", "behind_proxy", "proxy", "admin", "bookie"],
        }
    }

    /// Whether its clients go where it tells them, so that a fault proxy needs a port that it advertises.
    pub(crate) fn advertises(self) -> bool {
        self.ports().contains(&"proxy")
    }

    /// Whether what it has acknowledged is on disk; the others keep it through an orderly stop only.
    pub(crate) fn survives_a_kill(self) -> bool {
        self != Broker::Sqs
    }

    /// `KEYLANE_TEST_KAFKA_<what>`.
    pub(crate) fn variable(self, what: &str) -> String {
        format!("KEYLANE_TEST_{}_{what}", self.name().to_uppercase())
    }

    /// Where clients find it.
    pub(crate) fn url(self, ports: &Ports) -> String {
        let at = ports.address("client");
        match self {
            Broker::Rabbitmq => format!("amqp://guest:guest@{at}/%2f"),
            Broker::Activemq | Broker::Artemis => format!("amqp://keylane:secret@{at}"),
            Broker::Sqs => format!("http://{at}"),
            // As Kafka's own clients want it.
            Broker::Kafka => at.to_string(),
            Broker::Pulsar => format!("pulsar://{at}"),
        }
    }

    /// What the tests are told about it.
    pub(crate) fn variables(self, ports: &Ports) -> Vec<(String, String)> {
        let mut variables = vec![(self.variable("URL"), self.url(ports))];
        // One that somebody else started is not ours to stop.
        variables.push((self.variable("OURS"), "1".to_owned()));
        if self.ports().contains(&"admin") {
            let url = format!("http://{}", ports.address("admin"));
            variables.push((self.variable("ADMIN_URL"), url));
        }
        if self.ports().contains(&"jms") {
            let url = format!("tcp://{}", ports.address("jms"));
            variables.push((self.variable("JMS_URL"), url));
            // Where its client is.
            let home = install::home_of(self).unwrap_or_default();
            variables.push((self.variable("HOME"), home.display().to_string()));
        }
        if self.advertises() {
            let (listen, to) = (ports.address("proxy"), ports.address("behind_proxy"));
            variables.push((self.variable("PROXY"), listen.to_string()));
            variables.push((self.variable("BEHIND_PROXY"), to.to_string()));
        }
        variables
    }
}

impl Display for Broker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

pub(crate) fn named(name: &str) -> Result<Broker> {
    let known = Broker::ALL.into_iter().find(|known| known.name() == name);
    known.ok_or_else(|| {
        let names = Broker::ALL.map(Broker::name).join(", ");
        format!("no broker is called `{name}`; there are: {names}").into()
    })
}

/// The named ones, or all.
pub(crate) fn chosen(names: &[&str]) -> Result<Vec<Broker>> {
    if names.is_empty() {
        return Ok(Broker::ALL.to_vec());
    }
    names.iter().map(|name| named(name)).collect()
}

/// The ones that `KEYLANE_REQUIRE_BROKERS` names: `all`, a list with commas, or nothing.
pub(crate) fn required(value: &str) -> Result<Vec<Broker>> {
    match value.trim() {
        "" => Ok(Vec::new()),
        "all" => Ok(Broker::ALL.to_vec()),
        list => list
            .split(',')
            .map(|name| {
                named(name.trim())
                    .map_err(|e| format!("KEYLANE_REQUIRE_BROKERS: {e}, or `all`").into())
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_means_all_and_an_unknown_one_is_an_error_that_lists_them() {
        assert_eq!(chosen(&[]).unwrap(), Broker::ALL);
        assert_eq!(
            chosen(&["sqs", "kafka"]).unwrap(),
            [Broker::Sqs, Broker::Kafka]
        );
        let error = chosen(&["sqs", "kafak"]).unwrap_err().to_string();
        assert!(
            error.contains("`kafak`") && error.contains("rabbitmq, activemq"),
            "{error}"
        );
    }

    #[test]
    fn required_are_all_a_list_or_none() {
        assert_eq!(required("all").unwrap(), Broker::ALL);
        assert_eq!(required("").unwrap(), []);
        assert_eq!(
            required("sqs, kafka").unwrap(),
            [Broker::Sqs, Broker::Kafka]
        );
    }

    #[test]
    fn a_mistyped_requirement_names_the_variable_and_the_remedy() {
        let error = required("al").unwrap_err().to_string();
        assert!(
            error.contains("KEYLANE_REQUIRE_BROKERS") && error.contains("or `all`"),
            "{error}"
        );
    }

    #[test]
    fn every_port_that_a_recipe_reads_is_given_and_every_one_given_is_read() {
        for broker in Broker::ALL {
            let start = broker.recipe()[0].1;
            let mut read: Vec<_> = start
                .split("$PORT_")
                .skip(1)
                .map(|rest| {
                    let end = rest.find(|c: char| !(c.is_ascii_uppercase() || c == '_'));
                    rest[..end.unwrap_or(rest.len())].to_lowercase()
                })
                .collect();
            read.sort();
            read.dedup();
            let mut given = broker.ports().to_vec();
            given.sort();
            assert_eq!(read, given, "{broker}");
        }
    }

    #[test]
    fn the_tests_are_told_the_url_and_where_a_proxy_goes() {
        let ports = Ports::of(&[
            ("client", 1),
            ("behind_proxy", 2),
            ("proxy", 3),
            ("controller", 4),
        ]);
        let told = Broker::Kafka.variables(&ports);
        let told: Vec<_> = told
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        assert_eq!(
            told,
            [
                "KEYLANE_TEST_KAFKA_URL=127.0.0.1:1",
                "KEYLANE_TEST_KAFKA_OURS=1",
                "KEYLANE_TEST_KAFKA_PROXY=127.0.0.1:3",
                "KEYLANE_TEST_KAFKA_BEHIND_PROXY=127.0.0.1:2",
            ]
        );
    }
}
