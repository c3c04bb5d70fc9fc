//! Minimises a failure: leaves out every part of the world without which the same check still fails.
//!
//! Kinds of faults first, because one of them removes a hundred faults at once; then time, actors and tasks;
//! then single faults, in halves, quarters and so on (delta debugging, Zeller 1999). This repeats until
//! nothing more can be left out. A world with a part left out is another world, so each candidate is played:
//! the result has failed.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::failed::Failed;
use crate::faults::{Faults, NAMES, SHARES};
use crate::scenario::{Omissions, Options, Scenario};

/// Maximum number of worlds played; a tenth of it is usual.
const PLAYS_MAX: u32 = 2_000;

/// Result of a minimisation.
#[derive(Debug)]
pub struct Shrunk {
    /// The original failure.
    pub before: Failed,
    /// The smallest failure found, with its whole trace.
    pub after: Failed,
    /// Number of worlds played.
    pub plays: u32,
}

/// Minimises the failure of this seed. Returns `None` if it does not fail.
#[must_use]
pub fn shrink(scenario: Scenario, seed: u64, options: &Options) -> Option<Shrunk> {
    let before = scenario.play(seed, options).err()?;
    let mut search = Search { scenario, seed, kind: before.kind(), best: before.clone(), plays: 1 };
    loop {
        let known = search.best.options.clone();
        search.leave_out_kinds();
        search.leave_out_time();
        search.leave_out_actors();
        search.leave_out_tasks();
        search.leave_out_single_faults();
        if search.best.options == known || search.plays >= PLAYS_MAX {
            break;
        }
    }
    let whole = Options { full: true, ..(*search.best.options).clone() };
    let after = scenario.play(seed, &whole).err()?;
    let after = Failed { options: Box::new(Options { full: options.full, ..whole }), ..after };
    Some(Shrunk { before, after, plays: search.plays })
}

struct Search {
    scenario: Scenario,
    seed: u64,
    kind: String,
    best: Failed,
    plays: u32,
}

impl Search {
    /// Keeps the world with this change if the same check fails.
    fn try_out(&mut self, change: impl FnOnce(&mut Options)) -> bool {
        let mut options = (*self.best.options).clone();
        change(&mut options);
        if options == *self.best.options || self.plays >= PLAYS_MAX {
            return false;
        }
        self.plays += 1;
        // A world that does not fail runs for hours, and a larger one is not a result.
        let steps_max = Some(self.best.size.steps * 2);
        let failed = self.scenario.play(self.seed, &Options { steps_max, ..options.clone() }).err();
        let Some(failed) = failed.filter(|failed| failed.kind() == self.kind) else { return false };
        self.best = Failed { options: Box::new(options), ..failed };
        true
    }

    fn omit(&mut self, change: impl FnOnce(&mut Omissions)) -> bool {
        self.try_out(|options| change(&mut options.omissions))
    }

    fn leave_out_kinds(&mut self) {
        for name in NAMES {
            if self.best.size.faults == 0 {
                self.try_out(|options| options.faults = Faults::none());
                return;
            }
            if SHARES.contains(&name) && self.best.options.faults.process_fault_every.is_none() {
                continue;
            }
            self.try_out(|options| {
                if let Ok(without) = options.faults.clone().with(name, 0) {
                    options.faults = without;
                }
            });
        }
    }

    fn leave_out_time(&mut self) {
        if self.best.size.faults == 0 {
            return;
        }
        let until = Duration::from_secs(self.best.at.as_secs() + 1);
        let is_shorter =
            |omissions: &Omissions, time: Duration| omissions.faults_for.is_none_or(|known| time < known);
        let shorter = |omissions: &mut Omissions, time: Duration| {
            if is_shorter(omissions, time) {
                omissions.faults_for = Some(time);
            }
        };
        self.omit(|omissions| shorter(omissions, until));
        for part in [2, 4, 8, 16] {
            self.omit(|omissions| shorter(omissions, Duration::from_secs(until.as_secs() / part)));
        }
    }

    fn leave_out_actors(&mut self) {
        for actor in self.best.size.actors.clone() {
            self.omit(|omissions| omissions.without.extend([actor]));
        }
    }

    fn leave_out_tasks(&mut self) {
        if !matches!(self.scenario, Scenario::Queue | Scenario::Journal) {
            return;
        }
        let most = self.best.options.omissions.tasks.unwrap_or(u64::MAX);
        for tasks in [0, 1, 2, 3, 4, 6, 8, 12, 16, 24].into_iter().filter(|tasks| *tasks < most) {
            if self.omit(|omissions| omissions.tasks = Some(tasks)) {
                return;
            }
        }
    }

    /// Leaves out half of the faults, then quarters, then eighths, down to single ones.
    fn leave_out_single_faults(&mut self) {
        if self.best.size.faults == 0 {
            return;
        }
        let drawn = self.best.size.faults_drawn;
        let all = self.best.options.omissions.only.clone().unwrap_or_else(|| (0..drawn).collect());
        self.omit(|omissions| omissions.only = Some(all));
        let mut size = self.kept().len();
        while size > 0 {
            let mut from = 0;
            loop {
                let kept: Vec<_> = self.kept().into_iter().collect();
                if from >= kept.len() {
                    break;
                }
                let to = (from + size).min(kept.len());
                let rest: BTreeSet<_> = kept[..from].iter().chain(&kept[to..]).copied().collect();
                if !self.omit(|omissions| omissions.only = Some(rest)) {
                    from = to;
                }
            }
            size /= 2;
        }
    }

    fn kept(&self) -> BTreeSet<u64> {
        self.best.options.omissions.only.clone().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
