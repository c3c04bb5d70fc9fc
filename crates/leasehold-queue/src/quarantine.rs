//! Taking corrupt objects out of the way, on the decision of an operator.
//!
//! A corrupt object is never deleted where others may write: a late write, or an entry that leads there, must find
//! something that it can read. So it is replaced, on condition that it has not changed.
//!
//! | object | replaced by | effect |
//! | --- | --- | --- |
//! | task | a tombstone | the task is cancelled; workers remove its index entries, and a purge the tombstone |
//! | idempotency record | an expired one | its key is free: the same key can be submitted a second time |
//! | lease | a released one, with a higher epoch | anyone can take it |
//! | notification object | a ring | workers look at the index |
//! | at a key that this program never uses | nothing: it is deleted | none |
//!
//! A copy of the bytes stays below `quarantine/`, unless it is not wanted.
//!
//! Requests: 1 get, 1 put for the copy, and 1 put or 1 delete; 1 list more for a lease.

use bytes::Bytes;
use leasehold_core::unread::why_unread;
use leasehold_core::{Error, Kind, Result, Task, keys, record};
use leasehold_store::{Object, Purpose, Put, When};
use serde::Serialize;
use serde_json::Map;

use crate::connect::Queue;
use crate::layout::Intent;
use crate::lease::{self, NONSENSE_AGE_MIN};
use crate::objects::{ObjectKind, is_newer};

/// What stays of a corrupt object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// A copy below `quarantine/`.
    Copy,
    /// Nothing.
    Nothing,
}

/// A corrupt object that was taken out of the way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Quarantined {
    /// Its key.
    pub key: String,
    /// The key of the copy, if one was wanted.
    pub copy: Option<String>,
    /// What was done.
    pub outcome: Outcome,
}

/// What was done to a corrupt object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The task is cancelled.
    TaskCancelled,
    /// The idempotency key is free.
    KeyFreed,
    /// The lease is free.
    LeaseReleased,
    /// A notification object was written anew.
    Rewritten,
    /// The object is gone.
    Deleted,
}

impl Queue {
    /// Takes a corrupt object out of the way. Refuses objects that are not corrupt, that a newer program has written, or
    /// that running workers replace by themselves. Can be repeated after a failure.
    pub async fn quarantine(&self, key: &str, keep: Keep) -> Result<Quarantined> {
        self.may(Intent::Change).await?;
        let agreement = self.layout.known().agreement;
        if agreement.is_between() {
            // A task may be in two places now, and a tombstone would fence off only one of them.
            return Err(Error::new(Kind::Unavailable, "a migration is not finished yet; try again later"));
        }
        let found = self.client.get(Purpose::Admin, key).await?;
        let object = found.ok_or_else(|| Error::invalid(format!("no object at `{key}`")))?;
        let kind = ObjectKind::of(key, &agreement.lengths());
        if kind.verify(key, &object).is_ok() {
            return Err(Error::invalid(format!("`{key}` is not corrupt")));
        }
        let (body, outcome) = match kind {
            ObjectKind::Task(len, id) => {
                let tombstone = Task::tombstone(id, len.shard_of(&id), "quarantined", &self.act()?);
                (Bytes::from(record::write(&tombstone)), Outcome::TaskCancelled)
            }
            ObjectKind::Unique => (self.expired_record()?, Outcome::KeyFreed),
            ObjectKind::Lease => (self.released_lease(key, &object).await?, Outcome::LeaseReleased),
            ObjectKind::Bell => (self.ring_body(false), Outcome::Rewritten),
            _ => {
                let copy = self.copy_corrupt(key, &object, keep).await?;
                self.client.delete(Purpose::Admin, key).await?;
                return Ok(Quarantined { key: key.to_owned(), copy, outcome: Outcome::Deleted });
            }
        };
        let copy = self.replace_corrupt(key, &object, body, keep).await?;
        Ok(Quarantined { key: key.to_owned(), copy, outcome })
    }

    /// Replaces an object that the caller has found to be corrupt, if it has not changed since. Gives the key of the copy.
    pub async fn replace_corrupt(
        &self,
        key: &str,
        found: &Object,
        body: Bytes,
        keep: Keep,
    ) -> Result<Option<String>> {
        let copy = self.copy_corrupt(key, found, keep).await?;
        let unchanged = When::Unchanged(found.version.clone());
        match self.client.put(Purpose::Admin, key, body, &unchanged).await? {
            Put::Written(_) | Put::Overtaken(_) => Ok(copy),
            Put::Lost(_) => {
                Err(Error::new(Kind::Unavailable, format!("`{key}` was changed meanwhile; check again")))
            }
        }
    }

    async fn copy_corrupt(&self, key: &str, found: &Object, keep: Keep) -> Result<Option<String>> {
        if is_newer(&found.body) {
            let message = format!("`{key}` was written by a newer version of this program; update this one");
            return Err(Error::invalid(message));
        }
        if keep == Keep::Nothing {
            return Ok(None);
        }
        if let Some(reason) = why_unread(&found.body) {
            let message = format!(
                "cannot copy `{key}`: {reason}; copy it with the tools of the store, then add --delete"
            );
            return Err(Error::invalid(message));
        }
        let copy = keys::quarantine(&self.client.write_id(), key);
        self.client.put(Purpose::Admin, &copy, found.body.clone(), &When::Absent).await?;
        Ok(Some(copy))
    }

    /// The lease that replaces a corrupt one. Its holder may rely on it for as long as any lease lasts.
    async fn released_lease(&self, key: &str, object: &Object) -> Result<Bytes> {
        // It was read before it is listed: whatever was put there since is younger, and refuses our condition.
        if let Some(stamp) = lease::stamp(&self.client, key).await? {
            let by = stamp.plus(NONSENSE_AGE_MIN);
            if !self.now()?.is_past(by) {
                let message = format!("`{key}` may still be held until {by}; try again after that");
                return Err(Error::new(Kind::Unavailable, message));
            }
        }
        Ok(lease::released_in_place_of(&self.client, &object.body, &Map::new())?.write().into())
    }
}
