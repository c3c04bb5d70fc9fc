//! The four sets of pieces, and the holders of leased pieces. Every piece is in exactly one set.

use std::collections::BTreeSet;

use super::messages::PieceLeaseId;
use crate::piece::map::PieceMap;

/// Partition of all pieces into four maps.
#[derive(Debug)]
pub(super) struct Sets {
    pub(super) missing: PieceMap,
    pub(super) leased: PieceMap,
    pub(super) verified: PieceMap,
    pub(super) skipped: PieceMap,
    /// One or two holders of every leased piece.
    holders: BTreeSet<(u32, PieceLeaseId)>,
}

impl Sets {
    pub(super) fn all_missing(pieces: u32) -> Self {
        let none = PieceMap::none(pieces);
        let (leased, verified, skipped) = (none.clone(), none.clone(), none);
        Self { missing: PieceMap::all(pieces), leased, verified, skipped, holders: BTreeSet::new() }
    }

    pub(super) fn holders(&self, piece: u32) -> impl Iterator<Item = PieceLeaseId> + '_ {
        let all = (piece, PieceLeaseId(0))..=(piece, PieceLeaseId(u64::MAX));
        self.holders.range(all).map(|(_, lease)| *lease)
    }

    /// True if the piece is still to be fetched, or is being fetched.
    pub(super) fn is_wanted(&self, piece: u32) -> bool {
        self.missing.has(piece) || self.leased.has(piece)
    }

    pub(super) fn add_holder(&mut self, piece: u32, lease: PieceLeaseId) {
        self.missing.remove(piece);
        self.leased.insert(piece);
        self.holders.insert((piece, lease));
    }

    /// Removes a holder; without any, the piece is missing again.
    pub(super) fn remove_holder(&mut self, piece: u32, lease: PieceLeaseId) {
        self.holders.remove(&(piece, lease));
        if self.holders(piece).next().is_none() && self.leased.remove(piece) {
            self.missing.insert(piece);
        }
    }

    /// Marks a piece as verified. It must have no holders.
    pub(super) fn verify(&mut self, piece: u32) {
        self.missing.remove(piece);
        self.skipped.remove(piece);
        self.verified.insert(piece);
    }

    /// Excludes a missing piece. It must have no holders.
    pub(super) fn skip(&mut self, piece: u32) {
        if self.missing.remove(piece) {
            self.skipped.insert(piece);
        }
    }
}
