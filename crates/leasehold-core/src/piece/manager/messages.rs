//! What is said to a manager, and what it answers.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::piece::map::PieceMap;
use crate::piece::picker::PieceOrder;

/// The name of someone who has pieces.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerId(Arc<str>);

impl PeerId {
    /// The name as text.
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

/// What someone who has pieces is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerKind {
    /// The cache of another node. It may be slow, gone or wrong, and is ranked.
    Peer,
    /// The bucket. It is the last resort: never ranked, never overtaken, never shut out. What it gets wrong is counted.
    Origin,
}

/// One lease on pieces; ids are never used twice by one manager.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PieceLeaseId(pub(super) u64);

impl fmt::Display for PieceLeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Asks what a peer should be asked for next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseRequest {
    /// Who would give the pieces.
    pub peer: PeerId,
    /// From which pieces to choose; not necessarily all that the peer has.
    pub have: PieceMap,
    /// Most leases to grant.
    pub max_leases: u32,
    /// Most bytes of a run of neighbours from the origin; 0 for single pieces. A peer is always asked for single ones.
    pub run_bytes_max: u64,
    /// Which pieces come first.
    pub order: PieceOrder,
}

/// The right, and the duty, to fetch pieces from a peer for a while.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PieceLease {
    /// Its id.
    pub id: PieceLeaseId,
    /// From whom.
    pub peer: PeerId,
    /// Which: one, or from the origin a run of neighbours.
    pub pieces: Range<u32>,
    /// Until when, unless progress is made.
    pub expires_at: Duration,
}

/// Why a request got nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RejectedReason {
    /// No leases were asked for, the map is of another artifact, or nobody knows the peer.
    InvalidRequest,
    /// The peer has failed too often, or sent corrupt data too often.
    PeerRankingTooLow,
    /// The peer has as many leases as it may have.
    PeerAtCapacity,
    /// The peer has nothing that is still wanted.
    NoMatchingPieces,
    /// What the peer has and is wanted is leased, or is left to others after it failed.
    NoAvailablePieces,
}

/// The answer to a [`LeaseRequest`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseResponse {
    /// Counts the requests of this manager.
    pub request_id: u64,
    /// Who asked.
    pub peer: PeerId,
    /// What it got.
    pub granted: Vec<PieceLease>,
    /// Why it got nothing.
    pub rejected: Option<RejectedReason>,
    /// Leases that ended meanwhile, of any peer: stop waiting for their data.
    pub cancelled: Vec<Cancelled>,
}

/// A lease, or some pieces of it, that ended without its holder's doing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cancelled {
    /// Which lease.
    pub lease: PieceLeaseId,
    /// Whose.
    pub peer: PeerId,
    /// Which pieces of it; the others of a run go on.
    pub pieces: Range<u32>,
    /// Why.
    pub why: CancelReason,
}

/// Why a lease ended without its holder's doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CancelReason {
    /// Its time was over. The only one that costs the holder something.
    Expired,
    /// Another has delivered the piece.
    Verified,
    /// Another who is much faster has it now.
    Overtaken,
    /// The peer has left.
    Left,
    /// The peer has been shut out for corrupt data.
    Quarantined,
    /// The piece is not wanted any more.
    Skipped,
}

/// How a piece under a lease ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PieceCompletion {
    /// Under which lease.
    pub lease: PieceLeaseId,
    /// Which piece of it.
    pub piece: u32,
    /// By whom.
    pub peer: PeerId,
    /// How.
    pub result: PieceResult,
}

/// How it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PieceResult {
    /// Its bytes have the right hash.
    Success,
    /// They could not be had.
    Failure(FailureKind),
    /// Whoever fetches has given the lease up for its time; all of a run ends with it.
    Expired,
}

/// Why a piece could not be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureKind {
    /// The bytes have the wrong hash: corrupt data.
    VerificationFailed,
    /// The connection failed.
    NetworkError,
    /// No answer came in time.
    Timeout,
    /// The answer was not what was asked for, and could not even be hashed.
    InvalidData,
}

/// What became of a completion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Completed {
    /// Whether the data is of use.
    pub outcome: Outcome,
    /// Leases that ended by it.
    pub cancelled: Vec<Cancelled>,
}

/// Whether the data of a completion is of use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It was the holder's word, and it counts.
    Accepted,
    /// The lease was over, the data is right all the same: keep it.
    Late,
    /// The lease was over, and the piece is verified already or not wanted any more: drop it.
    NotNeeded,
}

/// Why a completion was refused. Nothing has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompletionError {
    /// There is no such lease, or it ended too long ago to be remembered.
    UnknownLease,
    /// It ended before.
    LeaseEnded,
    /// Another peer holds it.
    NotTheHolder,
    /// This piece is not, or not any more, part of it.
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
