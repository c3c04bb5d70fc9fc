//! The commit that is being filled, and the answers that wait for it.

use leasehold_core::limits::{
    COMMIT_BYTES_FULL, COMMIT_INTERVAL, COMMIT_LINGER, COMMIT_LINGER_LAZY, COMMITS_SAVED,
};
use leasehold_store::host::Instant;
use std::time::Duration;

use super::request::HeldAnswer;

/// Times for which a commit waits for more records.
#[derive(Debug, Clone, Copy)]
pub(super) struct Linger {
    urgent: Duration,
    lazy: Duration,
    /// Interval of commits in the long run (see [`CommitAllowance`]).
    interval: Duration,
}

impl Linger {
    /// In a bucket, where every put costs money and takes tens of milliseconds.
    pub(super) const BUCKET: Linger =
        Linger { urgent: COMMIT_LINGER, lazy: COMMIT_LINGER_LAZY, interval: COMMIT_INTERVAL };
    /// In a folder, where the commit in flight is all that there is to wait for.
    pub(super) const FOLDER: Linger =
        Linger { urgent: Duration::ZERO, lazy: Duration::ZERO, interval: Duration::ZERO };
}

/// Commits that a broker may write without an interval between them.
///
/// A bucket bills each put, whatever it contains. While workers wait for tasks, a longer wait delays the tasks of a commit, but the
/// rate of tasks stays as it is: so commits that follow each other for minutes are written at an interval. That does not apply while
/// tasks wait for workers, because a free slot gets its next task by a commit, nor when no more records come, because all clients wait
/// for their outcomes: in both cases the rate would fall.
#[derive(Debug)]
pub(super) struct CommitAllowance {
    interval: Duration,
    /// Time that was saved up until `at`: an interval for each commit.
    saved: Duration,
    at: Instant,
}

impl CommitAllowance {
    pub(super) fn new(linger: Linger, now: Instant) -> Self {
        Self { interval: linger.interval, saved: linger.interval * COMMITS_SAVED, at: now }
    }

    /// Time until the next commit may be written.
    pub(super) fn wait(&self, now: Instant) -> Duration {
        self.interval.saturating_sub(self.saved_until(now))
    }

    /// Counts a commit that is written now.
    pub(super) fn spend(&mut self, now: Instant) {
        self.saved = self.saved_until(now).saturating_sub(self.interval);
        self.at = now;
    }

    fn saved_until(&self, now: Instant) -> Duration {
        (self.saved + now.since(self.at)).min(self.interval * COMMITS_SAVED)
    }
}

/// Urgency of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Urgency {
    /// Something waits for its outcome.
    Urgent,
    /// A result that nothing waits for: its worker is free already.
    Lazy,
}

/// Answers that wait for one commit.
#[derive(Debug, Default)]
pub(super) struct HeldAnswers {
    /// Sent when the commit is confirmed.
    pub(super) confirmed: Vec<HeldAnswer>,
    /// Need a proof after that, that this broker is current.
    pub(super) unproven: Vec<HeldAnswer>,
}

impl HeldAnswers {
    pub(super) fn push(&mut self, answer: HeldAnswer, needs_proof: bool) {
        if needs_proof { self.unproven.push(answer) } else { self.confirmed.push(answer) }
    }
}

/// Commit that is being filled.
#[derive(Debug)]
pub(super) struct OpenCommit {
    pub(super) lines: Vec<u8>,
    pub(super) records: u32,
    pub(super) answers: HeldAnswers,
    /// Time of its first record.
    opened_at: Option<Instant>,
    /// Time of its first urgent record.
    urgent_at: Option<Instant>,
    /// Time of its last record.
    last_at: Option<Instant>,
    linger: Linger,
}

impl OpenCommit {
    pub(super) fn new(linger: Linger) -> Self {
        let answers = HeldAnswers::default();
        let (opened_at, urgent_at, last_at) = (None, None, None);
        Self { lines: Vec::new(), records: 0, answers, opened_at, urgent_at, last_at, linger }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.records == 0
    }

    /// Time until no record has come for so long that no more are expected: all clients wait for the outcomes of theirs.
    pub(super) fn quiet_in(&self, now: Instant) -> Duration {
        self.last_at.map_or(Duration::ZERO, |last| self.linger.urgent.saturating_sub(now.since(last)))
    }

    /// True if it takes no more records.
    pub(super) fn is_full(&self) -> bool {
        self.lines.len() >= COMMIT_BYTES_FULL
    }

    /// Counts records that were appended to `lines`.
    pub(super) fn add(&mut self, records: u32, urgency: Urgency, now: Instant) {
        if records == 0 {
            return;
        }
        self.records += records;
        self.opened_at.get_or_insert(now);
        self.last_at = Some(now);
        if urgency == Urgency::Urgent {
            self.urgent_at.get_or_insert(now);
        }
    }

    /// Time until it is to be written; none if it is empty.
    pub(super) fn due_in(&self, now: Instant) -> Option<Duration> {
        let left = |since: Option<Instant>, linger: Duration| {
            since.map(|since| linger.saturating_sub(now.since(since)))
        };
        if self.is_full() {
            return Some(Duration::ZERO);
        }
        let lazy = left(self.opened_at, self.linger.lazy)?;
        Some(left(self.urgent_at, self.linger.urgent).map_or(lazy, |urgent| urgent.min(lazy)))
    }

    /// Makes it due at once, because nothing more follows.
    pub(super) fn hurry(&mut self) {
        self.linger = Linger::FOLDER;
    }

    /// Takes its content, and begins the next one.
    pub(super) fn take(&mut self) -> Self {
        // As much room as the last one took: growing to megabytes copies them several times.
        let mut next = Self::new(self.linger);
        next.lines.reserve(self.lines.len().min(COMMIT_BYTES_FULL));
        std::mem::replace(self, next)
    }
}
