//! The one loop in which anything is read, decided upon and written back on condition.
//!
//! ```text
//!   read ──▶ decide ──▶ (entry) ──▶ put on condition ──▶ written: done
//!    ▲         ▲                │
//!    │         └── what stands ─┤ lost once: decide again, from what was read
//!    └───── pause ──────────────┘ lost again: let others finish, and read
//! ```

use bytes::Bytes;
use leasehold_core::limits::{CONTENTION_PAUSE_MAX, UPDATE_ROUNDS_MAX};
use leasehold_core::{Error, Kind, Result};
use std::time::Duration;

use crate::client::{Client, Put};
use crate::host::HostExt;
use crate::ledger::Purpose;
use crate::seam::{Object, Version, When};

/// Recognises a write in a later state of its object.
pub type Recognise = Box<dyn Fn(&[u8]) -> bool + Send + Sync>;

/// What to do about the object as it stands.
pub enum Decision<R> {
    /// Write these bytes in its place; `result` is what the caller gets once they are there.
    Write {
        /// The new object, with a fresh write id in it.
        body: Bytes,
        /// Recognises this write in a later state of the object.
        ours: Recognise,
        /// The key of an empty object that must be there before this write: an index entry by which it is found.
        first: Option<String>,
        /// The caller's result.
        result: R,
    },
    /// Leave it as it is.
    Leave(R),
}

impl<R> Decision<R> {
    /// Write these bytes, which nobody builds upon.
    pub fn write(body: impl Into<Bytes>, result: R) -> Self {
        Decision::Write { body: body.into(), ours: Box::new(|_| false), first: None, result }
    }
}

/// How an update ended.
#[derive(Debug)]
pub struct Updated<R> {
    /// What the decision promised.
    pub result: R,
    /// What stands there now.
    pub now: Standing,
}

/// What stands in the store after an update.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// What it was: nothing was written.
    Left,
    /// What we have written, as this version.
    Written(Version),
    /// What others have made of our write since.
    Overtaken(Object),
}

/// Reads `key` and updates it; see [`update_from`].
pub async fn update<R>(
    client: &Client,
    purpose: Purpose,
    key: &str,
    decide: impl FnMut(Option<&Object>) -> Result<Decision<R>>,
) -> Result<Updated<R>> {
    let found = client.get(purpose, key).await?;
    update_from(client, purpose, key, found, decide).await
}

/// Decides upon `found` and writes on condition that it is unchanged; on a lost race decides again.
pub async fn update_from<R>(
    client: &Client,
    purpose: Purpose,
    key: &str,
    mut found: Option<Object>,
    mut decide: impl FnMut(Option<&Object>) -> Result<Decision<R>>,
) -> Result<Updated<R>> {
    for round in 0..UPDATE_ROUNDS_MAX {
        let (body, ours, first, result) = match decide(found.as_ref())? {
            Decision::Leave(result) => return Ok(Updated { result, now: Standing::Left }),
            Decision::Write { body, ours, first, result } => (body, ours, first, result),
        };
        if let Some(first) = first {
            client.put_always(purpose, &first, Bytes::new()).await?;
        }
        let when = found.map_or(When::Absent, |object| When::Unchanged(object.version));
        match client.put_knowing(purpose, key, body, &when, &*ours).await? {
            Put::Written(version) => return Ok(Updated { result, now: Standing::Written(version) }),
            Put::Overtaken(object) => return Ok(Updated { result, now: Standing::Overtaken(object) }),
            Put::Lost(current) => found = current,
        }
        if round == 0 {
            continue; // What was read is fresh, and often there is nothing left to write.
        }
        // Compare-and-set is not fair: a loser that comes straight back tends to lose again, and one that pauses upon
        // what it has read has lost already.
        let bound = CONTENTION_PAUSE_MAX.min(Duration::from_millis(8 << round.min(5)));
        client.host().sleep(client.host().random_below(bound)).await;
        found = client.get(purpose, key).await?;
    }
    let message = format!("`{key}` was changed by others {UPDATE_ROUNDS_MAX} times in a row");
    Err(Error::new(Kind::Unavailable, message))
}
