//! Checks on a change of a record in a bucket with outposts.

use crate::queue::raw::Raw;

/// Events that give a task to a worker, and so raise its epoch.
const CLAIMS: [&str; 4] = ["claim", "take over", "completed_offline", "failed_offline"];
/// Events by which a holder ends its claim.
const SETTLEMENTS: [&str; 5] = ["complete", "fail", "snooze", "release", "stop"];

/// Checks a new record.
pub(super) fn created(new: &Raw) -> Result<(), String> {
    let fits = new.number("rev") == 1 && new.number("epoch") == 0 && new.0["outpost"].is_null();
    let status = if new.is_tombstone() { "cancelled" } else { "pending" };
    if fits && new.status() == status { Ok(()) } else { Err(format!("P2: it was created as {}", new.0)) }
}

/// Returns the event that changed the record.
pub(super) fn event(old: &Raw, new: &Raw) -> String {
    let (before, after) = (old.history().len(), new.history().len());
    let is_told = after > before || new.number("history_folded") != old.number("history_folded");
    let last = new.history().last().filter(|_| is_told);
    last.and_then(|event| event["event"].as_str()).unwrap_or_default().to_owned()
}

/// Checks a change; `now` is the store's time if no process can be mistaken about it.
pub(super) fn changed(old: &Raw, new: &Raw, is_strict: bool, now: Option<i64>) -> Result<(), String> {
    let (from, to, name) = (old.status(), new.status(), event(old, new));
    if new.number("rev") != old.number("rev") + 1 {
        return Err(format!("P2: its revision went from {} to {}", old.number("rev"), new.number("rev")));
    }
    if !new.0["outpost"].is_null() {
        return Err(format!("a node's local fields are in the bucket: {}", new.0));
    }
    let claims = CLAIMS.contains(&name.as_str());
    if new.number("epoch") != old.number("epoch") + u64::from(claims) {
        let (before, after) = (old.number("epoch"), new.number("epoch"));
        return Err(format!("P2: `{name}` changed its epoch from {before} to {after}"));
    }
    let is_same = new.text("lease_id") == old.text("lease_id");
    if to == "running" && is_same == claims {
        return Err(format!("P2: `{name}` does not name the holder; it was {from}"));
    }
    if SETTLEMENTS.contains(&name.as_str()) && (from != "running" || !is_same) {
        return Err(format!("P3: `{name}` by a worker that is not the holder; it was {from}"));
    }
    let ends_early = now.is_some_and(|now| old.time("lease_expires_at").is_none_or(|at| now <= at));
    if name == "time out" && ends_early {
        return Err(format!("P2: it was timed out before {}", old.text("lease_expires_at")));
    }
    if is_strict && name == "completed_offline" && from != "pending" {
        return Err(format!(
            "P2: a strict queue accepted a result of a worker that is not the holder; it was {from}"
        ));
    }
    let leaves = old.is_final() && from != to;
    let may_leave = match name.as_str() {
        "retry" => from != "completed",
        "completed_offline" => from == "failed",
        _ => false,
    };
    if leaves && (!may_leave || old.is_tombstone()) {
        return Err(format!("P3: it went from {from} to {to} by `{name}`"));
    }
    let generation = old.number("generation") + u64::from(name == "retry");
    if new.number("generation") != generation {
        return Err(format!("P3: `{name}` changed its generation to {}", new.number("generation")));
    }
    Ok(())
}
