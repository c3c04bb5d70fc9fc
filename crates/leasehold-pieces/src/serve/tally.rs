//! What a server has done so far.

use std::sync::{Arc, Mutex, PoisonError};

/// What was served and what was not, since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Served {
    /// Connections that were let in.
    pub connections: u64,
    /// Requests that could be read, answered well or not.
    pub requests: u64,
    /// Requests that got what they asked for.
    pub answered: u64,
    /// Bytes of pieces and maps in answers.
    pub bytes: u64,
    /// What did not get what it wanted, by reason.
    pub refused: Refused,
}

/// What was refused, by reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Refused {
    /// Connections beyond the limit.
    pub connections: u64,
    /// Connections on which something came that is no HTTP.
    pub garbage: u64,
    /// Connections of clients that sent nothing, or did not take their answer, for too long.
    pub slow: u64,
    /// Requests for what is not here or does not exist.
    pub missing: u64,
    /// Requests of another kind than was to be expected: methods, bodies, runs that are too long.
    pub wrong: u64,
    /// Requests without a signature.
    pub unsigned: u64,
    /// Requests whose signature was too old or too young.
    pub expired: u64,
    /// Requests with a wrong signature.
    pub forged: u64,
    /// Requests that found all uploads taken for too long, or came before the store's time was known.
    pub busy: u64,
    /// Requests that failed here: the shelf could not be read.
    pub failed: u64,
}

/// Counts; clones count together.
#[derive(Debug, Clone, Default)]
pub struct Tally(Arc<Mutex<Served>>);

impl Tally {
    /// What has been counted so far.
    #[must_use]
    pub fn served(&self) -> Served {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn count(&self, add: impl FnOnce(&mut Served)) {
        add(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}
