//! Direct dispatch: a producer puts the index entry of a new task into the inbox of one live worker.
//!
//! Without it every worker scans the ready index. With it a worker lists only its own inbox, `inbox/{worker}/…`,
//! which it holds by a lease on its worker id. The producer chooses a live worker by those leases. If the worker
//! crashes, any other worker moves the entries to the *overflow*, from which every worker claims.
//!
//! ```text
//!   producer   live workers? ──▶ inbox/{worker}/…  ──▶ task, put if absent ──▶ acknowledged
//!                 (cached)            │
//!   worker                            └──▶ claim, run, settle, remove
//!   other workers                     └──▶ overflow/…, if the worker crashed ──▶ claimed by any worker
//! ```
//!
//! An inbox is an index, not storage: the task is stored and claimed like any other. So an entry in the wrong place
//! costs time, never a task: one in the inbox of a crashed worker, written before or after it was emptied, is found by
//! the list of all inboxes. For the same reason it is safe to empty the inbox of a worker that is still alive, or to
//! do it twice at once: an entry is written to its new place before it is removed from the old one.
//!
//! Requests: a submit is 3 puts (entry, task, bell of the inbox), and once per [`DirectDispatch::discovery_ttl`] 1
//! list and 1 get per worker that may have crashed. Emptying an inbox is 1 get (its lease) and 1 list per thousand
//! entries; 1 get, 1 put and 1 delete per entry.

use futures::{StreamExt, TryStreamExt, stream};
pub use leasehold_core::lease::INBOX_LEASE_TTL;
use leasehold_core::{Entry, IndexLocation, Kind, Result, Task, TaskId, WorkerId, keys};
use leasehold_store::host::{Instant, lock};
use leasehold_store::mutant::breaks;
use leasehold_store::{HostExt, List, ListEntry, Purpose};
use std::collections::{BTreeSet, HashSet};
use std::sync::Mutex;
use std::time::Duration;

use crate::connect::ObjectQueue;
use crate::discover::{IndexHit, folders};
use crate::holders::LeaseState;
use crate::inspect::READS_AT_ONCE;
use crate::lease::Leases;
use crate::meta_cache::Intent;
use crate::peer_leases::PeerLeaseCache;
use crate::sweep::Swept;

/// Maximum time for which a submit waits for the list of live workers.
const LIST_TIMEOUT: Duration = Duration::from_secs(5);

/// Number of failed entries after which the rest of an inbox is left for later.
const FAILURES_MAX: usize = 8;

/// Time after its expiry for which the lease on a worker id is kept.
pub const WORKER_ID_KEPT: Duration = Duration::from_hours(7 * 24);

/// Settings of direct dispatch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectDispatch {
    /// Time for which a producer caches its list of live workers.
    pub discovery_ttl: Duration,
    /// Choice of the worker for a task.
    pub selection: Selection,
}

impl Default for DirectDispatch {
    fn default() -> Self {
        Self { discovery_ttl: Duration::from_secs(30), selection: Selection::default() }
    }
}

/// Choice among the live workers for a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Selection {
    /// In turn; each process starts with a random one.
    #[default]
    RoundRobin,
    /// By a hash of the idempotency key, or else of the id. When a worker joins or leaves, only its share moves.
    Hash,
    /// At random.
    Random,
}

/// A producer's cached list of live workers.
#[derive(Debug)]
pub(crate) struct Inboxes {
    known: Mutex<LiveWorkers>,
    /// Held by the caller that lists the live workers.
    listing: tokio::sync::Mutex<PeerLeaseCache>,
}

#[derive(Debug, Default)]
struct LiveWorkers {
    listed_at: Option<Instant>,
    live: Vec<WorkerId>,
    /// Counter for round robin.
    next_index: u64,
}

impl Inboxes {
    pub(crate) fn new(first: u64) -> Self {
        let known = Mutex::new(LiveWorkers { next_index: first, ..LiveWorkers::default() });
        Self { known, listing: tokio::sync::Mutex::new(PeerLeaseCache::new(INBOX_LEASE_TTL)) }
    }
}

impl ObjectQueue {
    /// The worker that gets a new task in its inbox; none if no worker is live, or without direct dispatch.
    pub(crate) async fn inbox_for(&self, task: &Task) -> Option<WorkerId> {
        let direct = self.config.direct.as_ref()?;
        self.refresh_live_workers(direct.discovery_ttl).await;
        let mut known = lock(&self.inboxes.known);
        known.next_index = known.next_index.wrapping_add(1);
        let chosen = match direct.selection {
            Selection::Hash => by_hash(&known.live, task),
            Selection::Random => nth(&known.live, self.client.host().random()),
            Selection::RoundRobin => nth(&known.live, known.next_index),
        };
        chosen.cloned()
    }

    /// Refreshes the list of live workers if it is older than `ttl`. Only the first list is waited for if another
    /// caller is reading it, and never for long: a worker that was live before probably is still, and without a list
    /// any worker may take the task.
    async fn refresh_live_workers(&self, ttl: Duration) {
        let host = self.client.host();
        let is_old = |known: &LiveWorkers| {
            known.listed_at.is_none_or(|listed_at| host.instant().since(listed_at) >= ttl)
        };
        let is_first = match &*lock(&self.inboxes.known) {
            known if !is_old(known) => return,
            known => known.listed_at.is_none(),
        };
        let listing = if is_first {
            Some(self.inboxes.listing.lock().await)
        } else {
            self.inboxes.listing.try_lock().ok()
        };
        let Some(mut others) = listing.filter(|_| is_old(&lock(&self.inboxes.known))) else { return };
        let listed = host.in_time(LIST_TIMEOUT, self.live_inboxes(&mut others)).await;
        let mut known = lock(&self.inboxes.known);
        known.listed_at = Some(host.instant());
        match listed {
            Ok(live) => known.live = live,
            Err(error) => tracing::warn!(%error, "failed to list live workers, using the previous list"),
        }
    }

    /// The live workers that have an inbox.
    async fn live_inboxes(&self, others: &mut PeerLeaseCache) -> Result<Vec<WorkerId>> {
        let listed = self.objects_under(Purpose::Submit, keys::WORKERS).try_collect().await?;
        others.held(&self.client, listed, keys::parse_inbox_lease, LIST_TIMEOUT).await
    }

    /// Empties the inboxes of all crashed workers. Any client may do this at any time, also concurrently. A failure does
    /// not stop the rest; the last one is returned at the end. Returns the number of entries that are gone. Requests: 1
    /// list if nothing is to be done.
    pub async fn rescue_inboxes(&self) -> Result<u64> {
        self.ensure_allowed(Intent::Change).await?;
        let (mut rescued, mut failed) = (0, None);
        for worker in self.inboxes().await? {
            match self.empty_inbox(&worker, None).await {
                Ok(count) => rescued += count,
                Err(error) => failed = Some(error),
            }
        }
        failed.map_or(Ok(rescued), Err)
    }

    /// The workers that have entries in their inboxes; may include some that no longer do. Not derived from leases:
    /// a producer may have written into the inbox of a worker that crashed long ago.
    pub async fn inboxes(&self) -> Result<BTreeSet<WorkerId>> {
        let names = folders(&self.client, Purpose::Sweep, keys::INBOXES).await?;
        Ok(names.iter().filter_map(|name| WorkerId::checked("worker id", name).ok()).collect())
    }

    /// Empties an inbox: entries of pending tasks move to the overflow, for any worker. Without `own`, only if its
    /// worker is not live. The worker of the inbox itself passes the tasks that it runs as `own`: their entries stay.
    pub async fn empty_inbox(&self, worker: &WorkerId, own: Option<&HashSet<TaskId>>) -> Result<u64> {
        let (mut rescued, mut failures, lease_key) = (0, Vec::new(), keys::inbox_lease(worker));
        let mut next = Some(List::all(keys::inbox(worker)));
        while let Some(list) = next.filter(|_| failures.len() < FAILURES_MAX && !breaks("no-rescue")) {
            // The worker may be back meanwhile; then the rest is its own again. A corrupt lease does not protect it.
            let lease = if own.is_none() { self.read_lease_info(&lease_key).await? } else { None };
            if lease.is_some_and(|lease| lease.state == LeaseState::Held) {
                break;
            }
            let page = self.client.list(Purpose::Sweep, &list).await?;
            next = page.next.map(|cursor| list.at(cursor));
            let found = page.entries.into_iter().filter_map(|listed| {
                Some(IndexHit { entry: Entry::parse(&listed.key)?, written_at: listed.modified })
            });
            let found = found.filter(|found| own.is_none_or(|runs| !runs.contains(&found.entry.id)));
            let mut moves =
                stream::iter(found).map(|found| self.rescue_entry(found)).buffer_unordered(READS_AT_ONCE);
            let before = rescued;
            while let Some(one) = moves.next().await {
                match one {
                    Ok(is_gone) => rescued += u64::from(is_gone),
                    // One failure must not stop the others; if all fail, the store is unavailable.
                    Err(error) => failures.push(error),
                }
                if failures.len() >= FAILURES_MAX {
                    break;
                }
            }
            if rescued > before {
                self.ring_for_overflow().await;
            }
        }
        if rescued > 0 {
            tracing::info!(%worker, entries = rescued, "inbox emptied, tasks moved to the overflow");
        }
        failures.pop().map_or(Ok(rescued), Err)
    }

    /// Removes a listed lease on a worker id that expired long ago, and the bell of its inbox. If that fails, a later
    /// run finds the lease again.
    pub async fn retire_worker_id(&self, leases: &Leases, listed: &ListEntry) -> Result<()> {
        if !self.now()?.is_past(listed.modified.plus(WORKER_ID_KEPT)) {
            return Ok(());
        }
        let inbox = keys::parse_inbox_lease(&listed.key);
        if inbox.is_none() && keys::parse_worker_lease(&listed.key).is_none() {
            return Ok(());
        }
        if leases.retire(&listed.key, WORKER_ID_KEPT).await?
            && let Some(worker) = inbox
        {
            // A ring is a hint: a worker that takes the id at this moment scans its inbox anyway.
            self.client.delete(Purpose::Sweep, &keys::inbox_bell(&worker)).await?;
        }
        Ok(())
    }

    /// Removes one entry from an inbox without a worker. An entry of a pending task, or of one that does not exist
    /// yet, moves to the overflow; for any other, index cleanup decides. False if it stays for now: its task is running, or
    /// has just changed.
    async fn rescue_entry(&self, found: IndexHit) -> Result<bool> {
        let entry = &found.entry;
        self.ensure_allowed(Intent::Change).await?;
        let is_to_be_moved = match self.load(Purpose::Sweep, &entry.id).await {
            Ok(Some(loaded)) => {
                entry.rev > loaded.task.rev || crate::sweep::is_valid_inbox_entry(entry, &loaded.task)
            }
            Ok(None) => true,
            // Left for an operator, where every worker reports it.
            Err(error) if error.kind() == Kind::Corrupt => true,
            Err(error) => return Err(error),
        };
        if !is_to_be_moved {
            return Ok(matches!(self.sweep(&found).await?, Swept::Removed | Swept::Changed(_)));
        }
        let moved = entry.at_location(IndexLocation::Overflow);
        if breaks("rescue-removes-first") {
            self.remove_entry(Purpose::Sweep, entry).await;
            self.put_entry(Purpose::Sweep, &moved).await?;
        } else {
            self.put_entry(Purpose::Sweep, &moved).await?;
            self.remove_entry(Purpose::Sweep, entry).await;
        }
        Ok(true)
    }
}

fn nth(workers: &[WorkerId], number: u64) -> Option<&WorkerId> {
    let place = number.checked_rem(workers.len() as u64)?;
    workers.get(usize::try_from(place).unwrap_or(0))
}

/// The worker with the highest hash for this task: when a worker joins or leaves, only its tasks move.
fn by_hash<'a>(workers: &'a [WorkerId], task: &Task) -> Option<&'a WorkerId> {
    let what = task.idempotency_key.clone().unwrap_or_else(|| task.id.to_string());
    workers.iter().max_by_key(|worker| *blake3::hash(format!("{worker}\n{what}").as_bytes()).as_bytes())
}
