//! What can be played in a world, and what comes of it.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use crate::artifacts;
use crate::counters;
use crate::direct;
use crate::failed::Failed;
use crate::faults::Faults;
use crate::mutants::Mutant;
use crate::outpost;
use crate::queue;
use crate::shards;
use crate::world::World;

/// What is played.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scenario {
    /// Processes count up shared numbers; see [`counters`].
    Counters,
    /// Producers, workers and an operator on one queue; see [`queue`].
    Queue,
    /// Idle workers that have to hear of everything; see [`queue::bell`].
    Bell,
    /// Final tasks are removed while someone wants them back; see [`queue::purge`].
    Purge,
    /// Workers that divide the shards among themselves; see [`shards`].
    Shards,
    /// Tasks that go to the inboxes of workers, who die; see [`direct`].
    Direct,
    /// Tasks that need files and give some, which are removed when their time is over; see [`artifacts`].
    Artifacts,
    /// Nodes with folders, links that are cut, and one bucket; see [`outpost`].
    Outpost,
}

/// How to play it. As text: the arguments that say so on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// What goes wrong, until the scenario says that it is enough.
    pub faults: Faults,
    /// What is left out.
    pub cut: Cut,
    /// A deliberate mistake.
    pub mutant: Option<Mutant>,
    /// Keep every line of the trace.
    pub full: bool,
    /// Give up after so many steps: for those who look for something that fails sooner.
    pub steps_max: Option<u64>,
}

/// What is left out of a world, so that a failure is easier to understand.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cut {
    /// Faults stop after this, if the scenario does not stop them before.
    pub faults_for: Option<Duration>,
    /// Only these faults happen, by the number with which they are drawn.
    pub only: Option<BTreeSet<u64>>,
    /// Actors that are not there.
    pub without: BTreeSet<String>,
    /// Only so many tasks are submitted, in scenarios that have some.
    pub tasks: Option<u64>,
}

impl Default for Options {
    fn default() -> Self {
        Self { faults: Faults::wild(), cut: Cut::default(), mutant: None, full: false, steps_max: None }
    }
}

impl Options {
    /// The usual options of a scenario.
    #[must_use]
    pub fn of(scenario: Scenario) -> Self {
        Self { faults: scenario.faults(), ..Self::default() }
    }
}

impl fmt::Display for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cut { faults_for, only, without, tasks } = &self.cut;
        write!(f, " --faults {}", self.faults)?;
        self.mutant.iter().try_for_each(|mutant| write!(f, " --mutant {}", mutant.name()))?;
        faults_for.iter().try_for_each(|time| write!(f, " --faults-for {}", time.as_secs()))?;
        only.iter().try_for_each(|only| write!(f, " --only {}", joined(only)))?;
        tasks.iter().try_for_each(|tasks| write!(f, " --tasks {tasks}"))?;
        if without.is_empty() { Ok(()) } else { write!(f, " --without {}", joined(without)) }
    }
}

/// `-` stands for none, because an argument cannot be empty without looking like a mistake.
fn joined(parts: &BTreeSet<impl fmt::Display>) -> String {
    let joined: Vec<_> = parts.iter().map(ToString::to_string).collect();
    if joined.is_empty() { "-".to_owned() } else { joined.join(",") }
}

/// A run in which nothing was wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// What came of it, in a sentence.
    pub summary: String,
    /// Polls, and jumps of time.
    pub steps: u64,
    /// How much virtual time it took.
    pub took: Duration,
    /// How many lines the trace has.
    pub trace_count: u64,
    /// Differs when any line differs.
    pub trace_hash: u64,
    /// The lines that were kept.
    pub trace: Vec<String>,
}

impl Scenario {
    /// Every scenario.
    pub const ALL: [Scenario; 8] = [
        Self::Counters,
        Self::Queue,
        Self::Bell,
        Self::Purge,
        Self::Shards,
        Self::Direct,
        Self::Artifacts,
        Self::Outpost,
    ];

    /// Its name.
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
        }
    }

    /// The scenario of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scenario| scenario.name() == name)
    }

    /// What usually goes wrong in it. How soon a bell is heard can be said only where nothing does, and how long a file is
    /// kept, or whose claim is live, only where the store's time does not jump.
    #[must_use]
    pub fn faults(self) -> Faults {
        match self {
            Self::Bell => Faults::none(),
            Self::Artifacts | Self::Outpost => Faults::steady(),
            _ => Faults::wild(),
        }
    }

    /// Plays it once, in the world of this seed.
    pub fn play(self, seed: u64, options: &Options) -> Result<Report, Failed> {
        let mut world = World::new(seed, options.faults.clone()).called(self.name());
        world.cut(options.cut.clone());
        world.give_up_after(options.steps_max);
        if options.full {
            world.trace().keep_all();
        }
        let _mistake = options.mutant.map(|mutant| mutant.enter(&mut world));
        let played = match self {
            Self::Counters => counters::play(&mut world),
            Self::Queue => queue::play(&mut world),
            Self::Bell => queue::bell::play(&mut world),
            Self::Purge => queue::purge::play(&mut world),
            Self::Shards => shards::play(&mut world),
            Self::Direct => direct::play(&mut world),
            Self::Artifacts => artifacts::play(&mut world),
            Self::Outpost => outpost::play(&mut world),
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
