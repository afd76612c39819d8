//! Whom a message may call: checked on the address that is dialled.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Mutex;

use keylane_router::dispatch::{Resolve, Resolving};
use keylane_router::plan::SourceKind;
use keylane_router::testing::Proxy;

use super::*;

/// Answers a row of addresses, one after the other, and then no more.
#[derive(Debug, Default)]
struct Row(Mutex<Vec<Vec<IpAddr>>>);

impl Row {
    fn of(row: &[&[&str]]) -> Arc<Self> {
        let mut row: Vec<Vec<IpAddr>> = row
            .iter()
            .map(|ips| ips.iter().map(|ip| ip.parse().expect(ip)).collect())
            .collect();
        row.reverse();
        Arc::new(Self(Mutex::new(row)))
    }

    fn left(&self) -> usize {
        self.0.lock().unwrap().len()
    }
}

impl Resolve for Row {
    fn resolve<'a>(&'a self, _: &'a str, port: u16) -> Resolving<'a> {
        let next = self.0.lock().unwrap().pop();
        Box::pin(async move {
            let ips = next.ok_or_else(|| io::Error::other("asked too often"))?;
            Ok(ips
                .into_iter()
                .map(|ip| SocketAddr::new(ip, port))
                .collect())
        })
    }
}

fn resolving(row: &Arc<Row>) -> HttpDispatch {
    HttpDispatch::new(HttpOptions {
        resolver: row.clone(),
        ..options()
    })
}

fn only(entries: &[&str]) -> Attempt {
    Attempt {
        targets: Arc::new(Targets::Only(TargetList::parse(entries).unwrap())),
        ..attempt()
    }
}

fn named(port: u16) -> Message {
    message(format!("http://api.example.com:{port}/"))
}

fn assert_not_allowed(outcome: Outcome, of: &str) {
    let reason = refused(outcome);
    assert_eq!(
        (&*reason.class, reason.breaker_failure),
        ("target-not-allowed", false),
        "{of}: {}",
        reason.text
    );
}

#[tokio::test]
async fn what_is_never_called_is_not_called_in_any_spelling() {
    let dispatch = http();
    for host in [
        "169.254.169.254",
        "169.254.170.2",
        "168.63.129.16",
        "100.100.100.200",
        "2852039166",
        "0xa9fea9fe",
        "0xA9.0xFE.0xA9.0xFE",
        "0251.0376.0251.0376",
        "169.254.43518",
        "[::ffff:169.254.169.254]",
        "[::ffff:a9fe:a9fe]",
        "[::169.254.169.254]",
        "[64:ff9b::a9fe:a9fe]",
        "[64:ff9b:1::a9fe:a9fe]",
        "[2002:a9fe:a9fe::1]",
        "[2001:0:a9fe:a9fe::1]",
        "[fe80::1]",
        "[fd00:ec2::254]",
        "0.0.0.0",
        "0",
        "[::]",
        "224.0.0.1",
        "255.255.255.255",
    ] {
        let all = only(&["any", "0.0.0.0/0", "::/0"]);
        let outcome = dispatch
            .attempt(&message(format!("http://{host}:9/latest")), &all)
            .await;
        assert_not_allowed(outcome, host);
    }
}

#[tokio::test]
async fn a_denied_address_is_denied_in_every_spelling() {
    let target = Target::always_ok().await;
    let port = target.address().port();
    let dispatch = http();
    let denied = only(&["any", "!127.0.0.1", "!::1"]);
    for host in [
        "127.0.0.1",
        "localhost",
        "LOCALHOST",
        "2130706433",
        "0x7f000001",
        "0177.0.0.1",
        "0x7f.1",
        "127.1",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
    ] {
        let message = message(format!("http://{host}:{port}/"));
        assert_not_allowed(dispatch.attempt(&message, &denied).await, host);
    }
    assert!(target.recorder().all().is_empty());
}

#[tokio::test]
async fn this_machine_is_called_only_for_local_sources_in_dev_or_when_listed() {
    let target = Target::always_ok().await;
    let message = message(target.url("/"));
    let strict = || HttpDispatch::new(HttpOptions::default());
    let dispatch = strict();
    assert_not_allowed(dispatch.attempt(&message, &attempt()).await, "any");
    let listed = only(&["127.0.0.1"]);
    assert_eq!(
        dispatch.attempt(&message, &listed).await,
        Outcome::Delivered
    );
    // Also on the connection that is now kept.
    assert_not_allowed(dispatch.attempt(&message, &attempt()).await, "kept");
    dispatch.source_added(&"s".into(), &SourceKind::Custom);
    assert_eq!(
        dispatch.attempt(&message, &attempt()).await,
        Outcome::Delivered
    );
    let dev = strict();
    dev.set_dev(true);
    assert_eq!(dev.attempt(&message, &attempt()).await, Outcome::Delivered);
    dev.set_dev(false);
    assert_not_allowed(dev.attempt(&message, &attempt()).await, "no longer dev");
}

#[tokio::test]
async fn a_private_address_is_not_called_with_public_whatever_its_name() {
    for ip in ["10.0.0.1", "192.168.1.1", "fd12::1", "127.0.0.1", "::1"] {
        let row = Row::of(&[&[ip]]);
        let mut public = attempt();
        public.targets = Arc::new(Targets::Public);
        let outcome = resolving(&row).attempt(&named(80), &public).await;
        assert_not_allowed(outcome, ip);
    }
}

#[tokio::test]
async fn a_name_that_resolves_differently_the_second_time_is_checked_each_time_it_is_dialled() {
    let target = Target::always_ok().await;
    let proxy = Proxy::start(target.address()).await;
    let row = Row::of(&[&["127.0.0.1"], &["169.254.169.254"], &["127.0.0.2"]]);
    let dispatch = resolving(&row);
    let allowed = only(&["127.0.0.1"]);
    let message = named(proxy.address().port());
    assert_eq!(
        dispatch.attempt(&message, &allowed).await,
        Outcome::Delivered
    );
    // One answer for check and dial: had it been asked twice, the second would be gone.
    assert_eq!(row.left(), 2);
    proxy.cut_all();
    crate::eventually(|| dispatch.idle_connections() == 0).await;
    assert_not_allowed(dispatch.attempt(&message, &allowed).await, "metadata");
    assert_not_allowed(dispatch.attempt(&message, &allowed).await, "not listed");
    assert_eq!(row.left(), 0);
    assert_eq!(target.recorder().requests().len(), 1);
}

#[tokio::test]
async fn of_several_addresses_only_the_allowed_are_dialled() {
    let target = Target::always_ok().await;
    let row = Row::of(&[&["169.254.169.254", "10.0.0.1", "127.0.0.1", "fe80::1"]]);
    let allowed = only(&["any", "!10.0.0.0/8"]);
    let outcome = resolving(&row)
        .attempt(&named(target.address().port()), &allowed)
        .await;
    assert_eq!(outcome, Outcome::Delivered);
}

#[tokio::test]
async fn a_name_that_is_not_listed_is_not_even_resolved() {
    let row = Row::of(&[&["127.0.0.1"]]);
    let outcome = resolving(&row)
        .attempt(&named(80), &only(&["other.example.com"]))
        .await;
    assert_not_allowed(outcome, "not listed");
    assert_eq!(row.left(), 1);
}

#[tokio::test]
async fn a_kept_connection_is_used_only_by_pools_that_may_call_its_address() {
    let target = Target::always_ok().await;
    let row = Row::of(&[&["127.0.0.1"], &["127.0.0.1"]]);
    let dispatch = resolving(&row);
    let message = named(target.address().port());
    assert_eq!(
        dispatch.attempt(&message, &attempt()).await,
        Outcome::Delivered
    );
    let mut public = attempt();
    public.targets = Arc::new(Targets::Public);
    assert_not_allowed(dispatch.attempt(&message, &public).await, "public");
    // And it is still there for the others.
    assert_eq!(
        dispatch.attempt(&message, &attempt()).await,
        Outcome::Delivered
    );
}

#[tokio::test]
async fn the_routers_own_listener_takes_only_its_test_targets() {
    let own = Target::always_ok().await;
    let listeners = vec![own.address()];
    let dispatch = HttpDispatch::new(HttpOptions {
        listeners,
        test_targets: true,
        ..options()
    });
    let call = |path: &str| {
        let (dispatch, message) = (dispatch.clone(), message(own.url(path)));
        async move { dispatch.attempt(&message, &attempt()).await }
    };
    assert_not_allowed(call("/api/v1/queues/default/messages").await, "dialled");
    assert_eq!(call("/api/test/fast").await, Outcome::Delivered);
    // Also on the connection that is now kept.
    for path in ["/api/v1/reload", "/api/test/../v1/reload", "/", "/metrics"] {
        assert_not_allowed(call(path).await, path);
    }
    dispatch.set_dev(false);
    let outcome = dispatch
        .attempt(&message(own.url("/api/test/fast")), &only(&["127.0.0.1"]))
        .await;
    assert_not_allowed(outcome, "not in dev");
    assert_eq!(own.recorder().requests().len(), 1);
}
