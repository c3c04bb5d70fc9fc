//! Direct dispatch: a producer puts the pointer to a new task into the inbox of one live worker.
//!
//! ```text
//!   producer   who is alive? ──▶ inbox/{worker}/…  ──▶ task, on condition absent ──▶ acknowledged
//!                 (cached)            │
//!   worker                            └──▶ claim, run, settle, remove
//!   anyone                            └──▶ overflow/…, if the worker is dead ──▶ whoever claims it
//! ```
//!
//! An inbox is an index, not storage: the task stands where all tasks stand, and is claimed as all are. So a pointer that
//! is in the wrong place costs time, never a task: one that was put into the inbox of a dead worker, before or after that
//! was emptied, is found by the list of all inboxes. For the same reason it does no harm to empty the inbox of a worker
//! that lives after all, or to do it twice at once: a pointer is written to its new place before it is removed from the old.
//!
//! Requests: a submit is 3 puts (pointer, task, bell of the inbox), and once in
//! [`DirectDispatch::discovery_ttl`] 1 list and 1 get for each worker that may be dead. Emptying an inbox is 1 get (its
//! lease) and 1 list for each thousand pointers; 1 get, 1 put and 1 delete for each of them.

use futures::future::{Either, select};
use futures::{StreamExt, TryStreamExt, stream};
use leasehold_core::{Entry, Kind, Result, Task, TaskId, Where, WorkerId, keys};
use leasehold_store::host::Instant;
use leasehold_store::mutant::{Rule, breaks};
use leasehold_store::{List, Purpose};
use std::collections::{BTreeSet, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::connect::Queue;
use crate::discover::Found;
use crate::inspect::READS_AT_ONCE;
use crate::layout::Intent;
use crate::lease::Leases;
use crate::others::Others;
use crate::read_lease;
use crate::sweep::Swept;

/// How long the lease on an inbox usually lasts without renewal: whose is younger counts as alive unread.
pub const INBOX_LEASE_TTL: Duration = Duration::from_mins(1);

/// So long a submit waits at most for the list of live workers.
const ASKING_PATIENCE: Duration = Duration::from_secs(5);

/// So many pointers of an inbox may fail before the rest is left for later.
const FAILURES_MAX: usize = 8;

/// Names that ran out so long ago are removed.
pub const NAME_KEPT: Duration = Duration::from_hours(7 * 24);

/// How a producer dispatches tasks to the inboxes of workers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectDispatch {
    /// For how long a producer relies on its list of live workers.
    pub discovery_ttl: Duration,
    /// To which of them a task goes.
    pub selection: Selection,
}

impl Default for DirectDispatch {
    fn default() -> Self {
        Self { discovery_ttl: Duration::from_secs(30), selection: Selection::default() }
    }
}

/// Which of the live workers gets a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Selection {
    /// One after the other; each process begins with one that chance chooses.
    #[default]
    RoundRobin,
    /// The one that its idempotency key, or else its id, belongs to. When a worker comes or goes, only its share moves.
    Hash,
    /// Any.
    Random,
}

/// What emptying inboxes came to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rescued {
    /// Pointers that were moved to the overflow.
    pub moved: u64,
    /// Pointers that were removed: their tasks are found elsewhere, or have ended.
    pub removed: u64,
    /// Pointers that stay for now: their tasks run, or have just moved on.
    pub left: u64,
}

/// The live workers, as a producer knows them.
#[derive(Debug)]
pub(crate) struct Inboxes {
    known: Mutex<Known>,
    /// Held by the one who asks.
    asking: tokio::sync::Mutex<Others>,
}

#[derive(Debug)]
struct Known {
    asked: Option<Instant>,
    live: Vec<WorkerId>,
    /// Whose turn it is.
    turn: u64,
}

impl Inboxes {
    pub(crate) fn new(first: u64) -> Self {
        let known = Known { asked: None, live: Vec::new(), turn: first };
        Self { known: Mutex::new(known), asking: tokio::sync::Mutex::new(Others::new(INBOX_LEASE_TTL)) }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    /// Whether it is time to ask who is alive.
    fn is_old(&self, now: Instant, ttl: Duration) -> bool {
        self.asked.is_none_or(|asked| now.since(asked) >= ttl)
    }
}

impl Queue {
    /// The worker to whose inbox a new task goes; nothing if none is alive, or if tasks are for everyone here.
    pub(crate) async fn inbox_for(&self, task: &Task) -> Option<WorkerId> {
        let direct = self.config.direct.as_ref()?;
        self.ask_who_is_alive(direct.discovery_ttl).await;
        let mut known = self.inboxes.known();
        known.turn = known.turn.wrapping_add(1);
        let chosen = match direct.selection {
            Selection::Hash => by_hash(&known.live, task),
            Selection::Random => nth(&known.live, self.client.host().random()),
            Selection::RoundRobin => nth(&known.live, known.turn),
        };
        chosen.cloned()
    }

    /// Sees to it that the list of live workers is not older than this. Only the first time is waited for whoever asks
    /// already; and nobody waits for long: whoever was alive before probably is, and without a list a task is for everyone.
    async fn ask_who_is_alive(&self, ttl: Duration) {
        let host = self.client.host();
        let is_old = |known: &Known| known.is_old(host.instant(), ttl);
        let is_first = match &*self.inboxes.known() {
            known if !is_old(known) => return,
            known => known.asked.is_none(),
        };
        let asking = if is_first {
            Some(self.inboxes.asking.lock().await)
        } else {
            self.inboxes.asking.try_lock().ok()
        };
        let Some(mut others) = asking.filter(|_| is_old(&self.inboxes.known())) else { return };
        let asked = select(Box::pin(self.live_inboxes(&mut others)), host.sleep(ASKING_PATIENCE)).await;
        let mut known = self.inboxes.known();
        known.asked = Some(host.instant());
        match asked {
            Either::Left((Ok(live), _)) => known.live = live,
            Either::Left((Err(error), _)) => tracing::warn!("the live workers could not be listed: {error}"),
            Either::Right(_) => tracing::warn!("the live workers could not be listed: no answer yet"),
        }
    }

    /// The workers that have an inbox and are alive. Only leases that may have run out are read, and only once.
    async fn live_inboxes(&self, others: &mut Others) -> Result<Vec<WorkerId>> {
        let listed = self.listed_inbox_leases().await?;
        let now = self.now()?;
        others.forget_old(now);
        let unknown = listed.iter().filter(|(_, listed)| others.is_held(listed, now).is_none());
        let reads = unknown.map(|(_, listed)| async move {
            match read_lease(&self.client, &listed.key).await {
                Err(error) if error.kind() == Kind::Corrupt => Ok((listed, None)),
                lease => Ok::<_, leasehold_core::Error>((listed, lease?)),
            }
        });
        let read: Vec<_> =
            stream::iter(reads.collect::<Vec<_>>()).buffered(READS_AT_ONCE).try_collect().await?;
        for (listed, lease) in read {
            others.learn(&listed.key, Some(listed.modified), lease.as_ref());
        }
        let is_live = |listed: &leasehold_store::Entry| others.is_held(listed, now) == Some(true);
        Ok(listed.into_iter().filter(|(_, listed)| is_live(listed)).map(|(worker, _)| worker).collect())
    }

    async fn listed_inbox_leases(&self) -> Result<Vec<(WorkerId, leasehold_store::Entry)>> {
        let (mut leases, mut next) = (Vec::new(), Some(List::all(keys::WORKERS)));
        while let Some(list) = next {
            let page = self.client.list(Purpose::Submit, &list).await?;
            let named = page
                .entries
                .into_iter()
                .filter_map(|entry| Some((keys::parse_inbox_lease(&entry.key)?, entry)));
            leases.extend(named);
            next = page.next.map(|cursor| list.at(cursor));
        }
        Ok(leases)
    }

    /// Empties the inboxes of all workers that are dead. Anyone may do this at any time, also several at once: 1 list, if
    /// there is nothing to do. What fails keeps from nothing else; the last failure is told at the end.
    pub async fn rescue_inboxes(&self) -> Result<Rescued> {
        self.may(Intent::Change).await?;
        let (mut rescued, mut failed) = (Rescued::default(), None);
        for worker in self.inboxes().await? {
            match self.rescue_inbox(&worker).await {
                Ok(one) => rescued.add(one),
                Err(error) => failed = Some(error),
            }
        }
        failed.map_or(Ok(rescued), Err)
    }

    /// The workers that have something in their inboxes, and perhaps some that had. Not by their leases: a producer may
    /// have written into the inbox of a worker that is long gone.
    pub async fn inboxes(&self) -> Result<BTreeSet<WorkerId>> {
        let (mut workers, mut next) = (BTreeSet::new(), Some(List::all(keys::INBOXES).delimited()));
        while let Some(list) = next {
            let page = self.client.list(Purpose::Sweep, &list).await?;
            workers.extend(page.prefixes.iter().filter_map(|prefix| keys::parse_inbox(prefix)));
            next = page.next.map(|cursor| list.at(cursor));
        }
        Ok(workers)
    }

    /// Empties the inbox of a worker, unless it is alive: what waits goes to the overflow, for everyone.
    pub async fn rescue_inbox(&self, worker: &WorkerId) -> Result<Rescued> {
        self.empty_inbox(worker, None).await
    }

    /// Passes on what waits in the inbox of a worker that lives, but cannot take it up: all but these, which it runs.
    pub async fn pass_on_inbox(&self, worker: &WorkerId, runs: &HashSet<TaskId>) -> Result<Rescued> {
        self.empty_inbox(worker, Some(runs)).await
    }

    /// By its own worker if it says what it runs.
    async fn empty_inbox(&self, worker: &WorkerId, own: Option<&HashSet<TaskId>>) -> Result<Rescued> {
        let (mut rescued, mut failures) = (Rescued::default(), Vec::new());
        let mut next = Some(List::all(keys::inbox(worker)));
        while let Some(list) = next.filter(|_| failures.len() < FAILURES_MAX && !breaks(Rule::NoRescue)) {
            // It may have come back meanwhile; then the rest is its own again.
            if own.is_none() && self.is_inbox_held(worker).await? {
                break;
            }
            let page = self.client.list(Purpose::Sweep, &list).await?;
            next = page.next.map(|cursor| list.at(cursor));
            let found = page.entries.into_iter().filter_map(|listed| {
                Some(Found { entry: Entry::parse(&listed.key)?, written_at: listed.modified })
            });
            let found = found.filter(|found| own.is_none_or(|runs| !runs.contains(&found.entry.id)));
            let mut moves =
                stream::iter(found).map(|found| self.rescue_entry(found)).buffer_unordered(READS_AT_ONCE);
            let before = rescued;
            while let Some(one) = moves.next().await {
                match one {
                    Ok(one) => rescued.add(one),
                    // One that gets no answer must not keep us from the others; if none does, the store is away.
                    Err(error) => failures.push(error),
                }
                if failures.len() >= FAILURES_MAX {
                    break;
                }
            }
            if (rescued.moved, rescued.removed) != (before.moved, before.removed) {
                self.ring_for_overflow().await;
            }
        }
        if rescued.moved + rescued.removed > 0 {
            tracing::info!(%worker, moved = rescued.moved, "what was in its inbox is for everyone now");
        }
        failures.pop().map_or(Ok(rescued), Err)
    }

    /// Removes a listed name that ran out long ago, and the bell of its inbox: nobody waits for that any more. Nothing
    /// depends on it: what stays is met again.
    pub async fn retire_name(&self, leases: &Leases, listed: &leasehold_store::Entry) -> Result<()> {
        if !self.now()?.is_past(listed.modified.plus(NAME_KEPT)) {
            return Ok(());
        }
        let inbox = keys::parse_inbox_lease(&listed.key);
        if inbox.is_none() && keys::parse_worker_lease(&listed.key).is_none() {
            return Ok(());
        }
        if leases.retire(&listed.key, NAME_KEPT).await?
            && let Some(worker) = inbox
        {
            // A ring is a hint: should someone take the name at this very moment, it is looked for anyway.
            self.client.delete(Purpose::Sweep, &keys::inbox_bell(&worker)).await?;
        }
        Ok(())
    }

    /// Whether a worker holds the lease on its inbox, as far as one can know. One that makes no sense keeps nothing from
    /// being worked.
    pub(crate) async fn is_inbox_held(&self, worker: &WorkerId) -> Result<bool> {
        match read_lease(&self.client, &keys::inbox_lease(worker)).await {
            Ok(lease) => {
                let now = self.now()?;
                Ok(lease.is_some_and(|lease| !lease.is_free(now)))
            }
            Err(error) if error.kind() == Kind::Corrupt => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Takes one pointer out of an inbox that nobody looks at. What leads to a waiting task, or to one that is not there
    /// yet, goes to the overflow; the rest is swept by the rules of the index.
    async fn rescue_entry(&self, found: Found) -> Result<Rescued> {
        let entry = &found.entry;
        self.may(Intent::Change).await?;
        let is_to_be_moved = match self.load(Purpose::Sweep, &entry.id).await {
            Ok(Some(loaded)) => {
                entry.rev > loaded.task.rev || crate::sweep::is_pointer_to(entry, &loaded.task)
            }
            Ok(None) => true,
            // Left for a person, where everyone sees it.
            Err(error) if error.kind() == Kind::Corrupt => true,
            Err(error) => return Err(error),
        };
        if !is_to_be_moved {
            return Ok(match self.sweep(&found).await? {
                Swept::Removed | Swept::Moved(_) => Rescued { removed: 1, ..Rescued::default() },
                _ => Rescued { left: 1, ..Rescued::default() },
            });
        }
        let moved = entry.moved(Where::Overflow);
        if breaks(Rule::RescueRemovesFirst) {
            self.remove_entry(Purpose::Sweep, entry).await;
            self.put_entry(Purpose::Sweep, &moved).await?;
        } else {
            self.put_entry(Purpose::Sweep, &moved).await?;
            self.remove_entry(Purpose::Sweep, entry).await;
        }
        Ok(Rescued { moved: 1, ..Rescued::default() })
    }
}

impl Rescued {
    fn add(&mut self, other: Rescued) {
        self.moved += other.moved;
        self.removed += other.removed;
        self.left += other.left;
    }
}

fn nth(workers: &[WorkerId], number: u64) -> Option<&WorkerId> {
    let place = number.checked_rem(workers.len() as u64)?;
    workers.get(usize::try_from(place).unwrap_or(0))
}

/// The worker that has the highest number for this task: when one comes or goes, only its tasks change hands.
fn by_hash<'a>(workers: &'a [WorkerId], task: &Task) -> Option<&'a WorkerId> {
    let what = task.idempotency_key.clone().unwrap_or_else(|| task.id.to_string());
    workers.iter().max_by_key(|worker| *blake3::hash(format!("{worker}\n{what}").as_bytes()).as_bytes())
}
