//! The answer's body, read to a limit.

use std::pin::Pin;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Incoming;

use super::answer::{self, Failure};
use super::framing::{Framing, Malformed, Progress};
use super::http::Clock;
use super::http1::Connection;

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
    pub(super) async fn read_http1(
        &mut self,
        body: &mut Framing,
        line: &mut Connection,
        limit: usize,
        mut clock: Pin<&mut Clock<'_>>,
    ) -> End {
        loop {
            match line.take(body, self, limit) {
                Ok(Progress::Whole) => return End::Whole,
                Ok(Progress::More) if self.bytes().len() > limit => return End::OverLimit,
                Ok(Progress::More) => {}
                Err(Malformed) => return End::Cut(Failure::CutBody),
            }
            let more = tokio::select! {
                biased;
                more = line.more() => more,
                late = clock.as_mut().body() => return End::Cut(late),
            };
            match more {
                Ok(true) => {}
                Ok(false) if body.may_end() => return End::Whole,
                _ => return End::Cut(Failure::CutBody),
            }
        }
    }

    /// The same over HTTP/2.
    pub(super) async fn read_http2(
        &mut self,
        body: &mut Incoming,
        limit: usize,
        mut clock: Pin<&mut Clock<'_>>,
    ) -> End {
        loop {
            let frame = tokio::select! {
                biased;
                frame = body.frame() => frame,
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

    /// As [`Self::push`], of bytes that belong to somebody else.
    pub(super) fn copy(&mut self, data: &[u8], limit: usize) {
        let most = (limit + 1).saturating_sub(self.bytes().len());
        self.more.extend_from_slice(&data[..data.len().min(most)]);
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
