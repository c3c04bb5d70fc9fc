//! Statistics of a fetch in progress.

use std::time::Duration;

use super::PieceLeaseManager;
use super::messages::{PeerId, PeerKind};
use super::peer::{ConnectedPeer, PeerCounters};

/// Statistics of a manager.
#[derive(Debug, Clone, PartialEq)]
pub struct ManagerStats {
    /// Pieces that are needed and not leased.
    pub missing: u32,
    /// Pieces that are being fetched.
    pub leased: u32,
    /// Pieces that are verified.
    pub verified: u32,
    /// Pieces that are not needed.
    pub skipped: u32,
    /// Requests so far.
    pub requests: u64,
    /// Second leases granted in the end game.
    pub duplicates: u64,
    /// Pieces that slow holders lost to faster peers.
    pub overtaken: u64,
    /// Pieces that arrived after their lease was over and were still needed.
    pub late: u64,
    /// Pieces examined by all picks together.
    pub examined: u64,
    /// Connected peers, by id.
    pub peers: Vec<PeerStats>,
}

/// Statistics of a peer.
#[derive(Debug, Clone, PartialEq)]
pub struct PeerStats {
    /// Id of the peer.
    pub peer: PeerId,
    /// Kind of the peer.
    pub kind: PeerKind,
    /// Score at the requested time. That of the origin never changes.
    pub score: f64,
    /// Leases that it holds.
    pub live_leases: u32,
    /// Counters of the peer.
    pub counters: PeerCounters,
    /// True if it may hold only one lease at a time, because of corrupt data.
    pub is_on_parole: bool,
    /// True if it gets no leases, because of more corrupt data.
    pub is_quarantined: bool,
    /// Time of the next probe, if its score is too low.
    pub probe_due: Option<Duration>,
    /// Bytes per second under one lease, newer measurements counting more.
    pub rate: Option<f64>,
}

impl PieceLeaseManager {
    /// Returns the statistics at a time.
    #[must_use]
    pub fn stats(&self, now: Duration) -> ManagerStats {
        ManagerStats {
            missing: self.sets.missing.count(),
            leased: self.sets.leased.count(),
            verified: self.sets.verified.count(),
            skipped: self.sets.skipped.count(),
            requests: self.requests,
            duplicates: self.duplicates,
            overtaken: self.overtaken,
            late: self.late,
            examined: self.picker.examined(),
            peers: self.peers.iter().map(|(id, peer)| self.stats_of(id, peer, now)).collect(),
        }
    }

    fn stats_of(&self, id: &PeerId, peer: &ConnectedPeer, now: Duration) -> PeerStats {
        PeerStats {
            peer: id.clone(),
            kind: peer.kind,
            score: peer.record.score.at(&self.config, now),
            live_leases: peer.live,
            counters: peer.record.counters,
            is_on_parole: peer.is_on_parole(&self.config),
            is_quarantined: peer.is_quarantined(&self.config),
            probe_due: peer.probe_due(&self.config, now),
            rate: peer.record.rate,
        }
    }
}
