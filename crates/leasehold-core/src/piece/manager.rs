//! Leases on the pieces of one artifact, for one fetch: which piece is fetched from which peer.
//!
//! ```text
//!               grant: the peer has it                 right hash, in time or late
//!   missing ──────────────────────────▶ leased ─────────────────────────────────────▶ verified
//!      │ ▲                                │ │ ▲
//!      │ └─ failed, expired, peer left ◀──┘ └─┘ end game: a second holder; overtaken: another one
//!      ▼
//!   skipped
//! ```
//!
//! The manager fetches nothing itself. The fetcher asks it which pieces to request from a peer ([`request_lease`]),
//! reports bytes ([`progress`], [`received`]) and results ([`complete_piece`]), and calls it again when
//! [`next_expiry`] is reached. It has no clock and no randomness of its own: times are durations since any zero,
//! passed into every call, and one seed gives one sequence of picks.
//!
//! Invariants: every piece is in one of the four sets. A leased piece has one holder; in the end game two. A lease
//! covers only unverified pieces. A peer holds no more leases than its capacity. `docs/protocol/pieces.md` has the
//! rules and their reasons.
//!
//! | module | contents |
//! | --- | --- |
//! | `messages` | requests, answers, completions |
//! | `request` | grant or rejection of a request |
//! | `endgame` | second holders in the end game, and takeovers from slow holders |
//! | `complete` | completion of a piece |
//! | `leases` | live leases by expiry, and recently ended ones |
//! | `peer` | state of a peer |
//! | `sets` | the four sets of pieces |
//! | `stats` | statistics |
//!
//! [`request_lease`]: PieceLeaseManager::request_lease
//! [`progress`]: PieceLeaseManager::progress
//! [`received`]: PieceLeaseManager::received
//! [`complete_piece`]: PieceLeaseManager::complete_piece
//! [`next_expiry`]: PieceLeaseManager::next_expiry

mod complete;
mod endgame;
mod leases;
mod messages;
mod peer;
mod request;
mod sets;
mod stats;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

pub use messages::{
    CancelReason, Cancelled, Completed, CompletionError, CompletionOutcome, FailureKind, LeaseRequest,
    LeaseResponse, PeerId, PeerKind, PieceCompletion, PieceLease, PieceLeaseId, PieceResult, RejectedReason,
};
pub use peer::PeerCounters;
pub use stats::{ManagerStats, PeerStats};

use self::leases::PieceLeases;
use self::peer::{ConnectedPeer, PeerFault, PeerRecord};
use self::sets::Sets;
use super::config::ManagerConfig;
use super::cut::PieceCut;
use super::map::PieceMap;
use super::picker::Picker;
use crate::error::{Error, Result};
use crate::limits::GONE_PEERS_MAX;

/// Leases on the pieces of one artifact; see the [module](self).
#[derive(Debug)]
pub struct PieceLeaseManager {
    cut: PieceCut,
    config: ManagerConfig,
    sets: Sets,
    picker: Picker,
    peers: BTreeMap<PeerId, ConnectedPeer>,
    gone: BTreeMap<PeerId, PeerRecord>,
    leases: PieceLeases,
    /// Latest time passed into a call.
    now: Duration,
    requests: u64,
    duplicates: u64,
    overtaken: u64,
    late: u64,
}

impl PieceLeaseManager {
    /// Creates a manager with all pieces missing and no peers.
    pub fn new(cut: PieceCut, config: ManagerConfig, seed: u64) -> Result<Self> {
        config.check()?;
        Ok(Self {
            cut,
            sets: Sets::all_missing(cut.pieces()),
            picker: Picker::new(cut.pieces(), config.random_first, seed),
            config,
            peers: BTreeMap::new(),
            gone: BTreeMap::new(),
            leases: PieceLeases::default(),
            now: Duration::ZERO,
            requests: 0,
            duplicates: 0,
            overtaken: 0,
            late: 0,
        })
    }

    /// Excludes these pieces from the fetch, unless they are verified already. Their leases end.
    pub fn skip(&mut self, unwanted: &PieceMap) -> Result<Vec<Cancelled>> {
        self.check_len(unwanted)?;
        let mut cancelled = Vec::new();
        for piece in unwanted.iter() {
            cancelled.extend(self.take_from_holders(piece, CancelReason::Skipped));
            self.sets.skip(piece);
        }
        Ok(cancelled)
    }

    /// Marks a piece as verified by an earlier fetch. Its leases end.
    pub fn note_verified(&mut self, piece: u32) -> Result<Vec<Cancelled>> {
        if piece >= self.cut.pieces() {
            return Err(Error::invalid(format!("piece must be below {}, got {piece}", self.cut.pieces())));
        }
        self.picker.count_picked(1);
        Ok(self.verify(piece))
    }

    /// Adds a peer. A peer that was here before keeps its kind and record; its map is replaced.
    pub fn add_peer(&mut self, id: PeerId, kind: PeerKind, have: PieceMap, now: Duration) -> Result<()> {
        self.check_len(&have)?;
        self.advance_time(now);
        if let Some(peer) = self.peers.get(&id) {
            if peer.kind != kind {
                return Err(Error::invalid(format!("`{id}` cannot be both a peer and the origin")));
            }
            return self.update_have(&id, have, now);
        }
        let record = self.gone.remove(&id).unwrap_or_else(|| PeerRecord::first(&self.config, now));
        let peer = ConnectedPeer::new(kind, have, record);
        if !peer.is_quarantined(&self.config) {
            self.picker.join(&peer.have, &peer.failed_pieces);
        }
        self.peers.insert(id, peer);
        Ok(())
    }

    /// Replaces the map of a peer. Its leases continue: they fail if it cannot deliver.
    pub fn update_have(&mut self, id: &PeerId, have: PieceMap, now: Duration) -> Result<()> {
        self.check_len(&have)?;
        self.advance_time(now);
        let Some(peer) = self.peers.get_mut(id) else {
            return Err(Error::invalid(format!("no peer `{id}`")));
        };
        let is_counted = !peer.is_quarantined(&self.config);
        if is_counted {
            self.picker.leave(&peer.have, &peer.failed_pieces);
        }
        peer.have = have;
        if is_counted {
            self.picker.join(&peer.have, &peer.failed_pieces);
        }
        Ok(())
    }

    /// Removes a peer. Its leased pieces are missing again at once, without a penalty, except for leases that had
    /// expired before.
    pub fn remove_peer(&mut self, id: &PeerId, now: Duration) -> Vec<Cancelled> {
        let mut cancelled = self.expire(now);
        cancelled.extend(self.end_all_of(id, CancelReason::Left));
        if let Some(peer) = self.peers.remove(id) {
            if !peer.is_quarantined(&self.config) {
                self.picker.leave(&peer.have, &peer.failed_pieces);
            }
            self.gone.insert(id.clone(), peer.record);
            if self.gone.len() > GONE_PEERS_MAX {
                self.gone.pop_first();
            }
        }
        cancelled
    }

    /// Reports received bytes of a lease, which extend it if they are enough. Returns its expiry.
    pub fn progress(
        &mut self,
        id: PieceLeaseId,
        bytes: u64,
        now: Duration,
    ) -> Result<Duration, CompletionError> {
        self.advance_time(now);
        let held = self.live(id, now)?;
        if held.is_progress(bytes) {
            held.progressed = bytes.min(held.bytes);
            let until = now.saturating_add(held.length);
            self.leases.postpone(id, until);
        }
        self.live(id, now).map(|held| held.expires_at)
    }

    /// Reports that all bytes of a piece were received. Returns the time until which they must be verified.
    pub fn received(
        &mut self,
        id: PieceLeaseId,
        piece: u32,
        now: Duration,
    ) -> Result<Duration, CompletionError> {
        self.advance_time(now);
        let verifying = self.config.verifying;
        let held = self.live(id, now)?;
        if !held.open.contains(&piece) {
            return Err(CompletionError::NotInLease);
        }
        // Only the first time: repeated reports must not hold a piece for ever.
        if held.verifying.insert(piece, now).is_none() {
            self.leases.postpone(id, now.saturating_add(verifying));
        }
        self.live(id, now).map(|held| held.expires_at)
    }

    /// True if a peer has sent so much corrupt data that it no longer gets leases.
    #[must_use]
    pub fn is_quarantined(&self, id: &PeerId) -> bool {
        self.peers.get(id).is_some_and(|peer| peer.is_quarantined(&self.config))
    }

    /// Ends all expired leases. Requests do that themselves; this is for callers without a request to make.
    pub fn expire(&mut self, now: Duration) -> Vec<Cancelled> {
        self.advance_time(now);
        let mut cancelled = Vec::new();
        while let Some(id) = self.leases.first_expired(now) {
            cancelled.extend(self.expire_one(id, now));
        }
        cancelled
    }

    /// Next time at which something changes without a call: a lease expires, or a peer may be probed.
    #[must_use]
    pub fn next_expiry(&self) -> Option<Duration> {
        let probes = self.peers.values().filter_map(|peer| peer.probe_due(&self.config, self.now));
        // A probe that is already due changes nothing until its peer makes a request.
        let probes = probes.filter(|due| *due > self.now);
        probes.chain(self.leases.first_expiry()).min()
    }

    /// Verified pieces.
    #[must_use]
    pub fn verified(&self) -> &PieceMap {
        &self.sets.verified
    }

    /// True if every piece is verified or skipped.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.sets.missing.count() == 0 && self.sets.leased.count() == 0
    }

    fn check_len(&self, map: &PieceMap) -> Result<()> {
        if map.len() == self.cut.pieces() {
            return Ok(());
        }
        Err(Error::invalid(format!("piece map must have {} pieces, got {}", self.cut.pieces(), map.len())))
    }

    fn advance_time(&mut self, now: Duration) {
        self.now = self.now.max(now);
    }

    fn live(&mut self, id: PieceLeaseId, now: Duration) -> Result<&mut leases::LiveLease, CompletionError> {
        let gone = if self.leases.ended(id).is_some() {
            CompletionError::LeaseEnded
        } else {
            CompletionError::UnknownLease
        };
        let held = self.leases.get_mut(id).ok_or(gone)?;
        if held.is_expired(now) { Err(CompletionError::LeaseEnded) } else { Ok(held) }
    }

    /// Expires one lease, with one penalty for its holder.
    fn expire_one(&mut self, id: PieceLeaseId, now: Duration) -> Option<Cancelled> {
        let held = self.end(id)?;
        if let Some(peer) = self.peers.get_mut(&held.peer) {
            peer.penalize(PeerFault::Expired, held.is_probe, &self.config, now);
        }
        held.open.iter().for_each(|piece| self.note_failed_piece(&held.peer, *piece));
        Some(Cancelled::whole(id, &held, CancelReason::Expired))
    }

    /// Ends a lease; its undelivered pieces are missing again.
    fn end(&mut self, id: PieceLeaseId) -> Option<leases::LiveLease> {
        let held = self.leases.remove(id)?;
        held.open.iter().for_each(|piece| self.sets.remove_holder(*piece, id));
        if let Some(peer) = self.peers.get_mut(&held.peer) {
            peer.live -= 1;
            peer.is_probed &= !held.is_probe;
        }
        Some(held)
    }

    fn end_all_of(&mut self, peer: &PeerId, why: CancelReason) -> Vec<Cancelled> {
        let ids = self.leases.of(peer);
        ids.into_iter().filter_map(|id| Some(Cancelled::whole(id, &self.end(id)?, why))).collect()
    }

    /// Removes one piece from a lease; without the last piece the lease ends.
    fn close(&mut self, id: PieceLeaseId, piece: u32) {
        let Some(held) = self.leases.get_mut(id) else { return };
        held.open.remove(&piece);
        let is_last = held.open.is_empty();
        self.sets.remove_holder(piece, id);
        if is_last {
            self.end(id);
        }
    }

    /// Removes all holders of a piece, without a penalty.
    fn take_from_holders(&mut self, piece: u32, why: CancelReason) -> Vec<Cancelled> {
        let holders: Vec<_> = self.sets.holders(piece).collect();
        holders.into_iter().filter_map(|id| self.take_from(id, piece, why)).collect()
    }

    fn take_from(&mut self, lease: PieceLeaseId, piece: u32, why: CancelReason) -> Option<Cancelled> {
        let peer = self.leases.get(lease)?.peer.clone();
        self.close(lease, piece);
        Some(Cancelled { lease, peer, pieces: piece..piece + 1, why })
    }

    fn verify(&mut self, piece: u32) -> Vec<Cancelled> {
        let cancelled = self.take_from_holders(piece, CancelReason::Verified);
        self.sets.verify(piece);
        cancelled
    }

    /// Prefers other peers for this piece.
    fn note_failed_piece(&mut self, id: &PeerId, piece: u32) {
        let Some(peer) = self.peers.get_mut(id) else { return };
        if peer.failed_pieces.insert(piece) && peer.have.has(piece) && !peer.is_quarantined(&self.config) {
            self.picker.count_failed(piece);
        }
    }
}
