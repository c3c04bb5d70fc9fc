//! Reasons for an error response, with status and counter.

use std::fmt;

use http::StatusCode;
use leasehold_http::SignatureError;

use super::counters::RefusedCounts;

/// Reason for an error response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ErrorResponse {
    /// The path is unknown, or the pieces it names are not here.
    NotFound,
    /// Neither GET nor HEAD.
    MethodNotAllowed,
    /// The request has a body.
    UnexpectedBody,
    /// More pieces than fit into a response.
    TooManyPieces,
    /// The signature is missing or invalid.
    InvalidSignature(SignatureError),
    /// The store's time is not known yet, so no signature can be checked.
    TimeUnknown,
    /// No upload slot became free in time.
    Busy,
    /// The pieces could not be read.
    ReadFailed,
}

impl ErrorResponse {
    pub(super) fn status(self) -> StatusCode {
        match self {
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Self::UnexpectedBody | Self::TooManyPieces => StatusCode::BAD_REQUEST,
            Self::InvalidSignature(_) => StatusCode::UNAUTHORIZED,
            Self::TimeUnknown | Self::Busy => StatusCode::SERVICE_UNAVAILABLE,
            Self::ReadFailed => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// Counter for this reason.
    pub(super) fn counter(self, refused: &mut RefusedCounts) -> &mut u64 {
        match self {
            Self::NotFound => &mut refused.not_found,
            Self::MethodNotAllowed | Self::UnexpectedBody | Self::TooManyPieces => &mut refused.bad_request,
            Self::InvalidSignature(SignatureError::Unsigned) => &mut refused.unsigned,
            Self::InvalidSignature(SignatureError::Expired) => &mut refused.expired,
            Self::InvalidSignature(SignatureError::Invalid) => &mut refused.bad_signature,
            Self::TimeUnknown | Self::Busy => &mut refused.busy,
            Self::ReadFailed => &mut refused.failed,
        }
    }
}

impl fmt::Display for ErrorResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound => f.write_str("not found"),
            Self::MethodNotAllowed => f.write_str("method not allowed; use GET or HEAD"),
            Self::UnexpectedBody => f.write_str("request must not have a body"),
            Self::TooManyPieces => f.write_str("too many pieces for one response"),
            Self::InvalidSignature(error) => error.fmt(f),
            Self::TimeUnknown => f.write_str("the store's time is not known yet"),
            Self::Busy => f.write_str("too many uploads"),
            Self::ReadFailed => f.write_str("failed to read the pieces"),
        }
    }
}
