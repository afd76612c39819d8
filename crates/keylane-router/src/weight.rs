//! The bytes of bodies a pool may hold: whoever holds some has a weight, and there is never more
//! than the budget.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// The budget of one pool.
#[derive(Debug)]
pub(crate) struct Weights {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    budget: u64,
    used: u64,
    /// First come, first served: a large one is not passed by small ones for ever.
    waiting: VecDeque<(u64, oneshot::Sender<Weight>)>,
}

impl State {
    /// Nothing is too large for an empty pool.
    fn fits(&self, bytes: u64) -> bool {
        self.used == 0 || self.used + bytes <= self.budget
    }
}

/// So many bytes of a pool's budget, given back when dropped.
#[derive(Debug)]
pub(crate) struct Weight {
    of: Arc<Weights>,
    bytes: u64,
}

impl Weights {
    pub(crate) fn new(budget: u64) -> Arc<Self> {
        let state = State {
            budget,
            used: 0,
            waiting: VecDeque::new(),
        };
        Arc::new(Self {
            state: Mutex::new(state),
        })
    }

    /// Another budget is in force; what is held stays held.
    pub(crate) fn set_budget(self: &Arc<Self>, budget: u64) {
        self.lock().budget = budget;
        self.grant();
    }

    /// Takes its place in the line at once; answers when there is room.
    pub(crate) fn take(self: &Arc<Self>, bytes: u64) -> impl Future<Output = Weight> + use<> {
        let (to, granted) = oneshot::channel();
        self.lock().waiting.push_back((bytes, to));
        self.grant();
        async move { granted.await.expect("whoever waits is granted in the end") }
    }

    /// What is there now, if there is room and nobody waits for it.
    pub(crate) fn try_take(self: &Arc<Self>, bytes: u64) -> Option<Weight> {
        let mut state = self.lock();
        if !state.waiting.is_empty() || !state.fits(bytes) {
            return None;
        }
        state.used += bytes;
        drop(state);
        Some(self.weight(bytes))
    }

    /// How many bytes are held.
    pub(crate) fn used(&self) -> u64 {
        self.lock().used
    }

    fn weight(self: &Arc<Self>, bytes: u64) -> Weight {
        Weight {
            of: self.clone(),
            bytes,
        }
    }

    fn grant(self: &Arc<Self>) {
        let mut granted = Vec::new();
        let mut state = self.lock();
        while let Some((bytes, _)) = state.waiting.front()
            && state.fits(*bytes)
        {
            let (bytes, to) = state.waiting.pop_front().expect("it is at the front");
            state.used += bytes;
            granted.push((to, bytes));
        }
        drop(state);
        for (to, bytes) in granted {
            // Who does not wait any more gives it back by dropping it.
            let _ = to.send(self.weight(bytes));
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Weight {
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes a part out of it.
    pub(crate) fn split(&mut self, bytes: u64) -> Self {
        let part = bytes.min(self.bytes);
        self.bytes -= part;
        self.of.weight(part)
    }
}

impl Drop for Weight {
    fn drop(&mut self) {
        let mut state = self.of.lock();
        state.used -= self.bytes;
        let waited_for = !state.waiting.is_empty();
        drop(state);
        if waited_for {
            self.of.grant();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn never_more_than_the_budget_and_in_turn() {
        let weights = Weights::new(10);
        let six = weights.try_take(6).unwrap();
        assert!(weights.try_take(5).is_none());
        let large = tokio::spawn(weights.take(9));
        let small = tokio::spawn(weights.take(1));
        tokio::task::yield_now().await;
        assert!(!large.is_finished() && !small.is_finished());
        drop(six);
        let large = large.await.unwrap();
        let _small = small.await.unwrap();
        assert_eq!(weights.used(), 10);
        drop(large);
        assert_eq!(weights.used(), 1);
    }

    #[tokio::test]
    async fn an_empty_pool_takes_what_is_larger_than_its_budget() {
        let weights = Weights::new(10);
        let large = weights.try_take(100).unwrap();
        assert!(weights.try_take(1).is_none());
        drop(large);
        assert!(weights.try_take(1).is_some());
    }

    #[tokio::test]
    async fn who_gives_up_waiting_is_in_nobodys_way() {
        let weights = Weights::new(10);
        let ten = weights.try_take(10).unwrap();
        drop(weights.take(10));
        let next = tokio::spawn(weights.take(3));
        drop(ten);
        let _three = next.await.unwrap();
        assert_eq!(weights.used(), 3);
    }

    #[tokio::test]
    async fn another_budget_acts_at_once() {
        let weights = Weights::new(1);
        let one = weights.try_take(1).unwrap();
        let waiting = tokio::spawn(weights.take(5));
        tokio::task::yield_now().await;
        weights.set_budget(6);
        let _five = waiting.await.unwrap();
        drop(one);
        weights.set_budget(2);
        assert!(weights.try_take(1).is_none());
    }
}
