//! What is known of the queue, and since when. The sampler writes it, everyone else reads it.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use leasehold_core::{ArtifactId, Error, Kind, Minute, ShardRange, Status, StoreTime, WorkerId};
use leasehold_pieces::prune::Listed as ListedArtifact;
use leasehold_queue::{NameFor, SeenLease, Stats};
use leasehold_store::host::Instant;
use serde::Serialize;

use crate::pace::Took;
use crate::table::Table;

/// So many counts of the index are kept: an hour on a bucket, 24 minutes on a folder.
const DEPTHS_MAX: usize = 720;
/// What the page costs in an hour is told from so much of its past.
const SPENDING_WINDOW: Duration = Duration::from_mins(10);
/// From less than this it is not told.
const SPENDING_LEAST: Duration = Duration::from_mins(1);
/// So long the tasks are taken to stand as they were read.
const FRESH: Duration = Duration::from_secs(15);

/// What was tried longer ago than this is not what is wrong now; the index is tried every minute.
const TRIED_LATELY: Duration = Duration::from_mins(3);

/// What was read, and when.
#[derive(Debug)]
pub(crate) struct Seen<T> {
    pub(crate) at: Instant,
    pub(crate) what: T,
}

/// The depth of the queue at one moment.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Depth {
    at: StoreTime,
    due: u64,
    scheduled: u64,
    running: u64,
    #[serde(skip)]
    instant: Instant,
    /// What this page had asked the store for until then.
    #[serde(skip)]
    requests: u64,
    /// Whether all tasks had been read once by then: that is not done again.
    #[serde(skip)]
    has_begun: bool,
}

/// Something that is read again and again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Part {
    Index,
    Tasks,
    Workers,
    Shards,
    Artifacts,
}

impl Part {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Index => "index",
            Self::Tasks => "tasks",
            Self::Workers => "workers",
            Self::Shards => "shards",
            Self::Artifacts => "artifacts",
        }
    }
}

/// What could not be read, and since when.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) since: Instant,
    pub(crate) text: String,
    /// How often it was tried in vain.
    failures: u32,
    /// The store did not answer. Its client logs that, for all who use it.
    is_unreachable: bool,
}

/// What a try has changed about whether the store can be read. A store that does not answer is no change here: its client
/// logs that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Nothing.
    Same,
    /// It could be read, and cannot any more.
    Failing,
    /// It can be read again.
    Recovered,
}

/// How far the pass over the tasks is.
#[derive(Debug, Default)]
pub(crate) struct Pass {
    /// How many were listed in the pass under way, or in the last one.
    pub(crate) listed: u64,
    /// How many of them were read.
    pub(crate) read: u64,
    /// When the last whole one ended.
    pub(crate) ended: Option<Instant>,
    /// Whether there are more tasks than can be remembered.
    pub(crate) is_cut: bool,
    /// How many records may not be read.
    pub(crate) denied: u64,
}

/// When a part was last tried, and what that took.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tried {
    pub(crate) at: Instant,
    pub(crate) took: Took,
}

/// Who holds what.
pub(crate) type Workers = (Vec<(WorkerId, NameFor, SeenLease)>, BTreeMap<WorkerId, u64>);
/// The groups of shards.
pub(crate) type Shards = Vec<(ShardRange, SeenLease)>;
/// Large files.
pub(crate) type Artifacts = BTreeMap<ArtifactId, ListedArtifact>;

/// All of it.
#[derive(Debug, Default)]
pub(crate) struct Board {
    pub(crate) table: Table,
    pub(crate) pass: Pass,
    pub(crate) index: Option<Seen<Stats>>,
    pub(crate) workers: Option<Seen<Workers>>,
    pub(crate) shards: Option<Seen<Shards>>,
    pub(crate) artifacts: Option<Seen<Artifacts>>,
    /// Whether there are any.
    pub(crate) has_artifacts: bool,
    tried: BTreeMap<Part, Tried>,
    faults: BTreeMap<Part, Fault>,
    is_failing: bool,
    depth: VecDeque<Depth>,
    minute: Option<Minute>,
    revision: u64,
}

impl Board {
    /// Grows with every change of what viewers would see.
    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    /// Something is not as it was.
    pub(crate) fn touch(&mut self) {
        self.revision += 1;
    }

    /// When a part was last tried.
    pub(crate) fn tried(&self, part: Part) -> Option<Tried> {
        self.tried.get(&part).copied()
    }

    /// Notes that a part was tried, and with what end.
    pub(crate) fn note(&mut self, part: Part, tried: Tried, failed: Option<&Error>) -> Turn {
        self.tried.insert(part, tried);
        match failed {
            None => {
                if self.faults.remove(&part).is_some() {
                    self.touch();
                }
            }
            Some(error) => {
                let text = error.to_string();
                let before = self.faults.get(&part);
                let is_news = before.is_none_or(|fault| fault.text != text);
                let since = before.map(|fault| fault.since).or_else(|| self.last_read(part));
                let count = before.map_or(0, |fault| fault.failures).saturating_add(1);
                let is_unreachable = error.kind() == Kind::Unavailable;
                let fault = Fault { since: since.unwrap_or(tried.at), text, failures: count, is_unreachable };
                self.faults.insert(part, fault);
                if is_news {
                    self.touch();
                }
            }
        }
        // What was logged as failing has recovered when nothing fails any more.
        let is_failing = self.faults_lately(tried.at).any(|fault| self.is_failing || !fault.is_unreachable);
        match (std::mem::replace(&mut self.is_failing, is_failing), is_failing) {
            (false, true) => Turn::Failing,
            (true, false) => Turn::Recovered,
            _ => Turn::Same,
        }
    }

    /// Forgets that a part could not be read.
    pub(crate) fn forget(&mut self, part: Part) {
        if self.faults.remove(&part).is_some() {
            self.touch();
        }
    }

    /// When a part was last read, if it is one that is read whether anybody looks or not: the store has failed since then,
    /// and not since the first try that found out.
    fn last_read(&self, part: Part) -> Option<Instant> {
        self.index.as_ref().filter(|_| part == Part::Index).map(|index| index.at)
    }

    /// Whether the last try of a part has failed.
    pub(crate) fn is_failing(&self, part: Part) -> bool {
        self.faults.contains_key(&part)
    }

    /// Whether the store could not be read for so long, and more than once: a single failure may pass.
    pub(crate) fn is_down(&self, now: Instant, patience: Duration) -> bool {
        self.faults_lately(now).any(|fault| fault.failures > 1 && now.since(fault.since) >= patience)
    }

    /// What cannot be read at present, for the longest time. What nobody has tried lately says nothing.
    pub(crate) fn fault(&self, now: Instant) -> Option<&Fault> {
        self.faults_lately(now).min_by_key(|fault| fault.since.boot_ns)
    }

    fn faults_lately(&self, now: Instant) -> impl Iterator<Item = &Fault> {
        let is_tried =
            move |part: &Part| self.tried(*part).is_some_and(|tried| now.since(tried.at) < TRIED_LATELY);
        self.faults.iter().filter(move |(part, _)| is_tried(part)).map(|(_, fault)| fault)
    }

    pub(crate) fn set_has_artifacts(&mut self, has_artifacts: bool) {
        if std::mem::replace(&mut self.has_artifacts, has_artifacts) != has_artifacts {
            self.touch();
        }
    }

    /// The index was counted; the tasks correct it where they know better. The minute that begins moves all charts.
    pub(crate) fn set_index(&mut self, stats: Stats, at: Instant, now: StoreTime, requests: u64) {
        let stats = self.by_tasks(at, now).unwrap_or(stats);
        let Stats { due, scheduled, running, .. } = stats;
        let is_same = self.index.as_ref().is_some_and(|old| {
            (old.what.due, old.what.scheduled, old.what.running) == (due, scheduled, running)
        });
        let minute = Some(Minute::of(now));
        if !is_same || self.minute != minute {
            self.touch();
        }
        self.minute = minute;
        let has_begun = self.pass.ended.is_some();
        self.depth.push_back(Depth { at: now, due, scheduled, running, instant: at, requests, has_begun });
        if self.depth.len() > DEPTHS_MAX {
            self.depth.pop_front();
        }
        self.index = Some(Seen { at, what: stats });
    }

    pub(crate) fn depth(&self) -> &VecDeque<Depth> {
        &self.depth
    }

    /// What waits and runs, by the tasks, if they were read lately. Whoever holds a shard claims without touching the
    /// index, to which such a task goes on waiting.
    fn by_tasks(&self, at: Instant, now: StoreTime) -> Option<Stats> {
        self.pass.ended.filter(|ended| at.since(*ended) < FRESH && !self.pass.is_cut)?;
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

    /// What this page asks the store for in an hour, if it goes on as lately.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a figure for people, of positive numbers"
    )]
    pub(crate) fn requests_per_hour(&self, now: Instant, requests: u64) -> Option<u64> {
        let mut depths = self.depth.iter().filter(|depth| depth.has_begun);
        let then = depths.find(|depth| now.since(depth.instant) <= SPENDING_WINDOW)?;
        let time = Some(now.since(then.instant)).filter(|time| *time >= SPENDING_LEAST)?;
        let spent = requests.saturating_sub(then.requests) as f64;
        Some((spent * 3_600.0 / time.as_secs_f64()).round() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Stand, claim};
    use leasehold_store::Host;

    #[tokio::test]
    async fn tasks_that_were_read_lately_correct_the_index() {
        let stand = Stand::new().await;
        stand.submit("a").await;
        claim(&stand.queue, stand.submit("b").await).await.unwrap();
        stand.look().await;
        let now = stand.queue.now().unwrap().earliest;
        let mut board = stand.app.shared.board_mut();
        let mut depth = |at| {
            // As an index stands whose shards are held: what runs goes on waiting.
            board.set_index(Stats { due: 2, ..Stats::default() }, at, now, 0);
            let depth = board.depth().back().unwrap();
            (depth.due, depth.running)
        };
        assert_eq!(depth(stand.host.instant()), (1, 1));
        stand.host.advance(FRESH);
        assert_eq!(depth(stand.host.instant()), (2, 0), "nobody knows how the tasks stand by now");
    }

    #[tokio::test]
    async fn what_is_spent_in_an_hour_leaves_out_the_first_reading_of_all_tasks() {
        let stand = Stand::new().await;
        for _ in 0..50 {
            stand.submit("a").await;
        }
        let told = || {
            let board = stand.app.shared.board();
            board.requests_per_hour(stand.host.instant(), stand.app.shared.requests())
        };
        stand.look().await;
        assert_eq!(told(), None);
        stand.look().await;
        stand.look().await;
        assert!(told().is_some_and(|requests| requests < 50 * 60), "{:?}", told());
    }
}
