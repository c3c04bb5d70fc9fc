//! Mutants: deliberate violations of a rule, each of which a check of the simulator must detect.
//!
//! Most mutants are a [`store`] that does not do what the code asked for, so the code under test stays unchanged.
//! Rules that cannot be broken from outside are broken in the code itself, at the line that implements the rule,
//! behind a feature ([`leasehold_store::mutant`]). Tests play every mutant until the expected check detects it. The
//! list, with the seeds, is `docs/protocol/mutants.md`.

#[cfg(test)]
mod book;
pub mod store;

use leasehold_store::mutant::Rule;
use std::sync::Arc;

use crate::queue::Careless;
use crate::scenario::Options;
use crate::scenario::Scenario::{self, Artifacts, Bell, Counters, Direct, Outpost, Purge, Queue, Shards};
use crate::world::World;
pub use store::BrokenRule;

/// A deliberate mistake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutant {
    /// A store that breaks a rule without the code's knowledge.
    Store(BrokenRule),
    /// A rule that the code itself breaks.
    Code(Rule),
    /// A client or migration that skips a wait, or a read of `queue.json`, while the number of shards changes.
    Migration(Careless),
}

/// Description of a mutant, and how to detect it.
#[derive(Debug, Clone, Copy)]
pub struct About {
    /// The mutant.
    pub mutant: Mutant,
    /// The violation, in a sentence.
    pub wrong: &'static str,
    /// Promise that it breaks.
    pub promise: &'static str,
    /// Scenario that detects it.
    pub scenario: Scenario,
    /// Faults injected beside it; more faults detect it sooner.
    pub faults: &'static str,
    /// Part of the message of the check that detects it.
    pub noticed: &'static str,
    /// First seed to play: the one that last detected it. A change of the protocol may move it.
    pub from: u64,
}

/// Wild faults without jumps of the store's time: after a jump every process may misjudge leases for hours, so leases
/// are not checked.
const STEADY: &str = "wild,date-jump=0";

const fn about(
    mutant: Mutant,
    scenario: Scenario,
    faults: &'static str,
    promise: &'static str,
    noticed: &'static str,
    wrong: &'static str,
) -> About {
    About { mutant, wrong, promise, scenario, faults, noticed, from: 0 }
}

use BrokenRule as B;
use Mutant::{Code, Migration, Store};

/// All mutants.
#[rustfmt::skip]
pub const ALL: [About; 55] = [
    // Conditions and answers.
    about(Store(B::NoCondition), Queue, "wild", "P2", "P2: its revision", "a task is written without its condition"),
    about(Store(B::NoAbsence), Queue, "wild", "P2", "P2: its revision", "a task is created over an existing object"),
    about(Store(B::KeyTakenAnyway), Queue, "wild", "P1", "one key has two tasks", "an idempotency key is written over another task's record"),
    about(Store(B::AcknowledgedEarly), Queue, "wild", "P1", "P1: task", "a submit is acknowledged before its write, which never happens"),
    about(Store(B::LostIsWritten), Queue, "wild", "P1, P2", "P", "a put without an answer is treated as successful"),
    about(Store(B::RefusedIsWritten), Queue, "wild", "P2, P5", "P", "a refused put is treated as successful"),
    about(Code(Rule::LostAnswerIsLostRace), Counters, "wild", "P2", "carried out twice", "a put whose answer was lost is treated as a lost race and decided again"),
    about(Code(Rule::RefusedIsLost), Counters, "wild", "P2", "carried out twice", "a refused put is treated as lost without a read, although an earlier try may have been written"),
    about(Code(Rule::BuiltUponIsLost), Counters, "wild", "P2", "carried out twice", "a put is treated as lost when a later write of another process has replaced it"),
    about(Store(B::LibraryRetries), Counters, "wild", "requests", "but its ledger counts", "a library retries failed puts without counting them"),
    // The index.
    about(Store(B::NoEntryAtSubmit), Queue, "wild", "P5", "P5: pending", "a submit writes no ready entry"),
    about(Store(B::NoLeaseEntry), Queue, "wild", "P5", "P5: running", "a claim writes no lease entry"),
    about(Store(B::NoEntryAgain), Queue, "wild", "P5", "P5: pending", "a task that is made pending again gets no ready entry"),
    about(Store(B::TaskFirst), Queue, "wild", "P5", "P5: pending", "a task that is made pending again is written before its ready entry"),
    about(Store(B::RemovedEarly), Queue, "wild", "P5", "P5: ", "entries are removed before the task is written"),
    about(Code(Rule::NoCover), Queue, "wild,crash-at-write=1000", "P5", "P5: ", "a stale entry is removed before the current one is written").from(51),
    about(Store(B::DropsPointers), Queue, "wild", "P5", "P5: pending", "an entry without a task is removed without a grace period").from(2),
    about(Store(B::NoFenceAtSweep), Queue, "wild,late=2000,lost=1000,trouble-every=300", "P5", "P5: pending", "an entry without a task is removed after its grace period, but without a fence").from(72),
    about(Store(B::NoFenceAtSubmit), Queue, "wild", "P1", "definitely failed", "an abandoned submit does not fence its own id").from(11),
    // Claims.
    about(Store(B::LeaseIgnored), Queue, "wild", "P2", "P2: it was timed out before", "a live claim is treated as expired"),
    about(Store(B::RunningIsPending), Queue, "wild", "P2", "P7: from running to running", "a running task is treated as pending").from(1),
    about(Store(B::LocalClock), Queue, "wild", "P6", "P2: ", "the local clock is used instead of the store's time").from(1),
    about(Store(B::EpochStands), Queue, "wild", "P3", "P2: claim changed its epoch", "a claim does not raise the epoch"),
    about(Store(B::HistoryCut), Queue, "wild", "P7", "P7: its history", "older events are dropped from the history"),
    about(Code(Rule::ClaimTrustedForEver), Queue, "wild", "P2", "P2: ", "a claim is trusted beyond its last confirmed expiry"),
    // Leases on shards and names.
    about(Store(B::LeaseReclaimed), Shards, STEADY, "P3", "was deleted", "an expired lease is deleted and created again"),
    about(Store(B::LeaseDeleted), Shards, STEADY, "P3", "was deleted", "a released lease is deleted"),
    about(Store(B::LeaseEpochStands), Shards, STEADY, "P3", "P3: ", "taking a lease over does not raise its epoch"),
    about(Store(B::LeaseByName), Shards, STEADY, "P4", "the expected state was not reached", "a lease is recognised by the worker id alone, not by its instance").from(5),
    about(Code(Rule::LeaseTrustedForEver), Shards, STEADY, "P2", "trusts", "a lease is trusted beyond its last confirmed expiry").from(4),
    // Inboxes.
    about(Code(Rule::RescueRemovesFirst), Queue, "wild,crash-at-write=1000", "P5", "P5: ", "a pointer is removed from an inbox before it is written to the overflow").from(3),
    about(Code(Rule::NoRescue), Direct, "wild", "P4", "the expected state was not reached", "no worker empties the inboxes of dead workers"),
    about(Code(Rule::OverflowUnread), Direct, "wild", "P4", "the expected state was not reached", "no worker lists the overflow"),
    about(Code(Rule::InboxTrustedForEver), Direct, STEADY, "P2", "both trust the inbox", "an inbox is trusted beyond the last confirmed expiry of its lease").from(24),
    // Changing the number of shards.
    about(Migration(Careless::NeverAsks), Queue, "wild", "P8", "P8: ", "a client never reads the number of shards again").from(23),
    about(Migration(Careless::MovesAtOnce), Queue, "wild,late=1500,trouble-every=300", "P8", "P8: ", "a migration does not wait until every client has read it").from(63),
    about(Migration(Careless::SweepsAtOnce), Queue, "wild", "P8", "P8: the task exists twice", "a migration removes leftovers at the old key without a grace period").from(113),
    // Retention.
    about(Store(B::PurgedUnmarked), Purge, "wild", "P1", "was deleted while it was", "a task is purged by an unconditional delete"),
    about(Store(B::PurgedAtOnce), Purge, "wild", "P1", "was deleted although", "a task marked as purged is deleted without a grace period"),
    // Files.
    about(Code(Rule::ManifestBeforeData), Artifacts, STEADY, "files", "but has no data", "the manifest of an artifact is written before its data"),
    about(Code(Rule::PruneDeletesAtOnce), Artifacts, STEADY, "files", "files: ", "an artifact past its retention is deleted without a grace period"),
    about(Code(Rule::LeavingTrusted), Artifacts, STEADY, "files", "was promised but is", "a publisher relies on an artifact that is leaving"),
    about(Code(Rule::ClosingNotAwaited), Artifacts, STEADY, "files", "files: ", "an artifact is published again while its deletion may still be carried out").from(8),
    about(Code(Rule::ResultNotPublished), Artifacts, STEADY, "files", "was promised but is", "a task is completed although its results were not published"),
    about(Code(Rule::JournalTrusted), Artifacts, STEADY, "files", "was given", "a piece journal is trusted after a power cut").from(11),
    about(Code(Rule::StagingGoesOn), Artifacts, "wild,date-jump=0,lost=1200", "P2", "P2: the handler of", "staging continues after the claim is lost"),
    // Outposts.
    about(Code(Rule::ClaimUnconfirmed), Outpost, STEADY, "P2", "but the bucket has no claim", "in a strict queue a handler starts before the bucket has confirmed its claim"),
    about(Code(Rule::LiveLeaseTaken), Outpost, STEADY, "P2", "is alive and running", "a lease is taken over from a process that sends heartbeats").from(7),
    about(Code(Rule::NoHeartbeat), Outpost, STEADY, "P2", "is alive and running", "a worker on a node sends no heartbeats").from(5),
    about(Code(Rule::ChangeLeftHalfDone), Outpost, STEADY, "P3", "lost: ", "file changes begun by a dead process are not finished").from(10),
    about(Code(Rule::SentTooEarly), Outpost, STEADY, "P3", "lost: ", "a result leaves the outbox before the bucket has it").from(13),
    about(Code(Rule::ConflictThrownAway), Outpost, STEADY, "P3", "lost: ", "the second of two results is discarded").from(1),
    // Hints and requests.
    about(Store(B::NoRing), Bell, "none", "latency", "started only after", "the bell is never rung"),
    about(Code(Rule::NoSecondLook), Bell, "none", "latency", "started only after", "a worker that reads a new bell scans only once"),
    about(Code(Rule::ReadsTwice), Queue, "none", "requests", "requests: ", "a claim reads its task twice"),
];

impl Mutant {
    /// Name of the mutant, such as `no-lease-entry`.
    #[must_use]
    pub fn name(self) -> String {
        let words = match self {
            Store(broken) => format!("{broken:?}"),
            Code(rule) => format!("{rule:?}"),
            Migration(careless) => format!("{careless:?}"),
        };
        let mut name = String::new();
        for letter in words.chars() {
            if letter.is_ascii_uppercase() && !name.is_empty() {
                name.push('-');
            }
            name.push(letter.to_ascii_lowercase());
        }
        name
    }

    /// Returns the mutant with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        ALL.iter().map(|about| about.mutant).find(|mutant| mutant.name() == name)
    }

    /// Applies the mutant to this world until the returned guard is dropped.
    pub(crate) fn enter(self, world: &mut World) -> Mistake {
        match self {
            Store(broken) => {
                world.wrap_on_hosts(Arc::new(move |store, host| broken.wrap(store, host)));
                Mistake::default()
            }
            Code(rule) => Mistake::new(rule),
            Migration(_) => {
                world.make_mistake(self);
                Mistake::default()
            }
        }
    }

    /// Returns the violation, if it concerns a change of the number of shards.
    pub(crate) fn careless(self) -> Option<Careless> {
        if let Migration(careless) = self { Some(careless) } else { None }
    }
}

impl About {
    const fn from(self, from: u64) -> Self {
        Self { from, ..self }
    }

    /// Returns the options to play it with.
    pub fn options(&self) -> Result<Options, String> {
        Ok(Options { faults: self.faults.parse()?, mutant: Some(self.mutant), ..Options::default() })
    }
}

/// Guard of an active mutant.
#[derive(Default)]
pub(crate) struct Mistake {
    #[cfg(feature = "mutants")]
    _broken: Option<leasehold_store::mutant::Broken>,
}

impl Mistake {
    #[cfg(feature = "mutants")]
    fn new(rule: Rule) -> Self {
        Self { _broken: Some(leasehold_store::mutant::Broken::new(rule)) }
    }

    /// Panics: without the feature the rule is not broken, and the run would look as if no check had detected it.
    #[cfg(not(feature = "mutants"))]
    fn new(rule: Rule) -> Self {
        panic!("mutant {rule:?} is in the code itself; build with `--features mutants`")
    }
}
