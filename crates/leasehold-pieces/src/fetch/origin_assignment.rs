//! Assignment of blocks of pieces to the nodes that request them from the origin: rendezvous hashing, so that a node that
//! joins or leaves changes only its own share.

use leasehold_core::ArtifactId;
use leasehold_core::piece::{PeerId, PieceCut, PieceMap};
use std::collections::BTreeSet;
use std::time::Duration;

/// Approximate size of a block. Blocks are assigned instead of single pieces, because a bucket bills by request.
pub(super) const BLOCK_BYTES: u64 = 4 * 1_024 * 1_024;

/// Assignment of blocks, as computed by this node.
#[derive(Debug)]
pub(super) struct OriginAssignment {
    artifact: ArtifactId,
    block_pieces: u32,
    pieces: u32,
    /// Nodes for which the ranks were computed.
    nodes: BTreeSet<PeerId>,
    /// Rank of this node for each block: the number of nodes before it.
    ranks: Vec<u32>,
}

impl OriginAssignment {
    pub(super) fn new(artifact: ArtifactId, cut: &PieceCut) -> Self {
        let block_pieces =
            u32::try_from(BLOCK_BYTES / u64::from(cut.piece_bytes())).unwrap_or(u32::MAX).max(1);
        Self { artifact, block_pieces, pieces: cut.pieces(), nodes: BTreeSet::new(), ranks: Vec::new() }
    }

    /// Pieces that this node may request from the origin after it has received nothing for `idle`. `me` is `None` if this
    /// node does not serve: then its rank is behind a node that does, for every block.
    pub(super) fn allowed(
        &mut self,
        me: Option<&PeerId>,
        others: BTreeSet<PeerId>,
        idle: Duration,
        idle_timeout: Duration,
    ) -> PieceMap {
        // A single block is not worth waiting for another node.
        if others.is_empty() || self.pieces <= self.block_pieces {
            return PieceMap::all(self.pieces);
        }
        if self.ranks.is_empty() || self.nodes != others {
            self.ranks = (0..self.pieces.div_ceil(self.block_pieces))
                .map(|block| self.rank(me, &others, block))
                .collect();
            self.nodes = others;
        }
        let mut allowed = PieceMap::none(self.pieces);
        for (block, rank) in (0..).zip(&self.ranks) {
            if idle_timeout * *rank <= idle {
                let first: u32 = block * self.block_pieces;
                (first..self.pieces.min(first + self.block_pieces)).for_each(|piece| {
                    allowed.insert(piece);
                });
            }
        }
        allowed
    }

    fn rank(&self, me: Option<&PeerId>, others: &BTreeSet<PeerId>, block: u32) -> u32 {
        let Some(me) = me else { return 1 };
        let mine = self.weight(me, block);
        let before = others.iter().filter(|other| *other != me && self.weight(other, block) > mine).count();
        u32::try_from(before).unwrap_or(u32::MAX)
    }

    fn weight(&self, node: &PeerId, block: u32) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new();
        hasher.update(self.artifact.as_str().as_bytes());
        hasher.update(&block.to_le_bytes());
        hasher.update(node.as_str().as_bytes());
        *hasher.finalize().as_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE_TIMEOUT: Duration = Duration::from_secs(2);

    fn nodes(names: &[&str]) -> BTreeSet<PeerId> {
        names.iter().map(|name| PeerId::from(*name)).collect()
    }

    fn assignment() -> OriginAssignment {
        OriginAssignment::new(ArtifactId::blake3([7; 32]), &PieceCut::usual(256 * 1_024 * 1_024).unwrap())
    }

    #[test]
    fn every_piece_is_assigned_to_exactly_one_node() {
        let names = ["a", "b", "c", "d", "e", "f", "g", "h"];
        let mut covered = PieceMap::none(256);
        for name in names {
            let allowed =
                assignment().allowed(Some(&PeerId::from(name)), nodes(&names), Duration::ZERO, IDLE_TIMEOUT);
            assert!(allowed.count() > 0, "{name} has nothing to do");
            assert!(!covered.intersects(&allowed), "two nodes have one block");
            covered.union_with(&allowed);
        }
        assert!(covered.is_full());
    }

    #[test]
    fn a_single_node_gets_everything_and_one_that_does_not_serve_waits() {
        assert!(assignment().allowed(None, nodes(&[]), Duration::ZERO, IDLE_TIMEOUT).is_full());
        assert_eq!(assignment().allowed(None, nodes(&["a"]), Duration::ZERO, IDLE_TIMEOUT).count(), 0);
        assert!(assignment().allowed(None, nodes(&["a"]), IDLE_TIMEOUT, IDLE_TIMEOUT).is_full());
    }

    #[test]
    fn a_single_block_is_fetched_by_every_node() {
        let mut small =
            OriginAssignment::new(ArtifactId::blake3([7; 32]), &PieceCut::usual(BLOCK_BYTES).unwrap());
        assert!(small.allowed(None, nodes(&["a", "b"]), Duration::ZERO, IDLE_TIMEOUT).is_full());
    }

    #[test]
    fn blocks_fall_to_the_next_node_with_time() {
        let me = PeerId::from("a");
        let others = nodes(&["a", "b", "c"]);
        let share = |idle| assignment().allowed(Some(&me), others.clone(), idle, IDLE_TIMEOUT).count();
        assert!(share(Duration::ZERO) < share(IDLE_TIMEOUT));
        assert!(share(IDLE_TIMEOUT) < share(IDLE_TIMEOUT * 2));
        assert_eq!(share(IDLE_TIMEOUT * 2), 256);
    }

    #[test]
    fn a_node_that_leaves_changes_only_its_own_share() {
        let me = PeerId::from("a");
        let before = assignment().allowed(Some(&me), nodes(&["a", "b", "c"]), Duration::ZERO, IDLE_TIMEOUT);
        let mut after = assignment().allowed(Some(&me), nodes(&["a", "b"]), Duration::ZERO, IDLE_TIMEOUT);
        after.keep(&before);
        assert_eq!(after, before);
    }
}
