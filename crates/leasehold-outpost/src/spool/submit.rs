//! Operations of producers and operators: submit, get, cancel, retry.

use leasehold_core::new_task::{MAX_ATTEMPTS, Start};
use leasehold_core::outpost::{DiskLease, NodeNow, Op, OpKind, SURELY_BUCKET, SpoolFile};
use leasehold_core::{
    Error, Event, NewTask, Reason, Result, RetryPolicy, ShardLen, StoreTime, Task, TaskId, record, step,
};
use leasehold_store::HostExt;

use super::change::{ChangeOutcome, FileChange, LeaseChange, SpoolChange, internal};
use super::folder::{Folder, Found};
use super::kept::{Note, NotedRecord};
use super::outbox::op;
use super::{Spool, refused};
use crate::disk::{self, Lasting};

/// Default number of attempts of a task of an outpost.
const ATTEMPTS: u32 = 5;

/// Default delay between attempts: ten seconds, doubled each time, at most ten minutes.
const RETRY: RetryPolicy = RetryPolicy { initial_secs: 10.0, factor: 2.0, max_secs: 600.0, jitter: 0.0 };

/// Location of a task on this node.
#[derive(Debug, Clone, PartialEq)]
pub enum NodeLocation {
    /// Pending and free.
    Pending,
    /// Held by a worker of this node.
    Leased(DiskLease),
    /// Completed.
    Completed,
    /// Failed, cancelled, expired, or corrupt.
    Failed,
}

/// A task and its location.
#[derive(Debug, Clone, PartialEq)]
pub struct Whereabouts {
    /// The task.
    pub task: Task,
    /// Its location.
    pub place: NodeLocation,
}

impl Spool {
    /// Submits a task here; the supervisor sends it to the bucket later. With an idempotency key the id is derived from the
    /// key, so that the same key gives the same task on every node.
    ///
    /// The default number of attempts and the delays between them are those of an outpost: five, and ten seconds to ten
    /// minutes.
    pub fn submit(&self, order: NewTask) -> Result<TaskId> {
        let now = self.now();
        order.check(judged_at(&order, &now))?;
        let order = with_our_defaults(order);
        let id = match &order.idempotency_key {
            Some(key) => self.id_of(key),
            None => TaskId::from_random(self.host.random_bits()),
        };
        let act = self.act(&now);
        let task = order.submitted(id, ShardLen::DEFAULT.shard_of(&id), &act);
        let kept = NotedRecord { note: Note::of_bucket(0, None).stamped(&now), task };
        let deed = OpKind::Submit { write_id: act.write_id, record: record::value(&kept.task) };
        let op = op(&kept.task, &kept.note, &now, deed);
        match self.begin(&kept, Some(op))? {
            ChangeOutcome::There => Ok(id),
            ChangeOutcome::Gone | ChangeOutcome::Beaten => self.is_the_same(&kept.task).map(|()| id),
        }
    }

    /// Reads a task and its location; `None` if it is not on this node.
    pub fn get(&self, id: &TaskId) -> Result<Option<Whereabouts>> {
        // `pending/` again at the end: the task may have been requeued between the reads.
        for file in
            [SpoolFile::Task(*id), SpoolFile::Completed(*id), SpoolFile::Failed(*id), SpoolFile::Task(*id)]
        {
            let Some(body) = disk::read(&self.path(&file))? else { continue };
            let task = NotedRecord::read(id, &body)?.task;
            let place = match file {
                SpoolFile::Completed(_) => NodeLocation::Completed,
                SpoolFile::Failed(_) => NodeLocation::Failed,
                _ => self.lease_of(id)?.map_or(NodeLocation::Pending, NodeLocation::Leased),
            };
            return Ok(Some(Whereabouts { task, place }));
        }
        Ok(None)
    }

    /// Cancels a task: at once if it is free; otherwise its holder stops at the next heartbeat.
    pub fn cancel(&self, id: &TaskId) -> Result<()> {
        let Some(folder) = self.locked(id)? else { return Err(self.not_so(id)?) };
        let Some(kept) = folder.kept()? else { return Err(self.not_so(id)?) };
        if kept.note.cancelled {
            return Ok(());
        }
        let now = self.now();
        let op = |lease_id| op(&kept.task, &kept.note, &now, OpKind::Cancel { lease_id });
        match folder.lease(&now)? {
            Found::Free => {
                let checkout = kept.note.checkout.as_ref().map(|checkout| checkout.lease_id.clone());
                folder.cancel(&kept, &now, Some(op(checkout)))
            }
            Found::Lease(lease) if lease.is_stale(&now) => {
                folder.cancel(&kept, &now, Some(op(Some(lease.lease_id))))
            }
            Found::Lease(_) | Found::Torn { .. } => {
                let op = op(None);
                let note = Note { cancelled: true, ..kept.note };
                let record = Some(NotedRecord { note, ..kept }.value());
                folder.make(
                    SpoolChange { op: Some(op), then: FileChange::Stay { record, lease: LeaseChange::Keep } },
                    Lasting::Yes,
                )
            }
        }
    }

    /// Retries a task that has failed, was cancelled or has expired, in a new generation.
    pub fn requeue(&self, id: &TaskId) -> Result<Task> {
        let _lock = self.locked_failed()?;
        // Finishes an unfinished change first.
        drop(self.locked(id)?);
        let body = disk::read(&self.path(&SpoolFile::Failed(*id)))?;
        let Some(body) = body else { return Err(self.not_so(id)?) };
        let kept = NotedRecord::read(id, &body)?;
        let now = self.now();
        let task = step(&kept.task, &Event::Retry, &self.act(&now)).map_err(|why| refused(id, &why))?.task;
        // With the generation that has ended, so that the bucket can tell whether the task was already retried.
        let op = op(&kept.task, &kept.note, &now, OpKind::Requeue);
        let note = Note { checkout: None, cancelled: false, ..kept.note.stamped(&now) };
        let kept = NotedRecord { task, note };
        match self.begin(&kept, Some(op))? {
            ChangeOutcome::There => Ok(kept.task),
            ChangeOutcome::Gone | ChangeOutcome::Beaten => Err(self.not_so(id)?),
        }
    }

    /// Creates the directory of a new task.
    pub(super) fn begin(&self, kept: &NotedRecord, op: Option<Op>) -> Result<ChangeOutcome> {
        let id = kept.task.id;
        let path = self.folder_of(&id);
        let temp = self.disk.directory(&SpoolChange::begun(kept, op.clone()))?;
        let Some(lock) = self.disk.place(temp, &path)? else { return Ok(ChangeOutcome::Beaten) };
        let folder = Folder { spool: self, id, path, _lock: lock };
        folder.carry_out(SpoolChange { op, then: FileChange::Begin }, false)
    }

    pub(super) fn lease_of(&self, id: &TaskId) -> Result<Option<DiskLease>> {
        let body = disk::read(&self.path(&SpoolFile::Lease(*id)))?;
        Ok(body.and_then(|body| serde_json::from_slice(&body).ok()))
    }

    pub(super) fn locked_failed(&self) -> Result<std::fs::File> {
        disk::locked(&self.root.join("failed"))?.ok_or_else(|| internal("failed/ of the spool is missing"))
    }

    fn id_of(&self, key: &str) -> TaskId {
        let hash = blake3::hash(format!("{}\n{key}", self.campaign).as_bytes());
        let mut bits = [0; 16];
        bits.copy_from_slice(&hash.as_bytes()[..16]);
        TaskId::from_random(u128::from_be_bytes(bits))
    }

    fn is_the_same(&self, wanted: &Task) -> Result<()> {
        let there = self.get(&wanted.id)?;
        let is_other = there.is_some_and(|there| {
            (&there.task.task_type, &there.task.input) != (&wanted.task_type, &wanted.input)
        });
        if is_other {
            let key = wanted.idempotency_key.as_deref().unwrap_or_default();
            return Err(Error::invalid(format!(
                "idempotency key `{key}` belongs to task {} with another type or input",
                wanted.id
            ))
            .about(Reason::Conflict));
        }
        Ok(())
    }

    fn not_so(&self, id: &TaskId) -> Result<Error> {
        Ok(match self.get(id)? {
            Some(there) => refused(id, &leasehold_core::Rejected::Status(there.task.status())),
            None => unknown_task(id),
        })
    }
}

impl Folder<'_> {
    /// Cancels a free task: it moves to `failed/`.
    pub(super) fn cancel(&self, kept: &NotedRecord, now: &NodeNow, op: Option<Op>) -> Result<()> {
        let act = self.spool.act(now);
        let task = step(&kept.task, &Event::Cancel, &act).map_err(|why| refused(&self.id, &why))?.task;
        let record = NotedRecord { task, note: kept.note.stamped(now) }.value();
        self.make(SpoolChange { op, then: FileChange::End { record } }, Lasting::Yes)
    }
}

/// Time at which an order is checked. While the bucket's time is not known, it is unknown how far ahead a date is.
fn judged_at(order: &NewTask, now: &NodeNow) -> StoreTime {
    match (now.bucket, order.start) {
        (None, Start::At(date)) if date >= SURELY_BUCKET => date,
        _ => now.present().earliest,
    }
}

fn with_our_defaults(mut order: NewTask) -> NewTask {
    if order.max_attempts == MAX_ATTEMPTS {
        order.max_attempts = ATTEMPTS;
    }
    if order.retry_policy == RetryPolicy::default() {
        order.retry_policy = RETRY;
    }
    order
}

fn unknown_task(id: &TaskId) -> Error {
    Error::invalid(format!("there is no task {id} on this node")).about(Reason::Missing)
}
