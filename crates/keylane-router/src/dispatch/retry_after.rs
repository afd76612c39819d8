//! `Retry-After`: how long a busy target asks us to wait.

use std::time::{Duration, SystemTime};

use http::HeaderMap;
use http::header::{DATE, RETRY_AFTER};

/// Longer waits are read as this one, so that no sum of times can overflow.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);

/// How long to wait by the answer's `Retry-After`, in seconds or as a date. `None` when there is
/// none that can be read.
///
/// A date is read against the answer's own `Date`, because the peer's clock may differ from ours;
/// only without one it is read against `now`. A date in the past means "at once".
pub fn read(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
        // All digits and yet no u64: larger than any.
        let seconds = text.parse().unwrap_or(u64::MAX);
        return Some(Duration::from_secs(seconds).min(LONGEST));
    }
    let until = httpdate::parse_http_date(text).ok()?;
    let since = date(headers).unwrap_or(now);
    Some(until.duration_since(since).unwrap_or_default().min(LONGEST))
}

fn date(headers: &HeaderMap) -> Option<SystemTime> {
    httpdate::parse_http_date(headers.get(DATE)?.to_str().ok()?.trim()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait(retry_after: &str, date: Option<&str>) -> Option<Duration> {
        let mut headers = HeaderMap::new();
        headers.insert(RETRY_AFTER, retry_after.parse().expect("a header value"));
        if let Some(date) = date {
            headers.insert(DATE, date.parse().expect("a header value"));
        }
        read(
            &headers,
            SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_000),
        )
    }

    #[test]
    fn seconds_are_read() {
        assert_eq!(wait("120", None), Some(Duration::from_secs(120)));
        assert_eq!(wait(" 0 ", None), Some(Duration::ZERO));
    }

    #[test]
    fn a_date_is_read_against_the_answers_own_date() {
        let wait = wait(
            "Sun, 06 Nov 1994 08:49:37 GMT",
            Some("Sun, 06 Nov 1994 08:49:00 GMT"),
        );
        assert_eq!(wait, Some(Duration::from_secs(37)));
    }

    #[test]
    fn a_date_without_date_is_read_against_our_clock() {
        // 08:49:37 is 784111777 seconds after the epoch.
        let wait = wait("Sun, 06 Nov 1994 08:49:37 GMT", None);
        assert_eq!(wait, Some(Duration::from_secs(777)));
    }

    #[test]
    fn a_date_in_the_past_means_at_once() {
        let wait = wait(
            "Sun, 06 Nov 1994 08:49:37 GMT",
            Some("Mon, 07 Nov 1994 08:49:37 GMT"),
        );
        assert_eq!(wait, Some(Duration::ZERO));
    }

    #[test]
    fn a_huge_wait_is_bounded() {
        assert_eq!(wait("99999999999999999999999999", None), Some(LONGEST));
        assert_eq!(wait("Fri, 31 Dec 9999 23:59:59 GMT", None), Some(LONGEST));
    }

    #[test]
    fn what_cannot_be_read_is_none() {
        for text in ["", "-1", "1.5", "soon", "1e3", "١٢"] {
            let mut headers = HeaderMap::new();
            let value = http::HeaderValue::from_bytes(text.as_bytes()).expect("a header value");
            headers.insert(RETRY_AFTER, value);
            assert_eq!(read(&headers, SystemTime::UNIX_EPOCH), None, "{text:?}");
        }
    }
}
