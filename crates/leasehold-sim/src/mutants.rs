//! Rules broken on purpose: a check that cannot fail is worth nothing.
//!
//! Most mistakes are made by a [`store`] that does not do what the code asked it to, so that nothing of them is in the
//! code. What cannot be made from outside stands in the code, at the line that is the rule, behind a feature
//! ([`leasehold_store::mutant`]). Tests play every mutant until the expected check notices; the list, with the seeds, is
//! `docs/protocol/mutants.md`.

#[cfg(test)]
mod book;
pub mod store;

use leasehold_store::mutant::Rule;
use std::sync::Arc;

use crate::queue::Careless;
use crate::scenario::Options;
use crate::scenario::Scenario::{self, Artifacts, Bell, Counters, Direct, Outpost, Purge, Queue, Shards};
use crate::world::World;
pub use store::Broken;

/// A deliberate mistake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutant {
    /// A store that breaks a rule behind the code's back.
    Store(Broken),
    /// A rule that the code itself breaks.
    Code(Rule),
    /// Someone does not wait, or does not ask again, where the number of shards is changed.
    Migration(Careless),
}

/// What is known about a mutant.
#[derive(Debug, Clone, Copy)]
pub struct About {
    /// Which one.
    pub mutant: Mutant,
    /// What it does wrong, in a sentence.
    pub wrong: &'static str,
    /// The promise that it breaks.
    pub promise: &'static str,
    /// Where it is noticed.
    pub scenario: Scenario,
    /// What goes wrong beside it; the more does, the sooner it is noticed.
    pub faults: &'static str,
    /// By which check: a part of what that says.
    pub noticed: &'static str,
    /// The first seed that is played: the one at which it was noticed last. A change of the protocol may move it on.
    pub from: u64,
}

/// After a jump of the store's time everyone may be mistaken about leases for hours, and is not judged.
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

use Broken as B;
use Mutant::{Code, Migration, Store};

/// All of them.
#[rustfmt::skip]
pub const ALL: [About; 55] = [
    // Conditions and answers.
    about(Store(B::NoCondition), Queue, "wild", "P2", "P2: its revision", "a task is written whatever stands there"),
    about(Store(B::NoAbsence), Queue, "wild", "P2", "P2: its revision", "a task is created whatever stands there"),
    about(Store(B::KeyTakenAnyway), Queue, "wild", "P1", "one key has two tasks", "an idempotency key is taken whatever stands there"),
    about(Store(B::AcknowledgedEarly), Queue, "wild", "P1", "P1: task", "a submit is acknowledged before its write, which never happens"),
    about(Store(B::LostIsWritten), Queue, "wild", "P1, P2", "P", "a put without an answer is taken for a good one"),
    about(Store(B::RefusedIsWritten), Queue, "wild", "P2, P5", "P", "a refused put is taken for a good one"),
    about(Code(Rule::LostAnswerIsLostRace), Counters, "wild", "P2", "carried out twice", "a put whose answer was lost is taken for a lost race, and decided anew"),
    about(Code(Rule::RefusedIsLost), Counters, "wild", "P2", "carried out twice", "a refused put is taken for lost without looking for it, although an earlier try of it may have landed"),
    about(Code(Rule::BuiltUponIsLost), Counters, "wild", "P2", "carried out twice", "a put is not looked for in what others have built upon it"),
    about(Store(B::LibraryRetries), Counters, "wild", "requests", "and its ledger knows of", "a library repeats puts that failed, unseen"),
    // The index.
    about(Store(B::NoEntryAtSubmit), Queue, "wild", "P5", "P5: pending", "a submit writes no entry"),
    about(Store(B::NoLeaseEntry), Queue, "wild", "P5", "P5: running", "a claim writes no lease entry"),
    about(Store(B::NoEntryAgain), Queue, "wild", "P5", "P5: pending", "what is to run again gets no ready entry"),
    about(Store(B::TaskFirst), Queue, "wild", "P5", "P5: pending", "what is to run again is written before its entry"),
    about(Store(B::RemovedEarly), Queue, "wild", "P5", "P5: ", "entries are removed before the task has moved on"),
    about(Code(Rule::NoCover), Queue, "wild,crash-at-write=1000", "P5", "P5: ", "a stale entry is removed before the called-for one is written").from(51),
    about(Store(B::DropsPointers), Queue, "wild", "P5", "P5: pending", "an entry without a task is removed at once").from(2),
    about(Store(B::NoFenceAtSweep), Queue, "wild,late=2000,lost=1000,trouble-every=300", "P5", "P5: pending", "an entry without a task is removed after its grace, but without a fence").from(72),
    about(Store(B::NoFenceAtSubmit), Queue, "wild", "P1", "surely failed", "a submit that is given up does not fence its own id").from(11),
    // Claims.
    about(Store(B::LeaseIgnored), Queue, "wild", "P2", "P2: it was timed out before", "a claim is taken for one that has run out"),
    about(Store(B::RunningIsPending), Queue, "wild", "P2", "P7: from running to running", "a running task is taken for a waiting one").from(1),
    about(Store(B::LocalClock), Queue, "wild", "P6", "P2: ", "the machine's own clock is taken for the store's").from(1),
    about(Store(B::EpochStands), Queue, "wild", "P3", "P2: claim took its epoch", "a claim does not raise the epoch"),
    about(Store(B::HistoryCut), Queue, "wild", "P7", "P7: its history", "the history is cut"),
    about(Code(Rule::ClaimTrustedForEver), Queue, "wild", "P2", "P2: ", "a claim is trusted beyond its last confirmed expiry"),
    // Leases on shards and names.
    about(Store(B::LeaseReclaimed), Shards, STEADY, "P3", "is gone", "a lease that has run out is deleted and created again"),
    about(Store(B::LeaseDeleted), Shards, STEADY, "P3", "is gone", "a lease that is given back is deleted"),
    about(Store(B::LeaseEpochStands), Shards, STEADY, "P3", "P3: ", "taking a lease over does not raise its epoch"),
    about(Store(B::LeaseByName), Shards, STEADY, "P4", "what was waited for did not come", "a lease is recognised by the holder's name only").from(5),
    about(Code(Rule::LeaseTrustedForEver), Shards, STEADY, "P2", "trusts", "a lease is trusted beyond its last confirmed expiry").from(4),
    // Inboxes.
    about(Code(Rule::RescueRemovesFirst), Queue, "wild,crash-at-write=1000", "P5", "P5: ", "a pointer is taken out of an inbox before it is put into the overflow").from(3),
    about(Code(Rule::NoRescue), Direct, "wild", "P4", "what was waited for did not come", "nobody empties the inboxes of dead workers"),
    about(Code(Rule::OverflowUnread), Direct, "wild", "P4", "what was waited for did not come", "nobody looks at the overflow"),
    about(Code(Rule::InboxTrustedForEver), Direct, STEADY, "P2", "both trust the inbox", "an inbox is trusted beyond the last confirmed expiry of its lease").from(24),
    // Changing the number of shards.
    about(Migration(Careless::NeverAsks), Queue, "wild", "P8", "P8: ", "a client never asks again how many shards there are").from(23),
    about(Migration(Careless::MovesAtOnce), Queue, "wild,late=1500,trouble-every=300", "P8", "P8: ", "a migration does not wait until everyone knows of it").from(63),
    about(Migration(Careless::SweepsAtOnce), Queue, "wild", "P8", "P8: it is there twice", "a migration removes what is left at the old place without a grace").from(113),
    // Retention.
    about(Store(B::PurgedUnmarked), Purge, "wild", "P1", "is gone while it was", "a task is purged by a plain delete"),
    about(Store(B::PurgedAtOnce), Purge, "wild", "P1", "is gone although", "a mark is followed by the delete at once"),
    // Files.
    about(Code(Rule::ManifestBeforeData), Artifacts, STEADY, "files", "and has no data", "the manifest of a file is written before its data"),
    about(Code(Rule::PruneDeletesAtOnce), Artifacts, STEADY, "files", "files: ", "a file whose time is over is deleted at once"),
    about(Code(Rule::LeavingTrusted), Artifacts, STEADY, "files", "was promised, and is", "a publisher relies on a file that is on its way out"),
    about(Code(Rule::ClosingNotAwaited), Artifacts, STEADY, "files", "files: ", "a file is published again while it may still be deleted").from(8),
    about(Code(Rule::ResultNotPublished), Artifacts, STEADY, "files", "was promised, and is", "a task is completed although its results were not published"),
    about(Code(Rule::JournalTrusted), Artifacts, STEADY, "files", "was given", "after a power cut a journal is trusted").from(11),
    about(Code(Rule::StagingGoesOn), Artifacts, "wild,date-jump=0,lost=1200", "P2", "P2: the handler of", "staging goes on when the claim is lost"),
    // Outposts.
    about(Code(Rule::ClaimUnconfirmed), Outpost, STEADY, "P2", "and the bucket knows nothing of", "in a strict queue a handler starts before the bucket has confirmed its claim"),
    about(Code(Rule::LiveLeaseTaken), Outpost, STEADY, "P2", "alive and heard of", "a lease is taken from a process that is heard of").from(7),
    about(Code(Rule::NoHeartbeat), Outpost, STEADY, "P2", "alive and heard of", "a worker on a node does not say that it is alive").from(5),
    about(Code(Rule::ChangeLeftHalfDone), Outpost, STEADY, "P3", "lost: ", "what a dead process has begun with files is not carried out").from(10),
    about(Code(Rule::SentTooEarly), Outpost, STEADY, "P3", "lost: ", "a result leaves the outbox before the bucket has it").from(13),
    about(Code(Rule::ConflictThrownAway), Outpost, STEADY, "P3", "lost: ", "a result that comes second is thrown away").from(1),
    // Hints and requests.
    about(Store(B::NoRing), Bell, "none", "latency", "was seen after", "the bell is never rung"),
    about(Code(Rule::NoSecondLook), Bell, "none", "latency", "was seen after", "whoever hears the bell looks only once"),
    about(Code(Rule::ReadsTwice), Queue, "none", "requests", "requests: ", "a claim reads its task twice"),
];

impl Mutant {
    /// Its name: `no-lease-entry`.
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

    /// The mutant of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        ALL.iter().map(|about| about.mutant).find(|mutant| mutant.name() == name)
    }

    /// Makes the mistake in this world, until what is given back is dropped.
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

    /// What is done wrong where the number of shards is changed.
    pub(crate) fn careless(self) -> Option<Careless> {
        if let Migration(careless) = self { Some(careless) } else { None }
    }
}

impl About {
    const fn from(self, from: u64) -> Self {
        Self { from, ..self }
    }

    /// How to play it.
    pub fn options(&self) -> Result<Options, String> {
        Ok(Options { faults: self.faults.parse()?, mutant: Some(self.mutant), ..Options::default() })
    }
}

/// A mistake that is being made.
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

    /// Nothing would be broken, and the run would look as if nobody had noticed.
    #[cfg(not(feature = "mutants"))]
    fn new(rule: Rule) -> Self {
        panic!("{rule:?} is a mistake of the code itself: build with `--features mutants`")
    }
}
