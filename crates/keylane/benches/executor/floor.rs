//! The floor: `tokio::spawn` and one async mutex per key in a concurrent map. It keeps no order,
//! has no limits and never forgets a key.

use std::collections::HashMap;
use std::future::Future;
use std::hash::BuildHasher;
use std::sync::{Arc, Mutex, PoisonError};

use foldhash::fast::RandomState;
use tokio::task::JoinHandle;

type Turn = Arc<tokio::sync::Mutex<()>>;
type Shard = Mutex<HashMap<Arc<str>, Turn, RandomState>>;

#[derive(Clone)]
pub(crate) struct Floor {
    shards: Arc<[Shard; 64]>,
    hasher: RandomState,
}

impl Floor {
    pub(crate) fn new() -> Self {
        Self {
            shards: Arc::new(std::array::from_fn(|_| Shard::default())),
            hasher: RandomState::default(),
        }
    }

    pub(crate) fn spawn(
        &self,
        key: &Arc<str>,
        task: impl Future<Output = ()> + Send + 'static,
    ) -> JoinHandle<()> {
        let turn = self.turn(key);
        tokio::spawn(async move {
            let _turn = turn.lock().await;
            task.await;
        })
    }

    fn turn(&self, key: &Arc<str>) -> Turn {
        let shard = self.hasher.hash_one(key) as usize >> 20;
        let shard = &self.shards[shard % self.shards.len()];
        let mut turns = shard.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(turn) = turns.get(key) {
            return turn.clone();
        }
        turns.entry(key.clone()).or_default().clone()
    }
}
