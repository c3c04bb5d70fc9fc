//! A change that is written down, and how it is carried out.
//!
//! `change.json` in a task's directory is the moment in which the change happens. Everything after it can be done again
//! from the beginning without harm: files are replaced by the same files, and an operation in the outbox has a name by
//! which it is found there. Should the supervisor have sent it meanwhile, it is sent twice, and the bucket knows it by
//! that name.

use leasehold_core::outpost::{DiskLease, Op, SpoolFile};
use leasehold_core::{Error, Kind, LeaseId, Result};
use leasehold_store::mutant::{Rule, breaks};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::PathBuf;

use super::folder::Folder;
use super::kept::Kept;
use crate::disk::{self, Lasting};

/// A change of a task.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Change {
    /// What the bucket has to hear of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) op: Option<Op>,
    pub(super) then: Then,
}

/// What it makes of the files.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Then {
    /// The directory has just come: submitted, requeued or from the bucket.
    Begin,
    /// The task stays where it is.
    Stay {
        /// The record, if it changes.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        record: Option<Value>,
        lease: Next,
    },
    /// The task goes to `completed/` or `failed/`.
    End { record: Value },
}

/// What becomes of the lease.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Next {
    /// It stays.
    Keep,
    /// Somebody takes what is free.
    Take(DiskLease),
    /// Another takes its place.
    Replace(DiskLease),
    /// It goes.
    Drop,
}

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The task lies where it did.
    There,
    /// Its directory is gone.
    Gone,
    /// Another was faster, and it did not happen.
    Beaten,
}

const CHANGE: &str = "change.json";

impl Change {
    pub(super) fn json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a record has no keys that are not text")
    }

    /// The files of a directory that begins with this change.
    pub(super) fn begun(kept: &Kept, op: Option<Op>) -> [(&'static str, Vec<u8>); 2] {
        let change = Change { op, then: Then::Begin };
        [("task.json", kept.value().to_string().into_bytes()), (CHANGE, change.json())]
    }
}

impl Folder<'_> {
    pub(super) fn write_down(&self, change: &Change, lasting: Lasting) -> Result<()> {
        self.spool.disk.replace(&self.path.join(CHANGE), &change.json(), lasting)
    }

    /// Carries out what another has left half-done; false if the task does not lie here any more.
    pub(super) fn catch_up(&self) -> Result<bool> {
        let path = self.path.join(CHANGE);
        let Some(body) = disk::read(&path)? else { return Ok(true) };
        if breaks(Rule::ChangeLeftHalfDone) {
            return Ok(true);
        }
        match serde_json::from_slice(&body) {
            Ok(change) => Ok(self.carry_out(change, true)? != Outcome::Gone),
            // Only a claim is written without a sync: after a power cut, and then it is void.
            Err(_) => self.spool.disk.remove(&path, Lasting::No).map(|_| true),
        }
    }

    /// `is_again` if another may have done a part of it.
    pub(super) fn carry_out(&self, change: Change, is_again: bool) -> Result<Outcome> {
        let Change { op, then } = change;
        let outcome = match then {
            Then::Begin => self.begin(op.as_ref(), is_again)?,
            Then::Stay { record, lease } => self.stay(op.as_ref(), record, &lease, is_again)?,
            Then::End { record } => {
                self.end(op.as_ref(), &record, is_again)?;
                Outcome::Gone
            }
        };
        match outcome {
            Outcome::Gone => self.spool.disk.take_away(&self.path)?,
            Outcome::There | Outcome::Beaten => {
                self.spool.disk.remove(&self.path.join(CHANGE), Lasting::No)?;
            }
        }
        Ok(outcome)
    }

    /// A task is in one place: what is submitted gives way to one that has ended, and the others take its place.
    fn begin(&self, op: Option<&Op>, is_again: bool) -> Result<Outcome> {
        let ended =
            [SpoolFile::Completed(self.id), SpoolFile::Failed(self.id)].map(|file| self.spool.path(&file));
        let has_ended = ended.iter().any(|path| path.exists());
        let gives_way = match op.map(|op| &op.deed) {
            Some(leasehold_core::outpost::Deed::Submit { .. }) => has_ended,
            Some(_) => false,
            // From the bucket, which has not heard yet what was done here.
            None => self.spool.has_ops_besides(&self.id, self.checkout()?.as_ref())?,
        };
        if gives_way {
            return Ok(Outcome::Gone);
        }
        self.tell(op, is_again)?;
        for path in ended.iter().filter(|path| path.exists()) {
            self.spool.disk.remove(path, Lasting::Yes)?;
        }
        Ok(Outcome::There)
    }

    fn stay(&self, op: Option<&Op>, record: Option<Value>, lease: &Next, is_again: bool) -> Result<Outcome> {
        let path = self.spool.path(&SpoolFile::Lease(self.id));
        let lasting = self.spool.lease_lasting();
        if let Next::Take(lease) = lease {
            let is_ours = self.spool.disk.add(&path, &json(lease), lasting)?
                || self.holder()? == Some(lease.lease_id.clone());
            if !is_ours {
                return Ok(Outcome::Beaten);
            }
        }
        if let Some(record) = record {
            let task = self.spool.path(&SpoolFile::Task(self.id));
            self.spool.disk.replace(&task, record.to_string().as_bytes(), Lasting::Yes)?;
        }
        if let Next::Replace(lease) = lease {
            self.spool.disk.replace(&path, &json(lease), lasting)?;
        }
        self.tell(op, is_again)?;
        if let Next::Drop = lease {
            self.spool.disk.remove(&path, Lasting::Yes)?;
        }
        Ok(Outcome::There)
    }

    fn end(&self, op: Option<&Op>, record: &Value, is_again: bool) -> Result<()> {
        let to = self.final_path(record);
        self.spool.disk.replace(&to, record.to_string().as_bytes(), Lasting::Yes)?;
        self.tell(op, is_again)
    }

    fn final_path(&self, record: &Value) -> PathBuf {
        let is_completed = record["status"] == "completed";
        let file = if is_completed { SpoolFile::Completed(self.id) } else { SpoolFile::Failed(self.id) };
        self.spool.path(&file)
    }

    fn tell(&self, op: Option<&Op>, is_again: bool) -> Result<()> {
        match op {
            Some(op) if !is_again || !self.spool.has_op(op)? => self.spool.append(op).map(|_| ()),
            _ => Ok(()),
        }
    }

    /// The claim in the bucket that was made for this node.
    fn checkout(&self) -> Result<Option<LeaseId>> {
        let body = disk::read(&self.spool.path(&SpoolFile::Task(self.id)))?.unwrap_or_default();
        let kept = Kept::read(&self.id, &body).ok();
        Ok(kept.and_then(|kept| kept.note.checkout).map(|checkout| checkout.lease_id))
    }

    fn holder(&self) -> Result<Option<LeaseId>> {
        let body = disk::read(&self.spool.path(&SpoolFile::Lease(self.id)))?;
        let lease = body.and_then(|body| serde_json::from_slice::<DiskLease>(&body).ok());
        Ok(lease.map(|lease| lease.lease_id))
    }
}

pub(super) fn json(lease: &DiskLease) -> Vec<u8> {
    serde_json::to_vec(lease).expect("names and numbers")
}

/// For what can not be.
pub(super) fn internal(what: &str) -> Error {
    Error::new(Kind::Internal, what)
}
