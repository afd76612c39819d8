//! Target URLs: what may be called at all, and whom a URL means.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, RwLock};

use http::Uri;
use http::uri::Scheme;

use crate::plan::Targets;

/// How many parsed targets are remembered. More distinct ones are parsed again: that costs a
/// microsecond, memory without bound costs more.
const REMEMBERED: usize = 1024;

/// A target URL that can be called.
#[derive(Clone, Debug)]
pub struct TargetUrl {
    uri: Uri,
    host: Arc<str>,
    port: u16,
    origin: Arc<str>,
}

/// Why a target cannot be called. Never holds the URL: that may carry a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// No URL.
    #[error("the target is no valid URL: {0}")]
    Invalid(Cow<'static, str>),
    /// Neither `http` nor `https`.
    #[error("the target's scheme is not `http` or `https`")]
    Scheme,
    /// `user:password@host`: secrets belong into `authToken`.
    #[error("the target URL carries user information; use `authToken` instead")]
    UserInfo,
}

impl TargetUrl {
    /// Reads a target URL.
    pub fn parse(url: &str) -> Result<Self, TargetError> {
        let uri: Uri = url.parse().map_err(|error: http::uri::InvalidUri| {
            TargetError::Invalid(error.to_string().into())
        })?;
        let default_port = default_port(&uri)?;
        let authority = uri.authority().ok_or(invalid("it has no host"))?.as_str();
        if authority.contains('@') {
            return Err(TargetError::UserInfo);
        }
        let host = uri.host().unwrap_or_default();
        if host.is_empty() {
            return Err(invalid("it has no host"));
        }
        let port = port(&authority[host.len()..], default_port)?;
        let host: Arc<str> = host.to_ascii_lowercase().into();
        let scheme = uri.scheme_str().unwrap_or_default();
        let origin = format!("{scheme}://{host}:{port}").into();
        Ok(Self {
            uri,
            host,
            port,
            origin,
        })
    }

    /// The URL to request; a clone shares its text.
    pub fn uri(&self) -> &Uri {
        &self.uri
    }

    /// Scheme, host in lower case and port, always all three: `https://host:443`.
    pub fn origin(&self) -> &Arc<str> {
        &self.origin
    }

    /// Whether the pool's list has this target. `any` and `public` are about addresses, which are
    /// known only when the connection is made.
    ///
    /// A list's entry is an origin (`https://api.example.com`), a host with or without port, or
    /// `*.example.com` for all hosts below.
    pub fn is_listed(&self, targets: &Targets) -> bool {
        match targets {
            Targets::Any | Targets::Public => true,
            Targets::Only(entries) => entries.iter().any(|entry| self.matches(entry)),
        }
    }

    fn matches(&self, entry: &str) -> bool {
        let entry = entry.trim_end_matches('/');
        if entry.contains("://") {
            return Self::parse(entry).is_ok_and(|listed| listed.origin == self.origin);
        }
        if let Some(parent) = entry.strip_prefix("*.") {
            return is_below(&self.host, parent);
        }
        match self.host.len() {
            len if len >= entry.len() => self.host.eq_ignore_ascii_case(entry),
            len => {
                let (host, port) = entry.split_at_checked(len).unwrap_or_default();
                self.host.eq_ignore_ascii_case(host)
                    && port.strip_prefix(':').and_then(|p| p.parse().ok()) == Some(self.port)
            }
        }
    }
}

fn default_port(uri: &Uri) -> Result<u16, TargetError> {
    match uri.scheme() {
        Some(scheme) if *scheme == Scheme::HTTP => Ok(80),
        Some(scheme) if *scheme == Scheme::HTTPS => Ok(443),
        Some(_) => Err(TargetError::Scheme),
        None => Err(invalid("it has no scheme")),
    }
}

fn port(after_host: &str, default: u16) -> Result<u16, TargetError> {
    if after_host.is_empty() {
        return Ok(default);
    }
    let digits = after_host.strip_prefix(':').unwrap_or_default();
    match digits.parse() {
        Ok(port) if port > 0 && digits.as_bytes()[0] != b'+' => Ok(port),
        _ => Err(invalid("its port is not a number from 1 to 65535")),
    }
}

fn is_below(host: &str, parent: &str) -> bool {
    let Some(cut) = host.len().checked_sub(parent.len()) else {
        return false;
    };
    host.get(cut..)
        .is_some_and(|end| end.eq_ignore_ascii_case(parent))
        && host[..cut].len() > 1
        && host[..cut].ends_with('.')
}

fn invalid(text: &'static str) -> TargetError {
    TargetError::Invalid(Cow::Borrowed(text))
}

/// Targets that were parsed already, so that a target of many messages is parsed once.
#[derive(Debug, Default)]
pub(super) struct Known {
    by_url: RwLock<HashMap<Arc<str>, Arc<TargetUrl>>>,
}

impl Known {
    /// Parses `url`, or finds what it was parsed to before.
    pub(super) fn get(&self, url: &Arc<str>) -> Result<Arc<TargetUrl>, TargetError> {
        if let Some(known) = self.by_url.read().expect("never poisoned").get(url) {
            return Ok(known.clone());
        }
        let target = Arc::new(TargetUrl::parse(url)?);
        let mut by_url = self.by_url.write().expect("never poisoned");
        if by_url.len() >= REMEMBERED {
            // What is in use comes back by itself; an order of use would cost every lookup.
            by_url.clear();
        }
        by_url.insert(url.clone(), target.clone());
        Ok(target)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(url: &str) -> String {
        TargetUrl::parse(url).expect(url).origin().to_string()
    }

    fn listed(url: &str, entry: &str) -> bool {
        let target = TargetUrl::parse(url).expect(url);
        target.is_listed(&Targets::Only(vec![entry.to_owned()]))
    }

    #[test]
    fn an_origin_has_scheme_host_in_lower_case_and_port() {
        assert_eq!(origin("http://Example.COM/a?b#c"), "http://example.com:80");
        assert_eq!(origin("HTTPS://example.com"), "https://example.com:443");
        assert_eq!(origin("http://[::1]:8080/x"), "http://[::1]:8080");
        assert_eq!(origin("http://10.0.0.1:81"), "http://10.0.0.1:81");
    }

    #[test]
    fn what_is_no_http_url_is_an_error() {
        for url in [
            "",
            " ",
            "x",
            "/path",
            "example.com",
            "example.com:80",
            "http://",
            "http:///p",
            "http://:80/",
            "http://h:0/",
            "http://h:65536/",
            "http://h:/",
            "http://h:+80/",
            "http://a b/",
            "http://h/\n",
            "http://h/\0",
            "http://[::1",
            "http://h/ü x",
        ] {
            let error = TargetUrl::parse(url);
            assert!(
                matches!(error, Err(TargetError::Invalid(_))),
                "{url:?}: {error:?}"
            );
        }
        for url in ["ftp://h/", "file://h/x", "ws://h/", "unix://h/"] {
            assert_eq!(
                TargetUrl::parse(url).err(),
                Some(TargetError::Scheme),
                "{url}"
            );
        }
        for url in [
            "http://u@h/",
            "https://u:p@h:1/",
            "http://@h/",
            "http://a@b@h/",
        ] {
            assert!(TargetUrl::parse(url).is_err(), "{url}");
        }
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
        ] {
            assert!(listed(url, entry), "{entry}");
        }
        for entry in [
            "http://api.example.com",
            "https://api.example.com:444",
            "example.com",
            "api.example.com:80",
            "api.example.co",
            "*.api.example.com",
            "*.xample.com",
            "*.",
            "",
            "api.example.com.evil.org",
            "api.example.comü",
        ] {
            assert!(!listed(url, entry), "{entry}");
        }
    }

    #[test]
    fn a_known_target_is_not_parsed_again_and_memory_is_bounded() {
        let known = Known::default();
        let url: Arc<str> = "http://h/".into();
        let first = known.get(&url).expect("valid");
        assert!(Arc::ptr_eq(&first, &known.get(&url).expect("valid")));
        for n in 0..3 * REMEMBERED {
            known.get(&format!("http://h/{n}").into()).expect("valid");
        }
        assert!(known.by_url.read().expect("never poisoned").len() <= REMEMBERED);
    }
}
