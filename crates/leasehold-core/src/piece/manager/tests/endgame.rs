//! Pieces with two holders, and takeovers from slow holders: rule 9.

use super::*;

#[test]
fn rule_9_in_the_end_game_a_second_peer_gets_the_piece_and_a_third_does_not() {
    let mut bench = Bench::new(1).peers(&["a", "b", "c"]);
    let first = bench.one("a", START);
    let second = bench.one("b", START);
    assert_eq!(second.pieces, first.pieces);
    assert_eq!(bench.refused("c", 1, START), RejectedReason::NoAvailablePieces);
    assert_eq!(bench.refused("a", 1, START), RejectedReason::NoAvailablePieces, "not the same peer twice");
    assert_eq!((bench.counts(), bench.manager.stats(START).duplicates), ([0, 1, 0, 0], 1));
}

#[test]
fn rule_9_the_first_to_be_verified_wins_and_the_other_is_cancelled_without_penalty() {
    let mut bench = Bench::new(1).peers(&["a", "b"]);
    let first = bench.one("a", START);
    let second = bench.one("b", START);
    let cancelled = bench.succeed(&second, START);
    let loser = Cancelled { lease: first.id, peer: id("a"), pieces: 0..1, why: CancelReason::Verified };
    assert_eq!(cancelled, [loser]);
    assert!(bench.manager.is_done());
    let stats = bench.stats("a", START);
    assert_eq!((stats.score, stats.live_leases), (1.0, 0));
    assert_eq!(bench.end(&first, PieceResult::Success, START).unwrap().outcome, CompletionOutcome::NotNeeded);
    assert_eq!(bench.manager.next_expiry(), None);
}

#[test]
fn rule_9_the_piece_stays_leased_while_one_of_two_is_left() {
    let mut bench = Bench::new(1).peers(&["a", "b"]);
    let first = bench.one("a", START);
    let second = bench.one("b", START);
    bench.fail(&first, FailureKind::NetworkError, START);
    assert_eq!(bench.counts(), [0, 1, 0, 0]);
    bench.fail(&second, FailureKind::NetworkError, START);
    assert_eq!(bench.counts(), [1, 0, 0, 0]);
}

#[test]
fn rule_9_the_end_game_begins_when_nothing_is_unleased_and_at_most_four_are_outstanding() {
    for (pieces, is_end_game) in [(3, true), (4, true), (5, false)] {
        let mut bench = Bench::new(pieces).peers(&["a", "b", "c"]);
        bench.get("a", 4, START);
        if pieces > 4 {
            bench.get("b", 1, START);
        }
        let granted = bench.ask("c", 4, START).granted.len();
        assert_eq!(granted, if is_end_game { pieces as usize } else { 0 }, "{pieces}");
    }
    let mut bench = Bench::new(3).peers(&["a"]);
    bench.join("b", map(3, [0]));
    bench.one("a", START);
    assert_eq!(bench.refused("b", 1, START), RejectedReason::NoAvailablePieces, "two are not leased");
}

/// One piece leased to a peer that needs `slow` seconds for a MiB, more than four outstanding, and another peer that
/// needs `fast` seconds, with or without leases.
fn challenge(slow: u64, fast: u64, is_idle: bool) -> (Bench, PieceLease, LeaseResponse) {
    let mut bench = Bench::new(9).peers(&["slow", "fast", "others"]);
    bench.trained("slow", slow);
    bench.trained("fast", fast);
    let now = at(slow.max(fast));
    let held = bench.one("slow", now);
    if !is_idle {
        bench.one("fast", now);
    }
    bench.join("more", PieceMap::all(9));
    bench.get("others", 4, now);
    let rest = bench.manager.stats(now).missing;
    if rest > 0 {
        assert_eq!(bench.get("more", 4, now).len(), rest as usize);
    }
    assert!(bench.manager.stats(now).leased > 4);
    let response = bench.ask("fast", 4, now);
    (bench, held, response)
}

#[test]
fn rule_9_a_holder_more_than_three_times_slower_than_an_idle_peer_loses_its_piece_without_penalty() {
    let (bench, held, response) = challenge(7, 2, true);
    assert_eq!(response.granted.len(), 1);
    assert_eq!(response.granted[0].pieces, held.pieces);
    let loser =
        Cancelled { lease: held.id, peer: id("slow"), pieces: held.pieces, why: CancelReason::FasterPeer };
    assert_eq!(response.cancelled, [loser]);
    let stats = bench.stats("slow", at(7));
    assert_eq!((stats.score, stats.live_leases, bench.manager.stats(at(7)).overtaken), (1.5, 0, 1));
}

#[test]
fn rule_9_exactly_three_times_or_a_busy_peer_is_not_enough() {
    for (slow, fast, is_idle) in [(6, 2, true), (7, 2, false), (20, 2, false)] {
        let (_, _, response) = challenge(slow, fast, is_idle);
        assert_eq!(response.rejected, Some(RejectedReason::NoAvailablePieces), "{slow} to {fast}");
    }
}

#[test]
fn rule_9_more_than_ten_times_slower_always_loses() {
    let (_, held, response) = challenge(21, 2, false);
    assert_eq!(response.granted[0].pieces, held.pieces);
}

#[test]
fn rule_9_the_origin_loses_nothing_and_neither_does_a_piece_that_is_being_verified() {
    let mut bench = Bench::new(8).peers(&["fast", "others"]);
    bench.origin("bucket");
    bench.trained("bucket", 9);
    bench.trained("fast", 1);
    bench.one("bucket", at(9));
    bench.get("others", 4, at(9));
    bench.join("more", PieceMap::all(8));
    bench.one("more", at(9));
    assert_eq!(bench.manager.stats(at(9)).missing, 0);
    assert_eq!(bench.refused("fast", 1, at(9)), RejectedReason::NoAvailablePieces);

    let mut bench = Bench::new(7).peers(&["slow", "fast", "others"]);
    bench.trained("slow", 9);
    bench.trained("fast", 1);
    let held = bench.one("slow", at(9));
    bench.manager.received(held.id, held.pieces.start, at(9)).unwrap();
    bench.get("others", 4, at(9));
    assert_eq!(bench.refused("fast", 1, at(9)), RejectedReason::NoAvailablePieces);
}

#[test]
fn rule_9_a_peer_that_has_to_prove_itself_is_no_rival() {
    let mut bench = Bench::new(1).peers(&["low", "a"]);
    let lease = bench.one("low", START);
    bench.fail(&lease, FailureKind::NetworkError, START);
    bench.one("a", at(29));
    assert_eq!(bench.refused("low", 1, at(30)), RejectedReason::NoAvailablePieces);
}
