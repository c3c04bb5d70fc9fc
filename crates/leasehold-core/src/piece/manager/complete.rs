//! Completion of a piece.

use std::time::Duration;

use super::messages::{
    CancelReason, Cancelled, Completed, CompletionError, CompletionOutcome, FailureKind, PieceCompletion,
    PieceResult,
};
use super::peer::PeerFault;
use super::{PeerId, PieceLeaseManager};

impl PieceLeaseManager {
    /// Records the result of a piece under a lease. An error changes nothing.
    pub fn complete_piece(
        &mut self,
        completion: &PieceCompletion,
        now: Duration,
    ) -> Result<Completed, CompletionError> {
        self.advance_time(now);
        let is_over = self.check(completion, now)?;
        let cancelled = match (completion.result, is_over) {
            (PieceResult::Success, false) => self.succeed(completion, now),
            (PieceResult::Success, true) => return Ok(self.accept_late(completion, now)),
            (PieceResult::Failure(kind), false) => self.fail(completion, kind, now),
            (PieceResult::Failure(_), true) => return Err(CompletionError::LeaseEnded),
            // Expired and not expired are treated alike: the fetcher may have read the clock first.
            (PieceResult::Expired, _) => {
                vec![self.expire_one(completion.lease, now).ok_or(CompletionError::LeaseEnded)?]
            }
        };
        Ok(Completed { outcome: CompletionOutcome::Accepted, cancelled })
    }

    /// Checks that the peer has, or had, a lease on this piece. Returns true if that lease is over.
    fn check(&self, completion: &PieceCompletion, now: Duration) -> Result<bool, CompletionError> {
        let (holder, is_part, is_over) = if let Some(held) = self.leases.get(completion.lease) {
            (&held.peer, held.open.contains(&completion.piece), held.is_expired(now))
        } else {
            let (holder, pieces) =
                self.leases.ended(completion.lease).ok_or(CompletionError::UnknownLease)?;
            (holder, pieces.contains(&completion.piece), true)
        };
        if *holder != completion.peer {
            return Err(CompletionError::NotTheHolder);
        }
        if is_part { Ok(is_over) } else { Err(CompletionError::NotInLease) }
    }

    fn succeed(&mut self, completion: &PieceCompletion, now: Duration) -> Vec<Cancelled> {
        let (piece, bytes) = (completion.piece, u64::from(self.cut.len_of(completion.piece)));
        if let Some(held) = self.leases.get_mut(completion.lease) {
            held.verified_bytes += bytes;
            let here_at = held.verifying.get(&piece).copied().unwrap_or(now);
            let (so_far, took) = (held.verified_bytes, here_at.saturating_sub(held.granted_at));
            if let Some(peer) = self.peers.get_mut(&completion.peer) {
                peer.record.measure(so_far, took, &self.config);
                peer.reward(&self.config, now);
            }
        }
        self.close(completion.lease, piece);
        self.count_delivery(completion, bytes);
        self.verify(piece)
    }

    /// Accepts correct data after the lease is over, whichever peer holds the piece now. That peer gets no penalty,
    /// and this one no reward.
    fn accept_late(&mut self, completion: &PieceCompletion, now: Duration) -> Completed {
        let is_wanted = self.sets.is_wanted(completion.piece);
        let mut cancelled: Vec<_> = self.expire_one(completion.lease, now).into_iter().collect();
        if !is_wanted {
            return Completed { outcome: CompletionOutcome::NotNeeded, cancelled };
        }
        self.late += 1;
        self.count_delivery(completion, u64::from(self.cut.len_of(completion.piece)));
        cancelled.extend(self.verify(completion.piece));
        Completed { outcome: CompletionOutcome::Late, cancelled }
    }

    fn count_delivery(&mut self, completion: &PieceCompletion, bytes: u64) {
        if let Some(peer) = self.peers.get_mut(&completion.peer) {
            peer.record.counters.pieces += 1;
            peer.record.counters.bytes += bytes;
        }
    }

    fn fail(&mut self, completion: &PieceCompletion, kind: FailureKind, now: Duration) -> Vec<Cancelled> {
        let fault = PeerFault::Failed(kind);
        let is_probe = self.leases.get(completion.lease).is_some_and(|held| held.is_probe);
        self.close(completion.lease, completion.piece);
        if fault.is_about_the_piece() {
            self.note_failed_piece(&completion.peer, completion.piece);
        }
        self.penalize(&completion.peer, fault, is_probe, now)
    }

    /// Penalises a peer. A peer that has sent corrupt data too often is quarantined, and its leases end.
    fn penalize(&mut self, id: &PeerId, fault: PeerFault, is_probe: bool, now: Duration) -> Vec<Cancelled> {
        let Some(peer) = self.peers.get_mut(id) else { return Vec::new() };
        let was_in = !peer.is_quarantined(&self.config);
        peer.penalize(fault, is_probe, &self.config, now);
        if !was_in || !peer.is_quarantined(&self.config) {
            return Vec::new();
        }
        self.picker.leave(&peer.have, &peer.failed_pieces);
        self.end_all_of(id, CancelReason::Quarantined)
    }
}
