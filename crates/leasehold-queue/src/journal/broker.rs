//! The broker: one loop that owns the live tasks, and decides, commits and answers for all of them.
//!
//! ```text
//!   request ─▶ decide on the one state ─▶ records into the open commit ─▶ commit ─ confirmed ─▶ answer
//!                                            ▲ while one commit is in flight, the next one fills
//! ```
//!
//! A request is decided at once, on a state that includes everything decided before. Its answer is held until the commit
//! with the newest record so far is confirmed, so that nothing unconfirmed is ever visible. An answer that the commit does
//! not prove (a refusal, a read that must be current) is held until the log was found to have no other writer, after that
//! commit and after the request arrived (rules B8 and F11); one such check serves all that wait.
//!
//! If another process has taken over, or the outcome of a commit is unknown, the broker ends: it drops its state and all
//! answers, and a later request opens a new one.

pub(super) mod archiver;
mod chunk_reads;
mod decide;
mod lookup;
pub(super) mod maintenance;
mod meter;
mod parked;
mod workers;
mod writer;

use leasehold_core::journal::JournalState;
use leasehold_core::{Error, Kind, Now, Result, StoreTime};
use leasehold_store::Client;
use leasehold_store::host::Instant;
use leasehold_store::mutant::breaks;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::mpsc;

use self::archiver::{ArchiveDone, Archiver};
use self::chunk_reads::{ChunkReadDone, ChunkReads};
use self::lookup::{LookedUp, Lookups};
use self::maintenance::{Maintenance, MaintenanceDone};
use self::meter::CommitMeter;
use self::parked::{ParkedClaims, Watches};
use self::workers::WorkerTable;
use self::writer::{BrokerTimer, LeaseSlot, ThreadChoice, WriterDone, WriterSlot};
use super::changes::ChangeFeed;
use super::commit::{CommitAllowance, HeldAnswers, OpenCommit};
use super::open::OpenedJournal;
use super::replay::Replayed;
use super::request::{BrokerRequest, HeldAnswer};
use super::service::ClientCount;
use crate::lease::Renewed;

/// Maximum number of records of a commit that the broker writes on its own thread: those of a submit and its claim, and of a
/// result and the next claim.
const LONE_RECORDS_MAX: u32 = 4;

/// Pause before the broker acts on a time that has passed by some, but not by all possible readings of the store's clock.
const UNCERTAIN_PAUSE: Duration = Duration::from_millis(100);

/// The broker of a queue.
pub(super) struct Broker {
    client: Client,
    state: JournalState,
    requests: mpsc::Receiver<BrokerRequest>,
    open: OpenCommit,
    /// Commits that it may write without an interval between them.
    allowance: CommitAllowance,
    writer: WriterSlot,
    thread: ThreadChoice,
    /// Answers that wait for the commit in flight.
    in_flight: HeldAnswers,
    /// Bytes of the records of the commit in flight.
    in_flight_bytes: usize,
    /// Answers that wait for a check which is yet to be sent.
    unchecked: Vec<HeldAnswer>,
    /// Answers that wait for the check in flight.
    checking: Vec<HeldAnswer>,
    parked: ParkedClaims,
    watches: Watches,
    lease: LeaseSlot,
    maintenance: Maintenance,
    archiver: Archiver,
    lookups: Lookups,
    reads: ChunkReads,
    /// New tasks that wait for the end of a snapshot.
    submits: VecDeque<BrokerRequest>,
    timer: BrokerTimer,
    /// Time at which it began to serve.
    since: StoreTime,
    meter: CommitMeter,
    workers: WorkerTable,
    changes: ChangeFeed,
    /// Number of connected clients.
    clients: ClientCount,
    /// True if a check was the last call of the writer: a commit that is due comes next.
    is_commit_next: bool,
    /// True if no request will follow.
    is_closing: bool,
}

/// Something that the broker waits for.
enum BrokerEvent {
    Writer(WriterDone),
    Lease(Result<Renewed>),
    Maintenance(MaintenanceDone),
    Archived(ArchiveDone),
    LookedUp(Box<LookedUp>),
    ChunkRead(Box<ChunkReadDone>),
    Request(BrokerRequest),
    /// All senders of requests are gone, or the broker was asked to close.
    Closed,
    Woken,
}

impl Broker {
    pub(super) fn new(
        client: Client,
        opened: OpenedJournal,
        requests: mpsc::Receiver<BrokerRequest>,
        clients: ClientCount,
    ) -> Self {
        let OpenedJournal { replayed, writer, lease, linger, snapshots } = opened;
        let Replayed { state, table, since, .. } = replayed;
        let now = client.host().instant();
        let is_in_folder = client.local_folder().is_some();
        // Time of the renewal that confirmed the lease, before it serves.
        let confirmed_at = lease.lease().updated_at;
        Self {
            archiver: Archiver::new(snapshots.archive),
            lookups: Lookups::default(),
            reads: ChunkReads::default(),
            submits: VecDeque::new(),
            maintenance: Maintenance::new(table, since, writer.trimmer(), is_in_folder, snapshots, now),
            state,
            requests,
            // `linger`: time for which a commit waits for more records.
            open: OpenCommit::new(linger),
            allowance: CommitAllowance::new(linger, now),
            writer: WriterSlot::new(writer),
            thread: ThreadChoice::new(now),
            in_flight: HeldAnswers::default(),
            in_flight_bytes: 0,
            unchecked: Vec::new(),
            checking: Vec::new(),
            parked: ParkedClaims::default(),
            watches: Watches::default(),
            timer: BrokerTimer::default(),
            since: confirmed_at,
            meter: CommitMeter::new(now),
            workers: WorkerTable::default(),
            changes: ChangeFeed::new(lease.lease().instance.to_string()),
            clients,
            lease: LeaseSlot::new(lease, now),
            is_commit_next: false,
            is_closing: false,
            client,
        }
    }

    /// Serves requests until all of their senders are gone, or the broker is closed, and then releases the lease. An error
    /// means that this process is no longer the broker, or that an outcome is unknown.
    pub(super) async fn serve(mut self) -> Result<()> {
        let ended = self.run().await;
        // Answers that are still held are dropped with the state, so that nothing waits for them while the lease is released.
        let released = self.into_lease().release().await;
        ended.and(released)
    }

    /// Drops everything but the lease.
    fn into_lease(self) -> LeaseSlot {
        self.lease
    }

    async fn run(&mut self) -> Result<()> {
        self.evict();
        loop {
            // Before a snapshot nothing is decided until all commits are confirmed, so that it covers confirmed commits only
            // (B13).
            if !self.maintenance.is_capturing {
                self.receive_waiting()?;
                self.submit_held()?;
                self.tick()?;
                self.serve_parked()?;
            }
            self.maintain()?;
            self.start_writer();
            if self.is_done() {
                return Ok(());
            }
            let deadline = self.deadline();
            self.timer.set(deadline, &**self.client.host());
            match poll_fn(|context| self.poll_event(context)).await {
                BrokerEvent::Writer(done) => self.writer_done(done).await?,
                BrokerEvent::Lease(renewed) => {
                    self.lease.renewed(renewed, self.client.host().instant())?;
                    self.lease_confirmed();
                }
                BrokerEvent::Maintenance(done) => self.maintained(done),
                BrokerEvent::Archived(done) => self.archived(done)?,
                BrokerEvent::LookedUp(done) => self.looked_up(*done)?,
                BrokerEvent::ChunkRead(done) => self.chunk_read(*done)?,
                BrokerEvent::Request(request) => self.handle(request)?,
                BrokerEvent::Closed => self.close(),
                BrokerEvent::Woken => {}
            }
            self.lease.renew_if_due(self.client.host().instant());
        }
    }

    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<BrokerEvent> {
        if let Poll::Ready(done) = self.writer.poll(context) {
            return Poll::Ready(BrokerEvent::Writer(done));
        }
        if let Poll::Ready(renewed) = self.lease.poll(context) {
            return Poll::Ready(BrokerEvent::Lease(renewed));
        }
        if let Poll::Ready(done) = self.maintenance.poll(context) {
            return Poll::Ready(BrokerEvent::Maintenance(done));
        }
        if !self.maintenance.is_capturing && !self.open.is_full() {
            if let Poll::Ready(done) = self.archiver.poll(context) {
                return Poll::Ready(BrokerEvent::Archived(done));
            }
            if let Poll::Ready(done) = self.lookups.poll(context) {
                return Poll::Ready(BrokerEvent::LookedUp(Box::new(done)));
            }
            if let Poll::Ready(done) = self.reads.poll(context) {
                return Poll::Ready(BrokerEvent::ChunkRead(Box::new(done)));
            }
        }
        if !self.is_closing
            && !self.open.is_full()
            && !self.maintenance.is_capturing
            && let Poll::Ready(received) = self.requests.poll_recv(context)
        {
            return Poll::Ready(received.map_or(BrokerEvent::Closed, BrokerEvent::Request));
        }
        self.timer.poll(context).map(|()| BrokerEvent::Woken)
    }

    /// Handles all requests that have arrived, as far as the open commit has room.
    fn receive_waiting(&mut self) -> Result<()> {
        while !self.open.is_full() {
            let Ok(request) = self.requests.try_recv() else { break };
            self.handle(request)?;
        }
        Ok(())
    }

    /// Takes no more requests; what was decided is still committed and answered.
    fn close(&mut self) {
        self.is_closing = true;
        self.requests.close();
        self.parked.clear();
        self.reads.drop_claims();
        self.watches.clear();
        self.open.hurry();
    }

    fn is_done(&self) -> bool {
        let is_settled = self.open.is_empty() && self.unchecked.is_empty();
        // Even a process that runs only briefly, such as a command, takes a snapshot that is due, and waits for its end.
        let is_idle = self.writer.is_idle() && !self.maintenance.is_busy();
        let is_idle = is_idle && self.archiver.is_idle() && self.lookups.is_idle() && self.reads.is_idle();
        let is_idle = is_idle && self.submits.is_empty();
        self.is_closing && self.requests.is_empty() && is_settled && is_idle
    }

    /// Starts the next call of the writer: a check that something waits for, or the commit if it is due.
    fn start_writer(&mut self) {
        if !self.writer.is_idle() {
            return;
        }
        let now = self.instant();
        let due_in = self.commit_due_in(now);
        let is_due = due_in.is_some_and(|left| left.is_zero() || self.maintenance.is_capturing);
        if is_due && (self.is_commit_next || self.unchecked.is_empty()) {
            let commit = self.open.take();
            self.allowance.spend(now);
            self.in_flight = commit.answers;
            self.in_flight_bytes = commit.lines.len();
            self.meter.sent(commit.records, commit.lines.len(), self.instant());
            let is_alone = commit.records <= LONE_RECORDS_MAX && self.requests.is_empty();
            self.writer.commit(commit.lines, commit.records, self.thread.choose(is_alone, now));
            self.is_commit_next = false;
        } else if !self.unchecked.is_empty() {
            self.checking = std::mem::take(&mut self.unchecked);
            self.writer.check(self.thread.choose(self.requests.is_empty(), now));
            self.is_commit_next = true;
        }
    }

    async fn writer_done(&mut self, done: WriterDone) -> Result<()> {
        self.thread.ended(self.instant());
        let answers = if self.confirmed(done).await? {
            self.maintenance.committed(self.in_flight_bytes);
            self.meter.confirmed(self.instant());
            let HeldAnswers { confirmed, unproven } = std::mem::take(&mut self.in_flight);
            self.unchecked.extend(unproven);
            confirmed
        } else {
            std::mem::take(&mut self.checking)
        };
        for answer in answers {
            self.send(answer)?;
        }
        Ok(())
    }

    /// Holds an answer until everything that was decided so far is confirmed, and until a check if it needs a proof.
    fn hold(&mut self, answer: HeldAnswer, needs_proof: bool) -> Result<()> {
        if breaks("broker-answers-early") {
            return self.send(answer);
        }
        if !self.open.is_empty() {
            self.open.answers.push(answer, needs_proof);
        } else if self.writer.is_committing() {
            self.in_flight.push(answer, needs_proof);
        } else if needs_proof {
            self.unchecked.push(answer);
        } else {
            self.send(answer)?;
        }
        Ok(())
    }

    /// Sends an answer, and releases claims that could not be delivered.
    fn send(&mut self, answer: HeldAnswer) -> Result<()> {
        answer.send().into_iter().try_for_each(|(task, lease_id)| self.release_unused(task, lease_id))
    }

    /// Time until the open commit is to be written; none if it is empty.
    fn commit_due_in(&self, now: Instant) -> Option<Duration> {
        let due_in = self.open.due_in(now)?;
        let is_hurried = self.open.is_full() || self.is_closing || self.state.has_due();
        let wait = || self.allowance.wait(now).min(self.open.quiet_in(now));
        Some(if is_hurried { due_in } else { due_in.max(wait()) })
    }

    /// Time at which the broker has to act without an event.
    fn deadline(&self) -> Option<Instant> {
        let now = self.instant();
        let commit = self.commit_due_in(now).filter(|_| self.writer.is_idle());
        let renewal = self.lease.renewal_due_in(now);
        let wake = self.state.next_wake().map(|at| self.until(at));
        let snapshot = self.maintenance.due_in(now, self.state.resident_bytes());
        let left = [commit, renewal, wake, snapshot].into_iter().flatten().min()?;
        let nanos = i64::try_from(left.as_nanos()).unwrap_or(i64::MAX);
        Some(Instant { boot_ns: now.boot_ns.saturating_add(nanos), ..now })
    }

    /// Duration until a time of the store. If it has passed, but not certainly, a short pause until the next try.
    fn until(&self, at: StoreTime) -> Duration {
        let left = self.now().map_or(Duration::ZERO, |now| at.since(now.earliest));
        if left.is_zero() { UNCERTAIN_PAUSE } else { left }
    }

    fn instant(&self) -> Instant {
        self.client.host().instant()
    }

    fn now(&self) -> Result<Now> {
        self.client.known_now()
    }
}

/// Error of a broker whose lease or log another process has taken.
pub(super) fn superseded() -> Error {
    Error::new(Kind::Unavailable, "another process has become the broker of this queue; retry")
}
