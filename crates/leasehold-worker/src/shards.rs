//! Shard leasing: workers divide the shards among themselves, and each looks only at its own.
//!
//! ```text
//!   join: take the name ──▶ each round: renew name and groups ─▶ who else is alive? ─▶ quota
//!                                                                                        │
//!                  above it: give back                       below it: take what is free ◀┤
//! ```
//!
//! * A worker is alive while the lease on its name is held. With *n* of them and *G* groups the quota is `G div n`, and
//!   one more for the first `G mod n` by name. All compute the same from the same list, so that nothing moves when
//!   nothing changes.
//! * A list shows keys, stamps and sizes: a lease that was stamped within the ttl and is not padded counts as held; only
//!   older ones are read. What was found held is left alone until it runs out, and what makes no sense until it is old
//!   enough to be replaced.
//! * Whoever is below its quota looks again soon, because others give back within a round; when that was in vain for two
//!   rounds, once a round. Free groups are tried in an order that chance decides.
//! * What is held is renewed in time, whatever else gets no answer: each answer is waited for during a part of a round, and
//!   the next renewal is waited for by nothing.
//! * A group is served only while its lease can be trusted. Tasks under way go on under their own claims.
//!
//! Requests a round: 1 put for the name, 1 put for each group held, 1 list of the names; 1 list of the groups for each look
//! while below the quota, and 1 get and 1 put for each group that is taken.

use futures::future::{Either, join_all, select};
use futures::{StreamExt, stream};
use leasehold_core::{Error, Holder, Kind, Name, Result, ShardRange, StoreTime, WorkerId, keys};
use leasehold_queue::lease::{HeldLease, Leases, Renewed, Taken, shards_subject, worker_subject};
use leasehold_queue::{Others, Queue};
use leasehold_store::host::{Host, Instant};
use leasehold_store::{Entry, HostExt, List, Purpose};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::options::ShardLeasing;
use crate::run::request_failed;
use crate::served::Served;
use crate::shutdown::{Shutdown, Stage};

/// Whoever is below its quota, or got no answer, looks again after this part of a round.
const SOON_PART: u32 = 4;
/// After so many looks that found nothing to take, two rounds of them, the next ones come once a round.
const LOOKS_IN_VAIN_MAX: u32 = 2 * SOON_PART;
/// A renewal is waited for during this part of a round: a slow store is better than none.
const RENEWAL_PART: u32 = 2;
/// Other answers are waited for during this part of a round.
const ANSWER_PART: u32 = 4;
/// So many leases of others are read at once.
const READS_AT_ONCE: usize = 16;

/// Leases shards for one worker until it is told to stop, and gives them back then.
pub(crate) async fn run(
    queue: Queue,
    id: WorkerId,
    options: ShardLeasing,
    served: Arc<Served>,
    shutdown: Shutdown,
) {
    let mut sharing = match Sharing::new(queue, id, options, served) {
        Ok(sharing) => sharing,
        Err(error) => return tracing::error!("no shards are leased: {error}"),
    };
    while shutdown.stage() == Stage::Go {
        if let Err(error) = sharing.round().await {
            request_failed(sharing.queue.client(), "lease shards", &error);
        }
        sharing.served.settle_in(sharing.has_share());
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
    served: Arc<Served>,
    groups: Vec<ShardRange>,
    name: Option<HeldLease>,
    held: BTreeMap<ShardRange, HeldLease>,
    /// Not held any more, and perhaps not given back yet.
    leaving: Vec<HeldLease>,
    /// Takes without an answer: these may be ours.
    in_doubt: BTreeSet<ShardRange>,
    others: Others,
    /// Someone else has our name until then.
    name_taken_until: Option<StoreTime>,
    quota: usize,
    /// The others were counted since the last renewal.
    is_counted: bool,
    /// The quota is our whole share, not only what we were told to take at first.
    is_whole: bool,
    counts: u64,
    looks_in_vain: u32,
    renewed_at: Option<Instant>,
}

impl Sharing {
    fn new(queue: Queue, id: WorkerId, options: ShardLeasing, served: Arc<Served>) -> Result<Self> {
        let instance = leasehold_core::HexName::from_random(queue.client().host().random_bits());
        let holder = Holder { worker_id: id, instance, ttl: options.ttl };
        Ok(Self {
            leases: Leases::new(queue.client().clone(), holder)?,
            groups: queue.shard_len().groups(),
            others: Others::new(options.ttl),
            queue,
            options,
            served,
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

    /// What is held goes before what is wanted: no answer is waited for when renewals are due again.
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
    /// What is under way may land: a take is noted as doubtful before it is sent, a lease that is given back as leaving.
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

    fn is_hungry(&self) -> bool {
        self.held.len() < self.quota
    }

    /// So many more would not be too many, whatever became of those in doubt.
    fn could_take(&self) -> usize {
        self.quota.saturating_sub(self.held.len() + self.in_doubt.len())
    }

    /// From when the last renewals were sent: a round may take long. A little early, because late is worse.
    fn until_renewal(&self) -> Duration {
        let since = |at| self.host().instant().since(at);
        let due = self.options.renew_every.mul_f64(0.9);
        self.renewed_at.map_or(Duration::ZERO, |at| due.saturating_sub(since(at)))
    }

    /// Until the next round: until renewal, or sooner if something is to be done.
    fn pause(&self) -> Duration {
        let (host, every) = (self.host(), self.options.renew_every);
        let renewal = self.until_renewal() + host.random_below(every / 10);
        let soon = (every / SOON_PART).mul_f64(0.9) + host.random_below(every / SOON_PART / 10);
        let is_quick = self.is_hungry() && self.looks_in_vain < LOOKS_IN_VAIN_MAX;
        match (self.name_taken_until, self.queue.now()) {
            // Whoever comes back under its old name waits until that has run out, and not for longer.
            (Some(until), Ok(now)) => renewal.min((until.since(now.earliest) + every / 50).max(soon)),
            _ if is_quick || self.is_unfinished() => renewal.min(soon),
            _ => renewal,
        }
    }

    /// Something got no answer, or others have not seen us yet.
    fn is_unfinished(&self) -> bool {
        !self.is_counted || !self.is_whole || !self.leaving.is_empty() || !self.in_doubt.is_empty()
    }

    /// Renews all that is held, at once. What was lost is not served any more from this moment on; what could not be
    /// renewed stays until its last confirmed expiry. No lease waits for another that gets no answer: what became of that
    /// renewal is seen by the next one, which adopts it.
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
            tracing::warn!("`{key}` was lost to someone else");
            self.looks_in_vain = 0;
        }
        self.held.retain(|_, held| !lost.contains(held.key()));
        self.name.take_if(|name| lost.contains(name.key()));
        self.serve();
    }

    /// Makes sure that the name is ours: others count us by it. Without it, false if someone else has it.
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
                tracing::warn!("worker id `{id}` is in use until {}", lease.expires_at);
                self.name_taken_until = Some(lease.expires_at);
                // Nobody counts us any more: what we kept would be missing from the shares of the others.
                self.set_quota(0);
                self.give_back().await;
                return Ok(false);
            }
            // Nobody else has it either: we keep our share, and take nothing until the name can be replaced.
            Err(error) if error.kind() == Kind::Corrupt => {
                tracing::warn!("{error}; it is replaced when it is old enough");
            }
            Err(error) => return Err(error),
        }
        Ok(true)
    }

    fn patience(&self) -> Duration {
        self.options.renew_every / ANSWER_PART
    }

    /// Who is alive, and what is our share.
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
        // Before others have seen us: not more than we were told to.
        let size = self.groups.first().map_or(1, ShardRange::count);
        let most = self.options.shards_per_worker.div_ceil(size).max(1);
        if most * alive.len() < self.groups.len() {
            let (told, needed) = (self.options.shards_per_worker, share * size);
            tracing::warn!("shards_per_worker {told} would leave shards unserved; about {needed} are needed");
        }
        self.is_whole = share <= most;
        Ok(share.min(most))
    }

    /// Whose name is held: ours, and those of others. Only old ones are read, and only once.
    async fn alive(&mut self, listed: Vec<Entry>) -> Result<BTreeSet<WorkerId>> {
        let now = self.queue.now()?;
        let own = self.leases.holder().worker_id.clone();
        let with_name = |listed: Entry| Some((keys::parse_worker_lease(&listed.key)?, listed));
        let names: Vec<_> =
            listed.into_iter().filter_map(with_name).filter(|(name, _)| *name != own).collect();
        let unknown = names.iter().filter(|(_, listed)| self.others.is_held(listed, now).is_none());
        let (client, host, patience) = (self.queue.client(), &self.host(), self.patience());
        let reads = unknown.map(|(_, listed)| async move {
            match answered(host, patience, leasehold_queue::read_lease(client, &listed.key)).await {
                Ok(lease) => Ok((listed, lease)),
                // What makes no sense names nobody: its shards are to be served.
                Err(error) if error.kind() == Kind::Corrupt => Ok((listed, None)),
                Err(error) => Err(error),
            }
        });
        let read: Vec<_> = stream::iter(reads.collect::<Vec<_>>()).buffered(READS_AT_ONCE).collect().await;
        for read in read {
            let (listed, lease) = read?;
            self.others.learn(&listed.key, Some(listed.modified), lease.as_ref());
        }
        let is_alive = |listed: &Entry| self.others.is_held(listed, now) == Some(true);
        let others = names.iter().filter(|(_, listed)| is_alive(listed)).map(|(name, _)| name.clone());
        Ok(others.chain([own]).collect())
    }

    /// Whether all is held that is ours to serve. Whoever has no name has no share yet.
    fn has_share(&self) -> bool {
        self.name.is_some() && self.is_whole && !self.is_hungry()
    }

    /// Gives back what is above the quota. It is not served any more before the others can see that. What got no answer
    /// is tried again soon, until it has run out by itself.
    async fn give_back(&mut self) {
        while self.held.len() > self.quota {
            self.leaving.extend(self.held.pop_last().map(|(_, held)| held));
        }
        self.serve();
        let (leases, host, patience) = (&self.leases, self.host(), self.patience());
        let releases = self.leaving.iter().map(|held| async {
            let released = answered(&host, patience, leases.release(held.clone())).await;
            if let Err(error) = &released {
                tracing::warn!("`{}` was not given back: {error}", held.key());
            }
            released.is_ok()
        });
        let mut is_released = join_all(releases).await.into_iter();
        let now = self.queue.now();
        let has_run_out = |held: &HeldLease| now.as_ref().is_ok_and(|now| held.lease().is_free(*now));
        self.leaving.retain(|held| !is_released.next().unwrap_or(true) && !has_run_out(held));
    }

    /// Takes what is free, up to the quota.
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

    /// What may be ours is taken, so that it does not lie idle until it runs out, and given back if it is too much.
    async fn settle_doubts(&mut self) -> Result<()> {
        // It is nearly always there.
        let seen = Some(self.queue.now()?.earliest);
        self.take_groups(self.in_doubt.iter().map(|group| (group.clone(), seen)).collect()).await?;
        self.give_back().await;
        Ok(())
    }

    /// Takes these, at once, each with the stamp that a list has shown. What is in doubt afterwards counts as taken until
    /// that is known, and keeps from nothing else.
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
                    tracing::warn!("{error}; it is replaced when it is old enough");
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

    /// Tells the poller what to serve, and until when.
    fn serve(&self) {
        let held = self.held.iter().map(|(group, held)| (group.clone(), held.lease().expires_at));
        self.served.lease(held.collect());
    }

    /// Gives everything back, so that the others notice within a round; also what may be ours, although no answer has said
    /// so. That is taken first: nothing that is under way for it can land then.
    async fn leave(&mut self) {
        self.quota = 0;
        self.give_back().await;
        let is_name_in_doubt =
            self.name.is_none() && self.name_taken_until.is_none() && self.renewed_at.is_some();
        if is_name_in_doubt && let Err(error) = self.has_place().await {
            tracing::warn!("the name may not be given back: {error}");
        }
        self.leaving.extend(self.name.take());
        if !self.in_doubt.is_empty()
            && let Err(error) = self.settle_doubts().await
        {
            tracing::warn!("some leases may not be given back: {error}");
        }
        for _ in 0..ANSWER_PART {
            self.give_back().await;
            if self.leaving.is_empty() {
                return;
            }
        }
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Entry>> {
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

/// Waits for an answer, but not for long: the other leases are to be renewed in time.
async fn answered<T>(
    host: &Arc<dyn Host>,
    patience: Duration,
    answer: impl Future<Output = Result<T>>,
) -> Result<T> {
    match select(Box::pin(answer), host.sleep(patience)).await {
        Either::Left((answer, _)) => answer,
        Either::Right(_) => Err(Error::new(Kind::Unavailable, "no answer yet")),
    }
}

/// How many groups a worker is to hold: all alike, and one more for the first ones if it does not come out even.
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
