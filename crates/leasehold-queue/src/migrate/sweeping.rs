//! Removing what a migration has left, once nothing can land there any more.
//!
//! Everything is read before it is removed: what has landed late is a task, not a mark, and moves like any other.
//!
//! Requests per task: 2 gets, 1 delete; 1 delete for each entry that is still there.

use futures::TryStreamExt;
use leasehold_core::{Entry, Index, Result, ShardLen};
use leasehold_store::Purpose;

use super::Migration;
use super::moving::{Act, Way};
use crate::tasks::Place;

/// How many entries are removed at once.
const REMOVALS_AT_ONCE: usize = 32;

impl Migration<'_> {
    pub(super) async fn remove_left(&self, way: &Way) -> Result<()> {
        let [total] = self.queue.count_tasks([way.from]).await?;
        self.each(way, total, Act::Sweep).await?;
        for index in [Index::Ready, Index::Lease] {
            self.remove_entries(way, index).await?;
        }
        Ok(())
    }

    pub(super) async fn remove_mark(&self, way: &Way, key: &str) -> Result<()> {
        if let Some(Place::Here(_)) = self.move_task(way, key).await? {
            self.queue.still_may(way.intent())?;
            self.queue.client.delete(Purpose::Admin, key).await?;
        }
        Ok(())
    }

    async fn remove_entries(&self, way: &Way, index: Index) -> Result<()> {
        let keys = self.queue.keys(index.root().into());
        let left = keys.try_filter(|key| futures::future::ready(is_entry_of(key, way.from)));
        let removals = left.map_ok(|key| async move {
            self.queue.may(way.intent()).await?;
            self.queue.client.delete(Purpose::Admin, &key).await
        });
        removals.try_buffer_unordered(REMOVALS_AT_ONCE).try_collect().await
    }
}

pub(super) fn is_entry_of(key: &str, len: ShardLen) -> bool {
    Entry::parse(key).is_some_and(|entry| entry.has_shard_of(len))
}
