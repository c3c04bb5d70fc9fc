//! Removing the markers and entries that a migration has left, once no request can be applied at the old keys any
//! longer.
//!
//! Every object is read before it is removed: one that arrived late is a task, not a marker, and is moved like any
//! other.
//!
//! Requests per task: 2 gets, 1 delete; 1 delete per entry that still exists.

use futures::TryStreamExt;
use leasehold_core::{Entry, Index, Result, ShardLen};
use leasehold_store::Purpose;

use super::Migration;
use super::moving::{MoveRoute, MoveStep};
use crate::tasks::TaskObject;

/// Number of entries that are removed concurrently.
const REMOVALS_AT_ONCE: usize = 32;

impl Migration<'_> {
    pub(super) async fn remove_left(&self, route: &MoveRoute) -> Result<()> {
        let [total] = self.queue.count_tasks([route.from]).await?;
        self.for_each_key(route, total, MoveStep::Sweep).await?;
        for index in [Index::Ready, Index::Lease] {
            self.remove_entries(route, index).await?;
        }
        Ok(())
    }

    pub(super) async fn remove_marker(&self, route: &MoveRoute, key: &str) -> Result<()> {
        if let Some(TaskObject::Here(_)) = self.move_task(route, key).await? {
            self.queue.check_allowed(route.intent())?;
            self.queue.client.delete(Purpose::Admin, key).await?;
        }
        Ok(())
    }

    async fn remove_entries(&self, route: &MoveRoute, index: Index) -> Result<()> {
        let keys = self.queue.keys(index.root());
        let left = keys.try_filter(|key| futures::future::ready(is_entry_of(key, route.from)));
        let removals = left.map_ok(|key| async move {
            self.queue.ensure_allowed(route.intent()).await?;
            self.queue.client.delete(Purpose::Admin, &key).await
        });
        removals.try_buffer_unordered(REMOVALS_AT_ONCE).try_collect().await
    }
}

pub(super) fn is_entry_of(key: &str, len: ShardLen) -> bool {
    Entry::parse(key).is_some_and(|entry| entry.has_shard_len(len))
}
