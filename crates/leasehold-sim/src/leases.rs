//! What may become of a lease, read raw (promise P3): it is never deleted, and whoever takes it over raises its epoch.

use serde_json::Value;

use crate::bucket::{Change, Stored};

/// Looks at a change of a lease on a shard or a name. Worker names are removed a week after they ran out: no run lasts
/// so long.
pub(crate) fn watch(change: &Change) -> Result<(), String> {
    let key = &change.key;
    if !(key.starts_with("shard-leases/") || key.starts_with("workers/")) {
        return Ok(());
    }
    let Some(after) = &change.after else { return Err(format!("P3: the lease `{key}` is gone")) };
    let Some(before) = &change.before else { return Ok(()) };
    let ((old, old_holder), (new, new_holder)) = (read(before), read(after));
    let is_kept = new == old && new_holder == old_holder;
    if is_kept || new == old + 1 {
        return Ok(());
    }
    Err(format!("P3: `{key}` changed hands: epoch {old} became {new}"))
}

/// Epoch and holder.
fn read(stored: &Stored) -> (u64, Value) {
    let lease: Value = serde_json::from_slice(&stored.object.body).unwrap_or_default();
    (lease["epoch"].as_u64().unwrap_or_default(), lease["instance"].clone())
}
