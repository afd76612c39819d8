//! A pool's list of targets: whom it may call, and with `!` whom it may not.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;

use super::address::Place;
use super::target::TargetUrl;

/// A checked list of targets.
///
/// An entry is `any`, `public`, an origin (`https://api.example.com`), a host with or without a
/// port, `*.example.com` for all hosts below, an address, or a network (`10.1.0.0/16`). With a `!`
/// in front it denies, and a denial wins. Addresses and networks are compared with the address
/// that is dialled, so another spelling or a name does not get around them.
#[derive(Clone, Debug, PartialEq)]
pub struct TargetList {
    allow: Vec<Entry>,
    deny: Vec<Entry>,
}

/// Why an entry is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{entry:?} is no target; {remedy}")]
pub struct ListError {
    entry: String,
    remedy: &'static str,
}

const REMEDY: &str = "give \"any\", \"public\", an origin such as \"https://api.example.com\", a host, \
    \"*.example.com\", an address or a network such as \"10.1.0.0/16\", with ! in front to deny it";

#[derive(Clone, Debug, PartialEq)]
enum Entry {
    Any,
    Public,
    Origin(Arc<str>),
    Host {
        host: String,
        port: Option<u16>,
    },
    Below(String),
    Network {
        scheme: Option<&'static str>,
        ip: IpAddr,
        length: u8,
        port: Option<u16>,
    },
}

impl TargetList {
    /// Reads a list. One that only denies allows `any` else.
    ///
    /// # Errors
    /// [`ListError`] for the first entry that is none, or when the list is empty.
    pub fn parse(entries: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Self, ListError> {
        let (mut allow, mut deny) = (Vec::new(), Vec::new());
        for entry in entries {
            let text = entry.as_ref().trim();
            match text.strip_prefix('!') {
                Some(denied) => deny.push(Entry::parse(denied.trim(), text)?),
                None => allow.push(Entry::parse(text, text)?),
            }
        }
        if allow.is_empty() {
            if deny.is_empty() {
                return Err(wrong("", "give at least one entry"));
            }
            allow.push(Entry::Any);
        }
        Ok(Self { allow, deny })
    }

    /// Whether a connection to the target could be allowed, as far as its name tells.
    pub(crate) fn may_allow(&self, target: &TargetUrl) -> bool {
        let open = |entry: &Entry| match entry {
            Entry::Any | Entry::Public | Entry::Network { .. } => true,
            named => named.names(target),
        };
        !self.deny.iter().any(|entry| entry.names(target)) && self.allow.iter().any(open)
    }

    /// Whether the target may be called at this address. `loopback` says whether this machine may
    /// be called without being listed.
    pub(super) fn allows(
        &self,
        target: &TargetUrl,
        ip: IpAddr,
        place: Place,
        loopback: bool,
    ) -> bool {
        let denied = |entry: &Entry| match entry {
            Entry::Any => true,
            Entry::Public => place == Place::Public,
            entry => entry.names(target) || entry.holds(target, ip),
        };
        if self.deny.iter().any(denied) {
            return false;
        }
        self.allow.iter().any(|entry| match entry {
            Entry::Any => place != Place::Loopback || loopback,
            Entry::Public => place == Place::Public,
            Entry::Network { .. } => entry.holds(target, ip),
            // A name may lead anywhere, so this machine has to be meant by it.
            named => {
                let here = place == Place::Loopback;
                named.names(target) && (!here || loopback || named.is_localhost())
            }
        })
    }
}

impl Entry {
    fn parse(text: &str, whole: &str) -> Result<Self, ListError> {
        let not_one = || wrong(whole, REMEDY);
        match text {
            "any" => return Ok(Self::Any),
            "public" => return Ok(Self::Public),
            _ => {}
        }
        if text.contains("://") {
            return Self::origin(text).ok_or_else(not_one);
        }
        if let Some(parent) = text.strip_prefix("*.") {
            let parent = parent.to_ascii_lowercase();
            return is_host(&parent)
                .then_some(Self::Below(parent))
                .ok_or_else(not_one);
        }
        if let Some((ip, length)) = text.split_once('/') {
            return Self::network(ip, length).ok_or_else(not_one);
        }
        Self::host(text).ok_or_else(not_one)
    }

    fn origin(text: &str) -> Option<Self> {
        let target = TargetUrl::parse(text).ok()?;
        let path = target.uri().path_and_query().map_or("/", |p| p.as_str());
        if path != "/" {
            return None;
        }
        Some(match target.ip() {
            Some(ip) => Self::Network {
                scheme: Some(target.scheme()),
                ip: ip.to_canonical(),
                length: full(ip.to_canonical()),
                port: Some(target.port()),
            },
            None => Self::Origin(target.origin().clone()),
        })
    }

    fn network(ip: &str, length: &str) -> Option<Self> {
        let ip: IpAddr = unbracketed(ip).parse().ok()?;
        let length: u8 = length.parse().ok()?;
        (length <= full(ip)).then_some(Self::Network {
            scheme: None,
            ip,
            length,
            port: None,
        })
    }

    fn host(text: &str) -> Option<Self> {
        if let Ok(ip) = unbracketed(text).parse::<IpAddr>() {
            return Some(Self::address(ip, None));
        }
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) => (host, Some(port.parse().ok().filter(|port| *port > 0)?)),
            None => (text, None),
        };
        if let Ok(ip) = unbracketed(host).parse::<IpAddr>() {
            return Some(Self::address(ip, port));
        }
        let host = host.to_ascii_lowercase();
        is_host(&host).then_some(Self::Host { host, port })
    }

    fn address(ip: IpAddr, port: Option<u16>) -> Self {
        let ip = ip.to_canonical();
        Self::Network {
            scheme: None,
            ip,
            length: full(ip),
            port,
        }
    }

    /// Whether the entry is a name of the target.
    fn names(&self, target: &TargetUrl) -> bool {
        let name = target.name();
        match self {
            Self::Any | Self::Public | Self::Network { .. } => false,
            Self::Origin(origin) => *origin == *target.origin(),
            Self::Host { host, port } => {
                *host == name && port.is_none_or(|port| port == target.port())
            }
            Self::Below(parent) => is_below(&name, parent),
        }
    }

    /// Whether the entry is a network that has this address.
    fn holds(&self, target: &TargetUrl, ip: IpAddr) -> bool {
        let Self::Network {
            scheme,
            ip: first,
            length,
            port,
        } = self
        else {
            return false;
        };
        scheme.is_none_or(|scheme| scheme == target.scheme())
            && port.is_none_or(|port| port == target.port())
            && same_bits(*first, ip.to_canonical(), *length)
    }

    fn is_localhost(&self) -> bool {
        let is = |name: &str| name == "localhost" || name.ends_with(".localhost");
        match self {
            Self::Host { host, .. } => is(host),
            Self::Below(parent) => is(parent),
            Self::Origin(origin) => {
                let host = origin.split_once("://").map_or("", |(_, rest)| rest);
                is(host.rsplit_once(':').map_or(host, |(host, _)| host))
            }
            _ => false,
        }
    }
}

fn wrong(entry: &str, remedy: &'static str) -> ListError {
    ListError {
        entry: entry.to_owned(),
        remedy,
    }
}

fn unbracketed(text: &str) -> &str {
    let inner = text.strip_prefix('[').and_then(|t| t.strip_suffix(']'));
    inner.unwrap_or(text)
}

/// Letters, digits and what stands between them.
fn is_host(text: &str) -> bool {
    !text.is_empty()
        && text.split('.').all(|label| !label.is_empty())
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_'))
}

fn is_below(host: &str, parent: &str) -> bool {
    let child = host.strip_suffix(parent);
    child.is_some_and(|child| child.len() > 1 && child.ends_with('.'))
}

fn full(ip: IpAddr) -> u8 {
    if ip.is_ipv4() { 32 } else { 128 }
}

fn same_bits(a: IpAddr, b: IpAddr, length: u8) -> bool {
    match (a, b) {
        (IpAddr::V4(a), IpAddr::V4(b)) => {
            let differ = u32::from(a) ^ u32::from(b);
            differ.checked_shr(32 - u32::from(length)).unwrap_or(0) == 0
        }
        (IpAddr::V6(a), IpAddr::V6(b)) => {
            let differ = u128::from(a) ^ u128::from(b);
            differ.checked_shr(128 - u32::from(length)).unwrap_or(0) == 0
        }
        _ => false,
    }
}

/// The host without the dot that ends a full name: both mean the same.
pub(super) fn name_of(host: &str) -> Cow<'_, str> {
    Cow::Borrowed(host.strip_suffix('.').unwrap_or(host))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(entries: &[&str]) -> TargetList {
        TargetList::parse(entries).expect("a list")
    }

    fn allows(entries: &[&str], url: &str, ip: &str) -> bool {
        let target = TargetUrl::parse(url).expect(url);
        let ip: IpAddr = ip.parse().expect(ip);
        let list = list(entries);
        list.may_allow(&target) && list.allows(&target, ip, Place::of(ip), false)
    }

    fn named(url: &str, entry: &str) -> bool {
        allows(&[entry], url, "1.1.1.1")
    }

    #[test]
    fn a_list_names_origins_hosts_and_parents() {
        let url = "https://api.example.com/hook";
        for entry in [
            "https://api.example.com",
            "https://API.example.com:443/",
            "api.example.com",
            "API.EXAMPLE.COM",
            "api.example.com:443",
            "*.example.com",
            "*.com",
            "any",
            "public",
            "1.1.1.1",
            "1.0.0.0/8",
        ] {
            assert!(named(url, entry), "{entry}");
            assert!(named("https://api.example.com./hook", entry) || entry.contains("://"));
        }
        for entry in [
            "http://api.example.com",
            "https://api.example.com:444",
            "example.com",
            "api.example.com:80",
            "api.example.co",
            "*.api.example.com",
            "*.xample.com",
            "api.example.com.evil.org",
            "1.1.1.2",
            "2.0.0.0/8",
            "1.1.1.1:80",
            "http://1.1.1.1",
        ] {
            assert!(!named(url, entry), "{entry}");
        }
    }

    #[test]
    fn a_denial_wins_however_the_target_is_spelt() {
        let entries = ["any", "!10.0.0.0/8", "!evil.example.com", "!*.bad.org"];
        assert!(allows(&entries, "http://good.example.com/", "192.168.0.1"));
        assert!(!allows(&entries, "http://evil.example.com/", "1.1.1.1"));
        assert!(!allows(&entries, "http://EVIL.example.com./", "1.1.1.1"));
        assert!(!allows(&entries, "http://x.bad.org/", "1.1.1.1"));
        assert!(!allows(&entries, "http://a.example.com/", "10.1.2.3"));
        assert!(!allows(&entries, "http://0xa010203/", "10.1.2.3"));
        assert!(!allows(
            &entries,
            "http://[::ffff:10.1.2.3]/",
            "::ffff:10.1.2.3"
        ));
        assert!(!allows(&["!1.1.1.1"], "http://one.one.one.one/", "1.1.1.1"));
        assert!(allows(&["!1.1.1.1"], "http://x/", "1.0.0.1"));
    }

    #[test]
    fn this_machine_has_to_be_meant() {
        let (name, here) = ("http://api.example.com/", "127.0.0.1");
        assert!(!allows(&["any"], name, here));
        assert!(!allows(&["public"], name, here));
        assert!(!allows(&["api.example.com"], name, here));
        assert!(!allows(&["*.example.com"], name, here));
        for entry in ["localhost", "http://localhost", "127.0.0.1", "127.0.0.0/8"] {
            assert!(allows(&[entry], "http://localhost/", here), "{entry}");
        }
    }

    #[test]
    fn a_listed_name_may_be_private_but_public_is_public() {
        assert!(allows(
            &["api.internal"],
            "http://api.internal/",
            "10.0.0.1"
        ));
        assert!(!allows(&["public"], "http://api.internal/", "10.0.0.1"));
        assert!(allows(
            &["public", "10.0.0.1"],
            "http://api.internal/",
            "10.0.0.1"
        ));
    }

    #[test]
    fn what_is_no_entry_is_an_error_that_names_it() {
        for entry in [
            "",
            "!",
            "*.",
            "*",
            "a b",
            "http://h/path",
            "ftp://h",
            "10.0.0.0/33",
            "10.0.0/8",
            "h:0",
            "h:x",
            "http://u:p@h",
            "api.example.comü",
            "a..b",
        ] {
            let error = TargetList::parse([entry]).expect_err(entry);
            assert!(error.to_string().contains(&format!("{entry:?}")), "{error}");
        }
        assert!(TargetList::parse(Vec::<String>::new()).is_err());
    }
}
