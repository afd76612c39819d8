//! SQS's API as this source uses it: each call with its time limit, its errors in words.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use aws_config::BehaviorVersion;
use aws_sdk_sqs::Client;
use aws_sdk_sqs::config::retry::RetryConfig;
use aws_sdk_sqs::config::{Credentials, Region, StalledStreamProtectionConfig};
use aws_sdk_sqs::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_sqs::types::{
    ChangeMessageVisibilityBatchRequestEntry, DeleteMessageBatchRequestEntry, Message,
    MessageSystemAttributeName, QueueAttributeName,
};
use tokio::sync::OnceCell;

use super::options::Options;

/// The most entries of one call.
pub(super) const BATCH: usize = 10;

/// The client of one queue. It connects by itself, and again.
pub(super) struct Api {
    pub(super) options: Options,
    /// Made at the first call: finding the credentials may take a while.
    client: OnceCell<Client>,
    /// The queue's URL, once it is known.
    url: Mutex<Option<Arc<str>>>,
}

/// A call that did not do what it should.
#[derive(Clone, Debug)]
pub(super) struct CallError {
    /// SQS's code for it; `None` when there was no answer.
    pub(super) code: Option<String>,
    /// What went wrong.
    pub(super) text: String,
}

impl CallError {
    /// Whether SQS may have done what it was asked for without our knowing.
    pub(super) fn is_unanswered(&self) -> bool {
        self.code.is_none()
    }

    pub(super) fn is(&self, code: &str) -> bool {
        // In the older form of the codes the name of the service comes first.
        let known = |found: &str| found.rsplit('.').next() == Some(code);
        self.code.as_deref().is_some_and(known)
    }

    /// The queue is not there (any more).
    pub(super) fn no_queue(&self) -> bool {
        self.is("QueueDoesNotExist") || self.is("NonExistentQueue")
    }
}

/// What becomes of the loans of some messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// The messages are deleted.
    Delete,
    /// The loans end, or begin anew, so long from now.
    Visibility(Duration),
}

/// Each entry's result, or why the call failed for all.
pub(super) type Changed = Result<Vec<Result<(), CallError>>, CallError>;

impl Api {
    pub(super) fn new(options: Options) -> Self {
        let is_url = options.queue.contains("://");
        let url = is_url.then(|| options.queue.clone());
        Self {
            options,
            client: OnceCell::new(),
            url: Mutex::new(url),
        }
    }

    /// Waits for messages.
    pub(super) async fn receive(
        &self,
        most: usize,
        attempt: Option<&str>,
    ) -> Result<Vec<Message>, CallError> {
        let options = &self.options;
        let (wait, loan) = (
            seconds(options.wait_time),
            seconds(options.visibility_timeout),
        );
        let call = async {
            let call = self.client().await.receive_message();
            let call = call
                .queue_url(&*self.url().await?)
                .max_number_of_messages(i32::try_from(most.min(BATCH)).unwrap_or(1))
                .wait_time_seconds(wait)
                .visibility_timeout(loan)
                .set_receive_request_attempt_id(attempt.map(str::to_owned))
                .message_system_attribute_names(MessageSystemAttributeName::MessageGroupId)
                .message_system_attribute_names(MessageSystemAttributeName::SequenceNumber)
                .message_system_attribute_names(MessageSystemAttributeName::AwsTraceHeader)
                .message_attribute_names("All");
            let answer = call.send().await.map_err(|error| self.failed(&error))?;
            Ok(answer.messages.unwrap_or_default())
        };
        within(options.wait_time + options.call_timeout(), call).await
    }

    /// Changes the loans of at most ten messages.
    pub(super) async fn change(&self, handles: &[&str], change: Change) -> Changed {
        let call = async {
            match change {
                Change::Delete => self.delete(handles).await,
                Change::Visibility(time) => self.set_visibility(handles, time).await,
            }
        };
        within(self.options.call_timeout(), call).await
    }

    async fn delete(&self, handles: &[&str]) -> Changed {
        let entry = |(n, handle): (usize, &&str)| {
            let entry = DeleteMessageBatchRequestEntry::builder();
            let entry = entry.id(n.to_string()).receipt_handle(*handle);
            entry.build().expect("it has an id and a handle")
        };
        let entries = handles.iter().enumerate().map(entry).collect();
        let call = self.client().await.delete_message_batch();
        let call = call
            .queue_url(&*self.url().await?)
            .set_entries(Some(entries));
        let answer = call.send().await.map_err(|error| self.failed(&error))?;
        let good = answer.successful.iter().map(|entry| entry.id.as_str());
        let bad = answer
            .failed
            .iter()
            .map(|e| (&*e.id, &*e.code, e.message.as_deref()));
        Ok(results(handles.len(), good, bad))
    }

    async fn set_visibility(&self, handles: &[&str], time: Duration) -> Changed {
        let time = seconds(time);
        let entry = |(n, handle): (usize, &&str)| {
            let entry = ChangeMessageVisibilityBatchRequestEntry::builder();
            let entry = entry.id(n.to_string()).receipt_handle(*handle);
            let entry = entry.visibility_timeout(time);
            entry.build().expect("it has an id and a handle")
        };
        let entries = handles.iter().enumerate().map(entry).collect();
        let call = self.client().await.change_message_visibility_batch();
        let call = call
            .queue_url(&*self.url().await?)
            .set_entries(Some(entries));
        let answer = call.send().await.map_err(|error| self.failed(&error))?;
        let good = answer.successful.iter().map(|entry| entry.id.as_str());
        let bad = answer
            .failed
            .iter()
            .map(|e| (&*e.id, &*e.code, e.message.as_deref()));
        Ok(results(handles.len(), good, bad))
    }

    /// The queue's redrive policy, as SQS tells it.
    pub(super) async fn redrive_policy(&self) -> Result<Option<String>, CallError> {
        let name = QueueAttributeName::RedrivePolicy;
        let call = async {
            let call = self.client().await.get_queue_attributes();
            let call = call.queue_url(&*self.url().await?);
            let answer = call.attribute_names(name.clone()).send().await;
            let attributes = answer.map_err(|error| self.failed(&error))?.attributes;
            Ok(attributes.and_then(|mut all| all.remove(&name)))
        };
        within(self.options.call_timeout(), call).await
    }

    async fn client(&self) -> &Client {
        self.client.get_or_init(|| client(&self.options)).await
    }

    /// The queue's URL, asked for if only its name is known.
    async fn url(&self) -> Result<Arc<str>, CallError> {
        if let Some(url) = &*self.known_url() {
            return Ok(url.clone());
        }
        let call = self.client().await.get_queue_url();
        let answer = call.queue_name(&*self.options.queue).send().await;
        let answer = answer.map_err(|error| self.failed(&error))?;
        let url: Arc<str> = answer.queue_url.unwrap_or_default().into();
        *self.known_url() = Some(url.clone());
        Ok(url)
    }

    fn known_url(&self) -> std::sync::MutexGuard<'_, Option<Arc<str>>> {
        self.url.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failed<E>(&self, error: &SdkError<E>) -> CallError
    where
        E: std::error::Error + ProvideErrorMetadata + 'static,
    {
        let code = error.as_service_error().and_then(|error| error.code());
        let text = match (code, error.as_service_error().and_then(|e| e.message())) {
            (Some(code), Some(text)) => format!("{code}: {text}"),
            (Some(code), None) => code.to_owned(),
            (None, _) => chain(error),
        };
        CallError {
            // An answer that cannot be read is an answer without a code.
            code: code.map(str::to_owned),
            text: self.with_remedy(code, text),
        }
    }

    fn with_remedy(&self, code: Option<&str>, text: String) -> String {
        let queue = &self.options.queue;
        let remedy = match code
            .unwrap_or_default()
            .rsplit('.')
            .next()
            .unwrap_or_default()
        {
            "QueueDoesNotExist" | "NonExistentQueue" => {
                "create it, or mend `queue`, `region` or `endpoint_url`"
            }
            "InvalidClientTokenId"
            | "SignatureDoesNotMatch"
            | "UnrecognizedClientException"
            | "InvalidSecurity"
            | "ExpiredToken"
            | "ExpiredTokenException" => "give it valid AWS credentials",
            "AccessDenied" | "AccessDeniedException" => {
                "allow sqs:ReceiveMessage, sqs:DeleteMessage, sqs:ChangeMessageVisibility, sqs:GetQueueUrl and sqs:GetQueueAttributes on it"
            }
            _ if code.is_none() => "is SQS reachable, and are there AWS credentials and a region?",
            _ => return format!("queue `{queue}`: {text}"),
        };
        format!("queue `{queue}`: {text}; {remedy}")
    }
}

async fn client(options: &Options) -> Client {
    let mut loader = aws_config::defaults(BehaviorVersion::v2026_01_12())
        // The router tries again, and knows what.
        .retry_config(RetryConfig::disabled())
        // A poll is silent by design; each call has a time limit of its own.
        .stalled_stream_protection(StalledStreamProtectionConfig::disabled());
    if let Some(region) = &options.region {
        loader = loader.region(Region::new(region.to_string()));
    }
    if let Some(profile) = &options.profile {
        loader = loader.profile_name(&**profile);
    }
    if let Some(endpoint) = &options.endpoint_url {
        loader = loader.endpoint_url(&**endpoint);
    }
    if let Some(keys) = &options.credentials {
        let (id, secret) = (&*keys.access_key_id, &*keys.secret_access_key);
        loader = loader.credentials_provider(Credentials::new(id, secret, None, None, "keylane"));
    }
    Client::new(&loader.load().await)
}

/// An error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    let causes: Vec<String> = causes.map(ToString::to_string).collect();
    causes.join(": ")
}

async fn within<T>(
    time: Duration,
    call: impl Future<Output = Result<T, CallError>>,
) -> Result<T, CallError> {
    let ended = tokio::time::timeout(time, call).await;
    ended.unwrap_or_else(|_| {
        Err(CallError {
            code: None,
            text: format!("no answer within {time:?}"),
        })
    })
}

/// SQS counts in whole seconds: never less than asked for.
fn seconds(time: Duration) -> i32 {
    let seconds = time.as_secs() + u64::from(time.subsec_nanos() > 0);
    i32::try_from(seconds).unwrap_or(i32::MAX)
}

/// The results of a batch in the order of its entries.
fn results<'a>(
    count: usize,
    good: impl Iterator<Item = &'a str>,
    bad: impl Iterator<Item = (&'a str, &'a str, Option<&'a str>)>,
) -> Vec<Result<(), CallError>> {
    let unanswered = || {
        Err(CallError {
            code: None,
            text: "SQS's answer leaves it out".to_owned(),
        })
    };
    let mut results: Vec<Result<(), CallError>> = (0..count).map(|_| unanswered()).collect();
    let mut set = |id: &str, result| {
        if let Some(place) = id.parse().ok().and_then(|n: usize| results.get_mut(n)) {
            *place = result;
        }
    };
    good.for_each(|id| set(id, Ok(())));
    for (id, code, message) in bad {
        let text = format!("{code}: {}", message.unwrap_or_default());
        let code = Some(code.to_owned());
        set(id, Err(CallError { code, text }));
    }
    results
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rounded_up_to_seconds() {
        assert_eq!(seconds(Duration::ZERO), 0);
        assert_eq!(seconds(Duration::from_millis(1)), 1);
        assert_eq!(seconds(Duration::from_secs(30)), 30);
    }

    #[test]
    fn a_batch_has_a_result_for_each_entry_even_if_sqs_forgets_one() {
        let bad = [("2", "InternalError", Some("again"))];
        let results = results(3, ["0"].into_iter(), bad.into_iter());
        assert!(results[0].is_ok());
        assert!(results[1].as_ref().is_err_and(CallError::is_unanswered));
        assert!(results[2].as_ref().is_err_and(|e| e.is("InternalError")));
    }
}
