//! The supervisor of a node: keeps its spool and the bucket in step.
//!
//! ```text
//!   spool ── outbox, in order for each task ──▶ up ── one put on condition each ──▶ bucket
//!         ◀── confirmed, revoked, mirrored ─── down ◀── what is free, or left by the dead ──
//!                                              hold ── what runs here stays ours ──▶
//! ```
//!
//! It comes round once in a minute, and at once when there is something to send. While the bucket is out of reach it tries
//! again every cycle; nothing on the node waits for it but claims of a strict queue.
//!
//! Requests of a cycle with nothing to do: 1 get (the bell) and 1 list (leases that have run out). What waits for a worker of
//! this node: 1 get each to know it, 1 get and 3 puts or deletes to claim it, 1 put for a renewal every few minutes, 2 puts
//! or deletes to settle it.

use futures::future::{BoxFuture, Either, select};
use leasehold_core::limits::DISK_LEASE_STALE;
use leasehold_core::outpost::{Consistency, Op, Why};
use leasehold_core::{Kind, Result, TaskId};
use leasehold_queue::{Bell, Queue, Seen};
use leasehold_store::host::Instant;
use leasehold_store::{Host, HostExt};
use leasehold_worker::{Shutdown, Stage};
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::spool::Spool;

mod checkout;
mod down;
mod hold;
mod up;

/// How a supervisor behaves.
#[derive(Debug, Clone)]
pub struct SupervisorOptions {
    /// How often it comes round.
    pub cycle: Duration,
    /// What was done here is sent so soon; claims, for which somebody waits, at once.
    pub debounce: Duration,
    /// The outbox is looked at so often: a look at a directory.
    pub look_every: Duration,
    /// So many free tasks are kept here for workers of this node.
    pub window: usize,
    /// How long a claim of this node lasts in the bucket without being renewed.
    pub lease: Duration,
    /// How often everything is looked at, whatever the bell says.
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

/// What one round has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Synced {
    /// Operations that the bucket knows now.
    pub sent: u64,
    /// Claims that it has confirmed.
    pub confirmed: u64,
    /// Claims that it has refused.
    pub refused: u64,
    /// Results that it had no use for: they are in `conflicts/`.
    pub conflicts: u64,
    /// Tasks that were run twice.
    pub duplicates: u64,
    /// Tasks that came here.
    pub mirrored: u64,
    /// Tasks that are here no more, because others have them.
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

/// How the bucket is reached: tried again whenever it is not.
pub type Connect = Arc<dyn Fn() -> BoxFuture<'static, Result<Queue>> + Send + Sync>;

/// Keeps a spool and the bucket in step.
pub struct Supervisor {
    spool: Spool,
    connect: Connect,
    options: SupervisorOptions,
    link: Option<Arc<Link>>,
    /// When it last came round with success.
    came_round: Option<Instant>,
}

impl fmt::Debug for Supervisor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Supervisor").field("spool", &self.spool).finish_non_exhaustive()
    }
}

/// What is known while the bucket is in reach.
pub(crate) struct Link {
    pub(crate) queue: Queue,
    /// Tasks as they were last seen or written: their next change needs no get.
    seen: Mutex<HashMap<TaskId, Seen>>,
    pub(crate) walk: tokio::sync::Mutex<Walk>,
}

/// What the looks at the index have shown.
#[derive(Default)]
pub(crate) struct Walk {
    pub(crate) bell: Bell,
    pub(crate) looked_at: Option<Instant>,
    /// Entries whose task was not free, by the revision of the entry.
    pub(crate) skip: HashMap<TaskId, u64>,
    /// The last look has shown more than is kept here.
    pub(crate) has_more: bool,
    /// Check-outs that have run out and were claimed once more.
    pub(crate) extended: std::collections::HashSet<TaskId>,
    /// When something becomes due that was not at the last look.
    pub(crate) next: Option<leasehold_core::StoreTime>,
}

impl Link {
    fn new(queue: Queue) -> Self {
        Self { queue, seen: Mutex::default(), walk: tokio::sync::Mutex::default() }
    }

    pub(crate) fn remember(&self, seen: &Seen) {
        self.seen().insert(seen.task().id, seen.clone());
    }

    pub(crate) fn recall(&self, id: &TaskId) -> Option<Seen> {
        self.seen().get(id).cloned()
    }

    pub(crate) fn forget(&self, id: &TaskId) {
        self.seen().remove(id);
    }

    fn seen(&self) -> MutexGuard<'_, HashMap<TaskId, Seen>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Supervisor {
    /// A supervisor for a spool whose queue in the bucket is opened so.
    #[must_use]
    pub fn new(spool: Spool, connect: Connect, options: SupervisorOptions) -> Self {
        Self { spool, connect, options, link: None, came_round: None }
    }

    /// Comes round until told to stop, and once more then.
    pub async fn run(mut self, shutdown: Shutdown) -> Result<Synced> {
        let mut all = Synced::default();
        let mut was_down = false;
        loop {
            match self.turn().await {
                Ok(synced) => {
                    all.add(synced);
                    if std::mem::take(&mut was_down) {
                        tracing::info!("the bucket is in reach again");
                    }
                }
                Err(error) if error.kind() == Kind::Unavailable => {
                    if !std::mem::replace(&mut was_down, true) {
                        tracing::warn!("the bucket is out of reach: {error}");
                    }
                    self.link = None;
                }
                // The layout of the queue may have changed: it is opened anew, and if that fails there is nothing to be done.
                Err(error) if error.kind() == Kind::Invalid && self.link.take().is_some() => {
                    tracing::warn!("out of step with the bucket, which is opened anew: {error}");
                    was_down = true;
                }
                Err(error) => return Err(error),
            }
            if shutdown.stage() != Stage::Go {
                return Ok(all);
            }
            self.rest(was_down, &shutdown).await;
        }
    }

    /// One whole round: up, hold, down.
    pub async fn sync(&mut self) -> Result<Synced> {
        self.came_round = None;
        self.turn().await
    }

    /// What is due: the outbox, and all of it once in a cycle.
    async fn turn(&mut self) -> Result<Synced> {
        let link = self.link().await?;
        let _alone = self.alone().await?;
        let now = link.queue.now()?;
        self.on_disk(move |spool| spool.learn_time(now)).await?;
        let mut all = self.up(&link).await?;
        let now = self.host().instant();
        if self.came_round.is_none_or(|at| now.since(at) >= self.options.cycle) {
            all.add(self.hold(&link).await?);
            all.add(self.down(&link).await?);
            self.on_disk(|spool| spool.trim().and_then(|_| spool.recover())).await?;
            self.came_round = Some(now);
        } else if self.is_short(&link).await? {
            all.add(self.down(&link).await?);
        }
        let now = link.queue.now()?;
        self.on_disk(move |spool| spool.learn_time(now)).await?;
        Ok(all)
    }

    /// Waits until something is to be sent, or a cycle is over.
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
            // A link that was down is not tried more often because somebody waits for it.
            if is_down {
                continue;
            }
            match self.on_disk(Spool::news).await {
                Ok(Some(news)) if news.is_urgent => return,
                Ok(Some(_)) => {
                    if now.since(*has_news_since.get_or_insert(now)) >= self.options.debounce {
                        return;
                    }
                }
                Ok(None) => has_news_since = None,
                Err(error) => tracing::warn!("the outbox cannot be read: {error}"),
            }
            if let Some(link) = &self.link
                && matches!(self.is_short(link).await, Ok(true))
            {
                return;
            }
        }
    }

    async fn link(&mut self) -> Result<Arc<Link>> {
        if let Some(link) = &self.link {
            return Ok(link.clone());
        }
        let queue = (self.connect)().await?.acting_as(self.spool.config().node_id.as_str());
        let link = Arc::new(Link::new(queue));
        self.link = Some(link.clone());
        // What was checked out may have run out meanwhile, and others may have what runs here.
        self.came_round = None;
        Ok(link)
    }

    /// One supervisor at a time: `sync` and `checkout` may be called while another one runs.
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

    /// Does something with the files, where that holds nobody up.
    pub(crate) async fn on_disk<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Spool) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let spool = self.spool.clone();
        self.host().blocking(move || work(&spool)).await
    }

    /// Says what people should know.
    pub(crate) fn report(op: &Op, why: Why) {
        tracing::warn!(task = %op.task, "{} was not taken over by the bucket: {why}", op.deed.name());
    }
}
