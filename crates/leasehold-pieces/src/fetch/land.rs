//! What comes of transfers.

use bytes::Bytes;
use leasehold_core::piece::manager::{
    CancelReason, Cancelled, FailureKind, Outcome, PieceCompletion, PieceResult,
};
use leasehold_core::piece::{PieceLease, PieceLeaseId};
use leasehold_core::{Error, Kind, Result};
use leasehold_store::host::HostExt;
use std::sync::atomic::Ordering::Relaxed;

use super::know::Rest;
use super::source::Failed;
use super::{Event, Fetch, ORIGIN};
use crate::assemble::{Assembly, Placed};

/// So many failures of the origin in a row, with nothing got meanwhile, and it is not asked any more. Requests that fail
/// together count as one.
const ORIGIN_FAILURES_MAX: u32 = 3;

impl Fetch<'_> {
    /// The bytes are here: they are verified where that holds nobody up.
    pub(super) fn landed(&mut self, id: PieceLeaseId, bytes: Bytes) {
        let Some(flight) = self.flights.get_mut(&id) else { return };
        flight.transfer = None;
        let lease = flight.lease.clone();
        let now = self.now();
        for piece in lease.pieces.clone() {
            // One whose lease has ended meanwhile is verified all the same: it may be of use.
            let _ = self.manager.received(id, piece, now);
        }
        let assembly = self.assembly.clone();
        let pieces = lease.pieces.clone();
        let placing = self.host.blocking(move || place(&assembly, pieces, &bytes));
        self.events.push(Box::pin(async move { Event::Placed(lease, placing.await) }));
    }

    pub(super) fn placed(&mut self, lease: &PieceLease, pieces: Vec<(u32, Placed)>) {
        self.flights.remove(&lease.id);
        for (piece, placed) in pieces {
            let result = match placed {
                Placed::Verified => PieceResult::Success,
                Placed::Wrong => PieceResult::Failure(FailureKind::VerificationFailed),
            };
            self.complete(lease, piece, result);
            if placed == Placed::Wrong {
                self.came_wrong(lease, piece);
            }
        }
        self.tell_progress();
    }

    /// A piece with another hash. The origin may get one wrong on the way, but not twice.
    fn came_wrong(&mut self, lease: &PieceLease, piece: u32) {
        let why = format!("piece {piece} is not what it should be");
        self.blame(&lease.peer, why);
        let now = self.now();
        if let Some(known) = self.known.get_mut(&lease.peer) {
            known.rest.failed(now);
        }
        if lease.peer.as_str() == ORIGIN && !self.wrong_of_origin.insert(piece) {
            let artifact = &self.assembly.manifest().artifact;
            let message = format!("the data of artifact {artifact} in the store is corrupt: piece {piece}");
            self.without_origin(Error::new(Kind::Corrupt, message));
        }
    }

    fn got(&mut self, lease: &PieceLease, piece: u32, outcome: Outcome) {
        let bytes = u64::from(self.assembly.manifest().cut.len_of(piece));
        self.got_at = self.now();
        self.heard_at = self.got_at;
        self.origin_rest = Rest::default();
        if let Some(known) = self.known.get_mut(&lease.peer) {
            known.rest = Rest::default();
        }
        let count = match outcome {
            Outcome::NotNeeded => &mut self.result.duplicate_bytes,
            Outcome::Accepted | Outcome::Late if lease.peer.as_str() == ORIGIN => {
                &mut self.result.origin_bytes
            }
            Outcome::Accepted | Outcome::Late => &mut self.result.peer_bytes,
        };
        *count += bytes;
    }

    pub(super) fn failed(&mut self, id: PieceLeaseId, failed: Failed) {
        let Some(flight) = self.flights.remove(&id) else { return };
        let (lease, now) = (flight.lease, self.now());
        self.blame(&lease.peer, failed.error.to_string());
        for piece in lease.pieces.clone() {
            self.complete(&lease, piece, PieceResult::Failure(failed.kind));
        }
        if lease.peer.as_str() == ORIGIN {
            self.origin_failed(failed.error);
        } else if let Some(known) = self.known.get_mut(&lease.peer) {
            known.rest.failed(now);
        }
    }

    /// Asks the origin for less, later, or not any more.
    fn origin_failed(&mut self, error: Error) {
        let piece_bytes = u64::from(self.assembly.manifest().cut.piece_bytes());
        self.run_bytes_max = (self.run_bytes_max / 2).max(piece_bytes);
        self.origin_rest.failed(self.now());
        let is_final = error.kind() != Kind::Unavailable;
        if is_final || self.origin_rest.failures >= ORIGIN_FAILURES_MAX {
            self.without_origin(error);
        }
    }

    /// Goes on with the peers, if they can do it.
    fn without_origin(&mut self, error: Error) {
        self.origin = None;
        self.origin_error = Some(error);
        // They have as long as if the fetch began now.
        self.heard_at = self.now();
        let ended = self.manager.remove_peer(&ORIGIN.into(), self.now());
        self.give_up(&ended);
    }

    fn complete(&mut self, lease: &PieceLease, piece: u32, result: PieceResult) {
        let completion = PieceCompletion { lease: lease.id, piece, peer: lease.peer.clone(), result };
        match self.manager.complete_piece(&completion, self.now()) {
            Ok(completed) => {
                if result == PieceResult::Success {
                    self.got(lease, piece, completed.outcome);
                }
                self.give_up(&completed.cancelled);
            }
            // It ran out, or was taken away, while it was under way: nothing has changed.
            Err(error) => tracing::debug!("piece {piece} from {}: {error}", lease.peer),
        }
    }

    /// Ends transfers of which nothing is wanted any more. Bytes that are here already are verified all the same.
    pub(super) fn give_up(&mut self, cancelled: &[Cancelled]) {
        for cancelled in cancelled {
            let Some(flight) = self.flights.get_mut(&cancelled.lease) else { continue };
            // Others of its pieces may go on: a run has one transfer.
            flight.wanted.retain(|piece| !cancelled.pieces.contains(piece));
            if let Some(transfer) = flight.transfer.clone().filter(|_| flight.wanted.is_empty()) {
                transfer.abort();
                self.flights.remove(&cancelled.lease);
            }
            if cancelled.why == CancelReason::Expired {
                self.blame(&cancelled.peer, "it did not give what it was asked for in time".to_owned());
                if cancelled.peer.as_str() == ORIGIN {
                    self.origin_failed(Error::new(Kind::Unavailable, "the store does not answer in time"));
                }
            }
        }
    }

    pub(super) fn note_progress(&mut self) {
        let now = self.now();
        for (id, flight) in &mut self.flights {
            let so_far = flight.so_far.load(Relaxed);
            if flight.transfer.is_some() && so_far > flight.seen {
                flight.seen = so_far;
                self.heard_at = now;
                // One that has ended is given up with the next answer.
                let _ = self.manager.progress(*id, so_far, now);
            }
        }
    }
}

fn place(assembly: &Assembly, pieces: std::ops::Range<u32>, bytes: &Bytes) -> Result<Vec<(u32, Placed)>> {
    let piece_bytes = assembly.manifest().cut.piece_bytes() as usize;
    pieces
        .zip(bytes.chunks(piece_bytes))
        .map(|(piece, bytes)| Ok((piece, assembly.place(piece, bytes)?)))
        .collect()
}
