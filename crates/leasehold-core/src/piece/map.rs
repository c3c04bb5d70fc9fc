//! Set of pieces, as a bit map.

use std::fmt;

use crate::error::{Error, Result};

/// Set of pieces of an artifact.
#[derive(Clone, PartialEq, Eq)]
pub struct PieceMap {
    words: Vec<u64>,
    len: u32,
}

impl PieceMap {
    /// Creates an empty set of `len` possible pieces.
    #[must_use]
    pub fn none(len: u32) -> Self {
        Self { words: vec![0; len.div_ceil(64) as usize], len }
    }

    /// Creates a set of all `len` pieces.
    #[must_use]
    pub fn all(len: u32) -> Self {
        let mut map = Self { words: vec![u64::MAX; len.div_ceil(64) as usize], len };
        if let Some(last) = map.words.last_mut().filter(|_| !len.is_multiple_of(64)) {
            *last = (1 << (len % 64)) - 1;
        }
        map
    }

    /// Number of pieces of the artifact.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// True if the artifact has no pieces.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Number of pieces in the set.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.words.iter().map(|word| word.count_ones()).sum()
    }

    /// True if all pieces are in the set.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.count() == self.len
    }

    /// True if the piece is in the set; false if it does not exist.
    #[must_use]
    pub fn has(&self, piece: u32) -> bool {
        piece < self.len && self.words[piece as usize / 64] & (1 << (piece % 64)) != 0
    }

    /// Inserts a piece; true if it was not in the set.
    ///
    /// # Panics
    /// If there is no such piece.
    pub fn insert(&mut self, piece: u32) -> bool {
        assert!(piece < self.len, "piece {piece} of {}", self.len);
        let (word, bit) = (&mut self.words[piece as usize / 64], 1 << (piece % 64));
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    }

    /// Removes a piece; true if it was in the set.
    pub fn remove(&mut self, piece: u32) -> bool {
        let had = self.has(piece);
        if had {
            self.words[piece as usize / 64] &= !(1 << (piece % 64));
        }
        had
    }

    /// Iterates over the pieces in the set, in order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.words.iter().zip(0u32..).flat_map(|(word, at)| {
            let mut left = *word;
            std::iter::from_fn(move || {
                let bit = left.trailing_zeros();
                left &= left.wrapping_sub(1);
                (bit < 64).then_some(at * 64 + bit)
            })
        })
    }

    /// Returns the set as words of sixty-four pieces, the first one in the lowest bit.
    #[must_use]
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// True if at least one piece is in both sets.
    #[must_use]
    pub fn intersects(&self, other: &Self) -> bool {
        self.words.iter().zip(&other.words).any(|(ours, theirs)| ours & theirs != 0)
    }

    /// Removes the pieces that are not in `other`.
    pub fn keep(&mut self, other: &Self) {
        for (at, word) in self.words.iter_mut().enumerate() {
            *word &= other.words.get(at).copied().unwrap_or(0);
        }
    }

    /// Removes the pieces that are in `other`.
    pub fn difference_with(&mut self, other: &Self) {
        for (word, theirs) in self.words.iter_mut().zip(&other.words) {
            *word &= !theirs;
        }
    }

    /// Inserts the pieces that are in `other`.
    pub fn union_with(&mut self, other: &Self) {
        let all = Self::all(self.len);
        for ((word, theirs), all) in self.words.iter_mut().zip(&other.words).zip(&all.words) {
            *word |= theirs & all;
        }
    }

    /// Returns the wire format: eight pieces per byte, the first one in the lowest bit.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes: Vec<u8> = self.words.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.truncate(self.len.div_ceil(8) as usize);
        bytes
    }

    /// Parses the wire format; rejects another number of pieces.
    pub fn from_bytes(bytes: &[u8], len: u32) -> Result<Self> {
        if bytes.len() != len.div_ceil(8) as usize {
            return Err(Error::invalid(format!(
                "piece map of {len} pieces cannot have {} bytes",
                bytes.len()
            )));
        }
        let word = |chunk: &[u8]| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            u64::from_le_bytes(word)
        };
        let map = Self { words: bytes.chunks(8).map(word).collect(), len };
        let mut inside = map.clone();
        inside.keep(&Self::all(len));
        if inside == map {
            Ok(map)
        } else {
            Err(Error::invalid(format!("piece map has more than {len} pieces")))
        }
    }
}

impl fmt::Debug for PieceMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} pieces", self.count(), self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn a_map_is_a_set(len in 1u32..300, steps in proptest::collection::vec((any::<bool>(), any::<u32>()), 0..200)) {
            let (mut map, mut set) = (PieceMap::none(len), BTreeSet::new());
            for (puts, piece) in steps {
                let piece = piece % len;
                if puts {
                    prop_assert_eq!(map.insert(piece), set.insert(piece));
                } else {
                    prop_assert_eq!(map.remove(piece), set.remove(&piece));
                }
            }
            prop_assert_eq!(map.iter().collect::<Vec<_>>(), set.iter().copied().collect::<Vec<_>>());
            prop_assert_eq!(map.count() as usize, set.len());
            prop_assert_eq!(PieceMap::from_bytes(&map.to_bytes(), len).unwrap(), map.clone());
            let mut rest = PieceMap::all(len);
            rest.difference_with(&map);
            prop_assert!(!rest.intersects(&map));
            rest.union_with(&map);
            prop_assert!(rest.is_full());
        }
    }

    #[test]
    fn a_map_of_another_artifact_is_refused() {
        assert!(PieceMap::from_bytes(&[0, 0], 8).is_err());
        assert!(PieceMap::from_bytes(&[0b1000], 3).is_err());
        assert_eq!(PieceMap::from_bytes(&[0b101], 3).unwrap().iter().collect::<Vec<_>>(), [0, 2]);
        assert!(PieceMap::from_bytes(&[], 0).unwrap().is_full());
    }

    #[test]
    fn the_full_set_has_exactly_all_pieces() {
        for len in [0, 1, 63, 64, 65, 128] {
            assert_eq!(PieceMap::all(len).count(), len);
        }
    }
}
