//! The real program as a server: started on a free port, asked over HTTP, ended by signals.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use keylane_router::testing::{Event, EventKind, Target};
use rustix::process::{Pid, Signal};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Child;

use crate::http::{Answer, ask};
use crate::keylane;

/// Longer than anything takes here, also on a machine that is busy.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits for what must come.
pub(crate) async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future)
        .await
        .expect("it takes too long")
}

/// A folder with the server's data and log.
pub(crate) struct Folder(tempfile::TempDir);

impl Folder {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// With this as its config.
    pub(crate) fn with_config(text: &str) -> Self {
        let folder = Self::new();
        folder.write_config(text);
        folder
    }

    pub(crate) fn write_config(&self, text: &str) {
        std::fs::write(self.path().join("k.toml"), text).unwrap();
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// Starts the program here, with the config if there is one.
    pub(crate) fn spawn(&self, more: &[&str]) -> Starting {
        self.spawn_by(more, |command| command)
    }

    /// The same by way of another command.
    pub(crate) fn spawn_by(
        &self,
        more: &[&str],
        by: impl FnOnce(std::process::Command) -> std::process::Command,
    ) -> Starting {
        let mut args = vec!["serve", "--listen", "127.0.0.1:0", "--data", "data"];
        if self.path().join("k.toml").exists() {
            args.extend(["--config", "k.toml"]);
        }
        args.extend(more);
        let log = tempfile::NamedTempFile::new_in(self.path()).unwrap();
        let (file, log) = log.keep().unwrap();
        let mut command = by(keylane(&args, self.path()));
        command.stdout(Stdio::piped()).stderr(file);
        let child = tokio::process::Command::from(command)
            .kill_on_drop(true)
            .spawn()
            .expect("the program runs");
        Starting { child, log }
    }

    pub(crate) async fn start(&self) -> Server {
        self.spawn(&[]).listening().await
    }
}

/// The program, before it listens.
pub(crate) struct Starting {
    pub(crate) child: Child,
    log: PathBuf,
}

impl Starting {
    /// Waits for the line that says where it listens.
    pub(crate) async fn listening(mut self) -> Server {
        let stdout = self.child.stdout.take().expect("it is piped");
        let mut lines = BufReader::new(stdout).lines();
        let line = within(lines.next_line()).await.unwrap();
        let Some(line) = line else {
            panic!("it does not listen: {}", self.log());
        };
        let url = line.strip_prefix("listening on ").expect("the one line");
        Server {
            url: url.to_owned(),
            process: self,
        }
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    /// Waits until the log says this. There is no event for it: it is asked again and again.
    pub(crate) async fn logs(&self, text: &str) {
        within(async {
            while !self.log().contains(text) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    }

    pub(crate) fn signal(&self, signal: Signal) {
        rustix::process::kill_process(self.pid(), signal).unwrap();
    }

    pub(crate) fn pid(&self) -> Pid {
        let pid = self.child.id().expect("it runs");
        Pid::from_raw(i32::try_from(pid).unwrap()).unwrap()
    }

    /// Its exit code; `None` when a signal ended it.
    pub(crate) async fn ended(&mut self) -> Option<i32> {
        within(self.child.wait()).await.unwrap().code()
    }
}

/// The program, listening.
pub(crate) struct Server {
    pub(crate) url: String,
    pub(crate) process: Starting,
}

impl Server {
    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, &[], "").await
    }

    pub(crate) async fn post(&self, path: &str) -> Answer {
        self.ask("POST", path, &[], "").await
    }

    pub(crate) async fn ask(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Answer {
        let url = format!("{}{path}", self.url);
        let answer = within(ask(method, &url, headers, body.to_owned())).await;
        answer.unwrap_or_else(|| panic!("no answer: {}", self.process.log()))
    }

    /// Publishes JSON to a queue.
    pub(crate) async fn publish_to(&self, queue: &str, body: &Value) -> Answer {
        let path = format!("/api/v1/queues/{queue}/messages");
        let json = [("content-type", "application/json")];
        self.ask("POST", &path, &json, &body.to_string()).await
    }

    /// Publishes to the default queue; all must be accepted.
    pub(crate) async fn publish(&self, messages: Vec<Value>) {
        let answer = self.publish_to("default", &messages.into()).await;
        assert_eq!(answer.status, 202, "{}", answer.text());
    }

    /// Asks again and again until the answer is as wanted, where there is no event for it.
    pub(crate) async fn until(&self, path: &str, wanted: impl Fn(&Answer) -> bool) -> Answer {
        within(async {
            loop {
                let answer = self.get(path).await;
                if wanted(&answer) {
                    return answer;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await
    }

    /// Waits until nothing is left in any queue.
    pub(crate) async fn empty(&self) {
        let left = |answer: &Answer| {
            let queues = answer.json();
            let depth = |queue: &Value| queue["depth"].as_u64().unwrap();
            queues.as_array().unwrap().iter().map(depth).sum::<u64>()
        };
        self.until("/api/v1/queues", |answer| left(answer) == 0)
            .await;
    }

    /// SIGTERM, and the exit code.
    pub(crate) async fn stop(mut self) -> Option<i32> {
        self.process.signal(Signal::TERM);
        self.process.ended().await
    }

    /// kill -9.
    pub(crate) async fn kill(mut self) {
        self.process.child.kill().await.unwrap();
    }
}

/// Message `n` of a key, for a recording target.
pub(crate) fn message(target: &Target, key: &str, n: u64) -> Value {
    json!({
        "id": format!("{key}-{n}"),
        "messageGroupId": key,
        "mediationType": "HTTP",
        "mediationTarget": target.url("/hook"),
        "payload": {"k": key, "n": n},
    })
}

/// Messages 1 to `count` of a key.
pub(crate) fn messages(target: &Target, key: &str, count: u64) -> Vec<Value> {
    (1..=count).map(|n| message(target, key, n)).collect()
}

/// The numbers of a key's requests that were delivered, in their order.
pub(crate) fn delivered(events: &[Event], key: &str) -> Vec<u64> {
    let ends = events
        .iter()
        .filter(|event| event.kind == EventKind::End && event.key == key);
    ends.filter(|event| event.outcome == Some("delivered"))
        .filter_map(|event| event.number)
        .collect()
}

/// The most requests that were under way together.
pub(crate) fn most_together(events: &[Event]) -> usize {
    let (mut now, mut most) = (0_usize, 0);
    for event in events {
        match event.kind {
            EventKind::Start => now += 1,
            EventKind::End => now -= 1,
        }
        most = most.max(now);
    }
    most
}
