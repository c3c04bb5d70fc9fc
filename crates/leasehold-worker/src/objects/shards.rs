//! Shard leasing: workers divide the shards among themselves, and each scans only its own.
//!
//! Each worker holds a lease on its worker id, by which the others count it, and leases on *groups* of neighbouring
//! shards. In each round it renews them, counts the live workers, computes its quota, and releases or takes groups
//! until it has its quota. Leases save requests, and correctness does not depend on them: a task is protected by its
//! own claim, so two workers that serve one shard for a while do no harm.
//!
//! ```text
//!   join: take the id ──▶ each round: renew id and groups ─▶ count live workers ─▶ quota
//!                                                                                    │
//!                  above it: release                      below it: take free groups ◀┤
//! ```
//!
//! * A worker is live while the lease on its id is held. [`ShardShare`] computes the quota from their number, and the
//!   pauses between rounds.
//! * A list shows keys, timestamps and sizes: a lease that was written within the ttl and is not padded (released)
//!   counts as held; only older ones are read. A held lease is not read again until it expires, and a corrupt one not
//!   until it is old enough to be replaced.
//! * Free groups are tried in random order.
//! * Held leases are renewed in time, whatever other requests are unanswered: each answer is waited for during a
//!   fraction of a round, and the next renewal waits for none.
//! * A group is served only while its lease can be trusted. Running tasks continue under their own claims.
//!
//! Requests per round: 1 put for the id, 1 put per held group, 1 list of the ids; 1 list of the groups per scan while
//! below the quota, and 1 get and 1 put per group that is taken.

use futures::TryStreamExt;
use futures::future::{join_all, select};
use leasehold_core::shard_share::ShardShare;
use leasehold_core::{Kind, Result, ShardRange, StoreTime, WorkerId, keys};
use leasehold_queue::lease::{HeldLease, Leases, Renewed, Taken, shards_subject, worker_subject};
use leasehold_queue::source::{Slots, SourceStatus};
use leasehold_queue::{ObjectQueue, PeerLeaseCache};
use leasehold_store::host::Host;
use leasehold_store::{HostExt, ListEntry, Purpose};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::shard_assignment::ShardAssignment;
use crate::options::ShardLeasing;

/// Fraction of a round for which a renewal is waited for. Longer than for other answers: a slow store
/// must not cost the leases.
const RENEWAL_PART: u32 = 2;
/// Fraction of a round for which other answers are waited for.
const ANSWER_PART: u32 = 4;

/// Shard leasing of one worker.
pub(super) struct ShardLeaser {
    queue: ObjectQueue,
    leases: Leases,
    options: ShardLeasing,
    assignment: Arc<ShardAssignment>,
    groups: Vec<ShardRange>,
    share: ShardShare,
    /// Lease on the worker id.
    id_lease: Option<HeldLease>,
    /// Leases on groups.
    held: BTreeMap<ShardRange, HeldLease>,
    /// Leases that are no longer served, and possibly not released yet.
    releasing: Vec<HeldLease>,
    /// Groups whose take has an unknown outcome: they may be held.
    in_doubt: BTreeSet<ShardRange>,
    /// Known leases of other workers.
    peers: PeerLeaseCache,
    /// Expiry of the lease of another process on this worker id.
    id_taken_until: Option<StoreTime>,
}

impl ShardLeaser {
    pub(super) fn new(
        queue: ObjectQueue,
        id: &WorkerId,
        options: ShardLeasing,
        assignment: Arc<ShardAssignment>,
    ) -> Result<Self> {
        let groups = queue.shard_len().groups();
        Ok(Self {
            leases: Leases::of_process(queue.client(), id, options.ttl)?,
            share: ShardShare::new(options.clone(), &groups),
            groups,
            peers: PeerLeaseCache::new(options.ttl),
            queue,
            options,
            assignment,
            id_lease: None,
            held: BTreeMap::new(),
            releasing: Vec::new(),
            in_doubt: BTreeSet::new(),
            id_taken_until: None,
        })
    }

    /// Leases shards until the slots are closed, and then releases them.
    pub(super) async fn run(mut self, slots: Slots) {
        while !slots.is_closed() {
            if let Err(error) = self.round().await {
                self.queue.client().request_failed("lease shards", &error);
            }
            self.update_assignment();
            let sleep = self.host().sleep(self.pause());
            select(sleep, Box::pin(slots.closed())).await;
        }
        self.release_all().await;
    }

    fn host(&self) -> Arc<dyn Host> {
        self.queue.client().host().clone()
    }

    /// One round. Renewals go first: no other answer is waited for when they are due again.
    async fn round(&mut self) -> Result<()> {
        if self.share.begin_renewal(self.local()) {
            self.renew().await;
        }
        let (host, left) = (self.host(), self.share.until_renewal(self.local()));
        host.in_time(left, self.rebalance()).await
    }

    /// Computes the quota if it may have changed, and releases or takes groups until it is reached.
    ///
    /// # Cancel safety
    ///
    /// A request in flight may still be applied: a take is recorded as in doubt before it is sent, a release as
    /// releasing.
    async fn rebalance(&mut self) -> Result<()> {
        self.release_surplus().await;
        if self.share.must_count() {
            if !self.take_worker_id().await? {
                return Ok(());
            }
            self.count_workers().await?;
            self.release_surplus().await;
        }
        let mut settled = Ok(());
        if self.id_lease.is_some() && !self.in_doubt.is_empty() {
            settled = self.resolve_in_doubt().await;
        }
        if self.id_lease.is_some() && self.remaining_quota() > 0 {
            self.take_free().await?;
        }
        settled
    }

    /// Number of groups that may still be taken, whatever the outcome of those in doubt.
    fn remaining_quota(&self) -> usize {
        self.share.quota().saturating_sub(self.held.len() + self.in_doubt.len())
    }

    fn local(&self) -> Duration {
        self.host().instant().since_boot()
    }

    /// Pause until the next round.
    fn pause(&self) -> Duration {
        let has_requests = !self.releasing.is_empty() || !self.in_doubt.is_empty();
        let now = self.queue.now().ok();
        let free_in = self.id_taken_until.zip(now).map(|(until, now)| until.since(now.earliest));
        let jitter = self.host().random_below(Duration::from_secs(1)).as_secs_f64();
        self.share.pause(self.local(), self.held.len(), has_requests, free_in, jitter)
    }

    /// Renews all held leases concurrently. A lost group is no longer served from now on; one that could not be
    /// renewed is served until its last confirmed expiry. No lease waits for another whose renewal gets no answer:
    /// the outcome of that is read by the next one, which adopts it.
    async fn renew(&mut self) {
        let (leases, host, timeout) = (&self.leases, self.host(), self.options.renew_every / RENEWAL_PART);
        let client = self.queue.client();
        let mut held: Vec<_> = self.held.values_mut().chain(&mut self.id_lease).collect();
        let renewals = held.iter_mut().map(|held| async {
            let key = held.key.clone();
            let renewed = host.in_time(timeout, leases.renew(held)).await;
            let is_lost = matches!(renewed, Ok(Renewed::Lost));
            if let Err(error) = renewed {
                client.request_failed("renew a shard lease", &error);
            }
            (key, is_lost)
        });
        let ended = join_all(renewals).await;
        let lost: BTreeSet<_> =
            ended.into_iter().filter(|(_, is_lost)| *is_lost).map(|(key, _)| key).collect();
        for key in &lost {
            tracing::warn!(%key, "lease was lost: taken by another worker, broken or deleted");
            self.share.moved();
        }
        self.held.retain(|_, held| !lost.contains(&held.key));
        self.id_lease.take_if(|lease| lost.contains(&lease.key));
        self.update_assignment();
    }

    /// Takes the lease on the worker id, by which other workers count this one; false if another process has it.
    async fn take_worker_id(&mut self) -> Result<bool> {
        if self.id_lease.is_some() {
            return Ok(true);
        }
        let id = self.leases.holder().worker_id.clone();
        let key = keys::worker_lease(&id);
        let subject = worker_subject(&id);
        let taken = self.leases.take(&key, &subject, None);
        self.id_taken_until = None;
        match self.host().in_time(self.answer_timeout(), taken).await {
            Ok(Taken::Ours(lease)) => self.id_lease = Some(lease),
            Ok(Taken::Others(lease)) => {
                tracing::warn!(worker = %id, until = %lease.expires_at, "worker id is in use by another process");
                self.id_taken_until = Some(lease.expires_at);
                // Other workers no longer count this one: groups that it kept would be missing from their shares.
                self.share.leave();
                self.release_surplus().await;
                return Ok(false);
            }
            // No other process has it either: keep the share, and take nothing until the lease can be replaced.
            Err(error) if error.kind() == Kind::Corrupt => {
                tracing::warn!(%error, "corrupt lease will be replaced when it is old enough");
            }
            Err(error) => return Err(error),
        }
        Ok(true)
    }

    /// Time limit of a request other than a renewal.
    fn answer_timeout(&self) -> Duration {
        self.options.renew_every / ANSWER_PART
    }

    /// Counts the live workers, and computes the quota of this one.
    async fn count_workers(&mut self) -> Result<()> {
        let listed = self.list(keys::WORKERS).await?;
        let (own, timeout) = (self.leases.holder().worker_id.clone(), self.answer_timeout());
        let name = |key: &str| keys::parse_worker_lease(key).filter(|name| *name != own);
        let others = self.peers.held(self.queue.client(), listed, name, timeout).await?;
        let alive = others.into_iter().chain([own.clone()]).collect();
        if let Some(share) = self.share.count(&alive, &own) {
            let configured = self.options.shards_per_worker;
            tracing::debug!(configured, share, "shards_per_worker limits the first shard leases");
        }
        Ok(())
    }

    /// Releases groups above the quota. A group is no longer served before other workers can see that it is free. A
    /// release without an answer is retried soon, until the lease has expired.
    async fn release_surplus(&mut self) {
        while self.held.len() > self.share.quota() {
            self.releasing.extend(self.held.pop_last().map(|(_, held)| held));
        }
        self.update_assignment();
        let (leases, host, timeout) = (&self.leases, self.host(), self.answer_timeout());
        let releases = self.releasing.iter().map(|held| async {
            let released = host.in_time(timeout, leases.release(held.clone())).await;
            if let Err(error) = &released {
                tracing::warn!(key = held.key, %error, "failed to release lease");
            }
            released.is_ok()
        });
        let mut is_released = join_all(releases).await.into_iter();
        let now = self.queue.now();
        let has_expired = |held: &HeldLease| now.as_ref().is_ok_and(|now| held.lease.is_free(*now));
        self.releasing.retain(|held| !is_released.next().unwrap_or(true) && !has_expired(held));
    }

    /// Takes free groups, up to the quota.
    async fn take_free(&mut self) -> Result<()> {
        let listed = self.list(keys::SHARD_LEASES).await?;
        let now = self.queue.now()?;
        let listed: BTreeMap<_, _> = listed.into_iter().map(|entry| (entry.key.clone(), entry)).collect();
        let mut wanted = Vec::new();
        let is_known = |group: &&ShardRange| self.held.contains_key(group) || self.in_doubt.contains(group);
        for group in self.groups.iter().filter(|group| !is_known(group)) {
            let found = listed.get(&keys::shard_lease(group));
            if found.is_none_or(|found| self.peers.is_held(found, now) != Some(true)) {
                wanted.push((group.clone(), found.map(|found| found.modified)));
            }
        }
        let host = self.host();
        wanted.sort_by_cached_key(|_| host.random());
        self.share.scanned();
        while self.remaining_quota() > 0 && !wanted.is_empty() {
            let rest = wanted.split_off(wanted.len().min(self.remaining_quota()));
            self.take_groups(wanted).await?;
            wanted = rest;
        }
        Ok(())
    }

    /// Takes the groups in doubt, so that they are not idle until they expire; releases them if they are too many.
    async fn resolve_in_doubt(&mut self) -> Result<()> {
        // The object nearly always exists.
        let modified = Some(self.queue.now()?.earliest);
        self.take_groups(self.in_doubt.iter().map(|group| (group.clone(), modified)).collect()).await?;
        self.release_surplus().await;
        Ok(())
    }

    /// Takes these groups concurrently, each with the timestamp that a list has shown. A take in doubt counts as
    /// taken until its outcome is known, and does not block the others.
    async fn take_groups(&mut self, groups: Vec<(ShardRange, Option<StoreTime>)>) -> Result<()> {
        self.in_doubt.extend(groups.iter().map(|(group, _)| group.clone()));
        let (leases, host, timeout) = (&self.leases, &self.host(), self.answer_timeout());
        let takes = groups.into_iter().map(|(group, stamp)| async move {
            let key = keys::shard_lease(&group);
            let taken = host.in_time(timeout, leases.take(&key, &shards_subject(&group), stamp)).await;
            (group, key, stamp, taken)
        });
        let mut failed = Ok(());
        for (group, key, stamp, taken) in join_all(takes).await {
            match taken {
                Ok(Taken::Ours(held)) => {
                    self.share.moved();
                    self.held.insert(group.clone(), held);
                }
                Ok(Taken::Others(lease)) => self.peers.insert(&key, stamp, Some(lease.expires_at)),
                Err(error) if error.kind() == Kind::Corrupt => {
                    tracing::warn!(%error, "corrupt lease will be replaced when it is old enough");
                    self.peers.insert(&key, stamp, None);
                }
                Err(error) => {
                    failed = Err(error);
                    continue;
                }
            }
            self.in_doubt.remove(&group);
        }
        self.update_assignment();
        failed
    }

    /// Updates the shards to serve, with the expiry of their leases.
    fn update_assignment(&self) {
        let held = self.held.iter().map(|(group, held)| (group.clone(), Some(held.lease.expires_at)));
        // A worker without its id has no share yet.
        let has_full_share = self.id_lease.is_some() && self.share.is_whole(self.held.len());
        self.assignment.lease(held.collect(), has_full_share);
    }

    /// Releases everything, so that the other workers notice within a round; also groups in doubt. Those are taken
    /// first, so that no request in flight for them can be applied afterwards.
    async fn release_all(&mut self) {
        self.share.leave();
        self.release_surplus().await;
        let is_id_in_doubt =
            self.id_lease.is_none() && self.id_taken_until.is_none() && self.share.has_begun();
        if is_id_in_doubt && let Err(error) = self.take_worker_id().await {
            tracing::warn!(%error, "failed to release worker id");
        }
        self.releasing.extend(self.id_lease.take());
        if !self.in_doubt.is_empty()
            && let Err(error) = self.resolve_in_doubt().await
        {
            tracing::warn!(%error, "failed to release some shard leases");
        }
        for _ in 0..ANSWER_PART {
            self.release_surplus().await;
            if self.releasing.is_empty() {
                return;
            }
        }
    }

    async fn list(&self, prefix: &str) -> Result<Vec<ListEntry>> {
        let listed = self.queue.objects_under(Purpose::Lease, prefix).try_collect();
        self.host().in_time(self.answer_timeout(), listed).await
    }
}
