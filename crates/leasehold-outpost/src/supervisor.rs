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
use leasehold_queue::{Queue, Seen};
use leasehold_store::host::Instant;
use leasehold_store::{Host, HostExt};
use leasehold_worker::{Shutdown, Stage};
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::spool::Spool;
use walk::Walk;

mod checkout;
mod down;
mod hold;
mod up;
mod walk;
mod word;

/// How a supervisor behaves.
#[derive(Debug, Clone)]
pub struct SupervisorOptions {
    /// How often it comes round.
    pub cycle: Duration,
    /// What was done here is sent so soon; claims, for which somebody waits, at once.
    pub debounce: Duration,
    /// The outbox is looked at so often: a look at a directory.
    pub look_every: Duration,
    /// So many free tasks of each type are kept here for workers of this node.
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
    walk: Arc<tokio::sync::Mutex<Walk>>,
    /// The bucket was reached before: whatever is wrong now may be wrong with the link.
    has_connected: bool,
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
    pub(crate) walk: Arc<tokio::sync::Mutex<Walk>>,
    /// Operations that were tried in vain: that is done again in the next cycle.
    later: Mutex<HashSet<u64>>,
}

impl Link {
    fn new(queue: Queue, walk: Arc<tokio::sync::Mutex<Walk>>) -> Self {
        Self { queue, seen: Mutex::default(), walk, later: Mutex::default() }
    }

    /// What is left for later, and is not tried again before the next cycle.
    pub(crate) fn later(&self) -> MutexGuard<'_, HashSet<u64>> {
        self.later.lock().unwrap_or_else(PoisonError::into_inner)
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
        let (link, walk) = (None, Arc::default());
        Self { spool, connect, options, link, walk, has_connected: false, came_round: None }
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
                // Whatever is wrong was right before: the layout of the queue may have changed, or credentials. It is opened
                // anew until somebody has put it right.
                Err(error) if self.has_connected => {
                    if !std::mem::replace(&mut was_down, true) {
                        tracing::error!("out of step with the bucket, which is opened anew: {error}");
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

    /// One whole round: up, hold, down.
    pub async fn sync(&mut self) -> Result<Synced> {
        self.came_round = None;
        self.turn().await
    }

    /// What is due: the outbox, and all of it once in a cycle.
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

    /// Writes down what the bucket's time is. A disk that is full does not stop us: sending empties it.
    pub(crate) async fn learn_time(&self, link: &Link) -> Result<()> {
        let now = link.queue.now()?;
        if let Err(error) = self.on_disk(move |spool| spool.learn_time(now)).await {
            tracing::warn!("the bucket's time was not written down: {error}");
        }
        Ok(())
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
            let later = self.link.as_ref().map(|link| link.later().clone()).unwrap_or_default();
            match self.on_disk(move |spool| spool.news(&later)).await {
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
        self.walk.lock().await.begin_anew();
        let link = Arc::new(Link::new(queue, self.walk.clone()));
        self.link = Some(link.clone());
        self.has_connected = true;
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
