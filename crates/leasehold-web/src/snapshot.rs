//! Last known state of the queue, with the time of each read. The sampler writes it, responses read it.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use leasehold_core::{ArtifactId, Error, Kind, Minute, ShardRange, Status, StoreTime, WorkerId};
use leasehold_pieces::prune::ListedArtifact;
use leasehold_queue::{LeaseInfo, Stats, WorkerLeaseKind};
use leasehold_store::host::Instant;
use serde::Serialize;

use crate::journal_view::JournalView;
use crate::pace::SampleCost;
use crate::table::TaskTable;

/// Number of index counts that are kept: an hour on a bucket, 24 minutes on a folder.
const DEPTHS_MAX: usize = 720;
/// Time window for the estimate of requests per hour.
const SPENDING_WINDOW: Duration = Duration::from_mins(10);
/// Shortest time from which requests per hour are estimated.
const SPENDING_LEAST: Duration = Duration::from_mins(1);
/// Time for which task statuses count as current after a read.
const FRESH_FOR: Duration = Duration::from_secs(15);

/// Time after which a failure counts as an outage.
pub(crate) const DOWN_AFTER: Duration = Duration::from_mins(1);
/// Age after which a failure is no longer reported; the index is read at least every minute.
const RECENT: Duration = Duration::from_mins(3);

/// A value with the time of its read.
#[derive(Debug)]
pub(crate) struct Reading<T> {
    pub(crate) at: Instant,
    pub(crate) value: T,
}

/// Depth of the queue at one time.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Depth {
    at: StoreTime,
    due: u64,
    scheduled: u64,
    running: u64,
    #[serde(skip)]
    instant: Instant,
    /// Requests of the dashboard until then.
    #[serde(skip)]
    requests: u64,
    /// True if the first read of all tasks was finished by then: it is not repeated.
    #[serde(skip)]
    is_after_first_pass: bool,
}

/// A part of the queue that is sampled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Part {
    Index,
    Tasks,
    Workers,
    Shards,
    Journal,
    Artifacts,
}

impl Part {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Index => "index",
            Self::Tasks => "tasks",
            Self::Workers => "workers",
            Self::Shards => "shards",
            Self::Journal => "journal",
            Self::Artifacts => "artifacts",
        }
    }
}

/// Failure to read a part, and the time when it started.
#[derive(Debug)]
pub(crate) struct ReadFault {
    pub(crate) since: Instant,
    pub(crate) text: String,
    /// Number of failed reads in a row.
    failures: u32,
    /// True if the store did not respond. The store client logs that.
    is_unreachable: bool,
}

/// Change of the store's readability after a read. A store that does not respond is not a change here: the store client
/// logs that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HealthChange {
    /// No change.
    Same,
    /// The store can no longer be read.
    Failing,
    /// The store can be read again.
    Recovered,
}

/// Progress of the pass over the tasks.
#[derive(Debug, Default)]
pub(crate) struct Pass {
    /// Number of tasks listed in the current or last pass.
    pub(crate) listed: u64,
    /// Number of tasks read.
    pub(crate) read: u64,
    /// End of the last complete pass.
    pub(crate) ended: Option<Instant>,
    /// True if there are more tasks than the table has room for.
    pub(crate) is_cut: bool,
    /// Number of records that the store denied access to.
    pub(crate) denied: u64,
}

/// Time and cost of the last read of a part.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReadAttempt {
    pub(crate) at: Instant,
    pub(crate) cost: SampleCost,
}

/// Worker leases, and the number of tasks in each inbox.
pub(crate) type Workers = (Vec<(WorkerId, WorkerLeaseKind, LeaseInfo)>, BTreeMap<WorkerId, u64>);
/// Leases on groups of shards.
pub(crate) type Shards = Vec<(ShardRange, LeaseInfo)>;
/// Listed artifacts.
pub(crate) type ArtifactsPart = BTreeMap<ArtifactId, ListedArtifact>;

/// Last known state of the queue.
#[derive(Debug, Default)]
pub(crate) struct QueueSnapshot {
    pub(crate) table: TaskTable,
    pub(crate) pass: Pass,
    pub(crate) index: Option<Reading<Stats>>,
    pub(crate) workers: Option<Reading<Workers>>,
    pub(crate) shards: Option<Reading<Shards>>,
    pub(crate) artifacts: Option<Reading<ArtifactsPart>>,
    /// Broker of a queue in the layout `journal`, and the place among its changes.
    pub(crate) journal: JournalView,
    /// True if there are artifacts.
    pub(crate) has_artifacts: bool,
    attempts: BTreeMap<Part, ReadAttempt>,
    faults: BTreeMap<Part, ReadFault>,
    is_failing: bool,
    depth: VecDeque<Depth>,
    minute: Option<Minute>,
    revision: u64,
}

impl QueueSnapshot {
    /// Returns a number that grows with every visible change.
    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    /// Records a visible change.
    pub(crate) fn bump_revision(&mut self) {
        self.revision += 1;
    }

    /// Returns the last read of a part.
    pub(crate) fn last_attempt(&self, part: Part) -> Option<ReadAttempt> {
        self.attempts.get(&part).copied()
    }

    /// Records a read of a part, and its error if it failed.
    pub(crate) fn note(&mut self, part: Part, attempt: ReadAttempt, failed: Option<&Error>) -> HealthChange {
        self.attempts.insert(part, attempt);
        match failed {
            None => {
                if self.faults.remove(&part).is_some() {
                    self.bump_revision();
                }
            }
            Some(error) => {
                let text = error.to_string();
                let before = self.faults.get(&part);
                let is_new = before.is_none_or(|fault| fault.text != text);
                let since = before.map(|fault| fault.since).or_else(|| self.last_read(part));
                let count = before.map_or(0, |fault| fault.failures).saturating_add(1);
                let is_unreachable = error.kind() == Kind::Unavailable;
                let fault =
                    ReadFault { since: since.unwrap_or(attempt.at), text, failures: count, is_unreachable };
                self.faults.insert(part, fault);
                if is_new {
                    self.bump_revision();
                }
            }
        }
        // A failure that was logged has recovered when no part fails any longer.
        let is_failing = self.recent_faults(attempt.at).any(|fault| self.is_failing || !fault.is_unreachable);
        match (std::mem::replace(&mut self.is_failing, is_failing), is_failing) {
            (false, true) => HealthChange::Failing,
            (true, false) => HealthChange::Recovered,
            _ => HealthChange::Same,
        }
    }

    /// Forgets the failure of a part.
    pub(crate) fn forget(&mut self, part: Part) {
        if self.faults.remove(&part).is_some() {
            self.bump_revision();
        }
    }

    /// Returns the last successful read of a part that is read even without viewers: the store may have failed since then,
    /// and not only since the first failed read.
    fn last_read(&self, part: Part) -> Option<Instant> {
        self.index.as_ref().filter(|_| matches!(part, Part::Index | Part::Journal)).map(|index| index.at)
    }

    /// True if the last read of a part has failed.
    pub(crate) fn is_failing(&self, part: Part) -> bool {
        self.faults.contains_key(&part)
    }

    /// True if reads have failed for at least `down_after`, and more than once: a single failure may be transient.
    pub(crate) fn is_down(&self, now: Instant, down_after: Duration) -> bool {
        self.recent_faults(now).any(|fault| fault.failures > 1 && now.since(fault.since) >= down_after)
    }

    /// Returns the oldest current failure. Parts without a recent read do not count.
    pub(crate) fn fault(&self, now: Instant) -> Option<&ReadFault> {
        self.recent_faults(now).min_by_key(|fault| fault.since.boot_ns)
    }

    fn recent_faults(&self, now: Instant) -> impl Iterator<Item = &ReadFault> {
        let is_recent =
            move |part: &Part| self.last_attempt(*part).is_some_and(|attempt| now.since(attempt.at) < RECENT);
        self.faults.iter().filter(move |(part, _)| is_recent(part)).map(|(_, fault)| fault)
    }

    pub(crate) fn set_has_artifacts(&mut self, has_artifacts: bool) {
        if std::mem::replace(&mut self.has_artifacts, has_artifacts) != has_artifacts {
            self.bump_revision();
        }
    }

    /// Stores a count of the index, corrected by recently read tasks.
    pub(crate) fn set_index(&mut self, stats: Stats, at: Instant, now: StoreTime, requests: u64) {
        let stats = self.count_from_tasks(at, now).unwrap_or(stats);
        self.set_stats(stats, at, now, requests);
    }

    /// Stores the number of tasks. A new minute is a visible change: it moves all charts.
    pub(crate) fn set_stats(&mut self, stats: Stats, at: Instant, now: StoreTime, requests: u64) {
        let Stats { due, scheduled, running, .. } = stats;
        let is_same = self.index.as_ref().is_some_and(|old| {
            (old.value.due, old.value.scheduled, old.value.running) == (due, scheduled, running)
                && old.value.finished == stats.finished
        });
        let minute = Some(Minute::of(now));
        if !is_same || self.minute != minute {
            self.bump_revision();
        }
        self.minute = minute;
        let is_after_first_pass = self.pass.ended.is_some();
        self.depth.push_back(Depth {
            at: now,
            due,
            scheduled,
            running,
            instant: at,
            requests,
            is_after_first_pass,
        });
        if self.depth.len() > DEPTHS_MAX {
            self.depth.pop_front();
        }
        self.index = Some(Reading { at, value: stats });
    }

    pub(crate) fn depth(&self) -> &VecDeque<Depth> {
        &self.depth
    }

    /// Counts waiting and running tasks from task records, if they were read recently. The holder of a shard claims
    /// without writing the index, in which such a task still appears as waiting.
    fn count_from_tasks(&self, at: Instant, now: StoreTime) -> Option<Stats> {
        self.pass.ended.filter(|ended| at.since(*ended) < FRESH_FOR && !self.pass.is_cut)?;
        let mut stats = Stats::default();
        let mut oldest: Option<StoreTime> = None;
        for row in self.table.rows() {
            let (kind, sum) = match row.status {
                Status::Pending if row.is_due(now) => (0, &mut stats.due),
                Status::Pending => (1, &mut stats.scheduled),
                Status::Running => (2, &mut stats.running),
                _ => continue,
            };
            *sum += 1;
            if kind == 0 {
                oldest = [oldest, row.available_at].into_iter().flatten().min();
            }
            match stats.shards.get_mut(&*row.shard) {
                Some(counts) => counts[kind] += 1,
                None => stats.shards.entry(row.shard.to_string()).or_default()[kind] += 1,
            }
        }
        stats.oldest_due_secs = oldest.map(|oldest| now.since(oldest).as_secs());
        Some(stats)
    }

    /// Estimates the dashboard's requests per hour from recent samples.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a figure for people, of positive numbers"
    )]
    pub(crate) fn requests_per_hour(&self, now: Instant, requests: u64) -> Option<u64> {
        let mut depths = self.depth.iter().filter(|depth| depth.is_after_first_pass);
        let then = depths.find(|depth| now.since(depth.instant) <= SPENDING_WINDOW)?;
        let time = Some(now.since(then.instant)).filter(|time| *time >= SPENDING_LEAST)?;
        let spent = requests.saturating_sub(then.requests) as f64;
        Some((spent * 3_600.0 / time.as_secs_f64()).round() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{DashboardFixture, claim};
    use leasehold_store::Host;

    #[tokio::test]
    async fn recently_read_tasks_correct_the_index() {
        let fixture = DashboardFixture::new().await;
        fixture.submit("a").await;
        claim(&fixture.queue, fixture.submit("b").await).await.unwrap();
        fixture.view_and_sample().await;
        let now = fixture.queue.now().unwrap().earliest;
        let mut snapshot = fixture.app.shared.snapshot_mut();
        let mut depth = |at| {
            // The index of held shards: a running task still appears as waiting.
            snapshot.set_index(Stats { due: 2, ..Stats::default() }, at, now, 0);
            let depth = snapshot.depth().back().unwrap();
            (depth.due, depth.running)
        };
        assert_eq!(depth(fixture.host.instant()), (1, 1));
        fixture.host.advance(FRESH_FOR);
        assert_eq!(depth(fixture.host.instant()), (2, 0), "the task records are too old");
    }

    #[tokio::test]
    async fn requests_per_hour_exclude_the_first_read_of_all_tasks() {
        let fixture = DashboardFixture::new().await;
        for _ in 0..50 {
            fixture.submit("a").await;
        }
        let estimate = || {
            let snapshot = fixture.app.shared.snapshot();
            snapshot.requests_per_hour(fixture.host.instant(), fixture.app.shared.requests())
        };
        fixture.view_and_sample().await;
        assert_eq!(estimate(), None);
        fixture.view_and_sample().await;
        fixture.view_and_sample().await;
        assert!(estimate().is_some_and(|requests| requests < 50 * 60), "{:?}", estimate());
    }
}
