//! The twelve rules of `docs/protocol/pieces.md`, each under its number.

use std::time::Duration;

use super::*;
use crate::piece::picker::PieceOrder;

mod bounds;
mod endgame;
mod endings;
mod grants;
mod random;
mod ranking;
mod table;

const MIB: u64 = 1_024 * 1_024;
const START: Duration = Duration::from_secs(1_000);

fn at(seconds: u64) -> Duration {
    START + Duration::from_secs(seconds)
}

fn id(name: &str) -> PeerId {
    PeerId::from(name)
}

fn map(len: u32, pieces: impl IntoIterator<Item = u32>) -> PieceMap {
    let mut map = PieceMap::none(len);
    for piece in pieces {
        map.insert(piece);
    }
    map
}

/// Manager of a number of pieces of a MiB, with shortcuts for the tests.
struct Bench {
    manager: PieceLeaseManager,
    pieces: u32,
}

impl Bench {
    fn new(pieces: u32) -> Self {
        Self::with(pieces, ManagerConfig::default())
    }

    fn with(pieces: u32, config: ManagerConfig) -> Self {
        let cut = PieceCut::new(u64::from(pieces) * MIB, 1_024 * 1_024).unwrap();
        Self { manager: PieceLeaseManager::new(cut, config, 7).unwrap(), pieces }
    }

    /// Adds peers that have all pieces.
    fn peers(mut self, names: &[&str]) -> Self {
        for name in names {
            self.join(name, PieceMap::all(self.pieces));
        }
        self
    }

    fn join(&mut self, name: &str, have: PieceMap) {
        self.manager.add_peer(id(name), PeerKind::Peer, have, START).unwrap();
    }

    fn origin(&mut self, name: &str) {
        self.manager.add_peer(id(name), PeerKind::Origin, PieceMap::all(self.pieces), START).unwrap();
    }

    fn request(&self, name: &str, max_leases: u32) -> LeaseRequest {
        let have = self.manager.peers.get(&id(name)).map(|peer| peer.have.clone());
        let have = have.unwrap_or_else(|| PieceMap::all(self.pieces));
        LeaseRequest { peer: id(name), have, max_leases, run_bytes_max: 0, order: PieceOrder::Sequential }
    }

    fn ask(&mut self, name: &str, max_leases: u32, now: Duration) -> LeaseResponse {
        let request = self.request(name, max_leases);
        self.manager.request_lease(&request, now)
    }

    fn get(&mut self, name: &str, max_leases: u32, now: Duration) -> Vec<PieceLease> {
        let response = self.ask(name, max_leases, now);
        assert_eq!(response.rejected, None);
        response.granted
    }

    /// Requests one lease, which must be granted.
    fn one(&mut self, name: &str, now: Duration) -> PieceLease {
        self.get(name, 1, now).remove(0)
    }

    fn refused(&mut self, name: &str, max_leases: u32, now: Duration) -> RejectedReason {
        let response = self.ask(name, max_leases, now);
        assert_eq!(response.granted, [], "a rejected request grants nothing");
        response.rejected.expect("a reason")
    }

    fn end(
        &mut self,
        lease: &PieceLease,
        result: PieceResult,
        now: Duration,
    ) -> Result<Completed, CompletionError> {
        self.end_piece(lease, lease.pieces.start, result, now)
    }

    fn end_piece(
        &mut self,
        lease: &PieceLease,
        piece: u32,
        result: PieceResult,
        now: Duration,
    ) -> Result<Completed, CompletionError> {
        let completion = PieceCompletion { lease: lease.id, piece, peer: lease.peer.clone(), result };
        self.manager.complete_piece(&completion, now)
    }

    fn succeed(&mut self, lease: &PieceLease, now: Duration) -> Vec<Cancelled> {
        let completed = self.end(lease, PieceResult::Success, now).unwrap();
        assert_eq!(completed.outcome, CompletionOutcome::Accepted);
        completed.cancelled
    }

    fn fail(&mut self, lease: &PieceLease, kind: FailureKind, now: Duration) -> Vec<Cancelled> {
        self.end(lease, PieceResult::Failure(kind), now).unwrap().cancelled
    }

    fn stats(&self, name: &str, now: Duration) -> PeerStats {
        self.manager.stats(now).peers.into_iter().find(|peer| peer.peer == id(name)).unwrap()
    }

    fn score(&self, name: &str, now: Duration) -> f64 {
        self.stats(name, now).score
    }

    /// Numbers of missing, leased, verified and skipped pieces.
    fn counts(&self) -> [u32; 4] {
        let stats = self.manager.stats(START);
        [stats.missing, stats.leased, stats.verified, stats.skipped]
    }

    /// Adds a peer that has delivered one piece of a MiB in `seconds`, at the beginning.
    fn trained(&mut self, name: &str, seconds: u64) {
        let lease = self.one(name, at(0));
        // Its progress is reported, so that the lease of a slow peer does not expire.
        for second in 1..seconds {
            self.manager.progress(lease.id, second * MIB / seconds, at(second)).unwrap();
        }
        self.succeed(&lease, at(seconds));
    }
}
