//! The one thread that writes: it takes all commands that wait, runs them in one transaction and
//! answers each when that is on disk. Acks alone are answered when they are committed, and synced
//! soon after (see `sync`): what a power cut takes of them is delivered again, and nothing more.
//!
//! Commit when the writer is free, no linger: under load many commands share one sync, alone a
//! command waits for nobody. Commands are run, become durable and are answered in the order in
//! which they were submitted.

use std::path::PathBuf;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rusqlite::{Connection, ErrorCode};
use tokio::sync::oneshot;

use super::acks::{self, Acked};
use super::dedup::Dedup;
use super::lock::FolderLock;
use super::schema::{self, Durability, classify};
use super::shelf::Limits;
use super::sync::Syncer;
use super::{OpenError, Queues, clock::Moment};
use crate::machine::Machine;
use crate::store::StoreError;

/// A group takes about this many bytes; what waits beyond goes into the next transaction.
const GROUP_BYTES: usize = 8 << 20;
/// With so many acks committed and not on disk, commits wait for it again.
const UNSYNCED: u64 = 8192;
/// After this long without a command, what is acked is taken out of the tables.
const IDLE: Duration = Duration::from_secs(1);

/// What a command fails with.
#[derive(Debug)]
pub(super) enum Failure {
    Sql(rusqlite::Error),
    Store(StoreError),
    /// The same id was published with another body.
    Conflict(std::sync::Arc<str>),
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sql(error)
    }
}

impl Failure {
    pub(super) fn into_store_error(self) -> StoreError {
        match self {
            Self::Sql(error) => classify(&error),
            Self::Store(error) => error,
            Self::Conflict(id) => StoreError::Unwritable(format!("id `{id}` was used before")),
        }
    }
}

/// Something to be written. `apply` may run more than once (a group that broke is run again
/// without its culprit) and changes nothing but the transaction; what is in memory follows in
/// `finish`, once it is on disk.
pub(super) trait Write: Send {
    /// About how much it writes.
    fn bytes(&self) -> usize;
    /// Whether it needs room; what only deletes is let through when the disk is full.
    fn grows(&self) -> bool;
    /// How many messages it acks, if that is all it does: then it need not wait for the disk.
    fn acks(&self) -> Option<usize> {
        None
    }
    /// When it was submitted.
    fn moment(&self) -> Moment;
    fn apply(&mut self, tx: &mut Tx<'_>) -> Result<(), Failure>;
    /// On the writer's thread, in the order of submission, after the commit or instead of it.
    fn finish(self: Box<Self>, result: Result<(), Failure>);
}

/// What a command may touch while the transaction is open.
pub(super) struct Tx<'a> {
    pub(super) sql: &'a Connection,
    pub(super) dedup: &'a mut Dedup,
    pub(super) budget: &'a mut Budget,
    next_seq: &'a mut u64,
    /// Counts what is written down as acked.
    pub(super) acked: &'a mut usize,
    /// The disk is full: what only makes room is done with as little as possible.
    pub(super) no_room: bool,
}

impl Tx<'_> {
    /// The next number of the file's one sequence. What a rollback wastes is not used again.
    pub(super) fn next_seq(&mut self) -> u64 {
        let seq = *self.next_seq;
        *self.next_seq += 1;
        seq
    }
}

/// How much the stores hold, against what they may hold.
#[derive(Debug)]
pub(super) struct Budget {
    pub(super) limit: u64,
    pub(super) used: i64,
}

impl Budget {
    /// Counts `bytes` more, or says that they are too many.
    pub(super) fn take(&mut self, bytes: i64) -> Result<(), Failure> {
        let limit = self.limit;
        if self.used.saturating_add(bytes) > i64::try_from(limit).unwrap_or(i64::MAX) {
            return Err(Failure::Store(StoreError::Full(format!(
                "dead letters and parked keys have reached store_budget ({limit} bytes); raise it, or trim or replay what is stored"
            ))));
        }
        self.used += bytes;
        Ok(())
    }

    /// What left the stores.
    pub(super) fn release(&mut self, bytes: i64) {
        self.used -= bytes;
    }
}

enum Command {
    Write(Box<dyn Write>),
    Pragma(String, oneshot::Sender<Result<(), StoreError>>),
    Close(oneshot::Sender<()>),
}

/// The submitting side. The channel is not bounded itself: each entry is one that somebody awaits,
/// so it holds at most one per publisher, settler or store call under way.
#[derive(Clone)]
pub(super) struct Writer {
    commands: mpsc::Sender<Command>,
    /// Where the writer has no thread: what it owns.
    threadless: Option<Arc<Threadless>>,
}

/// A writer that runs as work of the machine instead of on a thread of its own.
struct Threadless {
    machine: Arc<dyn Machine>,
    /// `None` once it is closed.
    state: Mutex<Option<(State, mpsc::Receiver<Command>)>>,
}

impl Threadless {
    /// Runs everything that was submitted.
    fn run_all(&self) {
        let mut place = self.state.lock().expect("no panic while writing");
        let Some((mut state, commands)) = place.take() else {
            return;
        };
        while let Ok(command) = commands.try_recv() {
            let mut next = Some(command);
            while let Some(command) = next.take() {
                let Some((again, rest)) = state.step(command, &commands) else {
                    return;
                };
                (state, next) = (again, rest);
            }
        }
        // A thread tidies up when nothing comes for a while; here chance decides.
        if state.acked > 0 && self.machine.random().is_multiple_of(8) {
            state.purge(0);
        }
        *place = Some((state, commands));
    }
}

impl Writer {
    pub(super) fn submit(&self, write: impl Write + 'static) {
        if let Err(Command::Write(write)) = self.send(Command::Write(Box::new(write))) {
            write.finish(Err(Failure::Store(StoreError::Closed)));
        }
    }

    /// Hands the command back when the writer has ended.
    fn send(&self, command: Command) -> Result<(), Command> {
        self.commands.send(command).map_err(|refused| refused.0)?;
        if let Some(threadless) = &self.threadless {
            let writer = threadless.clone();
            threadless.machine.run(Box::new(move || writer.run_all()));
        }
        Ok(())
    }

    /// Submits at once (so calls keep their order); the future answers when it is on disk. `after`
    /// runs on the writer's thread between the commit and the answer.
    pub(super) fn call<T: Send + 'static>(
        &self,
        moment: Moment,
        bytes: usize,
        grows: bool,
        work: impl FnMut(&mut Tx<'_>) -> Result<T, Failure> + Send + 'static,
        after: impl FnOnce(&T) + Send + 'static,
    ) -> Pending<T> {
        let (send, receive) = oneshot::channel();
        self.submit(Call {
            moment,
            bytes,
            grows,
            work,
            after,
            value: None,
            send,
        });
        Pending(receive)
    }

    /// For tests: sets something on the connection that writes.
    pub(super) async fn pragma(&self, pragma: String) -> Result<(), StoreError> {
        let (send, receive) = oneshot::channel();
        let _ = self.send(Command::Pragma(pragma, send));
        receive.await.unwrap_or(Err(StoreError::Closed))
    }

    /// Everything submitted before is written, the log is folded into the file, the lock released.
    pub(super) async fn close(&self) {
        let (send, receive) = oneshot::channel();
        let _ = self.send(Command::Close(send));
        // Closed already: the sender is gone, and that is what was asked for.
        let _ = receive.await;
    }
}

/// A write that was submitted. Dropped, it is written all the same.
pub(super) struct Pending<T>(oneshot::Receiver<Result<T, Failure>>);

impl<T> Pending<T> {
    pub(super) async fn durable(self) -> Result<T, StoreError> {
        // A writer that is gone has dropped the sender.
        let answer = self.0.await.map_err(|_| StoreError::Closed)?;
        answer.map_err(Failure::into_store_error)
    }
}

struct Call<T, W, A> {
    moment: Moment,
    bytes: usize,
    grows: bool,
    work: W,
    after: A,
    value: Option<T>,
    send: oneshot::Sender<Result<T, Failure>>,
}

impl<T, W, A> Write for Call<T, W, A>
where
    T: Send,
    W: FnMut(&mut Tx<'_>) -> Result<T, Failure> + Send,
    A: FnOnce(&T) + Send,
{
    fn bytes(&self) -> usize {
        self.bytes
    }

    fn grows(&self) -> bool {
        self.grows
    }

    fn moment(&self) -> Moment {
        self.moment
    }

    fn apply(&mut self, tx: &mut Tx<'_>) -> Result<(), Failure> {
        self.value = Some((self.work)(tx)?);
        Ok(())
    }

    fn finish(self: Box<Self>, result: Result<(), Failure>) {
        let Self {
            value, after, send, ..
        } = *self;
        let result = result.map(|()| value.expect("applied before it is finished"));
        if let Ok(value) = &result {
            after(value);
        }
        // Nobody listens any more: what is written stays written.
        let _ = send.send(result);
    }
}

/// What the thread owns.
pub(super) struct State {
    pub(super) file: PathBuf,
    pub(super) durability: Durability,
    /// `None` after an error that a fresh connection may cure.
    pub(super) connection: Option<Connection>,
    /// How the connection commits now.
    pub(super) commits: Durability,
    pub(super) syncer: Syncer,
    pub(super) dedup: Dedup,
    pub(super) budget: Budget,
    pub(super) next_seq: u64,
    pub(super) queues: Arc<Mutex<Queues>>,
    pub(super) limits: Limits,
    /// About how many acked rows are in the tables.
    pub(super) acked: usize,
    /// While a group is run again because the disk is full.
    pub(super) no_room: bool,
    /// Released when the thread has ended, after the last write.
    pub(super) lock: FolderLock,
    pub(super) machine: Arc<dyn Machine>,
}

impl State {
    /// Starts the thread. It ends when it is closed or the last submitter is gone.
    pub(super) fn start(self) -> Result<Writer, OpenError> {
        let (commands, receive) = mpsc::channel();
        let machine = self.machine.clone();
        if !machine.has_threads() {
            let state = Mutex::new(Some((self, receive)));
            let threadless = Some(Arc::new(Threadless { machine, state }));
            return Ok(Writer {
                commands,
                threadless,
            });
        }
        let file = self.file.clone();
        std::thread::Builder::new()
            .name("keylane-writer".into())
            .spawn(move || self.run(&receive))
            .map_err(|source| OpenError::Folder { path: file, source })?;
        Ok(Writer {
            commands,
            threadless: None,
        })
    }

    fn run(mut self, commands: &mpsc::Receiver<Command>) {
        let mut next = self.next_command(commands);
        while let Some(command) = next {
            let Some((state, rest)) = self.step(command, commands) else {
                return;
            };
            self = state;
            next = rest.or_else(|| self.next_command(commands));
        }
    }

    /// Runs a command, and with a write those that wait behind it. Returns the command that ended
    /// the group, if one did; `None` once the writer is closed.
    fn step(
        mut self,
        command: Command,
        commands: &mpsc::Receiver<Command>,
    ) -> Option<(Self, Option<Command>)> {
        match command {
            Command::Write(first) => {
                let (group, rest) = gather(first, commands);
                self.run_group(group);
                if self.acked >= self.limits.purge {
                    self.purge(self.limits.purge_later);
                }
                Some((self, rest))
            }
            Command::Pragma(pragma, answer) => {
                let _ = answer.send(self.run_pragma(&pragma));
                Some((self, None))
            }
            Command::Close(done) => {
                self.close();
                let _ = done.send(());
                None
            }
        }
    }

    /// Waits for the next command; where nothing comes for a while, tidies up first.
    fn next_command(&mut self, commands: &mpsc::Receiver<Command>) -> Option<Command> {
        if self.acked > 0 {
            match commands.recv_timeout(IDLE) {
                Err(RecvTimeoutError::Timeout) => drop(self.purge(0)),
                next => return next.ok(),
            }
        }
        commands.recv().ok()
    }

    /// Takes acked rows out of their tables, but for the furthest of each queue; answers whether
    /// there were any. What cannot be done now is done later: they are acked in any case.
    fn purge(&mut self, but: usize) -> bool {
        self.acked = 0;
        let acked = self.acked_rows(but);
        if acked.iter().all(|acked| acked.go.is_empty()) {
            return false;
        }
        match self.delete_acked(&acked) {
            Ok(deleted) => {
                for (Acked { queue, go, stay }, deleted) in acked.iter().zip(deleted) {
                    if let Some(last) = go.last() {
                        queue.shelf().purged(*last);
                    }
                    // Some were not there: somebody else has deleted them, and they were counted.
                    queue.add_depth(go.len() as i64 - deleted as i64);
                    // What stays goes when nothing comes for a while, if not before.
                    self.acked = self.acked.max(usize::from(!stay.is_empty()));
                }
                true
            }
            Err(error) => {
                self.recover(&error);
                let error = classify(&error);
                tracing::warn!(%error, "acked messages stay in keylane.db for now");
                false
            }
        }
    }

    /// What this thread has written down as acked, by queue.
    fn acked_rows(&self, but: usize) -> Vec<Acked> {
        let queues = self.queues.lock().expect("no panic while locked");
        let acked = queues.values().filter_map(|queue| {
            let mut go = queue.shelf().acked_rows();
            let stay = go.split_off(go.len().saturating_sub(but));
            let queue = queue.clone();
            (!go.is_empty() || !stay.is_empty()).then_some(Acked { queue, go, stay })
        });
        acked.collect()
    }

    fn delete_acked(&mut self, acked: &[Acked]) -> Result<Vec<usize>, rusqlite::Error> {
        self.reopen()?;
        let sql = self.connection.as_ref().expect("just reopened");
        run(sql, "BEGIN IMMEDIATE")?;
        let deleted = acks::purge(sql, acked)?;
        commit(sql, &*self.machine)?;
        Ok(deleted)
    }

    /// Runs a group until something of it is committed or all of it has failed.
    fn run_group(&mut self, mut group: Vec<Box<dyn Write>>) {
        self.no_room = false;
        while !group.is_empty() {
            match self.try_group(&mut group) {
                Ok(results) => {
                    for (write, result) in group.into_iter().zip(results) {
                        write.finish(result);
                    }
                    return;
                }
                Err(error) => group = self.after_break(group, error),
            }
        }
    }

    /// The whole transaction is undone. With the disk full, everything is tried again when acked
    /// rows have made room; then what only makes room, alone. Everything else has failed.
    fn after_break(
        &mut self,
        group: Vec<Box<dyn Write>>,
        error: rusqlite::Error,
    ) -> Vec<Box<dyn Write>> {
        let full = error.sqlite_error_code() == Some(ErrorCode::DiskFull);
        self.recover(&error);
        if full && self.purge(0) {
            return group;
        }
        let retry = full && !std::mem::replace(&mut self.no_room, full);
        let (again, failed): (Vec<_>, Vec<_>) =
            group.into_iter().partition(|write| retry && !write.grows());
        let error = classify(&error);
        tracing::warn!(%error, failed = failed.len(), "writing keylane.db failed");
        for write in failed {
            write.finish(Err(Failure::Store(error.clone())));
        }
        again
    }

    /// Makes the connection usable again, or drops it so that the next group opens a new one.
    fn recover(&mut self, error: &rusqlite::Error) {
        let Some(connection) = &self.connection else {
            return;
        };
        let undone = connection.is_autocommit() || connection.execute_batch("ROLLBACK").is_ok();
        match error.sqlite_error_code() {
            Some(ErrorCode::DiskFull) if undone => {
                // The log's own space can be used again once it is folded into the file.
                let _ = checkpoint(connection, "RESTART");
            }
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) if undone => {}
            // Plainly read-only (not: moved away, or its log): a fresh connection would be so too.
            Some(ErrorCode::ReadOnly) if undone && is_plain(error) => {}
            _ => self.connection = None,
        }
    }

    /// One transaction: each command in a savepoint of its own, so that one that fails, fails
    /// alone. An error is one that undid the whole transaction.
    fn try_group(
        &mut self,
        group: &mut [Box<dyn Write>],
    ) -> Result<Vec<Result<(), Failure>>, rusqlite::Error> {
        let mark = self.dedup.mark();
        let used = self.budget.used;
        let result = self.transact(group);
        match result {
            Ok(_) => self.dedup.committed(),
            Err(_) => {
                self.dedup.undo(mark);
                self.budget.used = used;
            }
        }
        result
    }

    fn transact(
        &mut self,
        group: &mut [Box<dyn Write>],
    ) -> Result<Vec<Result<(), Failure>>, rusqlite::Error> {
        self.reopen()?;
        self.see_to_the_log()?;
        let acks: Option<usize> = group.iter().map(|write| write.acks()).sum();
        let acks = acks.filter(|_| self.syncer.behind() < UNSYNCED);
        self.commit_as(match acks {
            Some(_) => Durability::Normal,
            None => self.durability,
        })?;
        let Self {
            connection,
            dedup,
            budget,
            next_seq,
            acked,
            no_room,
            machine,
            ..
        } = self;
        let sql: &Connection = connection.as_ref().expect("just reopened");
        let first_seq = *next_seq;
        let last_moment = group.last().expect("a group is not empty").moment();
        run(sql, "BEGIN IMMEDIATE")?;
        let mut tx = Tx {
            sql,
            dedup,
            budget,
            next_seq,
            acked,
            no_room: *no_room,
        };
        let mut results = Vec::with_capacity(group.len());
        match group {
            // What fails alone takes nobody along: no savepoint, which costs a copy of each page.
            [only] => results.push(apply_only(only.as_mut(), &mut tx)?),
            many => {
                for write in many {
                    results.push(apply_alone(write.as_mut(), &mut tx)?);
                }
            }
        }
        if *tx.next_seq != first_seq {
            sql.prepare_cached("UPDATE meta SET value = ? WHERE name = 'next_seq'")?
                .execute([*tx.next_seq as i64])?;
            tx.dedup.purge(sql, last_moment.now)?;
        }
        commit(sql, &**machine)?;
        if let Some(acks) = acks
            && self.durability == Durability::Full
        {
            self.syncer.committed(acks);
        }
        Ok(results)
    }

    /// What a failed sync left in the log may be on disk in parts: it is folded into the file before
    /// anything else is promised.
    fn see_to_the_log(&mut self) -> Result<(), rusqlite::Error> {
        if !self.syncer.has_failed() {
            return Ok(());
        }
        self.commit_as(self.durability)?;
        let connection = self.connection.as_ref().expect("just reopened");
        checkpoint(connection, "RESTART").inspect_err(|_| self.syncer.fail())
    }

    /// Whether the commits that follow wait for the disk.
    fn commit_as(&mut self, durability: Durability) -> Result<(), rusqlite::Error> {
        if self.commits != durability {
            let connection = self.connection.as_ref().expect("just reopened");
            schema::commit_as(connection, durability)?;
            self.commits = durability;
        }
        Ok(())
    }

    fn reopen(&mut self) -> Result<(), rusqlite::Error> {
        if self.connection.is_none() {
            self.connection = Some(schema::reopen_writer(&self.file, self.durability)?);
            self.commits = self.durability;
        }
        Ok(())
    }

    fn run_pragma(&mut self, pragma: &str) -> Result<(), StoreError> {
        self.reopen()
            .and_then(|()| {
                let connection = self.connection.as_ref().expect("just reopened");
                connection
                    .query_row(pragma, [], |_| Ok(()))
                    .or_else(|error| match error {
                        rusqlite::Error::QueryReturnedNoRows => Ok(()),
                        error => Err(error),
                    })
            })
            .map_err(|error| classify(&error))
    }

    fn close(mut self) {
        self.purge(0);
        if let Some(connection) = self.connection {
            if let Err(error) = checkpoint(&connection, "TRUNCATE") {
                tracing::warn!(%error, "the log could not be folded into keylane.db; the next start does it");
            }
            drop(connection);
        }
        drop(self.syncer);
        drop(self.lock);
    }
}

/// The first command and what waits behind it, up to a size; and a command that ends the group.
fn gather(
    first: Box<dyn Write>,
    commands: &mpsc::Receiver<Command>,
) -> (Vec<Box<dyn Write>>, Option<Command>) {
    let mut bytes = first.bytes();
    let mut group = vec![first];
    while bytes < GROUP_BYTES {
        match commands.try_recv() {
            Ok(Command::Write(write)) => {
                bytes += write.bytes();
                group.push(write);
            }
            Ok(other) => return (group, Some(other)),
            Err(_) => break,
        }
    }
    (group, None)
}

/// Runs one command in its savepoint. The outer error has undone the whole transaction.
fn apply_alone(
    write: &mut dyn Write,
    tx: &mut Tx<'_>,
) -> Result<Result<(), Failure>, rusqlite::Error> {
    let mark = tx.dedup.mark();
    let used = tx.budget.used;
    run(tx.sql, "SAVEPOINT one")?;
    let result = write.apply(tx);
    if let Err(failure) = &result {
        if tx.sql.is_autocommit() {
            return Err(undone_by(failure));
        }
        run(tx.sql, "ROLLBACK TO one")?;
        tx.dedup.undo(mark);
        tx.budget.used = used;
    }
    run(tx.sql, "RELEASE one")?;
    Ok(result)
}

/// Runs the one command of a transaction; if it fails, the transaction begins anew without it.
fn apply_only(
    write: &mut dyn Write,
    tx: &mut Tx<'_>,
) -> Result<Result<(), Failure>, rusqlite::Error> {
    let mark = tx.dedup.mark();
    let used = tx.budget.used;
    let result = write.apply(tx);
    if let Err(failure) = &result {
        if tx.sql.is_autocommit() {
            return Err(undone_by(failure));
        }
        run(tx.sql, "ROLLBACK")?;
        run(tx.sql, "BEGIN IMMEDIATE")?;
        tx.dedup.undo(mark);
        tx.budget.used = used;
    }
    Ok(result)
}

/// SQLite undid everything while this command ran: that is the whole group's error.
fn undone_by(failure: &Failure) -> rusqlite::Error {
    let code = match failure {
        Failure::Sql(rusqlite::Error::SqliteFailure(error, _)) => *error,
        _ => rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_ABORT),
    };
    rusqlite::Error::SqliteFailure(code, None)
}

/// Whether SQLite had nothing to add to the error's class.
fn is_plain(error: &rusqlite::Error) -> bool {
    let plain = |error: &rusqlite::ffi::Error| error.extended_code < 256;
    error.sqlite_error().is_some_and(plain)
}

fn run(sql: &Connection, statement: &str) -> Result<(), rusqlite::Error> {
    sql.prepare_cached(statement)?.execute([]).map(drop)
}

fn commit(sql: &Connection, machine: &dyn Machine) -> Result<(), rusqlite::Error> {
    if !machine.commits() {
        let aborted = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_ABORT);
        return Err(rusqlite::Error::SqliteFailure(aborted, None));
    }
    run(sql, "COMMIT")
}

fn checkpoint(connection: &Connection, mode: &str) -> Result<(), rusqlite::Error> {
    connection.query_row(&format!("PRAGMA wal_checkpoint({mode})"), [], |_| Ok(()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A writer of a fresh file in this folder, without its thread.
    fn state(folder: &std::path::Path, syncer: Option<Syncer>) -> State {
        let file = folder.join("keylane.db");
        let connection = schema::open_writer(&file, Durability::Full).expect("opens");
        let moment = Moment::of(&crate::machine::RealMachine);
        let started = || Syncer::start(&file).expect("the system gives threads");
        State {
            dedup: Dedup::load(&connection, std::time::Duration::ZERO, moment).expect("loads"),
            connection: Some(connection),
            commits: Durability::Full,
            syncer: syncer.unwrap_or_else(started),
            file,
            durability: Durability::Full,
            budget: Budget { limit: 0, used: 0 },
            next_seq: 1,
            queues: Arc::default(),
            limits: Limits::USUAL,
            acked: 0,
            no_room: false,
            lock: FolderLock::try_take(folder).expect("is free"),
            machine: Arc::new(crate::machine::RealMachine),
        }
    }

    /// Whether the connection is kept after this error.
    fn keeps_connection(code: i32) -> bool {
        let folder = tempfile::tempdir().expect("a temp folder");
        let mut state = state(folder.path(), None);
        let error = rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(code), None);
        state.recover(&error);
        state.connection.is_some()
    }

    /// A command that writes nothing to speak of and looks how it is committed.
    struct Looks {
        acks: Option<usize>,
        waits: mpsc::Sender<bool>,
    }

    impl Write for Looks {
        fn bytes(&self) -> usize {
            1
        }

        fn grows(&self) -> bool {
            self.acks.is_none()
        }

        fn acks(&self) -> Option<usize> {
            self.acks
        }

        fn moment(&self) -> Moment {
            Moment::of(&crate::machine::RealMachine)
        }

        fn apply(&mut self, tx: &mut Tx<'_>) -> Result<(), Failure> {
            acks::add(tx.sql, 1, &[1])?;
            let level: i64 = tx
                .sql
                .pragma_query_value(None, "synchronous", |row| row.get(0))?;
            // 1 is NORMAL, 2 is FULL.
            self.waits.send(level == 2).expect("the test listens");
            Ok(())
        }

        fn finish(self: Box<Self>, result: Result<(), Failure>) {
            result.expect("it can be written");
        }
    }

    /// Whether the commit of a group of these waited for the disk; those with a number are acks.
    fn waits(state: &mut State, group: &[Option<usize>]) -> bool {
        let (waits, waited) = mpsc::channel();
        let looks = |acks: &Option<usize>| {
            let (acks, waits) = (*acks, waits.clone());
            Box::new(Looks { acks, waits }) as Box<dyn Write>
        };
        state.run_group(group.iter().map(looks).collect());
        waited.recv().expect("it was committed")
    }

    #[test]
    fn only_acks_among_themselves_do_not_wait_for_the_disk() {
        let folder = tempfile::tempdir().expect("a temp folder");
        let mut state = state(folder.path(), None);
        assert!(waits(&mut state, &[None]));
        assert!(!waits(&mut state, &[Some(1), Some(2)]));
        assert!(waits(&mut state, &[Some(1), None]));
        assert!(waits(&mut state, &[None]));
    }

    #[test]
    fn acks_wait_for_the_disk_when_too_many_are_ahead_of_it() {
        let (begun, begins) = mpsc::channel();
        let (go, may_end) = mpsc::channel::<()>();
        let slow = Syncer::start_with(move || {
            begun.send(()).expect("the test listens");
            // The test has ended.
            let _ = may_end.recv();
            Ok(())
        });
        let folder = tempfile::tempdir().expect("a temp folder");
        let mut state = state(folder.path(), Some(slow.expect("starts")));
        // Dropped first: a test that fails waits for no sync.
        let go = go;
        assert!(!waits(&mut state, &[Some(UNSYNCED as usize)]));
        assert_eq!(state.syncer.behind(), UNSYNCED);
        begins.recv().expect("it is synced soon after");
        assert!(waits(&mut state, &[Some(1)]));
        drop(go);
        while state.syncer.behind() > 0 {
            std::thread::yield_now();
        }
        assert!(!waits(&mut state, &[Some(1)]));
    }

    #[test]
    fn a_log_whose_sync_failed_is_folded_into_the_file_before_anything_else() {
        let folder = tempfile::tempdir().expect("a temp folder");
        let fails = Syncer::start_with(|| Err(std::io::ErrorKind::Other.into()));
        let mut state = state(folder.path(), Some(fails.expect("starts")));
        // How many of the log's frames are in the file, as its next user would find it.
        let frames = |state: &State| {
            let sql = state.connection.as_ref().expect("it is open");
            sql.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| {
                row.get::<_, i64>(1)
            })
            .expect("it can be asked")
        };
        for _ in 0..20 {
            waits(&mut state, &[None]);
        }
        state.syncer.fail();
        waits(&mut state, &[None]);
        let after = frames(&state);
        assert!(after < 10, "{after} frames: the log goes on as it was");
        assert!(!state.syncer.has_failed());
    }

    #[test]
    fn a_file_that_moved_is_opened_anew_and_a_read_only_one_is_not() {
        assert!(keeps_connection(rusqlite::ffi::SQLITE_READONLY));
        assert!(!keeps_connection(rusqlite::ffi::SQLITE_READONLY_DBMOVED));
        assert!(!keeps_connection(rusqlite::ffi::SQLITE_IOERR));
    }
}
