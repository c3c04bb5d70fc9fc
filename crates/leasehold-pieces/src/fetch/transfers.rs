//! Results of transfers: verification, failures, cancellation.

use bytes::Bytes;
use leasehold_core::piece::manager::{
    CancelReason, Cancelled, CompletionOutcome, FailureKind, PieceCompletion, PieceResult,
};
use leasehold_core::piece::{PieceLeaseId, PieceRequest};
use leasehold_core::{Error, Kind, Result};
use leasehold_store::host::HostExt;
use std::sync::atomic::Ordering::Relaxed;

use super::peer_state::Rest;
use super::source::TransferError;
use super::{Event, Fetch, ORIGIN};
use crate::assemble::{Assembly, Placed};

/// Failures of the origin in a row, without a piece in between, after which it is no longer used. Concurrent failures count
/// as one.
const ORIGIN_FAILURES_MAX: u32 = 3;

impl Fetch<'_> {
    /// Verifies bytes that have arrived, on a thread that may block.
    pub(super) fn landed(&mut self, id: PieceLeaseId, bytes: Bytes) {
        let Some(flight) = self.flights.get_mut(&id) else { return };
        flight.transfer = None;
        let lease = flight.lease.clone();
        let now = self.now();
        for piece in lease.pieces.clone() {
            // A piece whose lease has expired meanwhile is verified all the same: it may still be needed.
            let _ = self.manager.received(id, piece, now);
        }
        let assembly = self.assembly.clone();
        let pieces = lease.pieces.clone();
        let placing = self.host.blocking(move || place(&assembly, pieces, &bytes));
        self.events.push(Box::pin(async move { Event::Placed(lease, placing.await) }));
    }

    pub(super) fn placed(&mut self, lease: &PieceRequest, pieces: Vec<(u32, Placed)>) {
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

    /// Handles a piece that does not match its hash. From the origin, the first may be a transfer error; the second means
    /// that the data in the store is corrupt.
    fn came_wrong(&mut self, lease: &PieceRequest, piece: u32) {
        let why = format!("piece {piece} does not match its hash");
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

    fn got(&mut self, lease: &PieceRequest, piece: u32, outcome: CompletionOutcome) {
        let bytes = u64::from(self.assembly.manifest().cut.len_of(piece));
        self.got_at = self.now();
        self.heard_at = self.got_at;
        self.origin_rest = Rest::default();
        if let Some(known) = self.known.get_mut(&lease.peer) {
            known.rest = Rest::default();
        }
        let count = match outcome {
            CompletionOutcome::NotNeeded => &mut self.result.duplicate_bytes,
            CompletionOutcome::Accepted | CompletionOutcome::Late if lease.peer.as_str() == ORIGIN => {
                &mut self.result.origin_bytes
            }
            CompletionOutcome::Accepted | CompletionOutcome::Late => &mut self.result.peer_bytes,
        };
        *count += bytes;
    }

    pub(super) fn failed(&mut self, id: PieceLeaseId, failed: TransferError) {
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

    /// Reduces the run length and backs off from the origin, or stops using it.
    fn origin_failed(&mut self, error: Error) {
        let piece_bytes = u64::from(self.assembly.manifest().cut.piece_bytes());
        self.run_bytes_max = (self.run_bytes_max / 2).max(piece_bytes);
        self.origin_rest.failed(self.now());
        let is_final = error.kind() != Kind::Unavailable;
        if is_final || self.origin_rest.failures >= ORIGIN_FAILURES_MAX {
            self.without_origin(error);
        }
    }

    /// Continues with the peers only.
    fn without_origin(&mut self, error: Error) {
        self.origin = None;
        self.origin_error = Some(error);
        // Their timeout starts now.
        self.heard_at = self.now();
        let ended = self.manager.remove_peer(&ORIGIN.into(), self.now());
        self.give_up(&ended);
    }

    fn complete(&mut self, lease: &PieceRequest, piece: u32, result: PieceResult) {
        let completion = PieceCompletion { lease: lease.id, piece, peer: lease.peer.clone(), result };
        match self.manager.complete_piece(&completion, self.now()) {
            Ok(completed) => {
                if result == PieceResult::Success {
                    self.got(lease, piece, completed.outcome);
                }
                self.give_up(&completed.cancelled);
            }
            // The lease expired or was cancelled during the transfer: nothing has changed.
            Err(error) => tracing::debug!(piece, peer = %lease.peer, %error, "ignoring late piece"),
        }
    }

    /// Aborts transfers of which no piece is needed any longer. Bytes that have arrived are verified all the same.
    pub(super) fn give_up(&mut self, cancelled: &[Cancelled]) {
        for cancelled in cancelled {
            let Some(flight) = self.flights.get_mut(&cancelled.lease) else { continue };
            // The other pieces of the run may continue: a run has one transfer.
            flight.wanted.retain(|piece| !cancelled.pieces.contains(piece));
            if let Some(transfer) = flight.transfer.clone().filter(|_| flight.wanted.is_empty()) {
                transfer.abort();
                self.flights.remove(&cancelled.lease);
            }
            if cancelled.why == CancelReason::Expired {
                self.blame(&cancelled.peer, "it did not deliver the requested pieces in time".to_owned());
                if cancelled.peer.as_str() == ORIGIN {
                    self.origin_failed(Error::new(Kind::Unavailable, "the store did not answer in time"));
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
                // An expired lease is cancelled with the next request.
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
