//! Ten thousand random steps per seed, with invariants after each: rules 1, 2, 6, 7 and 9 together.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::random::SplitMix64;

const STEPS: usize = 10_000;
const NAMES: [&str; 7] = ["a", "b", "c", "d", "e", "f", "bucket"];

/// Manager, and the state that follows from its answers alone.
struct Play {
    bench: Bench,
    random: SplitMix64,
    now: Duration,
    /// Open pieces of every lease that was granted and not reported as ended.
    live: BTreeMap<PieceLeaseId, (PeerId, BTreeSet<u32>)>,
    old: Vec<PieceLease>,
    verified: PieceMap,
}

impl Play {
    fn new(seed: u64) -> Self {
        let mut random = SplitMix64::new(seed);
        let pieces = 1 + u32::try_from(random.draw() % 150).unwrap();
        let bench = Bench::new(pieces);
        let (live, old, verified) = (BTreeMap::new(), Vec::new(), PieceMap::none(pieces));
        Self { bench, random, now: START, live, old, verified }
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.random.draw() % bound.max(1) as u64).unwrap()
    }

    fn some_map(&mut self) -> PieceMap {
        let part = self.random.draw() % 5;
        let pieces = (0..self.bench.pieces).filter(|_| self.random.draw() % 4 < part).collect::<Vec<_>>();
        map(self.bench.pieces, pieces)
    }

    fn step(&mut self) {
        let name = NAMES[self.below(NAMES.len())];
        match self.below(20) {
            0 => self.join(name),
            1 => {
                let have = self.some_map();
                let _ = self.bench.manager.update_have(&id(name), have, self.now);
            }
            2 if self.below(4) == 0 => {
                let ended = self.bench.manager.remove_peer(&id(name), self.now);
                self.end_cancelled(&ended);
            }
            3 => self.now += Duration::from_millis(self.random.draw() % 40_000),
            4 => {
                let ended = self.bench.manager.expire(self.now);
                self.end_cancelled(&ended);
                assert!(self.bench.manager.next_expiry().is_none_or(|next| next > self.now));
            }
            5 if self.below(40) == 0 => self.forget_some(),
            6..=8 => self.tell_of_bytes(),
            9..=13 => self.complete(),
            _ => self.ask(name),
        }
    }

    fn join(&mut self, name: &str) {
        let kind = if name == "bucket" { PeerKind::Origin } else { PeerKind::Peer };
        let have = if name == "bucket" { PieceMap::all(self.bench.pieces) } else { self.some_map() };
        self.bench.manager.add_peer(id(name), kind, have, self.now).unwrap();
    }

    fn forget_some(&mut self) {
        let piece = u32::try_from(self.below(self.bench.pieces as usize)).unwrap();
        let ended = if self.below(2) == 0 {
            self.verified.insert(piece);
            self.bench.manager.note_verified(piece)
        } else {
            self.bench.manager.skip(&map(self.bench.pieces, [piece]))
        };
        self.end_cancelled(&ended.unwrap());
    }

    fn tell_of_bytes(&mut self) {
        let Some((lease, piece, _)) = self.some_open_piece() else { return };
        let before = self.bench.manager.leases.get(lease).map(|held| held.expires_at);
        let answer = if self.below(2) == 0 {
            let bytes = self.random.draw() % (2 * MIB);
            self.bench.manager.progress(lease, bytes, self.now)
        } else {
            self.bench.manager.received(lease, piece, self.now)
        };
        assert!(answer.map_or(before <= Some(self.now), |until| Some(until) >= before));
    }

    fn some_open_piece(&mut self) -> Option<(PieceLeaseId, u32, PeerId)> {
        let number = self.below(self.live.len());
        let (lease, (peer, open)) = self.live.iter().nth(number)?;
        Some((*lease, *open.first()?, peer.clone()))
    }

    fn complete(&mut self) {
        let Some((mut lease, piece, mut peer)) = self.some_open_piece() else { return };
        if self.below(10) == 0 && !self.old.is_empty() {
            let number = self.below(self.old.len());
            (lease, peer) = (self.old[number].id, self.old[number].peer.clone());
        }
        if self.below(20) == 0 {
            peer = id(NAMES[self.below(NAMES.len())]);
        }
        let result = match self.below(12) {
            0 => PieceResult::Failure(FailureKind::NetworkError),
            1 => PieceResult::Failure(FailureKind::Timeout),
            2 => PieceResult::Failure(FailureKind::VerificationFailed),
            3 => PieceResult::Failure(FailureKind::InvalidData),
            4 => PieceResult::Expired,
            _ => PieceResult::Success,
        };
        self.say(&PieceCompletion { lease, piece, peer, result });
    }

    fn say(&mut self, completion: &PieceCompletion) {
        let before = self.bench.manager.stats(self.now);
        let was_over =
            self.bench.manager.leases.get(completion.lease).is_none_or(|held| held.is_expired(self.now));
        let Ok(completed) = self.bench.manager.complete_piece(completion, self.now) else {
            assert_eq!(self.bench.manager.stats(self.now), before, "an error changes nothing");
            return;
        };
        let after = self.bench.manager.stats(self.now);
        for (before, after) in before.peers.iter().zip(&after.peers) {
            let is_its = before.peer == completion.peer;
            let is_success = completion.result == PieceResult::Success && !was_over;
            let is_right = match (is_its, is_success) {
                (true, true) => after.score >= before.score,
                (true, false) => after.score <= before.score,
                (false, _) => after.score.to_bits() == before.score.to_bits(),
            };
            assert!(is_right, "{completion:?}: {} to {}", before.score, after.score);
        }
        if let Some((_, open)) = self.live.get_mut(&completion.lease) {
            open.remove(&completion.piece);
        }
        if completion.result == PieceResult::Success && completed.outcome != CompletionOutcome::NotNeeded {
            assert!(self.verified.insert(completion.piece), "verified once");
        }
        self.end_cancelled(&completed.cancelled);
    }

    fn ask(&mut self, name: &str) {
        let order = if self.below(3) == 0 { PieceOrder::Sequential } else { PieceOrder::Rarest };
        let run_bytes_max = self.random.draw() % (6 * MIB);
        let max_leases = u32::try_from(self.below(7)).unwrap();
        let mut request = LeaseRequest { run_bytes_max, order, ..self.bench.request(name, max_leases) };
        if self.below(3) == 0 {
            let narrow = self.some_map();
            request.have.keep(&narrow);
        }
        self.ask_for(&request);
    }

    fn ask_for(&mut self, request: &LeaseRequest) -> Vec<PieceLease> {
        let response = self.bench.manager.request_lease(request, self.now);
        self.end_cancelled(&response.cancelled);
        assert_eq!(response.granted.is_empty(), response.rejected.is_some());
        assert!(response.granted.len() <= request.max_leases as usize);
        let stats = self.bench.manager.stats(self.now);
        for lease in &response.granted {
            let peer = &self.bench.manager.peers[&lease.peer];
            assert!(peer.live <= peer.capacity(&self.bench.manager.config) && !stats.peers.is_empty());
            assert!(peer.kind == PeerKind::Origin || lease.pieces.len() == 1);
            assert!(lease.expires_at > self.now);
            for piece in lease.pieces.clone() {
                assert!(request.have.has(piece) && !self.verified.has(piece));
                assert!(!self.bench.manager.sets.skipped.has(piece));
                let is_first = self.live.values().all(|(_, open)| !open.contains(&piece));
                assert!(is_first || (stats.missing == 0 && stats.leased <= 4), "two only in the end game");
            }
            self.live.insert(lease.id, (lease.peer.clone(), lease.pieces.clone().collect()));
            self.old.push(lease.clone());
        }
        response.granted
    }

    fn end_cancelled(&mut self, cancelled: &[Cancelled]) {
        for gone in cancelled {
            let Some((peer, open)) = self.live.get_mut(&gone.lease) else { continue };
            assert_eq!(*peer, gone.peer);
            open.retain(|piece| !gone.pieces.contains(piece));
        }
        self.live.retain(|_, (_, open)| !open.is_empty());
    }

    /// Checks the invariants.
    fn check(&self) {
        let manager = &self.bench.manager;
        let sets =
            [&manager.sets.missing, &manager.sets.leased, &manager.sets.verified, &manager.sets.skipped];
        assert_eq!(sets.iter().map(|set| set.count()).sum::<u32>(), self.bench.pieces);
        for (number, one) in sets.iter().enumerate() {
            assert!(sets[number + 1..].iter().all(|other| !one.intersects(other)), "in one set only");
        }
        assert_eq!(manager.sets.verified, self.verified, "exactly the reported pieces are verified");
        let live: BTreeMap<_, _> =
            manager.leases.iter().map(|(id, held)| (id, (held.peer.clone(), held.open.clone()))).collect();
        assert_eq!(live, self.live, "every lease that ended was reported");
        let mut holders = vec![0; self.bench.pieces as usize];
        for piece in self.live.values().flat_map(|(_, open)| open) {
            holders[*piece as usize] += 1;
        }
        for (piece, count) in (0..).zip(holders) {
            assert_eq!(count > 0, manager.sets.leased.has(piece));
            assert!(count <= 2);
        }
        self.check_peers();
    }

    fn check_peers(&self) {
        let manager = &self.bench.manager;
        for peer in manager.stats(self.now).peers {
            assert!((0.1..=10.0).contains(&peer.score), "{}", peer.score);
            assert!(peer.live_leases <= 4);
            let live = self.live.values().filter(|(holder, _)| *holder == peer.peer).count();
            assert_eq!(peer.live_leases as usize, live);
        }
        for piece in 0..self.bench.pieces {
            let counted = manager.peers.values().filter(|peer| !peer.is_quarantined(&manager.config));
            let having: Vec<_> = counted.filter(|peer| peer.have.has(piece)).collect();
            assert_eq!(manager.picker.sources(piece) as usize, having.len());
            let reliable = having.iter().filter(|peer| !peer.failed_pieces.has(piece));
            assert_eq!(manager.picker.reliable_sources(piece) as usize, reliable.count());
        }
    }

    /// Completes the fetch with one correct peer that has all pieces.
    fn finish(&mut self) {
        self.bench
            .manager
            .add_peer(id("good"), PeerKind::Peer, PieceMap::all(self.bench.pieces), self.now)
            .unwrap();
        for _ in 0..2 * self.bench.pieces + 100 {
            if self.bench.manager.is_done() {
                return;
            }
            let granted = self.ask_for(&self.bench.request("good", 4));
            for lease in &granted {
                let (piece, peer) = (lease.pieces.start, lease.peer.clone());
                self.say(&PieceCompletion { lease: lease.id, piece, peer, result: PieceResult::Success });
            }
            if granted.is_empty() {
                self.now =
                    self.bench.manager.next_expiry().expect("the remaining pieces are leased").max(self.now);
            }
            self.check();
        }
        panic!("the fetch does not end: {:?}", self.bench.manager.stats(self.now));
    }
}

#[test]
fn rule_1_whatever_happens_the_four_sets_add_up_and_the_transfer_ends() {
    for seed in [1, 2, 3, 5, 8] {
        let (mut steps, mut transfers) = (0, 0);
        while steps < STEPS {
            transfers += 1;
            let mut play = Play::new(seed * 1_000 + transfers);
            while !play.bench.manager.is_done() && steps < STEPS && play.old.len() < 600 {
                play.step();
                play.check();
                steps += 1;
            }
            play.finish();
        }
        assert!(transfers > 3, "several sizes per seed: {transfers}");
    }
}

/// Peers that each have a part, together all pieces, and fail occasionally, without an origin.
#[test]
fn rule_8_peers_that_fail_now_and_then_finish_by_themselves() {
    for seed in 0..20 {
        let mut play = Play::new(seed);
        let pieces = play.bench.pieces;
        for (number, name) in (0..).zip(["a", "b", "c"]) {
            play.bench.join(name, map(pieces, (0..pieces).filter(|piece| piece % 3 != number)));
        }
        for _ in 0..100 * pieces + 1_000 {
            let mut is_idle = true;
            for name in ["a", "b", "c"] {
                let request = LeaseRequest { order: PieceOrder::Rarest, ..play.bench.request(name, 4) };
                for lease in play.ask_for(&request) {
                    is_idle = false;
                    let failed = PieceResult::Failure(FailureKind::Timeout);
                    let result = if play.below(9) == 0 { failed } else { PieceResult::Success };
                    let (piece, peer) = (lease.pieces.start, lease.peer.clone());
                    play.say(&PieceCompletion { lease: lease.id, piece, peer, result });
                    play.end_cancelled(&[]);
                }
            }
            if play.bench.manager.is_done() {
                break;
            }
            if is_idle {
                play.now = play.bench.manager.next_expiry().expect("a probe, at least");
            }
        }
        assert!(play.bench.manager.is_done(), "seed {seed}: {:?}", play.bench.manager.stats(play.now));
    }
}
