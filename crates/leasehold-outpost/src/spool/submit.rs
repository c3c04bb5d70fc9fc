//! Operations of producers and operators: submit, get, cancel, retry.

use leasehold_core::new_task::Start;
use leasehold_core::outpost::{BUCKET_TIME_MIN, DiskLease, NodeNow, Op, OpKind, SpoolFile};
use leasehold_core::{
    Error, Event, NewTask, Reason, Rejected, Result, RetryPolicy, ShardLen, Status, StoreTime, Task, TaskId,
    record, step,
};
use leasehold_queue::Submitted;
use leasehold_store::HostExt;

use super::change::{CHANGE, ChangeOutcome, FileChange, LeaseChange, SpoolChange};
use super::folder::{LeaseFile, TaskFolder};
use super::outbox::op;
use super::record::{Note, NotedRecord};
use super::{Spool, refused};
use crate::disk;

/// Default number of attempts of a task of an outpost.
const ATTEMPTS: u32 = 5;

/// Default delay between attempts: ten seconds, doubled each time, at most ten minutes.
const RETRY: RetryPolicy = RetryPolicy { initial_secs: 10.0, factor: 2.0, max_secs: 600.0, jitter: 0.0 };

impl Spool {
    /// Submits a task here; the supervisor sends it to the bucket later. With an idempotency key the id is derived from the
    /// key, so that the same key gives the same task on every node.
    ///
    /// A task without a number of attempts or a retry policy gets the defaults of an outpost: five attempts, with ten
    /// seconds to ten minutes between them.
    pub fn submit(&self, new_task: NewTask) -> Result<TaskId> {
        Ok(self.submit_once(new_task)?.id)
    }

    pub(super) fn submit_once(&self, mut new_task: NewTask) -> Result<Submitted> {
        let now = self.now();
        new_task.check(reference_time(&new_task, &now))?;
        new_task.max_attempts.get_or_insert(ATTEMPTS);
        new_task.retry_policy.get_or_insert(RETRY);
        let id = match &new_task.idempotency_key {
            Some(key) => self.id_of(key),
            None => TaskId::from_random(self.host.random_bits()),
        };
        let context = self.step_context(&now);
        let task = new_task.submitted(id, ShardLen::DEFAULT.shard_of(&id), &context);
        let noted = NotedRecord { note: Note::of_bucket(0, None).stamped(&now), task };
        let kind = OpKind::Submit { write_id: context.write_id, record: record::value(&noted.task) };
        let op = op(&noted.task, &noted.note, &now, kind);
        let is_new = self.create_task_folder(&noted, Some(op))?;
        let existing = if is_new { None } else { self.check_same_input(&noted.task)? };
        Ok(Submitted { existing, ..Submitted::new(id, is_new) })
    }

    pub(super) fn task(&self, id: &TaskId) -> Result<Task> {
        self.get(id)?.ok_or_else(|| unknown_task(id))
    }

    /// Reads a task; `None` if it is not on this node. One that a worker here holds is pending, with a [lease](Self::lease_of).
    pub fn get(&self, id: &TaskId) -> Result<Option<Task>> {
        // `pending/` again at the end: the task may have been requeued between the reads.
        for file in [SpoolFile::Task, SpoolFile::Completed, SpoolFile::Failed, SpoolFile::Task] {
            if let Some(body) = disk::read(&self.path(&file(*id)))? {
                return NotedRecord::read(id, &body).map(|noted| Some(noted.task));
            }
        }
        Ok(None)
    }

    /// Reads the lease of the worker of this node that holds a task.
    pub fn lease_of(&self, id: &TaskId) -> Result<Option<DiskLease>> {
        let body = disk::read(&self.path(&SpoolFile::Lease(*id)))?;
        Ok(body.and_then(|body| serde_json::from_slice(&body).ok()))
    }

    /// Cancels a task: at once if it is free; otherwise its holder stops at the next heartbeat.
    pub fn cancel(&self, id: &TaskId) -> Result<()> {
        let Some(folder) = self.lock_task(id)? else { return Err(self.status_error(id)) };
        let Some(mut noted) = folder.record()? else { return Err(self.status_error(id)) };
        if noted.note.cancelled {
            return Ok(());
        }
        let now = self.now();
        let op = |lease_id| op(&noted.task, &noted.note, &now, OpKind::Cancel { lease_id });
        match folder.lease(&now)? {
            LeaseFile::Free => {
                let checkout = noted.note.checkout.as_ref().map(|checkout| checkout.lease_id.clone());
                folder.cancel(&noted, &now, Some(op(checkout)))
            }
            LeaseFile::Lease(lease) if lease.is_stale(&now) => {
                folder.cancel(&noted, &now, Some(op(Some(lease.lease_id))))
            }
            LeaseFile::Lease(_) | LeaseFile::Corrupt { .. } => {
                let op = op(None);
                noted.note.cancelled = true;
                folder.rewrite(&noted, Some(op), LeaseChange::Keep)
            }
        }
    }

    /// Retries a task that has failed, was cancelled or has expired, in a new generation.
    pub fn requeue(&self, id: &TaskId) -> Result<Task> {
        let _lock = self.lock_folder("failed")?;
        // Finishes an unfinished change first.
        drop(self.lock_task(id)?);
        let body = disk::read(&self.path(&SpoolFile::Failed(*id)))?;
        let Some(body) = body else { return Err(self.status_error(id)) };
        let noted = NotedRecord::read(id, &body)?;
        let now = self.now();
        let task =
            step(&noted.task, &Event::Retry, &self.step_context(&now)).map_err(|why| refused(id, &why))?.task;
        // With the generation that has ended, so that the bucket can tell whether the task was already retried.
        let op = op(&noted.task, &noted.note, &now, OpKind::Requeue);
        let note = Note { checkout: None, cancelled: false, ..noted.note.stamped(&now) };
        let noted = NotedRecord { task, note };
        if self.create_task_folder(&noted, Some(op))? { Ok(noted.task) } else { Err(self.status_error(id)) }
    }

    /// Creates the directory of a new task; false if there is one, or if it yields to what is here.
    pub(super) fn create_task_folder(&self, noted: &NotedRecord, op: Option<Op>) -> Result<bool> {
        let id = noted.task.id;
        let path = self.folder_of(&id);
        let change = SpoolChange { op, then: FileChange::Begin };
        let files = [("task.json", noted.value().to_string().into_bytes()), (CHANGE, change.json())];
        let temp = self.disk.temp_directory(&files)?;
        let Some(lock) = self.disk.place(temp, &path)? else { return Ok(false) };
        let folder = TaskFolder { spool: self, id, path, _lock: lock };
        Ok(folder.execute(change, false)? == ChangeOutcome::Present)
    }

    fn id_of(&self, key: &str) -> TaskId {
        let hash = blake3::hash(format!("{}\n{key}", self.queue_path).as_bytes());
        let mut bits = [0; 16];
        bits.copy_from_slice(&hash.as_bytes()[..16]);
        TaskId::from_random(u128::from_be_bytes(bits))
    }

    /// Status of the task with this id; fails if it has another type or input.
    fn check_same_input(&self, wanted: &Task) -> Result<Option<Status>> {
        let there = self.get(&wanted.id)?;
        let is_other = |task: &Task| (&task.task_type, &task.input) != (&wanted.task_type, &wanted.input);
        if there.as_ref().is_some_and(is_other) {
            let key = wanted.idempotency_key.as_deref().unwrap_or_default();
            return Err(Error::invalid(format!(
                "idempotency key `{key}` belongs to task {} with another type or input",
                wanted.id
            ))
            .with_reason(Reason::Conflict));
        }
        Ok(there.map(|task| task.status()))
    }

    /// Error for an operation that the task's status does not allow, or for a task that is missing.
    fn status_error(&self, id: &TaskId) -> Error {
        match self.task(id) {
            Ok(task) => refused(id, &Rejected::Status(task.status())),
            Err(error) => error,
        }
    }
}

impl TaskFolder<'_> {
    /// Cancels a free task: it moves to `failed/`.
    pub(super) fn cancel(&self, noted: &NotedRecord, now: &NodeNow, op: Option<Op>) -> Result<()> {
        let context = self.spool.step_context(now);
        let task = step(&noted.task, &Event::Cancel, &context).map_err(|why| refused(&self.id, &why))?.task;
        self.end_with(&NotedRecord { task, note: noted.note.stamped(now) }, op)
    }
}

/// Time at which a new task is checked. While the bucket's time is not known, it is unknown how far ahead a date is.
fn reference_time(new_task: &NewTask, now: &NodeNow) -> StoreTime {
    match (now.bucket, new_task.start) {
        (None, Start::At(date)) if date >= BUCKET_TIME_MIN => date,
        _ => now.present().earliest,
    }
}

fn unknown_task(id: &TaskId) -> Error {
    Error::invalid(format!("no task {id} on this node; the bucket may have it")).with_reason(Reason::Missing)
}
