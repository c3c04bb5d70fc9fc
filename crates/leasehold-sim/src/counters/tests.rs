use crate::scenario::{Options, Report, Scenario};

fn play(seed: u64, full: bool) -> Report {
    let options = Options { full, ..Options::default() };
    Scenario::Counters.play(seed, &options).unwrap_or_else(|failed| panic!("{failed}"))
}

#[test]
fn one_seed_gives_one_trace() {
    for seed in crate::seeds(0..50) {
        let (first, second) = (play(seed, true), play(seed, true));
        assert!(first.trace == second.trace, "seed {seed} gave two traces");
        assert_eq!(first, second);
        assert_eq!(first.trace.len() as u64, first.trace_count);
        assert_ne!(first.trace_hash, play(seed + 1, false).trace_hash);
    }
}

#[test]
fn counters_count_under_wild_faults() {
    for seed in crate::seeds(1_000..1_300) {
        play(seed, false);
    }
}
