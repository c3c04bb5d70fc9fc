//! Order of the checks: rule 4.

use super::*;

/// A peer to which every reason applies at once; the reasons are removed one by one.
#[test]
fn rule_4_the_checks_come_in_their_order() {
    let mut bench = Bench::with(2, ManagerConfig { leases_per_peer: 1, ..ManagerConfig::default() });
    bench.join("a", PieceMap::all(2));
    bench.join("b", PieceMap::all(2));
    // Score too low, at capacity, and without a matching piece.
    let lease = bench.one("a", START);
    bench.fail(&lease, FailureKind::NetworkError, START);
    let probe = bench.one("a", at(30));
    let ask = |bench: &mut Bench, max_leases, have: PieceMap, now| {
        let request = LeaseRequest { have, max_leases, ..bench.request("a", 1) };
        bench.manager.request_lease(&request, now).rejected
    };
    let none = || PieceMap::none(2);
    assert_eq!(ask(&mut bench, 0, none(), at(30)), Some(RejectedReason::InvalidRequest));
    assert_eq!(ask(&mut bench, 1, PieceMap::none(3), at(30)), Some(RejectedReason::InvalidRequest));
    assert_eq!(ask(&mut bench, 1, none(), at(30)), Some(RejectedReason::PeerRankingTooLow));
    bench.succeed(&probe, at(30));
    let last = bench.one("a", at(30));
    assert_eq!(ask(&mut bench, 1, none(), at(30)), Some(RejectedReason::PeerAtCapacity));
    bench.fail(&last, FailureKind::NetworkError, at(30));
    let held = bench.one("b", at(60));
    assert_eq!(held.pieces, last.pieces);
    assert_eq!(ask(&mut bench, 1, none(), at(60)), Some(RejectedReason::NoMatchingPieces));
    assert_eq!(ask(&mut bench, 1, PieceMap::all(2), at(60)), Some(RejectedReason::NoAvailablePieces));
    bench.succeed(&held, at(60));
    assert_eq!(ask(&mut bench, 1, PieceMap::all(2), at(60)), Some(RejectedReason::NoMatchingPieces));
}

#[test]
fn rule_4_a_request_for_an_unknown_peer_is_invalid() {
    let mut bench = Bench::new(2).peers(&["a"]);
    assert_eq!(bench.refused("stranger", 1, START), RejectedReason::InvalidRequest);
}

#[test]
fn rule_4_quarantine_comes_before_capacity_and_parole_means_one() {
    let config = ManagerConfig { score_needed: 0.0, quarantine_after: 2, ..ManagerConfig::default() };
    let mut bench = Bench::with(9, config).peers(&["a", "b"]);
    let leases = bench.get("a", 3, START);
    bench.fail(&leases[0], FailureKind::VerificationFailed, START);
    assert_eq!(bench.refused("a", 1, START), RejectedReason::PeerAtCapacity, "two live, one allowed");
    bench.fail(&leases[1], FailureKind::VerificationFailed, START);
    assert_eq!(bench.refused("a", 1, START), RejectedReason::PeerRankingTooLow);
}

#[test]
fn rule_4_every_expired_lease_is_cleaned_up_also_by_requests_that_are_rejected() {
    type Ask = fn(&mut Bench, Duration) -> LeaseResponse;
    let asks: [(Ask, RejectedReason); 4] = [
        (|bench, now| bench.ask("b", 0, now), RejectedReason::InvalidRequest),
        (|bench, now| bench.ask("stranger", 1, now), RejectedReason::InvalidRequest),
        (|bench, now| bench.ask("low", 1, now), RejectedReason::PeerRankingTooLow),
        (|bench, now| bench.ask("poor", 1, now), RejectedReason::NoMatchingPieces),
    ];
    for (ask, reason) in asks {
        let mut bench = Bench::new(9).peers(&["a", "b", "low"]);
        bench.join("poor", PieceMap::none(9));
        let failed = bench.one("low", START);
        bench.fail(&failed, FailureKind::NetworkError, START);
        let lost: Vec<_> = [bench.get("a", 2, START), bench.get("b", 1, START)].concat();
        let response = ask(&mut bench, lost[0].expires_at);
        assert_eq!(response.rejected, Some(reason));
        let cancelled: Vec<_> = response.cancelled.iter().map(|cancelled| cancelled.lease).collect();
        assert_eq!(cancelled, lost.iter().map(|lease| lease.id).collect::<Vec<_>>());
        assert!(response.cancelled.iter().all(|cancelled| cancelled.why == CancelReason::Expired));
        assert_eq!((bench.counts(), bench.stats("a", START).live_leases), ([9, 0, 0, 0], 0));
        assert_eq!(bench.stats("a", START).counters.expiries, 2);
    }
}

#[test]
fn requests_are_numbered_and_answered_by_name() {
    let mut bench = Bench::new(2).peers(&["a", "b"]);
    let (first, second) = (bench.ask("a", 0, START), bench.ask("b", 1, START));
    assert_eq!(
        [(first.request_id, first.peer), (second.request_id, second.peer)],
        [(1, id("a")), (2, id("b"))]
    );
}
