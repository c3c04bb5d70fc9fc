//! Requests to a manager and its responses.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::piece::map::PieceMap;
use crate::piece::picker::PieceOrder;

/// Id of a peer.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerId(Arc<str>);

impl PeerId {
    /// Returns the id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for PeerId {
    fn from(name: &str) -> Self {
        Self(name.into())
    }
}

impl From<String> for PeerId {
    fn from(name: String) -> Self {
        Self(name.into())
    }
}

impl fmt::Display for PeerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Kind of peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerKind {
    /// Cache of another node. It may be slow, gone or wrong, and is ranked.
    Peer,
    /// The bucket, as the last resort: never ranked, replaced by a faster peer or quarantined. Its errors are counted.
    Origin,
}

/// Id of a lease on pieces; a manager never uses one twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PieceLeaseId(pub(super) u64);

impl fmt::Display for PieceLeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Request for the next pieces to fetch from a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseRequest {
    /// Peer that would send the pieces.
    pub peer: PeerId,
    /// Pieces to choose from; not necessarily all that the peer has.
    pub have: PieceMap,
    /// Maximum number of leases to grant.
    pub max_leases: u32,
    /// Maximum size of a run of adjacent pieces from the origin; 0 for single pieces. Peers always send single pieces.
    pub run_bytes_max: u64,
    /// Order in which pieces are chosen.
    pub order: PieceOrder,
}

/// Lease to fetch pieces from a peer for a limited time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PieceLease {
    /// Id of the lease.
    pub id: PieceLeaseId,
    /// Peer that sends the pieces.
    pub peer: PeerId,
    /// One piece, or from the origin a run of adjacent pieces.
    pub pieces: Range<u32>,
    /// Expiry, unless progress is made.
    pub expires_at: Duration,
}

/// Reason for the rejection of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RejectedReason {
    /// No leases were requested, the map is of another artifact, or the peer is unknown.
    InvalidRequest,
    /// The peer has failed too often, or sent corrupt data too often.
    PeerRankingTooLow,
    /// The peer has the maximum number of leases.
    PeerAtCapacity,
    /// The peer has no pieces that are still needed.
    NoMatchingPieces,
    /// The needed pieces of the peer are leased, or left to other peers after it failed with them.
    NoAvailablePieces,
}

/// Response to a [`LeaseRequest`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseResponse {
    /// Number of the request, counted by the manager.
    pub request_id: u64,
    /// Peer of the request.
    pub peer: PeerId,
    /// Granted leases.
    pub granted: Vec<PieceLease>,
    /// Reason, if nothing was granted.
    pub rejected: Option<RejectedReason>,
    /// Leases of any peer that ended meanwhile: stop waiting for their data.
    pub cancelled: Vec<Cancelled>,
}

/// Lease, or some pieces of it, that was ended by the manager.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cancelled {
    /// Id of the lease.
    pub lease: PieceLeaseId,
    /// Holder of the lease.
    pub peer: PeerId,
    /// Pieces that ended; the other pieces of a run continue.
    pub pieces: Range<u32>,
    /// Reason.
    pub why: CancelReason,
}

/// Reason why the manager ended a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CancelReason {
    /// The lease expired. The only reason with a penalty for the holder.
    Expired,
    /// Another peer delivered the piece.
    Verified,
    /// A much faster peer has the lease now.
    FasterPeer,
    /// The peer left.
    Left,
    /// The peer was quarantined for corrupt data.
    Quarantined,
    /// The piece is no longer needed.
    Skipped,
}

/// Result of a piece under a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PieceCompletion {
    /// Lease of the piece.
    pub lease: PieceLeaseId,
    /// Number of the piece.
    pub piece: u32,
    /// Peer that sent it.
    pub peer: PeerId,
    /// Result.
    pub result: PieceResult,
}

/// Result of fetching a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PieceResult {
    /// The bytes have the right hash.
    Success,
    /// The bytes could not be fetched.
    Failure(FailureKind),
    /// The fetcher gave up the expired lease; a run ends as a whole.
    Expired,
}

/// Reason why a piece could not be fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureKind {
    /// The bytes have the wrong hash: corrupt data.
    VerificationFailed,
    /// The connection failed.
    NetworkError,
    /// No answer came in time.
    Timeout,
    /// The answer did not match the request and could not be hashed.
    InvalidData,
}

/// Response to a completion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Completed {
    /// Use of the data.
    pub outcome: CompletionOutcome,
    /// Leases that ended because of it.
    pub cancelled: Vec<Cancelled>,
}

/// Use of the data of a completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompletionOutcome {
    /// The holder's data was accepted.
    Accepted,
    /// The lease was over, but the data is needed: keep it.
    Late,
    /// The lease was over, and the piece is already verified or no longer needed: drop it.
    NotNeeded,
}

/// Reason why a completion was rejected. Nothing has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompletionError {
    /// No such lease, or it ended too long ago.
    UnknownLease,
    /// The lease has ended.
    LeaseEnded,
    /// Another peer holds the lease.
    NotTheHolder,
    /// The piece is not, or no longer, part of the lease.
    NotInLease,
}

impl fmt::Display for CompletionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::UnknownLease => "no such lease",
            Self::LeaseEnded => "the lease has ended",
            Self::NotTheHolder => "the lease is held by another peer",
            Self::NotInLease => "the piece is not part of the lease",
        })
    }
}

impl std::error::Error for CompletionError {}
