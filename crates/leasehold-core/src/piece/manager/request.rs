//! What a peer is given, and why not.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use super::leases::Held;
use super::messages::{Cancelled, LeaseRequest, LeaseResponse, PeerKind, PieceLease, RejectedReason};
use super::peer::Peer;
use super::{PeerId, PieceLeaseManager};
use crate::limits::RANGE_BYTES_MAX;
use crate::piece::config::ManagerConfig;
use crate::piece::map::PieceMap;

/// What a request may be given at most.
#[derive(Debug, Clone, Copy)]
pub(super) struct Room {
    pub(super) leases: u32,
    pub(super) terms: Terms,
}

/// Why a peer may be given anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Terms {
    /// It is good enough.
    Ranked,
    /// It is not, but some pieces nobody else has; it gets only those.
    SoleSource,
    /// It is not, but it is time to see whether it has become better.
    Probe,
}

impl PieceLeaseManager {
    /// Decides what a peer should be asked for. Leases that are over end first, also if the request is then rejected.
    pub fn request_lease(&mut self, request: &LeaseRequest, now: Duration) -> LeaseResponse {
        let mut cancelled = self.expire(now);
        self.requests += 1;
        let decided = self.admit(request, now).and_then(|room| {
            let granted = self.grant(request, room, now, &mut cancelled);
            if granted.is_empty() { Err(RejectedReason::NoAvailablePieces) } else { Ok(granted) }
        });
        let (granted, rejected) = match decided {
            Ok(granted) => (granted, None),
            Err(reason) => (Vec::new(), Some(reason)),
        };
        let (request_id, peer) = (self.requests, request.peer.clone());
        LeaseResponse { request_id, peer, granted, rejected, cancelled }
    }

    /// The checks, in the order in which a request is told of them.
    fn admit(&self, request: &LeaseRequest, now: Duration) -> Result<Room, RejectedReason> {
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
        if !request.have.meets(&self.sets.missing) && !request.have.meets(&self.sets.leased) {
            return Err(RejectedReason::NoMatchingPieces);
        }
        Ok(Room { leases: room.min(request.max_leases), terms })
    }

    fn terms(&self, peer: &Peer, request: &LeaseRequest, now: Duration) -> Option<Terms> {
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

    fn is_sole_source(&self, peer: &Peer, piece: u32) -> bool {
        self.picker.sources(piece) == u32::from(peer.have.has(piece))
    }

    /// Whether it may be given this piece at all: not one with which it failed while someone else is left to try.
    pub(super) fn may_take(&self, peer: &Peer, piece: u32) -> bool {
        !peer.wary_of.has(piece) || self.picker.willing(piece) == 0
    }

    fn grant(
        &mut self,
        request: &LeaseRequest,
        room: Room,
        now: Duration,
        cancelled: &mut Vec<Cancelled>,
    ) -> Vec<PieceLease> {
        let candidates = self.candidates(request, room.terms);
        let runs = self.pick(candidates, request, room);
        if !runs.is_empty() {
            return runs.into_iter().map(|run| self.lease(&request.peer, run, room.terms, now)).collect();
        }
        // Nothing to pick: what others have not finished is all that is left for it.
        self.rival(request, room, now, cancelled)
    }

    /// What is missing, and this peer may be given.
    fn candidates(&self, request: &LeaseRequest, terms: Terms) -> PieceMap {
        let mut candidates = request.have.clone();
        candidates.keep(&self.sets.missing);
        let Some(peer) = self.peers.get(&request.peer) else { return candidates };
        let mut wary = peer.wary_of.clone();
        wary.keep(&candidates);
        for piece in wary.iter().filter(|piece| !self.may_take(peer, *piece)) {
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

    fn pick(&mut self, mut candidates: PieceMap, request: &LeaseRequest, room: Room) -> Vec<Range<u32>> {
        let kind = self.peers.get(&request.peer).map(|peer| peer.kind);
        if kind != Some(PeerKind::Origin) || request.run_bytes_max == 0 {
            let pieces = self.picker.pick(&mut candidates, room.leases, request.order);
            return pieces.into_iter().map(|piece| piece..piece + 1).collect();
        }
        let bytes_max = request.run_bytes_max.min(RANGE_BYTES_MAX);
        let run = |_| self.picker.pick_run(&mut candidates, request.order, &self.cut, bytes_max);
        (0..room.leases).map_while(run).collect()
    }

    /// Writes a lease down.
    pub(super) fn lease(&mut self, id: &PeerId, run: Range<u32>, terms: Terms, now: Duration) -> PieceLease {
        let range = self.cut.bytes_of_run(&run);
        let bytes = range.end - range.start;
        let peer = self.peers.get_mut(id).expect("admitted, and nobody has left since");
        let length = length(bytes, peer.standing.rate, &self.config);
        peer.live += 1;
        peer.is_probed |= terms == Terms::Probe;
        let lease = self.leases.insert(Held {
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
        run.for_each(|piece| self.sets.hold(piece, lease.id));
        lease
    }
}

/// Several times what the bytes should take; a guess as long as nothing is measured.
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
    // A rate close to nothing asks for more than a duration can say.
    let wanted = Duration::try_from_secs_f64(seconds).unwrap_or(config.lease_max);
    wanted.clamp(config.lease_min, config.lease_max)
}
