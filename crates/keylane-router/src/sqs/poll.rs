//! Polls of one queue: as many as there is room for, one while there is nothing to be had.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use aws_sdk_sqs::types::Message;
use tokio::task::JoinSet;

use super::api::{Api, BATCH, CallError};
use crate::lease::{BootClock, LeaseClock};

/// How often the clock is looked at in the length of a loan while a poll waits.
const LOOKS: u32 = 16;

/// Since when messages are lent at the earliest, and for how long they may lie here.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lent {
    since: Duration,
    /// The part of a loan that the router does not count on.
    reserve: Duration,
}

impl Lent {
    /// Whether the router may count a whole lease from now on.
    pub(super) fn is_fresh(&self) -> bool {
        BootClock.now().saturating_sub(self.since) <= self.reserve
    }
}

/// What a poll brought.
pub(super) type Answer = (Lent, Vec<Message>);

/// The polls under way.
pub(super) struct Polls {
    api: Arc<Api>,
    running: JoinSet<Polled>,
    /// What those may bring together.
    asked: usize,
    /// How many there should be.
    wanted: usize,
    /// Brought, and not taken yet.
    answers: VecDeque<Answer>,
    /// Receives that SQS may have answered without our hearing it: asked again by the same name,
    /// it answers the same.
    unheard: VecDeque<Attempt>,
}

/// One receive, by the name that SQS knows it by.
struct Attempt {
    id: Option<String>,
    began: Duration,
    most: usize,
}

/// A poll that has ended.
struct Polled {
    attempt: Attempt,
    lent: Lent,
    answer: Result<Vec<Message>, CallError>,
}

impl Polls {
    pub(super) fn new(api: Arc<Api>) -> Self {
        Self {
            api,
            running: JoinSet::new(),
            asked: 0,
            wanted: 1,
            answers: VecDeque::new(),
            unheard: VecDeque::new(),
        }
    }

    /// Starts as many as are wanted and have room; there is one at least afterwards.
    pub(super) fn start(&mut self, room: usize) {
        let brought: usize = self
            .answers
            .iter()
            .map(|(_, messages)| messages.len())
            .sum();
        let room = room.saturating_sub(brought);
        if brought > 0 && room == 0 {
            return;
        }
        while self.running.is_empty() || self.running.len() < self.wanted {
            let room = match self.running.is_empty() {
                true => room.max(1),
                false => room.saturating_sub(self.asked),
            };
            if room == 0 {
                return;
            }
            let attempt = self.attempt(room.min(BATCH));
            self.asked += attempt.most;
            self.running.spawn(poll(self.api.clone(), attempt));
        }
    }

    /// The next answer, or why there is none. Nothing is lost when this is dropped.
    pub(super) async fn next(&mut self) -> Result<Answer, CallError> {
        if let Some(answer) = self.answers.pop_front() {
            return Ok(answer);
        }
        let ended = self.running.join_next().await.expect("one was started");
        let answer = self.end(ended.expect("a poll does not panic"));
        if answer.is_err() {
            // The others that fail with it have nothing else to tell.
            while let Some(ended) = self.running.try_join_next() {
                let answer = self.end(ended.expect("a poll does not panic"));
                self.answers.extend(answer);
            }
        }
        answer
    }

    /// Takes note of a poll that has ended.
    fn end(&mut self, ended: Polled) -> Result<Answer, CallError> {
        self.asked -= ended.attempt.most;
        match ended.answer {
            Ok(messages) => {
                let most = self.api.options.pollers.get();
                self.wanted = match messages.is_empty() {
                    true => 1,
                    false => (self.wanted + 1).min(most),
                };
                Ok((ended.lent, messages))
            }
            Err(error) => {
                // One is enough to see when it is over.
                self.wanted = 1;
                if error.is_unanswered() && ended.attempt.id.is_some() {
                    self.unheard.push_back(ended.attempt);
                }
                Err(error)
            }
        }
    }

    /// Ends all of them; answers what they brought in the last moment.
    pub(super) async fn last_answers(&mut self, patience: Duration) -> Vec<Answer> {
        let mut answers: Vec<Answer> = self.answers.drain(..).collect();
        let waiting = async {
            while !self.running.is_empty() {
                answers.extend(self.next().await);
            }
        };
        let _ = tokio::time::timeout(patience, waiting).await;
        self.running.shutdown().await;
        answers
    }

    /// An unheard one if it fits and SQS still knows it, else a new one.
    fn attempt(&mut self, most: usize) -> Attempt {
        let now = BootClock.now();
        let known = self.api.options.visibility_timeout;
        self.unheard
            .retain(|attempt| now.saturating_sub(attempt.began) < known);
        let fits = |attempt: &Attempt| attempt.most <= most;
        if let Some(at) = self.unheard.iter().position(fits) {
            return self.unheard.remove(at).expect("it was found there");
        }
        let fifo = self.api.options.is_fifo();
        Attempt {
            id: fifo.then(|| uuid::Uuid::now_v7().to_string()),
            began: now,
            most,
        }
    }
}

/// One poll. It counts its messages as lent from the look at the clock before the last: by the last
/// one they may have been on their way to us, also if this process was stopped meanwhile.
async fn poll(api: Arc<Api>, attempt: Attempt) -> Polled {
    let loan = api.options.visibility_timeout;
    let mut since = BootClock.now();
    let answer = {
        let mut answer = std::pin::pin!(api.receive(attempt.most, attempt.id.as_deref()));
        loop {
            let looked = BootClock.now();
            tokio::select! {
                biased;
                answer = &mut answer => break answer,
                () = tokio::time::sleep(loan / LOOKS) => since = looked,
            }
        }
    };
    let reserve = loan - api.options.lease();
    Polled {
        attempt,
        lent: Lent { since, reserve },
        answer,
    }
}
