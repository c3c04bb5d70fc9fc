//! Why a request does not get what it asks for, as an answer and as a count.

use std::fmt;

use http::StatusCode;

use super::tally::Refused;
use crate::sign::Unproven;

/// A reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The path means nothing, or what it names is not here.
    Missing,
    /// Neither GET nor HEAD.
    Method,
    /// The request has a body.
    Body,
    /// More pieces than fit into an answer.
    TooMany,
    /// The signature.
    Unproven(Unproven),
    /// The store has not said its time yet, so no signature can be checked.
    Timeless,
    /// All uploads were taken for too long.
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

    /// Where it is counted.
    pub(super) fn counter(self, refused: &mut Refused) -> &mut u64 {
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
            Self::Missing => f.write_str("not here"),
            Self::Method => f.write_str("only GET and HEAD"),
            Self::Body => f.write_str("a request has no body"),
            Self::TooMany => f.write_str("more pieces than fit into one answer"),
            Self::Unproven(unproven) => unproven.fmt(f),
            Self::Timeless => f.write_str("the store's time is not known yet"),
            Self::Busy => f.write_str("too many uploads"),
            Self::Failed => f.write_str("the pieces could not be read"),
        }
    }
}
