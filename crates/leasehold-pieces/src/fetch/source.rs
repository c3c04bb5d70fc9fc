//! One source of pieces, and transfers from it.

use bytes::Bytes;
use futures::future::BoxFuture;
use leasehold_core::piece::manager::FailureKind;
use leasehold_core::piece::{Cut, PieceLease};
use leasehold_core::{ArtifactId, Error};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::origin::Origin;
use crate::peer::{PeerClient, PeerFailure};

/// Where pieces come from.
#[derive(Debug, Clone)]
pub(super) enum Source {
    Origin(Arc<Origin>),
    Peer(Arc<PeerClient>),
}

/// Why a transfer gave nothing.
#[derive(Debug)]
pub(super) struct Failed {
    pub(super) kind: FailureKind,
    pub(super) error: Error,
}

impl Source {
    /// Transfers the pieces of a lease; `so_far` grows with the bytes that have come.
    pub(super) fn read(
        &self,
        artifact: &ArtifactId,
        cut: Cut,
        lease: &PieceLease,
        so_far: Arc<AtomicU64>,
    ) -> BoxFuture<'static, Result<Bytes, Failed>> {
        let (artifact, pieces) = (artifact.clone(), lease.pieces.clone());
        match self.clone() {
            Source::Origin(origin) => Box::pin(async move {
                let range = cut.bytes_of_run(&pieces);
                let asked = range.end - range.start;
                let bytes = origin.read(range).await;
                let bytes = bytes.map_err(|error| Failed { kind: FailureKind::NetworkError, error })?;
                if bytes.len() as u64 == asked {
                    return Ok(bytes);
                }
                let message = format!("the store gave {} bytes of {asked}", bytes.len());
                let error = Error::new(leasehold_core::Kind::Corrupt, message);
                Err(Failed { kind: FailureKind::InvalidData, error })
            }),
            Source::Peer(peer) => Box::pin(async move {
                let note = |bytes| {
                    so_far.fetch_add(bytes, Relaxed);
                };
                peer.pieces(&artifact, &cut, pieces, &note).await.map_err(Failed::from)
            }),
        }
    }
}

impl From<PeerFailure> for Failed {
    fn from(failure: PeerFailure) -> Self {
        let kind = match &failure {
            PeerFailure::NetworkError => FailureKind::NetworkError,
            PeerFailure::Timeout => FailureKind::Timeout,
            PeerFailure::InvalidData(_) => FailureKind::InvalidData,
        };
        Self { kind, error: Error::new(leasehold_core::Kind::Unavailable, failure.to_string()) }
    }
}
