//! Polling: finding tasks and claiming them for the free slots.
//!
//! [`ScanSchedule`] decides what is scanned, and when; this module carries it out. Entries that a scan has found are
//! claimed before the next scan, so that one list serves up to a thousand tasks. Claims continue during a scan: reading
//! a page takes as long as many of them.
//!
//! Requests: 1 get per poll while idle, whatever the number of shards; 1 list per thousand due entries.

use futures::future::{BoxFuture, Either, select};
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use leasehold_core::scan::{
    Action, EntryBackoff, FoundEntries, Graces, IndexHit, Moment, ScanOptions, ScanSchedule, ScanTarget,
    Served, Unclaimed,
};
use leasehold_core::{Error, Kind, Now, Result, TaskId};
use leasehold_queue::source::{DrainWait, Slot, SlotState, SourceStatus, TaskInSlot, next_or};
use leasehold_queue::{Bell, ClaimOutcome};
use leasehold_store::host::Instant;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;
use tokio::sync::{mpsc, watch};

use super::Objects;
use super::claim::ObjectClaim;

/// Pause after a failed scan, and while nothing may be claimed.
pub(super) const FAILED_PAUSE: Duration = Duration::from_secs(1);
/// Maximum pause while `queue.json` is missing or corrupt: an operator has to restore it.
const NO_META_PAUSE_MAX: Duration = Duration::from_secs(30);
/// Time within which a task must become due for a worker that stops when nothing is left to wait for it.
pub(super) const DUE_SOON: Duration = Duration::from_mins(1);

/// Poll loop of a worker.
pub(super) struct Poller {
    pub(super) objects: Arc<Objects>,
    pub(super) schedule: ScanSchedule,
    /// Receives the claims that are made.
    engine: mpsc::UnboundedSender<Result<TaskInSlot>>,
    /// Claims in flight.
    claims: FuturesUnordered<BoxFuture<'static, Attempt>>,
    slot_changes: watch::Receiver<SlotState>,
    /// Signal of tasks that become pending in this process.
    pending_signal: watch::Receiver<u64>,
    pub(super) bell: Bell,
    pub(super) inbox_bell: Bell,
    pub(super) entries: FoundEntries,
    /// The task whose claim is the probe of a failing store.
    probe: Option<TaskId>,
    /// Time since which `queue.json` is missing or corrupt.
    no_meta_since: Option<Instant>,
}

/// An attempt to claim the task of an entry.
struct Attempt {
    found: IndexHit,
    slot: Slot,
    outcome: ClaimOutcome,
}

/// Result of a poll.
enum Polled {
    /// The next poll is after this time.
    Resting(Duration),
    /// It has ended.
    Done,
    /// Nothing is left to do, and the worker ends then.
    NothingLeft,
}

impl Poller {
    pub(super) fn new(objects: Arc<Objects>, engine: mpsc::UnboundedSender<Result<TaskInSlot>>) -> Self {
        let options = ScanOptions {
            polling: objects.worker.polling,
            full_scan_every: objects.options.full_scan_every,
            overflow_every: objects.options.overflow_every,
            until_empty: objects.worker.until_empty,
            is_leasing: objects.options.leasing.is_some(),
        };
        Self {
            schedule: ScanSchedule::new(options),
            engine,
            claims: FuturesUnordered::new(),
            slot_changes: objects.slots().changes(),
            pending_signal: objects.queue.subscribe(),
            bell: Bell::default(),
            inbox_bell: Bell::of(Some(&objects.worker.id)),
            entries: FoundEntries::default(),
            probe: None,
            no_meta_since: None,
            objects,
        }
    }

    /// Polls until the slots are closed, or until nothing is left to do, and waits for the claims in flight.
    pub(super) async fn run(mut self) {
        let ended = self.poll_until_closed().await;
        while let Some(attempt) = self.claims.next().await {
            self.record_outcome(attempt);
        }
        if let Err(error) = ended {
            // The engine receives it after the last claim.
            let _ = self.engine.send(Err(error));
        }
    }

    /// Polls until the slots are closed, or until nothing is left to do. Fails if this worker can never claim again.
    async fn poll_until_closed(&mut self) -> Result<()> {
        let mut is_paused = false;
        let objects = self.objects.clone();
        while !objects.slots().is_closed() {
            objects.heartbeat();
            let probe = self.until_probe();
            if let Some(left) = probe.filter(|left| !left.is_zero()) {
                self.idle(left).await;
                continue;
            }
            if let Err(error) = self.while_claiming(objects.queue.ensure_writable()).await {
                if error.kind() == Kind::Invalid && objects.queue.is_outdated() {
                    return Err(error);
                }
                // The queue is being migrated, or unreachable: running tasks continue, and polling resumes later.
                if !is_paused && objects.long_outage().is_none() {
                    tracing::warn!(%error, "claiming paused");
                }
                is_paused = true;
                let pause = self.pause_after(&error);
                self.idle(pause).await;
                continue;
            }
            if std::mem::take(&mut is_paused) {
                if self.no_meta_since.take().is_some() {
                    // Records that were corrupt meanwhile may have been so for the same reason.
                    *self.entries.backoff() = EntryBackoff::default();
                }
                self.schedule.resume();
            }
            self.resume_due().await;
            self.fill_slots(probe.is_some());
            if probe.is_some() && !self.entries.is_empty() {
                // The claim is the probe. A scan would find the waiting entries again.
                continue;
            }
            if objects.slots().free() == 0 {
                self.wait_for_slot().await;
                self.empty_own_inbox().await;
                continue;
            }
            self.schedule.slot_freed();
            match self.poll().await {
                Ok(Polled::Resting(left)) => self.idle(left).await,
                Ok(Polled::Done) => {}
                Ok(Polled::NothingLeft) => return Ok(()),
                Err(error) => {
                    objects.request_failed("scan for tasks", &error);
                    self.idle(FAILED_PAUSE).await;
                }
            }
        }
        Ok(())
    }

    /// Polls once, if it is time to.
    async fn poll(&mut self) -> Result<Polled> {
        loop {
            let at = self.moment()?;
            let (served, resume_at) = (self.served(at.now), self.entries.backoff().earliest_claim());
            let action = self.schedule.next(&at, &served, resume_at, self.objects.slots().is_idle());
            let done = match action {
                Action::Rest(left) => return Ok(Polled::Resting(left)),
                Action::ReadBell(place) => self.read_bell(place).await,
                Action::Scan(scan) => self.scan(scan).await,
                Action::Conclude { was_idle } => return self.conclude(was_idle).await,
            };
            if let Err(error) = done {
                self.schedule.failed(action);
                return Err(error);
            }
        }
    }

    /// Ends a poll.
    async fn conclude(&mut self, was_idle: bool) -> Result<Polled> {
        let objects = self.objects.clone();
        if !self.entries.is_empty() {
            objects.set_drain_wait(None);
            self.schedule.found(&self.moment()?);
            return Ok(Polled::Done);
        }
        if objects.worker.until_empty && was_idle {
            let wait = self.drain_wait().await;
            objects.set_drain_wait(wait);
            if wait.is_none() {
                return Ok(Polled::NothingLeft);
            }
        }
        self.schedule.found_nothing(&self.moment()?, objects.host().random());
        Ok(Polled::Done)
    }

    /// Both clocks, now.
    pub(super) fn moment(&self) -> Result<Moment> {
        Ok(Moment { local: self.local(), now: self.objects.queue.now()? })
    }

    fn local(&self) -> Duration {
        self.objects.host().instant().since_boot()
    }

    /// Parts of the index that are served now.
    pub(super) fn served(&self, now: Now) -> Served {
        let may_scan =
            |place| self.objects.side_location(place).is_some_and(|at| self.objects.may_scan(&at, now));
        Served {
            inbox: may_scan(ScanTarget::Inbox),
            shards: self.objects.assignment.ranges(now),
            overflow: may_scan(ScanTarget::Overflow),
        }
    }

    /// Time until a failing store is probed again; none while it answers. One probe serves all waiting work: a claim
    /// if there is something to claim, and the usual poll.
    fn until_probe(&mut self) -> Option<Duration> {
        let (now, outage) = (self.objects.host().instant(), self.objects.long_outage());
        if outage.is_none() {
            self.probe = None;
        }
        self.schedule.until_probe(self.local(), outage.map(|outage| outage.pause(now)))
    }

    /// Pause after `queue.json` could not be read, or does not allow claims. It grows while `queue.json` is missing,
    /// corrupt or foreign: such a store answers, so it is not probed.
    fn pause_after(&mut self, error: &Error) -> Duration {
        if !matches!(error.kind(), Kind::Invalid | Kind::Corrupt) {
            return FAILED_PAUSE;
        }
        let now = self.objects.host().instant();
        let since = *self.no_meta_since.get_or_insert(now);
        (now.since(since) / 2).clamp(FAILED_PAUSE, NO_META_PAUSE_MAX)
    }

    /// Resumes entries whose pause is over.
    async fn resume_due(&mut self) {
        let Ok(now) = self.objects.queue.now() else { return };
        let (is_resumed, to_sweep) = self.entries.resume_due(now);
        if is_resumed {
            // A task that becomes due is not rung for.
            self.objects.assignment.mark_active();
        }
        self.sweep(to_sweep).await;
    }

    /// Begins to claim tasks for the free slots; only one as a probe.
    fn fill_slots(&mut self, is_probe: bool) {
        self.record_ends();
        let Ok(now) = self.objects.queue.now() else { return };
        if is_probe && self.probe.is_some_and(|id| self.objects.slots().contains(&id)) {
            return;
        }
        while self.objects.slots().free() > 0 {
            let Some(found) = self.entries.pop() else { return };
            if !self.may_claim(&found, now) {
                self.schedule.entry_dropped();
            } else if let Some(slot) = self.objects.slots().take(found.entry.id) {
                self.probe = is_probe.then_some(found.entry.id);
                let objects = self.objects.clone();
                self.claims.push(Box::pin(async move {
                    let outcome = objects.claim(&found).await;
                    Attempt { found, slot, outcome }
                }));
                if is_probe {
                    return;
                }
            } else {
                self.entries.defer(found);
            }
        }
    }

    /// Records the tasks that have ended.
    pub(super) fn record_ends(&mut self) {
        if self.entries.record_ends(|id| self.objects.slots().contains(id)) {
            self.schedule.slot_freed();
        }
    }

    /// Moves the tasks in the inbox to the overflow when no slot was free for long (promise P4).
    async fn empty_own_inbox(&mut self) {
        let objects = self.objects.clone();
        if objects.inbox.is_none() || !self.schedule.slots_full(self.local()) {
            return;
        }
        self.entries.drop_inboxes();
        let running = objects.slots().tasks();
        let moved = self.while_claiming(objects.queue.empty_inbox(&objects.worker.id, Some(&running))).await;
        if let Err(error) = moved {
            objects.request_failed("move the inbox to the overflow", &error);
        }
    }

    /// Waits for a slot to become free, but never so long that this loop seems to hang.
    async fn wait_for_slot(&mut self) {
        let timeout = match self.objects.heartbeat() {
            Some(most) => self.objects.host().sleep(most),
            None => futures::future::pending().boxed(),
        };
        let waited = select(timeout, Box::pin(self.slot_changes.changed())).map(drop);
        if let Either::Left(attempt) = next_or(&mut self.claims, waited).await {
            self.record_outcome(attempt);
        }
        self.record_ends();
    }

    /// Waits for an answer while claims continue.
    pub(super) async fn while_claiming<T>(&mut self, answer: impl Future<Output = T>) -> T {
        self.objects.heartbeat();
        // Boxed, because it is large and passed through several futures.
        let mut answer = Box::pin(answer);
        loop {
            match next_or(&mut self.claims, answer.as_mut()).await {
                Either::Left(attempt) => self.record_outcome(attempt),
                Either::Right(answer) => return answer,
            }
        }
    }

    /// Waits for a pause, a claim, a free slot, or a task that becomes pending in this process.
    async fn idle(&mut self, pause: Duration) {
        // Never so long that this loop seems to hang.
        let pause = self.objects.heartbeat().map_or(pause, |most| most.min(pause));
        let rested = select(self.objects.host().sleep(pause), Box::pin(self.slot_changes.changed()));
        let is_signalled = select(rested, Box::pin(self.pending_signal.changed()))
            .map(|waited| matches!(waited, Either::Right(_)));
        match next_or(&mut self.claims, is_signalled).await {
            Either::Left(attempt) => self.record_outcome(attempt),
            Either::Right(true) => self.schedule.wake(),
            Either::Right(false) => {}
        }
    }

    /// Records whether no ready entry waits in the shards of this worker.
    pub(super) fn update_ready_empty(&self) {
        let is_empty = self.entries.is_ready_empty() && !self.schedule.is_shard_scan_partial();
        self.objects.assignment.is_ready_empty.store(is_empty, SeqCst);
    }

    /// Records the outcome of an attempt to claim a task; a claim goes to the engine.
    fn record_outcome(&mut self, Attempt { found, slot, outcome }: Attempt) {
        let why = match outcome {
            Ok(claimed) => {
                if self.entries.claimed(found) {
                    self.update_ready_empty();
                }
                let task = Box::new(ObjectClaim { objects: self.objects.clone(), claimed: *claimed });
                // The engine receives claims until this loop has ended.
                let _ = self.engine.send(Ok(TaskInSlot { task, slot }));
                return;
            }
            Err(why) => why,
        };
        if let Unclaimed::Corrupt(error) = &why {
            self.objects.report(&error.to_string());
        }
        self.schedule.slot_freed();
        let config = self.objects.queue.config();
        let graces = Graces { outdated: config.outdated_grace, ahead: config.ahead_grace };
        let Ok(now) = self.objects.queue.now() else { return };
        if self.entries.not_claimed(found, &why, now, graces) {
            self.update_ready_empty();
        }
    }

    /// Reason to wait before stopping: a task is due soon, or may be released by another worker. A worker that stops
    /// when nothing is left does not leave behind the tasks of a crashed one.
    async fn drain_wait(&mut self) -> Option<DrainWait> {
        let objects = self.objects.clone();
        let Ok(now) = objects.queue.now() else { return Some(DrainWait::Store) };
        let due =
            [self.schedule.next_minute(), self.entries.backoff().earliest_due()].into_iter().flatten().min();
        if let Some(due) = due.filter(|due| *due <= now.latest_known().plus(DUE_SOON)) {
            return Some(DrainWait::Due(due));
        }
        if !objects.assignment.has_full_share(now) || self.schedule.has_new_shards(&self.served(now)) {
            return Some(DrainWait::ShardLeases);
        }
        if let Some(id) = self.entries.backoff().any_held() {
            return Some(DrainWait::Held(id));
        }
        let wait = match objects.held_by_others().await {
            Ok(held) => held.map(DrainWait::Held),
            Err(_) => Some(DrainWait::Store),
        };
        if wait.is_some() {
            // It may be in the overflow already or soon, and its ring may be lost.
            self.schedule.scan_sides_soon();
        }
        wait
    }
}
