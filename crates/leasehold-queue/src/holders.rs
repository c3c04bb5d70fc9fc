//! Who holds what: leases, as people and tools look at them.
//!
//! Requests: 1 list for each thousand keys, and 1 get for each lease. There are at most 64 on shards; names of workers
//! stay for a week.

use futures::{Stream, StreamExt, TryStreamExt, stream};
use leasehold_core::{Entry, Kind, Lease, Result, ShardRange, Where, WorkerId, keys};
use leasehold_store::{List, Purpose};
use std::collections::{BTreeMap, BTreeSet};

use crate::connect::Queue;
use crate::inspect::READS_AT_ONCE;

/// Whether a lease is in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LeaseState {
    /// Nobody has taken it yet, or the last holder gave it back.
    Free,
    /// In force, as far as one can know.
    Held,
    /// Its holder has let it run out, beyond doubt: whoever wants it takes it.
    Expired,
    /// It makes no sense. It counts as run out when it is older than any lease can last.
    Corrupt,
}

impl LeaseState {
    /// The word for it.
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

/// A lease that was looked at.
#[derive(Debug, Clone, PartialEq)]
pub struct SeenLease {
    /// Whether it is in force.
    pub state: LeaseState,
    /// What stands there; nothing if nobody has ever taken it, or if it makes no sense.
    pub lease: Option<Lease>,
}

impl SeenLease {
    /// Who holds it, or has let it run out.
    #[must_use]
    pub fn holder(&self) -> Option<&WorkerId> {
        let is_someones = matches!(self.state, LeaseState::Held | LeaseState::Expired);
        self.lease.as_ref().filter(|_| is_someones).map(|lease| &lease.worker_id)
    }
}

/// What a worker has its name for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NameFor {
    /// It divides the shards with others, who count it by its name.
    Shards,
    /// It has an inbox.
    Inbox,
}

impl NameFor {
    /// The word for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            NameFor::Shards => "shards",
            NameFor::Inbox => "inbox",
        }
    }

    fn parse(key: &str) -> Option<(WorkerId, Self)> {
        let shards = || Some((keys::parse_worker_lease(key)?, Self::Shards));
        keys::parse_inbox_lease(key).map(|worker| (worker, Self::Inbox)).or_else(shards)
    }
}

impl Queue {
    /// Who holds which shards: all groups in which they are leased, in order.
    pub async fn shard_leases(&self) -> Result<Vec<(ShardRange, SeenLease)>> {
        let listed: BTreeSet<_> = self.lease_keys(keys::SHARD_LEASES).try_collect().await?;
        let reads = self.shard_len().groups().into_iter().map(|group| {
            let key = keys::shard_lease(&group);
            let is_listed = listed.contains(&key);
            async move {
                let seen = if is_listed { self.see_lease(&key).await? } else { None };
                Ok((group, seen.unwrap_or(SeenLease { state: LeaseState::Free, lease: None })))
            }
        });
        stream::iter(reads).buffered(READS_AT_ONCE).try_collect().await
    }

    /// The names of workers that divide the shards among themselves, or have an inbox, in order, as they are read.
    pub fn worker_leases(&self) -> impl Stream<Item = Result<(WorkerId, NameFor, SeenLease)>> + Send + '_ {
        let names = self.lease_keys(keys::WORKERS).try_filter_map(|key| async move {
            let name = NameFor::parse(&key);
            Ok(name.map(|name| (name, key)))
        });
        let reads = names.map_ok(move |((worker, name_for), key)| async move {
            let seen = self.see_lease(&key).await?;
            Ok(seen.map(|seen| (worker, name_for, seen)))
        });
        reads.try_buffered(READS_AT_ONCE).try_filter_map(|seen| async move { Ok(seen) })
    }

    /// How many pointers are in the inboxes, also in those of workers that are gone.
    pub async fn inbox_sizes(&self) -> Result<BTreeMap<WorkerId, u64>> {
        let (mut sizes, mut keys) = (BTreeMap::new(), std::pin::pin!(self.lease_keys(keys::INBOXES)));
        while let Some(key) = keys.try_next().await? {
            if let Some(Where::Inbox(worker)) = Entry::parse(&key).map(|entry| entry.place) {
                *sizes.entry(worker).or_default() += 1;
            }
        }
        Ok(sizes)
    }

    async fn see_lease(&self, key: &str) -> Result<Option<SeenLease>> {
        let lease = match crate::read_lease(&self.client, key).await {
            Ok(lease) => lease,
            Err(error) if error.kind() == Kind::Corrupt => {
                return Ok(Some(SeenLease { state: LeaseState::Corrupt, lease: None }));
            }
            Err(error) => return Err(error),
        };
        let now = self.now()?;
        Ok(lease.map(|lease| {
            let state = match () {
                () if lease.is_released() => LeaseState::Free,
                () if lease.is_free(now) => LeaseState::Expired,
                () => LeaseState::Held,
            };
            SeenLease { state, lease: Some(lease) }
        }))
    }

    fn lease_keys(&self, prefix: &'static str) -> impl Stream<Item = Result<String>> + Send + '_ {
        let pages = stream::try_unfold(Some(List::all(prefix)), move |list| async move {
            let Some(list) = list else { return Ok::<_, leasehold_core::Error>(None) };
            let page = self.client.list(Purpose::Admin, &list).await?;
            let keys: Vec<_> = page.entries.into_iter().map(|entry| Ok(entry.key)).collect();
            Ok(Some((stream::iter(keys), page.next.map(|cursor| list.at(cursor)))))
        });
        pages.try_flatten()
    }
}
