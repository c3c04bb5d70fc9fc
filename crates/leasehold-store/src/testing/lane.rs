//! How much a test run plays: three lanes, chosen by `./test` (CONTRIBUTING.md says what each is for).

use std::ops::Range;

/// The lane of this run, from `TEST_LANE`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    /// The loop of a contributor: no servers, no killed processes, a part of the seeds.
    Fast,
    /// Everything that must hold before a change lands.
    Full,
    /// Hours of it, before a release.
    Soak,
}

impl Lane {
    /// Reads the lane; without a word it is the one before a change lands.
    #[must_use]
    pub fn current() -> Self {
        match std::env::var("TEST_LANE").as_deref() {
            Ok("fast") => Self::Fast,
            Ok("soak") => Self::Soak,
            _ => Self::Full,
        }
    }

    /// The seeds that a simulation plays: all of them, but every eighth in the fast lane.
    pub fn seeds(self, all: Range<u64>) -> impl Iterator<Item = u64> {
        all.step_by(if self == Self::Fast { 8 } else { 1 })
    }

    /// A size that still finds the defect a test is for, or the large one of the soak lane.
    #[must_use]
    pub fn sized<T>(self, full: T, soak: T) -> T {
        if self == Self::Soak { soak } else { full }
    }
}
