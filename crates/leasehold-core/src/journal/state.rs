//! State of a journal: the live tasks in memory, and how records change them.
//!
//! Pending and final tasks are kept encoded: a pending task with a small input takes about 400 bytes with its indexes.
//! Running ones are kept parsed, because they change soon. The state has two parts:
//!
//! * the *logged* part, which is a function of the records and fences that were applied, in order: the live tasks, and the
//!   table of the archive;
//! * the *volatile* part: renewals and progress of claims, and the time up to which scheduled tasks were made due.
//!
//! A broker that takes over has the logged part only. Encoded tasks may be [evicted](super::evicted): a chunk of a snapshot
//! has them.

use serde_json::Value;
use std::borrow::Cow;
use std::collections::BTreeMap;

use super::archive::{ArchiveChange, ArchiveTable, MovedTask};
use super::change::TaskChange;
use super::decide::JournalDecision;
use super::evicted::{BodyPlaces, evicted_error};
use super::index::{IndexedTask, TaskIndexes};
use super::record::JournalRecord;
use super::task::{EncodedTask, JournalTask, TaskHead};
use crate::error::{Error, Kind, Result};
use crate::ids::{TaskId, WorkerId};
use crate::limits::PLAN_AHEAD_MAX;
use crate::task::{Claim, State, Status, Task};
use crate::time::{Now, StoreTime};

/// State of a journal.
#[derive(Debug, Default)]
pub struct JournalState {
    pub(super) tasks: BTreeMap<TaskId, LiveTask>,
    pub(super) indexes: TaskIndexes,
    pub(super) archive: ArchiveTable,
    pub(super) bodies: BodyPlaces,
}

/// A live task.
#[derive(Debug)]
pub(super) struct LiveTask {
    pub(super) indexed: IndexedTask,
    pub(super) body: TaskBody,
}

/// A live task, encoded or parsed.
#[derive(Debug)]
pub(super) enum TaskBody {
    Encoded(Box<[u8]>),
    Running(Box<RunningTask>),
    /// Not in memory: a chunk has it, encoded.
    Evicted {
        rev: u64,
        bytes: u32,
    },
}

/// A running task.
#[derive(Debug)]
pub(super) struct RunningTask {
    pub(super) logged: JournalTask,
    renewal: Option<ClaimRenewal>,
}

/// Last renewal of a claim, which is not logged.
#[derive(Debug, Clone, PartialEq)]
pub struct ClaimRenewal {
    pub(super) expires_at: StoreTime,
    pub(super) renewed_at: StoreTime,
    pub(super) progress: Option<Value>,
}

/// A live task, as it was read.
pub(super) struct LoadedTask<'a> {
    pub(super) logged: Cow<'a, JournalTask>,
    renewal: Option<&'a ClaimRenewal>,
}

/// Result of a decision whose records were appended to a commit and applied.
#[derive(Debug)]
#[must_use = "an answer is held until the commit is confirmed"]
pub struct Logged<T> {
    /// Answer to the request. It must not be sent before the commit with the newest record so far is confirmed.
    pub answer: Result<T>,
    /// Number of records that were appended.
    pub records: u32,
    /// True if the answer needs a proof that this broker is current (rules B8 and F11); see
    /// [`JournalDecision::is_refusal`].
    pub is_refusal: bool,
}

impl JournalState {
    /// Makes scheduled tasks due that have surely reached their time, so that [`claim`](Self::claim) finds them; true if
    /// there are any.
    pub fn advance(&mut self, now: Now) -> bool {
        self.indexes.advance(now.earliest)
    }

    /// Appends the records of a decision to the lines of a commit, and applies them. After an error the state is unusable:
    /// the decision was not made on it.
    pub fn log<T>(&mut self, decision: JournalDecision<T>, lines: &mut Vec<u8>) -> Result<Logged<T>> {
        let JournalDecision { records, parsed, renewals, answer, is_refusal } = decision;
        let count = u32::try_from(records.len()).unwrap_or(u32::MAX);
        let mut parsed = parsed.into_iter();
        for record in records {
            record.write(lines);
            match record {
                JournalRecord::Change { task, change, .. } => {
                    let parsed = parsed.next().filter(|parsed| parsed.task.id == task);
                    self.change(task, *change, parsed)?;
                }
                record => self.apply(record)?,
            }
        }
        for (id, renewal) in renewals {
            self.renew_claim(id, renewal);
        }
        Ok(Logged { answer, records: count, is_refusal })
    }

    /// Applies a record. One that does not follow from the records before it is corrupt.
    pub fn apply(&mut self, record: JournalRecord) -> Result<()> {
        match record {
            JournalRecord::Submit(task) => self.insert(task),
            JournalRecord::Change { task, change, .. } => self.change(task, *change, None),
            JournalRecord::Heard { tasks, .. } => tasks.into_iter().try_for_each(|task| self.hear(task)),
            JournalRecord::Archive(change) => self.change_archive(*change),
        }
    }

    /// Applies all records of a commit.
    pub fn replay(&mut self, lines: &[u8]) -> Result<()> {
        let lines = lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        lines.map(JournalRecord::read).try_for_each(|record| self.apply(record?))
    }

    /// Applies a fence, the commit by which a new broker begins: extends the claims that were made or renewed since the
    /// previous fence (C4), and no others, so that frequent takeovers do not keep the claims of crashed workers (C5). No
    /// earlier broker has promised more than the lease of a claim from the latest time at which it trusted its own lease.
    pub fn fence(&mut self, at: StoreTime, trusted_until: StoreTime) {
        // A time beyond the year 9999 cannot be written.
        let promised = at.max(trusted_until.min(at.plus(PLAN_AHEAD_MAX)));
        let running: Vec<_> = self.indexes.claims.iter().map(|(_, id)| *id).collect();
        for id in running {
            let Some(live) = self.tasks.get_mut(&id) else { continue };
            let TaskBody::Running(running) = &mut live.body else { continue };
            let (State::Running(claim), Some(terms)) =
                (&mut running.logged.task.state, &mut running.logged.claim)
            else {
                continue;
            };
            if terms.is_heard {
                claim.expires_at = claim.expires_at.max(promised.plus(terms.lease));
                terms.is_heard = false;
            }
            let expires_at = running.expires_at();
            self.indexes.move_claim(id, &mut live.indexed, expires_at);
        }
    }

    /// Adds a task: one that was submitted, or one of a snapshot.
    pub fn insert(&mut self, task: EncodedTask) -> Result<()> {
        let (head, body) = task.into_parts();
        if self.tasks.contains_key(&head.id) {
            return Err(corrupt(&format!("task {} is submitted twice", head.id)));
        }
        let body = match head.status {
            Status::Running => TaskBody::new(JournalTask::decode(&body)?, None).1,
            _ => TaskBody::Encoded(body),
        };
        if let Some(key) = head.key {
            self.indexes.reserve(key, head.id);
        }
        let indexed = self.indexes.insert(&head, body.worker());
        self.bodies.add(&body);
        self.tasks.insert(head.id, LiveTask { indexed, body });
        Ok(())
    }

    /// Changes a task; `parsed` is the task before, if a decision has parsed it. After an error nothing has changed.
    fn change(&mut self, id: TaskId, change: TaskChange, parsed: Option<JournalTask>) -> Result<()> {
        let Some(live) = self.tasks.get_mut(&id) else {
            return Err(corrupt(&format!("task {id} changes, but does not exist")));
        };
        let loaded = parsed.map_or_else(|| Ok(live.load(&id)?.logged), |parsed| Ok(Cow::Owned(parsed)))?;
        change.check_follows(&loaded.task)?;
        let parsed = if let Cow::Owned(parsed) = loaded { Some(parsed) } else { None };
        self.indexes.remove(id, &live.indexed, live.body.worker());
        let renewal = live.body.take_renewal();
        self.bodies.remove(&live.body);
        // A running task is moved, not copied.
        let before = match (parsed, std::mem::replace(&mut live.body, TaskBody::Encoded(Box::default()))) {
            (Some(parsed), _) => parsed,
            (None, TaskBody::Running(running)) => running.logged,
            (None, TaskBody::Encoded(body)) => JournalTask::decode(&body)?,
            (None, TaskBody::Evicted { .. }) => return Err(evicted_error(&id)),
        };
        let task = before.changed(change)?;
        if task.task.status() == Status::Purged {
            self.tasks.remove(&id);
            if let Some(key) = task.reserved_key() {
                self.indexes.free(key, id);
            }
            return Ok(());
        }
        let (head, body) = TaskBody::new(task, renewal);
        live.indexed = self.indexes.insert(&head, body.worker());
        self.bodies.add(&body);
        live.body = body;
        Ok(())
    }

    /// Objects of the archive.
    #[must_use]
    pub fn archive(&self) -> &ArchiveTable {
        &self.archive
    }

    /// Sets the archive, as a snapshot has it.
    pub fn set_archive(&mut self, archive: ArchiveTable) {
        self.archive = archive;
    }

    fn change_archive(&mut self, mut change: ArchiveChange) -> Result<()> {
        for MovedTask { id, rev } in std::mem::take(&mut change.tasks) {
            self.remove_final(id, rev)?;
        }
        self.archive.apply(change).map_err(|why| corrupt(&why))
    }

    /// Removes a final task that is in the archive.
    fn remove_final(&mut self, id: TaskId, rev: u64) -> Result<()> {
        let Some(live) = self.tasks.get(&id).filter(|live| live.is_final_at(rev)) else {
            return Err(corrupt(&format!("task {id} is archived, but is not final at revision {rev}")));
        };
        let key = match &live.body {
            TaskBody::Encoded(body) => EncodedTask::read(body)?.into_parts().0.key,
            _ => self.bodies.take_key(&id),
        };
        self.indexes.remove(id, &live.indexed, None);
        self.bodies.remove(&live.body);
        self.tasks.remove(&id);
        if let Some(key) = key {
            self.indexes.free(key, id);
        }
        Ok(())
    }

    fn hear(&mut self, id: TaskId) -> Result<()> {
        let running = self.tasks.get_mut(&id).and_then(|live| match &mut live.body {
            TaskBody::Running(running) => running.logged.claim.as_mut(),
            TaskBody::Encoded(_) | TaskBody::Evicted { .. } => None,
        });
        let Some(terms) = running else {
            return Err(corrupt(&format!("task {id} is renewed, but not running")));
        };
        terms.is_heard = true;
        Ok(())
    }

    pub(super) fn renew_claim(&mut self, id: TaskId, renewal: ClaimRenewal) {
        let Some(live) = self.tasks.get_mut(&id) else { return };
        let TaskBody::Running(running) = &mut live.body else { return };
        running.renewal = Some(renewal);
        let expires_at = running.expires_at();
        self.indexes.move_claim(id, &mut live.indexed, expires_at);
    }

    /// Reads a live task. One that is evicted must have been read back before.
    pub(super) fn load(&self, id: &TaskId) -> Result<Option<LoadedTask<'_>>> {
        self.tasks.get(id).map(|live| live.load(id)).transpose()
    }
}

impl LiveTask {
    pub(super) fn load(&self, id: &TaskId) -> Result<LoadedTask<'_>> {
        Ok(match &self.body {
            TaskBody::Encoded(body) => {
                LoadedTask { logged: Cow::Owned(JournalTask::decode(body)?), renewal: None }
            }
            TaskBody::Running(running) => {
                LoadedTask { logged: Cow::Borrowed(&running.logged), renewal: running.renewal.as_ref() }
            }
            TaskBody::Evicted { .. } => return Err(evicted_error(id)),
        })
    }

    /// True if the task is final, at this revision.
    pub(super) fn is_final_at(&self, rev: u64) -> bool {
        self.indexed.status.is_final() && self.rev().is_ok_and(|found| found == rev)
    }
}

impl TaskBody {
    /// The body of a task, and its head; `renewal` is that of the claim before, if it is the same.
    fn new(task: JournalTask, renewal: Option<ClaimRenewal>) -> (TaskHead, Self) {
        if task.task.status() != Status::Running {
            let (head, body) = task.encode().into_parts();
            return (head, Self::Encoded(body));
        }
        let running = RunningTask { logged: task, renewal };
        let head = TaskHead { time: running.expires_at(), ..running.logged.head() };
        (head, Self::Running(Box::new(running)))
    }

    fn worker(&self) -> Option<&WorkerId> {
        let Self::Running(running) = self else { return None };
        let State::Running(claim) = &running.logged.task.state else { return None };
        Some(&claim.by)
    }

    fn take_renewal(&mut self) -> Option<ClaimRenewal> {
        if let Self::Running(running) = self { running.renewal.take() } else { None }
    }
}

impl RunningTask {
    /// Expiry of the claim, with its renewals.
    fn expires_at(&self) -> StoreTime {
        let State::Running(claim) = &self.logged.task.state else { return StoreTime::NEVER };
        self.renewal.as_ref().map_or(claim.expires_at, |renewal| renewal.expires_at.max(claim.expires_at))
    }
}

impl LoadedTask<'static> {
    /// A task that is not live.
    pub(super) fn archived(task: JournalTask) -> Self {
        Self { logged: Cow::Owned(task), renewal: None }
    }
}

impl LoadedTask<'_> {
    /// The task as it is now, with the renewals of its claim.
    pub(super) fn current(&self) -> Cow<'_, Task> {
        let (State::Running(claim), Some(renewal)) = (&self.logged.task.state, self.renewal) else {
            return Cow::Borrowed(&self.logged.task);
        };
        let claim = Claim {
            expires_at: renewal.expires_at.max(claim.expires_at),
            renewed_at: Some(renewal.renewed_at),
            ..claim.clone()
        };
        let (state, progress) = (State::Running(claim), renewal.progress.clone());
        Cow::Owned(Task { state, progress, ..self.logged.task.clone() })
    }

    /// The task as it is now.
    pub(super) fn into_current(self) -> Task {
        match self.current() {
            Cow::Owned(task) => task,
            Cow::Borrowed(_) => self.logged.into_owned().task,
        }
    }
}

fn corrupt(message: &str) -> Error {
    Error::new(Kind::Corrupt, format!("the journal is corrupt: {message}"))
}
