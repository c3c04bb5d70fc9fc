//! Counters of a server.

use std::sync::{Arc, Mutex, PoisonError};

/// Counters of a server since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ServerCounts {
    /// Connections that were accepted.
    pub connections: u64,
    /// Valid HTTP requests, successful or not.
    pub requests: u64,
    /// Successful requests.
    pub answered: u64,
    /// Bytes of pieces and maps in responses.
    pub bytes: u64,
    /// Refused connections and requests, by reason.
    pub refused: RefusedCounts,
}

/// Counters of refused connections and requests, by reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RefusedCounts {
    /// Connections beyond the limit.
    pub connections: u64,
    /// Connections that sent invalid HTTP.
    pub invalid_http: u64,
    /// Connections of clients that timed out.
    pub timed_out: u64,
    /// Requests for unknown paths, or for pieces that are not here.
    pub not_found: u64,
    /// Invalid requests: another method, a body, or too many pieces.
    pub bad_request: u64,
    /// Requests without a signature.
    pub unsigned: u64,
    /// Requests whose signature was too old, or from the future.
    pub expired: u64,
    /// Requests with an invalid signature.
    pub bad_signature: u64,
    /// Requests that got no upload slot in time, or arrived before the store's time was known.
    pub busy: u64,
    /// Requests that failed because the pieces could not be read.
    pub failed: u64,
}

/// Shared counters of a server. Clones are the same counters.
#[derive(Debug, Clone, Default)]
pub struct ServerCounters(Arc<Mutex<ServerCounts>>);

impl ServerCounters {
    /// Current values.
    #[must_use]
    pub fn snapshot(&self) -> ServerCounts {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn count(&self, add: impl FnOnce(&mut ServerCounts)) {
        add(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}
