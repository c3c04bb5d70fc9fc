//! How a fetch behaves, and what it tells of itself.

use leasehold_core::piece::manager::ManagerStats;
use leasehold_core::piece::{Cut, ManagerConfig, PieceMap};
use leasehold_core::{Error, Result};
use std::time::Duration;

/// So many requests to the origin are under way at once.
pub(super) const ORIGIN_REQUESTS_MAX: u32 = 4;

/// How a fetch behaves; the defaults suit most.
#[derive(Debug, Clone)]
pub struct FetchOptions {
    /// The rules of the leases on pieces.
    pub leases: ManagerConfig,
    /// So many bytes are held in memory at most, between the wire and the disk.
    pub memory_bytes_max: u64,
    /// So many bytes are asked for in a second at most.
    pub bytes_per_sec: Option<u64>,
    /// A fetch that gets nothing for so long asks the origin for what others should have got.
    pub patience: Duration,
}

impl Default for FetchOptions {
    fn default() -> Self {
        Self {
            // One more for each request whose bytes are being verified.
            leases: ManagerConfig { leases_per_origin: 2 * ORIGIN_REQUESTS_MAX, ..ManagerConfig::default() },
            memory_bytes_max: 96 * 1_024 * 1_024,
            bytes_per_sec: None,
            patience: Duration::from_secs(5),
        }
    }
}

impl FetchOptions {
    /// Refuses what makes no sense.
    pub fn check(&self) -> Result<()> {
        if self.memory_bytes_max == 0 || self.bytes_per_sec == Some(0) {
            return Err(Error::invalid("a fetch that may hold or ask for no byte would never end"));
        }
        self.leases.check()
    }
}

/// What happens during a fetch.
#[derive(Debug, Clone)]
pub enum FetchEvent {
    /// So much is here, verified, of what is wanted: at the beginning, and after every piece.
    Progress {
        /// Pieces.
        pieces: u32,
        /// Of so many.
        pieces_total: u32,
        /// Bytes.
        bytes: u64,
        /// Of so many.
        bytes_total: u64,
    },
    /// A peer has done wrong.
    Blamed {
        /// Who.
        peer: String,
        /// What.
        why: String,
    },
}

/// How a fetch went.
#[derive(Debug, Clone)]
pub struct Fetched {
    /// Bytes that came from the origin.
    pub origin_bytes: u64,
    /// Bytes that came from peers.
    pub peer_bytes: u64,
    /// Bytes that came a second time, at the end, when slow peers are not waited for.
    pub duplicate_bytes: u64,
    /// Bytes that were here already, from an earlier fetch that did not come to its end.
    pub resumed_bytes: u64,
    /// Requests to the origin.
    pub origin_requests: u64,
    /// Who gave what, and who was blamed for what.
    pub leases: Option<ManagerStats>,
}

impl Fetched {
    /// It was all here.
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

/// The bytes of these pieces: all are equally long but the last.
pub(super) fn bytes_of(cut: &Cut, map: &PieceMap) -> u64 {
    let all = u64::from(map.count()) * u64::from(cut.piece_bytes());
    let last = cut.pieces().saturating_sub(1);
    if map.has(last) { all - u64::from(cut.piece_bytes() - cut.len_of(last)) } else { all }
}
