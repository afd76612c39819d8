//! Deletes, renews and gives back what an SQS source handed out, ten at a time.

use std::collections::{HashMap, VecDeque};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use super::api::{Api, BATCH, CallError, Change, Changed};
use super::options::LONGEST_LOAN;
use crate::message::Key;
use crate::source::{SettleError, Settler};

/// What settles one message: the handle of this loan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt {
    pub(super) handle: Arc<str>,
    /// Whose order deletes must keep.
    pub(super) key: Option<Key>,
}

/// Settles what an [`SqsSource`](super::SqsSource) handed out.
#[derive(Clone)]
pub struct SqsSettler {
    pub(super) api: Arc<Api>,
}

/// What SQS says when a message would be out for more than 12 hours in all.
const BEYOND: &str = "beyond the limit";

type Results = Vec<Result<(), SettleError>>;

impl SqsSettler {
    /// Makes this change to all of them, several calls at once. What `lines` has in one line is
    /// changed one after the other, and not before the one ahead of it was.
    async fn change(&self, receipts: Vec<Receipt>, mut lines: Lines, change: Change) -> Results {
        let mut results: Vec<Option<Result<(), SettleError>>> = vec![None; receipts.len()];
        let receipts: Arc<[Receipt]> = receipts.into();
        let mut calls = JoinSet::new();
        let most = self.api.options.pollers.get();
        loop {
            while calls.len() < most {
                let heads = lines.heads(BATCH);
                if heads.is_empty() {
                    break;
                }
                let (api, receipts) = (self.api.clone(), receipts.clone());
                calls.spawn(async move {
                    let handles: Vec<&str> = heads.iter().map(|n| &*receipts[*n].handle).collect();
                    let changed = api.change(&handles, change).await;
                    (heads, changed)
                });
            }
            let Some(ended) = calls.join_next().await else {
                break;
            };
            let (heads, changed) = ended.expect("a call does not panic");
            for (head, result) in heads.iter().zip(each(changed, heads.len())) {
                let stays = matches!(result, Err(SettleError::Again(_)));
                results[*head] = Some(result);
                if !stays {
                    lines.done(*head);
                }
            }
        }
        let behind = || SettleError::Again("an earlier one of its key is not deleted yet".into());
        let results = results.into_iter();
        results
            .map(|result| result.unwrap_or_else(|| Err(behind())))
            .collect()
    }
}

impl Settler for SqsSettler {
    type Receipt = Receipt;

    async fn ack(&self, receipts: Vec<Receipt>) -> Results {
        let lines = Lines::by_key(&receipts);
        self.change(receipts, lines, Change::Delete).await
    }

    // In any order: SQS hands out nothing of a group before all of it is back.
    async fn give_back(&self, receipts: Vec<Receipt>, delay: Duration) -> Results {
        let lines = Lines::of_one(receipts.len());
        let delay = Change::Visibility(delay.min(LONGEST_LOAN));
        let mut results = self.change(receipts, lines, delay).await;
        for result in &mut results {
            if let Err(SettleError::Again(text)) = result
                && text.contains(BEYOND)
            {
                // Not for so long: then it goes back when its loan ends.
                *result = Err(SettleError::Lost(std::mem::take(text)));
            }
        }
        results
    }

    fn batch(&self) -> NonZeroUsize {
        NonZeroUsize::new(BATCH).expect("not zero")
    }

    async fn reject(&self, receipts: Vec<Receipt>) -> Results {
        let none = |_| Err(SettleError::Lost("there is no dead letter here".to_owned()));
        receipts.into_iter().map(none).collect()
    }

    async fn renew(&self, receipts: Vec<Receipt>) -> Results {
        let lines = Lines::of_one(receipts.len());
        let anew = Change::Visibility(self.api.options.visibility_timeout);
        self.change(receipts, lines, anew).await
    }
}

/// The results of a call's entries as the router knows them.
fn each(changed: Changed, count: usize) -> Results {
    match changed {
        Ok(results) => results
            .into_iter()
            .map(|result| result.map_err(settle_error))
            .collect(),
        Err(error) => vec![Err(settle_error(error)); count],
    }
}

/// A handle that is over is that of a message which is no longer ours; everything else may be
/// tried again.
fn settle_error(error: CallError) -> SettleError {
    let expired = error.is("InvalidParameterValue") && error.text.contains("expired");
    let over = error.is("ReceiptHandleIsInvalid") || error.is("MessageNotInflight") || expired;
    match over || error.no_queue() {
        true => SettleError::Lost(error.text),
        false => SettleError::Again(error.text),
    }
}

/// Who is next to be settled: of each line the first, lines in turn.
struct Lines {
    /// The first of each line that may be sent now.
    ready: VecDeque<usize>,
    /// Those behind each, by who is ahead of them.
    behind: HashMap<usize, usize>,
}

impl Lines {
    /// Everybody is first.
    fn of_one(count: usize) -> Self {
        Self {
            ready: (0..count).collect(),
            behind: HashMap::new(),
        }
    }

    /// Those of a key in one line.
    fn by_key(receipts: &[Receipt]) -> Self {
        let mut lines = Self::of_one(0);
        let mut last: HashMap<&Key, usize> = HashMap::new();
        for (n, receipt) in receipts.iter().enumerate() {
            let ahead = receipt.key.as_ref().and_then(|key| last.insert(key, n));
            match ahead {
                Some(ahead) => drop(lines.behind.insert(ahead, n)),
                None => lines.ready.push_back(n),
            }
        }
        lines
    }

    /// At most so many that may be sent now.
    fn heads(&mut self, most: usize) -> Vec<usize> {
        self.ready.drain(..most.min(self.ready.len())).collect()
    }

    /// This one is settled: whoever is behind it may be.
    fn done(&mut self, n: usize) {
        self.ready.extend(self.behind.remove(&n));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receipt(key: Option<&str>) -> Receipt {
        Receipt {
            handle: "h".into(),
            key: key.map(Key::from),
        }
    }

    #[test]
    fn a_key_is_settled_one_after_the_other_and_keys_side_by_side() {
        let receipts = [Some("a"), Some("a"), Some("b"), None, None, Some("a")].map(receipt);
        let mut lines = Lines::by_key(&receipts);
        assert_eq!(lines.heads(10), [0, 2, 3, 4]);
        assert!(lines.heads(10).is_empty());
        lines.done(2);
        assert!(lines.heads(10).is_empty());
        lines.done(0);
        assert_eq!(lines.heads(10), [1]);
        // Not deleted: what is behind it waits.
        assert!(lines.heads(10).is_empty());
    }

    #[test]
    fn handles_that_are_over_are_lost_and_everything_else_is_tried_again() {
        let judged = |code: Option<&str>, text: &str| {
            settle_error(CallError {
                code: code.map(str::to_owned),
                text: text.to_owned(),
            })
        };
        let expired = "Value x for parameter ReceiptHandle is invalid. Reason: The receipt handle has expired.";
        for (code, text) in [
            ("ReceiptHandleIsInvalid", ""),
            ("InvalidParameterValue", expired),
            ("AWS.SimpleQueueService.MessageNotInflight", ""),
            ("AWS.SimpleQueueService.NonExistentQueue", ""),
        ] {
            let judged = judged(Some(code), text);
            assert!(matches!(judged, SettleError::Lost(_)), "{code}");
        }
        for code in [Some("InternalError"), Some("RequestThrottled"), None] {
            let judged = judged(code, "");
            assert!(matches!(judged, SettleError::Again(_)), "{code:?}");
        }
        let beyond = "Total VisibilityTimeout for the message is beyond the limit [43200 seconds]";
        let judged = judged(Some("InvalidParameterValue"), beyond);
        assert!(matches!(judged, SettleError::Again(_)));
    }
}
