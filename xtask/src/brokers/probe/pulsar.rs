//! Pulsar, by its binary protocol, with the few fields of its commands that a probe needs.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};

use bytes::{Buf, BufMut};

use super::crc32c::crc32c;
use super::{connect, read_sized};
use crate::Result;

/// A command's number, which is also its field in the envelope.
type Command = u64;

const CONNECT: Command = 2;
const CONNECTED: Command = 3;
const SUBSCRIBE: Command = 4;
const PRODUCER: Command = 5;
const SEND: Command = 6;
const SEND_RECEIPT: Command = 7;
const MESSAGE: Command = 9;
const ACK: Command = 10;
const FLOW: Command = 11;
const SUCCESS: Command = 13;
const CLOSE_CONSUMER: Command = 16;
const PRODUCER_SUCCESS: Command = 17;
const PING: Command = 18;
const LOOKUP: Command = 23;
const LOOKUP_RESPONSE: Command = 24;
const ACK_RESPONSE: Command = 38;

/// Old enough for every broker, new enough for acks with an answer.
const VERSION: u64 = 19;
const MAGIC: u16 = 0x0e01;

pub(super) fn publish(at: SocketAddr, queue: &str, body: &str) -> Result<()> {
    let mut connection = Connection::open(at)?;
    connection.look_up(queue)?;
    let producer = [
        text(1, &topic(queue)),
        number(2, 1),
        number(3, 2),
        text(4, "probe"),
    ];
    connection.call(PRODUCER, &producer, PRODUCER_SUCCESS)?;
    let metadata = [text(1, "probe"), number(2, 0), number(3, 1)].concat();
    let mut checked = Vec::new();
    checked.put_u32(metadata.len() as u32);
    checked.put_slice(&metadata);
    checked.put_slice(body.as_bytes());
    let mut payload = Vec::new();
    payload.put_u16(MAGIC);
    payload.put_u32(crc32c(&checked));
    payload.put_slice(&checked);
    connection.send(SEND, &[number(1, 1), number(2, 0)], &payload)?;
    connection.expect(SEND_RECEIPT)?;
    Ok(())
}

pub(super) fn find(at: SocketAddr, queue: &str, body: &str) -> Result<()> {
    let mut connection = Connection::open(at)?;
    connection.look_up(queue)?;
    // Exclusive, durable, from the first message.
    let subscribe = [
        text(1, &topic(queue)),
        text(2, "probe"),
        number(3, 0),
        number(4, 1),
        number(5, 2),
        number(13, 1),
    ];
    connection.call(SUBSCRIBE, &subscribe, SUCCESS)?;
    for request in 3.. {
        connection.send(FLOW, &[number(1, 1), number(2, 1)], &[])?;
        let message = connection.expect(MESSAGE)?;
        let id = message.field(2)?;
        let ack = [number(1, 1), number(2, 0), bytes(3, id), number(8, request)];
        connection.call(ACK, &ack, ACK_RESPONSE)?;
        if message.payload.ends_with(body.as_bytes()) {
            break;
        }
    }
    connection.call(CLOSE_CONSUMER, &[number(1, 1), number(2, 1)], SUCCESS)?;
    Ok(())
}

/// Where the broker tells those to go who ask it at `at`.
pub(super) fn advertised(at: SocketAddr) -> Result<String> {
    let url = Connection::open(at)?.look_up("keylane-probe")?;
    Ok(url.trim_start_matches("pulsar://").to_owned())
}

fn topic(queue: &str) -> String {
    format!("persistent://public/default/{queue}")
}

struct Connection {
    stream: TcpStream,
}

impl Connection {
    fn open(at: SocketAddr) -> Result<Self> {
        let mut connection = Self {
            stream: connect(at)?,
        };
        connection.call(
            CONNECT,
            &[text(1, "keylane-probe"), number(4, VERSION)],
            CONNECTED,
        )?;
        Ok(connection)
    }

    /// Who serves the topic. One that nobody has looked up is served by nobody.
    fn look_up(&mut self, queue: &str) -> Result<String> {
        let lookup = [text(1, &topic(queue)), number(2, 1), number(3, 0)];
        let answer = self.call(LOOKUP, &lookup, LOOKUP_RESPONSE)?;
        Ok(String::from_utf8_lossy(answer.field(1)?).into_owned())
    }

    fn call(&mut self, command: Command, fields: &[Vec<u8>], answer: Command) -> Result<Came> {
        self.send(command, fields, &[])?;
        self.expect(answer)
    }

    fn send(&mut self, command: Command, fields: &[Vec<u8>], payload: &[u8]) -> Result<()> {
        let envelope = [number(1, command), bytes(command, &fields.concat())].concat();
        let mut frame = Vec::new();
        frame.put_u32((4 + envelope.len() + payload.len()) as u32);
        frame.put_u32(envelope.len() as u32);
        frame.put_slice(&envelope);
        frame.put_slice(payload);
        Ok(self.stream.write_all(&frame)?)
    }

    /// The command that must come next. A ping is none of our business: it is over before an answer is missed.
    fn expect(&mut self, command: Command) -> Result<Came> {
        loop {
            let came = self.read()?;
            if came.command == command {
                return Ok(came);
            }
            if came.command != PING {
                let text = String::from_utf8_lossy(&came.fields);
                let number = came.command;
                return Err(format!("command {command} was due, {number} came: {text}").into());
            }
        }
    }

    fn read(&mut self) -> Result<Came> {
        let frame = read_sized(&mut self.stream)?;
        let mut rest = frame.as_slice();
        let length = rest.try_get_u32()? as usize;
        let (mut envelope, payload) = rest.split_at_checked(length).ok_or("a short frame")?;
        let (_, command) = take_field(&mut envelope)?;
        let Field::Number(command) = command else {
            return Err("a command without a number".into());
        };
        let fields = match field(envelope, command)? {
            Field::Bytes(fields) => fields.to_vec(),
            Field::Number(_) => return Err("a command without fields".into()),
        };
        Ok(Came {
            command,
            fields,
            payload: payload.to_vec(),
        })
    }
}

/// A command from the broker.
struct Came {
    command: Command,
    fields: Vec<u8>,
    payload: Vec<u8>,
}

impl Came {
    fn field(&self, wanted: u64) -> Result<&[u8]> {
        match field(&self.fields, wanted)? {
            Field::Bytes(bytes) => Ok(bytes),
            Field::Number(_) => Err(format!("field {wanted} is a number").into()),
        }
    }
}

enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

fn field(mut message: &[u8], wanted: u64) -> Result<Field<'_>> {
    while !message.is_empty() {
        let (number, field) = take_field(&mut message)?;
        if number == wanted {
            return Ok(field);
        }
    }
    Err(format!("field {wanted} is missing").into())
}

/// Protocol buffers: a number and a kind, then what that kind has.
fn take_field<'a>(message: &mut &'a [u8]) -> Result<(u64, Field<'a>)> {
    let tag = take_varint(message)?;
    let field = match tag & 7 {
        0 => Field::Number(take_varint(message)?),
        1 => Field::Number(message.try_get_u64_le()?),
        5 => Field::Number(message.try_get_u32_le()?.into()),
        2 => {
            let length = take_varint(message)? as usize;
            let (bytes, rest) = message
                .split_at_checked(length)
                .ok_or("a field ends early")?;
            *message = rest;
            Field::Bytes(bytes)
        }
        kind => return Err(format!("{kind} is no kind of field").into()),
    };
    Ok((tag >> 3, field))
}

fn take_varint(message: &mut &[u8]) -> Result<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let byte = message.try_get_u8()?;
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(number);
        }
    }
    Err("a number without an end".into())
}

fn varint(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number > 0x7f {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

fn number(field: u64, value: u64) -> Vec<u8> {
    [varint(field << 3), varint(value)].concat()
}

fn bytes(field: u64, value: &[u8]) -> Vec<u8> {
    [
        varint(field << 3 | 2),
        varint(value.len() as u64),
        value.to_vec(),
    ]
    .concat()
}

fn text(field: u64, value: &str) -> Vec<u8> {
    bytes(field, value.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let message = [number(1, 300), text(2, "a"), number(13, u64::MAX)].concat();
        assert!(matches!(field(&message, 1), Ok(Field::Number(300))));
        assert!(matches!(field(&message, 2), Ok(Field::Bytes(b"a"))));
        assert!(matches!(field(&message, 13), Ok(Field::Number(u64::MAX))));
        assert!(field(&message, 3).is_err());
    }

    #[test]
    fn a_message_that_ends_early_is_an_error() {
        assert!(field(&text(2, "abc")[..4], 3).is_err());
        assert!(field(&[0x80], 3).is_err());
    }
}
