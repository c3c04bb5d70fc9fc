//! Errors of requests to a peer.

use std::fmt;

use http::StatusCode;
use leasehold_core::Kind;

use super::PeerFailure;

/// Error of a request to a peer.
#[derive(Debug)]
pub(super) enum Trouble {
    /// The peer is unreachable, or the connection broke.
    Network(String),
    /// The peer sent nothing for too long.
    Silent,
    /// The peer is at its upload limit.
    Busy,
    /// The peer does not have the artifact or the pieces.
    Missing,
    /// The peer rejected our signature.
    Denied,
    /// The response is invalid.
    Nonsense(String),
    /// The store's time is not known yet, so no request can be signed.
    Timeless,
}

impl Trouble {
    /// Error for a response without pieces.
    pub(super) fn of(status: StatusCode) -> Self {
        match status {
            StatusCode::SERVICE_UNAVAILABLE => Self::Busy,
            StatusCode::NOT_FOUND => Self::Missing,
            StatusCode::UNAUTHORIZED => Self::Denied,
            other => Self::Nonsense(format!("unexpected status {other}")),
        }
    }

    /// Kind of the resulting error.
    pub(super) fn kind(&self) -> Kind {
        match self {
            Self::Network(_) | Self::Silent | Self::Busy | Self::Timeless => Kind::Unavailable,
            Self::Denied => Kind::Denied,
            Self::Missing | Self::Nonsense(_) => Kind::Corrupt,
        }
    }

    /// Failure that is counted against the peer.
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
            Self::Silent => f.write_str("timed out"),
            Self::Busy => f.write_str("busy"),
            Self::Missing => f.write_str("requested pieces not found"),
            Self::Denied => f.write_str("request signature rejected; check the peer secret"),
            Self::Timeless => f.write_str("cannot sign the request: the store's time is not known yet"),
        }
    }
}
