//! What can be told of a fetch while it goes on.

use std::time::Duration;

use super::PieceLeaseManager;
use super::messages::{PeerId, PeerKind};
use super::peer::{Peer, PeerTally};

/// The whole.
#[derive(Debug, Clone, PartialEq)]
pub struct ManagerStats {
    /// Pieces that are wanted and nobody fetches.
    pub missing: u32,
    /// Pieces that someone fetches.
    pub leased: u32,
    /// Pieces that are here and right.
    pub verified: u32,
    /// Pieces that are not wanted.
    pub skipped: u32,
    /// Requests so far.
    pub requests: u64,
    /// Second leases that were granted in the end game.
    pub duplicates: u64,
    /// Pieces that slow holders have lost to faster peers.
    pub overtaken: u64,
    /// Pieces that came after their lease was over, and were still of use.
    pub late: u64,
    /// Pieces that all picks together have looked at.
    pub looked_at: u64,
    /// Those who are here, by name.
    pub peers: Vec<PeerStats>,
}

/// One of those who are here.
#[derive(Debug, Clone, PartialEq)]
pub struct PeerStats {
    /// Its name.
    pub peer: PeerId,
    /// What it is.
    pub kind: PeerKind,
    /// How far it is trusted at the time asked for. The origin's stays where it began.
    pub score: f64,
    /// Leases that it holds.
    pub live_leases: u32,
    /// What it has done.
    pub tally: PeerTally,
    /// Whether it holds one lease at a time, for corrupt data.
    pub is_on_parole: bool,
    /// Whether it is shut out, for more of it.
    pub is_quarantined: bool,
    /// When it may be tried again, if its score is too low.
    pub probe_due: Option<Duration>,
    /// Bytes per second under one lease, newer measurements counting more.
    pub rate: Option<f64>,
}

impl PieceLeaseManager {
    /// How it stands.
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
            looked_at: self.picker.looked_at(),
            peers: self.peers.iter().map(|(id, peer)| self.stats_of(id, peer, now)).collect(),
        }
    }

    fn stats_of(&self, id: &PeerId, peer: &Peer, now: Duration) -> PeerStats {
        PeerStats {
            peer: id.clone(),
            kind: peer.kind,
            score: peer.standing.score.at(&self.config, now),
            live_leases: peer.live,
            tally: peer.standing.tally,
            is_on_parole: peer.is_on_parole(&self.config),
            is_quarantined: peer.is_quarantined(&self.config),
            probe_due: peer.probe_due(&self.config, now),
            rate: peer.standing.rate,
        }
    }
}
