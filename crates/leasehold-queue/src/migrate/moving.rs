//! Moving tasks from shards of one length to shards of another.
//!
//! Requests per task: 1 get, 3 puts (forwarding marker, entry, record) and 1 delete (the old entry); a final task has
//! no entry, so 1 get and 2 puts. Verifying it: 2 gets. A marker found after a crash: 2 gets, and 2 puts if its task
//! is missing. Removing what is left of it: 2 gets and 1 delete, and 1 delete per entry that still exists.

use futures::TryStreamExt;
use leasehold_core::forwarding::ForwardingMarker;
use leasehold_core::{
    Entry, Error, Event, Kind, Result, ShardLen, Task, TaskId, WriteId, keys, record, step,
};
use leasehold_store::host::lock;
use leasehold_store::{Decision, Purpose, update};
use std::collections::BTreeMap;

use super::{Migration, MigrationPass, Progress};
use crate::meta_cache::{Intent, MetaSnapshot};
use crate::tasks::{TaskObject, TaskSnapshot};

/// Number of tasks that are moved concurrently: as many as are read concurrently elsewhere.
const MOVES_AT_ONCE: usize = 32;
/// Maximum number of verification rounds until one finds nothing to correct. One suffices unless another process
/// interferes.
const VERIFY_ROUNDS_MAX: usize = 10;

/// Source and target of a move, and the state of `queue.json` that allows it.
pub(super) struct MoveRoute {
    pub(super) from: ShardLen,
    pub(super) to: ShardLen,
    /// Write id of the `queue.json` that allows it.
    pub(super) under: WriteId,
}

impl MoveRoute {
    pub(super) fn new(known: &MetaSnapshot, from: ShardLen, to: ShardLen) -> Self {
        Self { from, to, under: known.meta.write_id.clone() }
    }

    pub(super) fn intent(&self) -> Intent<'_> {
        Intent::Migrate(&self.under)
    }
}

/// The object at the old key of a task.
enum Marked {
    /// Nothing.
    Gone,
    /// A forwarding marker from an earlier run.
    Before(ForwardingMarker),
    /// The task, which was just replaced; with its entry before.
    Now(ForwardingMarker, Option<Entry>),
}

/// Index entries, by task.
type Covering = BTreeMap<TaskId, Vec<Entry>>;

impl Migration<'_> {
    /// Moves all tasks, and verifies until all of them exist and are covered.
    pub(super) async fn move_and_verify(&self, route: &MoveRoute) -> Result<()> {
        let total = self.pass(route, MigrationPass::Move).await?;
        for _ in 0..VERIFY_ROUNDS_MAX {
            let covering = self.covering(route.to).await?;
            if self.for_each_key(route, total, MigrationPass::Verify, &covering).await? == 0 {
                return Ok(());
            }
        }
        Err(Error::new(Kind::Unavailable, "tasks still appear at old keys; run the migration again"))
    }

    /// Makes sure that no move of these tasks in flight can be applied any longer.
    pub(super) async fn close(&self, route: &MoveRoute) -> Result<()> {
        self.pass(route, MigrationPass::Close).await.map(drop)
    }

    /// Removes the markers and entries that are left, once no request can be applied at the old keys any longer. Every
    /// object is read before it is removed: one that arrived late is a task, not a marker, and is moved like any other.
    pub(super) async fn remove_left(&self, route: &MoveRoute) -> Result<()> {
        self.pass(route, MigrationPass::RemoveOldKeys).await?;
        let removals = self.queue.entries_of(route.from).map_ok(|entry| async move {
            self.queue.ensure_allowed(route.intent()).await?;
            self.queue.client.delete(Purpose::Admin, &entry.key()).await
        });
        removals.try_buffer_unordered(MOVES_AT_ONCE).try_collect().await
    }

    /// Counts the keys of the old length and does a step for each. Returns their number.
    async fn pass(&self, route: &MoveRoute, pass: MigrationPass) -> Result<u64> {
        let [total] = self.queue.count_tasks([route.from]).await?;
        self.for_each_key(route, total, pass, &Covering::new()).await.map(|_| total)
    }

    /// Does a step for every key of the old length, concurrently. Returns the number of keys that had to be
    /// corrected. Corrupt objects are recorded and not moved.
    async fn for_each_key(
        &self,
        route: &MoveRoute,
        total: u64,
        pass: MigrationPass,
        covering: &Covering,
    ) -> Result<u64> {
        (self.report)(Progress::Working(pass, 0, total));
        let is_ours = |key: &String| keys::parse_task_shard(key).is_some_and(|(len, _)| len == route.from);
        let keys = self.queue.task_keys().try_filter(|key| futures::future::ready(is_ours(key)));
        let runs = keys.map_ok(|key| async move { self.run_step(route, &key, pass, covering).await });
        let mut runs = std::pin::pin!(runs.try_buffer_unordered(MOVES_AT_ONCE));
        let (mut done, mut faults) = (0, 0);
        while let Some(is_fine) = runs.try_next().await? {
            (done, faults) = (done + 1, faults + u64::from(!is_fine));
            (self.report)(Progress::Working(pass, done, total));
        }
        Ok(faults)
    }

    async fn run_step(
        &self,
        route: &MoveRoute,
        key: &str,
        pass: MigrationPass,
        covering: &Covering,
    ) -> Result<bool> {
        self.queue.ensure_allowed(route.intent()).await?;
        let outcome = match pass {
            MigrationPass::Move => self.move_task(route, key).await.map(|_| true),
            MigrationPass::Close => self.close_task(route, key).await.map(|()| true),
            MigrationPass::Verify => self.verify(route, key, covering).await,
            MigrationPass::RemoveOldKeys => self.remove_marker(route, key).await.map(|()| true),
        };
        match outcome {
            Err(error) if error.kind() == Kind::Corrupt => {
                self.record_corrupt(error.to_string());
                Ok(true)
            }
            outcome => outcome,
        }
    }

    /// Gives an unmoved task a new revision, so that no marker in flight matches it; writes the task of a marker to
    /// its new key, so that it can be moved back from there.
    async fn close_task(&self, route: &MoveRoute, key: &str) -> Result<()> {
        if let Marked::Before(marker) = self.replace_task(route, key, route.from).await? {
            let found = self.queue.client.get(Purpose::Admin, &marker.key()).await?;
            self.queue.complete_move(Purpose::Admin, &marker, found).await?;
        }
        Ok(())
    }

    fn record_corrupt(&self, corrupt: String) {
        let mut tally = lock(&self.tally);
        if !tally.corrupt.contains(&corrupt) {
            tally.corrupt.push(corrupt);
        }
    }

    /// Moves the task at this key. Returns the object at its new key; none if there is nothing to move.
    async fn move_task(&self, route: &MoveRoute, key: &str) -> Result<Option<TaskObject>> {
        let (marker, entry, found) = match self.replace_task(route, key, route.to).await? {
            Marked::Gone => return Ok(None),
            Marked::Now(marker, entry) => {
                lock(&self.tally).moved += 1;
                (marker, entry, None)
            }
            Marked::Before(marker) => {
                let found = self.queue.client.get(Purpose::Admin, &marker.key()).await?;
                (marker, None, found)
            }
        };
        let place = self.queue.complete_move(Purpose::Admin, &marker, found).await?;
        if let Some(entry) = entry {
            self.queue.remove_entry(Purpose::Admin, &entry).await;
        }
        Ok(Some(place))
    }

    /// Removes the marker at this key.
    async fn remove_marker(&self, route: &MoveRoute, key: &str) -> Result<()> {
        if let Some(TaskObject::Here(_)) = self.move_task(route, key).await? {
            self.queue.check_allowed(route.intent())?;
            self.queue.client.delete(Purpose::Admin, key).await?;
        }
        Ok(())
    }

    /// Replaces the task at this key by its next revision: by a forwarding marker if its shard gets another length.
    async fn replace_task(&self, route: &MoveRoute, key: &str, len: ShardLen) -> Result<Marked> {
        let replaced = update(&self.queue.client, Purpose::Admin, key, |found| {
            let Some(object) = found else { return Ok(Decision::Leave(Marked::Gone)) };
            let loaded = match TaskObject::read(key, object.clone())? {
                TaskObject::Here(loaded) => loaded,
                TaskObject::Elsewhere(marker) => return Ok(Decision::Leave(Marked::Before(marker))),
            };
            self.queue.check_allowed(route.intent())?;
            let marker = ForwardingMarker { task: self.moved(&loaded, len)? };
            let body = if len == route.from { record::write(&marker.task) } else { marker.write() };
            Ok(Decision::write(body, Marked::Now(marker, loaded.task.entry())))
        });
        Ok(replaced.await?.result)
    }

    fn moved(&self, loaded: &TaskSnapshot, len: ShardLen) -> Result<Task> {
        let event = Event::Move { shard: len.shard_of(&loaded.task.id) };
        match step(&loaded.task, &event, &self.queue.step_context()?) {
            Ok(step) => Ok(step.task),
            Err(rejected) => {
                let id = &loaded.task.id;
                Err(Error::new(Kind::Internal, format!("move of task {id} was rejected: {rejected}")))
            }
        }
    }

    /// Verifies that the object at this key is a marker, and that its task exists and is covered. Corrects it if not,
    /// and returns false.
    async fn verify(&self, route: &MoveRoute, key: &str, covering: &Covering) -> Result<bool> {
        let marker = match self.queue.read_task_object(Purpose::Admin, key).await? {
            None => return Ok(true),
            Some(TaskObject::Elsewhere(marker)) => marker,
            Some(TaskObject::Here(_)) => return self.move_task(route, key).await.map(|_| false),
        };
        let Some(TaskObject::Here(loaded)) =
            self.queue.read_task_object(Purpose::Admin, &marker.key()).await?
        else {
            return self.move_task(route, key).await.map(|_| false);
        };
        let Some(entry) = loaded.task.entry() else { return Ok(true) };
        let is_covered = covering
            .get(&entry.id)
            .is_some_and(|existing| existing.iter().any(|existing| existing.covers(&entry)));
        if is_covered || !self.queue.is_uncovered(&loaded, &entry).await? {
            return Ok(true);
        }
        self.queue.put_entry(Purpose::Admin, &entry).await.map(|()| false)
    }

    /// The entries of this length, by task.
    async fn covering(&self, len: ShardLen) -> Result<Covering> {
        let (mut covering, mut entries) = (Covering::new(), std::pin::pin!(self.queue.entries_of(len)));
        while let Some(entry) = entries.try_next().await? {
            covering.entry(entry.id).or_default().push(entry);
        }
        Ok(covering)
    }
}
