//! What the broker says of itself when a connection is opened. The client keeps it to itself, so it
//! is overheard on the way.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Everything until the end of the opening is in so many bytes, or it is not looked at.
const LONGEST: usize = 16 << 10;

/// What the broker says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Peer {
    /// Whether it is Artemis, and not Classic.
    pub(super) artemis: bool,
    /// How often it wants to hear of us; by the standard half of the time after which it ends a
    /// silent connection.
    pub(super) idle: Option<Duration>,
}

/// The bytes that came so far; `None` when nobody listens any more.
#[derive(Clone, Debug)]
pub(super) struct Heard(Arc<Mutex<Option<Vec<u8>>>>);

impl Heard {
    pub(super) fn new() -> Self {
        Self(Arc::new(Mutex::new(Some(Vec::new()))))
    }

    /// Stops listening.
    pub(super) fn peer(&self) -> Peer {
        let heard = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        heard.as_deref().and_then(read).unwrap_or_default()
    }

    fn hear(&self, bytes: &[u8]) {
        let mut heard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(all) = heard.as_mut()
            && all.len() + bytes.len() <= LONGEST
        {
            all.extend_from_slice(bytes);
        }
    }
}

/// A stream that somebody listens to.
#[derive(Debug)]
pub(super) struct Overheard<Io> {
    pub(super) inner: Io,
    pub(super) heard: Heard,
}

impl<Io: AsyncRead + Unpin> AsyncRead for Overheard<Io> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.inner).poll_read(cx, buf);
        if read.is_ready() {
            self.heard.hear(&buf.filled()[before..]);
        }
        read
    }
}

impl<Io: AsyncWrite + Unpin> AsyncWrite for Overheard<Io> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}

/// Looks for the frame that opens the connection.
fn read(mut bytes: &[u8]) -> Option<Peer> {
    loop {
        if bytes.starts_with(b"AMQP") {
            bytes = bytes.get(8..)?;
            continue;
        }
        let size = u32::from_be_bytes(*bytes.first_chunk()?) as usize;
        let frame = bytes.get(..size)?;
        let body = frame.get(usize::from(*frame.get(4)?) * 4..)?;
        if *frame.get(5)? == 0
            && let Some(fields) = body.strip_prefix(&[0x00, 0x53, 0x10])
        {
            return open(fields);
        }
        bytes = &bytes[size..];
    }
}

/// The fields of `open`: container-id, hostname, max-frame-size, channel-max, idle-time-out, …,
/// and the broker's name among the properties at their end.
fn open(list: &[u8]) -> Option<Peer> {
    let mut fields = match list.first()? {
        0xc0 => list.get(3..)?,
        0xd0 => list.get(9..)?,
        _ => return None,
    };
    let named = |name: &[u8]| list.windows(name.len()).any(|part| part == name);
    let mut peer = Peer {
        artemis: named(b"artemis"),
        idle: None,
    };
    for _ in 0..4 {
        let Some(after) = skip(fields) else {
            return Some(peer);
        };
        fields = after;
    }
    let millis = match fields {
        [0x70, millis @ ..] => millis.first_chunk().map(|four| u32::from_be_bytes(*four)),
        [0x52, millis, ..] => Some(u32::from(*millis)),
        _ => None,
    };
    let idle = millis.filter(|millis| *millis > 0);
    peer.idle = idle.map(|millis| Duration::from_millis(millis.into()));
    Some(peer)
}

/// What is behind the first value.
fn skip(bytes: &[u8]) -> Option<&[u8]> {
    let (code, rest) = bytes.split_first()?;
    let long = |rest: &[u8]| Some(4 + u32::from_be_bytes(*rest.first_chunk()?) as usize);
    let size = match code >> 4 {
        0x0 => return skip(skip(rest)?),
        0x4 => 0,
        0x5 => 1,
        0x6 => 2,
        0x7 => 4,
        0x8 => 8,
        0x9 => 16,
        0xa | 0xc | 0xe => 1 + usize::from(*rest.first()?),
        0xb | 0xd | 0xf => long(rest)?,
        _ => return None,
    };
    rest.get(size..)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opening(idle: &[u8], product: &[u8]) -> Vec<u8> {
        let mut fields = vec![0xa1, 2, b'i', b'd', 0x40, 0x70, 0, 2, 0, 0, 0x60, 0, 255];
        fields.extend_from_slice(idle);
        fields.extend_from_slice(&[0xa3, product.len() as u8]);
        fields.extend_from_slice(product);
        let mut frame = vec![0, 0, 0, 0, 2, 0, 0, 0, 0x00, 0x53, 0x10, 0xc0, 0, 6];
        frame[12] = fields.len() as u8 + 1;
        frame.extend_from_slice(&fields);
        frame[3] = frame.len() as u8;
        frame
    }

    #[test]
    fn the_broker_says_which_it_is_and_how_often_it_wants_to_hear_of_us() {
        let mut bytes = b"AMQP\x03\x01\x00\x00".to_vec();
        bytes.extend_from_slice(&[0, 0, 0, 10, 2, 1, 0, 0, 0x00, 0x53]);
        bytes.extend_from_slice(b"AMQP\x00\x01\x00\x00");
        bytes.extend(opening(
            &[0x70, 0, 0, 0x75, 0x30],
            b"apache-activemq-artemis",
        ));
        let artemis = Peer {
            artemis: true,
            idle: Some(Duration::from_secs(30)),
        };
        assert_eq!(read(&bytes), Some(artemis));
        let classic = read(&opening(&[0x40], b"ActiveMQ"));
        assert_eq!(classic, Some(Peer::default()));
    }

    #[test]
    fn what_is_cut_off_or_no_opening_is_nothing() {
        let whole = opening(&[0x70, 0, 0, 0x75, 0x30], b"artemis");
        for end in 0..whole.len() {
            assert_eq!(read(&whole[..end]), None, "{end}");
        }
        assert_eq!(read(b"HTTP/1.1 400"), None);
    }
}
