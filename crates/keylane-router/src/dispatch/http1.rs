//! One HTTP/1.1 connection: a request is written, its answer is read.
//!
//! Our own and not hyper's: a connection that carries one request at a time, driven by whoever waits
//! for the answer, needs neither channels nor a map of the answer's headers. Answers are parsed by
//! `httparse`, as hyper's are. What is not plain HTTP is an error, and a connection on which anything
//! was unusual is used for no other request.

use std::io::{self, IoSlice, Write};
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use http::header::{CONNECTION, CONTENT_LENGTH, DATE, HOST, RETRY_AFTER, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::body::Answer;
use super::framing::{Chunk, Framing, Malformed, Progress};
use crate::lease::Lease;

/// What is kept of a connection's memory between requests: more than most answers take.
const KEPT: usize = 2 << 10;
/// What is read at once of an answer that is larger.
const READ: usize = 16 << 10;
/// A body up to this is written in one piece with its head; a larger one is not copied.
const SMALL: usize = 2 << 10;
/// Room for so many of an answer's headers costs nothing.
const USUAL_HEADERS: usize = 100;

/// What a connection is made over.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// How large the beginning of an answer may be.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeadLimits {
    pub(super) headers: usize,
    pub(super) bytes: usize,
}

/// A connection. Dropped, it is closed at once, whatever still comes on it.
pub(super) struct Connection {
    stream: Box<dyn Stream>,
    /// The request but for a large body, and how much of all was written.
    request: Vec<u8>,
    written: usize,
    read: Read,
    /// How much of an answer's head was there when it was looked at last, and not all of it.
    looked: usize,
    limits: HeadLimits,
    /// Nothing was unusual so far: it may be used for another request.
    reusable: bool,
}

/// What is sent.
#[derive(Clone, Copy)]
pub(super) struct Post<'a> {
    pub(super) path: &'a str,
    pub(super) host: &'a HeaderValue,
    pub(super) headers: &'a HeaderMap,
    pub(super) payload: &'a [u8],
    /// Must hold when it is written.
    pub(super) lease: Option<&'a Lease>,
}

/// The beginning of an answer.
pub(super) struct Head {
    pub(super) status: StatusCode,
    /// Only those that say when to come again. Few answers have them, and every attempt has this.
    pub(super) headers: Option<Box<HeaderMap>>,
    pub(super) body: Framing,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoAnswer {
    /// The peer had closed the connection, and saw nothing of the request.
    #[error("the connection was closed before the request was written")]
    Unsent,
    /// Nothing was written.
    #[error("the lease was lost")]
    LeaseLost,
    #[error("{0}")]
    Protocol(&'static str),
    #[error("{0}")]
    Broken(#[from] io::Error),
    #[error("connection closed before message completed")]
    Ended,
}

impl Connection {
    pub(super) fn new(stream: Box<dyn Stream>, limits: HeadLimits) -> Self {
        Self {
            stream,
            request: Vec::new(),
            written: 0,
            read: Read::default(),
            looked: 0,
            limits,
            reusable: true,
        }
    }

    /// Whether it takes a request now: its peer has neither closed it nor said anything.
    pub(super) fn is_idle(&mut self) -> bool {
        let mut byte = [0];
        let mut byte = ReadBuf::new(&mut byte);
        let cx = &mut Context::from_waker(Waker::noop());
        let stream = Pin::new(&mut self.stream);
        let silent = stream.poll_read(cx, &mut byte).is_pending();
        self.reusable = silent && self.is_reusable();
        self.reusable
    }

    /// Whether it may be used again, now that the answer was read whole.
    pub(super) fn is_reusable(&self) -> bool {
        self.reusable && self.read.rest().is_empty()
    }

    /// Gives back memory that only large requests and answers need.
    pub(super) fn shrink(&mut self) {
        self.read.shrink();
        if self.request.capacity() > 2 * SMALL {
            self.request = Vec::new();
        }
    }

    /// Writes the request, and waits for the beginning of the answer. Nothing is written if the
    /// lease is over.
    ///
    /// Dropped before its end, the connection must not be used again.
    pub(super) fn post(&mut self, post: Post<'_>) -> impl Future<Output = Result<Head, NoAnswer>> {
        let body = self.begin(post);
        // Until the answer is there.
        let reusable = std::mem::take(&mut self.reusable);
        std::future::poll_fn(move |cx| {
            if self.written == 0 && !post.lease.is_none_or(Lease::holds) {
                self.reusable = reusable;
                return Poll::Ready(Err(NoAnswer::LeaseLost));
            }
            let head = ready!(self.poll_head(body, cx));
            self.reusable &= reusable;
            Poll::Ready(head)
        })
    }

    /// Puts the request together; answers what of the body is to be written behind that.
    fn begin<'a>(&mut self, post: Post<'a>) -> &'a [u8] {
        let out = &mut self.request;
        out.clear();
        (self.written, self.looked) = (0, 0);
        for part in ["POST ", post.path, " HTTP/1.1\r\n"] {
            out.extend_from_slice(part.as_bytes());
        }
        put(out, &HOST, post.host);
        for (name, value) in post.headers {
            put(out, name, value);
        }
        let length = post.payload.len();
        if length > 0 {
            write!(out, "{CONTENT_LENGTH}: {length}\r\n").expect("a buffer grows");
        }
        out.extend_from_slice(b"\r\n");
        if length > SMALL {
            return post.payload;
        }
        out.extend_from_slice(post.payload);
        &[]
    }

    /// Writes what is left, and reads: a peer may answer before it has heard everything.
    fn poll_head(&mut self, body: &[u8], cx: &mut Context<'_>) -> Poll<Result<Head, NoAnswer>> {
        let written = self.poll_write(body, cx);
        if self.written == 0 && matches!(written, Poll::Ready(Err(_))) {
            return Poll::Ready(Err(NoAnswer::Unsent));
        }
        loop {
            if let Some(head) = self.parse()? {
                // What it did not want to hear is not said on this connection any more.
                self.reusable &= matches!(written, Poll::Ready(Ok(())));
                return Poll::Ready(Ok(head));
            }
            let read = match self.read.poll_fill(&mut self.stream, cx) {
                Poll::Ready(read) => read?,
                Poll::Pending => match written {
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error.into())),
                    _ => return Poll::Pending,
                },
            };
            if read == 0 {
                return Poll::Ready(Err(match self.written {
                    0 => NoAnswer::Unsent,
                    _ => NoAnswer::Ended,
                }));
            }
        }
    }

    fn poll_write(&mut self, body: &[u8], cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut stream = Pin::new(&mut self.stream);
        while self.written < self.request.len() + body.len() {
            let head = self.request.get(self.written..).unwrap_or_default();
            let body = &body[self.written.saturating_sub(self.request.len())..];
            let written = match (head, body) {
                (one, []) | ([], one) => ready!(stream.as_mut().poll_write(cx, one))?,
                (head, body) => {
                    let both = [IoSlice::new(head), IoSlice::new(body)];
                    ready!(stream.as_mut().poll_write_vectored(cx, &both))?
                }
            };
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.written += written;
        }
        stream.poll_flush(cx)
    }

    /// The beginning of the answer, if all of it is there. What says only that one is to come is
    /// passed over.
    fn parse(&mut self) -> Result<Option<Head>, NoAnswer> {
        loop {
            let there = self.read.rest();
            // Parsed as it begins, and when it ends: one that comes byte by byte would cost its length
            // for each of them.
            let ends = self.looked == 0
                || there.len() >= self.limits.bytes
                || ends(&there[self.looked.saturating_sub(3)..]);
            let said = match ends {
                true => parse(there, self.limits)?,
                false => None,
            };
            let Some(said) = said else {
                self.looked = there.len();
                return Ok(None);
            };
            self.looked = 0;
            self.read.used(said.length);
            if !matches!(said.head.status.as_u16(), 100 | 102..=199) {
                self.reusable = said.stays_open;
                return Ok(Some(said.head));
            }
        }
    }

    /// Takes what was read of the body.
    pub(super) fn take(
        &mut self,
        body: &mut Framing,
        answer: &mut Answer,
        limit: usize,
    ) -> Result<Progress, Malformed> {
        let (used, progress) = body.take(self.read.rest(), answer, limit)?;
        self.read.used(used);
        Ok(progress)
    }

    /// Reads more of the body; `false` when the peer has ended the connection. Cancel-safe.
    pub(super) fn more(&mut self) -> impl Future<Output = io::Result<bool>> {
        std::future::poll_fn(|cx| {
            let read = self.read.poll_fill(&mut self.stream, cx);
            read.map_ok(|read| read > 0)
        })
    }
}

fn put(out: &mut Vec<u8>, name: &HeaderName, value: &HeaderValue) {
    for part in [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"] {
        out.extend_from_slice(part);
    }
}

/// What was read and is not used yet.
#[derive(Default)]
struct Read {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl Read {
    fn rest(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    fn used(&mut self, count: usize) {
        self.start += count;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Reads what is there; 0 at the end of the connection.
    fn poll_fill(
        &mut self,
        stream: &mut Box<dyn Stream>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        self.make_room();
        let mut room = ReadBuf::new(&mut self.bytes[self.end..]);
        ready!(Pin::new(stream).poll_read(cx, &mut room))?;
        let read = room.filled().len();
        self.end += read;
        // There may be more where this came from.
        if self.end == self.bytes.len() && self.end < READ {
            self.bytes.resize(READ, 0);
        }
        Poll::Ready(Ok(read))
    }

    fn make_room(&mut self) {
        if self.end < self.bytes.len() {
            return;
        }
        self.bytes.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        if self.end == self.bytes.len() {
            self.bytes.resize((2 * self.end).max(KEPT), 0);
        }
    }

    fn shrink(&mut self) {
        if self.bytes.len() > KEPT && self.start == self.end {
            *self = Self::default();
        }
    }
}

/// The beginning of an answer, and what it means for the connection.
struct Said {
    head: Head,
    length: usize,
    stays_open: bool,
}

/// Whether there is an empty line.
fn ends(bytes: &[u8]) -> bool {
    let has = |end: &[u8]| bytes.windows(end.len()).any(|window| window == end);
    has(b"\n\r\n") || has(b"\n\n")
}

/// `None` when not all of it is there.
fn parse(bytes: &[u8], limits: HeadLimits) -> Result<Option<Said>, NoAnswer> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let mut usual = [const { MaybeUninit::uninit() }; USUAL_HEADERS];
    let mut many;
    let headers = match limits.headers {
        few if few <= USUAL_HEADERS => &mut usual[..few],
        count => {
            many = vec![MaybeUninit::uninit(); count];
            &mut many[..]
        }
    };
    let mut response = httparse::Response::new(&mut []);
    let parsed = httparse::ParserConfig::default().parse_response_with_uninit_headers(
        &mut response,
        bytes,
        headers,
    );
    let length = match parsed {
        Ok(httparse::Status::Complete(length)) if length <= limits.bytes => length,
        Ok(httparse::Status::Partial) if bytes.len() < limits.bytes => return Ok(None),
        Ok(_) => return Err(NoAnswer::Protocol("the answer's head is too large")),
        Err(httparse::Error::TooManyHeaders) => {
            return Err(NoAnswer::Protocol("the answer has too many headers"));
        }
        Err(_) => return Err(NoAnswer::Protocol("invalid HTTP was received")),
    };
    said(&response, length).map(Some)
}

fn said(response: &httparse::Response<'_, '_>, length: usize) -> Result<Said, NoAnswer> {
    let status = StatusCode::from_u16(response.code.unwrap_or(0))
        .map_err(|_| NoAnswer::Protocol("invalid HTTP status code parsed"))?;
    let mut fields = Fields::default();
    for header in response.headers.iter() {
        fields.read(status, header.name, header.value)?;
    }
    let http11 = response.version == Some(1);
    let body = fields.framing(status, http11)?;
    let stays_open = fields.stays_open(http11)
        && body != Framing::UntilEnd
        && status != StatusCode::SWITCHING_PROTOCOLS;
    let head = Head {
        status,
        headers: fields.kept,
        body,
    };
    Ok(Said {
        head,
        length,
        stays_open,
    })
}

/// What the headers say that matters here.
#[derive(Default)]
struct Fields {
    length: Option<u64>,
    /// Whether the body is coded, and in chunks last.
    coded: Option<bool>,
    close: bool,
    keep_alive: bool,
    kept: Option<Box<HeaderMap>>,
}

impl Fields {
    fn read(&mut self, status: StatusCode, name: &str, value: &[u8]) -> Result<(), NoAnswer> {
        let is = |known: &HeaderName| name.eq_ignore_ascii_case(known.as_str());
        if is(&CONTENT_LENGTH) {
            let length = number(value).ok_or(NoAnswer::Protocol("invalid content-length"))?;
            if self
                .length
                .replace(length)
                .is_some_and(|said| said != length)
            {
                return Err(NoAnswer::Protocol("two lengths of one answer"));
            }
        } else if is(&TRANSFER_ENCODING) {
            let last = value
                .rsplit(|byte| *byte == b',')
                .next()
                .unwrap_or_default();
            self.coded = Some(last.trim_ascii().eq_ignore_ascii_case(b"chunked"));
        } else if is(&CONNECTION) {
            for word in value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
                self.close |= word.eq_ignore_ascii_case(b"close");
                self.keep_alive |= word.eq_ignore_ascii_case(b"keep-alive");
            }
        } else if !status.is_success() {
            for known in [RETRY_AFTER, DATE] {
                if is(&known)
                    && let Ok(value) = HeaderValue::from_bytes(value)
                {
                    self.kept.get_or_insert_default().insert(known, value);
                }
            }
        }
        Ok(())
    }

    fn framing(&self, status: StatusCode, http11: bool) -> Result<Framing, NoAnswer> {
        let none = status.is_informational()
            || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
        match (self.coded, self.length) {
            _ if none => Ok(Framing::Length(0)),
            (Some(_), _) if !http11 => Err(NoAnswer::Protocol("HTTP/1.0 has no transfer-encoding")),
            (Some(true), _) => Ok(Framing::Chunked(Chunk::Size)),
            (Some(false), _) => Ok(Framing::UntilEnd),
            (None, Some(length)) => Ok(Framing::Length(length)),
            (None, None) => Ok(Framing::UntilEnd),
        }
    }

    fn stays_open(&self, http11: bool) -> bool {
        // Who says two things of one body may mean either.
        let ambiguous = self.coded.is_some() && self.length.is_some();
        !self.close && !ambiguous && (http11 || self.keep_alive)
    }
}

/// Digits and nothing else.
fn number(value: &[u8]) -> Option<u64> {
    let value = value.trim_ascii();
    if value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(value).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

    use super::*;

    const LIMITS: HeadLimits = HeadLimits {
        headers: 4,
        bytes: 1024,
    };
    const LIMIT: usize = 100;

    fn connection(capacity: usize) -> (Connection, DuplexStream) {
        let (near, far) = tokio::io::duplex(capacity);
        (Connection::new(Box::new(near), LIMITS), far)
    }

    async fn post(line: &mut Connection, payload: &[u8]) -> Result<Head, NoAnswer> {
        post_while(line, payload, None).await
    }

    async fn post_while(
        line: &mut Connection,
        payload: &[u8],
        lease: Option<&Lease>,
    ) -> Result<Head, NoAnswer> {
        let mut headers = HeaderMap::new();
        headers.insert("keylane-key", HeaderValue::from_static("k"));
        let post = Post {
            path: "/a?b=c",
            host: &HeaderValue::from_static("host:1"),
            headers: &headers,
            payload,
            lease,
        };
        line.post(post).await
    }

    /// What is left of a body, read to its end; `None` when it was cut.
    async fn body(line: &mut Connection, mut framing: Framing) -> Option<Vec<u8>> {
        let mut answer = Answer::default();
        while line.take(&mut framing, &mut answer, LIMIT).ok()? == Progress::More {
            if !line.more().await.ok()? {
                return framing.may_end().then(|| answer.bytes().to_vec());
            }
        }
        Some(answer.bytes().to_vec())
    }

    /// Status and body of an answer, and whether the connection may be used again.
    async fn answered(answer: &[u8]) -> Result<(u16, Option<Vec<u8>>, bool), NoAnswer> {
        let (mut line, mut far) = connection(64 << 10);
        far.write_all(answer).await.unwrap();
        // It says no more, and still listens.
        far.shutdown().await.unwrap();
        let head = post(&mut line, b"x").await?;
        let (status, body) = (head.status.as_u16(), body(&mut line, head.body).await);
        Ok((status, body, line.is_reusable()))
    }

    #[tokio::test]
    async fn a_request_is_written_as_it_should_be() {
        let (mut line, mut far) = connection(1024);
        far.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
            .await
            .unwrap();
        post(&mut line, b"hello").await.unwrap();
        drop(line);
        let mut request = String::new();
        far.read_to_string(&mut request).await.unwrap();
        let expected = "POST /a?b=c HTTP/1.1\r\nhost: host:1\r\nkeylane-key: k\r\ncontent-length: 5\r\n\r\nhello";
        assert_eq!(request, expected);
    }

    #[tokio::test]
    async fn a_large_body_is_written_behind_its_head() {
        let (mut line, mut far) = connection(100);
        let payload = vec![7; 10 * SMALL];
        let peer = tokio::spawn(async move {
            let mut request = vec![0; 10 * SMALL + 77];
            far.read_exact(&mut request).await.unwrap();
            far.write_all(b"HTTP/1.1 204 None\r\n\r\n").await.unwrap();
            (request, far)
        });
        let head = post(&mut line, &payload).await.unwrap();
        assert_eq!((head.status.as_u16(), head.body), (204, Framing::Length(0)));
        let (request, _far) = peer.await.unwrap();
        assert!(request.ends_with(&payload[..9 * SMALL]));
        assert!(line.is_reusable());
        line.shrink();
        assert!(line.is_idle());
    }

    #[tokio::test]
    async fn where_a_body_ends_is_known_by_what_its_head_says() {
        for (answer, status, body, again) in [
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi",
                200,
                "hi",
                true,
            ),
            (
                "HTTP/1.1 200\r\ncontent-length: 2\r\ncontent-length: 2\r\n\r\nhi",
                200,
                "hi",
                true,
            ),
            (
                "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
                200,
                "hi",
                true,
            ),
            (
                "HTTP/1.1 204 None\r\ncontent-length: 7\r\n\r\n",
                204,
                "",
                true,
            ),
            ("HTTP/1.1 304 Same\r\n\r\n", 304, "", true),
            (
                "HTTP/1.1 100 Go\r\n\r\nHTTP/1.1 103 Hints\r\na: b\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
                200,
                "",
                true,
            ),
            (
                "HTTP/1.0 200 OK\r\nconnection: Keep-Alive\r\ncontent-length: 2\r\n\r\nhi",
                200,
                "hi",
                true,
            ),
            // From here on the connection is used for nothing else.
            (
                "HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nhi",
                200,
                "hi",
                false,
            ),
            (
                "HTTP/1.1 200 OK\r\nconnection: x, Close\r\ncontent-length: 2\r\n\r\nhi",
                200,
                "hi",
                false,
            ),
            ("HTTP/1.1 200 OK\r\n\r\nhi", 200, "hi", false),
            (
                "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\nhi",
                200,
                "hi",
                false,
            ),
            ("HTTP/1.1 101 Other\r\nupgrade: x\r\n\r\n", 101, "", false),
            (
                "HTTP/1.1 200 OK\r\ncontent-length: 9\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
                200,
                "hi",
                false,
            ),
            (
                "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi there",
                200,
                "hi",
                false,
            ),
        ] {
            let (code, read, reusable) = answered(answer.as_bytes()).await.unwrap();
            let read = read.map(|read| String::from_utf8(read).unwrap());
            assert_eq!((code, read.as_deref()), (status, Some(body)), "{answer}");
            assert_eq!(reusable, again, "{answer}");
        }
    }

    #[test]
    fn an_empty_line_ends_a_head() {
        for (bytes, does) in [
            (&b"HTTP/1.1 200 OK\r\na: b\r\n\r\n"[..], true),
            (b"a: b\n\nbody", true),
            (b"\r\n\r\n", true),
            (b"\n\r\n", true),
            (b"a: b\r\n\r", false),
            (b"a: b\r\nc: d\r\n", false),
            (b"\r\n", false),
            (b"", false),
        ] {
            assert_eq!(ends(bytes), does, "{bytes:?}");
        }
    }

    #[tokio::test]
    async fn a_head_may_come_in_any_pieces() {
        let answer = b"HTTP/1.1 100 Go\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi";
        for step in 1..answer.len() {
            let (mut line, mut far) = connection(1024);
            let pieces = async {
                for piece in answer.chunks(step) {
                    far.write_all(piece).await.unwrap();
                    tokio::task::yield_now().await;
                }
            };
            let (head, ()) = tokio::join!(post(&mut line, b"x"), pieces);
            let body = body(&mut line, head.unwrap().body).await;
            assert_eq!(body.as_deref(), Some(&b"hi"[..]), "{step}");
            assert!(line.is_reusable());
        }
    }

    #[tokio::test]
    async fn what_is_cut_is_cut() {
        for answer in [
            "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nhi",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nno chunk\r\n",
        ] {
            let (_, body, _) = answered(answer.as_bytes()).await.unwrap();
            assert_eq!(body, None, "{answer}");
        }
        for answer in ["", "HTTP/1.1 200 OK\r\ncontent-le"] {
            let error = answered(answer.as_bytes()).await.err();
            assert!(
                matches!(error, Some(NoAnswer::Ended)),
                "{answer}: {error:?}"
            );
        }
    }

    #[tokio::test]
    async fn what_is_no_http_is_an_error() {
        let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "a: b\r\n".repeat(5));
        let large = format!("HTTP/1.1 200 OK\r\na: {}\r\n\r\n", "b".repeat(1024));
        let endless = format!("HTTP/1.1 200 OK\r\na: {}", "b".repeat(9000));
        for answer in [
            "hello\r\n\r\n",
            "HTTP/1.1 20 OK\r\n\r\n",
            "HTTP/2 200 OK\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: +1\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 99999999999999999999\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nhi",
            "HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
            &many,
            &large,
            &endless,
        ] {
            let error = answered(answer.as_bytes()).await.err();
            assert!(
                matches!(error, Some(NoAnswer::Protocol(_))),
                "{answer}: {error:?}"
            );
        }
    }

    #[tokio::test]
    async fn who_answers_before_everything_is_written_hears_no_more() {
        let (mut line, mut far) = connection(100);
        far.write_all(b"HTTP/1.1 413 Too Large\r\ncontent-length: 0\r\n\r\n")
            .await
            .unwrap();
        let head = post(&mut line, &vec![7; 10 * SMALL]).await.unwrap();
        assert_eq!(head.status.as_u16(), 413);
        assert!(!line.is_reusable());
    }

    #[tokio::test]
    async fn a_connection_that_its_peer_closed_or_spoke_on_takes_no_request() {
        let (mut line, far) = connection(100);
        assert!(line.is_idle());
        drop(far);
        assert!(!line.is_idle());
        let unsent = post(&mut line, b"x").await.err();
        assert!(matches!(unsent, Some(NoAnswer::Unsent)), "{unsent:?}");

        let (mut line, mut far) = connection(100);
        far.write_all(b"?").await.unwrap();
        assert!(!line.is_idle());
    }

    #[tokio::test]
    async fn a_request_that_was_given_up_leaves_a_connection_for_nobody() {
        let (mut line, _far) = connection(1024);
        let mut request = Box::pin(post(&mut line, b"x"));
        let cx = &mut Context::from_waker(Waker::noop());
        assert!(request.as_mut().poll(cx).is_pending());
        drop(request);
        assert!(!line.is_reusable());
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_written_when_the_lease_is_over() {
        let (mut line, mut far) = connection(1024);
        let lease = Lease::of_nobody();
        lease.end();
        let posted = post_while(&mut line, b"x", Some(&lease));
        let posted = tokio::time::timeout(Duration::from_secs(1), posted).await;
        let lost = posted.expect("it waits for nobody").err();
        assert!(matches!(lost, Some(NoAnswer::LeaseLost)), "{lost:?}");
        // It is as good as before.
        assert!(line.is_idle());
        drop(line);
        let mut request = Vec::new();
        far.read_to_end(&mut request).await.unwrap();
        assert!(request.is_empty());
    }

    #[tokio::test]
    async fn only_what_says_when_to_come_again_is_kept() {
        let (mut line, mut far) = connection(1024);
        far.write_all(b"HTTP/1.1 503 No\r\nretry-after: 7\r\ndate: now\r\nserver: x\r\n\r\n")
            .await
            .unwrap();
        let headers = post(&mut line, b"x").await.unwrap().headers.unwrap();
        assert_eq!(
            (headers.len(), &headers[RETRY_AFTER]),
            (2, &HeaderValue::from_static("7"))
        );
    }
}
