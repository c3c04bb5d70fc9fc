//! A recorded change of a task, and its execution.
//!
//! A change takes effect when `change.json` is written to the task's directory. Everything after that is idempotent: files
//! are replaced by the same files, and an operation in the outbox is found there by its name. If the supervisor has sent it
//! meanwhile, it is sent twice, and the bucket recognizes it by that name.

use leasehold_core::Result;
use leasehold_core::outpost::{DiskLease, Op, OpKind, SpoolFile};
use leasehold_store::mutant::breaks;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::folder::TaskFolder;
use crate::disk::{self, Durable};

/// A change of a task.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct SpoolChange {
    /// Operation to send to the bucket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) op: Option<Op>,
    pub(super) then: FileChange,
}

/// Effect of a change on the files.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum FileChange {
    /// The directory is new: submitted, requeued or from the bucket.
    Begin,
    /// The task stays where it is.
    Stay {
        /// The record, if it changes.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        record: Option<Value>,
        lease: LeaseChange,
    },
    /// The task moves to `completed/` or `failed/`.
    End { record: Value },
}

/// Effect of a change on the lease.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum LeaseChange {
    /// Unchanged.
    Keep,
    /// Created, if there is none.
    Take(DiskLease),
    /// Replaced by another.
    Replace(DiskLease),
    /// Removed.
    Drop,
}

/// Outcome of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ChangeOutcome {
    /// The task's directory is still there.
    Present,
    /// The task's directory was removed.
    Removed,
    /// Another process was faster: the change had no effect.
    Superseded,
}

pub(super) const CHANGE: &str = "change.json";

impl SpoolChange {
    pub(super) fn json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a record has no keys that are not text")
    }
}

impl TaskFolder<'_> {
    /// Writes the change to the task's directory, which is when it takes effect.
    pub(super) fn record_change(&self, change: &SpoolChange, durable: Durable) -> Result<()> {
        self.spool.disk.replace(&self.path.join(CHANGE), &change.json(), durable)
    }

    /// Finishes a change that another process has left unfinished; false if the task is no longer here.
    pub(super) fn finish_change(&self) -> Result<bool> {
        let path = self.path.join(CHANGE);
        let Some(body) = disk::read(&path)? else { return Ok(true) };
        if breaks("change-left-half-done") {
            return Ok(true);
        }
        match serde_json::from_slice(&body) {
            Ok(change) => Ok(self.execute(change, true)? != ChangeOutcome::Removed),
            // Only a claim is written without a sync, so only a power cut can corrupt it, and then it is void.
            Err(_) => self.spool.disk.remove(&path, Durable::No).map(|_| true),
        }
    }

    /// Executes a change. `is_again` if another process may have executed a part of it.
    pub(super) fn execute(&self, change: SpoolChange, is_again: bool) -> Result<ChangeOutcome> {
        let SpoolChange { op, then } = change;
        let outcome = match then {
            FileChange::Begin => self.begin(op.as_ref(), is_again)?,
            FileChange::Stay { record, lease } => self.stay(op.as_ref(), record, &lease, is_again)?,
            FileChange::End { record } => {
                let is_completed = record["status"] == "completed";
                let file = if is_completed { SpoolFile::Completed } else { SpoolFile::Failed };
                let to = self.spool.path(&file(self.id));
                self.spool.disk.replace(&to, record.to_string().as_bytes(), Durable::Yes)?;
                self.append_op(op.as_ref(), is_again)?;
                ChangeOutcome::Removed
            }
        };
        match outcome {
            ChangeOutcome::Removed => self.spool.disk.remove_directory(&self.path)?,
            ChangeOutcome::Present | ChangeOutcome::Superseded => {
                self.spool.disk.remove(&self.path.join(CHANGE), Durable::No)?;
            }
        }
        Ok(outcome)
    }

    /// Begins a task directory. A task is in one folder only: a submitted task yields to an ended one of the same id; a
    /// requeued or mirrored one replaces it.
    fn begin(&self, op: Option<&Op>, is_again: bool) -> Result<ChangeOutcome> {
        let ended =
            [SpoolFile::Completed(self.id), SpoolFile::Failed(self.id)].map(|file| self.spool.path(&file));
        let has_ended = ended.iter().any(|path| path.exists());
        let yields = match op.map(|op| &op.kind) {
            Some(OpKind::Submit { .. }) => has_ended,
            Some(_) => false,
            // Mirrored from the bucket, which may not have the operations of this node yet.
            None => {
                let checkout = self.spool.local_task(&self.id)?.and_then(|local| local.checkout);
                self.spool.has_other_ops(&self.id, checkout.as_ref().map(|checkout| &checkout.lease_id))?
            }
        };
        if yields {
            return Ok(ChangeOutcome::Removed);
        }
        self.append_op(op, is_again)?;
        for path in ended.iter().filter(|path| path.exists()) {
            self.spool.disk.remove(path, Durable::Yes)?;
        }
        Ok(ChangeOutcome::Present)
    }

    fn stay(
        &self,
        op: Option<&Op>,
        record: Option<Value>,
        lease: &LeaseChange,
        is_again: bool,
    ) -> Result<ChangeOutcome> {
        let path = self.spool.path(&SpoolFile::Lease(self.id));
        let durable = self.spool.lease_durability();
        if let LeaseChange::Take(lease) = lease {
            let is_ours = self.spool.disk.create(&path, &json(lease), durable)?
                || self.spool.lease_of(&self.id)?.is_some_and(|held| held.lease_id == lease.lease_id);
            if !is_ours {
                return Ok(ChangeOutcome::Superseded);
            }
        }
        if let Some(record) = record {
            let task = self.spool.path(&SpoolFile::Task(self.id));
            self.spool.disk.replace(&task, record.to_string().as_bytes(), Durable::Yes)?;
        }
        if let LeaseChange::Replace(lease) = lease {
            self.spool.disk.replace(&path, &json(lease), durable)?;
        }
        self.append_op(op, is_again)?;
        if let LeaseChange::Drop = lease {
            self.spool.disk.remove(&path, Durable::Yes)?;
        }
        Ok(ChangeOutcome::Present)
    }

    /// Appends an operation to the outbox, unless an earlier execution of the change has appended it.
    fn append_op(&self, op: Option<&Op>, is_again: bool) -> Result<()> {
        match op {
            Some(op) if !is_again || !self.spool.has_op(op)? => self.spool.append(op).map(|_| ()),
            _ => Ok(()),
        }
    }
}

pub(super) fn json(lease: &DiskLease) -> Vec<u8> {
    serde_json::to_vec(lease).expect("names and numbers")
}
