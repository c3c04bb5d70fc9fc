//! Options, events and statistics of a fetch.

use leasehold_core::piece::manager::ManagerStats;
use leasehold_core::piece::{ManagerConfig, PieceCut, PieceMap};
use leasehold_core::{Error, Result};
use std::time::Duration;

/// Most concurrent requests to the origin.
pub(super) const ORIGIN_REQUESTS_MAX: u32 = 4;

/// Options of a fetch.
#[derive(Debug, Clone)]
pub struct FetchOptions {
    /// Limits of the leases on pieces.
    pub leases: ManagerConfig,
    /// Most bytes in memory, between the network and the disk.
    pub memory_bytes_max: u64,
    /// Most bytes requested per second.
    pub bytes_per_sec: Option<u64>,
    /// Time without a piece after which a fetch requests blocks from the origin that are assigned to other nodes.
    pub idle_timeout: Duration,
}

impl Default for FetchOptions {
    fn default() -> Self {
        Self {
            // One more for each request whose bytes are being verified.
            leases: ManagerConfig { leases_per_origin: 2 * ORIGIN_REQUESTS_MAX, ..ManagerConfig::default() },
            memory_bytes_max: 96 * 1_024 * 1_024,
            bytes_per_sec: None,
            idle_timeout: Duration::from_secs(5),
        }
    }
}

impl FetchOptions {
    /// Checks the options.
    pub fn check(&self) -> Result<()> {
        if self.memory_bytes_max == 0 || self.bytes_per_sec == Some(0) {
            return Err(Error::invalid("memory_bytes_max and bytes_per_sec must be at least 1, got 0"));
        }
        self.leases.check()
    }
}

/// Event of a fetch.
#[derive(Debug, Clone)]
pub enum FetchEvent {
    /// Progress, sent at the beginning and after every piece.
    Progress {
        /// Verified pieces.
        pieces: u32,
        /// Pieces of the artifact.
        pieces_total: u32,
        /// Verified bytes.
        bytes: u64,
        /// Bytes of the artifact.
        bytes_total: u64,
    },
    /// A peer failed or sent corrupt data.
    PeerFailed {
        /// Id of the peer.
        peer: String,
        /// Reason for the failure.
        reason: String,
    },
}

/// Statistics of a fetch.
#[derive(Debug, Clone)]
pub struct Fetched {
    /// Bytes received from the origin.
    pub origin_bytes: u64,
    /// Bytes received from peers.
    pub peer_bytes: u64,
    /// Duplicate bytes, received at the end, when the fetch does not wait for slow peers.
    pub duplicate_bytes: u64,
    /// Bytes that were already here, from an earlier fetch that was interrupted.
    pub resumed_bytes: u64,
    /// Requests to the origin.
    pub origin_requests: u64,
    /// Bytes and failures of each source; `None` if nothing was fetched.
    pub leases: Option<ManagerStats>,
}

impl Fetched {
    /// Statistics of a fetch of a cached artifact.
    #[must_use]
    pub fn nothing() -> Self {
        Self {
            origin_bytes: 0,
            peer_bytes: 0,
            duplicate_bytes: 0,
            resumed_bytes: 0,
            origin_requests: 0,
            leases: None,
        }
    }
}

/// Number of bytes in these pieces: all have the same length but the last.
pub(super) fn bytes_of(cut: &PieceCut, map: &PieceMap) -> u64 {
    let all = u64::from(map.count()) * u64::from(cut.piece_bytes());
    let last = cut.pieces().saturating_sub(1);
    if map.has(last) { all - u64::from(cut.piece_bytes() - cut.len_of(last)) } else { all }
}
