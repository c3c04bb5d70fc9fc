//! Tasks as the raw records of the log make them, without the code that replays it.

use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

use super::raw_log::{RawFence, millis};
use crate::queue::checks;
use crate::queue::raw::Raw;

/// Fields that follow from the state of a task.
const STATE_FIELDS: [&str; 8] = [
    "available_at",
    "claimed_by",
    "lease_expires_at",
    "renewed_at",
    "cancel_requested",
    "output",
    "results",
    "finished_at",
];
/// Fields of a change that are kept if absent.
const KEPT: [&str; 5] = ["shard", "attempt", "max_attempts", "epoch", "generation"];
/// Fields of a change that null clears.
const CLEARED: [&str; 4] = ["lease_id", "expires_at", "error", "progress"];
/// Fields by which tasks are compared. The expiry of a claim and its progress change with renewals, which are not logged.
const COMPARED: [&str; 18] = [
    "status",
    "rev",
    "task_type",
    "input",
    "attempt",
    "max_attempts",
    "epoch",
    "generation",
    "lease_id",
    "claimed_by",
    "cancel_requested",
    "available_at",
    "finished_at",
    "created_at",
    "updated_at",
    "expires_at",
    "error",
    "output",
];

/// Tasks of the log.
#[derive(Debug, Default)]
pub(super) struct RawTasks {
    tasks: BTreeMap<String, RawTask>,
    /// Number of records.
    records: u64,
    /// Task that has each idempotency key, and the expiry of the key.
    keys: BTreeMap<String, (String, i64)>,
}

/// A task of the log.
#[derive(Debug)]
pub(super) struct RawTask {
    /// Its revisions, each with the number of the record that made it.
    revisions: Vec<(u64, Raw)>,
    /// Duration of the lease of its claim, in milliseconds.
    lease_ms: i64,
    /// True if its claim was made or renewed since the last fence, by the log.
    is_heard: bool,
    /// True if it leaves the archive: it is about to be submitted as it was.
    is_restored: bool,
}

/// Effect of a record on a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ClaimEffect {
    Begins {
        id: String,
        lease_id: String,
    },
    /// Ends by a record of this kind.
    Ends {
        id: String,
        lease_id: String,
        kind: String,
    },
}

impl RawTask {
    /// Current revision.
    pub(super) fn now(&self) -> &Raw {
        &self.revisions[self.revisions.len() - 1].1
    }

    /// Revision with this number, and the numbers of the records by which it began and ended.
    pub(super) fn revision(&self, rev: u64) -> Option<(&Raw, u64, u64)> {
        let at = self.revisions.iter().position(|(_, task)| task.number("rev") == rev)?;
        let ended = self.revisions.get(at + 1).map_or(u64::MAX, |(record, _)| *record);
        Some((&self.revisions[at].1, self.revisions[at].0, ended))
    }

    /// Number of the record that submitted it.
    pub(super) fn submitted(&self) -> u64 {
        self.revisions[0].0
    }

    /// Current claim.
    pub(super) fn lease_id(&self) -> Option<&str> {
        Some(self.now()).filter(|now| now.status() == "running").map(|now| now.text("lease_id"))
    }

    /// Duration of the lease of its claim, in milliseconds.
    pub(super) fn lease_ms(&self) -> i64 {
        self.lease_ms
    }

    fn set_expiry(&mut self, at: i64) {
        let last = self.revisions.len() - 1;
        self.revisions[last].1.0["lease_expires_at"] = time(at);
    }
}

impl RawTasks {
    /// Number of records so far.
    pub(super) fn records(&self) -> u64 {
        self.records
    }

    pub(super) fn get(&self, id: &str) -> Option<&RawTask> {
        self.tasks.get(id)
    }

    /// Notes that a task leaves the archive.
    pub(super) fn restore(&mut self, id: &str) -> Result<(), String> {
        let task = self.tasks.get_mut(id).ok_or_else(|| format!("P1: task {id} was never submitted"))?;
        task.is_restored = true;
        Ok(())
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&String, &RawTask)> {
        self.tasks.iter()
    }

    /// Applies a record; `now` is the store's time if no process can be mistaken about it. Returns its effect on a claim.
    pub(super) fn apply(&mut self, record: &Raw, now: Option<i64>) -> Result<Option<ClaimEffect>, String> {
        self.records += 1;
        match record.text("kind") {
            "submit" => self.submit(&record.0["record"], now).map(|()| None),
            // The archive is checked apart.
            "archive" => Ok(None),
            "heard" => self.hear(&record.0["tasks"]).map(|()| None),
            kind => {
                let id = record.text("task");
                self.change(id, kind, &record.0["change"], now).map_err(|why| format!("task {id}: {why}"))
            }
        }
    }

    /// Applies a fence: claims that were made or renewed since the last one (`heard`) are extended (rules C4 and C5).
    pub(super) fn fence(&mut self, fence: RawFence) {
        for task in self.tasks.values_mut().filter(|task| task.now().status() == "running") {
            if std::mem::take(&mut task.is_heard) {
                let until = fence.at.max(fence.trusted_until) + task.lease_ms;
                task.set_expiry(until.max(task.now().time("lease_expires_at").unwrap_or(0)));
            }
        }
    }

    fn submit(&mut self, record: &Value, now: Option<i64>) -> Result<(), String> {
        let task = submitted(record)?;
        let id = task.text("id").to_owned();
        if let Some(known) = self.tasks.get_mut(&id).filter(|known| known.is_restored) {
            known.is_restored = false;
            return match difference(known.now(), &task.0) {
                None => Ok(()),
                Some(field) => Err(format!("P1: task {id} becomes live with another {field}")),
            };
        }
        checks::created(&task).map_err(|why| format!("task {id}: {why}"))?;
        if let Some(key) = record["idempotency_key"].as_str() {
            let expires_at = millis(&record["key_expires_at"]).ok_or("a key without an expiry")?;
            if let (Some((owner, until)), Some(now)) = (self.keys.get(key), now)
                && now <= *until
            {
                return Err(format!("one key has two tasks: {owner} and {id}"));
            }
            self.keys.insert(key.to_owned(), (id.clone(), expires_at));
        }
        let raw = RawTask {
            revisions: vec![(self.records, task)],
            lease_ms: 0,
            is_heard: false,
            is_restored: false,
        };
        match self.tasks.insert(id.clone(), raw) {
            Some(_) => Err(format!("P1: task {id} is submitted twice")),
            None => Ok(()),
        }
    }

    fn hear(&mut self, tasks: &Value) -> Result<(), String> {
        for id in tasks.as_array().into_iter().flatten().filter_map(Value::as_str) {
            let task = self.tasks.get_mut(id).filter(|task| task.now().status() == "running");
            task.ok_or_else(|| format!("P3: task {id} is renewed, but not running"))?.is_heard = true;
        }
        Ok(())
    }

    fn change(
        &mut self,
        id: &str,
        kind: &str,
        change: &Value,
        now: Option<i64>,
    ) -> Result<Option<ClaimEffect>, String> {
        let record = self.records;
        let task = self.tasks.get_mut(id).ok_or("P1: it changes, but was never submitted")?;
        let (before, lease_before) = (task.now().clone(), task.lease_id().map(str::to_owned));
        let after = changed(&before, change)?;
        checks::changed(&before, &after, now)?;
        task.revisions.push((record, after));
        let lease_after = task.lease_id().map(str::to_owned);
        let id = id.to_owned();
        Ok(match (lease_before, lease_after) {
            (None, Some(lease_id)) => {
                let (at, until) = (millis(&change["at"]), task.now().time("lease_expires_at"));
                task.lease_ms = until.unwrap_or(0) - at.unwrap_or(0);
                task.is_heard = true;
                Some(ClaimEffect::Begins { id, lease_id })
            }
            (Some(lease_id), None) => Some(ClaimEffect::Ends { id, lease_id, kind: kind.to_owned() }),
            _ => None,
        })
    }
}

/// The task of a submit, with the fields that its record leaves out.
fn submitted(record: &Value) -> Result<Raw, String> {
    let fields = record.as_object().ok_or("a submit without a task")?;
    let created_at = record["created_at"].clone();
    let mut task: Map<String, Value> = [
        ("status", json!("pending")),
        ("rev", json!(1)),
        ("attempt", json!(0)),
        ("max_attempts", json!(4)),
        ("epoch", json!(0)),
        ("input", Value::Null),
        ("available_at", created_at.clone()),
        ("updated_at", created_at),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value))
    .collect();
    task.extend(fields.clone());
    if task["status"] != "pending" {
        task.shift_remove("available_at");
    }
    let submit = json!({ "event": "submit", "to": "pending", "by": record["submitted_by"] });
    task.insert("history".to_owned(), json!([submit]));
    Ok(Raw(Value::Object(task)))
}

/// The next revision of a task.
fn changed(before: &Raw, change: &Value) -> Result<Raw, String> {
    let mut after = before.clone();
    let fields = change.as_object().ok_or("a change without fields")?;
    for (name, value) in fields {
        match name.as_str() {
            "rev" => after.0["rev"] = value.clone(),
            "at" => after.0["updated_at"] = value.clone(),
            "write_id" | "event" => {}
            "state" => set_state(&mut after, value)?,
            name if KEPT.contains(&name) => after.0[name] = value.clone(),
            name if CLEARED.contains(&name) => set(&mut after, name, value.clone()),
            name => return Err(format!("a change has the unknown field `{name}`")),
        }
    }
    let event = &change["event"];
    if !event.is_null() {
        let event = json!({
            "event": event["name"],
            "by": event["by"],
            "from": before.0["status"],
            "to": after.0["status"],
            "epoch": after.0["epoch"],
        });
        after.0["history"].as_array_mut().into_iter().for_each(|history| history.push(event.clone()));
    }
    Ok(after)
}

fn set_state(task: &mut Raw, state: &Value) -> Result<(), String> {
    let state = state.as_object().filter(|state| state.len() == 1).ok_or("a state without a status")?;
    for name in STATE_FIELDS {
        set(task, name, Value::Null);
    }
    for (status, fields) in state {
        set(task, "status", json!(status));
        for (name, value) in fields.as_object().into_iter().flatten() {
            let name = match name.as_str() {
                "by" => "claimed_by",
                "expires_at" => "lease_expires_at",
                name => name,
            };
            set(task, name, value.clone());
        }
    }
    Ok(())
}

fn set(task: &mut Raw, name: &str, value: Value) {
    let Some(fields) = task.0.as_object_mut() else { return };
    if value.is_null() {
        fields.shift_remove(name);
    } else {
        fields.insert(name.to_owned(), value);
    }
}

fn time(millis: i64) -> Value {
    json!(leasehold_core::StoreTime::from_millis(millis).to_string())
}

/// Returns the name of a field in which a task differs from the log.
pub(super) fn difference(logged: &Raw, task: &Value) -> Option<&'static str> {
    let is_default = |value: &Value| value.is_null() || *value == json!(false) || *value == json!(0);
    let differs = |name: &&&str| {
        let (logged, reported) = (&logged.0[**name], &task[**name]);
        logged != reported && !(is_default(logged) && is_default(reported))
    };
    COMPARED.iter().find(differs).copied()
}
