//! Grant or rejection of a request.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use super::leases::LiveLease;
use super::messages::{Cancelled, LeaseRequest, LeaseResponse, PeerKind, PieceLease, RejectedReason};
use super::peer::ConnectedPeer;
use super::{PeerId, PieceLeaseManager};
use crate::limits::RANGE_BYTES_MAX;
use crate::piece::config::ManagerConfig;
use crate::piece::map::PieceMap;

/// Maximum grant of a request.
#[derive(Debug, Clone, Copy)]
pub(super) struct GrantLimit {
    pub(super) leases: u32,
    pub(super) terms: Terms,
}

/// Terms under which a peer gets leases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Terms {
    /// Its score is high enough.
    Ranked,
    /// Its score is too low, but no other peer has some of its pieces; it gets only those.
    SoleSource,
    /// Its score is too low, but a probe is due.
    Probe,
}

impl PieceLeaseManager {
    /// Decides which pieces to fetch from a peer. Expired leases end first, even if the request is then rejected.
    pub fn request_lease(&mut self, request: &LeaseRequest, now: Duration) -> LeaseResponse {
        let mut cancelled = self.expire(now);
        self.requests += 1;
        let decided = self.admit(request, now).and_then(|limit| {
            let granted = self.grant(request, limit, now, &mut cancelled);
            if granted.is_empty() { Err(RejectedReason::NoAvailablePieces) } else { Ok(granted) }
        });
        let (granted, rejected) = match decided {
            Ok(granted) => (granted, None),
            Err(reason) => (Vec::new(), Some(reason)),
        };
        let (request_id, peer) = (self.requests, request.peer.clone());
        LeaseResponse { request_id, peer, granted, rejected, cancelled }
    }

    /// Checks a request, in the order of the rejection reasons.
    fn admit(&self, request: &LeaseRequest, now: Duration) -> Result<GrantLimit, RejectedReason> {
        if request.max_leases == 0 || request.have.len() != self.cut.pieces() {
            return Err(RejectedReason::InvalidRequest);
        }
        let peer = self.peers.get(&request.peer).ok_or(RejectedReason::InvalidRequest)?;
        let terms = self.terms(peer, request, now).ok_or(RejectedReason::PeerRankingTooLow)?;
        let capacity = if terms == Terms::Probe { 1 } else { peer.capacity(&self.config) };
        let room = capacity.saturating_sub(peer.live);
        if room == 0 {
            return Err(RejectedReason::PeerAtCapacity);
        }
        if !request.have.intersects(&self.sets.missing) && !request.have.intersects(&self.sets.leased) {
            return Err(RejectedReason::NoMatchingPieces);
        }
        Ok(GrantLimit { leases: room.min(request.max_leases), terms })
    }

    fn terms(&self, peer: &ConnectedPeer, request: &LeaseRequest, now: Duration) -> Option<Terms> {
        if peer.is_quarantined(&self.config) {
            return None;
        }
        if !peer.is_ranked_too_low(&self.config, now) {
            return Some(Terms::Ranked);
        }
        if request.have.iter().any(|piece| self.sets.missing.has(piece) && self.is_sole_source(peer, piece)) {
            return Some(Terms::SoleSource);
        }
        let is_due = peer.probe_due(&self.config, now).is_some_and(|due| now >= due);
        is_due.then_some(Terms::Probe)
    }

    fn is_sole_source(&self, peer: &ConnectedPeer, piece: u32) -> bool {
        self.picker.sources(piece) == u32::from(peer.have.has(piece))
    }

    /// True if the peer may get this piece: not one with which it failed, as long as another peer can try it.
    pub(super) fn may_take(&self, peer: &ConnectedPeer, piece: u32) -> bool {
        !peer.failed_pieces.has(piece) || self.picker.reliable_sources(piece) == 0
    }

    fn grant(
        &mut self,
        request: &LeaseRequest,
        limit: GrantLimit,
        now: Duration,
        cancelled: &mut Vec<Cancelled>,
    ) -> Vec<PieceLease> {
        let candidates = self.candidates(request, limit.terms);
        let runs = self.pick(candidates, request, limit);
        if !runs.is_empty() {
            return runs.into_iter().map(|run| self.lease(&request.peer, run, limit.terms, now)).collect();
        }
        // Nothing to pick: only unfinished pieces of other peers are left.
        self.compete(request, limit, now, cancelled)
    }

    /// Missing pieces that this peer may get.
    fn candidates(&self, request: &LeaseRequest, terms: Terms) -> PieceMap {
        let mut candidates = request.have.clone();
        candidates.keep(&self.sets.missing);
        let Some(peer) = self.peers.get(&request.peer) else { return candidates };
        let mut failed = peer.failed_pieces.clone();
        failed.keep(&candidates);
        for piece in failed.iter().filter(|piece| !self.may_take(peer, *piece)) {
            candidates.remove(piece);
        }
        if terms == Terms::SoleSource {
            let all = candidates.clone();
            for piece in all.iter().filter(|piece| !self.is_sole_source(peer, *piece)) {
                candidates.remove(piece);
            }
        }
        candidates
    }

    fn pick(
        &mut self,
        mut candidates: PieceMap,
        request: &LeaseRequest,
        limit: GrantLimit,
    ) -> Vec<Range<u32>> {
        let kind = self.peers.get(&request.peer).map(|peer| peer.kind);
        if kind != Some(PeerKind::Origin) || request.run_bytes_max == 0 {
            let pieces = self.picker.pick(&mut candidates, limit.leases, request.order);
            return pieces.into_iter().map(|piece| piece..piece + 1).collect();
        }
        let bytes_max = request.run_bytes_max.min(RANGE_BYTES_MAX);
        let run = |_| self.picker.pick_run(&mut candidates, request.order, &self.cut, bytes_max);
        (0..limit.leases).map_while(run).collect()
    }

    /// Records a lease.
    pub(super) fn lease(&mut self, id: &PeerId, run: Range<u32>, terms: Terms, now: Duration) -> PieceLease {
        let range = self.cut.bytes_of_run(&run);
        let bytes = range.end - range.start;
        let peer = self.peers.get_mut(id).expect("the request was admitted, and no peer has left since");
        let length = length(bytes, peer.record.rate, &self.config);
        peer.live += 1;
        peer.is_probed |= terms == Terms::Probe;
        let lease = self.leases.insert(LiveLease {
            peer: id.clone(),
            pieces: run.clone(),
            open: run.clone().collect::<BTreeSet<_>>(),
            verifying: BTreeMap::new(),
            granted_at: now,
            expires_at: now.saturating_add(length),
            length,
            bytes,
            progressed: 0,
            verified_bytes: 0,
            is_probe: terms == Terms::Probe,
        });
        run.for_each(|piece| self.sets.add_holder(piece, lease.id));
        lease
    }
}

/// Duration of a lease: a multiple of the expected time for the bytes, or a guess without a measured rate.
#[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52 bytes")]
fn length(bytes: u64, rate: Option<f64>, config: &ManagerConfig) -> Duration {
    let bytes = bytes as f64;
    let seconds = match rate {
        Some(rate) => config.lease_factor * bytes / rate,
        None => {
            config.lease_first.as_secs_f64()
                + config.lease_per_mib.as_secs_f64() * bytes / (1_024.0 * 1_024.0)
        }
    };
    // With a rate close to zero the result exceeds the range of a duration.
    let wanted = Duration::try_from_secs_f64(seconds).unwrap_or(config.lease_max);
    wanted.clamp(config.lease_min, config.lease_max)
}
