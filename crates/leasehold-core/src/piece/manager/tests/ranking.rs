//! Ranking of peers: rules 3, 7 and 11.

use super::*;

#[test]
#[expect(clippy::float_cmp, reason = "the reference values are exact")]
fn rule_7_scores_follow_the_reference_exactly() {
    let mut bench = Bench::new(40).peers(&["a", "b"]);
    for expected in [1.5, 2.0] {
        let lease = bench.one("a", START);
        bench.succeed(&lease, START);
        assert_eq!(bench.score("a", START), expected);
    }
    for _ in 2..18 {
        let lease = bench.one("a", START);
        bench.succeed(&lease, START);
    }
    assert_eq!(bench.score("a", START), 10.0);
    let lease = bench.one("a", START);
    bench.succeed(&lease, START);
    assert_eq!(bench.score("a", START), 10.0, "no more than the ceiling");
    let lease = bench.one("b", START);
    bench.fail(&lease, FailureKind::NetworkError, START);
    assert_eq!(bench.score("b", START), 0.1);
}

#[test]
#[expect(clippy::float_cmp, reason = "halves are exact")]
fn rule_7_each_kind_of_fault_lowers_the_score_by_its_penalty() {
    let faults = [
        (PieceResult::Failure(FailureKind::NetworkError), 9.0),
        (PieceResult::Failure(FailureKind::Timeout), 9.0),
        (PieceResult::Failure(FailureKind::InvalidData), 9.0),
        (PieceResult::Failure(FailureKind::VerificationFailed), 8.0),
        (PieceResult::Expired, 9.5),
    ];
    for (fault, expected) in faults {
        let config = ManagerConfig { score_start: 10.0, ..ManagerConfig::default() };
        let mut bench = Bench::with(4, config).peers(&["a"]);
        let lease = bench.one("a", START);
        bench.end(&lease, fault, START).unwrap();
        assert_eq!(bench.score("a", START), expected, "{fault:?}");
    }
}

#[test]
fn rule_7_scores_return_to_one_by_a_twentieth_an_hour() {
    let mut bench = Bench::new(9).peers(&["a"]);
    for _ in 0..2 {
        let lease = bench.one("a", START);
        bench.succeed(&lease, START);
    }
    for (hours, expected) in [(1, 1.95), (2, 1.9025), (200_000, 1.0)] {
        assert!((bench.score("a", at(hours * 3_600)) - expected).abs() < 1e-9);
    }
}

#[test]
fn rule_3_exactly_the_score_needed_is_enough_and_less_is_not() {
    let config = ManagerConfig { score_start: 0.2, ..ManagerConfig::default() };
    assert!((config.score_needed - 0.2).abs() < f64::EPSILON);
    let mut bench = Bench::with(4, config.clone()).peers(&["a", "b"]);
    bench.one("a", START);
    let config = ManagerConfig { score_start: 1.0, score_needed: 0.5, ..config };
    let mut bench = Bench::with(4, config).peers(&["a", "b"]);
    let lease = bench.one("a", START);
    bench.end(&lease, PieceResult::Expired, START).unwrap();
    assert!((bench.score("a", START) - 0.5).abs() < f64::EPSILON);
    let lease = bench.one("a", START);
    bench.end(&lease, PieceResult::Expired, START).unwrap();
    assert_eq!(bench.refused("a", 1, START), RejectedReason::PeerRankingTooLow);
}

#[test]
fn rule_3_a_probe_comes_after_thirty_seconds_and_doubles_to_ten_minutes() {
    let mut bench = Bench::new(40).peers(&["a", "b"]);
    let mut lease = bench.one("a", START);
    let mut now = START;
    for pause in [30, 60, 120, 240, 480, 600, 600] {
        bench.fail(&lease, FailureKind::NetworkError, now);
        let due = now + Duration::from_secs(pause);
        assert_eq!(bench.manager.next_expiry(), Some(due));
        let too_early = due.saturating_sub(Duration::from_nanos(1));
        assert_eq!(bench.refused("a", 4, too_early), RejectedReason::PeerRankingTooLow, "{pause} s");
        let probe = bench.get("a", 4, due);
        assert_eq!(probe.len(), 1, "a probe is one lease");
        assert_eq!(bench.refused("a", 4, due), RejectedReason::PeerRankingTooLow, "and only one at a time");
        (lease, now) = (probe[0].clone(), due);
    }
    bench.succeed(&lease, now);
    let leases = bench.get("a", 4, now);
    assert_eq!(leases.len(), 4, "a successful probe restores it to a normal peer");
    bench.fail(&leases[0], FailureKind::NetworkError, now);
    let due = bench.stats("a", now).probe_due.expect("too low again");
    assert_eq!(due, now + Duration::from_secs(30), "and resets its wait");
}

#[test]
fn rule_3_leases_that_fail_together_wait_once_and_a_probe_waits_for_those_still_held() {
    let mut bench = Bench::new(40).peers(&["a", "b"]);
    let leases = bench.get("a", 4, START);
    for lease in &leases[..3] {
        bench.fail(lease, FailureKind::NetworkError, START);
    }
    assert_eq!(bench.stats("a", START).probe_due, Some(at(30)));
    bench.manager.received(leases[3].id, leases[3].pieces.start, at(9)).unwrap();
    assert_eq!(bench.refused("a", 1, at(30)), RejectedReason::PeerAtCapacity);
}

#[test]
fn rule_3_a_probe_that_expires_doubles_too_and_one_due_is_not_announced_again() {
    let mut bench = Bench::new(40).peers(&["a", "b"]);
    let lease = bench.one("a", START);
    bench.fail(&lease, FailureKind::NetworkError, START);
    let probe = bench.one("a", at(30));
    assert_eq!(bench.manager.next_expiry(), Some(probe.expires_at), "there is no other probe meanwhile");
    bench.manager.expire(probe.expires_at);
    let due = probe.expires_at + Duration::from_mins(1);
    assert_eq!(bench.manager.next_expiry(), Some(due));
    bench.manager.expire(due);
    assert_eq!(bench.manager.next_expiry(), None, "now it must make a request");
}

#[test]
fn rule_3_a_sole_source_is_exempt_but_only_for_what_it_alone_has() {
    let mut bench = Bench::new(4);
    bench.join("a", PieceMap::all(4));
    bench.join("b", map(4, [0, 1]));
    let lease = bench.one("a", START);
    bench.fail(&lease, FailureKind::NetworkError, START);
    let leases = bench.get("a", 4, START);
    assert_eq!(leases.iter().map(|lease| lease.pieces.start).collect::<Vec<_>>(), [2, 3]);
    for lease in &leases {
        bench.succeed(lease, START);
    }
}

#[test]
fn rule_3_the_origin_is_exempt_and_what_it_gets_wrong_is_counted() {
    let mut bench = Bench::new(4).peers(&["a"]);
    bench.origin("bucket");
    for _ in 0..20 {
        let lease = bench.one("bucket", START);
        bench.fail(&lease, FailureKind::NetworkError, START);
    }
    for _ in 0..4 {
        let lease = bench.one("bucket", START);
        bench.fail(&lease, FailureKind::VerificationFailed, START);
    }
    let stats = bench.stats("bucket", START);
    assert_eq!((stats.counters.network_errors, stats.counters.corrupt), (20, 4));
    assert!(!stats.is_on_parole && !stats.is_quarantined && stats.probe_due.is_none());
    assert!((stats.score - 1.0).abs() < f64::EPSILON);
}

#[test]
fn rule_11_a_peer_that_leaves_releases_its_leases_at_once_without_a_penalty() {
    let mut bench = Bench::new(4).peers(&["a", "b"]);
    let leases = bench.get("a", 4, START);
    let ended = bench.manager.remove_peer(&id("a"), START);
    assert_eq!(
        ended.iter().map(|ended| ended.lease).collect::<Vec<_>>(),
        leases.iter().map(|l| l.id).collect::<Vec<_>>()
    );
    assert!(ended.iter().all(|ended| ended.why == CancelReason::Left && ended.peer == id("a")));
    assert_eq!(bench.counts(), [4, 0, 0, 0]);
    assert_eq!(bench.get("b", 4, START).len(), 4);
    bench.join("a", PieceMap::all(4));
    assert!((bench.score("a", START) - 1.0).abs() < f64::EPSILON);
    assert_eq!(bench.manager.remove_peer(&id("nobody"), START), []);
}

#[test]
fn rule_11_one_corrupt_piece_is_parole_and_three_are_quarantine() {
    let config = ManagerConfig { score_needed: 0.0, ..ManagerConfig::default() };
    let mut bench = Bench::with(40, config).peers(&["a", "b"]);
    let leases = bench.get("a", 4, START);
    bench.fail(&leases[0], FailureKind::VerificationFailed, START);
    assert!(bench.stats("a", START).is_on_parole);
    bench.succeed(&leases[1], START);
    bench.succeed(&leases[2], START);
    assert_eq!(bench.refused("a", 4, START), RejectedReason::PeerAtCapacity, "one at a time");
    bench.fail(&leases[3], FailureKind::VerificationFailed, START);
    let only = bench.get("a", 4, START);
    assert_eq!(only.len(), 1);
    assert!(!bench.stats("a", START).is_quarantined);
    bench.fail(&only[0], FailureKind::VerificationFailed, START);
    assert!(bench.stats("a", START).is_quarantined);
    assert_eq!(bench.refused("a", 4, at(1_000_000)), RejectedReason::PeerRankingTooLow, "for good");
    bench.manager.remove_peer(&id("a"), START);
    bench.join("a", PieceMap::all(40));
    assert_eq!(bench.refused("a", 4, START), RejectedReason::PeerRankingTooLow, "also after it reconnects");
}

#[test]
fn rule_11_quarantine_ends_the_leases_of_a_peer_which_is_no_longer_a_source() {
    let mut bench = Bench::new(8).peers(&["a", "b"]);
    let leases = bench.get("a", 4, START);
    bench.fail(&leases[0], FailureKind::VerificationFailed, START);
    bench.fail(&leases[1], FailureKind::VerificationFailed, START);
    let cancelled = bench.fail(&leases[2], FailureKind::VerificationFailed, START);
    assert_eq!(cancelled.len(), 1);
    assert_eq!((cancelled[0].lease, cancelled[0].why), (leases[3].id, CancelReason::Quarantined));
    assert_eq!((bench.counts(), bench.stats("a", START).live_leases), ([8, 0, 0, 0], 0));
    let lease = bench.one("b", START);
    bench.fail(&lease, FailureKind::Timeout, START);
    assert_eq!(bench.one("b", START).pieces, 0..1, "it is the only source now, failed or not");
}

#[test]
fn rule_11_an_invalid_configuration_is_refused() {
    let wrong: [fn(&mut ManagerConfig); 20] = [
        |c| c.leases_per_peer = 0,
        |c| c.leases_per_origin = 0,
        |c| c.lease_min = Duration::ZERO,
        |c| c.lease_min = c.lease_max + Duration::from_nanos(1),
        |c| c.verifying = Duration::ZERO,
        |c| c.probe_min = Duration::ZERO,
        |c| c.probe_min = c.probe_max + Duration::from_nanos(1),
        |c| c.score_floor = f64::NAN,
        |c| c.score_floor = 11.0,
        |c| c.score_ceiling = f64::INFINITY,
        |c| c.score_start = f64::NAN,
        |c| c.score_start = 0.05,
        |c| c.score_needed = f64::NAN,
        |c| c.score_needed = 1.1,
        |c| c.reward = -0.5,
        |c| c.corrupt_penalty = f64::NAN,
        |c| c.decay_per_hour = 1.01,
        |c| c.slower_than_any = 2.0,
        |c| c.rate_weight = 0.0,
        |c| c.quarantine_after = 0,
    ];
    let cut = PieceCut::usual(1).unwrap();
    ManagerConfig::default().check().unwrap();
    for (number, break_it) in wrong.iter().enumerate() {
        let mut config = ManagerConfig::default();
        break_it(&mut config);
        assert!(PieceLeaseManager::new(cut, config, 0).is_err(), "number {number}");
    }
}

#[test]
fn a_peer_can_be_added_again_but_not_as_another_kind() {
    let mut bench = Bench::new(3).peers(&["a"]);
    bench.join("a", map(3, [2]));
    assert_eq!(bench.one("a", START).pieces, 2..3);
    let add =
        |bench: &mut Bench, kind, len| bench.manager.add_peer(id("a"), kind, PieceMap::none(len), START);
    assert!(add(&mut bench, PeerKind::Origin, 3).is_err());
    assert!(add(&mut bench, PeerKind::Peer, 4).is_err());
    assert!(bench.manager.update_have(&id("a"), PieceMap::none(4), START).is_err());
    assert!(bench.manager.update_have(&id("b"), PieceMap::none(3), START).is_err());
}
