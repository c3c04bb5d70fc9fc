//! Manifest of an artifact: its pieces, the hash of each, and whether the artifact is being removed.
//!
//! ```text
//!                    prune, when its retention is over            prune, a day later
//!   (nothing) ───▶ published ───────────────────────▶ expired ──────────────────────▶ deleting ────▶ (nothing)
//!      publish        ▲ ╰─ publish, when it is old ─╮     │ publish: the data is      │     data, then manifest
//!                     ╰─────────────────────────────┴─────┘ still there               │     deleted within a minute
//!                     ╰───────────────────────────────────────────────────────────────╯
//!                         publish, when no delete can still be under way: sends the data
//! ```
//!
//! The record has older words for the three states: *published* is `kept`, *expired* is `leaving`, *deleting* is `closing`.
//!
//! Every arrow is a conditional put, except for the deletes at the end. Data is deleted only while the manifest says
//! *deleting*, and no client publishes again before such a delete has surely landed. So a client that has read, written or
//! renewed a manifest that says *published* can rely on the data for its retention.
//!
//! Data that a publisher has sent counts only while the manifest is unchanged (or there is still none, within a day):
//! otherwise the data may have been deleted with a manifest that was there meanwhile. So that a missing manifest does not
//! recur sooner, data without a manifest gets one that says *deleting* before it is deleted, and that manifest stays for a
//! day.

use bytes::Bytes;
use leasehold_core::oversize::corrupt_reason;
use leasehold_core::piece::PieceCut;
use leasehold_core::{ArtifactId, Error, Kind, Result, StoreTime, WriteId};
use serde::{Deserialize, Serialize};
use std::ops::Range;

use crate::hash::{Algorithm, Hash};

/// Pieces of an artifact and their hashes.
#[derive(Debug, Clone, PartialEq)]
pub struct Manifest {
    /// Id of the artifact: the hash of the whole.
    pub artifact: ArtifactId,
    /// Offsets of its pieces.
    pub cut: PieceCut,
    /// Hash of every piece.
    pub pieces: Vec<Hash>,
    /// Name chosen by the publisher.
    pub name: Option<String>,
    /// MIME type of the file.
    pub media_type: Option<String>,
    /// Time of the last publish.
    pub published_at: StoreTime,
    /// Retention from then on, in seconds.
    pub keep_secs: u64,
}

impl Manifest {
    /// Returns whether these bytes match the hashes of neighbouring pieces.
    pub(crate) fn matches(&self, mut pieces: Range<u32>, bytes: &[u8]) -> bool {
        let algorithm = Algorithm::of(&self.artifact);
        let mut chunks = bytes.chunks(self.cut.piece_bytes() as usize);
        pieces.all(|piece| {
            let hash = chunks.next().map(|bytes| algorithm.hash_piece(&self.cut, piece, bytes));
            hash == Some(self.pieces[piece as usize])
        })
    }
}

/// Record at the key of a manifest.
#[derive(Debug, Clone, PartialEq)]
pub enum ManifestRecord {
    /// The artifact is kept for its retention. In the record: `kept`.
    Published(Manifest),
    /// The retention is over since this time; the artifact can still be read, and be published again without its data. In
    /// the record: `leaving`.
    Expired(Manifest, StoreTime),
    /// The data is being deleted since this time. In the record: `closing`.
    Deleting(StoreTime),
}

#[derive(Serialize, Deserialize)]
struct ManifestJson {
    format: u32,
    artifact: ArtifactId,
    state: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<StoreTime>,
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    piece_bytes: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hash: Option<Algorithm>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pieces: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    media_type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    published_at: Option<StoreTime>,
    #[serde(skip_serializing_if = "Option::is_none")]
    keep_secs: Option<u64>,
    write_id: WriteId,
}

const FORMAT: u32 = 1;

impl ManifestRecord {
    /// Parses the record at `key`; fails if it is inconsistent, or for another artifact.
    pub fn read(key: &str, artifact: &ArtifactId, bytes: &[u8]) -> Result<Self> {
        let corrupt = |why: &str| Error::new(Kind::Corrupt, format!("manifest `{key}` is corrupt: {why}"));
        let json: ManifestJson =
            serde_json::from_slice(bytes).map_err(|error| corrupt(&corrupt_reason(bytes, &error)))?;
        if json.format != FORMAT {
            return Err(corrupt(&format!("unknown format {}, expected {FORMAT}", json.format)));
        }
        if json.artifact != *artifact {
            return Err(corrupt(&format!("it belongs to artifact `{}`", json.artifact)));
        }
        let since = || json.since.ok_or_else(|| corrupt("`since` is missing"));
        Ok(match json.state.as_str() {
            "kept" => ManifestRecord::Published(json.manifest().map_err(|why| corrupt(&why))?),
            "leaving" => {
                let since = since()?;
                ManifestRecord::Expired(json.manifest().map_err(|why| corrupt(&why))?, since)
            }
            "closing" => ManifestRecord::Deleting(since()?),
            other => return Err(corrupt(&format!("unknown state `{other}`"))),
        })
    }

    /// Serializes the record.
    #[must_use]
    pub fn write(&self, artifact: &ArtifactId, write_id: WriteId) -> Bytes {
        let (state, manifest, since) = match self {
            ManifestRecord::Published(manifest) => ("kept", Some(manifest), None),
            ManifestRecord::Expired(manifest, since) => ("leaving", Some(manifest), Some(*since)),
            ManifestRecord::Deleting(since) => ("closing", None, Some(*since)),
        };
        let hashes = |manifest: &Manifest| manifest.pieces.iter().map(ToString::to_string).collect();
        let json = ManifestJson {
            format: FORMAT,
            artifact: artifact.clone(),
            state: state.to_owned(),
            since,
            size: manifest.map(|manifest| manifest.cut.size()),
            piece_bytes: manifest.map(|manifest| manifest.cut.piece_bytes()),
            hash: manifest.map(|manifest| Algorithm::of(&manifest.artifact)),
            pieces: manifest.map(hashes).unwrap_or_default(),
            name: manifest.and_then(|manifest| manifest.name.clone()),
            media_type: manifest.and_then(|manifest| manifest.media_type.clone()),
            published_at: manifest.map(|manifest| manifest.published_at),
            keep_secs: manifest.map(|manifest| manifest.keep_secs),
            write_id,
        };
        serde_json::to_vec(&json).expect("a manifest can be written as JSON").into()
    }

    /// Manifest, if the artifact can be read.
    #[must_use]
    pub fn readable(self) -> Option<Manifest> {
        match self {
            ManifestRecord::Published(manifest) | ManifestRecord::Expired(manifest, _) => Some(manifest),
            ManifestRecord::Deleting(_) => None,
        }
    }
}

impl ManifestJson {
    fn manifest(self) -> std::result::Result<Manifest, String> {
        let missing = |what: &str| format!("`{what}` is missing");
        let size = self.size.ok_or_else(|| missing("size"))?;
        let piece_bytes = self.piece_bytes.ok_or_else(|| missing("piece_bytes"))?;
        let cut = PieceCut::new(size, piece_bytes).map_err(|error| error.to_string())?;
        if self.hash.is_some_and(|hash| hash != Algorithm::of(&self.artifact)) {
            return Err("`hash` does not match the artifact id".to_owned());
        }
        if self.pieces.len() != cut.pieces() as usize {
            return Err(format!("{} hashes for {} pieces", self.pieces.len(), cut.pieces()));
        }
        let pieces = self.pieces.iter().map(|text| Hash::parse(text)).collect::<Option<Vec<_>>>();
        let pieces = pieces.ok_or("a piece hash does not have 64 hex digits")?;
        let algorithm = Algorithm::of(&self.artifact);
        if algorithm
            .hash_from_pieces(&pieces)
            .is_some_and(|whole| algorithm.artifact_id(whole) != self.artifact)
        {
            return Err("piece hashes do not match the artifact id".to_owned());
        }
        Ok(Manifest {
            artifact: self.artifact,
            cut,
            pieces,
            name: self.name,
            media_type: self.media_type,
            published_at: self.published_at.ok_or_else(|| missing("published_at"))?,
            keep_secs: self.keep_secs.ok_or_else(|| missing("keep_secs"))?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_core::HexName;
    use serde_json::{Value, json};

    fn manifest() -> Manifest {
        let (cut, bytes) = (PieceCut::new(1_500, 1_024).unwrap(), [7; 1_500]);
        let hash = |piece: u32, bytes: &[u8]| Algorithm::Blake3.hash_piece(&cut, piece, bytes);
        Manifest {
            artifact: Algorithm::Blake3.artifact_id(Algorithm::Blake3.hash(&bytes)),
            cut,
            pieces: vec![hash(0, &bytes[..1_024]), hash(1, &bytes[1_024..])],
            name: Some("ab.txt".into()),
            media_type: None,
            published_at: StoreTime::from_millis(1_700_000_000_000),
            keep_secs: 60,
        }
    }

    fn write(record: &ManifestRecord) -> Bytes {
        record.write(&manifest().artifact, HexName::from_random(7))
    }

    #[test]
    fn every_state_is_read_as_it_was_written() {
        let since = StoreTime::from_millis(1_800_000_000_000);
        for record in [
            ManifestRecord::Published(manifest()),
            ManifestRecord::Expired(manifest(), since),
            ManifestRecord::Deleting(since),
        ] {
            assert_eq!(ManifestRecord::read("k", &manifest().artifact, &write(&record)).unwrap(), record);
        }
    }

    #[test]
    fn an_inconsistent_manifest_is_corrupt() {
        let good: Value = serde_json::from_slice(&write(&ManifestRecord::Published(manifest()))).unwrap();
        for (field, value, words) in [
            ("format", json!(2), "unknown format 2"),
            ("state", json!("lost"), "unknown state `lost`"),
            ("artifact", json!("0".repeat(64)), "it belongs to"),
            ("size", json!(5_000), "2 hashes for 5 pieces"),
            ("size", Value::Null, "`size` is missing"),
            ("piece_bytes", json!(1), "bytes, got 1"),
            ("hash", json!("sha256"), "`hash` does not match"),
            ("pieces", json!(["0", "1"]), "does not have 64 hex digits"),
            ("pieces", json!(["0".repeat(64), "1".repeat(64)]), "do not match the artifact id"),
            ("piece_bytes", json!(1_025), "a power of two"),
        ] {
            let mut bad = good.clone();
            bad[field] = value;
            let error =
                ManifestRecord::read("k", &manifest().artifact, bad.to_string().as_bytes()).unwrap_err();
            assert_eq!(error.kind(), Kind::Corrupt);
            assert!(error.to_string().contains(words), "{field}: {error}");
        }
        assert!(ManifestRecord::read("k", &manifest().artifact, b"{").is_err());
    }
}
