//! Claims: what the log says about them, what workers were promised, and the handlers that rely on that (P2, P3).

use leasehold_core::settlement::Settlement;
use leasehold_worker::Context;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::raw_tasks::ClaimEffect;
use crate::executor::{Executor, ProcessId};

/// Maximum difference within one lease of two clocks that run at different rates.
const SLACK_MS: i64 = 50;

/// All claims that were ever made.
#[derive(Default)]
pub(super) struct Claims {
    by_name: BTreeMap<ClaimName, ClaimView>,
    runs: BTreeMap<u64, HandlerRun>,
    runs_begun: u64,
    timed_out: u64,
    renewals: u64,
}

/// Task and lease id of a claim.
pub(super) type ClaimName = (String, String);

/// A claim, as the log and its worker know it.
#[derive(Debug, Default)]
struct ClaimView {
    is_logged: bool,
    /// Kind of the record that has ended it.
    ended_by: Option<String>,
    /// Latest expiry that its worker was promised, in milliseconds.
    promised: Option<i64>,
    /// Kinds of the settlements that its worker has asked for.
    requested: BTreeSet<&'static str>,
    /// Time of the answer to the last request to renew it; the end of time without an answer.
    renewed: Option<Duration>,
}

/// A running handler.
struct HandlerRun {
    context: Context,
    process: ProcessId,
}

/// Answer of a broker to the worker that holds a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RecordedAnswer {
    /// The claim was made, or renewed, until this time in milliseconds; none if it has expired meanwhile.
    Held(Option<i64>),
    /// The claim was settled.
    Settled,
    /// The claim was lost.
    Lost,
}

impl Claims {
    /// Notes the effect of a record; `now` is the store's time if no process can be mistaken about it.
    pub(super) fn logged(&mut self, effect: ClaimEffect, now: Option<i64>) -> Result<(), String> {
        let (id, lease_id, kind) = match effect {
            ClaimEffect::Begins { id, lease_id } => {
                let claim = self.by_name.entry((id.clone(), lease_id)).or_default();
                let is_new = !std::mem::replace(&mut claim.is_logged, true);
                return if is_new {
                    Ok(())
                } else {
                    Err(format!("P2: task {id} is claimed twice with one lease id"))
                };
            }
            ClaimEffect::Ends { id, lease_id, kind } => (id, lease_id, kind),
        };
        let claim = self.by_name.entry((id.clone(), lease_id)).or_default();
        if kind == "timeout" {
            self.timed_out += 1;
            if let (Some(now), Some(promised)) = (now, claim.promised)
                && now <= promised
            {
                return Err(format!(
                    "P2: task {id} is timed out, but its worker trusts the claim for {} ms",
                    promised - now
                ));
            }
        } else if !(claim.requested.contains(kind.as_str()) || kind == "release" && claim.promised.is_none())
        {
            return Err(format!("P3: task {id} is settled by `{kind}`, which its worker did not ask for"));
        }
        claim.ended_by = Some(kind);
        Ok(())
    }

    /// Notes that a worker asks for the end of its claim.
    pub(super) fn settlement_requested(&mut self, name: &ClaimName, settlement: &Settlement) {
        let kind = match settlement {
            Settlement::Complete { .. } => "complete",
            Settlement::Fail { .. } | Settlement::Exhaust { .. } => "fail",
            Settlement::Snooze(_) => "snooze",
            Settlement::Release => "release",
            Settlement::Stop => "stop",
        };
        self.by_name.entry(name.clone()).or_default().requested.insert(kind);
    }

    /// Notes that a worker has asked to renew its claim, and when it was answered.
    pub(super) fn renewal_answered(&mut self, name: &ClaimName, at: Option<Duration>) {
        self.by_name.entry(name.clone()).or_default().renewed = Some(at.unwrap_or(Duration::MAX));
    }

    /// Time until which a broker may have renewed a claim.
    pub(super) fn last_renewal(&self, name: &ClaimName) -> Option<Duration> {
        self.by_name.get(name)?.renewed
    }

    /// Checks the answer of a broker to the worker that holds a claim.
    pub(super) fn answered(
        &mut self,
        name: &ClaimName,
        answer: RecordedAnswer,
        now: Option<i64>,
    ) -> Result<(), String> {
        let id = &name.0;
        let claim = self.by_name.entry(name.clone()).or_default();
        if !claim.is_logged {
            return Err(format!("P1: task {id} was claimed, but the log has no such claim"));
        }
        match (answer, claim.ended_by.as_deref()) {
            (RecordedAnswer::Held(until), ended_by) => {
                self.renewals += 1;
                claim.promised = claim.promised.max(until);
                let is_trusted = until.zip(now).is_some_and(|(until, now)| now < until);
                match ended_by.filter(|kind| is_trusted && !claim.requested.contains(kind)) {
                    Some(kind) => Err(format!(
                        "P2: a claim on task {id} is promised, but the log has ended it by `{kind}`"
                    )),
                    None => Ok(()),
                }
            }
            (RecordedAnswer::Settled, None | Some("timeout")) => Err(format!(
                "P1: the end of a claim on task {id} was acknowledged, but the log has no such end"
            )),
            (RecordedAnswer::Lost, None) => {
                Err(format!("P3: a claim on task {id} was reported as lost, but the log holds it"))
            }
            _ => Ok(()),
        }
    }

    /// Notes the start of a handler: no other process may trust a claim on the task.
    pub(super) fn begin(
        &mut self,
        context: &Context,
        process: ProcessId,
        executor: &Executor,
        is_reliable: bool,
    ) -> Result<u64, String> {
        let (id, epoch) = (context.task().id, context.epoch());
        for run in self.runs.values().filter(|run| run.context.task().id == id) {
            let is_trusted = !run.context.is_cancelled() && !executor.is_paused(run.process);
            if is_trusted && is_reliable {
                return Err(format!("P2: {id} runs in epochs {} and {epoch} at once", run.context.epoch()));
            }
        }
        self.runs_begun += 1;
        self.runs.insert(self.runs_begun, HandlerRun { context: context.clone(), process });
        Ok(self.runs_begun)
    }

    /// Checks that a running handler was stopped if its claim has expired.
    pub(super) fn check_running(
        &self,
        run: u64,
        executor: &Executor,
        now: Option<i64>,
    ) -> Result<(), String> {
        let (Some(run), Some(now)) = (self.runs.get(&run), now) else { return Ok(()) };
        let task = run.context.task();
        let name = (task.id.to_string(), task.lease_id.as_ref().map(ToString::to_string).unwrap_or_default());
        let Some(promised) = self.by_name.get(&name).and_then(|claim| claim.promised) else { return Ok(()) };
        let late = now - promised;
        if late <= SLACK_MS || run.context.is_cancelled() || executor.is_paused(run.process) {
            return Ok(());
        }
        Err(format!("P2: the handler of {} trusts a claim that expired {late} ms ago", task.id))
    }

    pub(super) fn end(&mut self, run: u64) {
        self.runs.remove(&run);
    }

    /// Counts for the summary.
    pub(super) fn summary(&self) -> String {
        let Self { runs_begun, timed_out, renewals, .. } = self;
        format!("{runs_begun} runs, {renewals} promises, {timed_out} timed out")
    }
}
