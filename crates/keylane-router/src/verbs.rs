//! What an operator can do to one key. Every verb is on disk before it is answered.

use std::sync::{Arc, PoisonError};
use std::time::SystemTime;

use crate::delivery::{Delivery, Fate, Settlement};
use crate::feed::Fed;
use crate::lane::LaneId;
use crate::message::Identity;
use crate::pool::{Pool, Skip};
use crate::router::Router;
use crate::store::{AuditEntry, DeadLetter, LaneName, StoreError};

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
        let pool = self.pool_of(&lane)?;
        self.store()
            .resume(lane.clone(), audit("resume", &lane, None, &by))
            .await?;
        pool.resume(&LaneId::of(&lane));
        Ok(())
    }

    /// Ends the hold of this key: its head is tried now.
    ///
    /// # Errors
    /// [`VerbError`]; nothing was done then.
    pub async fn retry_now(&self, lane: LaneName, by: By) -> Result<(), VerbError> {
        let pool = self.pool_of(&lane)?;
        self.store()
            .audit(audit("retry-now", &lane, None, &by))
            .await?;
        // Its head may be in the store only, waiting there.
        let fed = self.inner.feeders.tell(&lane, Fed::Now);
        if pool.release(&LaneId::of(&lane)) || fed {
            Ok(())
        } else {
            Err(VerbError::NotFound)
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
        let pool = self.pool_of(&lane)?;
        let id = LaneId::of(&lane);
        if let Some(mut delivery) = pool.take_head(&id, &identity) {
            if let Err(error) = self.skip_head(&lane, &delivery, &by, &entry).await {
                // It is out of its lane and must not be lost: it goes back with what is behind it.
                delivery.fate = Fate::Return;
                pool.leave(&id);
                delivery.settle(Settlement::Return {
                    delay: std::time::Duration::ZERO,
                });
                return Err(error.into());
            }
            delivery.counters.skipped.one();
            let from_store = delivery.is_stored();
            delivery.settle(Settlement::Ack);
            if !from_store {
                self.store().audit(entry).await?;
            }
            return Ok(());
        }
        if pool.lane(&id).is_none() && self.inner.feeders.tell(&lane, Fed::Now) {
            let text = "its head waits in the store and is being fetched: try again, or park it";
            return Err(VerbError::Refused(text.to_owned()));
        }
        self.skip_running(&pool, &id, identity, entry, by).await
    }

    /// The head becomes a dead letter; where it came from the store, its row and the audit entry go
    /// with that.
    async fn skip_head(
        &self,
        lane: &LaneName,
        head: &Delivery,
        by: &By,
        entry: &AuditEntry,
    ) -> Result<(), StoreError> {
        let reason = "skipped".to_owned();
        let text = skipped_text(by);
        if let Some(row) = head.row() {
            let letter = Some((reason, text));
            let store = self.store();
            return store
                .remove_parked(lane.clone(), vec![row], letter, entry.clone())
                .await;
        }
        let letter = DeadLetter {
            number: 0,
            message: head.to_stored(lane.clone()),
            reason,
            text,
            at: SystemTime::now(),
            attempts: Vec::new(),
        };
        self.store().dead_letter(vec![letter]).await
    }

    async fn skip_running(
        &self,
        pool: &Arc<Pool>,
        lane: &LaneId,
        identity: Identity,
        entry: AuditEntry,
        by: By,
    ) -> Result<(), VerbError> {
        match pool.lane(lane) {
            None => return Err(VerbError::NotFound),
            Some(state) if state.running == 0 => return Err(VerbError::Conflict),
            Some(_) if pool.waiting(lane).contains(&identity) => return Err(VerbError::Conflict),
            Some(_) => {}
        }
        self.store().audit(entry).await?;
        let mut skips = self
            .inner
            .shared
            .skips
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        skips.insert(
            identity,
            Skip {
                who: by.who,
                why: by.why,
            },
        );
        Ok(())
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
        let identities = self.parked_identities(&lane).await?;
        self.store().new_round(identities).await?;
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
        let rows = self
            .store()
            .parked_rows(lane.clone(), 0, usize::MAX)
            .await?;
        let numbers: Vec<u64> = rows.iter().map(|row| row.row).collect();
        let count = numbers.len() as u64;
        let entry = audit("drop", &lane, None, &by);
        self.store()
            .remove_parked(lane, numbers, None, entry)
            .await?;
        Ok(count)
    }

    async fn parked_identities(&self, lane: &LaneName) -> Result<Vec<Identity>, VerbError> {
        let rows = self
            .store()
            .parked_rows(lane.clone(), 0, usize::MAX)
            .await?;
        Ok(rows.into_iter().map(|row| row.message.identity).collect())
    }

    async fn first_parked(&self, lane: &LaneName) -> Result<Option<(u64, Identity)>, VerbError> {
        let parked = self.store().parked_lane(lane);
        if parked.is_none_or(|parked| parked.replaying) {
            return Ok(None);
        }
        let rows = self.store().parked_rows(lane.clone(), 0, 1).await?;
        Ok(rows
            .into_iter()
            .next()
            .map(|row| (row.row, row.message.identity)))
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
        let missing = || VerbError::Refused(format!("there is no pool `{}`", lane.pool));
        self.inner.routes.pool(&lane.pool).ok_or_else(missing)
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
