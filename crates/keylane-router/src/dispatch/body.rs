//! Bodies: the request's, which knows when it was taken for sending, and the answer's, read to a
//! limit.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::time::Instant;

use super::answer::{self, Failure};

/// When a connection took the request: before, the time goes to connecting; after, to waiting for
/// the answer. The client's own future does not tell the two apart.
#[derive(Clone, Debug, Default)]
pub(super) struct Sent(Arc<OnceLock<Instant>>);

impl Sent {
    pub(super) fn at(&self) -> Option<Instant> {
        self.0.get().copied()
    }

    fn now(&self) {
        self.0.get_or_init(Instant::now);
    }
}

/// The request's body.
#[derive(Debug)]
pub(super) struct Payload {
    bytes: Bytes,
    sent: Sent,
}

impl Payload {
    pub(super) fn new(bytes: Bytes, sent: Sent) -> Self {
        Self { bytes, sent }
    }
}

impl Body for Payload {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.sent.now();
        if self.bytes.is_empty() {
            return Poll::Ready(None);
        }
        Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut self.bytes)))))
    }

    fn is_end_stream(&self) -> bool {
        // An empty body is asked only this before its head is written.
        self.sent.now();
        self.bytes.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes.len() as u64)
    }
}

/// What was read of an answer's body so far. One frame, the usual case, is not copied.
#[derive(Debug, Default)]
pub(super) struct Answer {
    first: Bytes,
    more: Vec<u8>,
}

/// How the reading of a body ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Whole,
    OverLimit,
    Cut(Failure),
}

impl Answer {
    /// Reads until the body ends, is cut, or is larger than `limit`; then the rest is left.
    /// What was read stays here when the future is dropped.
    pub(super) async fn read(&mut self, mut body: Incoming, limit: usize) -> End {
        while let Some(frame) = body.frame().await {
            let Ok(frame) = frame else {
                return End::Cut(Failure::CutBody);
            };
            if let Ok(data) = frame.into_data() {
                self.push(data);
            }
            if self.bytes().len() > limit {
                return End::OverLimit;
            }
        }
        End::Whole
    }

    fn push(&mut self, data: Bytes) {
        if self.bytes().is_empty() {
            self.first = data;
            return;
        }
        if self.more.is_empty() {
            self.more.extend_from_slice(&self.first);
        }
        self.more.extend_from_slice(&data);
    }

    fn bytes(&self) -> &[u8] {
        if self.more.is_empty() {
            &self.first
        } else {
            &self.more
        }
    }

    /// As the failure table wants it.
    pub(super) fn ended(&self, end: End) -> answer::Body<'_> {
        match end {
            End::Whole => answer::Body::Whole(self.bytes()),
            End::OverLimit => answer::Body::OverLimit(self.bytes()),
            End::Cut(failure) => answer::Body::Cut(self.bytes(), failure),
        }
    }
}
