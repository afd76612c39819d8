//! ActiveMQ and Artemis, by AMQP 1.0.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};

use bytes::{Buf, BufMut};

use super::{connect, read_exactly};
use crate::Result;

const OPEN: u8 = 0x10;
const BEGIN: u8 = 0x11;
const ATTACH: u8 = 0x12;
const FLOW: u8 = 0x13;
const TRANSFER: u8 = 0x14;
const DISPOSITION: u8 = 0x15;
const DETACH: u8 = 0x16;
const CLOSE: u8 = 0x18;
const ACCEPTED: u8 = 0x24;
const SOURCE: u8 = 0x28;
const TARGET: u8 = 0x29;
const HEADER: u8 = 0x70;
const DATA: u8 = 0x75;

const SASL_MECHANISMS: u8 = 0x40;
const SASL_INIT: u8 = 0x41;
const SASL_OUTCOME: u8 = 0x44;

const PROTOCOL: &[u8; 8] = b"AMQP\0\x01\0\0";
/// Without this, ActiveMQ does not talk.
const SASL: &[u8; 8] = b"AMQP\x03\x01\0\0";
const WINDOW: u32 = 1000;

pub(super) fn publish(at: SocketAddr, queue: &str, body: &str) -> Result<()> {
    let mut session = Session::open(at)?;
    let target = described(
        TARGET,
        &[
            text(queue),
            NULL.to_vec(),
            NULL.to_vec(),
            NULL.to_vec(),
            NULL.to_vec(),
            NULL.to_vec(),
            symbol("queue"),
        ],
    );
    session.attach(false, described(SOURCE, &[text("probe")]), target)?;
    session.expect(FLOW)?;
    let transfer = [
        uint(0),
        uint(0),
        binary(b"1"),
        uint(0),
        FALSE.to_vec(),
        FALSE.to_vec(),
    ];
    // Durable.
    let mut message = described(HEADER, &[TRUE.to_vec()]);
    message.extend([0, 0x53, DATA]);
    message.extend(binary(body.as_bytes()));
    session.send(TRANSFER, &transfer, &message)?;
    let disposition = session.expect(DISPOSITION)?;
    match disposition.field(4) {
        Some(Value::Described(ACCEPTED, _)) => session.close(),
        other => Err(format!("the message was not accepted: {other:?}").into()),
    }
}

pub(super) fn find(at: SocketAddr, queue: &str, body: &str) -> Result<()> {
    let mut session = Session::open(at)?;
    let mut source = vec![NULL.to_vec(); 11];
    source[0] = text(queue);
    source[10] = symbol("queue");
    session.attach(
        true,
        described(SOURCE, &source),
        described(TARGET, &[text("probe")]),
    )?;
    for count in 0.. {
        session.give_one_credit(count)?;
        let transfer = session.expect(TRANSFER)?;
        let Some(Value::Number(delivery)) = transfer.field(1) else {
            return Err("a transfer without a number".into());
        };
        session.accept(*delivery as u32)?;
        if data_of(&transfer.payload)? == body.as_bytes() {
            break;
        }
    }
    session.close()
}

/// A connection with one session and at most one link.
struct Session {
    stream: TcpStream,
    /// What the peer's first transfer is numbered.
    first: u32,
}

impl Session {
    fn open(at: SocketAddr) -> Result<Self> {
        let stream = connect(at)?;
        let mut session = Self { stream, first: 0 };
        session.say_hello(SASL)?;
        session.expect(SASL_MECHANISMS)?;
        session.send(SASL_INIT, &[symbol("ANONYMOUS")], &[])?;
        let outcome = session.expect(SASL_OUTCOME)?;
        if outcome.field(0) != Some(&Value::Number(0)) {
            return Err(format!("anonymous users are refused: {:?}", outcome.fields).into());
        }
        session.say_hello(PROTOCOL)?;
        session.send(OPEN, &[text("keylane-probe"), text("localhost")], &[])?;
        session.send(
            BEGIN,
            &[NULL.to_vec(), uint(0), uint(WINDOW), uint(WINDOW)],
            &[],
        )?;
        session.expect(OPEN)?;
        if let Some(Value::Number(first)) = session.expect(BEGIN)?.field(1) {
            session.first = *first as u32;
        }
        Ok(session)
    }

    fn say_hello(&mut self, header: &[u8; 8]) -> Result<()> {
        self.stream.write_all(header)?;
        let answer = read_exactly(&mut self.stream, header.len())?;
        if answer != header {
            return Err(format!("{answer:?} came as the header of AMQP 1.0").into());
        }
        Ok(())
    }

    fn attach(&mut self, receiver: bool, source: Vec<u8>, target: Vec<u8>) -> Result<()> {
        let role = if receiver { TRUE } else { FALSE };
        let null = NULL.to_vec();
        let attach = [
            text("probe"),
            uint(0),
            role.to_vec(),
            null.clone(),
            null.clone(),
            source,
            target,
            null.clone(),
            null,
            uint(0),
        ];
        self.send(ATTACH, &attach, &[])?;
        self.expect(ATTACH)?;
        Ok(())
    }

    fn give_one_credit(&mut self, count: u32) -> Result<()> {
        let next = self.first.wrapping_add(count);
        let flow = [
            uint(next),
            uint(WINDOW),
            uint(0),
            uint(WINDOW),
            uint(0),
            uint(count),
            uint(1),
        ];
        self.send(FLOW, &flow, &[])
    }

    fn accept(&mut self, delivery: u32) -> Result<()> {
        let accepted = described(ACCEPTED, &[]);
        let disposition = [
            TRUE.to_vec(),
            uint(delivery),
            uint(delivery),
            TRUE.to_vec(),
            accepted,
        ];
        self.send(DISPOSITION, &disposition, &[])
    }

    /// The link first: its answer says that what was settled before is settled.
    fn close(mut self) -> Result<()> {
        self.send(DETACH, &[uint(0), TRUE.to_vec()], &[])?;
        self.expect(DETACH)?;
        self.send(CLOSE, &[], &[])?;
        self.expect(CLOSE)?;
        Ok(())
    }

    fn send(&mut self, performative: u8, fields: &[Vec<u8>], payload: &[u8]) -> Result<()> {
        let body = described(performative, fields);
        let mut frame = Vec::new();
        frame.put_u32((8 + body.len() + payload.len()) as u32);
        let kind = u8::from(performative == SASL_INIT);
        frame.put_slice(&[2, kind, 0, 0]);
        frame.put_slice(&body);
        frame.put_slice(payload);
        Ok(self.stream.write_all(&frame)?)
    }

    /// The next one of its kind. Flows come when the peer likes; a close or detach that is not due is an error.
    fn expect(&mut self, performative: u8) -> Result<Performative> {
        loop {
            let came = self.read()?;
            match came.code {
                code if code == performative => return Ok(came),
                DETACH | CLOSE => {
                    return Err(format!("the broker ended it: {:?}", came.fields).into());
                }
                _ => {}
            }
        }
    }

    fn read(&mut self) -> Result<Performative> {
        loop {
            let head = read_exactly(&mut self.stream, 8)?;
            let length = head.as_slice().get_u32() as usize;
            let skipped = usize::from(head[4]) * 4;
            let frame = read_exactly(&mut self.stream, length.saturating_sub(8))?;
            let mut rest = frame
                .get(skipped.saturating_sub(8)..)
                .ok_or("a short frame")?;
            // An empty frame is a sign of life.
            if rest.is_empty() {
                continue;
            }
            let Value::Described(code, fields) = decode(&mut rest)? else {
                return Err("a frame without a performative".into());
            };
            return Ok(Performative {
                code,
                fields: *fields,
                payload: rest.to_vec(),
            });
        }
    }
}

#[derive(Debug)]
struct Performative {
    code: u8,
    fields: Value,
    payload: Vec<u8>,
}

impl Performative {
    fn field(&self, index: usize) -> Option<&Value> {
        match &self.fields {
            Value::List(fields) => fields.get(index),
            _ => None,
        }
    }
}

/// The message's body, behind sections of other kinds.
fn data_of(mut message: &[u8]) -> Result<Vec<u8>> {
    loop {
        match decode(&mut message)? {
            Value::Described(DATA, data) => match *data {
                Value::Bytes(data) => return Ok(data),
                other => return Err(format!("a body of {other:?}").into()),
            },
            Value::Described(..) => {}
            other => return Err(format!("{other:?} is no section of a message").into()),
        }
    }
}

/// As much of AMQP's types as is looked at.
#[derive(Debug, PartialEq)]
enum Value {
    Number(u64),
    Bytes(Vec<u8>),
    List(Vec<Value>),
    Described(u8, Box<Value>),
    /// Whatever we have no use for.
    Other,
}

/// The upper half of a type's code says how its length is given.
fn decode(bytes: &mut &[u8]) -> Result<Value> {
    let code = bytes.try_get_u8()?;
    Ok(match code {
        0x00 => {
            let descriptor = match decode(bytes)? {
                Value::Number(number) => u8::try_from(number)?,
                other => return Err(format!("described by {other:?}").into()),
            };
            Value::Described(descriptor, Box::new(decode(bytes)?))
        }
        0x43 | 0x44 => Value::Number(0),
        0x45 => Value::List(Vec::new()),
        0x40..=0x4f => Value::Other,
        0x50..=0x53 => Value::Number(bytes.try_get_u8()?.into()),
        0x60 => Value::Number(bytes.try_get_u16()?.into()),
        0x70 => Value::Number(bytes.try_get_u32()?.into()),
        0x80 => Value::Number(bytes.try_get_u64()?),
        0xc0 | 0xd0 => {
            let mut rest = sized(code, bytes)?;
            let count = counted(code, &mut rest)?;
            let items: Result<_> = (0..count).map(|_| decode(&mut rest)).collect();
            Value::List(items?)
        }
        0xa0..=0xbf => Value::Bytes(sized(code, bytes)?.to_vec()),
        0xc0..=0xff => {
            sized(code, bytes)?;
            Value::Other
        }
        0x54..=0x9f => {
            take(bytes, 1 << ((code >> 4) - 5))?;
            Value::Other
        }
        _ => return Err(format!("{code:#x} is no type of AMQP").into()),
    })
}

fn is_wide(code: u8) -> bool {
    code & 0x10 != 0
}

fn sized<'a>(code: u8, bytes: &mut &'a [u8]) -> Result<&'a [u8]> {
    let length = counted(code, bytes)?;
    take(bytes, length)
}

fn counted(code: u8, bytes: &mut &[u8]) -> Result<usize> {
    Ok(if is_wide(code) {
        bytes.try_get_u32()? as usize
    } else {
        bytes.try_get_u8()?.into()
    })
}

fn take<'a>(bytes: &mut &'a [u8], length: usize) -> Result<&'a [u8]> {
    let (taken, rest) = bytes.split_at_checked(length).ok_or("a value ends early")?;
    *bytes = rest;
    Ok(taken)
}

const NULL: &[u8] = &[0x40];
const TRUE: &[u8] = &[0x41];
const FALSE: &[u8] = &[0x42];

fn uint(number: u32) -> Vec<u8> {
    let mut value = vec![0x70];
    value.put_u32(number);
    value
}

fn text(text: &str) -> Vec<u8> {
    short(0xa1, text.as_bytes())
}

fn symbol(name: &str) -> Vec<u8> {
    short(0xa3, name.as_bytes())
}

fn binary(bytes: &[u8]) -> Vec<u8> {
    short(0xa0, bytes)
}

/// All that a probe sends is shorter than 256 bytes.
fn short(code: u8, bytes: &[u8]) -> Vec<u8> {
    let mut value = vec![code, bytes.len() as u8];
    value.extend(bytes);
    value
}

fn described(code: u8, fields: &[Vec<u8>]) -> Vec<u8> {
    let list = fields.concat();
    let mut value = vec![0, 0x53, code, 0xd0];
    value.put_u32(list.len() as u32 + 4);
    value.put_u32(fields.len() as u32);
    value.extend(list);
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_what_is_not_looked_at_is_passed_over() {
        let ulong = [0x80, 0, 0, 0, 0, 0, 0, 0, 7].to_vec();
        let uuid = [vec![0x98], vec![1; 16]].concat();
        let map = vec![0xc1, 3, 2, 0x41, 0x42];
        let written = described(
            ATTACH,
            &[text("a"), uint(300), ulong, uuid, map, binary(b"b")],
        );
        let mut rest = written.as_slice();
        let fields = vec![
            Value::Bytes(b"a".to_vec()),
            Value::Number(300),
            Value::Number(7),
            Value::Other,
            Value::Other,
            Value::Bytes(b"b".to_vec()),
        ];
        let read = decode(&mut rest).unwrap();
        assert_eq!(
            read,
            Value::Described(ATTACH, Box::new(Value::List(fields)))
        );
        assert!(rest.is_empty());
    }

    #[test]
    fn a_value_that_ends_early_is_an_error() {
        assert!(decode(&mut [0xa1, 5, b'a'].as_slice()).is_err());
        assert!(decode(&mut [0x70, 0].as_slice()).is_err());
    }
}
