//! Error type of the library crates.
//!
//! Expected outcomes (a lost race, a missing object, a rejected event) are values, not errors. An [`Error`] is a
//! failure, and its [`Kind`] tells the caller what to *do* about it. The six kinds map to exit codes on the command
//! line, HTTP statuses on the dashboard and exceptions in Python; the table here is the only one.

use std::error::Error as StdError;
use std::fmt;

/// Result with [`Error`] as its error type.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Kind of an error, by the action that it calls for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The store did not answer in time: retry later.
    Unavailable,
    /// The store refused the request: fix the credentials or the permissions.
    Denied,
    /// The call or a setting is wrong: fix it.
    Invalid,
    /// An object in the store is corrupt: stop, keep it, inspect it.
    Corrupt,
    /// The operation came too late: the status of the task does not allow it (as for a `cancel` of a task that has ended),
    /// or another process has taken over the claim or lease. Stop acting on it.
    Lost,
    /// A bug in Leasehold.
    Internal,
}

impl Kind {
    /// All kinds, in the order of the table.
    pub const ALL: [Kind; 6] =
        [Kind::Unavailable, Kind::Denied, Kind::Invalid, Kind::Corrupt, Kind::Lost, Kind::Internal];

    /// Name in machine-readable output.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Kind::Unavailable => "unavailable",
            Kind::Denied => "denied",
            Kind::Invalid => "invalid",
            Kind::Corrupt => "corrupt",
            Kind::Lost => "lost",
            Kind::Internal => "internal",
        }
    }

    /// Exit code of the command line, from `sysexits.h` where it has one.
    #[must_use]
    pub fn exit_code(self) -> u8 {
        match self {
            Kind::Unavailable => 75,
            Kind::Denied => 77,
            Kind::Invalid => 64,
            Kind::Corrupt => 65,
            Kind::Lost => 1,
            Kind::Internal => 70,
        }
    }

    /// Status of an HTTP response.
    #[must_use]
    pub fn http_status(self) -> u16 {
        match self {
            Kind::Unavailable => 503,
            Kind::Denied => 403,
            Kind::Invalid => 400,
            Kind::Corrupt => 422,
            Kind::Lost => 409,
            Kind::Internal => 500,
        }
    }
}

/// Reason for an error, for callers that handle errors of one kind differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The thing that was asked for does not exist.
    Missing,
    /// The request contradicts the current state.
    Conflict,
    /// The awaited event did not happen in time.
    NotYet,
}

impl Reason {
    /// Name in machine-readable output.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Reason::Missing => "missing",
            Reason::Conflict => "conflict",
            Reason::NotYet => "not-yet",
        }
    }
}

/// Failure with a kind, which tells the caller what to do, and a message that names the subject.
#[derive(Debug)]
pub struct Error {
    kind: Kind,
    message: String,
    outcome_unknown: bool,
    reason: Option<Reason>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Error {
    /// Creates an error. The message is lower case, without a full stop, and names the subject.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), outcome_unknown: false, reason: None, source: None }
    }

    /// Creates an error of kind [`Kind::Invalid`]: the call or a setting is wrong.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(Kind::Invalid, message)
    }

    /// Adds the cause.
    #[must_use]
    pub fn because(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Marks the outcome of a write as unknown: it may have happened, or may still happen.
    #[must_use]
    pub fn with_unknown_outcome(mut self) -> Self {
        self.outcome_unknown = true;
        self
    }

    /// Adds the reason.
    #[must_use]
    pub fn with_reason(mut self, reason: Reason) -> Self {
        self.reason = Some(reason);
        self
    }

    /// Returns the reason, if one was given.
    #[must_use]
    pub fn reason(&self) -> Option<Reason> {
        self.reason
    }

    /// Returns the kind.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// True if a write may have happened, or may still happen.
    #[must_use]
    pub fn outcome_is_unknown(&self) -> bool {
        self.outcome_unknown
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_its_own_exit_code_and_status() {
        let table: Vec<_> = Kind::ALL.map(|k| (k.name(), k.exit_code(), k.http_status())).into();
        assert_eq!(
            table,
            [
                ("unavailable", 75, 503),
                ("denied", 77, 403),
                ("invalid", 64, 400),
                ("corrupt", 65, 422),
                ("lost", 1, 409),
                ("internal", 70, 500)
            ]
        );
    }

    #[test]
    fn an_error_keeps_its_cause() {
        let error = Error::invalid("queue name `a/b` has a slash").because("contains `/`");
        assert_eq!(error.to_string(), "queue name `a/b` has a slash");
        assert_eq!(error.source().map(ToString::to_string).as_deref(), Some("contains `/`"));
        assert!(!error.outcome_is_unknown());
        assert!(error.with_unknown_outcome().outcome_is_unknown());
    }
}
