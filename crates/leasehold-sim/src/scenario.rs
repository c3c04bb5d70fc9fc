//! Scenarios, their options and their reports.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use crate::artifacts;
use crate::counters;
use crate::direct;
use crate::failed::Failed;
use crate::faults::Faults;
use crate::journal;
use crate::mutants::Mutant;
use crate::outpost;
use crate::queue;
use crate::shards;
use crate::world::World;

/// A scenario.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scenario {
    /// Processes that increment shared numbers; see [`counters`].
    Counters,
    /// Producers, workers and an operator on one queue; see [`queue`].
    Queue,
    /// Idle workers that must start every task soon; see [`queue::bell`].
    Bell,
    /// Final tasks are purged while an operator retries them; see [`queue::purge`].
    Purge,
    /// Workers that divide the shards among themselves; see [`shards`].
    Shards,
    /// Tasks dispatched to the inboxes of workers that crash; see [`direct`].
    Direct,
    /// Tasks with input and result artifacts, which are pruned after their retention; see [`artifacts`].
    Artifacts,
    /// Nodes with folders, links that fail, and one bucket; see [`outpost`].
    Outpost,
    /// Processes that take turns as the broker of one journal; see [`journal`].
    Journal,
}

/// Options of a run. Displayed as the arguments of the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Faults, until the scenario stops them.
    pub faults: Faults,
    /// Parts that are left out.
    pub omissions: Omissions,
    /// Mutant to enable.
    pub mutant: Option<Mutant>,
    /// Keep every line of the trace.
    pub full: bool,
    /// Fail after this number of steps, for searches that need an earlier failure.
    pub steps_max: Option<u64>,
}

/// Parts of a world that are left out, so that a failure is easier to understand.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Omissions {
    /// Time after which faults stop, if the scenario does not stop them before.
    pub faults_for: Option<Duration>,
    /// Faults to inject, by the number with which they are drawn.
    pub only: Option<BTreeSet<u64>>,
    /// Names of actors that are left out.
    pub without: BTreeSet<String>,
    /// Number of tasks to submit, in scenarios that submit tasks.
    pub tasks: Option<u64>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            faults: Faults::wild(),
            omissions: Omissions::default(),
            mutant: None,
            full: false,
            steps_max: None,
        }
    }
}

impl Options {
    /// Returns the default options of a scenario.
    #[must_use]
    pub fn of(scenario: Scenario) -> Self {
        Self { faults: scenario.faults(), ..Self::default() }
    }
}

impl fmt::Display for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Omissions { faults_for, only, without, tasks } = &self.omissions;
        write!(f, " --faults {}", self.faults)?;
        self.mutant.iter().try_for_each(|mutant| write!(f, " --mutant {}", mutant.name()))?;
        faults_for.iter().try_for_each(|time| write!(f, " --faults-for {}", time.as_secs()))?;
        only.iter().try_for_each(|only| write!(f, " --only {}", joined(only)))?;
        tasks.iter().try_for_each(|tasks| write!(f, " --tasks {tasks}"))?;
        if without.is_empty() { Ok(()) } else { write!(f, " --without {}", joined(without)) }
    }
}

/// Joins parts with commas. `-` stands for none, since an empty argument looks like a mistake.
fn joined(parts: &BTreeSet<impl fmt::Display>) -> String {
    let joined: Vec<_> = parts.iter().map(ToString::to_string).collect();
    if joined.is_empty() { "-".to_owned() } else { joined.join(",") }
}

/// Report of a run that passed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Result in a sentence.
    pub summary: String,
    /// Number of steps: polls, and jumps of time.
    pub steps: u64,
    /// Virtual time of the run.
    pub took: Duration,
    /// Number of lines in the trace.
    pub trace_count: u64,
    /// Hash over all lines of the trace.
    pub trace_hash: u64,
    /// Lines of the trace that were kept.
    pub trace: Vec<String>,
}

impl Scenario {
    /// Every scenario.
    pub const ALL: [Scenario; 9] = [
        Self::Counters,
        Self::Queue,
        Self::Bell,
        Self::Purge,
        Self::Shards,
        Self::Direct,
        Self::Artifacts,
        Self::Outpost,
        Self::Journal,
    ];

    /// Name of the scenario.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Counters => "counters",
            Self::Queue => "queue",
            Self::Bell => "bell",
            Self::Purge => "purge",
            Self::Shards => "shards",
            Self::Direct => "direct",
            Self::Artifacts => "artifacts",
            Self::Outpost => "outpost",
            Self::Journal => "journal",
        }
    }

    /// Returns the scenario with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scenario| scenario.name() == name)
    }

    /// Default faults of the scenario. The latency of the bell is bounded only without faults, and the
    /// retention of artifacts and live claims can be checked only if the store's time does not jump.
    #[must_use]
    pub fn faults(self) -> Faults {
        match self {
            Self::Bell => Faults::none(),
            Self::Artifacts | Self::Outpost | Self::Journal => Faults::steady(),
            _ => Faults::wild(),
        }
    }

    /// Plays the scenario once, in the world of this seed.
    pub fn play(self, seed: u64, options: &Options) -> Result<Report, Failed> {
        let mut world = World::new(seed, options.faults.clone()).with_scenario(self.name());
        world.omit(options.omissions.clone());
        world.limit_steps(options.steps_max);
        if options.full {
            world.trace().keep_all();
        }
        let _active_mutant = options.mutant.map(|mutant| mutant.activate(&mut world));
        let played = match self {
            Self::Counters => counters::play(&mut world),
            Self::Queue => queue::play(&mut world),
            Self::Bell => queue::bell::play(&mut world),
            Self::Purge => queue::purge::play(&mut world),
            Self::Shards => shards::play(&mut world),
            Self::Direct => direct::play(&mut world),
            Self::Artifacts => artifacts::play(&mut world),
            Self::Outpost => outpost::play(&mut world),
            Self::Journal => journal::play(&mut world),
        };
        let options = || Box::new(options.clone());
        let summary = played.map_err(|failed| Failed { options: options(), ..failed })?;
        let trace = world.trace();
        Ok(Report {
            summary,
            steps: world.steps(),
            took: world.now(),
            trace_count: trace.count(),
            trace_hash: trace.hash(),
            trace: trace.lines(),
        })
    }
}
