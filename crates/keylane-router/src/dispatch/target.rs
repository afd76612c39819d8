//! Target URLs: what may be called at all, and whom a URL means.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, RwLock};

use http::uri::Scheme;
use http::{HeaderValue, Uri};

use super::list;
use crate::map::Map;

/// How many parsed targets are remembered. More distinct ones are parsed again: that costs a
/// microsecond, memory without bound costs more.
const REMEMBERED: usize = 1024;

/// A target URL that can be called.
#[derive(Clone, Debug)]
pub struct TargetUrl {
    uri: Uri,
    /// Path and query alone, as HTTP/1 asks for them.
    path: Uri,
    /// Host, and the port where it is not the scheme's own.
    host_header: HeaderValue,
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
        if host.starts_with('[') && bracketed(host).is_none() {
            return Err(invalid("what stands in brackets is no IPv6 address"));
        }
        let port = port(&authority[host.len()..], default_port)?;
        let host: Arc<str> = host.to_ascii_lowercase().into();
        let scheme = uri.scheme_str().unwrap_or_default();
        let origin = format!("{scheme}://{host}:{port}").into();
        let host_header = match port == default_port {
            true => HeaderValue::from_str(&host),
            false => HeaderValue::from_str(&format!("{host}:{port}")),
        };
        Ok(Self {
            path: path_of(&uri)?,
            host_header: host_header.map_err(|_| invalid("its host is no name"))?,
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

    /// The URL as HTTP/1 asks for it: path and query alone.
    pub(crate) fn path(&self) -> &Uri {
        &self.path
    }

    /// The value of `Host`.
    pub(super) fn host_header(&self) -> &HeaderValue {
        &self.host_header
    }

    /// `http` or `https`.
    pub fn scheme(&self) -> &'static str {
        if self.is_tls() { "https" } else { "http" }
    }

    pub(super) fn is_tls(&self) -> bool {
        self.uri.scheme() == Some(&Scheme::HTTPS)
    }

    /// The port, also where the URL has none.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The host in lower case, without brackets.
    pub fn host(&self) -> &str {
        let inner = self.host.strip_prefix('[');
        let inner = inner.and_then(|host| host.strip_suffix(']'));
        inner.unwrap_or(&self.host)
    }

    /// The host as names are compared.
    pub(super) fn name(&self) -> Cow<'_, str> {
        list::name_of(&self.host)
    }

    /// The address, where the host is one and not a name.
    pub fn ip(&self) -> Option<IpAddr> {
        self.host().parse().ok()
    }
}

fn bracketed(host: &str) -> Option<Ipv6Addr> {
    host.strip_prefix('[')?.strip_suffix(']')?.parse().ok()
}

/// A query without a path gets one.
fn path_of(uri: &Uri) -> Result<Uri, TargetError> {
    let text = uri.path_and_query().map_or("/", |path| path.as_str());
    let path = match text.starts_with('/') {
        true => text.parse(),
        false => format!("/{text}").parse(),
    };
    path.map_err(|_| invalid("its path cannot be sent"))
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

fn invalid(text: &'static str) -> TargetError {
    TargetError::Invalid(Cow::Borrowed(text))
}

/// Targets that were parsed already, so that a target of many messages is parsed once.
#[derive(Debug, Default)]
pub(super) struct Known {
    by_url: RwLock<Map<Arc<str>, Arc<TargetUrl>>>,
}

impl Known {
    /// Parses `url`, or finds what it was parsed to before.
    pub(super) fn get(&self, url: &str) -> Result<Arc<TargetUrl>, TargetError> {
        if let Some(known) = self.by_url.read().expect("never poisoned").get(url) {
            return Ok(known.clone());
        }
        let target = Arc::new(TargetUrl::parse(url)?);
        let mut by_url = self.by_url.write().expect("never poisoned");
        if by_url.len() >= REMEMBERED {
            // What is in use comes back by itself; an order of use would cost every lookup.
            by_url.clear();
        }
        by_url.insert(url.into(), target.clone());
        Ok(target)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(url: &str) -> String {
        TargetUrl::parse(url).expect(url).origin().to_string()
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
            "http://[]/",
            "http://[x]/",
            "http://[[::1]]/",
            "http://[fe80::1%25eth0]/",
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
    fn what_http_1_asks_for_is_path_and_query() {
        let path = |url| TargetUrl::parse(url).expect(url).path().to_string();
        assert_eq!(path("http://h"), "/");
        assert_eq!(path("http://h/a/../b?c=d#e"), "/a/../b?c=d");
        assert_eq!(path("http://h?c=d"), "/?c=d");
        assert_eq!(path("http://h//evil.example/"), "//evil.example/");
    }

    #[test]
    fn the_host_header_has_only_a_port_of_its_own() {
        let host = |url| TargetUrl::parse(url).expect(url).host_header().clone();
        assert_eq!(host("http://H:80/"), "h");
        assert_eq!(host("https://h/"), "h");
        assert_eq!(host("https://h:80/"), "h:80");
        assert_eq!(host("http://[::1]:8080/"), "[::1]:8080");
    }

    #[test]
    fn a_known_target_is_not_parsed_again_and_memory_is_bounded() {
        let known = Known::default();
        let url: Arc<str> = "http://h/".into();
        let first = known.get(&url).expect("valid");
        assert!(Arc::ptr_eq(&first, &known.get(&url).expect("valid")));
        for n in 0..3 * REMEMBERED {
            known.get(&format!("http://h/{n}")).expect("valid");
        }
        assert!(known.by_url.read().expect("never poisoned").len() <= REMEMBERED);
    }
}
