//! The steps of a counterexample in words.

use super::{ClaimRule, ClaimsAction, ClaimsModel, ClaimsWorld, NOW, Phase};
use crate::model::DescribeAction;

impl DescribeAction for ClaimsModel {
    fn describe(&self, world: &ClaimsWorld, action: &ClaimsAction) -> String {
        match action {
            ClaimsAction::Tick => "time passes".into(),
            ClaimsAction::Take(me) => self.describe_take(world, *me),
            ClaimsAction::RenewLease(me) => format!("{} renews its lease{}", name(*me), refused(world, *me)),
            ClaimsAction::Release(me) => format!("{} releases its lease", name(*me)),
            ClaimsAction::Crash(me) => format!("{} crashes", name(*me)),
            ClaimsAction::Fence(me) => {
                format!("{} puts a fence{}", name(*me), self.describe_fence(world, *me))
            }
            ClaimsAction::Confirm(me) => format!("{} confirms its lease{}", name(*me), refused(world, *me)),
            ClaimsAction::Claim(me, worker) => {
                let attempt = world.attempt + 1;
                format!("{} commits attempt {attempt} for worker {}", name(*me), worker + 1)
            }
            ClaimsAction::Respond(me) => format!("{} writes the response to the claim", name(*me)),
            ClaimsAction::Close(me) => {
                format!("{} finds the worker's connection closed and releases the claim", name(*me))
            }
            ClaimsAction::Receive => match world.response {
                Some(response) => {
                    format!("worker {} receives attempt {}", response.worker + 1, response.attempt)
                }
                None => "continues".into(),
            },
            ClaimsAction::Renew(me, worker) => self.describe_renewal(world, *me, *worker),
            ClaimsAction::Expire(me) => format!("{} ends the expired claim", name(*me)),
            ClaimsAction::Settle(me, worker) => {
                format!("{} commits the result of worker {}", name(*me), worker + 1)
            }
            ClaimsAction::Die(worker) => format!("worker {} crashes", worker + 1),
        }
    }
}

impl ClaimsModel {
    fn describe_take(&self, world: &ClaimsWorld, me: usize) -> String {
        let Some((taken, is_early)) = self.taken(world) else { return "continues".into() };
        let how = if is_early { ", which has not expired," } else { "" };
        format!("{} takes the lease{how} with epoch {}", name(me), taken.lease.epoch)
    }

    fn describe_fence(&self, world: &ClaimsWorld, me: usize) -> &'static str {
        let epoch = world.brokers[me].held.map_or(0, |held| held.lease.epoch);
        match world.claim {
            _ if world.fenced > epoch => ": refused",
            Some(claim) if claim.is_heard && self.has(ClaimRule::ExtendHeard) => " and extends the claim",
            Some(_) if !self.has(ClaimRule::OnlyHeard) => " and extends the claim",
            Some(_) => " and does not extend the claim",
            None => "",
        }
    }

    fn describe_renewal(&self, world: &ClaimsWorld, me: usize, worker: usize) -> String {
        let broker = &world.brokers[me];
        let is_first = broker.claim.is_some_and(|claim| !claim.is_heard);
        let is_fenced = broker.held.is_some_and(|held| held.lease.epoch < world.fenced);
        let is_trusted = broker.held.is_some_and(|held| held.lease.expires > NOW);
        let how = match (is_first, self.has(ClaimRule::LogHeard)) {
            (true, true) if is_fenced => ": the commit of `heard` is refused",
            (true, true) => " and logs `heard`",
            (true, false) => " without logging `heard`",
            _ if !is_trusted => " after its lease has expired",
            _ => "",
        };
        format!("{} renews the claim of worker {}{how}", name(me), worker + 1)
    }
}

fn refused(world: &ClaimsWorld, me: usize) -> &'static str {
    let held = world.brokers[me].held.map(|held| held.lease.epoch);
    let found = world.lease.filter(|found| found.lease.expires != 0).map(|found| found.lease.epoch);
    match world.brokers[me].phase {
        Phase::Fenced if held == found => " and serves",
        _ if held == found => "",
        _ => ": refused",
    }
}

fn name(me: usize) -> char {
    ['A', 'B', 'C'][me]
}
