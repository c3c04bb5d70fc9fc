//! Boundaries of the pieces of a file.

use std::ops::Range;

use crate::error::{Error, Result};
use crate::limits::{PIECE_BYTES, PIECE_BYTES_MAX, PIECE_BYTES_MIN, PIECES_MAX};

/// Division of a file into pieces of equal size; the last one may be shorter. An empty file has no pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PieceCut {
    size: u64,
    piece_bytes: u32,
}

impl PieceCut {
    /// Divides a file into pieces of this size; rejects invalid sizes and too many pieces.
    pub fn new(size: u64, piece_bytes: u32) -> Result<Self> {
        let is_possible = (PIECE_BYTES_MIN..=PIECE_BYTES_MAX).contains(&piece_bytes);
        if !is_possible || !piece_bytes.is_power_of_two() {
            return Err(Error::invalid(format!(
                "piece size must be a power of two from {PIECE_BYTES_MIN} to {PIECE_BYTES_MAX} bytes, got {piece_bytes}"
            )));
        }
        if size.div_ceil(u64::from(piece_bytes)) > u64::from(PIECES_MAX) {
            return Err(Error::invalid(format!(
                "{size} bytes in pieces of {piece_bytes} make more than {PIECES_MAX} pieces; use larger pieces"
            )));
        }
        Ok(Self { size, piece_bytes })
    }

    /// Divides a file into pieces of the default size, or of the next size at which there are not too many.
    pub fn usual(size: u64) -> Result<Self> {
        let mut piece_bytes = PIECE_BYTES;
        while size.div_ceil(u64::from(piece_bytes)) > u64::from(PIECES_MAX) && piece_bytes < PIECE_BYTES_MAX {
            piece_bytes *= 2;
        }
        Self::new(size, piece_bytes)
    }

    /// Size of the file.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Size of every piece except the last.
    #[must_use]
    pub fn piece_bytes(&self) -> u32 {
        self.piece_bytes
    }

    /// Number of pieces.
    #[must_use]
    pub fn pieces(&self) -> u32 {
        u32::try_from(self.size.div_ceil(u64::from(self.piece_bytes))).expect("at most PIECES_MAX")
    }

    /// Byte range of a piece.
    #[must_use]
    pub fn bytes_of(&self, piece: u32) -> Range<u64> {
        self.bytes_of_run(&(piece..piece + 1))
    }

    /// Byte range of adjacent pieces.
    #[must_use]
    pub fn bytes_of_run(&self, run: &Range<u32>) -> Range<u64> {
        let at = |piece: u32| (u64::from(piece) * u64::from(self.piece_bytes)).min(self.size);
        at(run.start)..at(run.end)
    }

    /// Length of a piece.
    #[must_use]
    pub fn len_of(&self, piece: u32) -> u32 {
        let bytes = self.bytes_of(piece);
        u32::try_from(bytes.end - bytes.start).expect("no longer than a piece")
    }

    /// Pieces that contain these bytes.
    #[must_use]
    pub fn pieces_of(&self, bytes: &Range<u64>) -> Range<u32> {
        let piece = |at: u64| u32::try_from(at / u64::from(self.piece_bytes)).unwrap_or(u32::MAX);
        let end = bytes.end.min(self.size);
        if bytes.start >= end {
            return 0..0;
        }
        piece(bytes.start)..piece(end - 1) + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn odd_sizes_are_cut_without_gaps() {
        let mib = u64::from(PIECE_BYTES);
        for (size, pieces, last) in
            [(0, 0, 0), (1, 1, 1), (mib - 1, 1, mib - 1), (mib, 1, mib), (mib + 1, 2, 1), (2 * mib + 1, 3, 1)]
        {
            let cut = PieceCut::usual(size).unwrap();
            assert_eq!(cut.pieces(), pieces, "{size}");
            if pieces > 0 {
                assert_eq!(u64::from(cut.len_of(pieces - 1)), last, "{size}");
            }
        }
    }

    #[test]
    fn a_large_file_has_larger_pieces_and_one_too_large_is_refused() {
        let cut = PieceCut::usual(u64::from(PIECE_BYTES) * u64::from(PIECES_MAX) + 1).unwrap();
        assert_eq!(cut.piece_bytes(), 2 * PIECE_BYTES);
        let error = PieceCut::usual(u64::MAX).unwrap_err();
        assert!(error.to_string().contains("more than 65536 pieces"), "{error}");
        for odd in [0, 1, 1_023, 1_025, 1_048_577, 3 << 20] {
            assert!(PieceCut::new(1, odd).is_err(), "{odd}");
        }
    }

    proptest! {
        #[test]
        fn pieces_cover_every_byte_once(size in 0u64..60_000_000, power in PIECE_BYTES_MIN.ilog2()..=PIECE_BYTES_MAX.ilog2()) {
            let cut = PieceCut::new(size, 1 << power).unwrap();
            let mut at = 0;
            for piece in 0..cut.pieces() {
                let bytes = cut.bytes_of(piece);
                prop_assert_eq!(bytes.start, at);
                prop_assert!(bytes.end > at);
                prop_assert_eq!(cut.pieces_of(&bytes), piece..piece + 1);
                at = bytes.end;
            }
            prop_assert_eq!(at, size);
        }
    }
}
