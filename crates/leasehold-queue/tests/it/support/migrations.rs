//! Queues with a task in every state, migrated; and an audit of the raw objects, independent of the queue's code.

use leasehold_core::new_task::Start;
use leasehold_core::{NewTask, Result, TaskId};
use leasehold_queue::{Claimed, MigrateOptions, Migrated, ObjectQueue, Progress, QueueLayout, Settlement};
use leasehold_store::MemoryStore;
use serde_json::{Value, json};
use std::collections::BTreeMap;

use super::audit::{self, assert_covered};
use super::{World, mins, order};

/// The default durations: time in a test costs nothing.
pub(crate) fn options() -> MigrateOptions {
    MigrateOptions::default()
}

fn quiet(_: Progress) {}

pub(crate) async fn migrate(queue: &ObjectQueue, to: u8) -> Result<Migrated> {
    queue.migrate(to, &options(), &quiet).await
}

/// Migrates up to the switch.
pub(crate) async fn switch(queue: &ObjectQueue, to: u8) -> Result<Migrated> {
    queue.migrate(to, &MigrateOptions { removes_old_keys: false, ..options() }, &quiet).await
}

/// Aborts a migration, until everything is moved back.
pub(crate) async fn abort_keeping_keys(queue: &ObjectQueue) -> Result<Migrated> {
    queue.abort_migration(&MigrateOptions { removes_old_keys: false, ..options() }, &quiet).await
}

pub(crate) async fn abort(queue: &ObjectQueue) -> Result<Migrated> {
    queue.abort_migration(&options(), &quiet).await
}

/// Tasks in every status, and the claim that is held on one of them.
pub(crate) struct Every {
    pub(crate) held: Claimed,
    before: BTreeMap<String, Value>,
}

impl Every {
    pub(crate) async fn new(world: &World) -> Self {
        let queue = &world.queue;
        let cancelled = world.submit().await;
        queue.cancel(&cancelled).await.unwrap();
        for settlement in [
            Settlement::complete(json!("done")),
            Settlement::Fail { error: "oh".into(), retryable: false, after: None },
            Settlement::Fail { error: "again".into(), retryable: true, after: None },
        ] {
            let id = world.submit().await;
            let claimed = world.claim(&id).await;
            queue.settle(&claimed, settlement).await.unwrap().unwrap();
        }
        world.submit_this(NewTask { start: Start::After(mins(60)), ..order() }).await;
        let id = world.submit().await;
        let held = world.claim(&id).await;
        Self { held, before: snapshot(&world.store).await }
    }

    /// Asserts that every task exists once, in a shard of this length, unchanged but for its shard and revision, and
    /// covered; and that nothing else exists.
    pub(crate) async fn assert_there(&self, store: &MemoryStore, len: usize, context: &str) {
        let after = snapshot(store).await;
        assert_eq!(after.keys().collect::<Vec<_>>(), self.before.keys().collect::<Vec<_>>(), "{context}");
        for (id, before) in &self.before {
            assert_eq!(essence(&after[id]), essence(before), "{context}");
        }
        assert_all_of(store, len, context).await;
        assert_covered(store, context).await;
    }
}

/// The fields that do not change when a task is moved.
fn essence(task: &Value) -> Value {
    let mut task = task.clone();
    for field in ["shard", "rev", "write_id", "updated_at"] {
        task[field].take();
    }
    task
}

/// All tasks by id. None exists twice, none is a forwarding marker.
async fn snapshot(store: &MemoryStore) -> BTreeMap<String, Value> {
    let mut tasks = BTreeMap::new();
    for key in audit::keys(store, "tasks/").await {
        let task = audit::value(store, &key).await.unwrap();
        assert!(task["status"].is_string(), "{key} is no task: {task}");
        let twice = tasks.insert(task["id"].as_str().unwrap().to_owned(), task);
        assert_eq!(twice, None, "twice");
    }
    tasks
}

/// Asserts that tasks and entries are in shards of this length only.
pub(crate) async fn assert_all_of(store: &MemoryStore, len: usize, context: &str) {
    for key in audit::keys(store, "").await {
        let Some((root, rest)) = key.split_once('/') else { continue };
        if ["tasks", "ready", "leases"].contains(&root) {
            assert_eq!(rest.split('/').next().unwrap().len(), len, "{context}: {key}");
        }
    }
}

/// The raw object of a task in a shard of this length.
pub(crate) async fn raw_at(store: &MemoryStore, id: &TaskId, len: usize) -> Option<Value> {
    audit::value(store, &key_at(id, len)).await
}

pub(crate) fn key_at(id: &TaskId, len: usize) -> String {
    let id = id.to_string();
    format!("tasks/{}/{id}.json", &id[..len])
}
