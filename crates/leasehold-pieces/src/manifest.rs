//! The manifest of an artifact: how it is cut, the hash of every piece, and whether it is being removed.
//!
//! ```text
//!                    prune, when its retention is over            prune, a day later
//!   (nothing) ─────▶ kept ──────────────────────────▶ leaving ──────────────────────▶ closing ─────▶ (nothing)
//!      publish        ▲ ╰─ publish, when it is old ─╮     │ publish: the data is      │     data, then manifest
//!                     ╰─────────────────────────────┴─────┘ still there               │     deleted within a minute
//!                     ╰───────────────────────────────────────────────────────────────╯
//!                         publish, when no delete can be under way any more: with its data
//! ```
//!
//! Every arrow is a put on condition, but for the deletes at the end. Data is deleted only while the manifest says
//! *closing*, and nobody publishes again before such a delete has surely landed: so whoever has found, written or renewed
//! a manifest that says *kept* knows that the data stays for its retention.
//!
//! Data that a publisher has sent counts only while the manifest is as it was before (or there is still none, within a day):
//! else the data may have gone with what was there meanwhile. So that *none* does not come back sooner, data that nobody has
//! published gets a manifest that says *closing*, too, and that one stays for a day.

use bytes::Bytes;
use leasehold_core::piece::Cut;
use leasehold_core::unread::why_corrupt;
use leasehold_core::{ArtifactId, Error, Kind, Result, StoreTime, WriteId};
use serde::{Deserialize, Serialize};
use std::ops::Range;

use crate::hash::{Algorithm, Hash};

/// How an artifact is cut, and what its pieces are.
#[derive(Debug, Clone, PartialEq)]
pub struct Manifest {
    /// Its name, which is the hash of the whole.
    pub artifact: ArtifactId,
    /// Where its pieces begin and end.
    pub cut: Cut,
    /// The hash of every piece.
    pub pieces: Vec<Hash>,
    /// What its publisher called it.
    pub name: Option<String>,
    /// What kind of file it is, in the words of MIME.
    pub media_type: Option<String>,
    /// When it was last published.
    pub published_at: StoreTime,
    /// It is kept for so long after that.
    pub keep_secs: u64,
}

impl Manifest {
    /// Whether these bytes are neighbouring pieces of the artifact.
    pub(crate) fn holds(&self, mut pieces: Range<u32>, bytes: &[u8]) -> bool {
        let algorithm = Algorithm::of(&self.artifact);
        let mut chunks = bytes.chunks(self.cut.piece_bytes() as usize);
        pieces.all(|piece| {
            let hash = chunks.next().map(|bytes| algorithm.hash_piece(&self.cut, piece, bytes));
            hash == Some(self.pieces[piece as usize])
        })
    }
}

/// What lies at the key of a manifest.
#[derive(Debug, Clone, PartialEq)]
pub enum Record {
    /// The artifact can be relied on.
    Kept(Manifest),
    /// Its retention is over; it can still be read, and be published again without its data.
    Leaving(Manifest, StoreTime),
    /// Its data is being deleted, since this moment.
    Closing(StoreTime),
}

#[derive(Serialize, Deserialize)]
struct Flat {
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

impl Record {
    /// Reads what lies at `key`; refuses what does not fit together, or is not about this artifact.
    pub fn read(key: &str, artifact: &ArtifactId, bytes: &[u8]) -> Result<Self> {
        let corrupt = |why: &str| {
            Error::new(Kind::Corrupt, format!("`{key}` is not the manifest of this artifact: {why}"))
        };
        let flat: Flat =
            serde_json::from_slice(bytes).map_err(|error| corrupt(&why_corrupt(bytes, &error)))?;
        if flat.format != FORMAT {
            return Err(corrupt(&format!("its format is {}, not {FORMAT}", flat.format)));
        }
        if flat.artifact != *artifact {
            return Err(corrupt(&format!("it is that of `{}`", flat.artifact)));
        }
        let since = || flat.since.ok_or_else(|| corrupt("`since` is missing"));
        Ok(match flat.state.as_str() {
            "kept" => Record::Kept(flat.manifest().map_err(|why| corrupt(&why))?),
            "leaving" => {
                let since = since()?;
                Record::Leaving(flat.manifest().map_err(|why| corrupt(&why))?, since)
            }
            "closing" => Record::Closing(since()?),
            other => return Err(corrupt(&format!("its state is `{other}`"))),
        })
    }

    /// Writes it down.
    #[must_use]
    pub fn write(&self, artifact: &ArtifactId, write_id: WriteId) -> Bytes {
        let (state, manifest, since) = match self {
            Record::Kept(manifest) => ("kept", Some(manifest), None),
            Record::Leaving(manifest, since) => ("leaving", Some(manifest), Some(*since)),
            Record::Closing(since) => ("closing", None, Some(*since)),
        };
        let hashes = |manifest: &Manifest| manifest.pieces.iter().map(ToString::to_string).collect();
        let flat = Flat {
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
        serde_json::to_vec(&flat).expect("a manifest can be written as JSON").into()
    }

    /// The manifest, if the artifact can be read.
    #[must_use]
    pub fn readable(self) -> Option<Manifest> {
        match self {
            Record::Kept(manifest) | Record::Leaving(manifest, _) => Some(manifest),
            Record::Closing(_) => None,
        }
    }
}

impl Flat {
    fn manifest(self) -> std::result::Result<Manifest, String> {
        let missing = |what: &str| format!("`{what}` is missing");
        let size = self.size.ok_or_else(|| missing("size"))?;
        let piece_bytes = self.piece_bytes.ok_or_else(|| missing("piece_bytes"))?;
        let cut = Cut::new(size, piece_bytes).map_err(|error| error.to_string())?;
        if self.hash.is_some_and(|hash| hash != Algorithm::of(&self.artifact)) {
            return Err("its pieces are hashed in another way than its name".to_owned());
        }
        if self.pieces.len() != cut.pieces() as usize {
            return Err(format!("it lists {} hashes for {} pieces", self.pieces.len(), cut.pieces()));
        }
        let pieces = self.pieces.iter().map(|text| Hash::parse(text)).collect::<Option<Vec<_>>>();
        let pieces = pieces.ok_or("one of its hashes does not have 64 digits")?;
        let algorithm = Algorithm::of(&self.artifact);
        if algorithm.whole_of(&pieces).is_some_and(|whole| algorithm.name(whole) != self.artifact) {
            return Err("the hashes of its pieces are not those of this artifact".to_owned());
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
        let (cut, bytes) = (Cut::new(1_500, 1_024).unwrap(), [7; 1_500]);
        let hash = |piece: u32, bytes: &[u8]| Algorithm::Blake3.hash_piece(&cut, piece, bytes);
        Manifest {
            artifact: Algorithm::Blake3.name(Algorithm::Blake3.hash(&bytes)),
            cut,
            pieces: vec![hash(0, &bytes[..1_024]), hash(1, &bytes[1_024..])],
            name: Some("ab.txt".into()),
            media_type: None,
            published_at: StoreTime::from_millis(1_700_000_000_000),
            keep_secs: 60,
        }
    }

    fn write(record: &Record) -> Bytes {
        record.write(&manifest().artifact, HexName::from_random(7))
    }

    #[test]
    fn every_state_is_read_as_it_was_written() {
        let since = StoreTime::from_millis(1_800_000_000_000);
        for record in [Record::Kept(manifest()), Record::Leaving(manifest(), since), Record::Closing(since)] {
            assert_eq!(Record::read("k", &manifest().artifact, &write(&record)).unwrap(), record);
        }
    }

    #[test]
    fn a_manifest_that_does_not_fit_together_is_corrupt() {
        let good: Value = serde_json::from_slice(&write(&Record::Kept(manifest()))).unwrap();
        for (field, value, words) in [
            ("format", json!(2), "its format is 2"),
            ("state", json!("lost"), "its state is `lost`"),
            ("artifact", json!("0".repeat(64)), "it is that of"),
            ("size", json!(5_000), "2 hashes for 5 pieces"),
            ("size", Value::Null, "`size` is missing"),
            ("piece_bytes", json!(1), "pieces of 1 bytes"),
            ("hash", json!("sha256"), "hashed in another way"),
            ("pieces", json!(["0", "1"]), "does not have 64 digits"),
            ("pieces", json!(["0".repeat(64), "1".repeat(64)]), "not those of this artifact"),
            ("piece_bytes", json!(1_025), "a power of two"),
        ] {
            let mut bad = good.clone();
            bad[field] = value;
            let error = Record::read("k", &manifest().artifact, bad.to_string().as_bytes()).unwrap_err();
            assert_eq!(error.kind(), Kind::Corrupt);
            assert!(error.to_string().contains(words), "{field}: {error}");
        }
        assert!(Record::read("k", &manifest().artifact, b"{").is_err());
    }
}
