//! What can go wrong with a peer.

use std::fmt;

use http::StatusCode;
use leasehold_core::Kind;

use super::PeerFailure;

/// What went wrong.
#[derive(Debug)]
pub(super) enum Trouble {
    /// It cannot be reached, or the connection broke.
    Network(String),
    /// It was silent for too long.
    Silent,
    /// It has enough to do.
    Busy,
    /// It has no such thing.
    Missing,
    /// It does not know our secret.
    Denied,
    /// It answered something else than we can understand.
    Nonsense(String),
    /// Our own: the store has not said its time yet, so nothing can be signed.
    Timeless,
}

impl Trouble {
    /// What an answer without pieces means.
    pub(super) fn of(status: StatusCode) -> Self {
        match status {
            StatusCode::SERVICE_UNAVAILABLE => Self::Busy,
            StatusCode::NOT_FOUND => Self::Missing,
            StatusCode::UNAUTHORIZED => Self::Denied,
            other => Self::Nonsense(format!("it answered {other}")),
        }
    }

    /// What to do about it.
    pub(super) fn kind(&self) -> Kind {
        match self {
            Self::Network(_) | Self::Silent | Self::Busy | Self::Timeless => Kind::Unavailable,
            Self::Denied => Kind::Denied,
            Self::Missing | Self::Nonsense(_) => Kind::Corrupt,
        }
    }

    /// How it counts for the peer.
    pub(super) fn failure(&self) -> PeerFailure {
        match self {
            Self::Network(_) | Self::Busy | Self::Timeless => PeerFailure::NetworkError,
            Self::Silent => PeerFailure::Timeout,
            Self::Missing | Self::Denied | Self::Nonsense(_) => PeerFailure::InvalidData(self.to_string()),
        }
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Network(words) | Self::Nonsense(words) => f.write_str(words),
            Self::Silent => f.write_str("it was silent for too long"),
            Self::Busy => f.write_str("it is busy"),
            Self::Missing => f.write_str("it does not have that"),
            Self::Denied => f.write_str("it does not accept our signature"),
            Self::Timeless => f.write_str("the store's time is not known yet, so nothing can be signed"),
        }
    }
}
