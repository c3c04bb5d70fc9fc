//! Mutants: deliberate violations of a rule, each of which a check of the simulator must detect.
//!
//! Most mutants are a [`store`] that does not do what the code asked for, so the code under test stays unchanged.
//! Rules that cannot be broken from outside are broken in the code itself, at the line that implements the rule,
//! behind a feature ([`leasehold_store::mutant`]). Tests play every mutant until the expected check detects it. The
//! list, with the seeds, is `docs/protocol/mutants.md`.

#[cfg(test)]
mod document;
pub mod store;

use std::ops::Range;
use std::sync::Arc;

use crate::failed::Failed;
use crate::queue::BrokenMigrationRule;
use crate::scenario::Options;
use crate::scenario::Scenario::{
    self, Artifacts, Bell, Counters, Direct, Journal, Outpost, Purge, Queue, Shards,
};
use crate::world::World;
pub use store::BrokenRule;

/// A deliberate mistake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutant {
    /// A store that breaks a rule without the code's knowledge.
    Store(BrokenRule),
    /// A rule that the code itself breaks, by the name that the line of the rule has for it.
    Code(&'static str),
    /// A client or migration that skips a wait, or a read of `queue.json`, while the number of shards changes.
    Migration(BrokenMigrationRule),
}

/// Description of a mutant, and how to detect it.
#[derive(Debug, Clone, Copy)]
pub struct MutantInfo {
    /// The mutant.
    pub mutant: Mutant,
    /// The violation, in a sentence.
    pub violation: &'static str,
    /// Promise that it breaks.
    pub promise: &'static str,
    /// Scenario that detects it.
    pub scenario: Scenario,
    /// Faults injected beside it; more faults detect it sooner.
    pub faults: &'static str,
    /// Part of the message of the check that detects it.
    pub detected_by: &'static str,
    /// First seed to play: the one that last detected it. A change of the protocol may move it.
    pub first_seed: u64,
}

/// Wild faults without jumps of the store's time: after a jump every process may misjudge leases for hours, so leases
/// are not checked.
const STEADY: &str = "wild,date-jump=0";

/// Few faults beside a takeover that is slow: more of them would interrupt it.
const SLOW_TAKEOVER: &str = "mild,date-jump=0";

const fn info(
    mutant: Mutant,
    scenario: Scenario,
    faults: &'static str,
    promise: &'static str,
    detected_by: &'static str,
    violation: &'static str,
) -> MutantInfo {
    MutantInfo { mutant, violation, promise, scenario, faults, detected_by, first_seed: 0 }
}

use BrokenRule as B;
use Mutant::{Code, Migration, Store};

/// All mutants.
#[rustfmt::skip]
pub const ALL: [MutantInfo; 77] = [
    // Conditions and answers.
    info(Store(B::NoCondition), Queue, "wild", "P2", "P2: its revision", "a task is written without its condition"),
    info(Store(B::NoAbsence), Queue, "wild", "P2", "P2: its revision", "a task is created over an existing object"),
    info(Store(B::KeyTakenAnyway), Queue, "wild", "P1", "one key has two tasks", "an idempotency key is written over another task's record"),
    info(Store(B::AcknowledgedEarly), Queue, "wild", "P1", "P1: task", "a submit is acknowledged before its write, which never happens"),
    info(Store(B::LostIsWritten), Queue, "wild", "P1, P2", "P", "a put without an answer is treated as successful"),
    info(Store(B::RefusedIsWritten), Queue, "wild", "P2, P5", "P", "a refused put is treated as successful"),
    info(Code("lost-answer-is-lost-race"), Counters, "wild", "P2", "carried out twice", "a put whose answer was lost is treated as a lost race and decided again"),
    info(Code("refused-is-lost"), Counters, "wild", "P2", "carried out twice", "a refused put is treated as lost without a read, although an earlier try may have been written"),
    info(Code("built-upon-is-lost"), Counters, "wild", "P2", "carried out twice", "a put is treated as lost when a later write of another process has replaced it"),
    info(Store(B::LibraryRetries), Counters, "wild", "requests", "but its ledger counts", "a library retries failed puts without counting them"),
    // The index.
    info(Store(B::NoEntryAtSubmit), Queue, "wild", "P5", "P5: pending", "a submit writes no ready entry"),
    info(Store(B::NoLeaseEntry), Queue, "wild", "P5", "P5: running", "a claim writes no lease entry"),
    info(Store(B::NoEntryAgain), Queue, "wild", "P5", "P5: pending", "a task that is made pending again gets no ready entry"),
    info(Store(B::TaskFirst), Queue, "wild", "P5", "P5: pending", "a task that is made pending again is written before its ready entry"),
    info(Store(B::RemovedEarly), Queue, "wild", "P5", "P5: ", "entries are removed before the task is written"),
    info(Code("no-cover"), Queue, "wild,crash-at-write=1000", "P5", "P5: ", "an outdated entry is removed before the current one is written").first_seed(56),
    info(Store(B::NoGraceForNewEntries), Queue, "wild", "P5", "P5: pending", "an entry without a task is removed without a grace period").first_seed(5),
    info(Store(B::NoFenceAtSweep), Queue, "wild,late=2000,lost=1000,process-fault-every=300", "P5", "P5: pending", "an entry without a task is removed after its grace period, but without a fence").first_seed(15),
    info(Store(B::NoFenceAtSubmit), Queue, "wild", "P1", "definitely failed", "an abandoned submit does not fence its own id").first_seed(11),
    // Claims.
    info(Store(B::LeaseIgnored), Queue, "wild", "P2", "P2: it was timed out before", "a live claim is treated as expired").first_seed(1),
    info(Store(B::RunningIsPending), Queue, "wild", "P2", "P7: from running to running", "a running task is treated as pending").first_seed(1),
    info(Store(B::LocalClock), Queue, "wild", "P6", "P2: ", "the local clock is used instead of the store's time").first_seed(1),
    info(Store(B::EpochNotRaised), Queue, "wild", "P3", "P2: claim changed its epoch", "a claim does not raise the epoch"),
    info(Store(B::HistoryCut), Queue, "wild", "P7", "P7: its history", "older events are dropped from the history"),
    info(Code("claim-trusted-for-ever"), Queue, "wild", "P2", "P2: ", "a claim is trusted beyond its last confirmed expiry"),
    // Leases on shards and names.
    info(Store(B::LeaseReclaimed), Shards, STEADY, "P3", "was deleted", "an expired lease is deleted and created again"),
    info(Store(B::LeaseDeleted), Shards, STEADY, "P3", "was deleted", "a released lease is deleted"),
    info(Store(B::LeaseEpochNotRaised), Shards, STEADY, "P3", "P3: ", "taking a lease over does not raise its epoch"),
    info(Store(B::LeaseByName), Shards, STEADY, "P4", "the expected state was not reached", "a lease is recognised by the worker id alone, not by its instance").first_seed(11),
    info(Code("lease-trusted-for-ever"), Shards, STEADY, "P2", "trusts", "a lease is trusted beyond its last confirmed expiry").first_seed(2),
    // Inboxes.
    info(Code("rescue-removes-first"), Queue, "wild,crash-at-write=1000", "P5", "P5: ", "an entry is removed from an inbox before it is written to the overflow").first_seed(3),
    info(Code("no-rescue"), Direct, "wild", "P4", "the expected state was not reached", "no worker empties the inboxes of crashed workers").first_seed(1),
    info(Code("overflow-unread"), Direct, "wild", "P4", "the expected state was not reached", "no worker lists the overflow").first_seed(1),
    info(Code("inbox-trusted-for-ever"), Direct, STEADY, "P2", "both trust the inbox", "an inbox is trusted beyond the last confirmed expiry of its lease").first_seed(21),
    // Changing the number of shards.
    info(Migration(BrokenMigrationRule::ShardLengthNeverReread), Queue, "wild", "P8", "P8: ", "a client never reads the length of shard names (`shard_prefix_len`) again").first_seed(23),
    info(Migration(BrokenMigrationRule::MigrationDoesNotWait), Queue, "wild,late=1500,process-fault-every=300", "P8", "P8: ", "a migration does not wait until every client has read it").first_seed(63),
    info(Migration(BrokenMigrationRule::LeftoversDeletedAtOnce), Queue, "wild", "P8", "P8: the task exists twice", "a migration deletes objects at the old keys without a grace period").first_seed(343),
    // Retention.
    info(Store(B::PurgedUnmarked), Purge, "wild", "P1", "was deleted while it was", "a task is purged by an unconditional delete"),
    info(Store(B::PurgedAtOnce), Purge, "wild", "P1", "was deleted although", "a task marked as purged is deleted without a grace period"),
    // Files.
    info(Code("manifest-before-data"), Artifacts, STEADY, "files", "but has no data", "the manifest of an artifact is written before its data"),
    info(Code("prune-deletes-at-once"), Artifacts, STEADY, "files", "files: ", "an artifact past its retention is deleted without a grace period"),
    info(Code("expired-trusted"), Artifacts, STEADY, "files", "was promised but is", "a publisher relies on an artifact that is expired"),
    info(Code("deleting-not-awaited"), Artifacts, STEADY, "files", "files: ", "an artifact is published again while its deletion may still be carried out").first_seed(49),
    info(Code("result-not-published"), Artifacts, STEADY, "files", "was promised but is", "a task is completed although its results were not published"),
    info(Code("piece-journal-trusted"), Artifacts, STEADY, "files", "was given", "a piece journal is trusted after a power cut").first_seed(13),
    info(Code("staging-goes-on"), Artifacts, "wild,date-jump=0,lost=1200", "P2", "P2: the handler of", "staging continues after the claim is lost").first_seed(2),
    // Outposts.
    info(Code("claim-unconfirmed"), Outpost, STEADY, "P2", "but the bucket has no claim", "in a strict queue a handler starts before the bucket has confirmed its claim"),
    info(Code("live-lease-taken"), Outpost, STEADY, "P2", "is alive and running", "a lease is taken over from a process that sends heartbeats").first_seed(1),
    info(Code("no-heartbeat"), Outpost, STEADY, "P2", "is alive and running", "a worker on a node sends no heartbeats").first_seed(14),
    info(Code("change-left-half-done"), Outpost, STEADY, "P3", "lost: ", "file changes begun by a crashed process are not finished").first_seed(1),
    info(Code("sent-too-early"), Outpost, STEADY, "P3", "lost: ", "a result leaves the outbox before the bucket has it").first_seed(14),
    info(Code("conflict-thrown-away"), Outpost, STEADY, "P3", "lost: ", "the second of two results is discarded").first_seed(1),
    // The journal.
    info(Code("log-unanswered-is-committed"), Journal, STEADY, "P1", "P1: ", "a commit without an answer is treated as written").first_seed(24),
    info(Code("log-newer-epoch-replayed"), Journal, STEADY, "P3", "behind a fence of epoch", "a process that takes over replays commits of a later holder").first_seed(1),
    info(Code("log-current-unread"), Journal, STEADY, "P1", "refusal: ", "a refusal or a read is answered without a look at the next slot").first_seed(34),
    info(Code("log-fence-deleted"), Journal, STEADY, "P1", "was deleted", "fences are deleted with the commits that a snapshot covers"),
    info(Code("log-unconfirmed"), Journal, SLOW_TAKEOVER, "P1", "P1: ", "a broker serves without having confirmed its lease after the fence").first_seed(105),
    info(Code("lease-confirmed-early"), Journal, SLOW_TAKEOVER, "P1", "P1: ", "a broker confirms its lease before it puts the fence").first_seed(39),
    info(Code("floor-before-lease"), Journal, STEADY, "P1", "P1: ", "commits are deleted before the lease names the snapshot that covers them").first_seed(7),
    info(Code("fence-not-in-snapshot"), Journal, STEADY, "P1", "snapshot: ", "a snapshot misses the claims that a fence has extended").first_seed(155),
    info(Code("evicted-not-in-snapshot"), Journal, STEADY, "P1", "snapshot: ", "a snapshot misses the tasks of a changed chunk that are not in memory").first_seed(16),
    info(Code("changed-chunk-evicted"), Journal, STEADY, "P1", "was changed: it has", "tasks are evicted from memory although no snapshot has them as they are"),
    info(Code("archive-logged-first"), Journal, STEADY, "P1", "but does not exist", "tasks are archived in the log before their object is written").first_seed(14),
    info(Code("archive-object-deleted-early"), Journal, STEADY, "P1", "but the log refers to it", "a merged archive object is deleted before the record that removes it").first_seed(6),
    info(Code("broker-answers-early"), Journal, STEADY, "P1", "P1: ", "a broker answers before the commit is confirmed"),
    info(Code("broker-renews-untrusted"), Journal, STEADY, "P2", "P2: ", "a broker renews claims although its lease may have expired").first_seed(888),
    info(Code("trust-not-carried"), Journal, STEADY, "P2", "P2: ", "a new lease does not carry `trusted_until` forward").first_seed(391),
    info(Code("broken-trust-not-kept"), Journal, STEADY, "P2", "P2: ", "a lease is broken without keeping the time until which its holder trusts it").first_seed(391),
    info(Code("renewal-not-logged"), Journal, STEADY, "P2", "P2: ", "the first renewal of a claim with a new broker is not logged").first_seed(101),
    info(Code("unrenewed-extended"), Journal, STEADY, "P4", "C5: ", "a takeover extends claims that were not renewed since the last fence").first_seed(6),
    info(Code("superseded-broker-answers"), Journal, STEADY, "P1", "P1: ", "a broker that finds a later holder in the slot of its commit sends the answers that waited for it").first_seed(19),
    // Processes that are connected to the broker.
    info(Code("lost-answer-is-refusal"), Journal, STEADY, "P1", "definitely failed", "a request whose connection has closed counts as refused, although it may have been decided").first_seed(5),
    info(Code("resubmitted-under-new-id"), Journal, STEADY, "P1", "has two tasks", "a submit without an answer is repeated with another id").first_seed(37),
    info(Code("claim-released-after-answer"), Journal, STEADY, "P2", "which its worker did not ask for", "a claim is released when its connection ends, although its answer was sent (C6)").first_seed(5),
    // Hints and requests.
    info(Store(B::NoRing), Bell, "none", "latency", "started only after", "the bell is never rung"),
    info(Code("no-second-look"), Bell, "none", "latency", "started only after", "a worker that reads a new bell scans only once"),
    info(Code("reads-twice"), Queue, "none", "requests", "requests: ", "a claim reads its task twice"),
];

impl Mutant {
    /// Name of the mutant, such as `no-lease-entry`.
    #[must_use]
    pub fn name(self) -> String {
        let words = match self {
            Store(broken) => format!("{broken:?}"),
            Code(rule) => return rule.to_owned(),
            Migration(broken) => format!("{broken:?}"),
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
    pub fn from_name(name: &str) -> Option<Self> {
        ALL.iter().map(|info| info.mutant).find(|mutant| mutant.name() == name)
    }

    /// Applies the mutant to this world until the returned guard is dropped.
    pub(crate) fn activate(self, world: &mut World) -> ActiveMutant {
        match self {
            Store(broken) => {
                world.wrap_on_hosts(Arc::new(move |store, host| broken.wrap(store, host)));
                ActiveMutant::default()
            }
            Code(rule) => ActiveMutant::new(rule),
            Migration(_) => {
                world.set_mutant(self);
                ActiveMutant::default()
            }
        }
    }

    /// Returns the broken rule, if it concerns a change of the number of shards.
    pub(crate) fn broken_migration_rule(self) -> Option<BrokenMigrationRule> {
        if let Migration(broken) = self { Some(broken) } else { None }
    }
}

impl MutantInfo {
    const fn first_seed(self, first_seed: u64) -> Self {
        Self { first_seed, ..self }
    }

    /// Plays seeds until its check detects it. Some seeds are detected by another check first.
    pub fn detect(&self, mut seeds: Range<u64>) -> Result<Option<Failed>, String> {
        let options = self.options()?;
        let detected = |failed: &Failed| failed.message.contains(self.detected_by);
        Ok(seeds.find_map(|seed| self.scenario.play(seed, &options).err().filter(detected)))
    }

    /// Returns the options to play it with.
    pub fn options(&self) -> Result<Options, String> {
        Ok(Options { faults: self.faults.parse()?, mutant: Some(self.mutant), ..Options::default() })
    }
}

/// Guard of an active mutant.
#[derive(Default)]
pub(crate) struct ActiveMutant {
    #[cfg(feature = "mutants")]
    _broken: Option<leasehold_store::mutant::Broken>,
}

impl ActiveMutant {
    #[cfg(feature = "mutants")]
    fn new(rule: &'static str) -> Self {
        Self { _broken: Some(leasehold_store::mutant::Broken::new(rule)) }
    }

    /// Panics: without the feature the rule is not broken, and the run would look as if no check had detected it.
    #[cfg(not(feature = "mutants"))]
    fn new(rule: &'static str) -> Self {
        panic!("mutant {rule} is in the code itself; build with `--features mutants`")
    }
}
