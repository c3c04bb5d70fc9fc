//! The two hashes by which artifacts and their pieces are known.

use aws_lc_rs::digest;
use leasehold_core::{ArtifactId, Error, Result};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// How an artifact is hashed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Algorithm {
    /// Fast everywhere.
    #[default]
    Blake3,
    /// What other tools can check.
    Sha256,
}

impl Algorithm {
    /// The one by which an artifact is named.
    #[must_use]
    pub fn of(artifact: &ArtifactId) -> Self {
        if artifact.is_sha256() { Self::Sha256 } else { Self::Blake3 }
    }

    /// The hash of a piece.
    #[must_use]
    pub fn hash(self, bytes: &[u8]) -> Hash {
        let mut hasher = self.hasher();
        hasher.update(bytes);
        hasher.finish()
    }

    pub(crate) fn hasher(self) -> Hasher {
        match self {
            Self::Blake3 => Hasher::Blake3(Box::default()),
            Self::Sha256 => Hasher::Sha256(digest::Context::new(&digest::SHA256)),
        }
    }

    pub(crate) fn name(self, whole: Hash) -> ArtifactId {
        match self {
            Self::Blake3 => ArtifactId::blake3(whole.0),
            Self::Sha256 => ArtifactId::sha256(whole.0),
        }
    }
}

impl FromStr for Algorithm {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "blake3" => Ok(Self::Blake3),
            "sha256" => Ok(Self::Sha256),
            _ => Err(Error::invalid(format!("hash `{text}` is not known; there are blake3, sha256"))),
        }
    }
}

/// The hash of a piece, or of a whole.
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

    /// Its first bytes: enough to notice that two lists of hashes differ.
    pub(crate) fn beginning(&self) -> [u8; 4] {
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

/// A hash in the making.
pub(crate) enum Hasher {
    Blake3(Box<blake3::Hasher>),
    Sha256(digest::Context),
}

impl Hasher {
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Blake3(hasher) => {
                hasher.update(bytes);
            }
            Self::Sha256(context) => context.update(bytes),
        }
    }

    pub(crate) fn finish(self) -> Hash {
        match self {
            Self::Blake3(hasher) => Hash(*hasher.finalize().as_bytes()),
            Self::Sha256(context) => {
                Hash(context.finish().as_ref().try_into().expect("SHA-256 has 32 bytes"))
            }
        }
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
        assert_eq!(Algorithm::of(&Algorithm::Sha256.name(empty)), Algorithm::Sha256);
    }
}
