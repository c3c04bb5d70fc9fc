//! Hashes of artifacts and their pieces: BLAKE3 and SHA-256.
//!
//! BLAKE3 is a tree, and a piece is one of its nodes: the hash of a piece is that node's chaining value, so that the hashes
//! of all pieces determine that of the whole. A manifest can be verified by itself, every byte is hashed once, and nothing is
//! read at the end. With SHA-256 every piece is hashed separately, and the whole once more.

use aws_lc_rs::digest;
use blake3::hazmat::{ChainingValue, HasherExt, Mode, merge_subtrees_non_root, merge_subtrees_root};
use leasehold_core::ids::parse_name;
use leasehold_core::piece::PieceCut;
use leasehold_core::{ArtifactId, Error, Result};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Hash algorithm of an artifact.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Algorithm {
    /// Fast, and verifiable piece by piece.
    #[default]
    Blake3,
    /// Supported by most other tools.
    Sha256,
}

impl Algorithm {
    /// Algorithm of an artifact id.
    #[must_use]
    pub fn of(artifact: &ArtifactId) -> Self {
        if artifact.is_sha256() { Self::Sha256 } else { Self::Blake3 }
    }

    /// Hashes a whole file.
    #[must_use]
    pub fn hash(self, bytes: &[u8]) -> Hash {
        match self {
            Self::Blake3 => Hash(*blake3::hash(bytes).as_bytes()),
            Self::Sha256 => {
                let mut whole = Sha256Hasher::new();
                whole.update(bytes);
                whole.finish()
            }
        }
    }

    /// Hashes the bytes of a piece, at its offset in the whole.
    #[must_use]
    pub fn hash_piece(self, cut: &PieceCut, piece: u32, bytes: &[u8]) -> Hash {
        // A single piece is the root of the tree, which is hashed in another way than its branches.
        if self == Self::Sha256 || cut.pieces() == 1 || bytes.is_empty() {
            return self.hash(bytes);
        }
        let mut hasher = blake3::Hasher::new();
        hasher.set_input_offset(cut.bytes_of(piece).start).update(bytes);
        Hash(hasher.finalize_non_root())
    }

    /// Computes the hash of the whole from those of the pieces; `None` with SHA-256.
    #[must_use]
    pub fn hash_from_pieces(self, pieces: &[Hash]) -> Option<Hash> {
        (self == Self::Blake3).then(|| match pieces {
            [] => self.hash(&[]),
            [one] => *one,
            _ => {
                let (left, right) = halves(pieces);
                Hash(*merge_subtrees_root(&branch(left), &branch(right), Mode::Hash).as_bytes())
            }
        })
    }

    pub(crate) fn artifact_id(self, whole: Hash) -> ArtifactId {
        match self {
            Self::Blake3 => ArtifactId::blake3(whole.0),
            Self::Sha256 => ArtifactId::sha256(whole.0),
        }
    }
}

impl FromStr for Algorithm {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        parse_name("hash", text, &[("blake3", Self::Blake3), ("sha256", Self::Sha256)])
    }
}

/// Hash of a piece, or of a whole.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Hash([u8; 32]);

impl Hash {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        let text = text.as_bytes();
        let mut hash = [0; 32];
        if text.len() != 64 {
            return None;
        }
        for (byte, pair) in hash.iter_mut().zip(text.chunks_exact(2)) {
            *byte = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        Some(Self(hash))
    }

    /// First bytes of the hash: enough to notice that two lists of hashes differ.
    pub(crate) fn prefix(&self) -> [u8; 4] {
        [self.0[0], self.0[1], self.0[2], self.0[3]]
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Splits at the largest power of two that leaves something for the right.
fn halves(pieces: &[Hash]) -> (&[Hash], &[Hash]) {
    pieces.split_at(pieces.len().next_power_of_two() / 2)
}

/// Chaining value of the node above these pieces.
fn branch(pieces: &[Hash]) -> ChainingValue {
    if let [one] = pieces {
        return one.0;
    }
    let (left, right) = halves(pieces);
    merge_subtrees_non_root(&branch(left), &branch(right), Mode::Hash)
}

/// Incremental SHA-256 of a whole, which does not follow from the piece hashes.
pub(crate) struct Sha256Hasher(digest::Context);

impl Sha256Hasher {
    pub(crate) fn new() -> Self {
        Self(digest::Context::new(&digest::SHA256))
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub(crate) fn finish(self) -> Hash {
        Hash(self.0.finish().as_ref().try_into().expect("SHA-256 has 32 bytes"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_other_tools() {
        let empty = Algorithm::Sha256.hash(b"");
        assert_eq!(empty.to_string(), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
        let empty = Algorithm::Blake3.hash(b"");
        assert_eq!(empty.to_string(), "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262");
        assert_eq!(Hash::parse(&empty.to_string()), Some(empty));
        assert_eq!(Hash::parse("xy"), None);
        assert_eq!(Algorithm::of(&Algorithm::Sha256.artifact_id(empty)), Algorithm::Sha256);
    }

    /// Hashes each piece, and computes the hash of the whole from them.
    fn whole_by_pieces(bytes: &[u8], piece_bytes: u32) -> Option<Hash> {
        let cut = PieceCut::new(bytes.len() as u64, piece_bytes).unwrap();
        let chunks = bytes.chunks(piece_bytes as usize);
        let pieces: Vec<_> = (0..)
            .zip(chunks)
            .map(|(piece, bytes)| Algorithm::Blake3.hash_piece(&cut, piece, bytes))
            .collect();
        assert_eq!(pieces.len(), cut.pieces() as usize);
        Algorithm::Blake3.hash_from_pieces(&pieces)
    }

    #[test]
    fn the_hashes_of_the_pieces_determine_that_of_the_whole() {
        let bytes: Vec<u8> =
            (0..40_000_u32).map(|at| at.wrapping_mul(2_654_435_761).to_be_bytes()[1]).collect();
        for piece_bytes in [1_024, 2_048, 8_192, 32_768, 65_536] {
            let mut sizes: Vec<_> = (0..=39)
                .flat_map(|times: usize| [-1, 0, 1].map(|more| (times * 1_024).checked_add_signed(more)))
                .flatten()
                .collect();
            sizes.extend([2, 63, 64, 65, 1_500, 33_333, 40_000]);
            for size in sizes {
                let (whole, expected) = (&bytes[..size], *blake3::hash(&bytes[..size]).as_bytes());
                assert_eq!(
                    whole_by_pieces(whole, piece_bytes),
                    Some(Hash(expected)),
                    "{size} bytes in pieces of {piece_bytes}"
                );
            }
        }
        assert_eq!(Algorithm::Sha256.hash_from_pieces(&[]), None);
    }

    #[test]
    fn the_hash_of_a_piece_depends_on_its_offset() {
        let cut = PieceCut::new(4_096, 1_024).unwrap();
        let [first, second] = [0, 1].map(|piece| Algorithm::Blake3.hash_piece(&cut, piece, &[7; 1_024]));
        assert_ne!(first, second);
    }
}
