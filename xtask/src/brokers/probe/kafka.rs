//! Kafka, in versions of its calls from before the compact encoding.

use std::borrow::Cow;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};

use bytes::{Buf, BufMut};

use super::crc32c::crc32c;
use super::{connect, contains, now, read_sized};
use crate::Result;

/// A call's number and version.
type Call = (i16, i16);

const PRODUCE: Call = (0, 3);
const FETCH: Call = (1, 4);
const METADATA: Call = (3, 4);
const CREATE_TOPICS: Call = (19, 4);

const TOPIC_EXISTS: i16 = 36;

pub(super) fn publish(at: SocketAddr, queue: &str, body: &str) -> Result<()> {
    let mut stream = connect(at)?;
    create_topic(&mut stream, queue)?;
    let mut arguments = Vec::new();
    // No transaction; acknowledged by all; five seconds.
    arguments.put_i16(-1);
    arguments.put_i16(-1);
    arguments.put_i32(5000);
    put_partition(&mut arguments, queue);
    let batch = batch(body.as_bytes(), now().as_millis() as i64);
    arguments.put_i32(batch.len() as i32);
    arguments.put_slice(&batch);
    let answer = call(&mut stream, PRODUCE, &arguments)?;
    let mut rest = partition_of(&answer)?;
    check("produce", rest.try_get_i16()?)
}

/// A log keeps what was read: it is read from its start, and nothing is dropped.
pub(super) fn find(at: SocketAddr, queue: &str, body: &str) -> Result<()> {
    let mut stream = connect(at)?;
    let mut arguments = Vec::new();
    // A consumer; at once, whatever there is; up to a megabyte; also uncommitted.
    arguments.put_i32(-1);
    arguments.put_i32(500);
    arguments.put_i32(1);
    arguments.put_i32(1 << 20);
    arguments.put_i8(0);
    put_partition(&mut arguments, queue);
    arguments.put_i64(0);
    arguments.put_i32(1 << 20);
    let answer = call(&mut stream, FETCH, &arguments)?;
    let mut rest = answer
        .get(4..)
        .ok_or("a short answer")
        .and_then(|rest| partition_of(rest).map_err(|_| "a short answer"))?;
    check("fetch", rest.try_get_i16()?)?;
    if contains(rest, body) {
        return Ok(());
    }
    Err("what was produced is not fetched".into())
}

fn create_topic(stream: &mut TcpStream, queue: &str) -> Result<()> {
    let mut arguments = Vec::new();
    arguments.put_i32(1);
    put_text(&mut arguments, queue);
    // One partition with one replica, placed and configured as the broker likes.
    arguments.put_i32(1);
    arguments.put_i16(1);
    arguments.put_i32(0);
    arguments.put_i32(0);
    arguments.put_i32(5000);
    arguments.put_u8(0);
    let answer = call(stream, CREATE_TOPICS, &arguments)?;
    let mut rest = answer.as_slice();
    // Throttled for how long, how many topics, and the name of the one.
    rest.try_get_i32()?;
    rest.try_get_i32()?;
    take_text(&mut rest)?;
    match rest.try_get_i16()? {
        TOPIC_EXISTS => Ok(()),
        code => check("create a topic", code),
    }
}

/// Where the broker tells those to go who ask it at `at`.
pub(super) fn advertised(at: SocketAddr) -> Result<String> {
    // About no topic: its brokers come in any case.
    let answer = call(&mut connect(at)?, METADATA, &[0, 0, 0, 0, 0])?;
    let mut rest = answer.as_slice();
    rest.try_get_i32()?;
    if rest.try_get_i32()? < 1 {
        return Err("the metadata name no broker".into());
    }
    rest.try_get_i32()?;
    let host = take_text(&mut rest)?;
    Ok(format!("{host}:{}", rest.try_get_i32()?))
}

fn call(stream: &mut TcpStream, call: Call, arguments: &[u8]) -> Result<Vec<u8>> {
    let mut request = Vec::new();
    request.put_i16(call.0);
    request.put_i16(call.1);
    // The one call under way needs no number.
    request.put_i32(0);
    put_text(&mut request, "keylane-probe");
    request.put_slice(arguments);
    let mut frame = Vec::new();
    frame.put_u32(request.len() as u32);
    frame.put_slice(&request);
    stream.write_all(&frame)?;
    let answer = read_sized(stream)?;
    Ok(answer.get(4..).ok_or("a short answer")?.to_vec())
}

/// An array of one topic with an array of one partition, whose fields follow.
fn put_partition(bytes: &mut Vec<u8>, queue: &str) {
    bytes.put_i32(1);
    put_text(bytes, queue);
    bytes.put_i32(1);
    bytes.put_i32(0);
}

/// The fields behind what `put_partition` writes.
fn partition_of(mut bytes: &[u8]) -> Result<&[u8]> {
    bytes.try_get_i32()?;
    take_text(&mut bytes)?;
    bytes.try_get_i32()?;
    bytes.try_get_i32()?;
    Ok(bytes)
}

/// One record without a key, in a batch of its own.
fn batch(value: &[u8], now: i64) -> Vec<u8> {
    let mut record = Vec::new();
    // Attributes, time and offset from the batch's, no key.
    record.put_u8(0);
    put_varint(&mut record, 0);
    put_varint(&mut record, 0);
    put_varint(&mut record, -1);
    put_varint(&mut record, value.len() as i32);
    record.put_slice(value);
    // No headers.
    put_varint(&mut record, 0);

    let mut checked = Vec::new();
    // Attributes, the last offset's distance, first and last time.
    checked.put_i16(0);
    checked.put_i32(0);
    // Today's: what is older than a week is thrown away.
    checked.put_i64(now);
    checked.put_i64(now);
    // No producer's number, epoch and sequence; one record.
    checked.put_i64(-1);
    checked.put_i16(-1);
    checked.put_i32(-1);
    checked.put_i32(1);
    put_varint(&mut checked, record.len() as i32);
    checked.put_slice(&record);

    let mut batch = Vec::new();
    batch.put_i64(0);
    // What follows: epoch, format, checksum, the rest.
    batch.put_i32(4 + 1 + 4 + checked.len() as i32);
    batch.put_i32(-1);
    batch.put_u8(2);
    batch.put_u32(crc32c(&checked));
    batch.put_slice(&checked);
    batch
}

fn put_varint(bytes: &mut Vec<u8>, number: i32) {
    let mut rest = ((number << 1) ^ (number >> 31)) as u32;
    while rest > 0x7f {
        bytes.put_u8(rest as u8 | 0x80);
        rest >>= 7;
    }
    bytes.put_u8(rest as u8);
}

fn put_text(bytes: &mut Vec<u8>, text: &str) {
    bytes.put_i16(text.len() as i16);
    bytes.put_slice(text.as_bytes());
}

fn take_text<'a>(bytes: &mut &'a [u8]) -> Result<Cow<'a, str>> {
    let length = usize::try_from(bytes.try_get_i16()?)?;
    let (text, rest) = bytes.split_at_checked(length).ok_or("a text ends early")?;
    *bytes = rest;
    Ok(String::from_utf8_lossy(text))
}

fn check(what: &str, code: i16) -> Result<()> {
    match code {
        0 => Ok(()),
        code => Err(format!("{what}: Kafka's error {code}").into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_folded_and_split_as_kafka_has_them() {
        let varint = |number| {
            let mut bytes = Vec::new();
            put_varint(&mut bytes, number);
            bytes
        };
        assert_eq!(varint(0), [0]);
        assert_eq!(varint(-1), [1]);
        assert_eq!(varint(63), [126]);
        assert_eq!(varint(150), [0xac, 0x02]);
    }
}
