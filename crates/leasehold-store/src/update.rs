//! Read-decide-write loop: reads an object, decides, and writes it back with a conditional put. The only such loop.
//!
//! ```text
//!   read ──▶ decide ──▶ (entry) ──▶ conditional put ──▶ written: done
//!    ▲         ▲                │
//!    │         └── new object ──┤ lost once: decide again, from the object that was read back
//!    └───── pause ──────────────┘ lost again: pause, and read again
//! ```

use bytes::Bytes;
use leasehold_core::limits::{CONTENTION_PAUSE_MAX, UPDATE_ROUNDS_MAX};
use leasehold_core::{Error, Kind, Result};
use std::time::Duration;

use crate::client::{Client, PutOutcome};
use crate::host::HostExt;
use crate::ledger::Purpose;
use crate::store::{Object, When};

/// Recognises a write in a later state of its object.
pub type BoxIsOurWrite = Box<dyn Fn(&[u8]) -> bool + Send + Sync>;

/// Decision about the object that was read.
pub enum Decision<R> {
    /// Replace it by these bytes; `result` is returned to the caller once they are written.
    Write {
        /// New object, with a new write id.
        body: Bytes,
        /// Recognises this write in a later state of the object.
        ours: BoxIsOurWrite,
        /// Key of an empty object that must exist before this write: an index entry by which the object is found.
        first: Option<String>,
        /// Result for the caller.
        result: R,
    },
    /// Leave it unchanged.
    Leave(R),
}

impl<R> Decision<R> {
    /// Writes these bytes, which are recognised only while they are unchanged.
    pub fn write(body: impl Into<Bytes>, result: R) -> Self {
        Decision::Write { body: body.into(), ours: Box::new(|_| false), first: None, result }
    }
}

/// Result of an update.
#[derive(Debug)]
pub struct Updated<R> {
    /// Result of the decision.
    pub result: R,
    /// Outcome of the put, which is not lost; none if the decision was to leave the object.
    pub put: Option<PutOutcome>,
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

/// Decides about `found` and puts it if unchanged; after a lost race decides again.
pub async fn update_from<R>(
    client: &Client,
    purpose: Purpose,
    key: &str,
    mut found: Option<Object>,
    mut decide: impl FnMut(Option<&Object>) -> Result<Decision<R>>,
) -> Result<Updated<R>> {
    for round in 0..UPDATE_ROUNDS_MAX {
        let (body, ours, first, result) = match decide(found.as_ref())? {
            Decision::Leave(result) => return Ok(Updated { result, put: None }),
            Decision::Write { body, ours, first, result } => (body, ours, first, result),
        };
        if let Some(first) = first {
            client.put_always(purpose, &first, Bytes::new()).await?;
        }
        let when = found.map_or(When::Absent, |object| When::Unchanged(object.version));
        match client.put_if(purpose, key, body, &when, &*ours).await? {
            PutOutcome::Lost(current) => found = current,
            put => return Ok(Updated { result, put: Some(put) }),
        }
        if round == 0 {
            continue; // The object was just read, and often there is nothing left to write.
        }
        // Compare-and-set is not fair: a writer that retries at once tends to lose again, and one that pauses after the
        // read has lost already.
        let bound = CONTENTION_PAUSE_MAX.min(Duration::from_millis(8 << round.min(5)));
        client.host().sleep(client.host().random_below(bound)).await;
        found = client.get(purpose, key).await?;
    }
    let message =
        format!("other writers changed `{key}` {UPDATE_ROUNDS_MAX} times during one update; retry later");
    Err(Error::new(Kind::Unavailable, message))
}
