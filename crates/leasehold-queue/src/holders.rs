//! Listing leases and their holders, for operators and tools.
//!
//! Requests: 1 list per thousand keys, and 1 get per lease. There are at most 64 leases on shards; leases on worker
//! ids are kept for a week.

use futures::{Stream, StreamExt, TryStreamExt, stream};
use leasehold_core::{Entry, IndexLocation, Kind, Lease, Now, Result, ShardRange, WorkerId, keys};
use std::collections::{BTreeMap, BTreeSet};

use crate::connect::ObjectQueue;
use crate::inspect::READS_AT_ONCE;

/// State of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LeaseState {
    /// Never taken, or released by its last holder.
    Free,
    /// Held, or possibly held.
    Held,
    /// Certainly expired: another process may take it.
    Expired,
    /// Corrupt. It counts as expired when it is older than any lease can last.
    Corrupt,
}

impl LeaseState {
    /// Name in output.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            LeaseState::Free => "free",
            LeaseState::Held => "held",
            LeaseState::Expired => "expired",
            LeaseState::Corrupt => "corrupt",
        }
    }
}

/// A lease as read, with its state.
#[derive(Debug, Clone, PartialEq)]
pub struct LeaseInfo {
    /// Its state.
    pub state: LeaseState,
    /// The lease; none if it was never taken, or is corrupt.
    pub lease: Option<Lease>,
}

impl LeaseInfo {
    /// A corrupt lease.
    pub(crate) const CORRUPT: Self = Self { state: LeaseState::Corrupt, lease: None };

    pub(crate) fn of(lease: Lease, now: Now) -> Self {
        let state = match () {
            () if lease.is_released() => LeaseState::Free,
            () if lease.is_free(now) => LeaseState::Expired,
            () => LeaseState::Held,
        };
        Self { state, lease: Some(lease) }
    }

    /// Its holder, also after it has expired.
    #[must_use]
    pub fn holder(&self) -> Option<&WorkerId> {
        let is_someones = matches!(self.state, LeaseState::Held | LeaseState::Expired);
        self.lease.as_ref().filter(|_| is_someones).map(|lease| &lease.worker_id)
    }
}

/// Purpose of the lease on a worker id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WorkerLeaseKind {
    /// The worker takes part in shard leasing; other workers count it by this lease.
    Shards,
    /// The worker has an inbox.
    Inbox,
}

impl WorkerLeaseKind {
    /// Name in output.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            WorkerLeaseKind::Shards => "shards",
            WorkerLeaseKind::Inbox => "inbox",
        }
    }

    fn parse(key: &str) -> Option<(WorkerId, Self)> {
        let shards = || Some((keys::parse_worker_lease(key)?, Self::Shards));
        keys::parse_inbox_lease(key).map(|worker| (worker, Self::Inbox)).or_else(shards)
    }
}

impl ObjectQueue {
    /// The leases on all groups of shards, in order.
    pub async fn shard_leases(&self) -> Result<Vec<(ShardRange, LeaseInfo)>> {
        let listed: BTreeSet<_> = self.keys(keys::SHARD_LEASES).try_collect().await?;
        let reads = self.shard_len().groups().into_iter().map(|group| {
            let key = keys::shard_lease(&group);
            let is_listed = listed.contains(&key);
            async move {
                let seen = if is_listed { self.read_lease_info(&key).await? } else { None };
                Ok((group, seen.unwrap_or(LeaseInfo { state: LeaseState::Free, lease: None })))
            }
        });
        stream::iter(reads).buffered(READS_AT_ONCE).try_collect().await
    }

    /// The leases on the ids of workers that lease shards or have an inbox, in order, as they are read.
    pub fn worker_leases(
        &self,
    ) -> impl Stream<Item = Result<(WorkerId, WorkerLeaseKind, LeaseInfo)>> + Send + '_ {
        let reads = self.keys(keys::WORKERS).map_ok(move |key| async move {
            let Some((worker, lease_kind)) = WorkerLeaseKind::parse(&key) else { return Ok(None) };
            let seen = self.read_lease_info(&key).await?;
            Ok(seen.map(|seen| (worker, lease_kind, seen)))
        });
        reads.try_buffered(READS_AT_ONCE).try_filter_map(|seen| async move { Ok(seen) })
    }

    /// Number of entries in each inbox, including those of crashed workers.
    pub async fn inbox_sizes(&self) -> Result<BTreeMap<WorkerId, u64>> {
        let (mut sizes, mut keys) = (BTreeMap::new(), std::pin::pin!(self.keys(keys::INBOXES)));
        while let Some(key) = keys.try_next().await? {
            if let Some(IndexLocation::Inbox(worker)) = Entry::parse(&key).map(|entry| entry.location) {
                *sizes.entry(worker).or_default() += 1;
            }
        }
        Ok(sizes)
    }

    pub(crate) async fn read_lease_info(&self, key: &str) -> Result<Option<LeaseInfo>> {
        let lease = match crate::read_lease(&self.client, key).await {
            Err(error) if error.kind() == Kind::Corrupt => return Ok(Some(LeaseInfo::CORRUPT)),
            lease => lease?,
        };
        let now = self.now()?;
        Ok(lease.map(|lease| LeaseInfo::of(lease, now)))
    }
}
