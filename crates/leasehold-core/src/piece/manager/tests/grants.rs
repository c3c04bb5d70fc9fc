//! Granted leases: rules 1, 2 and 8.

use super::*;

fn pieces(leases: &[PieceLease]) -> Vec<u32> {
    leases.iter().flat_map(|lease| lease.pieces.clone()).collect()
}

#[test]
fn rule_1_a_piece_has_one_holder_and_only_one_who_has_it() {
    let mut bench = Bench::new(6);
    bench.join("a", map(6, [0, 1, 2]));
    bench.join("b", map(6, [1, 2, 3]));
    assert_eq!(pieces(&bench.get("a", 2, START)), [0, 1]);
    assert_eq!(pieces(&bench.get("b", 4, START)), [2, 3]);
    assert_eq!(bench.refused("a", 4, START), RejectedReason::NoAvailablePieces);
    assert_eq!(bench.counts(), [2, 4, 0, 0]);
}

#[test]
fn rule_1_a_request_is_granted_only_from_its_own_map() {
    let mut bench = Bench::new(6).peers(&["a"]);
    let request = LeaseRequest { have: map(6, [4]), ..bench.request("a", 4) };
    assert_eq!(pieces(&bench.manager.request_lease(&request, START).granted), [4]);
}

#[test]
fn rule_1_what_is_skipped_or_was_verified_before_is_not_granted() {
    let mut bench = Bench::new(4).peers(&["a"]);
    assert_eq!(bench.manager.skip(&map(4, [0, 3])).unwrap(), []);
    assert_eq!(bench.manager.note_verified(1).unwrap(), []);
    assert_eq!(bench.counts(), [1, 0, 1, 2]);
    let lease = bench.one("a", START);
    assert_eq!(lease.pieces, 2..3);
    assert!(!bench.manager.is_done());
    bench.succeed(&lease, START);
    assert!(bench.manager.is_done());
    assert_eq!(bench.manager.verified(), &map(4, [1, 2]));
    bench.manager.skip(&PieceMap::all(4)).unwrap();
    assert_eq!(bench.counts(), [0, 0, 2, 2], "verified pieces stay verified");
    bench.manager.note_verified(0).unwrap();
    assert_eq!(bench.counts(), [0, 0, 3, 1]);
    assert!(bench.manager.note_verified(4).is_err());
    assert!(bench.manager.skip(&PieceMap::none(5)).is_err());
}

#[test]
fn rule_1_skipping_a_leased_piece_ends_its_lease_without_blame() {
    let mut bench = Bench::new(2).peers(&["a"]);
    let lease = bench.one("a", START);
    let cancelled = bench.manager.skip(&map(2, [0])).unwrap();
    assert_eq!(cancelled[0].why, CancelReason::Skipped);
    assert_eq!(bench.counts(), [1, 0, 0, 1]);
    assert_eq!((bench.stats("a", START).live_leases, bench.score("a", START)), (0, 1.0));
    let late = bench.end(&lease, PieceResult::Success, START).unwrap();
    assert_eq!(late.outcome, CompletionOutcome::NotNeeded);
    assert_eq!(bench.counts(), [1, 0, 0, 1]);
}

#[test]
fn rule_2_a_peer_gets_the_lesser_of_what_it_asks_and_what_it_has_room_for() {
    for held in 0..=4u32 {
        for asked in 1..=6u32 {
            let mut bench = Bench::new(20).peers(&["a"]);
            if held > 0 {
                assert_eq!(bench.get("a", held, START).len(), held as usize);
            }
            let response = bench.ask("a", asked, START);
            assert_eq!(response.granted.len(), asked.min(4 - held) as usize, "{asked} with {held} live");
            assert_eq!(response.rejected, (held == 4).then_some(RejectedReason::PeerAtCapacity));
        }
    }
}

#[test]
fn rule_2_a_lease_that_ends_makes_room() {
    let mut bench = Bench::new(20).peers(&["a"]);
    let leases = bench.get("a", 4, START);
    bench.succeed(&leases[0], START);
    bench.fail(&leases[1], FailureKind::NetworkError, START);
    assert_eq!(bench.get("a", 9, START).len(), 2);
}

#[test]
fn rule_8_the_first_four_pieces_are_random_and_then_the_rarest_come() {
    let mut first_four = std::collections::BTreeSet::new();
    for seed in 0..40 {
        let cut = PieceCut::new(64 * MIB, 1_024 * 1_024).unwrap();
        let mut manager = PieceLeaseManager::new(cut, ManagerConfig::default(), seed).unwrap();
        let rare = map(64, [60, 61]);
        let mut common = PieceMap::all(64);
        common.difference_with(&rare);
        for name in ["a", "b"] {
            manager.add_peer(id(name), PeerKind::Peer, PieceMap::all(64), START).unwrap();
        }
        manager.add_peer(id("c"), PeerKind::Peer, common, START).unwrap();
        let mut ask = |name: &str, max_leases| {
            let have = PieceMap::all(64);
            let order = PieceOrder::Rarest;
            let request = LeaseRequest { peer: id(name), have, max_leases, run_bytes_max: 0, order };
            pieces(&manager.request_lease(&request, START).granted)
        };
        let first = ask("a", 3);
        first_four.extend(first.clone());
        let next = ask("b", 4);
        let left: Vec<_> = rare.iter().filter(|piece| !first.contains(piece) && next[0] != *piece).collect();
        assert!(left.iter().all(|piece| next[1..].contains(piece)), "seed {seed}: {first:?} {next:?}");
    }
    assert!(first_four.len() > 40, "random picks cover all pieces: {}", first_four.len());
}

#[test]
fn rule_8_one_seed_gives_one_sequence() {
    let play = || {
        let mut bench = Bench::new(100).peers(&["a", "b"]);
        let request = LeaseRequest { order: PieceOrder::Rarest, ..bench.request("a", 4) };
        bench.manager.request_lease(&request, START).granted
    };
    assert_eq!(play(), play());
}

#[test]
fn rule_8_after_corrupt_data_an_expiry_a_timeout_or_nonsense_another_peer_tries() {
    let faults = [
        PieceResult::Failure(FailureKind::VerificationFailed),
        PieceResult::Failure(FailureKind::Timeout),
        PieceResult::Failure(FailureKind::InvalidData),
        PieceResult::Expired,
    ];
    for fault in faults {
        let config = ManagerConfig { score_needed: 0.0, ..ManagerConfig::default() };
        let mut bench = Bench::with(1, config).peers(&["a", "b"]);
        let lease = bench.one("a", START);
        bench.end(&lease, fault, START).unwrap();
        assert_eq!(bench.refused("a", 1, START), RejectedReason::NoAvailablePieces, "{fault:?}");
        let other = bench.one("b", START);
        bench.end(&other, fault, START).unwrap();
        assert_eq!(bench.one("a", START).pieces, 0..1, "after all have failed, all may retry: {fault:?}");
    }
}

#[test]
fn rule_8_a_broken_connection_says_nothing_about_the_piece() {
    let config = ManagerConfig { score_needed: 0.0, ..ManagerConfig::default() };
    let mut bench = Bench::with(1, config).peers(&["a", "b"]);
    let lease = bench.one("a", START);
    bench.fail(&lease, FailureKind::NetworkError, START);
    bench.one("a", START);
}

#[test]
fn rule_8_the_only_source_tries_again_also_when_the_other_one_leaves() {
    let config = ManagerConfig { score_needed: 0.0, ..ManagerConfig::default() };
    let mut bench = Bench::with(1, config).peers(&["a", "b"]);
    let lease = bench.one("a", START);
    bench.fail(&lease, FailureKind::Timeout, START);
    assert_eq!(bench.refused("a", 1, START), RejectedReason::NoAvailablePieces);
    bench.manager.update_have(&id("b"), PieceMap::none(1), START).unwrap();
    let lease = bench.one("a", START);
    bench.fail(&lease, FailureKind::Timeout, START);
    bench.manager.update_have(&id("b"), PieceMap::all(1), START).unwrap();
    assert_eq!(bench.refused("a", 1, START), RejectedReason::NoAvailablePieces);
    bench.manager.remove_peer(&id("b"), START);
    bench.one("a", START);
}

#[test]
fn rule_8_for_equal_requests_the_better_peer_gets_at_least_as_many_leases() {
    let granted = |successes: usize, failures: usize, asked| {
        let mut bench = Bench::new(60).peers(&["a", "other"]);
        for result in std::iter::repeat_n(PieceResult::Success, successes)
            .chain(std::iter::repeat_n(PieceResult::Failure(FailureKind::NetworkError), failures))
        {
            let Some(lease) = bench.ask("a", 1, START).granted.pop() else { break };
            bench.end(&lease, result, START).unwrap();
        }
        (bench.score("a", START), bench.ask("a", asked, START).granted.len())
    };
    let mut seen: Vec<(f64, usize)> = Vec::new();
    for (successes, failures) in (0..20).flat_map(|s| (0..4).map(move |f| (s, f))) {
        seen.push(granted(successes, failures, 4));
    }
    seen.sort_by(|one, other| one.0.total_cmp(&other.0));
    assert!(seen.windows(2).all(|pair| pair[0].1 <= pair[1].1), "{seen:?}");
    assert!(seen.first().unwrap().1 < seen.last().unwrap().1);
}

#[test]
fn the_origin_gets_runs_of_adjacent_pieces_and_peers_single_pieces() {
    let mut bench = Bench::new(40).peers(&["a"]);
    bench.origin("bucket");
    bench.manager.note_verified(5).unwrap();
    let request = LeaseRequest { run_bytes_max: 4 * MIB, ..bench.request("bucket", 3) };
    let runs = bench.manager.request_lease(&request, START).granted;
    assert_eq!(runs.iter().map(|run| run.pieces.clone()).collect::<Vec<_>>(), [0..4, 4..5, 6..10]);
    assert_eq!(bench.stats("bucket", START).live_leases, 3);
    let request = LeaseRequest { run_bytes_max: u64::MAX, ..bench.request("bucket", 3) };
    let runs = bench.manager.request_lease(&request, START).granted;
    assert_eq!((runs.len(), runs[0].pieces.clone()), (1, 10..26), "16 MiB, and 4 leases");
    let request = LeaseRequest { run_bytes_max: 4 * MIB, ..bench.request("a", 1) };
    assert_eq!(bench.manager.request_lease(&request, START).granted[0].pieces, 26..27);
}

#[test]
fn a_run_ends_piece_by_piece() {
    let mut bench = Bench::new(3);
    bench.origin("bucket");
    let request = LeaseRequest { run_bytes_max: 4 * MIB, ..bench.request("bucket", 1) };
    let run = bench.manager.request_lease(&request, START).granted.remove(0);
    assert_eq!(run.pieces, 0..3);
    bench.end_piece(&run, 1, PieceResult::Success, at(2)).unwrap();
    assert_eq!(bench.end_piece(&run, 1, PieceResult::Success, at(2)), Err(CompletionError::NotInLease));
    bench.end_piece(&run, 0, PieceResult::Failure(FailureKind::VerificationFailed), at(2)).unwrap();
    assert_eq!((bench.counts(), bench.stats("bucket", at(2)).live_leases), ([1, 1, 1, 0], 1));
    bench.end_piece(&run, 2, PieceResult::Success, at(2)).unwrap();
    let stats = bench.stats("bucket", at(2));
    assert_eq!((bench.counts(), stats.live_leases), ([1, 0, 2, 0], 0));
    assert_eq!((stats.counters.pieces, stats.counters.bytes, stats.counters.corrupt), (2, 2 * MIB, 1));
}
