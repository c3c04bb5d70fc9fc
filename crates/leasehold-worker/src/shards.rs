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
//!   older ones are read. What was found held is left alone until then.
//! * Whoever is below its quota looks again soon, because others give back within a round. Free groups are tried in an
//!   order that chance decides.
//! * A group is served only while its lease can be trusted. Tasks under way go on under their own claims.
//!
//! Requests a round: 1 put for the name, 1 put for each group held, 1 list of the names; 1 list of the groups while
//! below the quota, and 1 get and 1 put for each group that is taken.

use futures::future::{Either, select};
use leasehold_core::lease::RELEASED_BYTES;
use leasehold_core::{Error, Holder, Kind, Name, Now, Result, ShardRange, StoreTime, WorkerId, keys};
use leasehold_queue::Queue;
use leasehold_queue::lease::{HeldLease, LEASE_TTL_MAX, Leases, Renewed, Taken};
use leasehold_store::{Entry, HostExt, List, Purpose};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::options::ShardLeasing;
use crate::served::Served;
use crate::shutdown::{Shutdown, Stage};

/// Whoever is below its quota looks again after this part of a round.
const HUNGRY_PART: u32 = 4;
/// An answer is waited for during this part of a round: the other leases are to be renewed in time.
const PATIENCE_PART: u32 = 2;
/// Names that ran out so long ago are removed.
const NAME_KEPT: Duration = Duration::from_hours(7 * 24);
/// So many of them at most when a worker starts: it has better things to do.
const RETIRED_MAX: usize = 16;

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
        match sharing.round().await {
            Ok(()) => sharing.served.settle_in(sharing.has_share()),
            Err(error) => tracing::warn!("leasing shards failed: {error}"),
        }
        sharing.serve();
        let pause = sharing.pause();
        let asleep = sharing.queue.client().host().sleep(pause);
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
    /// Leases of others that were read, and until when they last.
    others: BTreeMap<String, (StoreTime, StoreTime)>,
    quota: usize,
    /// The quota is our whole share, not only what we were told to take at first.
    is_whole: bool,
    rounds: u64,
    renewed_at: Option<leasehold_store::host::Instant>,
}

impl Sharing {
    fn new(queue: Queue, id: WorkerId, options: ShardLeasing, served: Arc<Served>) -> Result<Self> {
        let instance = leasehold_core::HexName::from_random(queue.client().host().random_bits());
        let holder = Holder { worker_id: id, instance, ttl: options.ttl };
        Ok(Self {
            leases: Leases::new(queue.client().clone(), holder)?,
            groups: queue.shard_len().groups(),
            queue,
            options,
            served,
            name: None,
            held: BTreeMap::new(),
            others: BTreeMap::new(),
            quota: 0,
            is_whole: false,
            rounds: 0,
            renewed_at: None,
        })
    }

    async fn round(&mut self) -> Result<()> {
        if self.is_renewal_due() {
            self.renewed_at = Some(self.queue.client().host().instant());
            self.renew().await;
            if !self.has_name().await? {
                return Ok(());
            }
            self.rounds += 1;
            self.quota = self.count_in().await?;
            self.give_back().await;
        }
        if self.name.is_some() && self.held.len() < self.quota {
            self.take().await?;
        }
        Ok(())
    }

    fn is_renewal_due(&self) -> bool {
        let now = self.queue.client().host().instant();
        // A little early: a pause is never exact, and late is worse.
        self.renewed_at.is_none_or(|at| now.since(at) >= self.options.renew_every.mul_f64(0.85))
    }

    /// Until the next round: until renewal, or sooner if something is to be taken.
    fn pause(&self) -> Duration {
        let every = self.options.renew_every;
        let is_hungry = self.held.len() < self.quota;
        let host = self.queue.client().host();
        if is_hungry {
            return (every / HUNGRY_PART).mul_f64(0.9) + host.random_below(every / HUNGRY_PART / 10);
        }
        // From when the last renewals were sent: a round may have taken long.
        let since = self.renewed_at.map_or(Duration::ZERO, |at| host.instant().since(at));
        (every.mul_f64(0.9) + host.random_below(every / 10)).saturating_sub(since)
    }

    /// Renews all that is held, at once. What was lost is not served any more from this moment on; what could not be
    /// renewed stays until its last confirmed expiry. No lease waits for another that gets no answer: what became of that
    /// renewal is seen by the next one, which adopts it.
    async fn renew(&mut self) {
        let (leases, host) = (&self.leases, self.queue.client().host().clone());
        let patience = self.options.renew_every / PATIENCE_PART;
        let mut held: Vec<_> = self.held.values_mut().chain(&mut self.name).collect();
        let renewals = held.iter_mut().map(|held| async {
            let key = held.key().to_owned();
            let renewed = match select(Box::pin(leases.renew(held)), host.sleep(patience)).await {
                Either::Left((renewed, _)) => renewed,
                Either::Right(_) => Err(Error::new(Kind::Unavailable, "no answer yet")),
            };
            let is_lost = matches!(renewed, Ok(Renewed::Lost));
            if let Err(error) = renewed {
                tracing::warn!("`{key}` was not renewed: {error}");
            }
            (key, is_lost)
        });
        let ended = futures::future::join_all(renewals).await;
        let lost: BTreeSet<_> =
            ended.into_iter().filter(|(_, is_lost)| *is_lost).map(|(key, _)| key).collect();
        for key in &lost {
            tracing::warn!("`{key}` was lost to someone else");
        }
        self.held.retain(|_, held| !lost.contains(held.key()));
        self.name.take_if(|name| lost.contains(name.key()));
        self.serve();
    }

    /// Makes sure that the name is ours: others count us by it.
    async fn has_name(&mut self) -> Result<bool> {
        if self.name.is_some() {
            return Ok(true);
        }
        let id = self.leases.holder().worker_id.clone();
        let subject = subject([("worker", Value::from(id.as_str()))]);
        match self.leases.take(&keys::worker_lease(&id), &subject, None).await? {
            Taken::Ours(name) => self.name = Some(name),
            Taken::Others(lease) => {
                tracing::warn!("worker id `{id}` is in use until {}", lease.expires_at);
                // Nobody counts us any more: what we kept would be missing from the shares of the others.
                self.quota = 0;
                self.give_back().await;
            }
        }
        Ok(self.name.is_some())
    }

    /// Who is alive, and what is our share.
    async fn count_in(&mut self) -> Result<usize> {
        let now = self.queue.now()?;
        let mut alive = BTreeSet::from([self.leases.holder().worker_id.clone()]);
        let mut old = Vec::new();
        self.others.retain(|_, (stamp, _)| !now.is_past(stamp.plus(LEASE_TTL_MAX)));
        for listed in self.list(keys::WORKERS).await? {
            let Some(worker) = keys::parse_worker_lease(&listed.key) else { continue };
            if !alive.contains(&worker) && self.is_held(&listed, now).await? {
                alive.insert(worker);
            } else if self.rounds == 1
                && now.is_past(listed.modified.plus(NAME_KEPT))
                && old.len() < RETIRED_MAX
            {
                old.push(listed.key);
            }
        }
        self.retire(old).await;
        let share = quota(self.groups.len(), &alive, &self.leases.holder().worker_id);
        if self.rounds > 1 {
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

    /// Whether all is held that is ours to serve. Whoever has no name has no share yet.
    fn has_share(&self) -> bool {
        self.name.is_some() && self.is_whole && self.held.len() >= self.quota
    }

    /// Removes names, at once. Nothing depends on it: what stays is met by the next worker that starts.
    async fn retire(&self, keys: Vec<String>) {
        let retired = keys.iter().map(|key| self.leases.retire(key, NAME_KEPT));
        let retired = futures::future::join_all(retired);
        let patience = self.queue.client().host().sleep(self.options.renew_every / PATIENCE_PART);
        let Either::Left((retired, _)) = select(retired, patience).await else { return };
        for error in retired.into_iter().filter_map(Result::err) {
            tracing::debug!("an old name was not removed: {error}");
        }
    }

    /// Whether a listed lease is held. Only old ones are read, and only once; none lasts for longer than the longest ttl.
    async fn is_held(&mut self, listed: &Entry, now: Now) -> Result<bool> {
        if listed.size >= RELEASED_BYTES || now.is_past(listed.modified.plus(LEASE_TTL_MAX)) {
            return Ok(false);
        }
        if !now.is_past(listed.modified.plus(self.options.ttl)) {
            return Ok(true);
        }
        if let Some((stamp, until)) = self.others.get(&listed.key)
            && *stamp == listed.modified
        {
            return Ok(!now.is_past(*until));
        }
        let until = match leasehold_queue::read_lease(self.queue.client(), &listed.key).await {
            Ok(lease) => lease.map_or(StoreTime::from_millis(0), |lease| lease.expires_at),
            // What makes no sense counts as run out when it is old enough; whoever takes it judges that.
            Err(error) if error.kind() == Kind::Corrupt => StoreTime::from_millis(0),
            Err(error) => return Err(error),
        };
        self.others.insert(listed.key.clone(), (listed.modified, until));
        Ok(!now.is_past(until))
    }

    /// Gives back what is above the quota. It is not served any more before the others can see that.
    async fn give_back(&mut self) {
        while self.held.len() > self.quota {
            let Some((group, held)) = self.held.pop_last() else { return };
            self.serve();
            match self.leases.release(held).await {
                Ok(()) => tracing::debug!("shards {group} were given back"),
                // It runs out by itself.
                Err(error) => tracing::warn!("shards {group} were not given back: {error}"),
            }
        }
    }

    /// Takes what is free, up to the quota.
    async fn take(&mut self) -> Result<()> {
        let now = self.queue.now()?;
        let listed = self.list(keys::SHARD_LEASES).await?;
        let listed: BTreeMap<_, _> = listed.into_iter().map(|entry| (entry.key.clone(), entry)).collect();
        let mut groups: Vec<_> =
            self.groups.iter().filter(|group| !self.held.contains_key(group)).cloned().collect();
        self.shuffle(&mut groups);
        for group in groups {
            // What is held goes before what is wanted.
            if self.held.len() >= self.quota || self.is_renewal_due() {
                break;
            }
            let key = keys::shard_lease(&group);
            let seen = listed.get(&key);
            if let Some(seen) = seen
                && self.is_held(seen, now).await?
            {
                continue;
            }
            self.take_group(group, &key, seen.map(|seen| seen.modified)).await?;
        }
        self.serve();
        Ok(())
    }

    async fn take_group(&mut self, group: ShardRange, key: &str, seen: Option<StoreTime>) -> Result<()> {
        let (first, last) = (group.first.as_str(), group.last.as_str());
        let mut subject = subject([("shard", first.into())]);
        if first != last {
            subject.insert("last".to_owned(), last.into());
        }
        match self.leases.take(key, &subject, seen).await {
            Ok(Taken::Ours(held)) => {
                self.held.insert(group, held);
            }
            Ok(Taken::Others(_)) => {}
            Err(error) if error.kind() == Kind::Corrupt => {
                tracing::warn!("{error}; it is replaced when it is old enough");
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Tells the poller what to serve, and until when.
    fn serve(&self) {
        let held = self.held.iter().map(|(group, held)| (group.clone(), held.lease().expires_at));
        self.served.lease(held.collect());
    }

    /// Gives everything back, so that the others notice within a round.
    async fn leave(&mut self) {
        self.quota = 0;
        let held: Vec<_> = std::mem::take(&mut self.held).into_values().chain(self.name.take()).collect();
        self.serve();
        let leases = &self.leases;
        let released = futures::future::join_all(held.into_iter().map(|held| leases.release(held))).await;
        for error in released.into_iter().filter_map(Result::err) {
            tracing::warn!("a lease was not given back and runs out by itself: {error}");
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

/// How many groups a worker is to hold: all alike, and one more for the first ones if it does not come out even.
fn quota(groups: usize, alive: &BTreeSet<Name>, own: &Name) -> usize {
    let place = alive.iter().position(|name| name == own).unwrap_or(0);
    groups / alive.len() + usize::from(place < groups % alive.len())
}

fn subject<const N: usize>(fields: [(&str, Value); N]) -> Map<String, Value> {
    fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
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
