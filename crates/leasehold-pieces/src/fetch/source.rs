//! Transfers from one source of pieces.

use bytes::Bytes;
use futures::future::BoxFuture;
use leasehold_core::piece::manager::FailureKind;
use leasehold_core::piece::{PieceCut, PieceLease};
use leasehold_core::{ArtifactId, Error};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::origin::Origin;
use crate::peer::{PeerClient, PeerFailure};

/// Source of pieces.
#[derive(Debug, Clone)]
pub(super) enum Source {
    Origin(Arc<Origin>),
    Peer(Arc<PeerClient>),
}

/// Failure of a transfer.
#[derive(Debug)]
pub(super) struct TransferError {
    pub(super) kind: FailureKind,
    pub(super) error: Error,
}

impl Source {
    /// Transfers the pieces of a lease; adds the bytes that have arrived to `so_far`.
    pub(super) fn read(
        &self,
        artifact: &ArtifactId,
        cut: PieceCut,
        lease: &PieceLease,
        so_far: Arc<AtomicU64>,
    ) -> BoxFuture<'static, Result<Bytes, TransferError>> {
        let (artifact, pieces) = (artifact.clone(), lease.pieces.clone());
        match self.clone() {
            Source::Origin(origin) => Box::pin(async move {
                let range = cut.bytes_of_run(&pieces);
                let expected = range.end - range.start;
                let bytes = origin.read(range).await;
                let bytes =
                    bytes.map_err(|error| TransferError { kind: FailureKind::NetworkError, error })?;
                if bytes.len() as u64 == expected {
                    return Ok(bytes);
                }
                let message = format!("the store returned {} of {expected} bytes", bytes.len());
                let error = Error::new(leasehold_core::Kind::Corrupt, message);
                Err(TransferError { kind: FailureKind::InvalidData, error })
            }),
            Source::Peer(peer) => Box::pin(async move {
                let note = |bytes| {
                    so_far.fetch_add(bytes, Relaxed);
                };
                peer.pieces(&artifact, &cut, pieces, &note).await.map_err(TransferError::from)
            }),
        }
    }
}

impl From<PeerFailure> for TransferError {
    fn from(failure: PeerFailure) -> Self {
        let kind = match &failure {
            PeerFailure::NetworkError => FailureKind::NetworkError,
            PeerFailure::Timeout => FailureKind::Timeout,
            PeerFailure::InvalidData(_) => FailureKind::InvalidData,
        };
        Self { kind, error: Error::new(leasehold_core::Kind::Unavailable, failure.to_string()) }
    }
}
