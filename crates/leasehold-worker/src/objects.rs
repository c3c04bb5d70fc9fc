//! Source of tasks over a queue in the layout `objects`.
//!
//! ```text
//!   poll ──▶ scan ──▶ claim ──▶ to the engine
//!     │
//!   shards, inbox          leases of this worker, each on a thread of its own
//!   duties                 recover expired claims, empty the inboxes of crashed workers, remove expired records
//! ```
//!
//! | module | purpose |
//! | --- | --- |
//! | `poll` | the poll loop: claims what was found, rests, and polls again |
//! | `scan` | reads the bells and the index, as [`leasehold_core::scan`] decides |
//! | `claim` | claims the task of an entry; a claimed task |
//! | `shards`, `shard_assignment` | shard leasing; the shards that are served now |
//! | `inbox` | the worker's own inbox, and the lease on it |
//! | `duties` | maintenance duties, one file each |

mod claim;
mod duties;
mod inbox;
mod poll;
mod scan;
mod shard_assignment;
mod shards;

use futures::future::{BoxFuture, Either, Fuse, select};
use futures::{FutureExt, TryStreamExt};
use leasehold_core::scan::{BackoffAction, CORRUPT_PAUSE, IndexHit, ScanTarget};
use leasehold_core::{
    Entry, Error, Index, IndexLocation, Kind, Now, Result, ShardRange, Status, StoreTime, TaskId,
};
use leasehold_queue::ObjectQueue;
use leasehold_queue::discover::KeyRange;
use leasehold_queue::source::{DrainWait, Duty, Slots, SourceStatus, TaskInSlot, TaskSource, WorkerInfo};
use leasehold_queue::sweep::Swept;
use leasehold_store::host::{Running, lock};
use leasehold_store::mutant::breaks;
use leasehold_store::{Host, Outage, Purpose};
use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::mpsc;

use self::inbox::Inbox;
use self::poll::{DUE_SOON, Poller};
use self::shard_assignment::ShardAssignment;
use self::shards::ShardLeaser;
use crate::options::WorkerOptions;
use crate::runner::TaskRunner;
use crate::worker::Counters;

/// Maximum number of objects that are reported once each before the list is cleared.
const REPORTED_MAX: usize = 10_000;

/// Source of tasks over the objects of a queue.
pub(crate) struct ObjectSource {
    objects: Arc<Objects>,
    /// The poll loop. It ends when the slots are closed, or nothing is left.
    polling: Fuse<BoxFuture<'static, ()>>,
    /// Claims that the poll loop makes, and the error that ends it.
    claims: mpsc::UnboundedReceiver<Result<TaskInSlot>>,
    /// Leases on shards and on the inbox, each renewed on a thread of its own, because a busy handler must not cost
    /// them.
    leases: Vec<Running>,
}

/// State shared by all parts of the source.
#[derive(Debug)]
struct Objects {
    queue: ObjectQueue,
    /// The queue, for the thread that renews claims.
    renewing: ObjectQueue,
    worker: WorkerInfo,
    options: WorkerOptions,
    assignment: Arc<ShardAssignment>,
    inbox: Option<Arc<Inbox>>,
    counts: Arc<Counters>,
    /// Problems that were logged already.
    reported: Mutex<HashSet<String>>,
    drain_wait: Mutex<Option<DrainWait>>,
}

impl ObjectSource {
    /// Opens the source, and takes the lease on the inbox if the worker has one.
    pub(crate) async fn open(queue: ObjectQueue, worker: WorkerInfo, runner: &TaskRunner) -> Result<Self> {
        let (options, host, mut leases) = (runner.options.clone(), runner.host.clone(), Vec::new());
        let mut inbox = None;
        if let Some(options) = options.inbox.clone() {
            let (opened, lease) = Inbox::open(queue.detached(), &worker.id, options).await?;
            let opened = inbox.insert(Arc::new(opened)).clone();
            let renewal = opened.renew_until_closed(lease, worker.slots.clone());
            leases.push(host.spawn_thread("leasehold-inbox", Box::pin(renewal)));
        }
        let len = queue.shard_len();
        let assignment = Arc::new(match &options.leasing {
            // None until some are leased.
            Some(_) => ShardAssignment::of(len, Vec::new(), false),
            None => ShardAssignment::new(len, options.shards.as_deref()),
        });
        if let Some(leasing) = options.leasing.clone() {
            let shards = ShardLeaser::new(queue.detached(), &worker.id, leasing, assignment.clone())?;
            leases.push(host.spawn_thread("leasehold-shards", Box::pin(shards.run(worker.slots.clone()))));
        }
        let objects = Arc::new(Objects {
            renewing: queue.detached(),
            queue,
            worker,
            options,
            assignment,
            inbox,
            counts: runner.counts.clone(),
            reported: Mutex::default(),
            drain_wait: Mutex::default(),
        });
        let (sender, claims) = mpsc::unbounded_channel();
        let polling = Poller::new(objects.clone(), sender).run().boxed().fuse();
        Ok(Self { objects, polling, claims, leases })
    }
}

impl TaskSource for ObjectSource {
    fn next(&mut self) -> BoxFuture<'_, Result<Option<TaskInSlot>>> {
        Box::pin(async {
            let received = select(Box::pin(self.claims.recv()), &mut self.polling);
            let received = match select(received, Box::pin(self.objects.inbox_lost())).await {
                Either::Left((Either::Left((received, _)), _)) => received,
                // The poll loop has ended: its last claims are still to be received.
                Either::Left((Either::Right(((), receiving)), _)) => receiving.await,
                Either::Right((error, _)) => return Err(error),
            };
            received.transpose()
        })
    }

    fn duties(&self) -> Vec<Box<dyn Duty>> {
        duties::all(&self.objects)
    }

    fn status(&self) -> Arc<dyn SourceStatus> {
        self.objects.clone()
    }

    fn close(self: Box<Self>) -> BoxFuture<'static, Result<()>> {
        Box::pin(async move {
            for lease in self.leases {
                lease.await;
            }
            self.objects.inbox_lost().now_or_never().map_or(Ok(()), Err)
        })
    }
}

impl SourceStatus for Objects {
    fn drain_wait(&self) -> Option<DrainWait> {
        *lock(&self.drain_wait)
    }

    fn shards(&self) -> Vec<ShardRange> {
        self.queue.now().map_or_else(|_| Vec::new(), |now| self.assignment.ranges(now))
    }

    fn has_inbox(&self) -> bool {
        let (Some(inbox), Ok(now)) = (&self.inbox, self.queue.now()) else { return false };
        inbox.is_held(now)
    }

    fn outage(&self) -> Option<Outage> {
        self.queue.client().health().outage()
    }

    fn is_outdated(&self) -> bool {
        self.queue.is_outdated()
    }
}

impl Objects {
    fn host(&self) -> &Arc<dyn Host> {
        self.queue.client().host()
    }

    fn slots(&self) -> &Slots {
        &self.worker.slots
    }

    /// Shows that the poll loop runs, without which the inbox is not kept. Returns the maximum time until the next call,
    /// also when all slots are busy; none without an inbox.
    fn heartbeat(&self) -> Option<Duration> {
        self.inbox.as_ref().map(|inbox| inbox.heartbeat())
    }

    /// Waits until the worker id was lost, with its inbox.
    async fn inbox_lost(&self) -> Error {
        match &self.inbox {
            Some(inbox) => inbox.lost().await,
            None => std::future::pending().await,
        }
    }

    /// Location of a place that is not in the shards.
    fn side_location(&self, place: ScanTarget) -> Option<IndexLocation> {
        match place {
            ScanTarget::Inbox => Some(IndexLocation::Inbox(self.worker.id.clone())),
            ScanTarget::Overflow => Some(IndexLocation::Overflow),
            ScanTarget::Shards => None,
        }
    }

    /// True if this worker scans this part of the index.
    fn may_scan(&self, place: &IndexLocation, now: Now) -> bool {
        match place {
            IndexLocation::Ready(shard) | IndexLocation::Lease(shard) => self.assignment.contains(shard, now),
            IndexLocation::Inbox(_) => self.inbox.as_ref().is_some_and(|inbox| inbox.is_held(now)),
            IndexLocation::Overflow => !breaks("overflow-unread"),
        }
    }

    /// True if only this worker scans this part of the index, because it holds the lease on it.
    fn is_only_scanner(&self, place: &IndexLocation, now: Now) -> bool {
        match place {
            IndexLocation::Ready(shard) | IndexLocation::Lease(shard) => self.assignment.holds(shard, now),
            IndexLocation::Inbox(_) => self.may_scan(place, now),
            IndexLocation::Overflow => false,
        }
    }

    fn set_drain_wait(&self, wait: Option<DrainWait>) {
        *lock(&self.drain_wait) = wait;
    }

    /// A task of these shards that this worker could run and that another worker holds.
    async fn held_by_others(&self) -> Result<Option<TaskId>> {
        let mut key_ranges = self.assignment.key_ranges(Index::Lease, self.queue.now()?, None);
        // Also the tasks of a worker that may have crashed.
        key_ranges.extend([KeyRange::inboxes(), KeyRange::at(&IndexLocation::Overflow)]);
        for key_range in key_ranges {
            let mut entries = std::pin::pin!(self.queue.entries_in(Purpose::Discover, key_range));
            while let Some(entry) = entries.try_next().await? {
                if self.is_unfinished_and_handled(&entry).await? {
                    return Ok(Some(entry.id));
                }
            }
        }
        Ok(None)
    }

    async fn is_unfinished_and_handled(&self, entry: &Entry) -> Result<bool> {
        let soon = self.queue.now()?.latest_known().plus(DUE_SOON);
        if entry.shard().is_none() && entry.minute.start() > soon {
            return Ok(false);
        }
        match self.queue.get(&entry.id).await {
            Ok(task) => {
                let is_due_soon = task.entry().is_some_and(|entry| entry.minute.start() <= soon);
                let waits = entry.shard().is_none() && task.status() == Status::Pending && is_due_soon;
                let is_unfinished = waits || task.status() == Status::Running;
                Ok(is_unfinished && self.worker.types.contains(&task.task_type))
            }
            // Removed, or corrupt: it will not become pending again.
            Err(error) if matches!(error.kind(), Kind::Invalid | Kind::Corrupt) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Logs a problem that is left for an operator, once.
    fn report(&self, what: &str) {
        let mut reported = lock(&self.reported);
        if reported.len() >= REPORTED_MAX {
            reported.clear();
        }
        if reported.insert(what.to_owned()) {
            tracing::error!(error = what, "corrupt object found, run `leasehold check`");
        }
    }

    /// Checks an entry against its task. Returns the time and action of the next check, if there is one; `action` is for
    /// an entry whose task is held.
    async fn sweep(
        &self,
        found: &IndexHit,
        action: BackoffAction,
    ) -> Result<Option<(StoreTime, BackoffAction)>> {
        Ok(match self.queue.sweep(found).await? {
            Swept::Held(at) => Some((at, action)),
            Swept::Later(at) => Some((at, BackoffAction::Sweep)),
            Swept::Corrupt(error) => {
                self.report(&error.to_string());
                let until = self.queue.now()?.latest_known().plus(CORRUPT_PAUSE);
                Some((until, BackoffAction::Sweep))
            }
            Swept::Changed(task) => {
                // A task that expired had no worker.
                if task.status() != Status::Expired {
                    tracing::warn!(task = %task.id, status = %task.status(), "task recovered, its worker was lost");
                    self.counts.add(|counts| &mut counts.recovered);
                }
                None
            }
            Swept::Fine | Swept::Removed => None,
        })
    }
}
