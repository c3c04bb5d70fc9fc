//! A run that failed, and how to see it again.

use std::fmt;
use std::time::Duration;

use crate::scenario::Options;

/// So many of the last lines are shown.
const LINES_SHOWN: usize = 40;

/// What was wrong, in which world, and what led to it.
#[derive(Debug, Clone)]
pub struct Failed {
    /// The world's seed.
    pub seed: u64,
    /// What was played in it.
    pub scenario: String,
    /// How it was played.
    pub options: Box<Options>,
    /// What was wrong.
    pub message: String,
    /// When, in virtual time.
    pub at: Duration,
    /// How large the world was by then.
    pub size: Box<Size>,
    /// The last lines of the trace.
    pub tail: Vec<String>,
}

/// How much there was in a world.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Size {
    /// Who was there.
    pub actors: Vec<String>,
    /// How many faults were drawn, happened or not.
    pub faults_drawn: u64,
    /// How many faults happened.
    pub faults: u64,
    /// Polls, and jumps of time.
    pub steps: u64,
}

impl Failed {
    /// The command that plays this run again.
    #[must_use]
    pub fn replay(&self) -> String {
        self.command("replay")
    }

    /// The same with another verb.
    #[must_use]
    pub fn command(&self, verb: &str) -> String {
        let Self { seed, scenario, options, .. } = self;
        // A mistake in the code itself is there only when it is asked for.
        let features = if options.mutant.is_some() { " --features mutants" } else { "" };
        format!(
            "cargo run --release -p leasehold-sim{features} -- {verb} --seed {seed} --scenario {scenario}{options}"
        )
    }

    /// What was wrong, without what differs from world to world: names, numbers, times.
    #[must_use]
    pub fn kind(&self) -> String {
        let is_promise = |word: &str| word.starts_with('P') && word.ends_with(':');
        let words = self.message.split_whitespace();
        let kept = words.filter(|word| is_promise(word) || !word.contains(|c: char| c.is_ascii_digit()));
        kept.take(KIND_WORDS).collect::<Vec<_>>().join(" ")
    }
}

/// So many words tell one check from another.
const KIND_WORDS: usize = 7;

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in self.tail.iter().skip(self.tail.len().saturating_sub(LINES_SHOWN)) {
            writeln!(f, "  {line}")?;
        }
        writeln!(f, "seed {} failed at {:.6}: {}", self.seed, self.at.as_secs_f64(), self.message)?;
        writeln!(f, "replay: {}", self.replay())?;
        write!(f, "`shrink` in place of `replay` makes it small first")
    }
}

impl std::error::Error for Failed {}
