//! Task types that the workers of this node handle, so that the supervisor copies only those here.
//!
//! Each worker records its types in a file of its own, and removes it when it ends. A file of an earlier boot, or one that was
//! not renewed for long, does not count; a file without a time, written by a person or another program, counts until it is
//! removed. Without any file, all types are included.

use leasehold_core::{HexName, Result, StoreTime, TaskType};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::path::PathBuf;
use std::time::Duration;

use super::Spool;
use crate::disk::{self, Lasting};

/// Time between two renewals of a worker's file.
pub(crate) const SAID_EVERY: Duration = Duration::from_hours(1);
/// Time for which a worker's file counts.
const COUNTS: Duration = Duration::from_hours(3);

/// Folder with a file for each worker.
pub(super) const WANTS: &str = "wants";

/// Task types that the workers of this node handle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wants(Option<HashSet<TaskType>>);

impl Wants {
    /// Returns whether a worker here handles this type.
    #[must_use]
    pub fn includes(&self, task_type: &TaskType) -> bool {
        self.0.as_ref().is_none_or(|types| types.contains(task_type))
    }

    /// The types; `None` for all.
    pub(crate) fn types(&self) -> Option<impl Iterator<Item = &TaskType>> {
        self.0.as_ref().map(HashSet::iter)
    }
}

#[derive(Serialize, Deserialize)]
struct When {
    boot_id: String,
    /// Time since boot.
    at: StoreTime,
}

#[derive(Serialize, Deserialize)]
struct Said {
    /// `None` if it never expires.
    #[serde(flatten)]
    when: Option<When>,
    /// `None` for all.
    types: Option<Vec<TaskType>>,
}

impl Spool {
    /// Records that a worker handles tasks of these types, or of all types.
    pub fn want(&self, instance: &HexName, types: Option<Vec<TaskType>>) -> Result<()> {
        let now = self.now();
        let body =
            serde_json::to_vec(&Said { when: Some(When { boot_id: now.boot_id, at: now.boot }), types });
        self.disk.replace(&self.wants_of(instance), &body.expect("names and a number"), Lasting::No)
    }

    /// Removes the record of a worker that has ended.
    pub fn want_no_more(&self, instance: &HexName) -> Result<()> {
        self.disk.remove(&self.wants_of(instance), Lasting::No).map(|_| ())
    }

    /// Reads the task types that the workers of this node handle.
    pub fn wants(&self) -> Result<Wants> {
        let now = self.now();
        let mut all: Option<HashSet<TaskType>> = None;
        for name in disk::names(&self.root.join(WANTS))? {
            let path = self.root.join(WANTS).join(name);
            let Some(body) = disk::read(&path)? else { continue };
            let Ok(Said { when, types }) = serde_json::from_slice(&body) else { continue };
            if when.as_ref().is_some_and(|when| when.boot_id != now.boot_id) {
                // The worker that wrote it died with the earlier boot.
                self.disk.remove(&path, Lasting::No)?;
                continue;
            }
            match types {
                _ if when.is_some_and(|when| now.boot >= when.at.plus(COUNTS)) => {}
                Some(types) => all.get_or_insert_default().extend(types),
                None => return Ok(Wants(None)),
            }
        }
        Ok(Wants(all))
    }

    fn wants_of(&self, instance: &HexName) -> PathBuf {
        self.root.join(WANTS).join(format!("{instance}.json"))
    }
}
