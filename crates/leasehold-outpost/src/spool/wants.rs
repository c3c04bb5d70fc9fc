//! What the workers of this node handle, so that what comes here can be done here.
//!
//! Each worker says it in a file of its own, and takes that away when it ends. What was said before the machine was started
//! anew, or was not said again for long, does not count; what was written without a time, by a person or another program,
//! counts until it is removed. As long as nobody has said anything, everything is wanted.

use leasehold_core::{HexName, Result, StoreTime, TaskType};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::path::PathBuf;
use std::time::Duration;

use super::Spool;
use crate::disk::{self, Lasting};

/// How often a worker says what it handles.
pub(crate) const SAID_EVERY: Duration = Duration::from_hours(1);
/// So long that counts.
const COUNTS: Duration = Duration::from_hours(3);

/// The folder with a file for each worker.
pub(super) const WANTS: &str = "wants";

/// Which tasks somebody here can do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wants(Option<HashSet<TaskType>>);

impl Wants {
    /// Whether tasks of this type are among them.
    #[must_use]
    pub fn includes(&self, task_type: &TaskType) -> bool {
        self.0.as_ref().is_none_or(|types| types.contains(task_type))
    }

    /// Their types; nothing if it is everything.
    pub(crate) fn types(&self) -> Option<impl Iterator<Item = &TaskType>> {
        self.0.as_ref().map(HashSet::iter)
    }
}

#[derive(Serialize, Deserialize)]
struct When {
    boot_id: String,
    /// Since the machine started.
    at: StoreTime,
}

#[derive(Serialize, Deserialize)]
struct Said {
    /// Nothing if it counts for ever.
    #[serde(flatten)]
    when: Option<When>,
    /// Nothing if it is everything.
    types: Option<Vec<TaskType>>,
}

impl Spool {
    /// This run of a worker handles tasks of these types, or all of them.
    pub fn want(&self, instance: &HexName, types: Option<Vec<TaskType>>) -> Result<()> {
        let now = self.now();
        let body =
            serde_json::to_vec(&Said { when: Some(When { boot_id: now.boot_id, at: now.boot }), types });
        self.disk.replace(&self.wants_of(instance), &body.expect("names and a number"), Lasting::No)
    }

    /// It has ended.
    pub fn want_no_more(&self, instance: &HexName) -> Result<()> {
        self.disk.remove(&self.wants_of(instance), Lasting::No).map(|_| ())
    }

    /// What the workers of this node handle.
    pub fn wants(&self) -> Result<Wants> {
        let now = self.now();
        let mut all: Option<HashSet<TaskType>> = None;
        for name in disk::names(&self.root.join(WANTS))? {
            let path = self.root.join(WANTS).join(name);
            let Some(body) = disk::read(&path)? else { continue };
            let Ok(Said { when, types }) = serde_json::from_slice(&body) else { continue };
            if when.as_ref().is_some_and(|when| when.boot_id != now.boot_id) {
                // Nobody who ran then writes it again.
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
