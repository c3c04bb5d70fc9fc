//! Check that commits continue each other: numbers without gaps, hashes that match, epochs that do not go back.

use leasehold_core::journal::{Commit, LogPosition};
use leasehold_core::{Error, Kind};

use crate::mutant::breaks;

/// Last commit that was read.
#[derive(Debug, Clone, Copy)]
pub(super) struct HistoryEnd {
    pub(super) position: LogPosition,
    /// Epoch of that commit; 0 if it is unknown.
    epoch: u64,
}

impl HistoryEnd {
    pub(super) fn new(position: LogPosition) -> Self {
        Self { position, epoch: 0 }
    }

    /// Moves behind a commit that continues the history; otherwise the reason why it does not.
    pub(super) fn advance(&mut self, commit: &Commit) -> Result<(), String> {
        let (header, expected) = (&commit.header, self.position.seq.next());
        if header.seq != expected {
            return Err(format!("it is commit {}, not {expected}", header.seq));
        }
        if header.previous != self.position.hash && !breaks("log-chain-unchecked") {
            return Err(format!("it does not continue commit {}: the hash differs", self.position.seq));
        }
        if header.epoch < self.epoch {
            return Err(format!("its epoch {} is before epoch {}", header.epoch, self.epoch));
        }
        *self = Self { position: commit.position(), epoch: header.epoch };
        Ok(())
    }
}

/// Error of a commit that does not continue the history.
pub(super) fn mismatch(name: impl std::fmt::Display, why: &str) -> Error {
    Error::new(Kind::Corrupt, format!("{name} does not continue the log: {why}"))
}
