//! The target of the measurements, a process of its own: answers 200, at once or after a while,
//! and checks that each key's messages come in order, none twice and none left out.
//!
//! It is told what to do by lines of JSON and ends when nobody is left to tell it anything.

use std::io::{BufRead, BufReader, Write};
use std::pin::Pin;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use keylane_router::history;
use keylane_router::testing::{self, Answer, Behaviour, Event, EventKind, Recorder, Request};
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;

use super::alarm::Alarm;
use super::{Result, machine};

/// What the target is to do from now on.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Setting {
    /// Waits so long before it answers.
    pub(super) delay: Duration,
    /// Keys are `k0` to one less than this.
    pub(super) keys: usize,
    /// Writes down when each request came and was answered.
    pub(super) timed: bool,
}

#[derive(Serialize, Deserialize)]
enum Order {
    Begin(Setting),
    Report,
}

/// What came since the last setting.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Seen {
    pub(super) requests: u64,
    /// Messages that were not the next one of their key, or came before the one in front of them
    /// was answered.
    pub(super) violations: u64,
    pub(super) cpu: Duration,
    pub(super) arrivals: Vec<Arrival>,
}

/// One request, in nanoseconds of [`history::now`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Arrival {
    pub(super) key: usize,
    pub(super) number: u64,
    pub(super) came: u64,
    /// 0 while it is being answered.
    pub(super) answered: u64,
}

/// The target's process, ended when this is dropped.
pub(super) struct Target {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
    pub(super) url: String,
}

impl Target {
    pub(super) fn start() -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["bench", "target"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let orders = child.stdin.take().expect("piped");
        let mut answers = BufReader::new(child.stdout.take().expect("piped"));
        let mut url = String::new();
        answers.read_line(&mut url)?;
        Ok(Self {
            child,
            orders,
            answers,
            url: url.trim().to_owned(),
        })
    }

    /// Begins anew: nothing seen, every key at its first number.
    pub(super) fn begin(&mut self, setting: Setting) -> Result<()> {
        self.ask(&Order::Begin(setting)).map(drop)
    }

    pub(super) fn seen(&mut self) -> Result<Seen> {
        self.ask(&Order::Report)
    }

    fn ask(&mut self, order: &Order) -> Result<Seen> {
        let mut line = serde_json::to_string(order)?;
        line.push('\n');
        self.orders.write_all(line.as_bytes())?;
        self.orders.flush()?;
        let mut answer = String::new();
        self.answers.read_line(&mut answer)?;
        Ok(serde_json::from_str(&answer)?)
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // It may have ended by itself; it is gone in any case.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The target itself.
pub(super) async fn serve() {
    let listener = TcpListener::bind("127.0.0.1:0")
        .await
        .expect("loopback has a free port");
    let address = listener.local_addr().expect("bound");
    println!("http://{address}/hook");
    let watch = Arc::new(Watch::default());
    let orders = watch.clone();
    std::thread::spawn(move || {
        for line in std::io::stdin().lines() {
            let Ok(line) = line else { break };
            let order = serde_json::from_str(&line).expect("an order of ours");
            let seen = orders.follow(order);
            println!("{}", serde_json::to_string(&seen).expect("plain data"));
        }
        std::process::exit(0);
    });
    let behaviour = Timely {
        watch: watch.clone(),
        alarm: Alarm::start(),
    };
    testing::run(listener, behaviour, watch, std::future::pending()).await;
}

/// Answers exactly when it should: what it takes too long would count as the router's.
struct Timely {
    watch: Arc<Watch>,
    alarm: Alarm,
}

impl Behaviour for Timely {
    fn answer(&self, request: &Request) -> Answer {
        self.watch.answer(request)
    }

    fn wait(&self, until: tokio::time::Instant) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(self.alarm.at(until.into_std()))
    }
}

/// What the target knows.
#[derive(Default)]
struct Watch {
    timed: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    setting: Setting,
    seen: Seen,
    cpu_before: Duration,
    /// By key: the number that comes next.
    next: Vec<u64>,
    /// By key: the arrival that is being answered.
    open: Vec<Option<usize>>,
}

impl Watch {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn follow(&self, order: Order) -> Seen {
        let mut state = self.lock();
        match order {
            Order::Begin(setting) => {
                self.timed.store(setting.timed, Ordering::Relaxed);
                *state = State {
                    setting,
                    seen: Seen::default(),
                    cpu_before: machine::cpu(),
                    next: vec![1; setting.keys],
                    open: vec![None; setting.keys],
                };
                Seen::default()
            }
            Order::Report => Seen {
                cpu: machine::cpu().saturating_sub(state.cpu_before),
                arrivals: state.seen.arrivals.clone(),
                ..state.seen
            },
        }
    }

    fn answer(&self, request: &Request) -> Answer {
        let mut state = self.lock();
        state.seen.requests += 1;
        // The bare clients' requests have no number.
        if let Some((key, number)) = place(request).filter(|(_, number)| *number > 0) {
            state.check(key, number);
        }
        let delay = state.setting.delay;
        drop(state);
        match delay.is_zero() {
            true => Answer::ok(),
            false => Answer::ok().after(delay),
        }
    }
}

impl State {
    fn check(&mut self, key: usize, number: u64) {
        let Some(next) = self.next.get_mut(key) else {
            self.seen.violations += 1;
            return;
        };
        if *next != number {
            self.seen.violations += 1;
        }
        *next = number + 1;
    }

    fn came(&mut self, key: usize, number: u64) {
        if self.open[key].is_some() {
            self.seen.violations += 1;
        }
        self.open[key] = Some(self.seen.arrivals.len());
        self.seen.arrivals.push(Arrival {
            key,
            number,
            came: history::now(),
            answered: 0,
        });
    }

    fn answered(&mut self, key: usize) {
        if let Some(at) = self.open[key].take() {
            self.seen.arrivals[at].answered = history::now();
        }
    }
}

impl Recorder for Watch {
    fn wanted(&self) -> bool {
        self.timed.load(Ordering::Relaxed)
    }

    fn record(&self, event: Event, request: &Request) {
        let mut state = self.lock();
        let Some((key, number)) = place(request).filter(|(key, _)| *key < state.open.len()) else {
            return;
        };
        match event.kind {
            EventKind::Start => state.came(key, number),
            EventKind::End => state.answered(key),
        }
    }
}

/// The key's and the message's number: `keylane-key: k7` and a body that begins with `{"n":12,`.
fn place(request: &Request) -> Option<(usize, u64)> {
    let key = request.headers.get("keylane-key")?.to_str().ok()?;
    let key = key.strip_prefix('k')?.parse().ok()?;
    let digits = request.body.strip_prefix(b"{\"n\":")?;
    let end = digits.iter().position(|byte| !byte.is_ascii_digit())?;
    let number = std::str::from_utf8(&digits[..end]).ok()?.parse().ok()?;
    Some((key, number))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(keys: usize) -> State {
        State {
            next: vec![1; keys],
            open: vec![None; keys],
            ..State::default()
        }
    }

    #[test]
    fn what_is_overtaken_left_out_or_repeated_is_a_violation() {
        let seen = |numbers: &[u64]| {
            let mut state = state(1);
            numbers.iter().for_each(|number| state.check(0, *number));
            state.seen.violations
        };
        assert_eq!(seen(&[1, 2, 3]), 0);
        assert_eq!(seen(&[1, 3]), 1);
        assert_eq!(seen(&[1, 1, 2]), 1);
        assert!(seen(&[2, 1]) > 0);
    }

    #[test]
    fn what_comes_before_the_one_in_front_is_answered_is_a_violation() {
        let mut state = state(2);
        state.came(0, 1);
        state.came(1, 1);
        state.answered(0);
        state.came(0, 2);
        assert_eq!(state.seen.violations, 0);
        state.came(0, 3);
        assert_eq!(state.seen.violations, 1);
    }
}
