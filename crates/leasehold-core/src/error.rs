//! The one error type of the library crates.
//!
//! Outcomes that a caller is expected to meet (a lost race, a missing object, a rejected event) are values.
//! An [`Error`] is a failure, and its [`Kind`] says what to *do* about it. The same six kinds are exit codes
//! on the command line, HTTP statuses on the dashboard and exceptions in Python; this table is the only one.

use std::error::Error as StdError;
use std::fmt;

/// A result whose failure is an [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What to do about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The store did not answer in time: try again later.
    Unavailable,
    /// The store refused us: fix the credentials or the permissions.
    Denied,
    /// The call or a setting is wrong: fix it.
    Invalid,
    /// Something in the store cannot be understood: stop, keep it, look at it.
    Corrupt,
    /// What we held belongs to someone else now: stop acting on it.
    Lost,
    /// A bug of ours.
    Internal,
}

impl Kind {
    /// Every kind, in the order of the table.
    pub const ALL: [Kind; 6] =
        [Kind::Unavailable, Kind::Denied, Kind::Invalid, Kind::Corrupt, Kind::Lost, Kind::Internal];

    /// The word for it in machine-readable output.
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

    /// The exit code of the command line (those of `sysexits.h` where it has one).
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

    /// The status of an HTTP answer.
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

/// What an error is about, where a caller may want to tell it from others of its kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Matter {
    /// There is no such thing.
    Missing,
    /// It contradicts what is there.
    Conflict,
    /// What was waited for has not happened in time.
    NotYet,
}

impl Matter {
    /// The word for it in machine-readable output.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Matter::Missing => "missing",
            Matter::Conflict => "conflict",
            Matter::NotYet => "not-yet",
        }
    }
}

/// A failure, with the kind that says what to do and a message that names the thing.
#[derive(Debug)]
pub struct Error {
    kind: Kind,
    message: String,
    outcome_unknown: bool,
    matter: Option<Matter>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Error {
    /// An error of this kind; the message is lower case, without a full stop, and names the thing.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), outcome_unknown: false, matter: None, source: None }
    }

    /// The call or a setting is wrong.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(Kind::Invalid, message)
    }

    /// Adds what led to it.
    #[must_use]
    pub fn because(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Marks that a write of ours may or may not have happened, or may still happen.
    #[must_use]
    pub fn with_unknown_outcome(mut self) -> Self {
        self.outcome_unknown = true;
        self
    }

    /// Says what it is about.
    #[must_use]
    pub fn about(mut self, matter: Matter) -> Self {
        self.matter = Some(matter);
        self
    }

    /// What it is about, where that was said.
    #[must_use]
    pub fn matter(&self) -> Option<Matter> {
        self.matter
    }

    /// What to do about it.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Whether a write of ours may have happened, or may still happen.
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
        let error = Error::invalid("queue name `a/b` has a slash").because("told so");
        assert_eq!(error.to_string(), "queue name `a/b` has a slash");
        assert_eq!(error.source().map(ToString::to_string).as_deref(), Some("told so"));
        assert!(!error.outcome_is_unknown());
        assert!(error.with_unknown_outcome().outcome_is_unknown());
    }
}
