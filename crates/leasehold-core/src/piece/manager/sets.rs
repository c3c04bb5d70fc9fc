//! The four sets that every piece is in one of, and who holds those that are leased.

use std::collections::BTreeSet;

use super::messages::PieceLeaseId;
use crate::piece::map::PieceMap;

/// Every piece is in exactly one of the maps.
#[derive(Debug)]
pub(super) struct Sets {
    pub(super) missing: PieceMap,
    pub(super) leased: PieceMap,
    pub(super) verified: PieceMap,
    pub(super) skipped: PieceMap,
    /// One holder of every leased piece, two at most.
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

    /// Whether someone still works, or has to work, for this piece.
    pub(super) fn is_wanted(&self, piece: u32) -> bool {
        self.missing.has(piece) || self.leased.has(piece)
    }

    pub(super) fn hold(&mut self, piece: u32, lease: PieceLeaseId) {
        self.missing.remove(piece);
        self.leased.insert(piece);
        self.holders.insert((piece, lease));
    }

    /// One holder less; without any the piece is missing again.
    pub(super) fn let_go(&mut self, piece: u32, lease: PieceLeaseId) {
        self.holders.remove(&(piece, lease));
        if self.holders(piece).next().is_none() && self.leased.remove(piece) {
            self.missing.insert(piece);
        }
    }

    /// For good. Nobody may hold it any more.
    pub(super) fn verify(&mut self, piece: u32) {
        self.missing.remove(piece);
        self.skipped.remove(piece);
        self.verified.insert(piece);
    }

    /// Nobody may hold it any more.
    pub(super) fn skip(&mut self, piece: u32) {
        if self.missing.remove(piece) {
            self.skipped.insert(piece);
        }
    }
}
