//! Audit of raw objects, independent of the queue's code: a second opinion on coverage (promise P5).

use leasehold_core::TaskId;
use leasehold_store::{List, MemoryStore, Store};
use serde_json::Value;

/// All keys that begin with `prefix`.
pub(crate) async fn keys(store: &MemoryStore, prefix: &str) -> Vec<String> {
    let mut list = List::all(prefix);
    let mut keys = Vec::new();
    loop {
        let page = store.list(&list).await.unwrap();
        keys.extend(page.entries.into_iter().map(|entry| entry.key));
        match page.next {
            Some(cursor) => list = list.at(cursor),
            None => return keys,
        }
    }
}

/// The raw record of a task, at any key.
pub(crate) async fn task(store: &MemoryStore, id: &TaskId) -> Option<Value> {
    let name = format!("/{id}.json");
    let key = keys(store, "tasks/").await.into_iter().find(|key| key.ends_with(&name))?;
    value(store, &key).await
}

pub(crate) async fn value(store: &MemoryStore, key: &str) -> Option<Value> {
    let object = store.get(key, None).await.unwrap().found()?;
    serde_json::from_slice(&object.body).ok()
}

/// Every task that is not final has an entry that is not ahead of it and due no later than the task.
pub(crate) async fn assert_covered(store: &MemoryStore, context: &str) {
    let mut entries = keys(store, "ready/").await;
    entries.extend(keys(store, "leases/").await);
    for key in keys(store, "tasks/").await {
        let Some(task) = value(store, &key).await else { continue };
        let Some(due) = due_minute(&task) else { continue };
        let (id, rev) = (task["id"].as_str().unwrap(), task["rev"].as_u64().unwrap());
        let is_covered = entries.iter().any(|entry| covers(entry, id, rev, &due));
        let own: Vec<_> = entries.iter().filter(|entry| entry.contains(id)).collect();
        let status = &task["status"];
        assert!(is_covered, "{context}: {status} task {id} at rev {rev}, due {due}, has only {own:?}");
    }
}

fn covers(entry: &str, id: &str, rev: u64, due: &str) -> bool {
    let parts: Vec<_> = entry.split('/').collect();
    let [index, _shard, bucket, name] = parts[..] else { return false };
    let Some((task, entry_rev)) = name.split_once('.') else { return false };
    let task = if index == "ready" { task.get(1..).unwrap_or_default() } else { task };
    task == id && entry_rev.parse::<u64>().is_ok_and(|entry_rev| entry_rev <= rev) && bucket <= due
}

/// The minute by which the task must be found, as entries spell it; none if it is final.
fn due_minute(task: &Value) -> Option<String> {
    let minute = |field: &str| {
        let time = task[field].as_str()?;
        Some(format!("{}{}{}-{}{}", &time[..4], &time[5..7], &time[8..10], &time[11..13], &time[14..16]))
    };
    match task["status"].as_str()? {
        "pending" => [minute("available_at"), minute("expires_at")].into_iter().flatten().min(),
        "running" => minute("lease_expires_at"),
        _ => None,
    }
}

/// True if a raw record is the tombstone of an abandoned submit.
pub(crate) fn is_tombstone(task: &Value) -> bool {
    task["history"][0]["event"] == "abandon"
}
