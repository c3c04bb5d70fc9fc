//! The leases that live, in the order of their end, and for a while those that lived.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use super::messages::{CancelReason, Cancelled, PeerId, PieceLease, PieceLeaseId};
use crate::limits::ENDED_LEASES_MAX;

/// Progress counts in steps of this part of a lease. Otherwise a peer that sends a byte now and then could hold a piece
/// for ever; this way it has to send the whole in sixty-four times the length of its lease at most.
const PROGRESS_STEPS: u64 = 64;

/// A lease that lives.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) peer: PeerId,
    pub(super) pieces: Range<u32>,
    /// Those that have not ended yet.
    pub(super) open: BTreeSet<u32>,
    /// Those of them whose bytes are all here, and since when.
    pub(super) verifying: BTreeMap<u32, Duration>,
    pub(super) granted_at: Duration,
    pub(super) expires_at: Duration,
    /// How long it lasts from the last progress on.
    pub(super) length: Duration,
    /// All its bytes.
    pub(super) bytes: u64,
    /// How many had come when it was last made longer.
    pub(super) progressed: u64,
    /// How many have been verified.
    pub(super) verified_bytes: u64,
    /// Whether it is to find out if a peer has become better.
    pub(super) is_probe: bool,
}

impl Held {
    /// The one place that says what expired means.
    pub(super) fn is_expired(&self, now: Duration) -> bool {
        now >= self.expires_at
    }

    /// Whether so many bytes are enough of a step to make it longer.
    pub(super) fn is_progress(&self, bytes: u64) -> bool {
        let step = (self.bytes / PROGRESS_STEPS).max(1);
        bytes.min(self.bytes) >= self.progressed.saturating_add(step)
    }
}

/// All leases.
#[derive(Debug, Default)]
pub(super) struct Leases {
    live: BTreeMap<PieceLeaseId, Held>,
    expiries: BTreeSet<(Duration, PieceLeaseId)>,
    /// Of whom, and on what: their data may still come.
    ended: BTreeMap<PieceLeaseId, (PeerId, Range<u32>)>,
    last: u64,
}

impl Leases {
    pub(super) fn insert(&mut self, held: Held) -> PieceLease {
        self.last += 1;
        let id = PieceLeaseId(self.last);
        let (peer, pieces, expires_at) = (held.peer.clone(), held.pieces.clone(), held.expires_at);
        self.expiries.insert((expires_at, id));
        self.live.insert(id, held);
        PieceLease { id, peer, pieces, expires_at }
    }

    pub(super) fn get(&self, id: PieceLeaseId) -> Option<&Held> {
        self.live.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: PieceLeaseId) -> Option<&mut Held> {
        self.live.get_mut(&id)
    }

    pub(super) fn ended(&self, id: PieceLeaseId) -> Option<&(PeerId, Range<u32>)> {
        self.ended.get(&id)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (PieceLeaseId, &Held)> {
        self.live.iter().map(|(id, held)| (*id, held))
    }

    pub(super) fn of(&self, peer: &PeerId) -> Vec<PieceLeaseId> {
        self.iter().filter(|(_, held)| held.peer == *peer).map(|(id, _)| id).collect()
    }

    pub(super) fn first_expiry(&self) -> Option<Duration> {
        self.expiries.first().map(|(at, _)| *at)
    }

    /// The first of those that are over.
    pub(super) fn first_expired(&self, now: Duration) -> Option<PieceLeaseId> {
        let (_, id) = self.expiries.first()?;
        self.get(*id).is_some_and(|held| held.is_expired(now)).then_some(*id)
    }

    /// Never earlier than it was.
    pub(super) fn postpone(&mut self, id: PieceLeaseId, to: Duration) {
        let Some(held) = self.live.get_mut(&id).filter(|held| to > held.expires_at) else { return };
        self.expiries.remove(&(held.expires_at, id));
        held.expires_at = to;
        self.expiries.insert((to, id));
    }

    /// Takes it out. If it has not delivered everything, it is remembered, because it still may.
    pub(super) fn remove(&mut self, id: PieceLeaseId) -> Option<Held> {
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
    pub(super) fn whole(lease: PieceLeaseId, held: &Held, why: CancelReason) -> Self {
        Self { lease, peer: held.peer.clone(), pieces: held.pieces.clone(), why }
    }
}
