//! Maintenance duties: recover lost claims, clean up the index, empty the inboxes of crashed workers, remove expired
//! idempotency records and old worker ids.
//!
//! Every worker does them for the shards that it serves, so that no separate process is needed. A duty that concerns
//! the whole queue is done by one worker at a time, which holds a lease on it. All of them may be done twice, or by
//! several workers at once, without harm.
//!
//! Requests per worker while the queue is idle: 1 list of lease entries per `sweep_every`, and 1 list of idempotency
//! records per half hour (with shard leasing, only by the holder of the first shard). The worker that empties inboxes
//! makes 1 put and 1 list per half `overflow_every`; each other worker 1 get per expiry of its lease.

mod expired_keys;
mod lease;
mod recover;
mod rescue;

use leasehold_core::{Kind, Result};
use leasehold_queue::source::Duty;
use std::sync::Arc;

use self::expired_keys::ExpiredKeys;
use self::recover::Recover;
use self::rescue::Rescue;
use super::Objects;

/// The duties of a worker.
pub(super) fn all(objects: &Arc<Objects>) -> Vec<Box<dyn Duty>> {
    vec![
        Box::new(Recover::new(objects.clone())),
        Box::new(Rescue::new(objects.clone())),
        Box::new(ExpiredKeys::new(objects.clone())),
    ]
}

impl Objects {
    /// False while the queue is being migrated, when there are no duties. Fails if this worker can never do them again.
    async fn may_do_duties(&self) -> Result<bool> {
        match self.queue.ensure_writable().await {
            Err(error) if error.kind() == Kind::Invalid && self.queue.is_outdated() => Err(error),
            Err(error) => {
                tracing::debug!(%error, "duties paused");
                Ok(false)
            }
            Ok(()) => Ok(true),
        }
    }
}
