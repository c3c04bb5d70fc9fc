//! Results of transfers: verification, failures, cancellation.

use bytes::Bytes;
use leasehold_core::piece::manager::{
    CancelReason, Cancelled, CompletionOutcome, FailureKind, PieceCompletion, PieceResult,
};
use leasehold_core::piece::{PieceLease, PieceLeaseId};
use leasehold_core::{Error, Kind, Result};
use leasehold_store::host::HostExt;
use std::sync::atomic::Ordering::Relaxed;

use super::peer_state::Backoff;
use super::source::TransferError;
use super::{Event, Fetch, ORIGIN};
use crate::assemble::{Assembly, PieceOutcome};

/// Failures of the origin in a row, without a piece in between, after which it is no longer used. Concurrent failures count
/// as one.
const ORIGIN_FAILURES_MAX: u32 = 3;

impl Fetch<'_> {
    /// Verifies bytes that have arrived, on a thread that may block.
    pub(super) fn on_received(&mut self, id: PieceLeaseId, bytes: Bytes) {
        let Some(transfer) = self.transfers.get_mut(&id) else { return };
        transfer.abort = None;
        let lease = transfer.lease.clone();
        let now = self.now();
        for piece in lease.pieces.clone() {
            // A piece whose lease has expired meanwhile is verified all the same: it may still be needed.
            let _ = self.manager.received(id, piece, now);
        }
        let assembly = self.assembly.clone();
        let pieces = lease.pieces.clone();
        let writing = self.host.blocking(move || write_pieces(&assembly, pieces, &bytes));
        self.events.push(Box::pin(async move { Event::Written(lease, writing.await) }));
    }

    pub(super) fn on_written(&mut self, lease: &PieceLease, pieces: Vec<(u32, PieceOutcome)>) {
        self.transfers.remove(&lease.id);
        for (piece, outcome) in pieces {
            let result = match outcome {
                PieceOutcome::Verified => PieceResult::Success,
                PieceOutcome::Corrupt => PieceResult::Failure(FailureKind::VerificationFailed),
            };
            self.complete(lease, piece, result);
            if outcome == PieceOutcome::Corrupt {
                self.on_corrupt_piece(lease, piece);
            }
        }
        self.report_progress();
    }

    /// Handles a piece that does not match its hash. From the origin, the first may be a transfer error; the second means
    /// that the data in the store is corrupt.
    fn on_corrupt_piece(&mut self, lease: &PieceLease, piece: u32) {
        let reason = format!("piece {piece} does not match its hash");
        self.report_failure(&lease.peer, reason);
        let now = self.now();
        if let Some(state) = self.peer_states.get_mut(&lease.peer) {
            state.backoff.failed(now);
        }
        if lease.peer.as_str() == ORIGIN && !self.corrupt_from_origin.insert(piece) {
            let artifact = &self.assembly.manifest().artifact;
            let message = format!("the data of artifact {artifact} in the store is corrupt: piece {piece}");
            self.drop_origin(Error::new(Kind::Corrupt, message));
        }
    }

    fn on_verified_piece(&mut self, lease: &PieceLease, piece: u32, outcome: CompletionOutcome) {
        let bytes = u64::from(self.assembly.manifest().cut.len_of(piece));
        self.last_piece_at = self.now();
        self.last_byte_at = self.last_piece_at;
        self.origin_backoff = Backoff::default();
        if let Some(state) = self.peer_states.get_mut(&lease.peer) {
            state.backoff = Backoff::default();
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

    pub(super) fn on_failed(&mut self, id: PieceLeaseId, failed: TransferError) {
        let Some(transfer) = self.transfers.remove(&id) else { return };
        let (lease, now) = (transfer.lease, self.now());
        self.report_failure(&lease.peer, failed.error.to_string());
        for piece in lease.pieces.clone() {
            self.complete(&lease, piece, PieceResult::Failure(failed.kind));
        }
        if lease.peer.as_str() == ORIGIN {
            self.origin_failed(failed.error);
        } else if let Some(state) = self.peer_states.get_mut(&lease.peer) {
            state.backoff.failed(now);
        }
    }

    /// Reduces the run length and backs off from the origin, or stops using it.
    fn origin_failed(&mut self, error: Error) {
        let piece_bytes = u64::from(self.assembly.manifest().cut.piece_bytes());
        self.run_bytes_max = (self.run_bytes_max / 2).max(piece_bytes);
        self.origin_backoff.failed(self.now());
        let is_final = error.kind() != Kind::Unavailable;
        if is_final || self.origin_backoff.failures >= ORIGIN_FAILURES_MAX {
            self.drop_origin(error);
        }
    }

    /// Continues with the peers only.
    fn drop_origin(&mut self, error: Error) {
        self.origin = None;
        self.origin_error = Some(error);
        // Their timeout starts now.
        self.last_byte_at = self.now();
        let ended = self.manager.remove_peer(&ORIGIN.into(), self.now());
        self.abort_unneeded(&ended);
    }

    fn complete(&mut self, lease: &PieceLease, piece: u32, result: PieceResult) {
        let completion = PieceCompletion { lease: lease.id, piece, peer: lease.peer.clone(), result };
        match self.manager.complete_piece(&completion, self.now()) {
            Ok(completed) => {
                if result == PieceResult::Success {
                    self.on_verified_piece(lease, piece, completed.outcome);
                }
                self.abort_unneeded(&completed.cancelled);
            }
            // The lease expired or was cancelled during the transfer: nothing has changed.
            Err(error) => tracing::debug!(piece, peer = %lease.peer, %error, "ignoring late piece"),
        }
    }

    /// Aborts transfers of which no piece is needed any longer. Bytes that have arrived are verified all the same.
    pub(super) fn abort_unneeded(&mut self, cancelled: &[Cancelled]) {
        for cancelled in cancelled {
            let Some(transfer) = self.transfers.get_mut(&cancelled.lease) else { continue };
            // The other pieces of the run may continue: a run has one transfer.
            transfer.wanted.retain(|piece| !cancelled.pieces.contains(piece));
            if let Some(abort) = transfer.abort.clone().filter(|_| transfer.wanted.is_empty()) {
                abort.abort();
                self.transfers.remove(&cancelled.lease);
            }
            if cancelled.why == CancelReason::Expired {
                self.report_failure(
                    &cancelled.peer,
                    "it did not deliver the requested pieces in time".to_owned(),
                );
                if cancelled.peer.as_str() == ORIGIN {
                    self.origin_failed(Error::new(Kind::Unavailable, "the store did not answer in time"));
                }
            }
        }
    }

    pub(super) fn note_progress(&mut self) {
        let now = self.now();
        for (id, transfer) in &mut self.transfers {
            let so_far = transfer.so_far.load(Relaxed);
            if transfer.abort.is_some() && so_far > transfer.seen {
                transfer.seen = so_far;
                self.last_byte_at = now;
                // An expired lease is cancelled with the next request.
                let _ = self.manager.progress(*id, so_far, now);
            }
        }
    }
}

fn write_pieces(
    assembly: &Assembly,
    pieces: std::ops::Range<u32>,
    bytes: &Bytes,
) -> Result<Vec<(u32, PieceOutcome)>> {
    let piece_bytes = assembly.manifest().cut.piece_bytes() as usize;
    pieces
        .zip(bytes.chunks(piece_bytes))
        .map(|(piece, bytes)| Ok((piece, assembly.write_piece(piece, bytes)?)))
        .collect()
}
