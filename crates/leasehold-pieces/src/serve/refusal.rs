//! Reasons for an error response, with status and counter.

use std::fmt;

use http::StatusCode;

use super::tally::RefusedCounts;
use crate::sign::Unproven;

/// Reason for an error response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The path is unknown, or the pieces it names are not here.
    Missing,
    /// Neither GET nor HEAD.
    Method,
    /// The request has a body.
    Body,
    /// More pieces than fit into a response.
    TooMany,
    /// The signature is missing or invalid.
    Unproven(Unproven),
    /// The store's time is not known yet, so no signature can be checked.
    Timeless,
    /// No upload slot became free in time.
    Busy,
    /// The shelf could not be read.
    Failed,
}

impl Refusal {
    pub(super) fn status(self) -> StatusCode {
        match self {
            Self::Missing => StatusCode::NOT_FOUND,
            Self::Method => StatusCode::METHOD_NOT_ALLOWED,
            Self::Body | Self::TooMany => StatusCode::BAD_REQUEST,
            Self::Unproven(_) => StatusCode::UNAUTHORIZED,
            Self::Timeless | Self::Busy => StatusCode::SERVICE_UNAVAILABLE,
            Self::Failed => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// Counter for this reason.
    pub(super) fn counter(self, refused: &mut RefusedCounts) -> &mut u64 {
        match self {
            Self::Missing => &mut refused.missing,
            Self::Method | Self::Body | Self::TooMany => &mut refused.wrong,
            Self::Unproven(Unproven::Unsigned) => &mut refused.unsigned,
            Self::Unproven(Unproven::Expired) => &mut refused.expired,
            Self::Unproven(Unproven::Wrong) => &mut refused.forged,
            Self::Timeless | Self::Busy => &mut refused.busy,
            Self::Failed => &mut refused.failed,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str("not found"),
            Self::Method => f.write_str("method not allowed; use GET or HEAD"),
            Self::Body => f.write_str("request must not have a body"),
            Self::TooMany => f.write_str("too many pieces for one response"),
            Self::Unproven(unproven) => unproven.fmt(f),
            Self::Timeless => f.write_str("the store's time is not known yet"),
            Self::Busy => f.write_str("too many uploads"),
            Self::Failed => f.write_str("failed to read the pieces"),
        }
    }
}
