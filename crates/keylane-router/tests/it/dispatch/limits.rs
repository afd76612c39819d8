//! What a target may send, and how long it may take.

use std::sync::Arc;

use bytes::Bytes;
use keylane_router::testing::{Events, RawAnswer, RawTarget, Step};

use super::*;

/// One attempt at a target that answers with these steps, within these limits.
async fn raw(steps: Vec<Step>, change: impl Fn(&mut TimeoutPlan)) -> Outcome {
    let answer = RawAnswer::failing(steps);
    let target = RawTarget::start(move |_| answer.clone(), Arc::new(Events::default())).await;
    let mut attempt = attempt();
    change(&mut attempt.timeout);
    http().attempt(&message(target.url("/")), &attempt).await
}

fn head(lines: &[String]) -> Step {
    let text = format!("HTTP/1.1 200 OK\r\n{}\r\n", lines.concat());
    Step::Send(text.into())
}

const EMPTY: &str = "content-length: 0\r\n";

#[tokio::test]
async fn a_body_that_stops_fails_by_the_idle_limit() {
    let reason = failed(limited(Answer::SlowBody, |t| t.idle_body = SHORT).await);
    assert_eq!((&*reason.class, reason.status), ("timeout", Some(200)));
    assert!(reason.text.contains("idle_body"), "{}", reason.text);
}

#[tokio::test]
async fn a_body_that_comes_byte_by_byte_is_read_as_long_as_it_comes() {
    let body = "x".repeat(20);
    let steps = vec![
        head(&["content-length: 20\r\n".into()]),
        Step::Trickle(body.into(), SHORT / 8),
    ];
    let outcome = raw(steps, |t| t.idle_body = LONG).await;
    assert_eq!(outcome, Outcome::Delivered);
}

#[tokio::test]
async fn a_body_that_comes_byte_by_byte_for_ever_fails_by_the_total_limit() {
    let steps = vec![
        head(&["transfer-encoding: chunked\r\n".into()]),
        Step::Trickle("1\r\nx\r\n".repeat(10_000).into(), SHORT / 10),
    ];
    let reason = failed(raw(steps, |t| t.total = 2 * SHORT).await);
    assert!(reason.text.contains("total"), "{}", reason.text);
}

#[tokio::test]
async fn a_head_that_comes_byte_by_byte_fails_by_first_byte() {
    let steps = vec![Step::Trickle(
        "HTTP/1.1 200 OK\r\n".repeat(99).into(),
        SHORT,
    )];
    let reason = failed(raw(steps, |t| t.first_byte = 2 * SHORT).await);
    assert!(reason.text.contains("first_byte"), "{}", reason.text);
}

#[tokio::test]
async fn interim_answers_do_not_prolong_the_wait() {
    let interim = Bytes::from_static(b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n");
    let reason = failed(raw(vec![Step::Forever(interim)], |t| t.first_byte = 2 * SHORT).await);
    assert!(reason.text.contains("first_byte"), "{}", reason.text);
}

#[tokio::test]
async fn an_answer_may_have_a_hundred_headers_and_no_more() {
    let headers = |n: usize| -> Vec<String> {
        let some = (1..n).map(|i| format!("x-{i}: y\r\n"));
        some.chain([EMPTY.to_owned()]).collect()
    };
    let outcome = raw(vec![head(&headers(100))], |_| {}).await;
    assert_eq!(outcome, Outcome::Delivered);
    let reason = failed(raw(vec![head(&headers(101))], |_| {}).await);
    assert_eq!((&*reason.class, reason.breaker_failure), ("protocol", true));
}

#[tokio::test]
async fn an_answers_head_may_have_64_kib_and_no_more() {
    let large = |n: usize| [format!("x: {}\r\n", "y".repeat(n)), EMPTY.to_owned()];
    let outcome = raw(vec![head(&large(60 << 10))], |_| {}).await;
    assert_eq!(outcome, Outcome::Delivered);
    let reason = failed(raw(vec![head(&large(65 << 10))], |_| {}).await);
    assert_eq!(reason.class, "protocol");
}

#[tokio::test]
async fn headers_without_end_are_not_read_without_end() {
    let steps = vec![
        Step::send("HTTP/1.1 200 OK\r\n"),
        Step::Forever(Bytes::from_static(b"x: yyyyyyyyyyyyyyyyyyyyyyyyyyyy\r\n")),
    ];
    assert_eq!(failed(raw(steps, |_| {}).await).class, "protocol");
    let steps = vec![
        Step::send("HTTP/1.1 200 OK\r\nx: "),
        Step::Forever(Bytes::from_static(&[b'y'; 1024])),
    ];
    assert_eq!(failed(raw(steps, |_| {}).await).class, "protocol");
}

#[tokio::test]
async fn of_a_body_without_end_a_part_is_read_and_the_status_counts() {
    let endless = |status: &'static str| {
        vec![
            Step::send(status),
            Step::send("transfer-encoding: chunked\r\n\r\n"),
            Step::Forever(Bytes::from_static(b"10\r\nxxxxxxxxxxxxxxxx\r\n")),
        ]
    };
    let outcome = raw(endless("HTTP/1.1 200 OK\r\n"), |_| {}).await;
    assert_eq!(outcome, Outcome::Delivered);
    let reason = failed(raw(endless("HTTP/1.1 500 Oh\r\n"), |_| {}).await);
    assert_eq!((reason.status, reason.answer.len()), (Some(500), 512));
    let reason = refused(raw(endless("HTTP/1.1 422 No\r\n"), |_| {}).await);
    assert_eq!(reason.status, Some(422));
}

#[tokio::test]
async fn a_compressed_answer_is_neither_asked_for_nor_unpacked() {
    let request = received(|m| {
        m.headers = vec![("Accept-Encoding".into(), "gzip".into())];
    })
    .await;
    assert_eq!(header(&request, "accept-encoding"), None);
    let answer = Answer::ok()
        .header("content-encoding", "gzip")
        .body(crate::bomb::gzip(32 << 20));
    assert_eq!(answered(answer).await, Outcome::Delivered);
}

#[tokio::test]
async fn what_is_no_http_fails_by_protocol() {
    for answer in [
        "HTTP/9.9 200 OK\r\n\r\n",
        "HTTP/1.1 2000 OK\r\n\r\n",
        "HTTP/1.1 OK\r\n\r\n",
        "HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        "HTTP/1.1 200 OK\r\na b: c\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 99999999999999999999999\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nx",
        "\u{16}\u{3}\u{1}\u{2}\0\u{1}\0\u{1}\u{fc}\u{3}\u{3}\r\n\r\n",
        "GET / HTTP/1.1\r\n\r\n",
    ] {
        let reason = failed(raw(vec![Step::send(answer)], |_| {}).await);
        assert_eq!(reason.class, "protocol", "{answer:?}: {}", reason.text);
    }
}

#[tokio::test]
async fn a_chunk_that_is_none_fails_as_a_cut_body() {
    for chunk in ["zz\r\nx\r\n", "ffffffffffffffffff\r\nx\r\n", "-1\r\nx\r\n"] {
        let steps = vec![
            head(&["transfer-encoding: chunked\r\n".into()]),
            Step::send(chunk),
        ];
        let reason = failed(raw(steps, |_| {}).await);
        assert_eq!((&*reason.class, reason.status), ("cut-body", Some(200)));
    }
}

#[tokio::test]
async fn a_peer_that_half_closes_after_its_answer_has_answered() {
    let steps = vec![head(&[EMPTY.into()]), Step::HalfClose, Step::Hang];
    assert_eq!(raw(steps, |_| {}).await, Outcome::Delivered);
    let reason = failed(raw(vec![Step::HalfClose, Step::Hang], |_| {}).await);
    assert_eq!(reason.class, "reset");
}
