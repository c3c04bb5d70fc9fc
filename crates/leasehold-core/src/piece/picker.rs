//! Choice of the next pieces: at random at first, then the rarest, or in order on request.
//!
//! The number of peers that have a piece is counted when their maps change, not on request: a request examines each
//! candidate piece once, independent of the number of peers.

use std::ops::Range;

use super::cut::PieceCut;
use super::map::PieceMap;
use crate::random::SplitMix64;

/// Order in which pieces are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PieceOrder {
    /// Rarest first; random among equals.
    #[default]
    Rarest,
    /// From the beginning, for readers that consume while fetching.
    Sequential,
}

/// Number of peers that have a piece.
#[derive(Debug, Clone, Copy, Default)]
struct Sources {
    /// Peers that have it.
    all: u32,
    /// Peers that have it but failed with it, so that other peers are preferred.
    failed: u32,
}

/// Counts the sources of pieces, and picks pieces.
#[derive(Debug)]
pub(super) struct Picker {
    sources: Vec<Sources>,
    random: SplitMix64,
    random_left: u32,
    examined: u64,
}

impl Picker {
    pub(super) fn new(pieces: u32, random_first: u32, seed: u64) -> Self {
        let sources = vec![Sources::default(); pieces as usize];
        Self { sources, random: SplitMix64::new(seed), random_left: random_first, examined: 0 }
    }

    /// Number of pieces examined by all picks together, as a measure of work.
    pub(super) fn examined(&self) -> u64 {
        self.examined
    }

    /// Adds a peer that has these pieces, and failed with some of them.
    pub(super) fn join(&mut self, have: &PieceMap, failed: &PieceMap) {
        have.iter().for_each(|piece| self.sources[piece as usize].all += 1);
        both(have, failed).for_each(|piece| self.sources[piece as usize].failed += 1);
    }

    /// Undoes [`join`](Self::join).
    pub(super) fn leave(&mut self, have: &PieceMap, failed: &PieceMap) {
        have.iter().for_each(|piece| self.sources[piece as usize].all -= 1);
        both(have, failed).for_each(|piece| self.sources[piece as usize].failed -= 1);
    }

    /// Counts a peer that has the piece and failed with it.
    pub(super) fn count_failed(&mut self, piece: u32) {
        self.sources[piece as usize].failed += 1;
    }

    /// Number of peers that have the piece and have not failed with it.
    pub(super) fn reliable_sources(&self, piece: u32) -> u32 {
        let sources = self.sources[piece as usize];
        sources.all - sources.failed
    }

    /// Number of peers that have the piece.
    pub(super) fn sources(&self, piece: u32) -> u32 {
        self.sources[piece as usize].all
    }

    /// Counts pieces that were taken without a pick, so that fewer are chosen at random.
    pub(super) fn count_picked(&mut self, pieces: u32) {
        self.random_left = self.random_left.saturating_sub(pieces);
    }

    /// Removes at most `most` pieces from the candidates and returns them.
    pub(super) fn pick(&mut self, candidates: &mut PieceMap, most: u32, order: PieceOrder) -> Vec<u32> {
        if order == PieceOrder::Sequential {
            let picked: Vec<u32> = candidates.iter().take(most as usize).collect();
            self.examined += picked.len() as u64;
            return self.take(candidates, picked);
        }
        let random = self.least(candidates, most.min(self.random_left), |_| 0);
        let mut picked = self.take(candidates, random);
        let missing = most.saturating_sub(u32::try_from(picked.len()).unwrap_or(most));
        let rarest = self.least(candidates, missing, |sources| sources.all);
        picked.extend(self.take(candidates, rarest));
        picked
    }

    /// Removes one run of adjacent pieces from the candidates, of at most `bytes_max` but at least one piece.
    pub(super) fn pick_run(
        &mut self,
        candidates: &mut PieceMap,
        order: PieceOrder,
        cut: &PieceCut,
        bytes_max: u64,
    ) -> Option<Range<u32>> {
        let first = *self.pick(candidates, 1, order).first()?;
        let mut run = first..first + 1;
        let bytes = |run: &Range<u32>| {
            let bytes = cut.bytes_of_run(run);
            bytes.end - bytes.start
        };
        while candidates.has(run.end) && bytes(&(run.start..run.end + 1)) <= bytes_max {
            run.end += 1;
        }
        // The pieces before it are usually left over from an earlier run.
        while run.start > 0 && candidates.has(run.start - 1) && bytes(&(run.start - 1..run.end)) <= bytes_max
        {
            run.start -= 1;
        }
        let more = run.clone().filter(|piece| *piece != first).collect();
        self.take(candidates, more);
        Some(run)
    }

    fn take(&mut self, candidates: &mut PieceMap, picked: Vec<u32>) -> Vec<u32> {
        for piece in &picked {
            candidates.remove(*piece);
        }
        self.count_picked(u32::try_from(picked.len()).unwrap_or(u32::MAX));
        picked
    }

    /// Returns the candidates with the lowest rank, random among equals. Draws random bits only where they can matter.
    fn least(&mut self, candidates: &PieceMap, most: u32, rank: impl Fn(Sources) -> u32) -> Vec<u32> {
        let mut best: Vec<(u32, u64, u32)> = Vec::with_capacity(most as usize + 1);
        if most == 0 {
            return Vec::new();
        }
        for piece in candidates.iter() {
            self.examined += 1;
            let rank = rank(self.sources[piece as usize]);
            let is_full = best.len() == most as usize;
            if is_full && best.last().is_some_and(|worst| rank > worst.0) {
                continue;
            }
            let entry = (rank, self.random.draw(), piece);
            let at = best.partition_point(|other| *other < entry);
            best.insert(at, entry);
            best.truncate(most as usize);
        }
        best.into_iter().map(|(_, _, piece)| piece).collect()
    }
}

/// Iterates over the pieces in both maps.
fn both<'a>(have: &'a PieceMap, failed: &'a PieceMap) -> impl Iterator<Item = u32> + 'a {
    failed.iter().filter(|piece| have.has(*piece))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(len: u32, pieces: impl IntoIterator<Item = u32>) -> PieceMap {
        let mut map = PieceMap::none(len);
        for piece in pieces {
            map.insert(piece);
        }
        map
    }

    fn picker(haves: &[PieceMap], random_first: u32, seed: u64) -> Picker {
        let mut picker = Picker::new(haves[0].len(), random_first, seed);
        for have in haves {
            picker.join(have, &PieceMap::none(have.len()));
        }
        picker
    }

    #[test]
    fn the_rarest_come_first_and_equals_in_random_order() {
        let haves = [PieceMap::all(8), map(8, [0, 1, 2, 3, 4, 5]), map(8, [0, 1, 2])];
        let mut firsts = std::collections::BTreeSet::new();
        for seed in 0..50 {
            let picked = picker(&haves, 0, seed).pick(&mut PieceMap::all(8), 8, PieceOrder::Rarest);
            let ranks: Vec<_> =
                picked.iter().map(|piece| [3, 3, 3, 2, 2, 2, 1, 1][*piece as usize]).collect();
            assert_eq!(ranks, [1, 1, 2, 2, 2, 3, 3, 3]);
            firsts.insert(picked[0]);
        }
        assert_eq!(firsts.into_iter().collect::<Vec<_>>(), [6, 7]);
    }

    #[test]
    fn in_order_means_from_the_beginning() {
        let mut picker = picker(&[PieceMap::all(9)], 4, 1);
        let mut candidates = map(9, [8, 2, 5, 3]);
        assert_eq!(picker.pick(&mut candidates, 3, PieceOrder::Sequential), [2, 3, 5]);
        assert_eq!(candidates, map(9, [8]));
    }

    #[test]
    fn runs_are_neighbours_within_their_bytes_and_have_at_least_one_piece() {
        let cut = PieceCut::new(9 * 1_024 + 1, 1_024).unwrap();
        let run = |pieces: &[u32], bytes| {
            let mut candidates = map(10, pieces.iter().copied());
            picker(&[PieceMap::all(10)], 0, 1).pick_run(&mut candidates, PieceOrder::Sequential, &cut, bytes)
        };
        assert_eq!(run(&[1, 2, 3, 5], 1 << 20), Some(1..4));
        assert_eq!(run(&[1, 2, 3, 5], 2_048), Some(1..3));
        assert_eq!(run(&[1, 2, 3, 5], 2_047), Some(1..2));
        assert_eq!(run(&[1, 2], 0), Some(1..2));
        assert_eq!(run(&[8, 9], 1_025), Some(8..10), "the last piece has one byte");
        assert_eq!(run(&[], 9), None);
    }

    #[test]
    fn a_run_also_takes_what_lies_before_the_rarest_piece() {
        let cut = PieceCut::new(10 * 1_024, 1_024).unwrap();
        let mut everyone = PieceMap::all(10);
        everyone.remove(6);
        let mut candidates = map(10, [4, 5, 6, 7, 9]);
        let mut picker = picker(&[PieceMap::all(10), everyone], 0, 3);
        let run = picker.pick_run(&mut candidates, PieceOrder::Rarest, &cut, 4_096);
        assert_eq!((run, candidates), (Some(4..8), map(10, [9])));
    }
}
