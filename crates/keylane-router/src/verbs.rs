//! What an operator can do to one key. Every verb is on disk before it is answered.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::oneshot;

use crate::feed::Fed;
use crate::lane::LaneId;
use crate::message::Identity;
use crate::pool::{Pool, Whereabouts};
use crate::router::Router;
use crate::skips::Skip;
use crate::store::{AuditEntry, LaneName, StoreError};

/// So many rows of a parked key are named at once.
const PAGE: usize = 1000;
/// How often, and how soon again, a message is looked for that is neither in its lane nor in an
/// attempt.
const LOOKS: u32 = 1000;
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// Why a verb did nothing.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum VerbError {
    /// There is no such key, or nothing of it here.
    #[error("nothing of this key is here")]
    NotFound,
    /// The verb meant another message than the one that is first now.
    #[error("another message is first now")]
    Conflict,
    /// What the verb needs is not there.
    #[error("{0}")]
    Refused(String),
    /// It could not be written down, so it was not done.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Who does it, and why.
#[derive(Clone, Debug)]
pub struct By {
    /// Who.
    pub who: String,
    /// Why, in their words.
    pub why: String,
}

impl Router {
    /// Nothing of this key starts until [`Router::resume`]; survives a restart.
    ///
    /// # Errors
    /// [`VerbError`]; nothing was done then.
    pub async fn pause(&self, lane: LaneName, by: By) -> Result<(), VerbError> {
        let pool = self.pool_of(&lane)?;
        self.only_here(&lane, "paused")?;
        self.store()
            .pause(lane.clone(), audit("pause", &lane, None, &by))
            .await?;
        pool.pause(LaneId::of(&lane));
        Ok(())
    }

    /// Ends a pause.
    ///
    /// # Errors
    /// [`VerbError`]; nothing was done then.
    pub async fn resume(&self, lane: LaneName, by: By) -> Result<(), VerbError> {
        let pool = self.inner.routes.find(&lane.pool);
        // The pause of a key outlives its pool.
        if pool.is_none() && !self.store().pauses().contains(&lane) {
            return Err(no_pool(&lane));
        }
        self.store()
            .resume(lane.clone(), audit("resume", &lane, None, &by))
            .await?;
        if let Some(pool) = pool {
            pool.resume(&LaneId::of(&lane));
        }
        Ok(())
    }

    /// Ends the hold of this key: its head is tried now.
    ///
    /// # Errors
    /// [`VerbError`]; nothing was done then.
    pub async fn retry_now(&self, lane: LaneName, by: By) -> Result<(), VerbError> {
        let pool = self.pool_or_leaving(&lane)?;
        self.store()
            .audit(audit("retry-now", &lane, None, &by))
            .await?;
        // Its head may be in the store only, waiting there.
        let feeder = || self.inner.feeders.tell(&lane, Fed::Now);
        match pool.hurry(&LaneId::of(&lane), feeder) {
            true => Ok(()),
            false => Err(VerbError::NotFound),
        }
    }

    /// Makes this message, the first of its key, a dead letter. If it runs, that happens after the
    /// attempt, should it fail.
    ///
    /// # Errors
    /// [`VerbError::Conflict`] when another message is first by now.
    pub async fn skip(&self, lane: LaneName, identity: Identity, by: By) -> Result<(), VerbError> {
        let entry = audit("skip", &lane, Some(&identity), &by);
        if let Some(row) = self.first_parked(&lane).await? {
            if row.1 != identity {
                return Err(VerbError::Conflict);
            }
            let letter = Some(("skipped".to_owned(), skipped_text(&by)));
            self.store()
                .remove_parked(lane, vec![row.0], letter, entry)
                .await?;
            return Ok(());
        }
        let pool = self.pool_or_leaving(&lane)?;
        let id = LaneId::of(&lane);
        let skips = &self.inner.shared.skips;
        // Written down with the letter, or before the wish is noted for what runs.
        let mut entry = Some(entry);
        for _ in 0..LOOKS {
            if let Some(answer) = self.skip_head(&pool, &id, &identity, entry.as_ref(), &by) {
                return skipped(answer).await;
            }
            let place = pool.whereabouts(&id, &identity);
            match (place, entry.take()) {
                // Whoever has it sees the wish.
                (Whereabouts::Runs, None) => return Ok(()),
                (_, None) if !skips.has(&identity) => return Ok(()),
                (Whereabouts::Runs, Some(entry)) => {
                    self.store().audit(entry).await?;
                    skips.insert(identity.clone(), Skip::unheard(skipped_text(&by)));
                }
                (Whereabouts::OnItsWay, kept) => {
                    entry = kept;
                    tokio::time::sleep(LOOK_AGAIN).await;
                }
                (Whereabouts::Behind, _) => {
                    skips.take(&identity);
                    return Err(VerbError::Conflict);
                }
                (Whereabouts::NoLane, _) => {
                    skips.take(&identity);
                    if self.inner.feeders.tell(&lane, Fed::Now) {
                        let text = "its head waits in the store and is being fetched";
                        return Err(VerbError::Refused(format!("{text}: try again, or park it")));
                    }
                    return Err(VerbError::NotFound);
                }
            }
        }
        skips.take(&identity);
        let text = "its lane is being stored or given back, and that takes long";
        Err(VerbError::Refused(format!("{text}: try again")))
    }

    /// Notes the wish if this is the head and waits. It keeps its place until it is on disk.
    fn skip_head(
        &self,
        pool: &Pool,
        lane: &LaneId,
        identity: &Identity,
        entry: Option<&AuditEntry>,
        by: &By,
    ) -> Option<oneshot::Receiver<Result<(), StoreError>>> {
        let (done, answer) = oneshot::channel();
        let skip = Skip {
            text: skipped_text(by),
            audit: entry.cloned(),
            done: Some(done),
        };
        let skips = &self.inner.shared.skips;
        let noted = pool.flush_head(lane, identity, || skips.insert(identity.clone(), skip));
        noted.then_some(answer)
    }

    /// Stores the key whole, until it is replayed. What arrives goes behind.
    ///
    /// # Errors
    /// [`VerbError`]; nothing was done then.
    pub async fn park(&self, lane: LaneName, by: By) -> Result<(), VerbError> {
        if lane.key.is_none() {
            return Err(VerbError::Refused(
                "keyless messages have no key to park".to_owned(),
            ));
        }
        let pool = self.pool_of(&lane)?;
        self.only_here(&lane, "parked")?;
        self.store().audit(audit("park", &lane, None, &by)).await?;
        // Parked from now on, empty or spilled before: whatever comes up in the lane goes (back) to
        // the store.
        let reason = format!("parked by {}: {}", by.who, by.why);
        self.store().park(lane.clone(), reason, Vec::new()).await?;
        pool.release(&LaneId::of(&lane));
        Ok(())
    }

    /// Feeds a parked key back into its lane, in order and before anything newer.
    ///
    /// # Errors
    /// [`VerbError::NotFound`] when it is not parked.
    pub async fn replay(&self, lane: LaneName, by: By) -> Result<(), VerbError> {
        let parked = self.store().parked_lane(&lane).ok_or(VerbError::NotFound)?;
        let pool = self.pool_of(&lane)?;
        if !self.inner.knows_source(&lane.source) {
            return Err(VerbError::Refused(format!(
                "there is no source `{}`, so nobody would feed it; configure a source of this name again, or drop the key",
                lane.source
            )));
        }
        if parked.replaying {
            return Ok(());
        }
        self.new_rounds(&lane).await?;
        let entry = audit("replay", &lane, None, &by);
        self.store()
            .set_replaying(lane.clone(), true, entry)
            .await?;
        drop(pool);
        self.inner.feed(&lane);
        Ok(())
    }

    /// Deletes everything parked of a key.
    ///
    /// # Errors
    /// [`VerbError::NotFound`] when nothing is parked; refused while it is being replayed.
    pub async fn drop_parked(&self, lane: LaneName, by: By) -> Result<u64, VerbError> {
        let parked = self.store().parked_lane(&lane).ok_or(VerbError::NotFound)?;
        if parked.replaying {
            let text = "it is being replayed; park it again first".to_owned();
            return Err(VerbError::Refused(text));
        }
        let numbers = self.parked_numbers(&lane).await?;
        let count = numbers.len() as u64;
        let entry = audit("drop", &lane, None, &by);
        self.store()
            .remove_parked(lane, numbers, None, entry)
            .await?;
        Ok(count)
    }

    /// Each message of a parked key begins a new round.
    async fn new_rounds(&self, lane: &LaneName) -> Result<(), VerbError> {
        let mut after = 0;
        loop {
            let names = self.parked_names(lane, after, PAGE).await?;
            let Some((last, _)) = names.last() else {
                return Ok(());
            };
            after = *last;
            let identities = names.into_iter().map(|(_, identity)| identity).collect();
            self.store().new_round(identities).await?;
        }
    }

    async fn parked_numbers(&self, lane: &LaneName) -> Result<Vec<u64>, VerbError> {
        let mut numbers: Vec<u64> = Vec::new();
        loop {
            let after = numbers.last().copied().unwrap_or(0);
            let names = self.parked_names(lane, after, PAGE).await?;
            if names.is_empty() {
                return Ok(numbers);
            }
            numbers.extend(names.into_iter().map(|(row, _)| row));
        }
    }

    async fn parked_names(
        &self,
        lane: &LaneName,
        after: u64,
        limit: usize,
    ) -> Result<Vec<(u64, Identity)>, VerbError> {
        let names = self.store().parked_names(lane.clone(), after, limit);
        Ok(names.await?)
    }

    async fn first_parked(&self, lane: &LaneName) -> Result<Option<(u64, Identity)>, VerbError> {
        let parked = self.store().parked_lane(lane);
        if parked.is_none_or(|parked| parked.replaying) {
            return Ok(None);
        }
        let names = self.parked_names(lane, 0, 1).await?;
        Ok(names.into_iter().next())
    }

    /// What is done to a key here is not done by other instances that read its source.
    fn only_here(&self, lane: &LaneName, done: &str) -> Result<(), VerbError> {
        match self.inner.shared.read_by_many(lane) {
            None => Ok(()),
            Some(source) => Err(VerbError::Refused(format!(
                "source `{source}` is read by many instances (instances = \"many\"), and the key would be {done} by this one only"
            ))),
        }
    }

    fn pool_of(&self, lane: &LaneName) -> Result<Arc<Pool>, VerbError> {
        let pool = self.inner.routes.pool(&lane.pool);
        pool.ok_or_else(|| no_pool(lane))
    }

    /// Also a pool that was removed and still has keys.
    fn pool_or_leaving(&self, lane: &LaneName) -> Result<Arc<Pool>, VerbError> {
        let pool = self.inner.routes.find(&lane.pool);
        pool.ok_or_else(|| no_pool(lane))
    }
}

fn no_pool(lane: &LaneName) -> VerbError {
    VerbError::Refused(format!("there is no pool `{}`", lane.pool))
}

/// Waits until it is on disk; a wish that was dropped meant another message.
async fn skipped(answer: oneshot::Receiver<Result<(), StoreError>>) -> Result<(), VerbError> {
    match answer.await {
        Ok(written) => Ok(written?),
        Err(_) => Err(VerbError::Conflict),
    }
}

fn skipped_text(by: &By) -> String {
    format!("skipped by {}: {}", by.who, by.why)
}

fn audit(verb: &str, lane: &LaneName, identity: Option<&Identity>, by: &By) -> AuditEntry {
    AuditEntry {
        at: SystemTime::now(),
        who: by.who.clone(),
        verb: verb.to_owned(),
        lane: Some(lane.clone()),
        identity: identity.cloned(),
        why: by.why.clone(),
    }
}
