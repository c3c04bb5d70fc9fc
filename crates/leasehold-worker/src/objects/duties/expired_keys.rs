//! Removes expired idempotency records.

use futures::TryStreamExt;
use futures::future::BoxFuture;
use leasehold_core::{Kind, Result, keys};
use leasehold_queue::source::{Duty, DutyPlan};
use leasehold_store::Purpose;
use std::sync::Arc;
use std::time::Duration;

use crate::objects::Objects;

/// Average interval per worker.
const EVERY: Duration = Duration::from_mins(30);
/// Number of records that are removed concurrently.
const AT_ONCE: usize = 8;

/// Removes expired idempotency records: the holder of the first shard, or every worker without shard leasing.
pub(super) struct ExpiredKeys {
    pub(super) objects: Arc<Objects>,
}

impl ExpiredKeys {
    /// True if this worker does the duties outside the shards.
    fn does_queue_duties(&self) -> bool {
        let objects = &self.objects;
        let Some(first) = objects.queue.shard_len().groups().into_iter().next() else { return true };
        let holds = |now| objects.assignment.holds(&first.first, now);
        objects.options.leasing.is_none() || objects.queue.now().is_ok_and(holds)
    }

    async fn remove(&self) -> Result<()> {
        let queue = &self.objects.queue;
        let records = queue.objects_under(Purpose::Sweep, keys::UNIQUE);
        let removals = records.try_for_each_concurrent(AT_ONCE, |record| async move {
            match queue.remove_expired_key(&record.key).await {
                Err(error) if error.kind() == Kind::Corrupt => self.objects.report(&error.to_string()),
                removed => drop(removed?),
            }
            Ok(())
        });
        removals.await
    }
}

impl Duty for ExpiredKeys {
    fn plan(&self) -> DutyPlan {
        let operation = "remove expired idempotency records";
        DutyPlan { operation, every: EVERY, begins_at_once: false, time_max: None }
    }

    fn tick(&mut self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async {
            if self.does_queue_duties() && self.objects.may_do_duties().await? {
                self.remove().await
            } else {
                Ok(())
            }
        })
    }
}
