//! Calls in progress: of the log's writer, of the lease, and the timer.

use futures::FutureExt;
use futures::future::BoxFuture;
use leasehold_core::journal::LogPosition;
use leasehold_core::limits::JOURNAL_LEASE_RENEW_INTERVAL;
use leasehold_core::{Kind, Now, Result};
use leasehold_store::host::{Host, Instant};
use leasehold_store::mutant::breaks;
use leasehold_store::{CommitOutcome, LogThread, LogWriter};
use std::task::{Context, Poll};
use std::time::Duration;

use super::{Broker, superseded};
use crate::journal::lease::BrokerLease;
use crate::journal::open::judge;
use crate::lease::Renewed;

/// Pause after a failed renewal of the lease.
const RENEWAL_RETRY: Duration = Duration::from_secs(1);

/// Longest call of the writer after which the next one may still block the broker's thread. On slower disks, such as hard
/// disks, every call runs on another thread.
const BROKER_BLOCKED_MAX: Duration = Duration::from_millis(5);

/// Result of a call of the writer.
pub(super) enum WriterDone {
    Commit(Result<CommitOutcome>),
    Check(Result<bool>),
}

/// The writer, which makes one call at a time (rules B6 and F7).
pub(super) enum WriterSlot {
    Idle(LogWriter),
    Busy {
        call: BoxFuture<'static, (LogWriter, WriterDone)>,
        is_commit: bool,
    },
    /// Only while a call is being started.
    Empty,
}

impl WriterSlot {
    pub(super) fn new(writer: LogWriter) -> Self {
        Self::Idle(writer)
    }

    pub(super) fn is_idle(&self) -> bool {
        matches!(self, Self::Idle(_))
    }

    pub(super) fn is_committing(&self) -> bool {
        matches!(self, Self::Busy { is_commit: true, .. })
    }

    /// Position after the last confirmed commit; none while a call is in progress.
    pub(super) fn position(&self) -> Option<LogPosition> {
        if let Self::Idle(writer) = self { Some(writer.position()) } else { None }
    }

    /// Starts to write a commit. The writer is idle.
    pub(super) fn commit(&mut self, lines: Vec<u8>, records: u32, on: LogThread) {
        self.start(true, move |mut writer| {
            writer.set_thread(on);
            async move {
                let outcome = writer.commit(lines.into(), records).await;
                (writer, WriterDone::Commit(outcome))
            }
            .boxed()
        });
    }

    /// Starts to check that this process is the only writer. The writer is idle.
    pub(super) fn check(&mut self, on: LogThread) {
        self.start(false, move |mut writer| {
            writer.set_thread(on);
            async move {
                let is_current = writer.is_current().await;
                (writer, WriterDone::Check(is_current))
            }
            .boxed()
        });
    }

    fn start(
        &mut self,
        is_commit: bool,
        call: impl FnOnce(LogWriter) -> BoxFuture<'static, (LogWriter, WriterDone)>,
    ) {
        *self = match std::mem::replace(self, Self::Empty) {
            Self::Idle(writer) => Self::Busy { call: call(writer), is_commit },
            busy => busy,
        };
    }

    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<WriterDone> {
        let Self::Busy { call, .. } = self else { return Poll::Pending };
        let Poll::Ready((writer, done)) = call.poll_unpin(context) else { return Poll::Pending };
        *self = Self::Idle(writer);
        Poll::Ready(done)
    }
}

/// Choice of the thread for the calls of the writer.
///
/// On a fast disk, waking another thread and being woken by it takes about as long as a sync. So a lone request is written on
/// the broker's thread. With many requests, the broker decides the next ones while another thread writes.
pub(super) struct ThreadChoice {
    began_at: Instant,
    /// True if the last call has taken long: then calls run on another thread, so that they do not delay renewals of the lease.
    is_slow: bool,
}

impl ThreadChoice {
    pub(super) fn new(now: Instant) -> Self {
        Self { began_at: now, is_slow: false }
    }

    /// Thread for a call that begins now; `is_alone` if nothing else is to be done.
    pub(super) fn choose(&mut self, is_alone: bool, now: Instant) -> LogThread {
        self.began_at = now;
        if is_alone && !self.is_slow { LogThread::Caller } else { LogThread::Blocking }
    }

    /// Notes the end of the call.
    pub(super) fn ended(&mut self, now: Instant) {
        self.is_slow = now.since(self.began_at) > BROKER_BLOCKED_MAX;
    }
}

impl Broker {
    /// True if a commit is confirmed, false if a check is. Any other outcome ends the broker.
    pub(super) async fn confirmed(&mut self, done: WriterDone) -> Result<bool> {
        let mismatch = match done {
            WriterDone::Commit(Ok(CommitOutcome::Committed(_))) => return Ok(true),
            WriterDone::Commit(Ok(CommitOutcome::Superseded)) if breaks("superseded-broker-answers") => {
                return Ok(true);
            }
            WriterDone::Check(Ok(true)) => return Ok(false),
            WriterDone::Commit(Ok(CommitOutcome::Superseded)) | WriterDone::Check(Ok(false)) => {
                return Err(superseded());
            }
            WriterDone::Commit(Ok(CommitOutcome::Mismatch(error))) => error,
            WriterDone::Check(Err(error)) if error.kind() == Kind::Corrupt => error,
            WriterDone::Commit(Err(error)) | WriterDone::Check(Err(error)) => return Err(error),
        };
        Err(judge(&self.lease.lease, mismatch).await)
    }
}

/// The lease, and its renewal in progress.
pub(super) struct LeaseSlot {
    /// As last confirmed.
    lease: BrokerLease,
    renewal: Option<BoxFuture<'static, (BrokerLease, Result<Renewed>)>>,
    renew_at: Instant,
    /// Snapshot that the lease is to name.
    snapshot: Option<LogPosition>,
    /// Kind of records that the lease is to require.
    required: Option<&'static str>,
    is_lost: bool,
}

impl LeaseSlot {
    pub(super) fn new(lease: BrokerLease, now: Instant) -> Self {
        let renew_at = later(now, JOURNAL_LEASE_RENEW_INTERVAL);
        Self { lease, renewal: None, renew_at, snapshot: None, required: None, is_lost: false }
    }

    /// True if this process certainly holds the lease (rule C1).
    pub(super) fn is_trusted(&self, now: Now) -> bool {
        !self.is_lost && self.lease.is_trusted(now)
    }

    pub(super) fn renewal_due_in(&self, now: Instant) -> Option<Duration> {
        self.renewal.is_none().then(|| self.renew_at.since(now))
    }

    pub(super) fn renew_if_due(&mut self, now: Instant) {
        if self.renewal_due_in(now).is_some_and(|left| left.is_zero()) {
            let (mut lease, snapshot) = (self.lease.clone(), self.snapshot);
            let required = self.required.filter(|kind| !self.requires(kind));
            let renewal = async move {
                let renewed = match (snapshot, required) {
                    (None, None) => lease.renew().await,
                    (snapshot, required) => lease.renew_with(snapshot, required).await,
                };
                (lease, renewed)
            };
            self.renewal = Some(renewal.boxed());
        }
    }

    /// Renews the lease at once, with a snapshot that was written.
    pub(super) fn name_snapshot(&mut self, position: LogPosition) {
        self.snapshot = Some(position);
        self.renew_at.boot_ns = 0;
    }

    /// The lease, as last confirmed.
    pub(super) fn lease(&self) -> &BrokerLease {
        &self.lease
    }

    /// True if the confirmed lease requires that brokers understand a kind of records.
    pub(super) fn requires(&self, kind: &str) -> bool {
        self.lease.fields().requires.contains(kind)
    }

    /// Requires that brokers understand a kind of records: the lease is renewed at once.
    pub(super) fn require(&mut self, kind: &'static str) {
        if self.required != Some(kind) {
            self.required = Some(kind);
            self.renew_at.boot_ns = 0;
        }
    }

    /// Snapshot that the lease names, as last confirmed.
    pub(super) fn snapshot(&self) -> LogPosition {
        self.lease.fields().snapshot
    }

    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Renewed>> {
        let Some(renewal) = &mut self.renewal else { return Poll::Pending };
        let Poll::Ready((lease, renewed)) = renewal.poll_unpin(context) else { return Poll::Pending };
        (self.lease, self.renewal) = (lease, None);
        Poll::Ready(renewed)
    }

    /// Handles the end of a renewal. A lost lease ends the broker.
    pub(super) fn renewed(&mut self, renewed: Result<Renewed>, now: Instant) -> Result<()> {
        let pause = match renewed {
            Ok(Renewed::Kept) => {
                let named = self.snapshot();
                self.snapshot.take_if(|snapshot| *snapshot == named);
                // One that was written while the lease was being renewed is named at once.
                let is_behind =
                    self.snapshot.is_some() || self.required.is_some_and(|kind| !self.requires(kind));
                if is_behind { Duration::ZERO } else { JOURNAL_LEASE_RENEW_INTERVAL }
            }
            Ok(Renewed::Lost) => {
                self.is_lost = true;
                return Err(superseded());
            }
            Err(error) => {
                tracing::warn!(%error, "failed to renew the lease on the journal, retrying");
                RENEWAL_RETRY
            }
        };
        self.renew_at = later(now, pause);
        Ok(())
    }

    /// Releases the lease, unless it was lost.
    pub(super) async fn release(self) -> Result<()> {
        let lease = match self.renewal {
            Some(renewal) => renewal.await.0,
            None => self.lease,
        };
        if self.is_lost { Ok(()) } else { lease.release().await }
    }
}

/// A timer that is replaced only by an earlier one: one that is too early does no harm.
#[derive(Default)]
pub(super) struct BrokerTimer {
    set: Option<(Instant, BoxFuture<'static, ()>)>,
}

impl BrokerTimer {
    pub(super) fn set(&mut self, deadline: Option<Instant>, host: &dyn Host) {
        let Some(deadline) = deadline else { return };
        if self.set.as_ref().is_none_or(|(set, _)| deadline.boot_ns < set.boot_ns) {
            self.set = Some((deadline, host.sleep(deadline.since(host.instant()))));
        }
    }

    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Some((_, sleep)) = &mut self.set else { return Poll::Pending };
        let woken = sleep.poll_unpin(context);
        if woken.is_ready() {
            self.set = None;
        }
        woken
    }
}

fn later(now: Instant, duration: Duration) -> Instant {
    let nanos = i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX);
    Instant { boot_ns: now.boot_ns.saturating_add(nanos), ..now }
}
