//! What the router promises, over real HTTP and real files.

#[cfg(feature = "activemq")]
mod activemq;
mod advertised;
mod bomb;
mod breaker;
mod certificate;
mod conformance;
mod dispatch;
mod docs;
#[cfg(feature = "embedded")]
mod embedded;
mod fuzz;
mod parse;
#[cfg(feature = "rabbitmq")]
mod rabbitmq;
#[cfg(feature = "embedded")]
mod router;
mod spans;
#[cfg(feature = "sqs")]
mod sqs;

/// Waits until something is so that nobody tells of. A minute is for ever here.
pub(crate) async fn eventually(so: impl Fn() -> bool) {
    let waiting = async {
        while !so() {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    };
    let waited = tokio::time::timeout(std::time::Duration::from_secs(60), waiting).await;
    assert!(waited.is_ok(), "it never came to pass");
}

/// Whether the few starts of `b` came in turn with those of `a`, who had many waiting: `a` was never
/// more than two ahead while any `b` waited, the one that ran before there was a choice included.
pub(crate) fn took_turns(starts: &str, few: usize) -> bool {
    let until_last = starts.rfind('b').map_or("", |last| &starts[..=last]);
    let in_turn = (0..until_last.len()).all(|end| {
        let b = until_last[..end].matches('b').count();
        end - b <= b + 2
    });
    in_turn && until_last.matches('b').count() == few
}
