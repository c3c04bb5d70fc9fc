//! Operations of this node that were not sent to the bucket yet, in order.
//!
//! Operations on one task are written under the lock on its directory, so they are in order. Sequence numbers are assigned
//! under a lock on `outbox/`, and the last one is kept beside it (`outbox.last`): a number is never used twice, even when all
//! earlier operations were sent. An operation is never changed, so a process reads it only once.

use leasehold_core::outpost::{ClockSource, NodeNow, Op, OpKind, SpoolFile, SyncRefusal};
use leasehold_core::{Error, Kind, LeaseId, Name, Result, StoreTime, Task, TaskId};
use leasehold_store::host::lock;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::MutexGuard;

use super::Spool;
use super::record::Note;
use crate::disk::{self, Durable};

/// Cached contents of the outbox.
#[derive(Debug, Default)]
pub(super) struct OutboxIndex {
    /// Last sequence number at the last scan.
    last: Option<u64>,
    ops: BTreeMap<u64, OpIdentity>,
}

/// Identity of an operation: its task, its name, and its claim, in case two workers have used the same epoch.
type OpIdentity = (TaskId, Name, Option<LeaseId>);

/// Operation that the bucket has rejected, as it is stored.
#[derive(Serialize, Deserialize)]
pub(super) struct Conflict {
    pub(super) op: Op,
    pub(super) why: SyncRefusal,
    pub(super) at: StoreTime,
    pub(super) clock: ClockSource,
}

impl Spool {
    /// Reads the operations to send, in order. Corrupt ones are moved to `conflicts/` and logged.
    pub fn outbox(&self) -> Result<Vec<(u64, Op)>> {
        let mut ops = Vec::new();
        for seq in self.seqs()? {
            let path = self.path(&SpoolFile::Outbox(seq));
            let Some(body) = disk::read(&path)? else { continue };
            match serde_json::from_slice(&body) {
                Ok(op) => ops.push((seq, op)),
                Err(error) => {
                    tracing::warn!(seq, %error, "operation is corrupt, moving it to conflicts/");
                    self.disk.rename(&path, &self.root.join(format!("conflicts/outbox.{seq:020}.json")))?;
                }
            }
        }
        Ok(ops)
    }

    /// Removes an operation that the bucket has, or does not need.
    pub fn remove_op(&self, seq: u64) -> Result<()> {
        self.disk.remove(&self.path(&SpoolFile::Outbox(seq)), Durable::No)?;
        lock(&self.outbox_index).ops.remove(&seq);
        Ok(())
    }

    /// Returns whether there are operations to send.
    pub fn has_unsent_ops(&self) -> Result<bool> {
        Ok(!self.seqs()?.is_empty())
    }

    /// Keeps an operation that the bucket has rejected, with the reason.
    pub fn record_conflict(&self, op: &Op, why: SyncRefusal) -> Result<()> {
        let now = self.now();
        let at = now.present().earliest;
        let conflict = Conflict { op: op.clone(), why, at, clock: now.clock() };
        let body = serde_json::to_vec(&conflict).expect("an operation has no keys that are not text");
        self.disk.replace(&self.conflict_path(op), &body, Durable::Yes)
    }

    /// Path of a rejected operation. It contains the claim, so that results of several workers are all kept.
    pub(super) fn conflict_path(&self, op: &Op) -> PathBuf {
        let claim = op.kind.lease_id().map_or("none", |lease_id| &lease_id.as_str()[..8]);
        let name = Name::checked("operation", &format!("{}-{claim}", op.name()));
        self.path(&SpoolFile::Conflict(op.task, name.expect("numbers, a word, and eight digits")))
    }

    /// Appends an operation; the caller holds the lock of its task if it changes the task on this node.
    pub fn append(&self, op: &Op) -> Result<u64> {
        let body = serde_json::to_vec(op).expect("an operation has no keys that are not text");
        let _lock = self.lock_folder("outbox")?;
        let mut seq = self.last_seq()?.map_or_else(|| self.newest_seq(), Ok)?.saturating_add(1);
        loop {
            self.disk.overwrite(&self.last_path(), &format!("{seq:020}"))?;
            if self.disk.create(&self.path(&SpoolFile::Outbox(seq)), &body, Durable::Yes)? {
                return Ok(seq);
            }
            seq = self.newest_seq()?.saturating_add(1);
        }
    }

    /// Makes sure that no number is used twice, after a power cut that `outbox.last` has not survived.
    pub(super) fn restore_last_seq(&self) -> Result<()> {
        let _lock = self.lock_folder("outbox")?;
        let newest = self.newest_seq()?;
        if self.last_seq()?.is_none_or(|last| last < newest) && newest > 0 {
            self.disk.overwrite(&self.last_path(), &format!("{newest:020}"))?;
        }
        Ok(())
    }

    /// Returns whether this task has unsent operations, except those of this claim.
    pub(super) fn has_other_ops(&self, id: &TaskId, claim: Option<&LeaseId>) -> Result<bool> {
        self.has_matching_op(|(task, _, lease_id)| {
            task == id && (claim.is_none() || lease_id.as_ref() != claim)
        })
    }

    /// Returns whether this operation is still to be sent.
    pub(super) fn has_op(&self, op: &Op) -> Result<bool> {
        let wanted = identity_of(op);
        self.has_matching_op(|there| *there == wanted)
    }

    /// Returns whether the outbox has such an operation, checking the file, which another process may have sent meanwhile.
    fn has_matching_op(&self, is_it: impl Fn(&OpIdentity) -> bool) -> Result<bool> {
        let mut index = self.refreshed_index()?;
        let found: Vec<u64> = index.ops.iter().filter(|(_, op)| is_it(op)).map(|(seq, _)| *seq).collect();
        for seq in found {
            if self.path(&SpoolFile::Outbox(seq)).exists() {
                return Ok(true);
            }
            index.ops.remove(&seq);
        }
        Ok(false)
    }

    /// Reads the operations that were added since the last scan.
    fn refreshed_index(&self) -> Result<MutexGuard<'_, OutboxIndex>> {
        let _lock = self.lock_folder("outbox")?;
        let last = self.last_seq()?;
        let mut index = lock(&self.outbox_index);
        if last.is_some() && index.last == last {
            return Ok(index);
        }
        let mut ops = BTreeMap::new();
        for seq in self.seqs()? {
            if let Some(identity) = index.ops.remove(&seq) {
                ops.insert(seq, identity);
                continue;
            }
            let body = disk::read(&self.path(&SpoolFile::Outbox(seq)))?.unwrap_or_default();
            if let Ok(op) = serde_json::from_slice::<Op>(&body) {
                ops.insert(seq, identity_of(&op));
            }
        }
        *index = OutboxIndex { last, ops };
        Ok(index)
    }

    /// Locks a folder of the spool.
    pub(super) fn lock_folder(&self, name: &str) -> Result<std::fs::File> {
        let missing = || Error::new(Kind::Internal, format!("{name}/ of the spool is missing"));
        disk::lock(&self.root.join(name))?.ok_or_else(missing)
    }

    /// The numbers of the operations, in order.
    fn seqs(&self) -> Result<Vec<u64>> {
        let seq = |name: &String| match SpoolFile::parse(&format!("outbox/{name}"))? {
            SpoolFile::Outbox(seq) => Some(seq),
            _ => None,
        };
        Ok(disk::names(&self.root.join("outbox"))?.iter().filter_map(seq).collect())
    }

    fn newest_seq(&self) -> Result<u64> {
        Ok(self.seqs()?.last().copied().unwrap_or(0))
    }

    fn last_seq(&self) -> Result<Option<u64>> {
        let body = disk::read(&self.last_path())?.unwrap_or_default();
        Ok(String::from_utf8(body).ok().and_then(|text| text.trim().parse().ok()))
    }

    fn last_path(&self) -> PathBuf {
        self.root.join("outbox.last")
    }
}

/// Creates an operation on a task.
pub(super) fn op(task: &Task, note: &Note, now: &NodeNow, kind: OpKind) -> Op {
    Op {
        task: task.id,
        generation: task.generation,
        epoch: task.epoch,
        base_rev: note.base_rev,
        at: now.present().earliest,
        clock: now.clock(),
        kind,
    }
}

fn identity_of(op: &Op) -> OpIdentity {
    (op.task, op.name(), op.kind.lease_id().cloned())
}
