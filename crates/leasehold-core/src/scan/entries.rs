//! Entries that a worker has found: which are claimed next, which are checked later, and which are skipped.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

use super::backoff::{BackoffAction, CORRUPT_PAUSE, EntryBackoff};
use crate::{Entry, Error, IndexLocation, Now, StoreTime, TaskId};

/// Pause before a task type without a handler is checked again: the worker that can run it may be gone.
const NO_HANDLER_PAUSE: Duration = Duration::from_mins(5);
/// Pause before an entry ahead of its task is checked again: its producer is probably between its two writes.
const AHEAD_PAUSE: Duration = Duration::from_secs(1);
/// Maximum of that pause: the producer may have problems, and succeed later.
const AHEAD_PAUSE_MAX: Duration = Duration::from_mins(1);

/// An entry found in an index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexHit {
    /// The entry.
    pub entry: Entry,
    /// Time at which it was written, from the store's timestamp.
    pub written_at: StoreTime,
}

impl IndexHit {
    fn is_in_inbox(&self) -> bool {
        matches!(self.entry.location, IndexLocation::Inbox(_))
    }
}

/// Reason why the task of an entry was not claimed.
#[derive(Debug)]
pub enum Unclaimed {
    /// It is not due before this time.
    NotDue(StoreTime),
    /// The worker has no handler for it.
    NoHandler,
    /// Another worker holds it until this time, unless it renews its claim; this worker could run it.
    Held(StoreTime),
    /// The entry is ahead of its task: the task does not exist yet, or has an older revision.
    Ahead,
    /// The entry is outdated: the task has changed since it was written.
    Outdated,
    /// The task has expired.
    Expired,
    /// The record is corrupt and is left for an operator.
    Corrupt(Error),
}

/// Periods during which an entry that does not match its task is left alone.
#[derive(Debug, Clone, Copy)]
pub struct Graces {
    /// For an outdated entry: its task has a later revision.
    pub outdated: Duration,
    /// For an entry ahead of its task.
    pub ahead: Duration,
}

/// Entries that a worker has found.
#[derive(Debug, Default)]
pub struct FoundEntries {
    /// Entries to claim, in this order.
    waiting: VecDeque<IndexHit>,
    /// Further entries of tasks that are being claimed through another entry. Claimed later if that attempt fails: the
    /// other entry may be ahead of its task, while this one is valid.
    deferred: Vec<IndexHit>,
    backoff: EntryBackoff,
    /// Ready entries that the last scan has found and that may still be waiting.
    ready: HashSet<Entry>,
    /// Entries of the tasks that were claimed, and have not ended.
    claimed: HashMap<TaskId, Entry>,
    /// Entries that were not claimed, or whose tasks have ended, since the scan began: its pages may still have them.
    ended: HashSet<Entry>,
    scan: Scan,
}

/// State of the current scan.
#[derive(Debug, Default)]
struct Scan {
    /// Part of the index, if not the ready index.
    other: Option<IndexLocation>,
    /// All entries that it has found.
    present: HashSet<Entry>,
    /// Those to be swept.
    to_sweep: Vec<(IndexHit, BackoffAction)>,
    /// Number of entries that were waiting before.
    waiting_before: usize,
}

impl FoundEntries {
    /// Begins a scan of the ready index, or of another part of the index.
    pub fn begin_scan(&mut self, other: Option<IndexLocation>) {
        self.ended.clear();
        if other.is_none() {
            self.ready.clear();
        }
        self.scan = Scan { other, waiting_before: self.waiting.len(), ..Scan::default() };
    }

    /// Adds an entry that the scan has found; it is skipped if its task is being claimed or runs.
    pub fn add(&mut self, hit: IndexHit, now: Now, is_busy: bool) {
        let is_new = self.scan.present.insert(hit.entry.clone());
        if !is_new || is_busy || self.ended.contains(&hit.entry) {
            return;
        }
        match self.backoff.action(&hit.entry, now) {
            Some(BackoffAction::Claim | BackoffAction::Await) => self.waiting.push_back(hit),
            Some(next) => self.scan.to_sweep.push((hit, next)),
            None => {}
        }
    }

    /// Entries to claim that the scan has found.
    pub fn new_in_scan(&mut self) -> &mut [IndexHit] {
        &mut self.waiting.make_contiguous()[self.scan.waiting_before..]
    }

    /// Number of all entries that the scan has found.
    #[must_use]
    pub fn count_in_scan(&self) -> usize {
        self.scan.present.len()
    }

    /// Ends the scan, and returns the entries to sweep. A complete scan proves that other entries of its part are gone.
    pub fn end_scan(&mut self, is_complete: bool) -> Vec<(IndexHit, BackoffAction)> {
        let Scan { other, mut present, to_sweep, .. } = std::mem::take(&mut self.scan);
        if is_complete {
            let is_covered = |entry: &Entry| match &other {
                Some(other) => entry.location == *other,
                None => entry.shard().is_some(),
            };
            self.backoff.retain(|entry| !is_covered(entry) || present.contains(entry));
        }
        if other.is_none() {
            // Those that are claimed here have a lease entry.
            present.retain(|entry| !self.claimed.contains_key(&entry.id) && !self.ended.contains(entry));
            self.ready = present;
        }
        to_sweep
    }

    /// Rotates the new entries to a random start, so that workers rarely compete; within a shard the oldest still goes
    /// first. Earlier entries stay in front.
    pub fn rotate_new(&mut self, random: u64) {
        let found = self.new_in_scan();
        let Some(last) = found.len().checked_sub(1).filter(|last| *last > 0) else { return };
        let at = usize::try_from(random % (last as u64 + 1)).unwrap_or(0);
        let shard = found[at].entry.shard();
        let of_shard = found.iter().position(|found| found.entry.shard() == shard);
        found.rotate_left(shard.and(of_shard).unwrap_or(at));
    }

    /// Resumes the entries whose pause is over. Returns true if some are to be claimed, and those to sweep.
    pub fn resume_due(&mut self, now: Now) -> (bool, Vec<(IndexHit, BackoffAction)>) {
        let is_claim = |action| matches!(action, BackoffAction::Claim | BackoffAction::Await);
        let (claims, sweeps): (Vec<_>, Vec<_>) =
            self.backoff.take_due(now).into_iter().partition(|(_, action)| is_claim(*action));
        let is_resumed = !claims.is_empty();
        self.waiting.extend(claims.into_iter().map(|(hit, _)| hit));
        (is_resumed, sweeps)
    }

    /// True if no entry waits to be claimed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// True if no ready entry waits: every one that was found is claimed, here or by other workers.
    #[must_use]
    pub fn is_ready_empty(&self) -> bool {
        self.ready.is_empty()
    }

    /// Takes the next entry to claim.
    pub fn pop(&mut self) -> Option<IndexHit> {
        self.waiting.pop_front()
    }

    /// Keeps an entry whose task is being claimed by another entry until that has ended.
    pub fn defer(&mut self, hit: IndexHit) {
        if !self.claimed.contains_key(&hit.entry.id) {
            self.deferred.push(hit);
        }
    }

    /// Removes the entries of inboxes that wait to be claimed.
    pub fn drop_inboxes(&mut self) {
        self.waiting.retain(|hit| !hit.is_in_inbox());
    }

    /// Records that the task of an entry was claimed. Returns true if a ready entry no longer waits.
    pub fn claimed(&mut self, hit: IndexHit) -> bool {
        self.deferred.retain(|deferred| deferred.entry.id != hit.entry.id);
        self.backoff.remove(&hit.entry);
        let was_ready = self.ready.remove(&hit.entry);
        self.claimed.insert(hit.entry.id, hit.entry);
        was_ready
    }

    /// Records that the task of an entry was not claimed, and when the entry is checked again. Returns true if a ready
    /// entry no longer waits.
    pub fn not_claimed(&mut self, hit: IndexHit, why: &Unclaimed, now: Now, graces: Graces) -> bool {
        let id = hit.entry.id;
        self.waiting.extend(self.deferred.extract_if(.., |deferred| deferred.entry.id == id));
        self.ended.insert(hit.entry.clone());
        let is_taken =
            matches!(why, Unclaimed::Held(_) | Unclaimed::Outdated) && self.ready.remove(&hit.entry);
        self.pause(hit, why, now, graces);
        is_taken
    }

    fn pause(&mut self, hit: IndexHit, why: &Unclaimed, now: Now, graces: Graces) {
        let soon = now.latest_known();
        let (until, action) = match why {
            // It was moved to the shared index.
            Unclaimed::NoHandler if hit.is_in_inbox() => return self.backoff.remove(&hit.entry),
            Unclaimed::NoHandler => (soon.plus(NO_HANDLER_PAUSE), BackoffAction::Claim),
            // A scheduled task starts when even the earliest value of *now* has reached its time.
            Unclaimed::NotDue(at) => (soon.plus(at.since(now.earliest)), BackoffAction::Claim),
            Unclaimed::Held(at) => ((*at).min(soon.plus(graces.outdated)), BackoffAction::Recover),
            // If the next scan still finds it, it is swept.
            Unclaimed::Outdated | Unclaimed::Expired => (soon, BackoffAction::Sweep),
            // Its producer has given up, or has crashed.
            Unclaimed::Ahead if now.is_past(hit.written_at.plus(graces.ahead)) => {
                (soon, BackoffAction::Sweep)
            }
            // The older it is, the less likely is its task to appear.
            Unclaimed::Ahead => {
                let age = soon.since(hit.written_at);
                (soon.plus((age / 4).clamp(AHEAD_PAUSE, AHEAD_PAUSE_MAX)), BackoffAction::Await)
            }
            Unclaimed::Corrupt(_) => (soon.plus(CORRUPT_PAUSE), BackoffAction::Sweep),
        };
        self.backoff.set(hit, Some((until, action)));
    }

    /// Records the tasks that have ended, by those that still run. Returns true if some have.
    pub fn record_ends(&mut self, is_running: impl Fn(&TaskId) -> bool) -> bool {
        let before = self.claimed.len();
        self.ended.extend(self.claimed.extract_if(|id, _| !is_running(id)).map(|(_, entry)| entry));
        self.claimed.len() < before
    }

    /// Pauses of entries.
    pub fn backoff(&mut self) -> &mut EntryBackoff {
        &mut self.backoff
    }
}
