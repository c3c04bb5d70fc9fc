//! The steps of brokers and workers.

use super::{
    Broker, BrokerLease, ClaimRule, ClaimsAction, ClaimsModel, ClaimsWorld, NOW, Phase, Response, TaskClaim,
    Worker,
};
use crate::model::lease::small::{claim, holder, lease, now, unused_write_id};
use leasehold_core::lease::Take;
use leasehold_core::{Holder, Lease};
use serde_json::Map;
use std::time::Duration;

impl ClaimsModel {
    pub(super) fn act(&self, world: &mut ClaimsWorld, action: ClaimsAction) -> Option<()> {
        match action {
            ClaimsAction::Tick => world.tick(),
            ClaimsAction::Take(me) => {
                let (taken, is_early) = self.taken(world)?;
                world.early -= u8::from(is_early);
                world.lease = Some(taken);
                world.brokers[me] = Broker { phase: Phase::Taken, held: Some(taken), ..Broker::default() };
            }
            ClaimsAction::RenewLease(me) => {
                self.renew_lease(world, me);
            }
            ClaimsAction::Release(me) => {
                if let Some(found) = world.lease_of(me) {
                    found.lease.expires = 0;
                }
                world.brokers[me] = Broker::default();
            }
            ClaimsAction::Crash(me) => world.brokers[me] = Broker::default(),
            ClaimsAction::Fence(me) => self.fence(world, me)?,
            ClaimsAction::Confirm(me) => {
                if self.renew_lease(world, me) {
                    world.brokers[me].claim = world.claim;
                    world.brokers[me].phase = Phase::Serving;
                }
            }
            ClaimsAction::Claim(me, worker) => self.claim(world, me, u8::try_from(worker).ok()?),
            ClaimsAction::Respond(me) => {
                world.response = world.brokers[me].response;
                if self.has(ClaimRule::NoByteWritten) {
                    world.brokers[me].response = None;
                } else {
                    world.brokers[me].is_written = true;
                }
            }
            ClaimsAction::Receive => self.receive(world)?,
            ClaimsAction::Renew(me, worker) => self.renew(world, me, worker)?,
            ClaimsAction::Close(me) | ClaimsAction::Expire(me) => {
                if world.commits(me) {
                    world.end_claim(me);
                }
            }
            ClaimsAction::Settle(me, worker) => Self::settle(world, me, worker)?,
            ClaimsAction::Die(worker) => world.workers[worker] = Worker { is_alive: false, claim: None },
        }
        Some(())
    }

    /// Returns the lease that a process would put now, and whether it needs an early takeover.
    pub(super) fn taken(&self, world: &ClaimsWorld) -> Option<(BrokerLease, bool)> {
        let take = |found: Option<BrokerLease>| {
            // No process takes over its own lease: after a crash it is another instance.
            let instance = found.map_or(1, |found| found.lease.instance + 1);
            let holder = Holder { ttl: Duration::from_secs(self.ttl.into()), ..holder(instance) };
            let found = found.map(|found| lease(found.lease));
            match Lease::take(found, &Map::new(), &holder, now(), unused_write_id()) {
                Take::Write(lease) => Some(claim(&lease)),
                Take::Held(_) => None,
            }
        };
        let found = world.lease;
        let expired = found.map(|mut found| {
            found.lease.expires = 1;
            found
        });
        let regular = take(found);
        let is_early = regular.is_none() && world.early > 0;
        let lease = if is_early { take(expired)? } else { regular? };
        if lease.epoch > self.epoch_max {
            return None;
        }
        let overwritten = found.map_or(0, |found| found.lease.expires);
        let carried = found.map_or(0, |found| found.trusted_until);
        let carried = if self.has(ClaimRule::CarryTrust) { carried } else { 0 };
        Some((BrokerLease { lease, trusted_until: overwritten.max(carried) }, is_early))
    }

    /// Renews the lease of a broker, or stops the broker if it lost the lease.
    fn renew_lease(&self, world: &mut ClaimsWorld, me: usize) -> bool {
        let ttl = Duration::from_secs(self.ttl.into());
        let renewed = world.lease_of(me).map(|found| {
            found.lease = claim(&lease(found.lease).renewed(ttl, now(), unused_write_id()));
            *found
        });
        match renewed {
            Some(held) => world.brokers[me].held = Some(held),
            None => world.brokers[me] = Broker::default(),
        }
        renewed.is_some()
    }

    /// Puts the fence, which extends claims: a later broker that replays it computes the same expiry.
    fn fence(&self, world: &mut ClaimsWorld, me: usize) -> Option<()> {
        let held = world.brokers[me].held?;
        if world.fenced > held.lease.epoch {
            world.brokers[me] = Broker::default();
            return Some(());
        }
        world.fenced = held.lease.epoch;
        world.brokers[me].phase = Phase::Fenced;
        let Some(claim) = &mut world.claim else { return Some(()) };
        let is_extended =
            claim.is_heard && self.has(ClaimRule::ExtendHeard) || !self.has(ClaimRule::OnlyHeard);
        if is_extended {
            claim.expires = claim.expires.max(NOW.max(held.trusted_until) + self.claim_ttl);
            if !world.workers[usize::from(claim.worker)].is_alive {
                world.extended_dead = (world.extended_dead + 1).min(2);
            }
        }
        claim.is_heard = false;
        Some(())
    }

    fn claim(&self, world: &mut ClaimsWorld, me: usize, worker: u8) {
        if !world.commits(me) {
            return;
        }
        world.attempt += 1;
        let (attempt, until) = (world.attempt, NOW + self.claim_ttl);
        world.claim = Some(TaskClaim { worker, attempt, expires: until, is_heard: true });
        world.extended_dead = 0;
        let broker = &mut world.brokers[me];
        broker.claim = world.claim;
        broker.response = Some(Response { worker, attempt, until });
        broker.is_written = false;
    }

    fn receive(&self, world: &mut ClaimsWorld) -> Option<()> {
        let Response { worker, attempt, until } = world.response.take()?;
        let until = if self.has(ClaimRule::AbsoluteTime) { until } else { NOW + self.claim_ttl };
        let worker = &mut world.workers[usize::from(worker)];
        if worker.is_alive && worker.claim.is_none() && until > NOW {
            worker.claim = Some((attempt, until));
        }
        Some(())
    }

    /// Answers a renewal from memory; the first one of a worker is logged.
    fn renew(&self, world: &mut ClaimsWorld, me: usize, worker: usize) -> Option<()> {
        let is_heard = world.brokers[me].claim?.is_heard;
        if !is_heard && self.has(ClaimRule::LogHeard) {
            if !world.commits(me) {
                return Some(());
            }
            world.claim.as_mut()?.is_heard = true;
        }
        let until = NOW + self.claim_ttl;
        let claim = world.brokers[me].claim.as_mut()?;
        claim.is_heard = true;
        claim.expires = claim.expires.max(until);
        world.workers[worker].claim = Some((claim.attempt, until));
        Some(())
    }

    /// Accepts the result of a worker.
    fn settle(world: &mut ClaimsWorld, me: usize, worker: usize) -> Option<()> {
        let (attempt, _) = world.workers[worker].claim?;
        if world.commits(me) {
            world.is_overruled |= world.claim.is_none_or(|claim| claim.attempt != attempt);
            world.is_completed = true;
            world.end_claim(me);
            world.workers[worker].claim = None;
        }
        Some(())
    }
}

impl ClaimsWorld {
    /// The lease in the store, if this broker holds it.
    fn lease_of(&mut self, me: usize) -> Option<&mut BrokerLease> {
        let held = self.brokers[me].held?;
        self.lease.as_mut().filter(|found| found.lease.epoch == held.lease.epoch && found.lease.expires != 0)
    }

    /// Returns true if the broker can commit. A newer fence stops it.
    fn commits(&mut self, me: usize) -> bool {
        let is_newest = self.brokers[me].held.is_some_and(|held| held.lease.epoch == self.fenced);
        if !is_newest {
            self.brokers[me] = Broker::default();
        }
        is_newest
    }

    fn end_claim(&mut self, me: usize) {
        self.claim = None;
        let broker = &mut self.brokers[me];
        (broker.claim, broker.response, broker.is_written) = (None, None, false);
    }
}
