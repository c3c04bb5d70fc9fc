//! Live leases in the order of their expiry, and recently ended leases.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use super::messages::{CancelReason, Cancelled, PeerId, PieceLease, PieceLeaseId};
use crate::limits::ENDED_LEASES_MAX;

/// Number of steps in which progress extends a lease. Without steps, a peer that sends single bytes could hold a piece
/// for ever; with them it must send the whole within sixty-four times the duration of its lease.
const PROGRESS_STEPS: u64 = 64;

/// Live lease.
#[derive(Debug)]
pub(super) struct LiveLease {
    pub(super) peer: PeerId,
    pub(super) pieces: Range<u32>,
    /// Pieces that have not ended yet.
    pub(super) open: BTreeSet<u32>,
    /// Fully received pieces, with the time of their last byte.
    pub(super) verifying: BTreeMap<u32, Duration>,
    pub(super) granted_at: Duration,
    pub(super) expires_at: Duration,
    /// Duration from the last progress on.
    pub(super) length: Duration,
    /// Total bytes.
    pub(super) bytes: u64,
    /// Bytes received when it was last extended.
    pub(super) progressed: u64,
    /// Verified bytes.
    pub(super) verified_bytes: u64,
    /// True for a probe of a peer with too low a score.
    pub(super) is_probe: bool,
}

impl LiveLease {
    /// True if the lease has expired. The only definition of expiry.
    pub(super) fn is_expired(&self, now: Duration) -> bool {
        now >= self.expires_at
    }

    /// True if so many received bytes are enough to extend the lease.
    pub(super) fn is_progress(&self, bytes: u64) -> bool {
        let step = (self.bytes / PROGRESS_STEPS).max(1);
        bytes.min(self.bytes) >= self.progressed.saturating_add(step)
    }
}

/// All leases.
#[derive(Debug, Default)]
pub(super) struct PieceLeases {
    live: BTreeMap<PieceLeaseId, LiveLease>,
    expiries: BTreeSet<(Duration, PieceLeaseId)>,
    /// Peer and pieces of ended leases, whose data may still arrive.
    ended: BTreeMap<PieceLeaseId, (PeerId, Range<u32>)>,
    last: u64,
}

impl PieceLeases {
    pub(super) fn insert(&mut self, held: LiveLease) -> PieceLease {
        self.last += 1;
        let id = PieceLeaseId(self.last);
        let (peer, pieces, expires_at) = (held.peer.clone(), held.pieces.clone(), held.expires_at);
        self.expiries.insert((expires_at, id));
        self.live.insert(id, held);
        PieceLease { id, peer, pieces, expires_at }
    }

    pub(super) fn get(&self, id: PieceLeaseId) -> Option<&LiveLease> {
        self.live.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: PieceLeaseId) -> Option<&mut LiveLease> {
        self.live.get_mut(&id)
    }

    pub(super) fn ended(&self, id: PieceLeaseId) -> Option<&(PeerId, Range<u32>)> {
        self.ended.get(&id)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (PieceLeaseId, &LiveLease)> {
        self.live.iter().map(|(id, held)| (*id, held))
    }

    pub(super) fn of(&self, peer: &PeerId) -> Vec<PieceLeaseId> {
        self.iter().filter(|(_, held)| held.peer == *peer).map(|(id, _)| id).collect()
    }

    pub(super) fn first_expiry(&self) -> Option<Duration> {
        self.expiries.first().map(|(at, _)| *at)
    }

    /// Returns the first expired lease.
    pub(super) fn first_expired(&self, now: Duration) -> Option<PieceLeaseId> {
        let (_, id) = self.expiries.first()?;
        self.get(*id).is_some_and(|held| held.is_expired(now)).then_some(*id)
    }

    /// Extends a lease; never shortens it.
    pub(super) fn postpone(&mut self, id: PieceLeaseId, to: Duration) {
        let Some(held) = self.live.get_mut(&id).filter(|held| to > held.expires_at) else { return };
        self.expiries.remove(&(held.expires_at, id));
        held.expires_at = to;
        self.expiries.insert((to, id));
    }

    /// Removes a lease. One that has not delivered everything is remembered, because its data may still arrive.
    pub(super) fn remove(&mut self, id: PieceLeaseId) -> Option<LiveLease> {
        let held = self.live.remove(&id)?;
        self.expiries.remove(&(held.expires_at, id));
        if held.verified_bytes < held.bytes {
            self.ended.insert(id, (held.peer.clone(), held.pieces.clone()));
            if self.ended.len() > ENDED_LEASES_MAX {
                self.ended.pop_first();
            }
        }
        Some(held)
    }
}

impl Cancelled {
    pub(super) fn whole(lease: PieceLeaseId, held: &LiveLease, why: CancelReason) -> Self {
        Self { lease, peer: held.peer.clone(), pieces: held.pieces.clone(), why }
    }
}
