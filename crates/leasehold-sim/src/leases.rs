//! Checks on raw lease objects (promise P3): a lease is never deleted, and a take-over raises its epoch.

use serde_json::Value;

use crate::bucket::{BucketChange, StoredObject};

/// Checks a change of a lease on a shard, a worker id or a journal. Leases on worker ids are removed a week after they
/// expire, which no run reaches.
pub(crate) fn check_change(change: &BucketChange) -> Result<(), String> {
    let key = &change.key;
    if !(key.starts_with("shard-leases/") || key.starts_with("workers/") || key == "journal/0/lease.json") {
        return Ok(());
    }
    let Some(after) = &change.after else { return Err(format!("P3: the lease `{key}` was deleted")) };
    let Some(before) = &change.before else { return Ok(()) };
    let ((old, old_holder), (new, new_holder)) = (read(before), read(after));
    let is_kept = new == old && new_holder == old_holder;
    if is_kept || new == old + 1 {
        return Ok(());
    }
    Err(format!("P3: `{key}` has a new holder, but its epoch went from {old} to {new}"))
}

/// Reads epoch and holder.
fn read(stored: &StoredObject) -> (u64, Value) {
    let lease: Value = serde_json::from_slice(&stored.object.body).unwrap_or_default();
    (lease["epoch"].as_u64().unwrap_or_default(), lease["instance"].clone())
}
