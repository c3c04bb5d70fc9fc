//! A failed run, and the command that replays it.

use std::fmt;
use std::time::Duration;

use crate::scenario::Options;

/// Number of trace lines shown.
const LINES_SHOWN: usize = 40;

/// Failed check, with the world it happened in and the last lines of its trace.
#[derive(Debug, Clone)]
pub struct Failed {
    /// Seed of the world.
    pub seed: u64,
    /// Name of the scenario.
    pub scenario: String,
    /// Options of the run.
    pub options: Box<Options>,
    /// Message of the check.
    pub message: String,
    /// Virtual time of the failure.
    pub at: Duration,
    /// Size of the world at that time.
    pub size: Box<Size>,
    /// Last lines of the trace.
    pub tail: Vec<String>,
}

/// Size of a world.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Size {
    /// Names of the actors.
    pub actors: Vec<String>,
    /// Number of faults drawn, injected or not.
    pub faults_drawn: u64,
    /// Number of faults injected.
    pub faults: u64,
    /// Number of steps: polls, and jumps of time.
    pub steps: u64,
}

impl Failed {
    /// Returns the command that replays this run.
    #[must_use]
    pub fn replay(&self) -> String {
        self.command("replay")
    }

    /// Returns the command for another subcommand than `replay`.
    #[must_use]
    pub fn command(&self, verb: &str) -> String {
        let Self { seed, scenario, options, .. } = self;
        // Mutants in the code itself exist only with the feature.
        let features = if options.mutant.is_some() { " --features mutants" } else { "" };
        format!(
            "cargo run --release -p leasehold-sim{features} -- {verb} --seed {seed} --scenario {scenario}{options}"
        )
    }

    /// Message without the names, numbers and times that differ between worlds.
    #[must_use]
    pub fn kind(&self) -> String {
        let is_promise = |word: &str| word.starts_with('P') && word.ends_with(':');
        let words = self.message.split_whitespace();
        let kept = words.filter(|word| is_promise(word) || !word.contains(|c: char| c.is_ascii_digit()));
        kept.take(KIND_WORDS).collect::<Vec<_>>().join(" ")
    }
}

/// Number of words that distinguish one check from another.
const KIND_WORDS: usize = 7;

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in self.tail.iter().skip(self.tail.len().saturating_sub(LINES_SHOWN)) {
            writeln!(f, "  {line}")?;
        }
        writeln!(f, "seed {} failed at {:.6}: {}", self.seed, self.at.as_secs_f64(), self.message)?;
        writeln!(f, "replay: {}", self.replay())?;
        write!(f, "use `shrink` instead of `replay` to minimise it first")
    }
}

impl std::error::Error for Failed {}
