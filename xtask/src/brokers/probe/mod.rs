//! Whether a broker does its work: one message in and out again, in its own protocol.
//!
//! Spoken by hand, with only what the probe needs: the brokers' client crates take minutes to build, and everything
//! waits for xtask.

mod amqp091;
mod amqp10;
mod crc32c;
mod kafka;
mod pulsar;
mod sqs;

use std::io::{self, Read};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::broker::Broker;
use super::marked::until;
use super::ports::Ports;
use crate::Result;

/// A call on loopback that takes longer is no answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long a broker may say something wrong about itself.
const GETS_OVER_IT: Duration = Duration::from_millis(500);

/// Puts a message in, durably, and takes it out again. Where clients go by what the broker advertises, also sees that
/// it is right.
pub(crate) fn round_trip(broker: Broker, ports: &Ports) -> Result<()> {
    let (at, body) = (ports.address("client"), unique());
    publish(broker, at, "keylane-probe", &body)?;
    find(broker, at, "keylane-probe", &body)?;
    if broker.advertises() {
        check_advertised(broker, at, at)?;
        check_advertised(
            broker,
            ports.address("behind_proxy"),
            ports.address("proxy"),
        )?;
    }
    Ok(())
}

/// Whoever asks at `at` must be told to go to `right`.
fn check_advertised(broker: Broker, at: SocketAddr, right: SocketAddr) -> Result<()> {
    let advertised = match broker {
        Broker::Pulsar => pulsar::advertised,
        _ => kafka::advertised,
    };
    let told = told_at_last(&right.to_string(), || advertised(at))?;
    match told {
        None => Ok(()),
        Some(told) => Err(format!("{broker} at {at} advertises {told} instead of {right}").into()),
    }
}

/// Asks until the right answer comes; nothing where it did, else the last wrong one. A look-up that comes right after
/// another one is given that one's answer by Pulsar, even through another listener (apache/pulsar issue 26244).
fn told_at_last(right: &str, mut ask: impl FnMut() -> Result<String>) -> Result<Option<String>> {
    let mut told = Ok(String::new());
    until(GETS_OVER_IT, || {
        told = ask();
        !matches!(&told, Ok(wrong) if wrong != right)
    });
    let told = told?;
    Ok((told != right).then_some(told))
}

/// Makes the queue or topic if it is missing. Returns once the broker has said that it has the message.
pub(crate) fn publish(broker: Broker, at: SocketAddr, queue: &str, body: &str) -> Result<()> {
    match broker {
        Broker::Rabbitmq => amqp091::publish(at, queue, body),
        Broker::Activemq | Broker::Artemis => amqp10::publish(at, queue, body),
        Broker::Sqs => sqs::publish(at, queue, body),
        Broker::Kafka => kafka::publish(at, queue, body),
        Broker::Pulsar => pulsar::publish(at, queue, body),
    }
}

/// Takes messages until it comes; those before it are dropped.
pub(crate) fn find(broker: Broker, at: SocketAddr, queue: &str, body: &str) -> Result<()> {
    match broker {
        Broker::Rabbitmq => amqp091::find(at, queue, body),
        Broker::Activemq | Broker::Artemis => amqp10::find(at, queue, body),
        Broker::Sqs => sqs::find(at, queue, body),
        Broker::Kafka => kafka::find(at, queue, body),
        Broker::Pulsar => pulsar::find(at, queue, body),
    }
}

/// A body that no other message has.
pub(crate) fn unique() -> String {
    format!("probe-{}-{}", std::process::id(), now().as_nanos())
}

fn now() -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.expect("the clock is past 1970")
}

fn connect(at: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&at, PATIENCE)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// The largest frame that a probe can come across; more is nonsense, not a message.
const LARGEST: usize = 16 << 20;

/// As many bytes as the peer has announced.
fn read_exactly(stream: &mut TcpStream, length: usize) -> Result<Vec<u8>> {
    if length > LARGEST {
        return Err(format!("a frame of {length} bytes was announced").into());
    }
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// A frame behind its length, as Kafka and Pulsar have them.
fn read_sized(stream: &mut TcpStream) -> Result<Vec<u8>> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    read_exactly(stream, u32::from_be_bytes(length) as usize)
}

fn contains(haystack: &[u8], needle: &str) -> bool {
    haystack
        .windows(needle.len())
        .any(|window| window == needle.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_address_that_does_not_last_is_forgiven() {
        let mut answers = ["old", "old", "right"].into_iter();
        let told = told_at_last("right", || Ok(answers.next().unwrap().to_owned()));
        assert_eq!(told.unwrap(), None);
    }

    #[test]
    fn a_wrong_address_that_lasts_is_told_and_a_broker_that_fails_is_not_asked_again() {
        let told = told_at_last("right", || Ok("wrong".to_owned()));
        assert_eq!(told.unwrap(), Some("wrong".to_owned()));
        let mut asked = 0;
        let told = told_at_last("right", || {
            asked += 1;
            Err("gone".into())
        });
        assert!(told.is_err() && asked == 1);
    }
}
