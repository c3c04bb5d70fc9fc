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
//! * A worker is live while the lease on its id is held. With *n* of them and *G* groups the quota is `G div n`, and
//!   one more for the first `G mod n` by id. All compute the same from the same list, so that nothing moves when
//!   nothing changes.
//! * A list shows keys, timestamps and sizes: a lease that was written within the ttl and is not padded (released)
//!   counts as held; only older ones are read. A held lease is not read again until it expires, and a corrupt one not
//!   until it is old enough to be replaced.
//! * A worker below its quota scans again soon, because other workers release groups within a round; after two rounds
//!   without success, once a round. Free groups are tried in random order.
//! * Held leases are renewed in time, whatever other requests are unanswered: each answer is waited for during a
//!   fraction of a round, and the next renewal waits for none.
//! * A group is served only while its lease can be trusted. Running tasks continue under their own claims.
//!
//! Requests per round: 1 put for the id, 1 put per held group, 1 list of the ids; 1 list of the groups per scan while
//! below the quota, and 1 get and 1 put per group that is taken.

use futures::future::{Either, join_all, select};
use futures::{StreamExt, stream};
use leasehold_core::{Error, Holder, Kind, Name, Result, ShardRange, StoreTime, WorkerId, keys};
use leasehold_queue::lease::{HeldLease, Leases, Renewed, Taken, shards_subject, worker_subject};
use leasehold_queue::{PeerLeaseCache, Queue};
use leasehold_store::host::{Host, Instant};
use leasehold_store::{HostExt, List, ListEntry, Purpose};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::options::ShardLeasing;
use crate::run::request_failed;
use crate::shard_assignment::ShardAssignment;
use crate::shutdown::{Shutdown, Stage};

/// Fraction of a round after which a worker below its quota, or without an answer, tries again.
const SOON_PART: u32 = 4;
/// Number of scans without a group to take, two rounds of them, after which they are made once a round.
const LOOKS_IN_VAIN_MAX: u32 = 2 * SOON_PART;
/// Fraction of a round for which a renewal is waited for: a slow store is better than none.
const RENEWAL_PART: u32 = 2;
/// Fraction of a round for which other answers are waited for.
const ANSWER_PART: u32 = 4;
/// Number of leases of other workers that are read concurrently.
const READS_AT_ONCE: usize = 16;

/// Leases shards for one worker until shutdown, and then releases them.
pub(crate) async fn run(
    queue: Queue,
    id: WorkerId,
    options: ShardLeasing,
    assignment: Arc<ShardAssignment>,
    shutdown: Shutdown,
) {
    let mut sharing = match Sharing::new(queue, id, options, assignment) {
        Ok(sharing) => sharing,
        Err(error) => return tracing::error!(%error, "failed to start shard leasing"),
    };
    while shutdown.stage() == Stage::Go {
        if let Err(error) = sharing.round().await {
            request_failed(sharing.queue.client(), "lease shards", &error);
        }
        sharing.assignment.set_settled(sharing.has_share());
        sharing.serve();
        let asleep = sharing.host().sleep(sharing.pause());
        select(asleep, Box::pin(shutdown.reached(Stage::Drain))).await;
    }
    sharing.leave().await;
}

struct Sharing {
    queue: Queue,
    leases: Leases,
    options: ShardLeasing,
    assignment: Arc<ShardAssignment>,
    groups: Vec<ShardRange>,
    name: Option<HeldLease>,
    held: BTreeMap<ShardRange, HeldLease>,
    /// No longer held, but possibly not released yet.
    leaving: Vec<HeldLease>,
    /// Groups whose take has an unknown outcome: they may be held.
    in_doubt: BTreeSet<ShardRange>,
    others: PeerLeaseCache,
    /// Expiry of the lease of another process on this worker id.
    name_taken_until: Option<StoreTime>,
    quota: usize,
    /// True if the live workers were counted since the last renewal.
    is_counted: bool,
    /// True if the quota is the whole share, not only the initial `shards_per_worker`.
    is_whole: bool,
    counts: u64,
    looks_in_vain: u32,
    renewed_at: Option<Instant>,
}

impl Sharing {
    fn new(
        queue: Queue,
        id: WorkerId,
        options: ShardLeasing,
        assignment: Arc<ShardAssignment>,
    ) -> Result<Self> {
        let instance = leasehold_core::HexName::from_random(queue.client().host().random_bits());
        let holder = Holder { worker_id: id, instance, ttl: options.ttl };
        Ok(Self {
            leases: Leases::new(queue.client().clone(), holder)?,
            groups: queue.shard_len().groups(),
            others: PeerLeaseCache::new(options.ttl),
            queue,
            options,
            assignment,
            name: None,
            held: BTreeMap::new(),
            leaving: Vec::new(),
            in_doubt: BTreeSet::new(),
            name_taken_until: None,
            quota: 0,
            is_counted: false,
            is_whole: false,
            counts: 0,
            looks_in_vain: 0,
            renewed_at: None,
        })
    }

    fn host(&self) -> Arc<dyn Host> {
        self.queue.client().host().clone()
    }

    /// One round. Renewals go first: no other answer is waited for when they are due again.
    async fn round(&mut self) -> Result<()> {
        if self.until_renewal().is_zero() {
            self.renewed_at = Some(self.host().instant());
            self.is_counted = false;
            self.renew().await;
        }
        let (host, left) = (self.host(), self.until_renewal());
        answered(&host, left, self.share()).await
    }

    /// # Cancel safety
    ///
    /// A request in flight may still be applied: a take is recorded as in doubt before it is sent, a release as
    /// leaving.
    async fn share(&mut self) -> Result<()> {
        self.give_back().await;
        if !self.is_counted || !self.is_whole {
            if !self.has_place().await? {
                return Ok(());
            }
            let quota = self.count_in().await?;
            self.set_quota(quota);
            self.is_counted = true;
            self.give_back().await;
        }
        let mut settled = Ok(());
        if self.name.is_some() && !self.in_doubt.is_empty() {
            settled = self.settle_doubts().await;
        }
        if self.name.is_some() && self.could_take() > 0 {
            self.take().await?;
        }
        settled
    }

    fn set_quota(&mut self, quota: usize) {
        if quota != self.quota {
            self.looks_in_vain = 0;
        }
        self.quota = quota;
    }

    fn is_below_quota(&self) -> bool {
        self.held.len() < self.quota
    }

    /// Number of groups that may still be taken, whatever the outcome of those in doubt.
    fn could_take(&self) -> usize {
        self.quota.saturating_sub(self.held.len() + self.in_doubt.len())
    }

    /// Time until the next renewals, from when the last were sent: a round may take long. A little early, because
    /// late is worse.
    fn until_renewal(&self) -> Duration {
        let since = |at| self.host().instant().since(at);
        let due = self.options.renew_every.mul_f64(0.9);
        self.renewed_at.map_or(Duration::ZERO, |at| due.saturating_sub(since(at)))
    }

    /// Pause until the next round: until renewal, or shorter if something is to be done.
    fn pause(&self) -> Duration {
        let (host, every) = (self.host(), self.options.renew_every);
        let renewal = self.until_renewal() + host.random_below(every / 10);
        let soon = (every / SOON_PART).mul_f64(0.9) + host.random_below(every / SOON_PART / 10);
        let is_quick = self.is_below_quota() && self.looks_in_vain < LOOKS_IN_VAIN_MAX;
        match (self.name_taken_until, self.queue.now()) {
            // A worker that restarts under its old id waits until the old lease has expired, and no longer.
            (Some(until), Ok(now)) => renewal.min((until.since(now.earliest) + every / 50).max(soon)),
            _ if is_quick || self.is_unfinished() => renewal.min(soon),
            _ => renewal,
        }
    }

    /// True if a request got no answer, or other workers have not counted this one yet.
    fn is_unfinished(&self) -> bool {
        !self.is_counted || !self.is_whole || !self.leaving.is_empty() || !self.in_doubt.is_empty()
    }

    /// Renews all held leases concurrently. A lost group is no longer served from now on; one that could not be
    /// renewed is served until its last confirmed expiry. No lease waits for another whose renewal gets no answer:
    /// the outcome of that is read by the next one, which adopts it.
    async fn renew(&mut self) {
        let (leases, host, patience) = (&self.leases, self.host(), self.options.renew_every / RENEWAL_PART);
        let client = self.queue.client();
        let mut held: Vec<_> = self.held.values_mut().chain(&mut self.name).collect();
        let renewals = held.iter_mut().map(|held| async {
            let key = held.key().to_owned();
            let renewed = answered(&host, patience, leases.renew(held)).await;
            let is_lost = matches!(renewed, Ok(Renewed::Lost));
            if let Err(error) = renewed {
                request_failed(client, "renew a shard lease", &error);
            }
            (key, is_lost)
        });
        let ended = join_all(renewals).await;
        let lost: BTreeSet<_> =
            ended.into_iter().filter(|(_, is_lost)| *is_lost).map(|(key, _)| key).collect();
        for key in &lost {
            tracing::warn!(%key, "lease was lost to another worker");
            self.looks_in_vain = 0;
        }
        self.held.retain(|_, held| !lost.contains(held.key()));
        self.name.take_if(|name| lost.contains(name.key()));
        self.serve();
    }

    /// Takes the lease on the worker id, by which other workers count this one; false if another process has it.
    async fn has_place(&mut self) -> Result<bool> {
        if self.name.is_some() {
            return Ok(true);
        }
        let id = self.leases.holder().worker_id.clone();
        let key = keys::worker_lease(&id);
        let subject = worker_subject(&id);
        let taken = self.leases.take(&key, &subject, None);
        self.name_taken_until = None;
        match answered(&self.host(), self.patience(), taken).await {
            Ok(Taken::Ours(name)) => self.name = Some(name),
            Ok(Taken::Others(lease)) => {
                tracing::warn!(worker = %id, until = %lease.expires_at, "worker id is in use by another process");
                self.name_taken_until = Some(lease.expires_at);
                // Other workers no longer count this one: groups that it kept would be missing from their shares.
                self.set_quota(0);
                self.give_back().await;
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

    fn patience(&self) -> Duration {
        self.options.renew_every / ANSWER_PART
    }

    /// Counts the live workers, and returns the share of this one.
    async fn count_in(&mut self) -> Result<usize> {
        let listed = answered(&self.host(), self.patience(), self.list(keys::WORKERS)).await?;
        let now = self.queue.now()?;
        self.others.forget_old(now);
        let alive = self.alive(listed).await?;
        self.counts += 1;
        let share = quota(self.groups.len(), &alive, &self.leases.holder().worker_id);
        if self.counts > 1 {
            self.is_whole = true;
            return Ok(share);
        }
        // Before other workers have counted this one: at most `shards_per_worker`.
        let size = self.groups.first().map_or(1, ShardRange::count);
        let most = self.options.shards_per_worker.div_ceil(size).max(1);
        if most * alive.len() < self.groups.len() {
            let (configured, needed) = (self.options.shards_per_worker, share * size);
            tracing::warn!(configured, needed, "shards_per_worker is too small to serve all shards");
        }
        self.is_whole = share <= most;
        Ok(share.min(most))
    }

    /// The live workers, including this one. Only old leases are read, and only once.
    async fn alive(&mut self, listed: Vec<ListEntry>) -> Result<BTreeSet<WorkerId>> {
        let now = self.queue.now()?;
        let own = self.leases.holder().worker_id.clone();
        let with_name = |listed: ListEntry| Some((keys::parse_worker_lease(&listed.key)?, listed));
        let names: Vec<_> =
            listed.into_iter().filter_map(with_name).filter(|(name, _)| *name != own).collect();
        let unknown = names.iter().filter(|(_, listed)| self.others.is_held(listed, now).is_none());
        let (client, host, patience) = (self.queue.client(), &self.host(), self.patience());
        let reads = unknown.map(|(_, listed)| async move {
            match answered(host, patience, leasehold_queue::read_lease(client, &listed.key)).await {
                Ok(lease) => Ok((listed, lease)),
                // A corrupt lease belongs to no worker: its shards are to be served.
                Err(error) if error.kind() == Kind::Corrupt => Ok((listed, None)),
                Err(error) => Err(error),
            }
        });
        let read: Vec<_> = stream::iter(reads.collect::<Vec<_>>()).buffered(READS_AT_ONCE).collect().await;
        for read in read {
            let (listed, lease) = read?;
            self.others.learn(&listed.key, Some(listed.modified), lease.as_ref());
        }
        let is_alive = |listed: &ListEntry| self.others.is_held(listed, now) == Some(true);
        let others = names.iter().filter(|(_, listed)| is_alive(listed)).map(|(name, _)| name.clone());
        Ok(others.chain([own]).collect())
    }

    /// True if the whole share is held. A worker without its id has no share yet.
    fn has_share(&self) -> bool {
        self.name.is_some() && self.is_whole && !self.is_below_quota()
    }

    /// Releases groups above the quota. A group is no longer served before other workers can see that it is free. A
    /// release without an answer is retried soon, until the lease has expired.
    async fn give_back(&mut self) {
        while self.held.len() > self.quota {
            self.leaving.extend(self.held.pop_last().map(|(_, held)| held));
        }
        self.serve();
        let (leases, host, patience) = (&self.leases, self.host(), self.patience());
        let releases = self.leaving.iter().map(|held| async {
            let released = answered(&host, patience, leases.release(held.clone())).await;
            if let Err(error) = &released {
                tracing::warn!(key = held.key(), %error, "failed to release lease");
            }
            released.is_ok()
        });
        let mut is_released = join_all(releases).await.into_iter();
        let now = self.queue.now();
        let has_expired = |held: &HeldLease| now.as_ref().is_ok_and(|now| held.lease().is_free(*now));
        self.leaving.retain(|held| !is_released.next().unwrap_or(true) && !has_expired(held));
    }

    /// Takes free groups, up to the quota.
    async fn take(&mut self) -> Result<()> {
        let listed = answered(&self.host(), self.patience(), self.list(keys::SHARD_LEASES)).await?;
        let now = self.queue.now()?;
        let listed: BTreeMap<_, _> = listed.into_iter().map(|entry| (entry.key.clone(), entry)).collect();
        let mut wanted = Vec::new();
        let is_known = |group: &&ShardRange| self.held.contains_key(group) || self.in_doubt.contains(group);
        for group in self.groups.iter().filter(|group| !is_known(group)) {
            let seen = listed.get(&keys::shard_lease(group));
            if seen.is_none_or(|seen| self.others.is_held(seen, now) != Some(true)) {
                wanted.push((group.clone(), seen.map(|seen| seen.modified)));
            }
        }
        self.shuffle(&mut wanted);
        self.looks_in_vain = self.looks_in_vain.saturating_add(1);
        while self.could_take() > 0 && !wanted.is_empty() {
            let rest = wanted.split_off(wanted.len().min(self.could_take()));
            self.take_groups(wanted).await?;
            wanted = rest;
        }
        Ok(())
    }

    /// Takes the groups in doubt, so that they are not idle until they expire; releases them if they are too many.
    async fn settle_doubts(&mut self) -> Result<()> {
        // The object nearly always exists.
        let seen = Some(self.queue.now()?.earliest);
        self.take_groups(self.in_doubt.iter().map(|group| (group.clone(), seen)).collect()).await?;
        self.give_back().await;
        Ok(())
    }

    /// Takes these groups concurrently, each with the timestamp that a list has shown. A take in doubt counts as
    /// taken until its outcome is known, and does not block the others.
    async fn take_groups(&mut self, groups: Vec<(ShardRange, Option<StoreTime>)>) -> Result<()> {
        self.in_doubt.extend(groups.iter().map(|(group, _)| group.clone()));
        let (leases, host, patience) = (&self.leases, &self.host(), self.patience());
        let takes = groups.into_iter().map(|(group, stamp)| async move {
            let key = keys::shard_lease(&group);
            let taken = answered(host, patience, leases.take(&key, &shards_subject(&group), stamp)).await;
            (group, key, stamp, taken)
        });
        let mut failed = Ok(());
        for (group, key, stamp, taken) in join_all(takes).await {
            match taken {
                Ok(Taken::Ours(held)) => {
                    self.looks_in_vain = 0;
                    self.held.insert(group.clone(), held);
                }
                Ok(Taken::Others(lease)) => {
                    self.others.learn(&key, stamp, Some(&lease));
                }
                Err(error) if error.kind() == Kind::Corrupt => {
                    tracing::warn!(%error, "corrupt lease will be replaced when it is old enough");
                    self.others.leave_alone(&key, stamp);
                }
                Err(error) => {
                    failed = Err(error);
                    continue;
                }
            }
            self.in_doubt.remove(&group);
        }
        self.serve();
        failed
    }

    /// Updates the shards to serve, with the expiry of their leases.
    fn serve(&self) {
        let held = self.held.iter().map(|(group, held)| (group.clone(), held.lease().expires_at));
        self.assignment.lease(held.collect());
    }

    /// Releases everything, so that the other workers notice within a round; also groups in doubt. Those are taken
    /// first, so that no request in flight for them can be applied afterwards.
    async fn leave(&mut self) {
        self.quota = 0;
        self.give_back().await;
        let is_name_in_doubt =
            self.name.is_none() && self.name_taken_until.is_none() && self.renewed_at.is_some();
        if is_name_in_doubt && let Err(error) = self.has_place().await {
            tracing::warn!(%error, "failed to release worker id");
        }
        self.leaving.extend(self.name.take());
        if !self.in_doubt.is_empty()
            && let Err(error) = self.settle_doubts().await
        {
            tracing::warn!(%error, "failed to release some shard leases");
        }
        for _ in 0..ANSWER_PART {
            self.give_back().await;
            if self.leaving.is_empty() {
                return;
            }
        }
    }

    async fn list(&self, prefix: &str) -> Result<Vec<ListEntry>> {
        let (mut next, mut entries) = (Some(List::all(prefix)), Vec::new());
        while let Some(list) = next {
            let page = self.queue.client().list(Purpose::Lease, &list).await?;
            entries.extend(page.entries);
            next = page.next.map(|cursor| list.at(cursor));
        }
        Ok(entries)
    }

    fn shuffle<T>(&self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let other = self.queue.client().host().random() % (last as u64 + 1);
            items.swap(last, usize::try_from(other).unwrap_or(0));
        }
    }
}

/// Waits for an answer with a time limit, so that the other leases are renewed in time.
async fn answered<T>(
    host: &Arc<dyn Host>,
    patience: Duration,
    answer: impl Future<Output = Result<T>>,
) -> Result<T> {
    match select(Box::pin(answer), host.sleep(patience)).await {
        Either::Left((answer, _)) => answer,
        Either::Right(_) => Err(Error::new(Kind::Unavailable, "request timed out")),
    }
}

/// Number of groups that a worker is to hold: an equal share, and one more for the first workers if there is a
/// remainder.
fn quota(groups: usize, alive: &BTreeSet<Name>, own: &Name) -> usize {
    let place = alive.iter().position(|name| name == own).unwrap_or(0);
    groups / alive.len() + usize::from(place < groups % alive.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_even_and_leave_nothing() {
        for groups in [16, 64] {
            for count in 1..=70_usize {
                let names = (0..count).map(|n| Name::checked("worker id", &format!("w{n}")).unwrap());
                let alive: BTreeSet<_> = names.collect();
                let shares: Vec<_> = alive.iter().map(|own| quota(groups, &alive, own)).collect();
                assert_eq!(shares.iter().sum::<usize>(), groups);
                assert!(shares.iter().max().unwrap() - shares.iter().min().unwrap() <= 1);
            }
        }
    }
}
