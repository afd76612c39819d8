//! RabbitMQ, by AMQP 0.9.1.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};

use bytes::{Buf, BufMut};

use super::{connect, read_exactly};
use crate::Result;

/// A method by class and number.
type Method = (u16, u16);

const START: Method = (10, 10);
const START_OK: Method = (10, 11);
const TUNE: Method = (10, 30);
const TUNE_OK: Method = (10, 31);
const OPEN: Method = (10, 40);
const OPEN_OK: Method = (10, 41);
const CLOSE: Method = (10, 50);
const CLOSE_OK: Method = (10, 51);
const CHANNEL_OPEN: Method = (20, 10);
const CHANNEL_OPEN_OK: Method = (20, 11);
const DECLARE: Method = (50, 10);
const DECLARE_OK: Method = (50, 11);
const PUBLISH: Method = (60, 40);
const GET: Method = (60, 70);
const GET_OK: Method = (60, 71);
const ACK: Method = (60, 80);
const SELECT: Method = (85, 10);
const SELECT_OK: Method = (85, 11);

const METHOD_FRAME: u8 = 1;
const HEADER_FRAME: u8 = 2;
const BODY_FRAME: u8 = 3;
const END: u8 = 0xce;

pub(super) fn publish(at: SocketAddr, queue: &str, body: &str) -> Result<()> {
    let mut channel = Channel::open(at, queue)?;
    channel.call(SELECT, &[0], SELECT_OK)?;
    let mut publish = vec![0, 0];
    put_short(&mut publish, "");
    put_short(&mut publish, queue);
    publish.put_u8(0);
    channel.send(PUBLISH, &publish)?;
    let mut header = Vec::new();
    header.put_u16(60);
    header.put_u16(0);
    header.put_u64(body.len() as u64);
    // One property: the delivery mode, which is durable.
    header.put_u16(0x1000);
    header.put_u8(2);
    channel.frame(HEADER_FRAME, &header)?;
    channel.frame(BODY_FRAME, body.as_bytes())?;
    channel.expect(ACK)?;
    channel.close()
}

pub(super) fn find(at: SocketAddr, queue: &str, body: &str) -> Result<()> {
    let mut channel = Channel::open(at, queue)?;
    loop {
        let mut get = vec![0, 0];
        put_short(&mut get, queue);
        get.put_u8(0);
        // An empty queue answers with another method, which is an error here.
        let answer = channel.call(GET, &get, GET_OK)?;
        let tag = answer.as_slice().try_get_u64()?;
        let content = channel.content()?;
        let mut ack = Vec::new();
        ack.put_u64(tag);
        ack.put_u8(0);
        channel.send(ACK, &ack)?;
        if content == body.as_bytes() {
            // It is answered after the ack.
            return channel.close();
        }
    }
}

/// A connection with one channel, on a queue that exists.
struct Channel {
    stream: TcpStream,
    number: u16,
}

impl Channel {
    fn open(at: SocketAddr, queue: &str) -> Result<Self> {
        let mut stream = connect(at)?;
        stream.write_all(b"AMQP\0\0\x09\x01")?;
        let mut channel = Self { stream, number: 0 };
        channel.expect(START)?;
        channel.send(START_OK, &credentials())?;
        let mut tune = channel.expect(TUNE)?;
        // No heartbeats: it is over in a moment.
        let seconds = tune.len().checked_sub(2).ok_or("a short Tune")?;
        tune[seconds..].fill(0);
        channel.send(TUNE_OK, &tune)?;
        channel.call(OPEN, b"\x01/\0\0", OPEN_OK)?;
        channel.number = 1;
        channel.call(CHANNEL_OPEN, &[0], CHANNEL_OPEN_OK)?;
        let mut declare = vec![0, 0];
        put_short(&mut declare, queue);
        // Durable, without arguments.
        declare.put_u8(2);
        declare.put_u32(0);
        channel.call(DECLARE, &declare, DECLARE_OK)?;
        Ok(channel)
    }

    fn close(mut self) -> Result<()> {
        self.number = 0;
        self.call(CLOSE, &[0, 200, 0, 0, 0, 0, 0], CLOSE_OK)?;
        Ok(())
    }

    fn call(&mut self, method: Method, arguments: &[u8], answer: Method) -> Result<Vec<u8>> {
        self.send(method, arguments)?;
        self.expect(answer)
    }

    fn send(&mut self, method: Method, arguments: &[u8]) -> Result<()> {
        let mut payload = Vec::new();
        payload.put_u16(method.0);
        payload.put_u16(method.1);
        payload.put_slice(arguments);
        self.frame(METHOD_FRAME, &payload)
    }

    fn frame(&mut self, kind: u8, payload: &[u8]) -> Result<()> {
        let mut frame = Vec::new();
        frame.put_u8(kind);
        frame.put_u16(self.number);
        frame.put_u32(payload.len() as u32);
        frame.put_slice(payload);
        frame.put_u8(END);
        Ok(self.stream.write_all(&frame)?)
    }

    /// The arguments of the method that must come next.
    fn expect(&mut self, method: Method) -> Result<Vec<u8>> {
        let payload = self.read(METHOD_FRAME)?;
        let mut rest = payload.as_slice();
        let came = (rest.try_get_u16()?, rest.try_get_u16()?);
        if came != method {
            let text = String::from_utf8_lossy(rest);
            return Err(format!("method {method:?} was due, {came:?} came: {text}").into());
        }
        Ok(rest.to_vec())
    }

    fn content(&mut self) -> Result<Vec<u8>> {
        let header = self.read(HEADER_FRAME)?;
        let length = header.get(4..).unwrap_or_default().try_get_u64()?;
        let mut content = Vec::new();
        while (content.len() as u64) < length {
            content.extend(self.read(BODY_FRAME)?);
        }
        Ok(content)
    }

    fn read(&mut self, kind: u8) -> Result<Vec<u8>> {
        let head = read_exactly(&mut self.stream, 7)?;
        let mut rest = head.as_slice();
        let (came, _channel, length) = (rest.get_u8(), rest.get_u16(), rest.get_u32());
        let mut payload = read_exactly(&mut self.stream, length as usize + 1)?;
        if came != kind || payload.pop() != Some(END) {
            return Err(format!("a frame of type {kind} was due, one of type {came} came").into());
        }
        Ok(payload)
    }
}

/// No properties, then PLAIN with RabbitMQ's own user.
fn credentials() -> Vec<u8> {
    let mut credentials = vec![0; 4];
    put_short(&mut credentials, "PLAIN");
    let response = b"\0guest\0guest";
    credentials.put_u32(response.len() as u32);
    credentials.put_slice(response);
    put_short(&mut credentials, "en_US");
    credentials
}

fn put_short(bytes: &mut Vec<u8>, text: &str) {
    bytes.put_u8(text.len() as u8);
    bytes.put_slice(text.as_bytes());
}
