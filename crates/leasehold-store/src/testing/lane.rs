//! Extent of a test run: three lanes, chosen by `./test` (see CONTRIBUTING.md).

use std::ops::Range;

/// Lane of this run, from `TEST_LANE`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    /// For the edit loop: no servers, no killed processes, a part of the seeds.
    Fast,
    /// Everything that must pass before a change is merged.
    Full,
    /// Hours of tests, before a release.
    Soak,
}

impl Lane {
    /// Reads the lane from the environment; by default the full one.
    #[must_use]
    pub fn current() -> Self {
        match std::env::var("TEST_LANE").as_deref() {
            Ok("fast") => Self::Fast,
            Ok("soak") => Self::Soak,
            _ => Self::Full,
        }
    }

    /// Seeds of a simulation: all of them, but only every eighth in the fast lane.
    pub fn seeds(self, all: Range<u64>) -> impl Iterator<Item = u64> {
        all.step_by(if self == Self::Fast { 8 } else { 1 })
    }

    /// Returns the size of a test: one that still finds its defect, or the large one in the soak lane.
    #[must_use]
    pub fn sized<T>(self, full: T, soak: T) -> T {
        if self == Self::Soak { soak } else { full }
    }
}
