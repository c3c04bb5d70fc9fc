//! Supervisor of a node: syncs its spool with the bucket.
//!
//! ```text
//!   spool ── outbox, in order for each task ──▶ push ── one conditional put each ──▶ bucket
//!         ◀── confirmed, revoked, mirrored ─── pull ◀── tasks that are free, or whose lease expired ──
//!                                              renew ── renewals of running tasks ──▶
//! ```
//!
//! A cycle runs once per minute, and at once when there is something to send. While the bucket is unreachable the supervisor
//! retries every cycle; nothing on the node waits for it but claims of a strict queue.
//!
//! Requests of a cycle with nothing to do: 1 get (the notification object, or *bell*) and 1 list (expired leases). For each
//! task of a worker of this node: 1 get to read it, 2 puts and 1 delete to claim it, 1 put for a renewal every few minutes, 1 put
//! and 1 delete to settle it.

use futures::future::{BoxFuture, Either, select};
use leasehold_core::limits::DISK_LEASE_STALE;
use leasehold_core::outpost::{Consistency, Op, OpKind, SyncRefusal};
use leasehold_core::{Kind, Result, TaskId};
use leasehold_queue::{ObjectQueue, TaskSnapshot};
use leasehold_store::host::{Instant, lock};
use leasehold_store::{Host, Purpose};
use leasehold_worker::{Shutdown, Stage};
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::spool::Spool;
use prefetch::PrefetchState;

mod prefetch;
mod pull;
mod push;
mod renew;
mod sync_step;

/// Options of a supervisor.
#[derive(Debug, Clone)]
pub struct SupervisorOptions {
    /// Time between two cycles.
    pub cycle: Duration,
    /// Delay before operations are sent; claims, for which a worker waits, are sent at once.
    pub debounce: Duration,
    /// Pause between two scans of the outbox, which each list a directory.
    pub outbox_interval: Duration,
    /// Number of free tasks of each type to keep here for workers of this node.
    pub window: usize,
    /// Duration of a claim of this node in the bucket without a renewal.
    pub lease: Duration,
    /// Time between two full scans of the index, which do not depend on the bell.
    pub full_scan_interval: Duration,
}

impl Default for SupervisorOptions {
    fn default() -> Self {
        Self {
            cycle: Duration::from_mins(1),
            debounce: Duration::from_secs(1),
            outbox_interval: Duration::from_millis(100),
            window: 32,
            lease: DISK_LEASE_STALE,
            full_scan_interval: Duration::from_hours(1),
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

/// Connects to the bucket; called again after every failure.
pub type Connect = Arc<dyn Fn() -> BoxFuture<'static, Result<ObjectQueue>> + Send + Sync>;

/// Syncs a spool with the bucket.
pub struct Supervisor {
    spool: Spool,
    connect: Connect,
    options: SupervisorOptions,
    /// The last connection, also after it has failed.
    link: Option<Arc<BucketLink>>,
    /// True if the connection has failed.
    is_down: bool,
    /// Time of the last successful cycle.
    last_cycle_at: Option<Instant>,
    synced: Arc<Mutex<Synced>>,
}

impl fmt::Debug for Supervisor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Supervisor").field("spool", &self.spool).finish_non_exhaustive()
    }
}

/// Connection of a spool to the bucket.
struct BucketLink {
    spool: Spool,
    options: SupervisorOptions,
    queue: ObjectQueue,
    /// Tasks as last read or written: their next change needs no get.
    snapshots: Mutex<HashMap<TaskId, TaskSnapshot>>,
    prefetch: tokio::sync::Mutex<PrefetchState>,
    /// Operations that could not be sent: they are retried in the next cycle.
    deferred: Mutex<HashSet<u64>>,
    /// Counts since the start, or of the current [`Supervisor::sync`].
    synced: Arc<Mutex<Synced>>,
}

impl BucketLink {
    /// Reads a task; none if it does not exist, or is corrupt and left for an operator.
    async fn load_valid(&self, id: &TaskId) -> Result<Option<TaskSnapshot>> {
        match self.queue.load(Purpose::Sync, id).await {
            Err(error) if error.kind() == Kind::Corrupt => Ok(None),
            loaded => loaded,
        }
    }

    fn cache_snapshot(&self, snapshot: &TaskSnapshot) {
        lock(&self.snapshots).insert(snapshot.task.id, snapshot.clone());
    }

    fn cached_snapshot(&self, id: &TaskId) -> Option<TaskSnapshot> {
        lock(&self.snapshots).get(id).cloned()
    }

    /// Removes a task from the cache: its next change reads it first.
    fn evict(&self, id: &TaskId) {
        lock(&self.snapshots).remove(id);
    }

    /// Records the bucket's time. A full disk does not stop the sync: sending operations frees space.
    async fn record_bucket_time(&self) -> Result<()> {
        let now = self.queue.now()?;
        if let Err(error) = self.spool.on_disk(move |spool| spool.record_bucket_time(now)).await {
            tracing::warn!(%error, "failed to record the bucket's time");
        }
        Ok(())
    }

    fn host(&self) -> &Arc<dyn Host> {
        self.spool.host()
    }

    fn count(&self, count: impl FnOnce(&mut Synced)) {
        count(&mut lock(&self.synced));
    }

    fn consistency(&self) -> Consistency {
        self.spool.config().consistency
    }
}

impl Supervisor {
    /// Creates a supervisor for a spool; `connect` opens its queue in the bucket.
    #[must_use]
    pub fn new(spool: Spool, connect: Connect, options: SupervisorOptions) -> Self {
        let synced = Arc::default();
        Self { spool, connect, options, link: None, is_down: false, last_cycle_at: None, synced }
    }

    /// Runs until shutdown, with a last sync then.
    pub async fn run(mut self, shutdown: Shutdown) -> Result<Synced> {
        loop {
            match self.sync_due().await {
                Ok(()) => {
                    if std::mem::take(&mut self.is_down) {
                        tracing::info!("bucket is reachable again");
                    }
                }
                Err(error) if error.kind() == Kind::Unavailable => {
                    if !std::mem::replace(&mut self.is_down, true) {
                        tracing::warn!(%error, "bucket is unreachable, retrying every cycle");
                    }
                }
                // The connection worked before: the number of shards or the credentials may have changed. Reconnects until
                // an operator has fixed it.
                Err(error) if self.link.is_some() => {
                    if !std::mem::replace(&mut self.is_down, true) {
                        tracing::error!(%error, "sync with the bucket failed, reconnecting every cycle");
                    }
                }
                Err(error) => return Err(error),
            }
            if shutdown.stage() != Stage::Running {
                return Ok(*lock(&self.synced));
            }
            self.wait_for_work(&shutdown).await;
        }
    }

    /// Runs one full cycle: push, renew, pull.
    pub async fn sync(&mut self) -> Result<Synced> {
        self.last_cycle_at = None;
        *lock(&self.synced) = Synced::default();
        self.sync_due().await?;
        Ok(*lock(&self.synced))
    }

    /// Does the work that is due: the outbox, and a full sync once per cycle.
    async fn sync_due(&mut self) -> Result<()> {
        let link = self.link().await?;
        let _lock = self.lock().await?;
        link.record_bucket_time().await?;
        let now = link.host().instant();
        let is_full_cycle = self.last_cycle_at.is_none_or(|at| now.since(at) >= self.options.cycle);
        if is_full_cycle {
            lock(&link.deferred).clear();
        }
        link.push().await?;
        if is_full_cycle {
            link.renew().await?;
            link.pull().await?;
            self.spool.on_disk(|spool| spool.trim().and_then(|_| spool.recover())).await?;
            self.last_cycle_at = Some(now);
        } else if link.is_running_short().await? {
            link.pull().await?;
        }
        link.record_bucket_time().await
    }

    /// Waits until there is something to send, or the cycle is over.
    async fn wait_for_work(&self, shutdown: &Shutdown) {
        let host = self.spool.host();
        let since = host.instant();
        let mut unsent_since = None;
        loop {
            let asleep = host.sleep(self.options.outbox_interval);
            if let Either::Right(_) = select(asleep, Box::pin(shutdown.reached(Stage::Drain))).await {
                return;
            }
            let now = host.instant();
            let from = self.last_cycle_at.filter(|_| !self.is_down).unwrap_or(since);
            if now.since(from) >= self.options.cycle {
                return;
            }
            // A failed link is not retried sooner because a worker waits for it.
            let Some(link) = self.link.as_ref().filter(|_| !self.is_down) else { continue };
            match self.spool.on_disk(Spool::outbox).await {
                Ok(mut ops) => {
                    ops.retain(|(seq, _)| !lock(&link.deferred).contains(seq));
                    unsent_since = unsent_since.or(Some(now)).filter(|_| !ops.is_empty());
                    // A worker waits for the confirmation of its claim.
                    let is_urgent = ops.iter().any(|(_, op)| matches!(op.kind, OpKind::Claim { .. }));
                    let is_due = |since| now.since(since) >= self.options.debounce;
                    if is_urgent || unsent_since.is_some_and(is_due) {
                        return;
                    }
                }
                Err(error) => tracing::warn!(%error, "failed to read the outbox, retrying"),
            }
            if matches!(link.is_running_short().await, Ok(true)) {
                return;
            }
        }
    }

    async fn link(&mut self) -> Result<Arc<BucketLink>> {
        if let Some(link) = self.link.as_ref().filter(|_| !self.is_down) {
            return Ok(link.clone());
        }
        let queue = (self.connect)().await?.acting_as(self.spool.config().node_id.as_str());
        let prefetch = match &self.link {
            Some(before) => before.prefetch.lock().await.reset(),
            None => PrefetchState::default(),
        };
        let link = Arc::new(BucketLink {
            spool: self.spool.clone(),
            options: self.options.clone(),
            queue,
            snapshots: Mutex::default(),
            prefetch: tokio::sync::Mutex::new(prefetch),
            deferred: Mutex::default(),
            synced: self.synced.clone(),
        });
        // Check-outs may have expired meanwhile, and other workers may hold tasks that run here.
        (self.link, self.last_cycle_at) = (Some(link.clone()), None);
        Ok(link)
    }

    /// Waits for the lock of the supervisor: `sync` and `checkout` may be called while another one runs.
    async fn lock(&self) -> Result<std::fs::File> {
        loop {
            if let Some(lock) = self.spool.on_disk(Spool::try_lock_supervisor).await? {
                return Ok(lock);
            }
            self.spool.host().sleep(self.options.outbox_interval).await;
        }
    }
}

/// Logs an operation that the bucket rejected.
fn report(op: &Op, why: SyncRefusal) {
    let operation = op.kind.name();
    tracing::warn!(task = %op.task, operation, reason = %why, "operation rejected by the bucket");
}
