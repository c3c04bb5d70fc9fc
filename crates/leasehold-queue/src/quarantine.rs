//! Quarantine: replacing corrupt objects, on the decision of an operator.
//!
//! A corrupt object is not deleted at a key that other clients may write: a late write, or an entry that refers to
//! it, must find a readable object. So it is replaced, on condition that it has not changed.
//!
//! | object | replaced by | effect |
//! | --- | --- | --- |
//! | task | a tombstone | the task is cancelled; workers remove its index entries, and a purge the tombstone |
//! | idempotency record | an expired one | its key is free: the same key can be submitted a second time |
//! | lease | a released one, with a higher epoch | any worker can take it |
//! | notification object (bell) | a new one | workers scan the index |
//! | manifest of an artifact (by the command line) | one in state *deleting* | the file can be published again an hour later |
//! | object at a key that this program never uses | nothing: it is deleted | none |
//!
//! A copy of the bytes is kept under `quarantine/`, unless [`Keep::Nothing`] is chosen.
//!
//! Requests: 1 get, 1 put for the copy, and 1 put or 1 delete; 1 list more for a lease.

use bytes::Bytes;
use leasehold_core::oversize;
use leasehold_core::{Error, Kind, Result, Task, keys, record};
use leasehold_store::{Object, Purpose, PutOutcome, When};
use serde::Serialize;
use serde_json::Map;

use crate::connect::ObjectQueue;
use crate::lease::{self, CORRUPT_AGE_MIN};
use crate::meta_cache::Intent;
use crate::objects::{ObjectKind, is_newer};

/// Choice of what to keep of a corrupt object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// Keep a copy under `quarantine/`.
    Copy,
    /// Keep no copy.
    Nothing,
}

/// A corrupt object that was replaced or deleted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Quarantined {
    /// Its key.
    pub key: String,
    /// Key of the copy, if one was kept.
    pub copy: Option<String>,
    /// Effect.
    pub outcome: QuarantineOutcome,
}

/// Effect of a quarantine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum QuarantineOutcome {
    /// The task is cancelled.
    TaskCancelled,
    /// The idempotency key is free.
    KeyFreed,
    /// The lease is free.
    LeaseReleased,
    /// The notification object was rewritten.
    Rewritten,
    /// The object was deleted.
    Deleted,
}

impl ObjectQueue {
    /// Replaces a corrupt object, or deletes it. Refuses objects that are not corrupt, that were written by a newer
    /// version of this program, or that running workers replace by themselves. Can be repeated after a failure.
    pub async fn quarantine(&self, key: &str, keep: Keep) -> Result<Quarantined> {
        self.ensure_allowed(Intent::Change).await?;
        let meta = self.meta_cache.known().meta;
        if meta.may_have_old_keys() {
            // A task may have two keys now, and a tombstone would fence only one of them.
            return Err(Error::new(
                Kind::Unavailable,
                "a migration is in progress; try again after it has finished",
            ));
        }
        let found = self.client.get(Purpose::Admin, key).await?;
        let object = found.ok_or_else(|| Error::invalid(format!("no object at `{key}`")))?;
        let kind = ObjectKind::of(key, &meta.lengths());
        if kind.verify(key, &object).is_ok() {
            return Err(Error::invalid(format!("`{key}` is not corrupt")));
        }
        let (body, outcome) = match kind {
            ObjectKind::Task(len, id) => {
                let tombstone = Task::tombstone(id, len.shard_of(&id), "quarantined", &self.step_context()?);
                (Bytes::from(record::write(&tombstone)), QuarantineOutcome::TaskCancelled)
            }
            ObjectKind::Unique => (self.expired_record()?, QuarantineOutcome::KeyFreed),
            ObjectKind::Lease => (self.released_lease(key, &object).await?, QuarantineOutcome::LeaseReleased),
            ObjectKind::Bell => (self.ring_body(false), QuarantineOutcome::Rewritten),
            _ => {
                let copy = self.copy_corrupt(key, &object, keep).await?;
                self.client.delete(Purpose::Admin, key).await?;
                return Ok(Quarantined { key: key.to_owned(), copy, outcome: QuarantineOutcome::Deleted });
            }
        };
        let copy = self.replace_corrupt(key, &object, body, keep).await?;
        Ok(Quarantined { key: key.to_owned(), copy, outcome })
    }

    /// Replaces an object that the caller has found to be corrupt, if it has not changed since. Returns the key of
    /// the copy.
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
            PutOutcome::Written(_) | PutOutcome::Superseded(_) => Ok(copy),
            PutOutcome::Lost(_) => Err(Error::new(
                Kind::Unavailable,
                format!("`{key}` has changed since it was read; run check again"),
            )),
        }
    }

    async fn copy_corrupt(&self, key: &str, found: &Object, keep: Keep) -> Result<Option<String>> {
        if is_newer(&found.body) {
            let message = format!("`{key}` was written by a newer version of leasehold; upgrade leasehold");
            return Err(Error::invalid(message));
        }
        if keep == Keep::Nothing {
            return Ok(None);
        }
        if let Some(reason) = oversize::reason(&found.body) {
            let message = format!(
                "cannot copy `{key}`: {reason}; copy it with the tools of the store, then add --delete"
            );
            return Err(Error::invalid(message));
        }
        let copy = keys::quarantine(&self.client.write_id(), key);
        self.client.put(Purpose::Admin, &copy, found.body.clone(), &When::Absent).await?;
        Ok(Some(copy))
    }

    /// The released lease that replaces a corrupt one. Its holder may rely on the old one for as long as any lease
    /// lasts.
    async fn released_lease(&self, key: &str, object: &Object) -> Result<Bytes> {
        // It was read before it is listed: a later object is younger, and the condition of our put fails for it.
        if let Some(stamp) = lease::stamp(&self.client, key).await? {
            let by = stamp.plus(CORRUPT_AGE_MIN);
            if !self.now()?.is_past(by) {
                let message = format!("`{key}` may still be held until {by}; try again after that");
                return Err(Error::new(Kind::Unavailable, message));
            }
        }
        Ok(lease::released_replacement(&self.client, &object.body, &Map::new())?.write().into())
    }
}
