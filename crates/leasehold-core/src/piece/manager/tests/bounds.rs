//! Work of a request: rule 12. The benchmark measures the time; here the examined pieces are counted.

use super::*;

/// Maximum number of pieces that one request examines, over a whole transfer.
fn most_examined(pieces: u32, peers: u32) -> u64 {
    let mut bench = Bench::new(pieces);
    let names: Vec<String> = (0..peers).map(|number| format!("p{number}")).collect();
    for name in &names {
        bench.join(name, PieceMap::all(pieces));
    }
    let mut most = 0;
    while !bench.manager.is_done() {
        for name in &names {
            let before = bench.manager.stats(START).examined;
            let request = LeaseRequest { order: PieceOrder::Rarest, ..bench.request(name, 4) };
            let granted = bench.manager.request_lease(&request, START).granted;
            most = most.max(bench.manager.stats(START).examined - before);
            for lease in granted {
                bench.succeed(&lease, START);
            }
        }
    }
    most
}

#[test]
fn rule_12_a_request_examines_each_piece_once_for_any_number_of_peers() {
    let few = most_examined(500, 2);
    assert_eq!(few, 500);
    assert_eq!(most_examined(500, 100), few);
    assert_eq!(most_examined(1_000, 2), 2 * few);
}

#[test]
fn rule_12_what_is_remembered_of_leases_and_peers_is_bounded() {
    use crate::limits::{ENDED_LEASES_MAX, GONE_PEERS_MAX};
    let config = ManagerConfig { failure_penalty: 0.0, ..ManagerConfig::default() };
    let mut bench = Bench::with(1, config).peers(&["a"]);
    let first = bench.one("a", START);
    bench.fail(&first, FailureKind::NetworkError, START);
    for _ in 1..ENDED_LEASES_MAX {
        let lease = bench.one("a", START);
        bench.fail(&lease, FailureKind::NetworkError, START);
    }
    let again = PieceResult::Failure(FailureKind::NetworkError);
    assert_eq!(bench.end(&first, again, START), Err(CompletionError::LeaseEnded));
    let lease = bench.one("a", START);
    bench.fail(&lease, FailureKind::NetworkError, START);
    assert_eq!(bench.end(&first, again, START), Err(CompletionError::UnknownLease));
    for number in 0..GONE_PEERS_MAX + 9 {
        bench.join(&format!("p{number}"), PieceMap::none(1));
        bench.manager.remove_peer(&id(&format!("p{number}")), START);
    }
    assert_eq!(bench.manager.gone.len(), GONE_PEERS_MAX);
}
