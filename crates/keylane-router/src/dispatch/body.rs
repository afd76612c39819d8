//! The answer's body, read to a limit.

use std::pin::Pin;

use bytes::Bytes;
use hyper::body::Incoming;

use super::answer::{self, Failure};
use super::connections::Lease;
use super::http::Clock;

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
    /// Reads until the body ends, is cut, is late, or is larger than `limit`; then the rest is
    /// left.
    pub(super) async fn read(
        &mut self,
        body: &mut Incoming,
        lease: &mut Lease,
        limit: usize,
        mut clock: Pin<&mut Clock<'_>>,
    ) -> End {
        loop {
            let frame = tokio::select! {
                biased;
                frame = lease.frame(body) => frame,
                late = clock.as_mut().body() => return End::Cut(late),
            };
            let data = match frame {
                None => return End::Whole,
                Some(Err(_)) => return End::Cut(Failure::CutBody),
                Some(Ok(frame)) => frame.into_data().unwrap_or_default(),
            };
            self.push(data, limit);
            if self.bytes().len() > limit {
                return End::OverLimit;
            }
        }
    }

    /// Keeps no more than one byte over the limit, however large a piece comes.
    pub(super) fn push(&mut self, mut data: Bytes, limit: usize) {
        data.truncate((limit + 1).saturating_sub(self.bytes().len()));
        if self.bytes().is_empty() {
            self.first = data;
            return;
        }
        if self.more.is_empty() {
            self.more.extend_from_slice(&self.first);
        }
        self.more.extend_from_slice(&data);
    }

    pub(super) fn bytes(&self) -> &[u8] {
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
