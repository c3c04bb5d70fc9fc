//! Serves pieces from the cache to peers.

use bytes::Bytes;
use leasehold_core::piece::{PieceCut, PieceMap};
use leasehold_core::{ArtifactId, Result};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use super::Cache;
use crate::assemble::{Paths, io_error, read_journal};
use crate::manifest::Manifest;
use crate::serve::PieceSource;

impl Cache {
    fn journaled_pieces(&self, artifact: &ArtifactId, manifest: &Manifest) -> Option<PieceMap> {
        read_journal(&Paths::in_directory(&self.directory(artifact)).journal, manifest).ok().flatten()
    }
}

impl PieceSource for Cache {
    fn have(&self, artifact: &ArtifactId) -> Option<(PieceCut, PieceMap)> {
        let manifest = self.manifest(artifact).ok().flatten()?;
        let pieces = manifest.cut.pieces();
        // The part first: if it is renamed between the two checks, the second one finds it.
        let noted = self.journaled_pieces(artifact, &manifest);
        let map =
            if self.directory(artifact).join("data").exists() { Some(PieceMap::all(pieces)) } else { noted };
        Some((manifest.cut, map?))
    }

    fn read(&self, artifact: &ArtifactId, pieces: Range<u32>) -> Result<Option<Bytes>> {
        let Some(manifest) = self.manifest(artifact)? else { return Ok(None) };
        if pieces.end > manifest.cut.pieces() || pieces.is_empty() {
            return Ok(None);
        }
        let part = match self.journaled_pieces(artifact, &manifest) {
            Some(noted) if pieces.clone().all(|piece| noted.has(piece)) => {
                File::open(Paths::in_directory(&self.directory(artifact)).part).ok()
            }
            _ => None,
        };
        let cached = if part.is_none() { self.find(artifact)? } else { None };
        let Some(file) = part.as_ref().or(cached.as_ref().map(|cached| &cached.file)) else {
            return Ok(None);
        };
        let range = manifest.cut.bytes_of_run(&pieces);
        let mut bytes = vec![0; usize::try_from(range.end - range.start).unwrap_or(usize::MAX)];
        let path = self.directory(artifact);
        file.read_exact_at(&mut bytes, range.start).map_err(|error| io_error("read", &path, error))?;
        // A journal note may have survived a power cut that its piece has not, until the fetch resumes. Serving such a piece
        // would count against this node.
        if part.is_some() && !manifest.matches(pieces, &bytes) {
            return Ok(None);
        }
        Ok(Some(bytes.into()))
    }
}
