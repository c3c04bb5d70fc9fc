//! End of leases: rules 5, 6 and 10.

use super::*;

fn just_before(time: Duration) -> Duration {
    time.saturating_sub(Duration::from_nanos(1))
}

#[test]
fn rule_5_now_equal_to_expiry_is_expired_and_the_moment_before_is_not() {
    let mut bench = Bench::new(1).peers(&["a", "b"]);
    let lease = bench.one("a", START);
    assert_eq!(bench.manager.next_expiry(), Some(lease.expires_at));
    assert_eq!(bench.manager.expire(just_before(lease.expires_at)), []);
    assert_eq!(bench.manager.progress(lease.id, 0, just_before(lease.expires_at)), Ok(lease.expires_at));
    assert_eq!(bench.manager.progress(lease.id, MIB, lease.expires_at), Err(CompletionError::LeaseEnded));
    let response = bench.ask("b", 1, lease.expires_at);
    assert_eq!(response.granted[0].pieces, lease.pieces, "wanted again");
    assert_eq!(response.cancelled[0].lease, lease.id);
}

#[test]
fn rule_5_the_holder_is_penalised_once_and_its_count_goes_down() {
    let mut bench = Bench::new(3).peers(&["a", "b"]);
    let lease = bench.one("a", START);
    assert_eq!(bench.manager.expire(lease.expires_at).len(), 1);
    assert_eq!(bench.manager.expire(lease.expires_at), []);
    assert_eq!(bench.end(&lease, PieceResult::Expired, lease.expires_at), Err(CompletionError::LeaseEnded));
    let stats = bench.stats("a", lease.expires_at);
    assert_eq!((stats.score, stats.live_leases, stats.counters.expiries), (0.5, 0, 1));
}

#[test]
fn rule_5_the_fetcher_may_report_an_expiry_before_or_after_the_clock() {
    for now in [at(1), at(100)] {
        let mut bench = Bench::new(3).peers(&["a", "b"]);
        let lease = bench.one("a", START);
        let completed = bench.end(&lease, PieceResult::Expired, now).unwrap();
        assert_eq!(
            (completed.outcome, completed.cancelled[0].lease),
            (CompletionOutcome::Accepted, lease.id)
        );
        let stats = bench.stats("a", now);
        assert_eq!((stats.score, stats.live_leases, stats.counters.expiries), (0.5, 0, 1));
    }
}

#[test]
fn rule_6_success_is_for_good_and_failure_returns_the_piece() {
    let mut bench = Bench::new(2).peers(&["a", "b"]);
    let leases = bench.get("a", 2, START);
    assert_eq!(bench.succeed(&leases[0], START), []);
    bench.fail(&leases[1], FailureKind::NetworkError, START);
    assert_eq!(bench.counts(), [1, 0, 1, 0]);
    assert_eq!(bench.get("b", 4, START).len(), 1);
}

#[test]
fn rule_6_a_completion_that_is_not_the_holders_is_an_error_and_changes_nothing() {
    let mut bench = Bench::new(3).peers(&["a", "b"]);
    let old = bench.one("a", START);
    bench.manager.expire(old.expires_at);
    let now = old.expires_at;
    let held = bench.one("b", now);
    assert_eq!(held.pieces, old.pieces);
    let before = bench.manager.stats(now);
    let failed = PieceResult::Failure(FailureKind::VerificationFailed);
    let mut say = |lease: PieceLeaseId, piece, peer: &str, result| {
        bench
            .manager
            .complete_piece(&PieceCompletion { lease, piece, peer: id(peer), result }, now)
            .unwrap_err()
    };
    for result in [PieceResult::Success, failed, PieceResult::Expired] {
        assert_eq!(say(PieceLeaseId(99), 0, "a", result), CompletionError::UnknownLease);
        assert_eq!(say(held.id, 0, "a", result), CompletionError::NotTheHolder);
        assert_eq!(say(old.id, 0, "b", result), CompletionError::NotTheHolder);
        assert_eq!(say(held.id, 1, "b", result), CompletionError::NotInLease);
        assert_eq!(say(old.id, 1, "a", result), CompletionError::NotInLease);
    }
    assert_eq!(say(old.id, 0, "a", failed), CompletionError::LeaseEnded);
    assert_eq!(say(old.id, 0, "a", PieceResult::Expired), CompletionError::LeaseEnded);
    assert_eq!(bench.manager.stats(now), before);
    bench.succeed(&held, now);
    assert_eq!(bench.end(&held, PieceResult::Success, now), Err(CompletionError::UnknownLease), "twice");
}

#[test]
fn rule_6_a_failure_after_the_expiry_is_an_error_and_the_lease_still_expires() {
    let mut bench = Bench::new(3).peers(&["a", "b"]);
    let lease = bench.one("a", START);
    let before = bench.manager.stats(lease.expires_at);
    let failed = PieceResult::Failure(FailureKind::NetworkError);
    assert_eq!(bench.end(&lease, failed, lease.expires_at), Err(CompletionError::LeaseEnded));
    assert_eq!(bench.manager.stats(lease.expires_at), before);
    assert_eq!(bench.manager.expire(lease.expires_at).len(), 1);
}

#[test]
fn rule_6_right_data_that_comes_late_is_kept_and_the_holder_is_cancelled_without_penalty() {
    let mut bench = Bench::new(2).peers(&["a", "b"]);
    let old = bench.one("a", START);
    let now = old.expires_at;
    let held = bench.ask("b", 1, now).granted.remove(0);
    let scores = [bench.score("a", now), bench.score("b", now)];
    let late = bench.end(&old, PieceResult::Success, now).unwrap();
    assert_eq!(late.outcome, CompletionOutcome::Late);
    let holder = Cancelled { lease: held.id, peer: id("b"), pieces: 0..1, why: CancelReason::Verified };
    assert_eq!(late.cancelled, [holder]);
    let after = [bench.score("a", now), bench.score("b", now)];
    assert!(scores.iter().zip(after).all(|(before, after)| (before - after).abs() < f64::EPSILON));
    assert_eq!((bench.counts(), bench.stats("b", now).live_leases), ([1, 0, 1, 0], 0));
    assert_eq!((bench.stats("a", now).counters.pieces, bench.manager.stats(now).late), (1, 1));
    let again = bench.end(&held, PieceResult::Success, now).unwrap();
    assert_eq!(again, Completed { outcome: CompletionOutcome::NotNeeded, cancelled: Vec::new() });
    assert_eq!(bench.stats("b", now).counters.pieces, 0);
}

#[test]
fn rule_6_late_data_counts_before_and_after_the_lease_was_removed() {
    let mut bench = Bench::new(2).peers(&["a", "b"]);
    let lease = bench.one("a", START);
    let late = bench.end(&lease, PieceResult::Success, lease.expires_at).unwrap();
    assert_eq!(late.outcome, CompletionOutcome::Late);
    let stats = bench.stats("a", lease.expires_at);
    assert_eq!((stats.score, stats.counters.expiries, stats.counters.pieces), (0.5, 1, 1));
    assert_eq!(bench.counts(), [1, 0, 1, 0]);
}

#[test]
fn rule_6_data_of_a_peer_that_has_left_is_still_data() {
    let mut bench = Bench::new(2).peers(&["a"]);
    let lease = bench.one("a", START);
    bench.manager.remove_peer(&id("a"), START);
    assert_eq!(bench.end(&lease, PieceResult::Success, START).unwrap().outcome, CompletionOutcome::Late);
    assert_eq!(bench.counts(), [1, 0, 1, 0]);
}

#[test]
fn rule_10_the_length_follows_the_measured_rate_within_its_bounds() {
    for (seconds, expected) in [(1, 10), (2, 16), (5, 40), (9, 72), (37, 296), (38, 300), (100, 300)] {
        let mut bench = Bench::new(9).peers(&["a"]);
        bench.trained("a", seconds);
        let now = at(seconds);
        assert_eq!(
            bench.one("a", now).expires_at,
            now + Duration::from_secs(expected),
            "{seconds} s per MiB"
        );
    }
}

#[test]
fn rule_10_without_a_measured_rate_it_is_four_seconds_and_four_per_mib_and_at_least_ten() {
    for (piece_bytes, expected) in
        [(1 << 10, 10), (1 << 20, 10), (2 << 20, 12), (8 << 20, 36), (16 << 20, 68)]
    {
        let cut = PieceCut::new(u64::from(piece_bytes), piece_bytes).unwrap();
        let manager = PieceLeaseManager::new(cut, ManagerConfig::default(), 1).unwrap();
        let mut bench = Bench { manager, pieces: 1 }.peers(&["a"]);
        assert_eq!(bench.one("a", START).expires_at, at(expected), "{piece_bytes}");
    }
    let mut bench = Bench::new(16);
    bench.origin("bucket");
    let request = LeaseRequest { run_bytes_max: 16 * MIB, ..bench.request("bucket", 1) };
    assert_eq!(
        bench.manager.request_lease(&request, START).granted[0].expires_at,
        at(68),
        "a run is one lease"
    );
}

#[test]
fn rule_10_progress_extends_and_only_new_bytes_are_progress() {
    let mut bench = Bench::new(9).peers(&["a"]);
    let lease = bench.one("a", START);
    assert_eq!(bench.manager.progress(lease.id, MIB / 2, at(6)), Ok(at(16)));
    assert_eq!(bench.manager.progress(lease.id, MIB / 2, at(9)), Ok(at(16)), "the same bytes again");
    assert_eq!(
        bench.manager.progress(lease.id, MIB / 2 + MIB / 64 - 1, at(9)),
        Ok(at(16)),
        "too few to count"
    );
    assert_eq!(bench.manager.progress(lease.id, MIB / 2 + MIB / 64, at(9)), Ok(at(19)));
    assert_eq!(bench.manager.expire(at(18)), []);
    assert_eq!(bench.manager.expire(at(19)).len(), 1);
    assert_eq!(bench.manager.progress(PieceLeaseId(99), 1, at(19)), Err(CompletionError::UnknownLease));
}

#[test]
fn rule_10_progress_never_shortens_and_more_bytes_than_there_are_do_not_help() {
    let mut bench = Bench::new(9).peers(&["a"]);
    let lease = bench.one("a", START);
    assert_eq!(bench.manager.progress(lease.id, u64::MAX, at(5)), Ok(at(15)));
    assert_eq!(bench.manager.progress(lease.id, u64::MAX, at(8)), Ok(at(15)));
    assert_eq!(bench.manager.received(lease.id, 0, at(8)), Ok(at(68)));
    assert_eq!(bench.manager.progress(lease.id, MIB, at(9)), Ok(at(68)));
}

#[test]
fn rule_10_a_piece_that_is_being_verified_cannot_expire_for_a_minute() {
    let mut bench = Bench::new(1).peers(&["a", "b"]);
    let lease = bench.one("a", START);
    assert_eq!(bench.manager.received(lease.id, 1, at(9)), Err(CompletionError::NotInLease));
    assert_eq!(bench.manager.received(lease.id, 0, at(9)), Ok(at(69)));
    assert_eq!(
        bench.manager.received(lease.id, 0, at(60)),
        Ok(at(69)),
        "a repeated report does not extend it"
    );
    assert_eq!(bench.manager.expire(just_before(at(69))), []);
    assert_eq!(bench.manager.next_expiry(), Some(at(69)));
    assert_eq!(bench.refused("b", 1, at(50)), RejectedReason::NoAvailablePieces, "no other peer fetches it");
    assert_eq!(bench.manager.expire(at(69)).len(), 1);
    assert_eq!(bench.manager.received(lease.id, 0, at(69)), Err(CompletionError::LeaseEnded));
}

#[test]
fn rates_are_measured_until_the_last_byte_and_newer_ones_count_more() {
    let mut bench = Bench::new(9).peers(&["a"]);
    let lease = bench.one("a", START);
    bench.manager.received(lease.id, 0, at(2)).unwrap();
    bench.succeed(&lease, at(9));
    assert_eq!(bench.stats("a", at(9)).rate, Some(524_288.0));
    let lease = bench.one("a", at(9));
    bench.succeed(&lease, at(10));
    let rate = bench.stats("a", at(10)).rate.unwrap();
    assert!((rate - 524_288.0 * 1.3).abs() < 1e-6, "{rate}");
}
