//! Checks on a change of a task's record (promises P2, P3, P7).

use super::raw::Raw;

/// Events by which a holder ends its claim.
const SETTLEMENTS: [&str; 5] = ["complete", "fail", "snooze", "release", "stop"];

/// Minimum time from creation to purge, and from purge to deletion.
pub(super) const PURGE_GRACE_MS: i64 = 24 * 3_600_000;

/// Checks the deletion of a record.
pub(super) fn deleted(old: &Raw, now: Option<i64>) -> Result<(), String> {
    let is_early = |now: i64| old.time("finished_at").is_none_or(|at| now < at + PURGE_GRACE_MS);
    if old.status() != "purged" || now.is_some_and(is_early) {
        return Err(format!("P1: it was deleted as {}", old.0));
    }
    Ok(())
}

/// Checks a new record.
pub(crate) fn created(new: &Raw) -> Result<(), String> {
    let fits = new.number("rev") == 1 && new.number("epoch") == 0 && new.history().len() == 1;
    let status = if new.is_tombstone() { "cancelled" } else { "pending" };
    if fits && new.status() == status { Ok(()) } else { Err(format!("P2: it was created as {}", new.0)) }
}

/// Checks a change; `now` is the store's time if no process can be mistaken about it.
pub(crate) fn changed(old: &Raw, new: &Raw, now: Option<i64>) -> Result<(), String> {
    let (from, to) = (old.status(), new.status());
    if new.number("rev") != old.number("rev") + 1 {
        return Err(format!("P2: its revision went from {} to {}", old.number("rev"), new.number("rev")));
    }
    let event = appended(old, new)?;
    let name = event.as_ref().map_or("", |event| event["event"].as_str().unwrap_or_default());
    let claims = name == "claim";
    if new.number("epoch") != old.number("epoch") + u64::from(claims) {
        return Err(format!(
            "P2: {name} changed its epoch from {} to {}",
            old.number("epoch"),
            new.number("epoch")
        ));
    }
    if claims && (from != "pending" || to != "running" || new.text("lease_id") == old.text("lease_id")) {
        return Err(format!("P2: it was claimed while {from}"));
    }
    if to == "running" && !claims && (from != "running" || new.text("lease_id") != old.text("lease_id")) {
        return Err(format!("P2: {name} changed the holder without a claim"));
    }
    if let Some(event) = &event
        && event["epoch"].as_u64() != Some(new.number("epoch"))
    {
        return Err(format!(
            "P3: {name} is recorded for epoch {}, not {}",
            event["epoch"],
            new.number("epoch")
        ));
    }
    if SETTLEMENTS.contains(&name) {
        let same = new.text("lease_id") == old.text("lease_id");
        if from != "running"
            || !same
            || event.as_ref().is_some_and(|event| event["by"] != old.0["claimed_by"])
        {
            return Err(format!("P3: {name} by a worker that is not the holder; it was {from}"));
        }
    }
    if name == "time out" && now.is_some_and(|now| old.time("lease_expires_at").is_none_or(|at| now <= at)) {
        return Err(format!("P2: it was timed out before {}", old.text("lease_expires_at")));
    }
    if name == "expire" && now.is_some_and(|now| old.time("expires_at").is_none_or(|at| now <= at)) {
        return Err(format!("it expired before {}", old.text("expires_at")));
    }
    if name == "purge" {
        let is_early = |now: i64| old.time("created_at").is_none_or(|at| now < at + PURGE_GRACE_MS);
        if !old.is_final() || from == "purged" || to != "purged" || now.is_some_and(is_early) {
            return Err(format!("P1: it was purged while {from}"));
        }
        return Ok(());
    }
    let leaves_final = old.is_final() && from != to;
    if leaves_final && (from == "purged" || name != "retry" || from == "completed" || old.is_tombstone()) {
        return Err(format!("P3: it went from {from} to {to} by `{name}`"));
    }
    Ok(())
}

/// Returns the event that was appended to the history (promise P7).
fn appended(old: &Raw, new: &Raw) -> Result<Option<serde_json::Value>, String> {
    let (before, after) = (old.history(), new.history());
    if new.number("history_folded") != old.number("history_folded") {
        return Ok(after.last().cloned());
    }
    if after.len() < before.len() || after[..before.len()] != *before {
        return Err("P7: its history was changed".into());
    }
    match &after[before.len()..] {
        [] if old.status() == new.status() => Ok(None),
        [] => Err(format!("P7: from {} to {} without an event", old.status(), new.status())),
        [one] if one["from"] == old.0["status"] && one["to"] == new.0["status"] => Ok(Some(one.clone())),
        more => Err(format!("P7: from {} to {}, but its history says {more:?}", old.status(), new.status())),
    }
}
