//! The commits of a log as one number, which keeps states small.

/// Commits of a log from its first slot on, one byte each. A byte is never zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(in crate::model) struct CommitHistory(u64);

/// Highest number of commits.
pub(super) const COMMITS_MAX: usize = 8;

impl CommitHistory {
    pub(super) fn len(self) -> usize {
        (u64::BITS - self.0.leading_zeros()).div_ceil(u8::BITS) as usize
    }

    pub(super) fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns this history with one more commit.
    pub(super) fn with(self, commit: u8) -> Self {
        debug_assert!(commit != 0 && self.len() < COMMITS_MAX);
        Self(self.0 | u64::from(commit) << (self.len() * 8))
    }

    pub(super) fn first(self, count: usize) -> Self {
        if count >= COMMITS_MAX { self } else { Self(self.0 & ((1 << (count * 8)) - 1)) }
    }

    pub(super) fn last(self) -> Option<u8> {
        self.commits().last()
    }

    pub(super) fn commits(self) -> impl Iterator<Item = u8> + Clone {
        self.0.to_le_bytes().into_iter().take_while(|commit| *commit != 0)
    }

    pub(super) fn starts_with(self, other: Self) -> bool {
        self.first(other.len()) == other
    }
}
