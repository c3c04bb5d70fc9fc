//! Errors of requests to a peer.

use std::fmt;

use http::StatusCode;
use leasehold_core::Kind;

use super::PeerFailure;

/// Error of a request to a peer.
#[derive(Debug)]
pub(super) enum PeerError {
    /// The peer is unreachable, or the connection broke.
    Network(String),
    /// The peer sent nothing for too long.
    Timeout,
    /// The peer is at its upload limit.
    Busy,
    /// The peer does not have the artifact or the pieces.
    NotFound,
    /// The peer rejected our signature.
    Denied,
    /// The response is invalid.
    InvalidResponse(String),
    /// The store's time is not known yet, so no request can be signed.
    TimeUnknown,
}

impl PeerError {
    /// Error for a response without pieces.
    pub(super) fn from_status(status: StatusCode) -> Self {
        match status {
            StatusCode::SERVICE_UNAVAILABLE => Self::Busy,
            StatusCode::NOT_FOUND => Self::NotFound,
            StatusCode::UNAUTHORIZED => Self::Denied,
            other => Self::InvalidResponse(format!("unexpected status {other}")),
        }
    }

    /// Kind of the resulting error.
    pub(super) fn kind(&self) -> Kind {
        match self {
            Self::Network(_) | Self::Timeout | Self::Busy | Self::TimeUnknown => Kind::Unavailable,
            Self::Denied => Kind::Denied,
            Self::NotFound | Self::InvalidResponse(_) => Kind::Corrupt,
        }
    }

    /// Failure that is counted against the peer.
    pub(super) fn failure(&self) -> PeerFailure {
        match self {
            Self::Network(_) | Self::Busy | Self::TimeUnknown => PeerFailure::NetworkError,
            Self::Timeout => PeerFailure::Timeout,
            Self::NotFound | Self::Denied | Self::InvalidResponse(_) => {
                PeerFailure::InvalidData(self.to_string())
            }
        }
    }
}

impl fmt::Display for PeerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Network(message) | Self::InvalidResponse(message) => f.write_str(message),
            Self::Timeout => f.write_str("timed out"),
            Self::Busy => f.write_str("busy"),
            Self::NotFound => f.write_str("requested pieces not found"),
            Self::Denied => f.write_str("request signature rejected; check the peer secret"),
            Self::TimeUnknown => f.write_str("cannot sign the request: the store's time is not known yet"),
        }
    }
}
