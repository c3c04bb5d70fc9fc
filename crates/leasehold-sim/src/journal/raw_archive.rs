//! The archive as the raw records and objects have it, without the code that reads it: every archived task is in one object
//! that exists, at its last revision.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

use super::raw_tasks::RawTasks;
use crate::bucket::{BucketChange, BucketObjects, StoredObject};
use crate::queue::raw::Raw;

const ARCHIVE: &str = "journal/0/archive/";

/// Objects of the archive, and the tasks in them.
#[derive(Debug, Default)]
pub(super) struct RawArchive {
    /// Names that the log refers to.
    table: BTreeSet<String>,
    /// Object of each archived task.
    object_of: BTreeMap<String, String>,
    /// Number of tasks that were archived.
    archived: u64,
    /// Number of objects that were removed.
    removed: u64,
    /// Number of archived tasks that became live.
    restored: u64,
}

impl RawArchive {
    /// Object that has a task.
    pub(super) fn object_of(&self, id: &str) -> Option<&str> {
        self.object_of.get(id).map(String::as_str)
    }

    /// Counts for the summary: archived tasks, removed objects, tasks that became live again.
    pub(super) fn summary(&self) -> String {
        let Self { archived, removed, restored, .. } = self;
        format!("{archived} archived, {removed} archive objects removed, {restored} restored")
    }

    /// Checks a change of an object: the archive is written once, and deleted when the log no longer refers to it.
    pub(super) fn check_change(&self, change: &BucketChange) -> Result<(), String> {
        let Some(name) = change.key.strip_prefix(ARCHIVE) else { return Ok(()) };
        match (&change.before, &change.after) {
            (Some(_), Some(_)) => Err(format!("P1: archive object {name} was overwritten")),
            (_, None) if self.table.contains(name) => {
                Err(format!("P1: archive object {name} was deleted, but the log refers to it"))
            }
            _ => Ok(()),
        }
    }

    /// Applies a record, and checks the objects that it refers to.
    pub(super) fn apply(
        &mut self,
        record: &Raw,
        tasks: &mut RawTasks,
        objects: &BucketObjects,
    ) -> Result<(), String> {
        let mut moved = BTreeMap::new();
        for task in list(&record.0["tasks"]) {
            let (id, rev) = (text(&task["id"]), task["rev"].as_u64().unwrap_or(0));
            let now = tasks.get(&id).map(|task| task.now().clone());
            let is_right = now.is_some_and(|now| now.is_final() && now.number("rev") == rev);
            if !is_right || self.object_of.contains_key(&id) {
                return Err(format!(
                    "P1: task {id} is archived at revision {rev}, which is not its final one"
                ));
            }
            moved.insert(id, rev);
        }
        self.archived += moved.len() as u64;
        for name in list(&record.0["removed"]).map(text) {
            if !self.table.remove(&name) {
                return Err(format!("P1: archive object {name} is removed, but was never added"));
            }
            self.removed += 1;
        }
        self.outdate(&record.0["outdated"], tasks)?;
        let table = &self.table;
        let displaced = self.object_of.extract_if(.., |_, object| !table.contains(object)).map(|(id, _)| id);
        for id in displaced {
            let rev = tasks.get(&id).map_or(0, |task| task.now().number("rev"));
            moved.insert(id, rev);
        }
        for object in list(&record.0["added"]) {
            self.add(object, &mut moved, objects)?;
        }
        match moved.first_key_value() {
            None => Ok(()),
            Some((id, rev)) => {
                Err(format!("P1: task {id} is archived at revision {rev}, but no object has it"))
            }
        }
    }

    fn outdate(&mut self, outdated: &Value, tasks: &mut RawTasks) -> Result<(), String> {
        for copy in list(outdated) {
            let (id, object) = (text(&copy["id"]), text(&copy["object"]));
            if self.object_of.remove(&id) != Some(object) {
                return Err(format!("P1: task {id} becomes live, but is not archived there"));
            }
            tasks.restore(&id)?;
            self.restored += 1;
        }
        Ok(())
    }

    /// Adds an object, and takes its tasks from those that are expected.
    fn add(
        &mut self,
        object: &Value,
        expected: &mut BTreeMap<String, u64>,
        objects: &BucketObjects,
    ) -> Result<(), String> {
        let name = text(&object["name"]);
        let stored = objects.get(&format!("{ARCHIVE}{name}"));
        let stored =
            stored.ok_or_else(|| format!("P1: archive object {name} is logged, but does not exist"))?;
        let outdated: BTreeSet<_> = list(&object["outdated"]).map(text).collect();
        for (id, rev) in content(stored)? {
            if outdated.contains(&id) {
                continue;
            }
            if expected.remove(&id) != Some(rev) {
                return Err(format!(
                    "P1: archive object {name} has task {id} at revision {rev}, unlike the log"
                ));
            }
            self.object_of.insert(id, name.clone());
        }
        self.table.insert(name);
        Ok(())
    }

    /// Checks at rest that every archived task is in its object.
    pub(super) fn check_objects(&self, objects: &BucketObjects) -> Result<(), String> {
        for (id, name) in &self.object_of {
            let stored = objects.get(&format!("{ARCHIVE}{name}"));
            let stored =
                stored.ok_or_else(|| format!("P1: archive object {name} of task {id} is missing"))?;
            if !content(stored)?.contains_key(id) {
                return Err(format!("P1: archive object {name} does not have task {id}"));
            }
        }
        Ok(())
    }
}

/// Ids and revisions of the tasks of an object.
fn content(stored: &StoredObject) -> Result<BTreeMap<String, u64>, String> {
    let lines = stored.object.body.split(|byte| *byte == b'\n').skip(1).filter(|line| !line.is_empty());
    let tasks = lines.map(|line| {
        let task: Value = serde_json::from_slice(line).map_err(|error| error.to_string())?;
        Ok((text(&task["id"]), task["rev"].as_u64().unwrap_or(1)))
    });
    tasks.collect()
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
