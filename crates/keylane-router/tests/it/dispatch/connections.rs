//! Connections that are used again, and those that must not be.

use keylane_router::testing::{Accept, Events, Fault, Proxy, RawAnswer, RawTarget, Step};
use tokio::task::JoinSet;

use super::*;

/// So many attempts at once; all must be delivered.
async fn at_once(dispatch: &HttpDispatch, url: &str, count: usize) {
    let mut attempts = JoinSet::new();
    for _ in 0..count {
        let (dispatch, message) = (dispatch.clone(), message(url));
        attempts.spawn(async move { dispatch.attempt(&message, &attempt()).await });
    }
    while let Some(outcome) = attempts.join_next().await {
        assert_eq!(outcome.unwrap(), Outcome::Delivered);
    }
}

#[tokio::test]
async fn as_many_connections_are_kept_as_attempts_were_under_way() {
    let target = Target::start(testing::fixed(Answer::ok().after(SHORT))).await;
    let proxy = Proxy::start(target.address()).await;
    let dispatch = http();
    for _ in 0..3 {
        at_once(&dispatch, &proxy.url("/"), 50).await;
        assert_eq!(dispatch.idle_connections(), 50);
    }
    assert_eq!(proxy.accepted(), 50);
}

#[tokio::test]
async fn all_kept_connections_together_are_bounded() {
    let target = Target::start(testing::fixed(Answer::ok().after(SHORT))).await;
    let dispatch = HttpDispatch::new(HttpOptions {
        idle_connections: 8,
        ..options()
    });
    at_once(&dispatch, &target.url("/"), 30).await;
    assert!((1..=8).contains(&dispatch.idle_connections()));
}

#[tokio::test]
async fn a_connection_that_nobody_uses_is_closed() {
    let target = Target::always_ok().await;
    let dispatch = HttpDispatch::new(HttpOptions {
        idle_for: SHORT,
        ..options()
    });
    at_once(&dispatch, &target.url("/"), 3).await;
    assert!(dispatch.idle_connections() > 0);
    crate::eventually(|| dispatch.idle_connections() == 0).await;
    at_once(&dispatch, &target.url("/"), 1).await;
    assert_eq!(dispatch.idle_connections(), 1);
}

#[tokio::test]
async fn a_kept_connection_that_the_peer_closed_costs_no_attempt() {
    let target = Target::always_ok().await;
    let proxy = Proxy::start(target.address()).await;
    let dispatch = http();
    for round in 1..=3 {
        at_once(&dispatch, &proxy.url("/"), 1).await;
        assert_eq!(proxy.accepted(), round);
        proxy.cut_all();
        crate::eventually(|| dispatch.idle_connections() == 0).await;
    }
}

#[tokio::test]
async fn an_answer_nobody_asked_for_never_meets_the_next_request() {
    // Two answers to the first request of each connection.
    let twice = RawAnswer::delivered([
        Step::send("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"),
        Step::send("HTTP/1.1 400 Not yours\r\ncontent-length: 0\r\n\r\n"),
        Step::Hang,
    ]);
    let target = RawTarget::start(move |_| twice.clone(), Arc::new(Events::default())).await;
    let dispatch = http();
    for _ in 0..20 {
        at_once(&dispatch, &target.url("/"), 1).await;
    }
}

#[tokio::test]
async fn an_answer_after_our_timeout_never_meets_the_next_request() {
    let target = Target::start(|request: &Request| match request.attempt {
        1 => Answer::status(400).after(2 * SHORT),
        _ => Answer::ok().after(4 * SHORT),
    })
    .await;
    let dispatch = http();
    let message = message(target.url("/"));
    for _ in 0..3 {
        let mut first = attempt();
        (first.number, first.timeout.first_byte) = (1, SHORT);
        let reason = failed(dispatch.attempt(&message, &first).await);
        assert_eq!(reason.class, "timeout");
        assert_eq!(
            dispatch.attempt(&message, &attempt()).await,
            Outcome::Delivered
        );
    }
}

#[tokio::test]
async fn a_connection_whose_answer_was_left_is_not_used_again() {
    let target = RawTarget::start(
        |_| {
            RawAnswer::delivered([
                Step::send("HTTP/1.1 200 OK\r\ncontent-length: 9999999\r\n\r\n"),
                Step::Forever(Bytes::from_static(
                    b"HTTP/1.1 400 No\r\ncontent-length: 0\r\n\r\n",
                )),
            ])
        },
        Arc::new(Events::default()),
    )
    .await;
    let dispatch = http();
    for _ in 0..5 {
        at_once(&dispatch, &target.url("/"), 1).await;
        assert_eq!(dispatch.idle_connections(), 0);
    }
}

#[tokio::test]
async fn a_dropped_attempt_closes_its_connection() {
    let target = Target::start(testing::fixed(Answer::Hang)).await;
    let dispatch = http();
    let message = message(target.url("/"));
    let attempt = attempt();
    tokio::select! {
        outcome = dispatch.attempt(&message, &attempt) => panic!("{outcome:?}"),
        _ = target.recorder().started(1) => {}
    }
    // The target sees the connection end.
    target.recorder().ended(1).await;
}

#[tokio::test]
async fn a_black_hole_fails_by_connect_only_where_tls_has_to_come_back() {
    let target = Target::always_ok().await;
    let proxy = Proxy::start(target.address()).await;
    proxy.set(Fault::accept(Accept::Ignore));
    let mut limited = attempt();
    (limited.timeout.connect, limited.timeout.first_byte) = (SHORT, 2 * SHORT);
    let plain = message(proxy.url("/"));
    let reason = failed(http().attempt(&plain, &limited).await);
    assert!(reason.text.contains("first_byte"), "{}", reason.text);
    let tls = message(proxy.url("/").replace("http:", "https:"));
    let reason = failed(http().attempt(&tls, &limited).await);
    assert!(reason.text.contains("connect"), "{}", reason.text);
}
