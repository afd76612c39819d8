//! What an SQS source is told: which queue, where, and how it is read.

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use super::api::BATCH;
use super::{FIFO, OptionsError, STANDARD};
use crate::source::{Features, Order};

/// Polls at once if nothing is said.
pub(super) const POLLERS: usize = 4;

/// SQS's longest poll.
const LONGEST_WAIT: Duration = Duration::from_secs(20);
/// SQS's longest loan, renewals included.
pub(super) const LONGEST_LOAN: Duration = Duration::from_secs(12 * 3600);
/// Loans are counted in whole seconds, and a quarter of one is kept in reserve.
const SHORTEST_LOAN: Duration = Duration::from_secs(2);

/// Which queue is read and how.
#[derive(Clone, PartialEq, Eq)]
pub struct Options {
    /// The queue's URL, or its name. A FIFO queue's ends in `.fifo`.
    pub queue: Arc<str>,
    /// Where SQS is; `None` = by region, as for every AWS client.
    pub endpoint_url: Option<Arc<str>>,
    /// The region; `None` = from environment, profile or machine.
    pub region: Option<Arc<str>>,
    /// The profile of the AWS files; `None` = as the environment says.
    pub profile: Option<Arc<str>>,
    /// Keys of its own; `None` = the usual chain (environment, profile, SSO, container, machine).
    pub credentials: Option<Credentials>,
    /// How long a message is ours without renewal. Whole seconds.
    pub visibility_timeout: Duration,
    /// How long a poll waits for a message. Whole seconds.
    pub wait_time: Duration,
    /// The most polls at once.
    pub pollers: NonZeroUsize,
    /// What a standard queue's group id is.
    pub key: KeyFrom,
    /// The queue may have a redrive policy although it is ordered.
    pub accept_redrive: bool,
}

/// An access key and its secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// The public part.
    pub access_key_id: Arc<str>,
    /// The secret part.
    pub secret_access_key: Arc<str>,
}

/// What the group id of a standard queue's message means. That of a FIFO queue is the key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeyFrom {
    /// The tenant: messages run side by side, and groups take turns.
    #[default]
    None,
    /// The key: lanes in the order of arrival, which SQS does not promise to be the order of
    /// sending.
    GroupId,
}

impl Options {
    /// The queue of this URL or name with default settings.
    pub fn new(queue: impl Into<Arc<str>>) -> Self {
        Self {
            queue: queue.into(),
            endpoint_url: None,
            region: None,
            profile: None,
            credentials: None,
            visibility_timeout: Duration::from_secs(30),
            wait_time: LONGEST_WAIT,
            pollers: NonZeroUsize::new(POLLERS).expect("not zero"),
            key: KeyFrom::None,
            accept_redrive: false,
        }
    }

    /// The queue's name, also where its URL was given, which ends in it.
    pub fn queue_name(&self) -> &str {
        self.queue.rsplit('/').next().unwrap_or(&self.queue)
    }

    /// Whether the queue is a FIFO queue: SQS tells them by their names.
    pub fn is_fifo(&self) -> bool {
        self.queue.ends_with(".fifo")
    }

    /// What a source with these promises.
    pub fn features(&self) -> Features {
        let (features, order) = match (self.is_fifo(), self.key) {
            (true, _) => (FIFO.features, Order::Kept),
            (false, KeyFrom::GroupId) => (STANDARD.features, Order::AsItComes),
            (false, KeyFrom::None) => (STANDARD.features, Order::NoKeys),
        };
        let lease = Some(self.lease());
        Features {
            order,
            lease,
            // As many calls as there are polls, all of them full.
            settles: self.pollers.get().saturating_mul(BATCH),
            ..features
        }
    }

    /// Everything that is wrong with these.
    pub fn problems(&self) -> Vec<OptionsError> {
        let mut problems = Vec::new();
        let mut wrong = |option, text: String| problems.push(OptionsError { option, text });
        if self.queue.is_empty() {
            wrong("queue", "it is empty; give the queue's URL or name".into());
        }
        if self.is_fifo() && self.key == KeyFrom::GroupId {
            let text = "it is for standard queues; a FIFO queue's group id is the key anyway";
            wrong("key", text.into());
        }
        let (loan, wait) = (self.visibility_timeout, self.wait_time);
        if loan.subsec_nanos() > 0 || !(SHORTEST_LOAN..=LONGEST_LOAN / 2).contains(&loan) {
            let text = format!("{loan:?} is not between 2 seconds and 6 hours in whole seconds");
            wrong("visibility_timeout", text);
        }
        // Without a wait, polls of an empty queue would follow each other as fast as SQS answers.
        if wait.subsec_nanos() > 0 || wait.is_zero() || wait > LONGEST_WAIT {
            let text = format!("{wait:?} is not between 1 and 20 seconds in whole seconds");
            wrong("wait_time", text);
        } else if wait > loan / 4 * 3 {
            let text = format!(
                "{wait:?} is more than three quarters of visibility_timeout ({loan:?}); make that longer or this shorter"
            );
            wrong("wait_time", text);
        }
        problems
    }

    /// How long a loan counts here. The rest is in reserve for what happens between SQS and us.
    pub(super) fn lease(&self) -> Duration {
        self.visibility_timeout / 4 * 3
    }

    /// No call takes longer, what a poll waits for messages not counted.
    pub(super) fn call_timeout(&self) -> Duration {
        (self.visibility_timeout / 4).min(Duration::from_secs(10))
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("queue", &self.queue)
            .field("endpoint_url", &self.endpoint_url)
            .field("region", &self.region)
            .field("profile", &self.profile)
            .field("credentials", &self.credentials)
            .field("visibility_timeout", &self.visibility_timeout)
            .field("wait_time", &self.wait_time)
            .field("pollers", &self.pollers)
            .field("key", &self.key)
            .field("accept_redrive", &self.accept_redrive)
            .finish()
    }
}

// By hand: one half is a secret.
impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credentials({}, ***)", self.access_key_id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(change: impl FnOnce(&mut Options)) -> Vec<&'static str> {
        let mut options = Options::new("q");
        change(&mut options);
        let problems = options.problems();
        problems.iter().map(|problem| problem.option).collect()
    }

    #[test]
    fn the_defaults_are_right() {
        assert!(Options::new("q.fifo").problems().is_empty());
        assert!(Options::new("https://sqs/1/q").problems().is_empty());
    }

    #[test]
    fn every_wrong_option_is_named() {
        assert_eq!(wrong(|o| o.queue = "".into()), ["queue"]);
        let seconds = Duration::from_secs;
        assert_eq!(wrong(|o| o.wait_time = seconds(21)), ["wait_time"]);
        assert_eq!(wrong(|o| o.wait_time = Duration::ZERO), ["wait_time"]);
        assert_eq!(
            wrong(|o| o.visibility_timeout = Duration::from_millis(40_500)),
            ["visibility_timeout"]
        );
        assert_eq!(
            wrong(|o| o.visibility_timeout = seconds(1)),
            ["visibility_timeout", "wait_time"]
        );
        assert_eq!(wrong(|o| o.visibility_timeout = seconds(20)), ["wait_time"]);
        let by_group = |o: &mut Options| (o.queue, o.key) = ("q.fifo".into(), KeyFrom::GroupId);
        assert_eq!(wrong(by_group), ["key"]);
    }

    #[test]
    fn a_queue_has_a_name_whether_its_url_or_its_name_was_given() {
        let name = |queue: &str| Options::new(queue).queue_name().to_owned();
        assert_eq!(name("orders.fifo"), "orders.fifo");
        let url = "https://sqs.eu-central-1.amazonaws.com/123456789012/orders";
        assert_eq!(name(url), "orders");
    }

    #[test]
    fn secrets_are_not_shown() {
        let mut options = Options::new("q");
        options.credentials = Some(Credentials {
            access_key_id: "AKIA1".into(),
            secret_access_key: "hush".into(),
        });
        let shown = format!("{options:?}");
        assert!(
            shown.contains("AKIA1") && !shown.contains("hush"),
            "{shown}"
        );
    }
}
