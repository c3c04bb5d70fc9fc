//! Access to the claims of a journal, for tests.

use leasehold_core::journal::SettleRequest;
use leasehold_core::settlement::Settlement;
use leasehold_core::{Result, TaskId};

use crate::front::QueueLayout;
use crate::journal::JournalQueue;

/// Ends the claim on a running task without its worker, which loses it.
pub async fn end_claim(queue: &JournalQueue, id: &TaskId, settlement: Settlement) -> Result<()> {
    let Some(lease_id) = queue.get(id).await?.lease_id else { return Ok(()) };
    queue.broker.settle(SettleRequest { task: *id, lease_id, settlement }).await.map(drop)
}
