//! Supervisor of a node: syncs its spool with the bucket.
//!
//! ```text
//!   spool ── outbox, in order for each task ──▶ up ── one put on condition each ──▶ bucket
//!         ◀── confirmed, revoked, mirrored ─── down ◀── tasks that are free, or whose lease expired ──
//!                                              hold ── renewals of running tasks ──▶
//! ```
//!
//! A cycle runs once per minute, and at once when there is something to send. While the bucket is unreachable the supervisor
//! retries every cycle; nothing on the node waits for it but claims of a strict queue.
//!
//! Requests of a cycle with nothing to do: 1 get (the notification object, or *bell*) and 1 list (expired leases). For each
//! task of a worker of this node: 1 get to read it, 1 get and 3 puts or deletes to claim it, 1 put for a renewal every few
//! minutes, 2 puts or deletes to settle it.

use futures::future::{BoxFuture, Either, select};
use leasehold_core::limits::DISK_LEASE_STALE;
use leasehold_core::outpost::{Consistency, Op, Why};
use leasehold_core::{Kind, Result, TaskId};
use leasehold_queue::{Queue, TaskSnapshot};
use leasehold_store::host::Instant;
use leasehold_store::{Host, HostExt};
use leasehold_worker::{Shutdown, Stage};
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::spool::Spool;
use prefetch::PrefetchState;

mod checkout;
mod down;
mod hold;
mod prefetch;
mod sync_step;
mod up;

/// Options of a supervisor.
#[derive(Debug, Clone)]
pub struct SupervisorOptions {
    /// Time between two cycles.
    pub cycle: Duration,
    /// Delay before operations are sent; claims, for which a worker waits, are sent at once.
    pub debounce: Duration,
    /// Pause between two scans of the outbox, which each list a directory.
    pub look_every: Duration,
    /// Number of free tasks of each type to keep here for workers of this node.
    pub window: usize,
    /// Duration of a claim of this node in the bucket without a renewal.
    pub lease: Duration,
    /// Time between two full scans, whatever the bell says.
    pub full_pass: Duration,
}

impl Default for SupervisorOptions {
    fn default() -> Self {
        Self {
            cycle: Duration::from_mins(1),
            debounce: Duration::from_secs(1),
            look_every: Duration::from_millis(100),
            window: 32,
            lease: DISK_LEASE_STALE,
            full_pass: Duration::from_hours(1),
        }
    }
}

/// Result of a sync.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Synced {
    /// Operations that were sent.
    pub sent: u64,
    /// Claims that the bucket has confirmed.
    pub confirmed: u64,
    /// Claims that the bucket has refused.
    pub refused: u64,
    /// Results that the bucket has rejected: they are in `conflicts/`.
    pub conflicts: u64,
    /// Tasks that were run twice.
    pub duplicates: u64,
    /// Tasks that were copied to this node.
    pub mirrored: u64,
    /// Copies that were removed, because other workers hold the tasks.
    pub forgotten: u64,
    /// Claims that were renewed.
    pub renewed: u64,
}

impl Synced {
    pub(crate) fn add(&mut self, other: Self) {
        self.sent += other.sent;
        self.confirmed += other.confirmed;
        self.refused += other.refused;
        self.conflicts += other.conflicts;
        self.duplicates += other.duplicates;
        self.mirrored += other.mirrored;
        self.forgotten += other.forgotten;
        self.renewed += other.renewed;
    }
}

/// Connects to the bucket; called again after every failure.
pub type Connect = Arc<dyn Fn() -> BoxFuture<'static, Result<Queue>> + Send + Sync>;

/// Syncs a spool with the bucket.
pub struct Supervisor {
    spool: Spool,
    connect: Connect,
    options: SupervisorOptions,
    link: Option<Arc<BucketLink>>,
    walk: Arc<tokio::sync::Mutex<PrefetchState>>,
    /// True once the bucket was reached: later errors are retried.
    has_connected: bool,
    /// Time of the last successful cycle.
    came_round: Option<Instant>,
}

impl fmt::Debug for Supervisor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Supervisor").field("spool", &self.spool).finish_non_exhaustive()
    }
}

/// Connection to the bucket.
pub(crate) struct BucketLink {
    pub(crate) queue: Queue,
    /// Tasks as last read or written: their next change needs no get.
    seen: Mutex<HashMap<TaskId, TaskSnapshot>>,
    pub(crate) walk: Arc<tokio::sync::Mutex<PrefetchState>>,
    /// Operations that could not be sent: they are retried in the next cycle.
    later: Mutex<HashSet<u64>>,
}

impl BucketLink {
    fn new(queue: Queue, walk: Arc<tokio::sync::Mutex<PrefetchState>>) -> Self {
        Self { queue, seen: Mutex::default(), walk, later: Mutex::default() }
    }

    /// Operations that are not retried before the next cycle.
    pub(crate) fn later(&self) -> MutexGuard<'_, HashSet<u64>> {
        self.later.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn remember(&self, seen: &TaskSnapshot) {
        self.seen().insert(seen.task().id, seen.clone());
    }

    pub(crate) fn recall(&self, id: &TaskId) -> Option<TaskSnapshot> {
        self.seen().get(id).cloned()
    }

    pub(crate) fn forget(&self, id: &TaskId) {
        self.seen().remove(id);
    }

    fn seen(&self) -> MutexGuard<'_, HashMap<TaskId, TaskSnapshot>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Supervisor {
    /// Creates a supervisor for a spool; `connect` opens its queue in the bucket.
    #[must_use]
    pub fn new(spool: Spool, connect: Connect, options: SupervisorOptions) -> Self {
        let (link, walk) = (None, Arc::default());
        Self { spool, connect, options, link, walk, has_connected: false, came_round: None }
    }

    /// Runs until shutdown, with a last sync then.
    pub async fn run(mut self, shutdown: Shutdown) -> Result<Synced> {
        let mut all = Synced::default();
        let mut was_down = false;
        loop {
            match self.turn().await {
                Ok(synced) => {
                    all.add(synced);
                    if std::mem::take(&mut was_down) {
                        tracing::info!("bucket is reachable again");
                    }
                }
                Err(error) if error.kind() == Kind::Unavailable => {
                    if !std::mem::replace(&mut was_down, true) {
                        tracing::warn!(%error, "bucket is unreachable, retrying every cycle");
                    }
                    self.link = None;
                }
                // The connection worked before: the layout of the queue or the credentials may have changed. Reconnects until
                // an operator has fixed it.
                Err(error) if self.has_connected => {
                    if !std::mem::replace(&mut was_down, true) {
                        tracing::error!(%error, "sync with the bucket failed, reconnecting every cycle");
                    }
                    self.link = None;
                }
                Err(error) => return Err(error),
            }
            if shutdown.stage() != Stage::Go {
                return Ok(all);
            }
            self.rest(was_down, &shutdown).await;
        }
    }

    /// Runs one full cycle: up, hold, down.
    pub async fn sync(&mut self) -> Result<Synced> {
        self.came_round = None;
        self.turn().await
    }

    /// Does the work that is due: the outbox, and a full sync once per cycle.
    async fn turn(&mut self) -> Result<Synced> {
        let link = self.link().await?;
        let _alone = self.alone().await?;
        self.learn_time(&link).await?;
        let now = self.host().instant();
        let is_round = self.came_round.is_none_or(|at| now.since(at) >= self.options.cycle);
        if is_round {
            link.later().clear();
        }
        let mut all = self.up(&link).await?;
        if is_round {
            all.add(self.hold(&link).await?);
            all.add(self.down(&link).await?);
            self.on_disk(|spool| spool.trim().and_then(|_| spool.recover())).await?;
            self.came_round = Some(now);
        } else if self.is_short(&link).await? {
            all.add(self.down(&link).await?);
        }
        self.learn_time(&link).await?;
        Ok(all)
    }

    /// Records the bucket's time. A full disk does not stop the sync: sending operations frees space.
    pub(crate) async fn learn_time(&self, link: &BucketLink) -> Result<()> {
        let now = link.queue.now()?;
        if let Err(error) = self.on_disk(move |spool| spool.learn_time(now)).await {
            tracing::warn!(%error, "failed to record the bucket's time");
        }
        Ok(())
    }

    /// Waits until there is something to send, or the cycle is over.
    async fn rest(&self, is_down: bool, shutdown: &Shutdown) {
        let (host, since) = (self.host().clone(), self.host().instant());
        let mut has_news_since = None;
        loop {
            let asleep = host.sleep(self.options.look_every);
            if let Either::Right(_) = select(asleep, Box::pin(shutdown.reached(Stage::Drain))).await {
                return;
            }
            let now = host.instant();
            let from = self.came_round.filter(|_| !is_down).unwrap_or(since);
            if now.since(from) >= self.options.cycle {
                return;
            }
            // A failed link is not retried sooner because a worker waits for it.
            if is_down {
                continue;
            }
            let later = self.link.as_ref().map(|link| link.later().clone()).unwrap_or_default();
            match self.on_disk(move |spool| spool.news(&later)).await {
                Ok(Some(news)) if news.is_urgent => return,
                Ok(Some(_)) => {
                    if now.since(*has_news_since.get_or_insert(now)) >= self.options.debounce {
                        return;
                    }
                }
                Ok(None) => has_news_since = None,
                Err(error) => tracing::warn!(%error, "failed to read the outbox, retrying"),
            }
            if let Some(link) = &self.link
                && matches!(self.is_short(link).await, Ok(true))
            {
                return;
            }
        }
    }

    async fn link(&mut self) -> Result<Arc<BucketLink>> {
        if let Some(link) = &self.link {
            return Ok(link.clone());
        }
        let queue = (self.connect)().await?.acting_as(self.spool.config().node_id.as_str());
        self.walk.lock().await.begin_anew();
        let link = Arc::new(BucketLink::new(queue, self.walk.clone()));
        self.link = Some(link.clone());
        self.has_connected = true;
        // Check-outs may have expired meanwhile, and other workers may hold tasks that run here.
        self.came_round = None;
        Ok(link)
    }

    /// Waits for the lock of the supervisor: `sync` and `checkout` may be called while another one runs.
    async fn alone(&self) -> Result<std::fs::File> {
        loop {
            if let Some(lock) = self.on_disk(Spool::supervise).await? {
                return Ok(lock);
            }
            self.host().sleep(self.options.look_every).await;
        }
    }

    pub(crate) fn host(&self) -> &Arc<dyn Host> {
        self.spool.host()
    }

    pub(crate) fn consistency(&self) -> Consistency {
        self.spool.config().consistency
    }

    /// Works on the files, on a thread that may block.
    pub(crate) async fn on_disk<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Spool) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let spool = self.spool.clone();
        self.host().blocking(move || work(&spool)).await
    }

    /// Logs an operation that the bucket rejected.
    pub(crate) fn report(op: &Op, why: Why) {
        let operation = op.deed.name();
        tracing::warn!(task = %op.task, operation, reason = %why, "operation rejected by the bucket");
    }
}
