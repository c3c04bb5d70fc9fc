//! Task types that the workers of this node handle, so that the supervisor copies only those here.
//!
//! Each worker records its types in a file of its own, and removes it when it ends. A file of an earlier boot, or one that was
//! not renewed for long, does not count; a file without a time, written by a person or another program, counts until it is
//! removed. Without any file, all types are included.

use leasehold_core::ids::TaskTypes;
use leasehold_core::{HexName, Result, StoreTime, TaskType};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;

use super::Spool;
use crate::disk::{self, Durable};

/// Time between two renewals of a worker's file.
pub(crate) const SUBSCRIPTION_RENEWAL: Duration = Duration::from_hours(1);
/// Time for which a worker's file counts.
const LIFETIME: Duration = Duration::from_hours(3);

/// Folder with a file for each worker.
pub(super) const FOLDER: &str = "wants";

/// Time of the last renewal of a file.
#[derive(Serialize, Deserialize)]
struct RecordedAt {
    boot_id: String,
    /// Time since boot.
    at: StoreTime,
}

/// Contents of a worker's file.
#[derive(Serialize, Deserialize)]
struct SubscriptionFile {
    /// `None` if it never expires.
    #[serde(flatten)]
    when: Option<RecordedAt>,
    /// `None` for all.
    types: Option<Vec<TaskType>>,
}

impl Spool {
    /// Records that a worker handles tasks of these types, or of all types.
    pub fn subscribe(&self, instance: &HexName, types: Option<Vec<TaskType>>) -> Result<()> {
        let now = self.now();
        let body = serde_json::to_vec(&SubscriptionFile {
            when: Some(RecordedAt { boot_id: now.boot_id, at: now.boot }),
            types,
        });
        self.disk.replace(&self.subscription_path(instance), &body.expect("names and a number"), Durable::No)
    }

    /// Removes the record of a worker that has ended.
    pub fn unsubscribe(&self, instance: &HexName) -> Result<()> {
        self.disk.remove(&self.subscription_path(instance), Durable::No).map(|_| ())
    }

    /// Reads the task types that the workers of this node handle.
    pub fn subscriptions(&self) -> Result<TaskTypes> {
        let now = self.now();
        let mut all: Option<Vec<TaskType>> = None;
        for name in disk::names(&self.root.join(FOLDER))? {
            let path = self.root.join(FOLDER).join(name);
            let Some(body) = disk::read(&path)? else { continue };
            let Ok(SubscriptionFile { when, types }) = serde_json::from_slice(&body) else { continue };
            if when.as_ref().is_some_and(|when| when.boot_id != now.boot_id) {
                // The worker that wrote it ended with the earlier boot.
                self.disk.remove(&path, Durable::No)?;
                continue;
            }
            match types {
                _ if when.is_some_and(|when| now.boot >= when.at.plus(LIFETIME)) => {}
                Some(types) => all.get_or_insert_default().extend(types),
                None => return Ok(TaskTypes::all()),
            }
        }
        Ok(all.map_or_else(TaskTypes::all, TaskTypes::from_iter))
    }

    fn subscription_path(&self, instance: &HexName) -> PathBuf {
        self.root.join(FOLDER).join(format!("{instance}.json"))
    }
}
