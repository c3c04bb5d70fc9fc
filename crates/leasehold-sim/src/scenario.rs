//! What can be played in a world, and what comes of it.

use std::time::Duration;

use crate::counters;
use crate::failed::Failed;
use crate::faults::Faults;
use crate::queue::{self, Broken, Careless};
use crate::shards;
use crate::world::World;

/// What is played.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scenario {
    /// Processes count up shared numbers; see [`counters`].
    Counters,
    /// Producers, workers and an operator on one queue; see [`queue`].
    Queue,
    /// Workers that divide the shards among themselves; see [`shards`].
    Shards,
}

/// A deliberate mistake, for tests: a check that cannot fail is worth nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutant {
    /// A write whose answer was lost is taken for a lost race, and made anew under another write id.
    LostAnswerIsLostRace,
    /// A write that others have built upon is not looked for in what they wrote.
    ForgetsHistory,
    /// A store that breaks a rule of the queue behind its back.
    Broken(Broken),
    /// Someone does not wait, or does not ask again, where the number of shards is changed.
    Careless(Careless),
}

/// How to play it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// What goes wrong, until the scenario says that it is enough.
    pub faults: Faults,
    /// A deliberate mistake.
    pub mutant: Option<Mutant>,
    /// Keep every line of the trace.
    pub full: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { faults: Faults::wild(), mutant: None, full: false }
    }
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
    pub const ALL: [Scenario; 3] = [Scenario::Counters, Scenario::Queue, Scenario::Shards];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Counters => "counters",
            Self::Queue => "queue",
            Self::Shards => "shards",
        }
    }

    /// The scenario of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scenario| scenario.name() == name)
    }

    /// Plays it once, in the world of this seed.
    pub fn play(self, seed: u64, options: &Options) -> Result<Report, Failed> {
        let mut world = World::new(seed, options.faults.clone()).called(self.name());
        if options.full {
            world.trace().keep_all();
        }
        let summary = match self {
            Self::Counters => counters::play(&mut world, options.mutant)?,
            Self::Queue => queue::play(&mut world, options.mutant)?,
            Self::Shards => shards::play(&mut world)?,
        };
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
