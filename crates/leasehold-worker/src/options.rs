//! Configuration of a worker.

pub use leasehold_core::lease::{InboxLeaseOptions, RENEWALS_MIN, RENEWED_LEASE_TTL_MIN, ShardLeasing};
use leasehold_core::scan::Polling;
use leasehold_core::{Error, Result, Shard};
use std::time::Duration;

/// Options of a worker. The defaults suit most.
#[derive(Debug, Clone)]
pub struct WorkerOptions {
    /// Maximum number of concurrent tasks.
    pub concurrency: usize,
    /// Shards to serve; none means all.
    pub shards: Option<Vec<Shard>>,
    /// Shard leasing: divides the shards among the workers that use it; none means to serve all of `shards`.
    pub leasing: Option<ShardLeasing>,
    /// Inbox, into which producers put tasks for this worker alone; none means to share all tasks.
    pub inbox: Option<InboxLeaseOptions>,
    /// Lifetime of a claim without renewal. It is renewed after a third of it.
    pub lease: Duration,
    /// Intervals of polling.
    pub polling: Polling,
    /// Time for which handlers may continue after a shutdown was requested; then they are stopped and their tasks
    /// released.
    pub drain: Duration,
    /// Time within which an awaited handler ([`Worker::handle_awaited`](crate::Worker::handle_awaited)) must stop
    /// when asked to. After that its claim is left to expire, and another attempt follows.
    pub stop_wait: Duration,
    /// Interval at which the tasks of expired claims are recovered.
    pub recover_every: Duration,
    /// Interval of full scans: the index is scanned without a ring of the bell (the notification object), because a
    /// ring may be lost.
    pub full_scan_every: Duration,
    /// Interval at which the overflow, with the tasks of crashed workers, is scanned without a ring. The inboxes of crashed
    /// workers are searched twice as often.
    pub overflow_every: Duration,
    /// True to stop when nothing is left to do: no task is due, or due within a minute, and no task of these types is
    /// held by another worker, which might crash.
    pub until_empty: bool,
}

impl Default for WorkerOptions {
    fn default() -> Self {
        Self {
            concurrency: 8,
            shards: None,
            leasing: None,
            inbox: None,
            lease: Duration::from_mins(1),
            polling: Polling::default(),
            drain: Duration::from_secs(30),
            stop_wait: Duration::from_secs(10),
            recover_every: Duration::from_secs(5),
            full_scan_every: Duration::from_mins(1),
            overflow_every: Duration::from_mins(2),
            until_empty: false,
        }
    }
}

impl WorkerOptions {
    /// Validates the options.
    pub fn check(&self) -> Result<()> {
        if self.concurrency == 0 {
            return Err(Error::invalid("concurrency must be at least 1, got 0"));
        }
        if self.lease < CLAIM_LEASE_MIN {
            return Err(Error::invalid("lease must be at least 3 s, or it cannot be renewed in time"));
        }
        if self.shards.as_ref().is_some_and(Vec::is_empty) {
            return Err(Error::invalid("shards is empty; remove the setting to serve all shards"));
        }
        if self.shards.is_some() && self.leasing.is_some() {
            return Err(Error::invalid("shards cannot be set with shard leasing; remove one of them"));
        }
        if !(Duration::from_secs(1)..=OVERFLOW_EVERY_MAX).contains(&self.overflow_every) {
            return Err(Error::invalid(format!(
                "overflow_every must be 1 s to 1 day, got {:?}",
                self.overflow_every
            )));
        }
        self.leasing.as_ref().map_or(Ok(()), ShardLeasing::check)?;
        self.inbox.as_ref().map_or(Ok(()), InboxLeaseOptions::check)?;
        self.polling.check()
    }
}

/// Minimum lifetime of a claim. A shorter one cannot be renewed in time, because stores report their time in whole
/// seconds.
pub const CLAIM_LEASE_MIN: Duration = Duration::from_secs(3);

/// Maximum interval at which the overflow is scanned.
const OVERFLOW_EVERY_MAX: Duration = Duration::from_hours(24);
