//! Whether an address may be called. Asked for the address that is dialled, not for the name it
//! was found by, and again for each request on a connection that is used again: rules differ from
//! pool to pool, and the router's own listeners take only some paths.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use super::Attempt;
use super::address::Place;
use super::target::TargetUrl;
use crate::plan::{SourceKind, Targets};

/// What the router's own test targets begin with.
const TEST_TARGETS: &str = "/api/test/";

/// The rules that hold for all pools, with what is known of this machine.
#[derive(Debug, Default)]
pub(super) struct Guard {
    /// Where this router listens itself.
    listeners: Vec<SocketAddr>,
    /// Whether its test targets may be called. Written by a reload.
    test_targets: AtomicBool,
    /// Whether every message may call this machine. Written by a reload.
    loopback: AtomicBool,
    /// Sources whose messages may call this machine. Written when a source is added.
    local_sources: RwLock<HashSet<Arc<str>>>,
}

/// An address that may not be called, in words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct Denied(String);

impl Guard {
    pub(super) fn new(listeners: Vec<SocketAddr>, loopback: bool, test_targets: bool) -> Self {
        Self {
            listeners,
            test_targets: AtomicBool::new(test_targets),
            loopback: AtomicBool::new(loopback),
            local_sources: RwLock::default(),
        }
    }

    pub(super) fn set_dev(&self, on: bool) {
        self.test_targets.store(on, Ordering::Relaxed);
        self.loopback.store(on, Ordering::Relaxed);
    }

    /// Messages of the embedded queue come in by our own API, those of the program's own sources
    /// from the program itself: they may call this machine. Those of a broker come from anywhere.
    pub(super) fn source_added(&self, name: &Arc<str>, kind: &SourceKind) {
        let sources = self.local_sources.write();
        let mut sources = sources.unwrap_or_else(PoisonError::into_inner);
        let local = match kind {
            SourceKind::Embedded { .. } | SourceKind::Custom => true,
            #[cfg(feature = "sqs")]
            SourceKind::Sqs(_) => false,
            #[cfg(feature = "rabbitmq")]
            SourceKind::Rabbitmq(_) => false,
            #[cfg(feature = "activemq")]
            SourceKind::Activemq(_) => false,
        };
        match local {
            true => sources.insert(name.clone()),
            // The name may have been another source's before.
            false => sources.remove(name),
        };
    }

    /// Whether the target can be called at all, as far as its name tells: no need to ask for its
    /// address then.
    pub(super) fn check_name(&self, target: &TargetUrl, attempt: &Attempt) -> Result<(), Denied> {
        match &*attempt.targets {
            Targets::Only(list) if !list.may_allow(target) => Err(not_listed(target, attempt)),
            _ => Ok(()),
        }
    }

    /// Whether this attempt may call the target at this address.
    pub(super) fn check(
        &self,
        target: &TargetUrl,
        attempt: &Attempt,
        address: SocketAddr,
    ) -> Result<(), Denied> {
        let ip = address.ip();
        let place = Place::of(ip);
        if let Place::Never(why) = place {
            return Err(denied(target, format_args!("{ip} is never called: {why}")));
        }
        if self.is_own(address) && !self.is_test_target(target) {
            return Err(denied(
                target,
                format_args!("{address} is the router itself"),
            ));
        }
        let loopback = || self.loopback_from(&attempt.identity.source);
        let allowed = match &*attempt.targets {
            Targets::Any => place != Place::Loopback || loopback(),
            Targets::Public => place == Place::Public,
            Targets::Only(list) => {
                let here = place == Place::Loopback && loopback();
                list.allows(target, ip, place, here)
            }
        };
        match allowed {
            true => Ok(()),
            false => Err(not_allowed(target, attempt, ip, place)),
        }
    }

    fn loopback_from(&self, source: &Arc<str>) -> bool {
        let sources = || {
            self.local_sources
                .read()
                .unwrap_or_else(PoisonError::into_inner)
        };
        self.loopback.load(Ordering::Relaxed) || sources().contains(source)
    }

    fn is_own(&self, address: SocketAddr) -> bool {
        let ip = address.ip().to_canonical();
        self.listeners.iter().any(|own| {
            let own_ip = own.ip().to_canonical();
            own.port() == address.port()
                && (own_ip == ip || own_ip.is_unspecified() && is_of_this_machine(ip))
        })
    }

    fn is_test_target(&self, target: &TargetUrl) -> bool {
        let path = target.path().path();
        let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'/' | b'-' | b'_');
        self.test_targets.load(Ordering::Relaxed)
            && path.starts_with(TEST_TARGETS)
            // No dots and no escapes: nothing that another reader takes for another path.
            && path.bytes().all(plain)
    }
}

/// Whether an address is one of this machine's: then it is what we would call it from.
fn is_of_this_machine(ip: IpAddr) -> bool {
    let any: SocketAddr = match ip {
        IpAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
        IpAddr::V6(_) => ([0_u16; 8], 0).into(),
    };
    // Connecting a datagram socket sends nothing: it only asks for the route.
    let from = || {
        let socket = UdpSocket::bind(any).ok()?;
        socket.connect((ip, 9)).ok()?;
        socket.local_addr().ok()
    };
    ip.is_loopback() || from().is_some_and(|from| from.ip().to_canonical() == ip)
}

fn not_listed(target: &TargetUrl, attempt: &Attempt) -> Denied {
    let origin = target.origin();
    Denied(format!(
        "{origin} is not in `targets` of pool `{}`",
        attempt.pool
    ))
}

fn not_allowed(target: &TargetUrl, attempt: &Attempt, ip: IpAddr, place: Place) -> Denied {
    let pool = &attempt.pool;
    match place {
        Place::Loopback => denied(
            target,
            format_args!("{ip} is this machine, which `targets` of pool `{pool}` does not list"),
        ),
        Place::Private => denied(
            target,
            format_args!("{ip} is private, which `targets` of pool `{pool}` does not allow"),
        ),
        _ => denied(
            target,
            format_args!("{ip} is not allowed by `targets` of pool `{pool}`"),
        ),
    }
}

fn denied(target: &TargetUrl, why: std::fmt::Arguments<'_>) -> Denied {
    Denied(format!("{} may not be called: {why}", target.origin()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatch::{Secrets, TargetList};
    use crate::message::{BrokerId, Identity};
    use crate::plan::PoolPlan;

    fn attempt(targets: Targets) -> Attempt {
        Attempt {
            identity: Identity {
                source: "s".into(),
                id: BrokerId::Sequence(1),
            },
            number: 1,
            round: 0,
            pool: "mail".into(),
            position: None,
            slot: 0,
            timeout: PoolPlan::default().timeout,
            targets: Arc::new(targets),
            secrets: Secrets::default(),
            lease: None,
        }
    }

    fn allows(guard: &Guard, targets: Targets, url: &str, address: &str) -> bool {
        let target = TargetUrl::parse(url).expect(url);
        let address = address.parse().expect(address);
        guard.check(&target, &attempt(targets), address).is_ok()
    }

    #[test]
    fn metadata_and_link_local_addresses_are_called_for_nobody() {
        let guard = Guard::new(Vec::new(), true, true);
        let all = TargetList::parse(["0.0.0.0/0", "169.254.169.254", "metadata"]).unwrap();
        for targets in [Targets::Any, Targets::Public, Targets::Only(all)] {
            for address in ["169.254.169.254:80", "[fe80::1]:80", "0.0.0.0:80"] {
                assert!(!allows(
                    &guard,
                    targets.clone(),
                    "http://metadata/",
                    address
                ));
            }
        }
    }

    #[test]
    fn private_addresses_are_called_with_any_and_not_with_public() {
        let guard = Guard::default();
        let call = |targets, address| allows(&guard, targets, "http://h/", address);
        assert!(call(Targets::Any, "10.0.0.1:80"));
        assert!(call(Targets::Any, "1.1.1.1:80"));
        assert!(!call(Targets::Public, "10.0.0.1:80"));
        assert!(!call(Targets::Public, "[::ffff:10.0.0.1]:80"));
        assert!(call(Targets::Public, "1.1.1.1:80"));
    }

    #[test]
    fn this_machine_is_called_for_local_sources_in_dev_or_when_listed() {
        let guard = Guard::default();
        let here = "127.0.0.1:80";
        let listed = || Targets::Only(TargetList::parse(["127.0.0.1"]).unwrap());
        assert!(!allows(&guard, Targets::Any, "http://h/", here));
        assert!(allows(&guard, listed(), "http://h/", here));
        guard.source_added(&"other".into(), &SourceKind::Custom);
        assert!(!allows(&guard, Targets::Any, "http://h/", here));
        let queue = "q".into();
        guard.source_added(&"s".into(), &SourceKind::Embedded { queue });
        assert!(allows(&guard, Targets::Any, "http://h/", here));
        assert!(!allows(&guard, Targets::Public, "http://h/", here));
        let dev = Guard::default();
        dev.set_dev(true);
        assert!(allows(&dev, Targets::Any, "http://h/", here));
    }

    #[test]
    fn the_routers_own_listeners_take_only_test_targets_and_only_in_dev() {
        let own: SocketAddr = "127.0.0.1:8080".parse().unwrap();
        let dev = Guard::new(vec![own], true, true);
        let call = |guard: &Guard, path: &str, address: &str| {
            allows(guard, Targets::Any, &format!("http://h{path}"), address)
        };
        for address in ["127.0.0.1:8080", "[::ffff:127.0.0.1]:8080"] {
            assert!(call(&dev, "/api/test/fast", address));
            assert!(call(&dev, "/api/test/fast?x=1", address));
            for path in [
                "/",
                "/api/v1/queues/q/messages",
                "/api/test",
                "/api/test/../v1/reload",
                "/api/test/%2e%2e/v1/reload",
                "/api/testing",
                "//api/test/fast",
            ] {
                assert!(!call(&dev, path, address), "{path}");
            }
        }
        assert!(call(&dev, "/", "127.0.0.1:8081"));
        let not_dev = Guard::new(vec![own], true, false);
        assert!(!call(&not_dev, "/api/test/fast", "127.0.0.1:8080"));
    }

    #[test]
    fn a_listener_on_all_addresses_is_known_by_each_of_them() {
        for any in ["0.0.0.0:8080", "[::]:8080"] {
            let guard = Guard::new(vec![any.parse().unwrap()], true, false);
            assert!(!allows(&guard, Targets::Any, "http://h/", "127.0.0.1:8080"));
            assert!(!allows(&guard, Targets::Any, "http://h/", "127.8.8.8:8080"));
            assert!(allows(
                &guard,
                Targets::Any,
                "http://h/",
                "10.99.88.77:8080"
            ));
        }
    }
}
