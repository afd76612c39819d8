//! Writes a history while it happens, from any number of threads.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::Event;

/// Stamps events and keeps them, in memory or in a file.
///
/// The time is taken under the lock, so that a recorder's events are in the order of their times.
#[derive(Debug)]
pub struct Recorder {
    sink: Mutex<Sink>,
}

#[derive(Debug)]
enum Sink {
    Memory(Vec<Event>),
    // Not buffered: what was recorded is there after the process was killed.
    File(File),
}

impl Recorder {
    /// Keeps the events; [`Recorder::events`] hands them out.
    pub fn in_memory() -> Self {
        Self::to(Sink::Memory(Vec::new()))
    }

    /// Appends to this file, so that a process that comes again goes on with its history.
    pub fn to_file(path: impl AsRef<Path>) -> io::Result<Self> {
        let file = File::options().create(true).append(true).open(path)?;
        Ok(Self::to(Sink::File(file)))
    }

    fn to(sink: Sink) -> Self {
        Self {
            sink: Mutex::new(sink),
        }
    }

    /// Records the event with the time of now. Only a file can fail.
    pub fn record(&self, event: Event) -> io::Result<()> {
        let mut sink = self.lock();
        let event = event.at(now());
        match &mut *sink {
            Sink::Memory(events) => events.push(event),
            Sink::File(file) => event.write_to(file)?,
        }
        Ok(())
    }

    /// What was recorded in memory so far; nothing for a file.
    pub fn events(&self) -> Vec<Event> {
        match &*self.lock() {
            Sink::Memory(events) => events.clone(),
            Sink::File(_) => Vec::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Sink> {
        // A push or a write that panicked leaves at worst an unfinished line behind.
        self.sink.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Nanoseconds of the machine's monotonic clock: the same for all processes since it was booted,
/// so that the histories of router, target and producer can be laid side by side.
#[cfg(unix)]
pub fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let part = |value: i64| u64::try_from(value).unwrap_or(0);
    #[allow(clippy::useless_conversion)] // narrower on some machines
    let (seconds, nanos) = (i64::from(time.tv_sec), i64::from(time.tv_nsec));
    part(seconds) * 1_000_000_000 + part(nanos)
}

/// Nanoseconds since the first call: histories of one process only.
#[cfg(not(unix))]
pub fn now() -> u64 {
    static ORIGIN: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    let origin = ORIGIN.get_or_init(std::time::Instant::now);
    u64::try_from(origin.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{By, EventKind, History};

    #[test]
    fn events_of_many_threads_are_in_the_order_of_their_times() {
        let recorder = Recorder::in_memory();
        std::thread::scope(|scope| {
            for key in ["a", "b", "c"] {
                let recorder = &recorder;
                scope.spawn(move || {
                    for n in 0..100 {
                        let event = Event::of(key, n, EventKind::Start, By::Target);
                        recorder.record(event).unwrap();
                    }
                });
            }
        });
        let events = recorder.events();
        assert_eq!(events.len(), 300);
        assert!(events.is_sorted_by_key(|event| event.t));
    }

    #[test]
    fn a_file_can_be_read_back_and_goes_on_where_it_ended() {
        let folder = std::env::temp_dir().join(format!("keylane-record-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("history.jsonl");
        for n in 0..2 {
            let recorder = Recorder::to_file(&path).unwrap();
            let event = Event::of("k", n, EventKind::Publish, By::Producer);
            recorder.record(event).unwrap();
        }
        let mut history = History::default();
        history.read(&std::fs::read(&path).unwrap()[..]).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(history.len(), 2);
    }
}
