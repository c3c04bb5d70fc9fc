//! Renewing and ending a claim.
//!
//! The holder of a claim renews it while the handler runs, and settles the task when the handler has stopped:
//! complete, fail, snooze, release or stop. Both are conditional writes that require the claim's lease id. A worker
//! that lost its claim can change nothing.
//!
//! Requests: a renewal is 1 put. A settlement is 1 put and 1 delete, and 1 more put (the ready entry, first) if the
//! task runs again.

use leasehold_core::new_task::check_size;
pub use leasehold_core::settlement::Settlement;
use leasehold_core::{Event, Rejected, Result, Task};
use leasehold_store::Purpose;
use serde_json::Value;
use std::time::Duration;
use tracing::Instrument;

use crate::claim::Claimed;
use crate::connect::ObjectQueue;
use crate::tasks::{ChangeFrom, IndexUpdate, Transition};

impl ObjectQueue {
    /// Renews a claim; none if it was lost, and then the handler must stop at once.
    pub async fn renew(
        &self,
        claimed: &Claimed,
        lease: Duration,
        progress: Option<Value>,
    ) -> Result<Option<Claimed>> {
        // Progress that is too large is dropped, so that the claim is renewed in any case.
        let progress = progress.filter(|progress| match check_size("progress", progress) {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!(task = %claimed.task().id, %error, "failed to record progress");
                false
            }
        });
        let event = Event::Renew { lease_id: claimed.lease_id.clone(), lease, progress };
        let from = ChangeFrom::Read(&claimed.loaded);
        let renewed = self.change(Purpose::Renew, from, &event, IndexUpdate::Change).await?.done();
        // Only the holder renews and settles: if the record still has its lease id, the claim is still held.
        let kept = renewed.filter(|loaded| loaded.task.lease_id.as_ref() == Some(&claimed.lease_id));
        Ok(kept.map(|loaded| Claimed { loaded, ..claimed.clone() }))
    }

    /// Ends a claim. The handler must have stopped before this is called. Returns the task, or none if the claim was
    /// lost.
    pub async fn settle(&self, claimed: &Claimed, settlement: Settlement) -> Result<Option<Task>> {
        let event = settlement.event(claimed.lease_id.clone(), self.now()?);
        let index_update = claimed.entries().map_or(IndexUpdate::Change, IndexUpdate::Removing);
        let loaded = &claimed.loaded;
        let span = tracing::debug_span!("settle", "task.id" = %loaded.task.id, how = event.name());
        let settled = self.change(Purpose::Settle, ChangeFrom::Read(loaded), &event, index_update);
        Ok(match settled.instrument(span).await? {
            Transition::Rejected(Rejected::AlreadyApplied, loaded) => Some(loaded.task),
            settled => settled.done().map(|loaded| loaded.task),
        })
    }
}
