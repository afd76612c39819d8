//! What the system tells the program: stop, or read the config again.

use std::io;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    /// SIGTERM or Ctrl-C.
    Stop,
    /// SIGHUP.
    Reload,
}

/// Catches signals from when it is made.
#[cfg(unix)]
pub(crate) struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
    hang_up: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Signals {
    pub(crate) fn catch() -> io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    /// The next one. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Signal {
        tokio::select! {
            _ = self.terminate.recv() => Signal::Stop,
            _ = self.interrupt.recv() => Signal::Stop,
            _ = self.hang_up.recv() => Signal::Reload,
        }
    }

    /// The next stop. Cancel-safe.
    pub(crate) async fn stop(&mut self) {
        while self.next().await != Signal::Stop {}
    }
}

/// Catches Ctrl-C; the config is reloaded by the API here.
#[cfg(not(unix))]
pub(crate) struct Signals;

#[cfg(not(unix))]
impl Signals {
    pub(crate) fn catch() -> io::Result<Self> {
        Ok(Self)
    }

    /// The next one. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Signal {
        match tokio::signal::ctrl_c().await {
            Ok(()) => Signal::Stop,
            Err(_) => std::future::pending().await,
        }
    }

    /// The next stop. Cancel-safe.
    pub(crate) async fn stop(&mut self) {
        while self.next().await != Signal::Stop {}
    }
}
