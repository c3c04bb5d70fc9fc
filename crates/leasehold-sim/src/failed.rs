//! A run that failed, and how to see it again.

use std::fmt;
use std::time::Duration;

/// So many of the last lines are shown.
const LINES_SHOWN: usize = 40;

/// What was wrong, in which world, and what led to it.
#[derive(Debug, Clone)]
pub struct Failed {
    /// The world's seed.
    pub seed: u64,
    /// What was played in it.
    pub scenario: String,
    /// What was wrong.
    pub message: String,
    /// When, in virtual time.
    pub at: Duration,
    /// The last lines of the trace.
    pub tail: Vec<String>,
}

impl Failed {
    /// The command that plays this run again.
    #[must_use]
    pub fn replay(&self) -> String {
        let Self { seed, scenario, .. } = self;
        format!("cargo run -p leasehold-sim -- replay --seed {seed} --scenario {scenario}")
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in self.tail.iter().skip(self.tail.len().saturating_sub(LINES_SHOWN)) {
            writeln!(f, "  {line}")?;
        }
        writeln!(f, "seed {} failed at {:.6}: {}", self.seed, self.at.as_secs_f64(), self.message)?;
        write!(f, "replay: {}", self.replay())
    }
}

impl std::error::Error for Failed {}
