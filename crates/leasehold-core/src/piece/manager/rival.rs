//! Pieces that have a holder, for a peer that finds nothing else: the end game, and slow holders.
//!
//! A single slow peer must not decide how long the whole takes. Towards the end a piece is asked of two peers, and before
//! that a holder that is much slower than one who has nothing to do loses its piece. Neither is anyone's fault.

use std::time::Duration;

use super::PieceLeaseManager;
use super::leases::Held;
use super::messages::{CancelReason, Cancelled, LeaseRequest, PeerKind, PieceLease, PieceLeaseId};
use super::peer::Peer;
use super::request::{Room, Terms};

impl PieceLeaseManager {
    pub(super) fn rival(
        &mut self,
        request: &LeaseRequest,
        room: Room,
        now: Duration,
        cancelled: &mut Vec<Cancelled>,
    ) -> Vec<PieceLease> {
        let mut granted = Vec::new();
        if room.terms != Terms::Ranked {
            // Whoever has to prove itself does so with pieces that nobody works on.
            return granted;
        }
        for (slow, piece) in self.slow_holders(request, room.leases) {
            cancelled.extend(self.take_from(slow, piece, CancelReason::Overtaken));
            granted.push(self.lease(&request.peer, piece..piece + 1, room.terms, now));
            self.overtaken += 1;
        }
        let left = room.leases.saturating_sub(u32::try_from(granted.len()).unwrap_or(u32::MAX));
        for piece in self.unfinished(request, left) {
            granted.push(self.lease(&request.peer, piece..piece + 1, room.terms, now));
            self.duplicates += 1;
        }
        granted
    }

    /// Leases that this peer takes over, slowest first. A peer without leases takes one; it is not idle any more then.
    fn slow_holders(&self, request: &LeaseRequest, most: u32) -> Vec<(PieceLeaseId, u32)> {
        let Some(peer) = self.peers.get(&request.peer) else { return Vec::new() };
        let Some(rate) = peer.standing.rate else { return Vec::new() };
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

    /// By how many times a lease's holder is slower, if its piece can be taken over.
    fn slower(
        &self,
        id: PieceLeaseId,
        held: &Held,
        peer: &Peer,
        request: &LeaseRequest,
        rate: f64,
    ) -> Option<(f64, PieceLeaseId, u32)> {
        let holder = self.peers.get(&held.peer).filter(|holder| holder.kind == PeerKind::Peer)?;
        let piece = *held.open.first()?;
        let is_sole = self.sets.holders(piece).count() == 1;
        (is_sole && self.may_join(held, peer, request, piece)).then_some((
            rate / holder.standing.rate?,
            id,
            piece,
        ))
    }

    /// In the end game: pieces with one holder, those that were leased first first.
    fn unfinished(&self, request: &LeaseRequest, most: u32) -> Vec<u32> {
        let is_end_game =
            self.sets.missing.count() == 0 && self.sets.leased.count() <= self.config.endgame_pieces;
        let Some(peer) = self.peers.get(&request.peer).filter(|_| is_end_game) else { return Vec::new() };
        let open = self.leases.iter().flat_map(|(_, held)| held.open.iter().map(move |piece| (held, *piece)));
        let joins = |(held, piece): &(&Held, u32)| {
            self.sets.holders(*piece).count() == 1 && self.may_join(held, peer, request, *piece)
        };
        open.filter(joins).map(|(_, piece)| piece).take(most as usize).collect()
    }

    /// Whether a piece of someone's lease could be given to this peer too. Not if its bytes are here: then it is as good
    /// as done.
    fn may_join(&self, held: &Held, peer: &Peer, request: &LeaseRequest, piece: u32) -> bool {
        let is_free_for_it = held.peer != request.peer && !held.verifying.contains_key(&piece);
        is_free_for_it && request.have.has(piece) && self.may_take(peer, piece)
    }
}
