//! A job and its handle in one piece of memory, and who may touch what of it when.
//!
//! The crate's `unsafe` code (what implements the two traits says why it may). A task
//! with a handle is one allocation that both of them own: the task, later its result, is its *part*,
//! beside what both see at any time, which is *shared*. There is one [`JobRef`], and the part is its
//! until the result can be seen; from then on it belongs to whoever holds a [`HandleRef`]. With locks
//! and counted references from the standard library the same is two allocations and some twelve
//! atomic steps more for each task, and two thirds of the throughput
//! (`docs/decisions/0007-a-task-and-its-handle-in-one-piece.md`).

#![allow(unsafe_code)]

use std::any::Any;
use std::cell::UnsafeCell;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use crate::clock::Clock;
use crate::job::{Ending, Ran};
use crate::lanes::Time;
use crate::near;
use crate::result::Why;
use crate::rt::AtomicU64;

/// What of a job is only its own until its result can be seen.
///
/// # Safety
/// [`Part::is_new`] is not true any more once it was polled: what was polled must not be moved.
pub(crate) unsafe trait Part: Send + 'static {
    /// What its handle sees as well.
    type Shared: Shared;

    /// Whether it never ran and may still do so.
    fn is_new(&self, shared: &Self::Shared) -> bool;
    /// Runs it; panics are contained. The result stays inside until it may be seen. `before` is when the
    /// task before it ended, if that was just now; what comes next finds there when this one did.
    fn poll(
        self: Pin<&mut Self>,
        shared: &Self::Shared,
        cx: &mut Context<'_>,
        before: &mut Option<Time>,
        clock: &Clock,
    ) -> Poll<Ran>;
    /// Asks it to stop where somebody else is in the middle of it; `false` when nobody is.
    fn stops_by_itself(&self, _: &Self::Shared, _: Why) -> bool {
        false
    }
    /// It ends like this, whether or not it ran.
    fn end(self: Pin<&mut Self>, shared: &Self::Shared, ending: Ending, at: Time) -> Ran;
    /// It will not be polled or ended any more, and may not have ended.
    fn dropped(self: Pin<&mut Self>, _: &Self::Shared) {}
    /// It ended, and its result will be seen at once.
    fn before_seen(&self, _: &Self::Shared) {}
    /// Whether dropping it stops it.
    fn stops_when_dropped(&self) -> bool;
    /// The task, of a job that was never polled; there will be no result.
    fn take_task(&mut self) -> Box<dyn Any + Send>;
}

/// What a job and its handle both see.
///
/// # Safety
/// [`Shared::state`] always answers the same: none, or a state within itself that was made by
/// [`State::of_two`] for the two that [`JobRef::with_handle`] makes.
pub(crate) unsafe trait Shared: Send + Sync + 'static {
    /// Who owns it; none where that is the job alone.
    fn state(&self) -> Option<&State>;
    /// The result can be seen: tells who waits for it.
    fn seen(&self);
}

/// A part that comes to a result.
pub(crate) trait Yields<R> {
    fn take_result(self: Pin<&mut Self>) -> Option<R>;
    fn put_result(self: Pin<&mut Self>, result: R);
}

/// How many own it, and what happened to it.
pub(crate) struct State(AtomicU64);

impl State {
    /// The result can be seen: the part is no longer the job's.
    const SEEN: u64 = 1;
    /// Somebody looks at the result.
    const BUSY: u64 = 1 << 1;
    /// Somebody waits for the result.
    const WAITED: u64 = 1 << 2;
    /// Somebody wants to know before, or has to do something after the result can be seen.
    const RARE: u64 = 1 << 3;
    /// It is to stop.
    const ASKED: u64 = 1 << 4;
    /// It is being told how it ended.
    const TOLD: u64 = 1 << 5;
    const OWNER: u64 = 1 << 8;

    /// A job and its handle.
    pub(crate) fn of_two() -> Self {
        Self(AtomicU64::new(2 * Self::OWNER))
    }

    fn owners(value: u64) -> u64 {
        value / Self::OWNER
    }

    fn is(&self, flag: u64) -> bool {
        self.0.load(Ordering::Acquire) & flag != 0
    }

    pub(crate) fn is_seen(&self) -> bool {
        self.is(Self::SEEN)
    }

    /// Whether it is too late to stop it.
    pub(crate) fn is_over(&self) -> bool {
        self.is(Self::SEEN | Self::TOLD)
    }

    pub(crate) fn is_asked(&self) -> bool {
        self.is(Self::ASKED)
    }

    pub(crate) fn is_rare(&self) -> bool {
        self.is(Self::RARE)
    }

    pub(crate) fn ask(&self) {
        self.0.fetch_or(Self::ASKED, Ordering::AcqRel);
    }

    /// [`Shared::seen`] has something to do; `true` when it was too late to say so.
    pub(crate) fn be_rare(&self) -> bool {
        self.0.fetch_or(Self::RARE, Ordering::AcqRel) & Self::SEEN != 0
    }

    /// Somebody waits to be told by [`Shared::seen`]; `true` when it was too late to say so.
    pub(crate) fn be_waited_for(&self) -> bool {
        self.0.fetch_or(Self::WAITED, Ordering::AcqRel) & Self::SEEN != 0
    }

    /// One more owner.
    fn join(&self) {
        self.0.fetch_add(Self::OWNER, Ordering::Relaxed);
    }

    /// One owner less; `true` when that was the last, who has to free it.
    #[inline]
    fn leave(&self) -> bool {
        // Alone, nobody can come meanwhile.
        self.is_alone() || Self::owners(self.0.fetch_sub(Self::OWNER, Ordering::AcqRel)) == 1
    }

    #[inline]
    fn is_alone(&self) -> bool {
        Self::owners(self.0.load(Ordering::Acquire)) == 1
    }

    /// The result can be seen, and the job is no longer an owner, in one step; `false` when there is
    /// more to do than that, and nothing has changed.
    #[inline]
    fn hand_over(&self) -> bool {
        let old = self.0.load(Ordering::Relaxed);
        if old & (Self::WAITED | Self::RARE) != 0 || Self::owners(old) == 1 {
            return false;
        }
        let new = (old | Self::SEEN) - Self::OWNER;
        let (done, not) = (Ordering::AcqRel, Ordering::Relaxed);
        self.0.compare_exchange(old, new, done, not).is_ok()
    }

    /// Looks at a result that can be seen, if nobody else does.
    fn begin_look(&self) -> bool {
        let old = self.0.fetch_or(Self::BUSY, Ordering::AcqRel);
        if old & (Self::SEEN | Self::BUSY) == Self::SEEN {
            return true;
        }
        if old & Self::BUSY == 0 {
            self.end_look();
        }
        false
    }

    fn end_look(&self) {
        self.0.fetch_and(!Self::BUSY, Ordering::AcqRel);
    }
}

/// In this order: a pointer to it is one to what is shared.
#[repr(C)]
struct Joint<P: Part> {
    shared: P::Shared,
    part: UnsafeCell<P>,
}

// SAFETY: the part is behind a reference of one thread at a time: the only `JobRef`'s until the result
// can be seen, then of whoever set `BUSY` or is alone, each by steps of `State` that release and
// acquire. So it has to be `Send`, as `Part` says, and what is shared `Sync`, as `Shared` says.
unsafe impl<P: Part> Sync for Joint<P> {}

impl<P: Part> Joint<P> {
    /// # Safety
    /// The part is the caller's, as `Sync` above says, for as long as it uses the answer.
    #[expect(clippy::mut_from_ref, reason = "that is what the caller answers for")]
    unsafe fn part(&self) -> &mut P {
        // SAFETY: nobody else has a reference to it, says the caller.
        unsafe { &mut *self.part.get() }
    }

    /// # Safety
    /// As [`Self::part`].
    unsafe fn read(&self) -> &P {
        // SAFETY: nobody else writes it, says the caller.
        unsafe { &*self.part.get() }
    }

    /// # Safety
    /// As [`Self::part`].
    #[expect(clippy::mut_from_ref, reason = "as above")]
    unsafe fn pinned(&self) -> Pin<&mut P> {
        // SAFETY: it stays where it is until it is freed: it is moved only before it was ever polled
        // (`JobRef::into_task`).
        unsafe { Pin::new_unchecked(self.part()) }
    }
}

/// A [`Joint`] for its job, whatever the task.
///
/// # Safety
/// Of all methods that say `unsafe`: only by the [`JobRef`], and not once the result can be seen.
trait AnyJob: Send + Sync {
    fn state(&self) -> Option<&State>;
    fn seen(&self);
    unsafe fn is_new(&self) -> bool;
    unsafe fn poll(
        &self,
        cx: &mut Context<'_>,
        before: &mut Option<Time>,
        clock: &Clock,
    ) -> Poll<Ran>;
    unsafe fn stops_by_itself(&self, why: Why) -> bool;
    unsafe fn end(&self, ending: Ending, at: Time) -> Ran;
    unsafe fn dropped(&self);
    unsafe fn before_seen(&self);
    unsafe fn stops_when_dropped(&self) -> bool;
    unsafe fn take_task(&self) -> Box<dyn Any + Send>;
}

// SAFETY of every block in here: the part is the job's, as the methods ask for.
impl<P: Part> AnyJob for Joint<P> {
    fn state(&self) -> Option<&State> {
        self.shared.state()
    }

    fn seen(&self) {
        self.shared.seen();
    }

    unsafe fn is_new(&self) -> bool {
        unsafe { self.read() }.is_new(&self.shared)
    }

    unsafe fn poll(
        &self,
        cx: &mut Context<'_>,
        before: &mut Option<Time>,
        clock: &Clock,
    ) -> Poll<Ran> {
        unsafe { self.pinned() }.poll(&self.shared, cx, before, clock)
    }

    unsafe fn stops_by_itself(&self, why: Why) -> bool {
        unsafe { self.read() }.stops_by_itself(&self.shared, why)
    }

    unsafe fn end(&self, ending: Ending, at: Time) -> Ran {
        unsafe { self.pinned() }.end(&self.shared, ending, at)
    }

    unsafe fn dropped(&self) {
        unsafe { self.pinned() }.dropped(&self.shared);
    }

    unsafe fn before_seen(&self) {
        unsafe { self.read() }.before_seen(&self.shared);
    }

    unsafe fn stops_when_dropped(&self) -> bool {
        unsafe { self.read() }.stops_when_dropped()
    }

    unsafe fn take_task(&self) -> Box<dyn Any + Send> {
        unsafe { self.part() }.take_task()
    }
}

/// A task on its way: whoever has this may run it, and ends it. Not `Clone`: two could both run it.
pub(crate) struct JobRef(NonNull<dyn AnyJob>);

// SAFETY: `AnyJob` is `Send` and `Sync`, and that is all there is to it.
unsafe impl Send for JobRef {}

impl JobRef {
    /// A job that nobody else owns.
    #[inline]
    pub(crate) fn alone<P: Part<Shared = ()>>(part: P) -> Self {
        let part = UnsafeCell::new(part);
        Self(leak(Joint { shared: (), part }))
    }

    /// A job and its handle; `shared` counts two owners.
    #[inline(always)]
    pub(crate) fn with_handle<P, S, R>(part: P, shared: S) -> (Self, HandleRef<S, R>)
    where
        P: Part<Shared = S> + Yields<R>,
        S: Shared,
    {
        let part = UnsafeCell::new(part);
        let joint = leak(Joint { shared, part });
        (Self(joint), HandleRef(joint))
    }

    fn joint(&self) -> &dyn AnyJob {
        // SAFETY: an owner's is not freed.
        unsafe { self.0.as_ref() }
    }

    // SAFETY of what follows: this is the only `JobRef`, and `publish` consumes it.

    #[inline]
    pub(crate) fn is_new(&self) -> bool {
        unsafe { self.joint().is_new() }
    }

    /// Has it brought near, to be there when it is polled: a pointer says where it is, and waiting for
    /// one does not keep the next from being on its way.
    #[inline]
    pub(crate) fn fetch(&self) {
        let first = self.0.as_ptr().cast::<u8>();
        near::fetch(first);
        near::fetch(first.wrapping_add(64));
    }

    #[inline]
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        before: &mut Option<Time>,
        clock: &Clock,
    ) -> Poll<Ran> {
        unsafe { self.joint().poll(cx, before, clock) }
    }

    pub(crate) fn stops_by_itself(&self, why: Why) -> bool {
        unsafe { self.joint().stops_by_itself(why) }
    }

    pub(crate) fn end(&mut self, ending: Ending, at: Time) -> Ran {
        unsafe { self.joint().end(ending, at) }
    }

    #[inline]
    pub(crate) fn stops_when_dropped(&self) -> bool {
        unsafe { self.joint().stops_when_dropped() }
    }

    /// The task of a job that never ran. There will be no result.
    pub(crate) fn into_task(self) -> Box<dyn Any + Send> {
        assert!(self.is_new(), "what was polled stays where it is");
        unsafe { self.joint().take_task() }
    }

    /// Whether its handle asked it to stop.
    pub(crate) fn is_asked(&self) -> bool {
        self.joint().state().is_some_and(State::is_asked)
    }

    /// It ended, and its permits are free: its result may be seen.
    #[inline]
    pub(crate) fn publish(self) {
        let Some(state) = self.joint().state() else {
            return;
        };
        if state.hand_over() {
            // No owner any more.
            let _ = ManuallyDrop::new(self);
            return;
        }
        self.let_see(state);
    }

    fn let_see(&self, state: &State) {
        if state.is_rare() && !state.is_over() {
            state.0.fetch_or(State::TOLD, Ordering::AcqRel);
            // SAFETY: the part is still the job's.
            unsafe { self.joint().before_seen() };
        }
        state.0.fetch_or(State::SEEN, Ordering::AcqRel);
        self.joint().seen();
    }
}

impl Drop for JobRef {
    // Most jobs do not end here: the code around them is smaller without this.
    #[inline(never)]
    fn drop(&mut self) {
        let Some(state) = self.joint().state() else {
            // SAFETY: the only owner goes.
            return drop(unsafe { Box::from_raw(self.0.as_ptr()) });
        };
        if !state.is_seen() {
            // SAFETY: the part is still the job's.
            unsafe { self.joint().dropped() };
            self.let_see(state);
        }
        // SAFETY: an owner goes.
        unsafe { leave(self.0, state) };
    }
}

/// A [`Joint`] for its handle, whatever the task: `R` is its result.
trait AnyHandle<S, R>: Send + Sync {
    /// # Safety
    /// The result can be seen, and nobody else looks at it.
    unsafe fn take_result(&self) -> Option<R>;
    /// # Safety
    /// As [`Self::take_result`].
    unsafe fn put_result(&self, result: R);
}

// SAFETY of every block in here: the part is the caller's, as the methods ask for.
impl<P, R> AnyHandle<P::Shared, R> for Joint<P>
where
    P: Part + Yields<R>,
{
    unsafe fn take_result(&self) -> Option<R> {
        unsafe { self.pinned() }.take_result()
    }

    unsafe fn put_result(&self, result: R) {
        unsafe { self.pinned() }.put_result(result);
    }
}

/// Sees what a job shares, and its result once that can be seen.
pub(crate) struct HandleRef<S: Shared, R>(NonNull<dyn AnyHandle<S, R>>);

// SAFETY: `AnyHandle` is `Send` and `Sync`; a result that comes or goes is a part's, which is `Send`.
unsafe impl<S: Shared, R> Send for HandleRef<S, R> {}
// SAFETY: as above, and no two look at a result at once.
unsafe impl<S: Shared, R> Sync for HandleRef<S, R> {}

impl<S: Shared, R> HandleRef<S, R> {
    fn joint(&self) -> &dyn AnyHandle<S, R> {
        // SAFETY: an owner's is not freed.
        unsafe { self.0.as_ref() }
    }

    #[inline]
    fn shared(&self) -> &S {
        // SAFETY: as above; what is shared comes first in a `Joint`, and nothing else is an `AnyHandle`.
        unsafe { self.0.cast::<S>().as_ref() }
    }

    #[inline]
    fn state(&self) -> &State {
        let state = self.shared().state();
        state.expect("what has a handle counts its owners")
    }

    /// Takes the result, where the job is gone and there is no other handle: that costs nothing.
    #[inline]
    pub(crate) fn take_alone(&mut self) -> Option<R> {
        if !self.state().is_alone() {
            return None;
        }
        // SAFETY: the job was an owner until its result could be seen, and nobody can become one now.
        unsafe { self.joint().take_result() }
    }

    /// Takes the result, if it can be seen and is there.
    pub(crate) fn take_result(&self) -> Option<R> {
        // SAFETY: it is looked at by nobody else.
        self.look(|joint| unsafe { joint.take_result() }).flatten()
    }

    /// Puts a result back that was taken.
    pub(crate) fn put_result(&self, result: R) {
        // SAFETY: as above.
        let put = self.look(|joint| unsafe { joint.put_result(result) });
        debug_assert!(put.is_some(), "who looks at results keeps others away");
    }

    /// Nobody finds a result that somebody looks at: who wants to wait for it then holds a lock of the
    /// shared part, as whoever looks does.
    fn look<A>(&self, with: impl FnOnce(&dyn AnyHandle<S, R>) -> A) -> Option<A> {
        let state = self.state();
        let answer = state.begin_look().then(|| with(self.joint()))?;
        state.end_look();
        Some(answer)
    }
}

impl<S: Shared, R> Deref for HandleRef<S, R> {
    type Target = S;

    #[inline]
    fn deref(&self) -> &S {
        self.shared()
    }
}

impl<S: Shared, R> Clone for HandleRef<S, R> {
    fn clone(&self) -> Self {
        self.state().join();
        Self(self.0)
    }
}

impl<S: Shared, R> Drop for HandleRef<S, R> {
    fn drop(&mut self) {
        // SAFETY: an owner goes.
        unsafe { leave(self.0, self.state()) };
    }
}

#[inline(always)]
fn leak<T>(value: T) -> NonNull<T> {
    NonNull::from(Box::leak(Box::new(value)))
}

/// An owner goes; the last one frees it.
///
/// # Safety
/// `joint` came of [`leak`], `state` is its own, and neither is used by this owner again.
unsafe fn leave<T: ?Sized>(joint: NonNull<T>, state: *const State) {
    // SAFETY: it is there until this owner has left. The answer tells without it whether it was the last.
    if unsafe { (*state).leave() } {
        // SAFETY: nobody else is left.
        drop(unsafe { Box::from_raw(joint.as_ptr()) });
    }
}
