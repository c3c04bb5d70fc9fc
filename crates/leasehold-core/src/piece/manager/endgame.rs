//! Pieces that already have a holder, for a peer without other work: the end game, and slow holders.
//!
//! A single slow peer must not determine the duration of the whole fetch. Towards the end a piece is requested from two
//! peers, and before that a holder that is much slower than an idle peer loses its piece. Neither has a penalty.

use std::time::Duration;

use super::PieceLeaseManager;
use super::leases::LiveLease;
use super::messages::{CancelReason, Cancelled, LeaseRequest, PeerKind, PieceLease, PieceLeaseId};
use super::peer::ConnectedPeer;
use super::request::{GrantLimit, Terms};

impl PieceLeaseManager {
    pub(super) fn compete(
        &mut self,
        request: &LeaseRequest,
        limit: GrantLimit,
        now: Duration,
        cancelled: &mut Vec<Cancelled>,
    ) -> Vec<PieceLease> {
        let mut granted = Vec::new();
        if limit.terms != Terms::Ranked {
            // A peer on probation only gets pieces without a holder.
            return granted;
        }
        for (slow, piece) in self.slow_holders(request, limit.leases) {
            cancelled.extend(self.take_from(slow, piece, CancelReason::FasterPeer));
            granted.push(self.lease(&request.peer, piece..piece + 1, limit.terms, now));
            self.overtaken += 1;
        }
        let left = limit.leases.saturating_sub(u32::try_from(granted.len()).unwrap_or(u32::MAX));
        for piece in self.unfinished(request, left) {
            granted.push(self.lease(&request.peer, piece..piece + 1, limit.terms, now));
            self.duplicates += 1;
        }
        granted
    }

    /// Leases that this peer takes over, slowest first. An idle peer takes one, and then is no longer idle.
    fn slow_holders(&self, request: &LeaseRequest, most: u32) -> Vec<(PieceLeaseId, u32)> {
        let Some(peer) = self.peers.get(&request.peer) else { return Vec::new() };
        let Some(rate) = peer.record.rate else { return Vec::new() };
        let mut slow: Vec<_> =
            self.leases.iter().filter_map(|(id, held)| self.slower(id, held, peer, request, rate)).collect();
        slow.sort_by(|one, other| other.0.total_cmp(&one.0));
        let mut is_idle = peer.live == 0;
        slow.retain(|(times, ..)| {
            let is_taken =
                *times > self.config.slower_than_any || (is_idle && *times > self.config.slower_than_idle);
            is_idle &= !is_taken;
            is_taken
        });
        slow.truncate(most as usize);
        slow.into_iter().map(|(_, id, piece)| (id, piece)).collect()
    }

    /// Factor by which a lease's holder is slower, if its piece can be taken over.
    fn slower(
        &self,
        id: PieceLeaseId,
        held: &LiveLease,
        peer: &ConnectedPeer,
        request: &LeaseRequest,
        rate: f64,
    ) -> Option<(f64, PieceLeaseId, u32)> {
        let holder = self.peers.get(&held.peer).filter(|holder| holder.kind == PeerKind::Peer)?;
        let piece = *held.open.first()?;
        let is_sole = self.sets.holders(piece).count() == 1;
        (is_sole && self.may_join(held, peer, request, piece)).then_some((
            rate / holder.record.rate?,
            id,
            piece,
        ))
    }

    /// Pieces with one holder in the end game, in the order in which they were leased.
    fn unfinished(&self, request: &LeaseRequest, most: u32) -> Vec<u32> {
        let is_end_game =
            self.sets.missing.count() == 0 && self.sets.leased.count() <= self.config.endgame_pieces;
        let Some(peer) = self.peers.get(&request.peer).filter(|_| is_end_game) else { return Vec::new() };
        let open = self.leases.iter().flat_map(|(_, held)| held.open.iter().map(move |piece| (held, *piece)));
        let joins = |(held, piece): &(&LiveLease, u32)| {
            self.sets.holders(*piece).count() == 1 && self.may_join(held, peer, request, *piece)
        };
        open.filter(joins).map(|(_, piece)| piece).take(most as usize).collect()
    }

    /// True if this peer can get a piece of another peer's lease too. Not if all its bytes were received: then it is
    /// almost done.
    fn may_join(&self, held: &LiveLease, peer: &ConnectedPeer, request: &LeaseRequest, piece: u32) -> bool {
        let is_free_for_it = held.peer != request.peer && !held.verifying.contains_key(&piece);
        is_free_for_it && request.have.has(piece) && self.may_take(peer, piece)
    }
}
