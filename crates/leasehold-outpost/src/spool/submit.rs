//! What producers and people do: submit, look, call off, run again.

use leasehold_core::new_task::{MAX_ATTEMPTS, Start};
use leasehold_core::outpost::{Deed, DiskLease, NodeNow, Op, SURELY_BUCKET, SpoolFile};
use leasehold_core::{
    Error, Event, Matter, NewTask, Result, RetryPolicy, ShardLen, StoreTime, Task, TaskId, record, step,
};
use leasehold_store::HostExt;

use super::change::{Change, Next, Outcome, Then, internal};
use super::folder::{Folder, Found};
use super::kept::{Kept, Note};
use super::outbox::op;
use super::{Spool, refused};
use crate::disk::{self, Lasting};

/// How many attempts a task of an outpost has unless its producer says otherwise.
const ATTEMPTS: u32 = 5;

/// How long to wait between them: ten seconds, doubled each time, at most ten minutes.
const RETRY: RetryPolicy = RetryPolicy { initial_secs: 10.0, factor: 2.0, max_secs: 600.0, jitter: 0.0 };

/// Where a task lies on this node.
#[derive(Debug, Clone, PartialEq)]
pub enum Place {
    /// It waits.
    Pending,
    /// Somebody here has it.
    Leased(DiskLease),
    /// It is completed.
    Completed,
    /// It has failed, was called off, has expired, or cannot be read.
    Failed,
}

/// A task, and where it lies.
#[derive(Debug, Clone, PartialEq)]
pub struct Whereabouts {
    /// The task.
    pub task: Task,
    /// Where it lies.
    pub place: Place,
}

impl Spool {
    /// Submits a task here; the bucket hears of it later. With an idempotency key the id follows from the key, so that the
    /// same key gives the same task on every node.
    ///
    /// The usual number of attempts and pauses between them are those of an outpost: five, and ten seconds to ten minutes.
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
        let kept = Kept { note: Note::of_bucket(0, None).stamped(&now), task };
        let deed = Deed::Submit { write_id: act.write_id, record: record::value(&kept.task) };
        let op = op(&kept.task, &kept.note, &now, deed);
        match self.begin(&kept, Some(op))? {
            Outcome::There => Ok(id),
            Outcome::Gone | Outcome::Beaten => self.is_the_same(&kept.task).map(|()| id),
        }
    }

    /// A task and where it lies; nothing if it is not on this node.
    pub fn get(&self, id: &TaskId) -> Result<Option<Whereabouts>> {
        // Once more at the end: it may have come back from where it was not looked for yet.
        for file in
            [SpoolFile::Task(*id), SpoolFile::Completed(*id), SpoolFile::Failed(*id), SpoolFile::Task(*id)]
        {
            let Some(body) = disk::read(&self.path(&file))? else { continue };
            let task = Kept::read(id, &body)?.task;
            let place = match file {
                SpoolFile::Completed(_) => Place::Completed,
                SpoolFile::Failed(_) => Place::Failed,
                _ => self.lease_of(id)?.map_or(Place::Pending, Place::Leased),
            };
            return Ok(Some(Whereabouts { task, place }));
        }
        Ok(None)
    }

    /// Calls a task off: at once if nobody has it; its holder learns of it at the next heartbeat.
    pub fn cancel(&self, id: &TaskId) -> Result<()> {
        let Some(folder) = self.locked(id)? else { return Err(self.not_so(id)?) };
        let Some(kept) = folder.kept()? else { return Err(self.not_so(id)?) };
        if kept.note.cancelled {
            return Ok(());
        }
        let now = self.now();
        let op = |lease_id| op(&kept.task, &kept.note, &now, Deed::Cancel { lease_id });
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
                let record = Some(Kept { note, ..kept }.value());
                folder.make(
                    Change { op: Some(op), then: Then::Stay { record, lease: Next::Keep } },
                    Lasting::Yes,
                )
            }
        }
    }

    /// Lets a task run again that has failed, was called off or has expired, in another generation.
    pub fn requeue(&self, id: &TaskId) -> Result<Task> {
        let _lock = self.locked_failed()?;
        // What is under way comes to its end first.
        drop(self.locked(id)?);
        let body = disk::read(&self.path(&SpoolFile::Failed(*id)))?;
        let Some(body) = body else { return Err(self.not_so(id)?) };
        let kept = Kept::read(id, &body)?;
        let now = self.now();
        let task = step(&kept.task, &Event::Retry, &self.act(&now)).map_err(|why| refused(id, &why))?.task;
        // The generation that has ended, by which the bucket tells whether others have done it already.
        let op = op(&kept.task, &kept.note, &now, Deed::Requeue);
        let note = Note { checkout: None, cancelled: false, ..kept.note.stamped(&now) };
        let kept = Kept { task, note };
        match self.begin(&kept, Some(op))? {
            Outcome::There => Ok(kept.task),
            Outcome::Gone | Outcome::Beaten => Err(self.not_so(id)?),
        }
    }

    /// A directory of its own for a task that comes.
    pub(super) fn begin(&self, kept: &Kept, op: Option<Op>) -> Result<Outcome> {
        let id = kept.task.id;
        let path = self.folder_of(&id);
        let temp = self.disk.directory(&Change::begun(kept, op.clone()))?;
        let Some(lock) = self.disk.place(temp, &path)? else { return Ok(Outcome::Beaten) };
        let folder = Folder { spool: self, id, path, _lock: lock };
        folder.carry_out(Change { op, then: Then::Begin }, false)
    }

    pub(super) fn lease_of(&self, id: &TaskId) -> Result<Option<DiskLease>> {
        let body = disk::read(&self.path(&SpoolFile::Lease(*id)))?;
        Ok(body.and_then(|body| serde_json::from_slice(&body).ok()))
    }

    pub(super) fn locked_failed(&self) -> Result<std::fs::File> {
        disk::locked(&self.root.join("failed"))?
            .ok_or_else(|| internal("the folder failed/ of the spool is gone"))
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
            .about(Matter::Conflict));
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
    /// Nobody has it: it goes to `failed/`, called off.
    pub(super) fn cancel(&self, kept: &Kept, now: &NodeNow, op: Option<Op>) -> Result<()> {
        let act = self.spool.act(now);
        let task = step(&kept.task, &Event::Cancel, &act).map_err(|why| refused(&self.id, &why))?.task;
        let record = Kept { task, note: kept.note.stamped(now) }.value();
        self.make(Change { op, then: Then::End { record } }, Lasting::Yes)
    }
}

/// The moment by which an order is judged. Before the bucket's time was heard nobody can say how far ahead a date is.
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
    Error::invalid(format!("there is no task {id} on this node")).about(Matter::Missing)
}
