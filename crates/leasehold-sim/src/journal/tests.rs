use crate::faults::Faults;
use crate::scenario::{Options, Report, Scenario};

fn play(seed: u64, options: &Options) -> Report {
    Scenario::Journal.play(seed, options).unwrap_or_else(|failed| panic!("{failed}"))
}

#[test]
fn one_seed_gives_one_trace() {
    let options = Options { full: true, ..Options::of(Scenario::Journal) };
    for seed in crate::seeds(0..5) {
        let (first, second) = (play(seed, &options), play(seed, &options));
        assert!(first.trace == second.trace, "seed {seed} gave two traces");
        assert_eq!(first, second);
    }
}

#[test]
fn the_journal_keeps_its_promises_without_faults() {
    for seed in crate::seeds(0..5) {
        play(seed, &Options { faults: Faults::none(), ..Options::default() });
    }
}

/// A reader whose requests are lost finds each of its snapshots replaced, and the commits after it deleted.
#[test]
fn a_reader_that_is_slower_than_snapshots_reports_no_damage() {
    play(7_300_478, &Options { faults: "wild,date-jump=0".parse().unwrap(), ..Options::default() });
}

/// A worker whose clock of the store is uncertain trusts a claim until its first renewal is due, and its boot clock misses some
/// time before that.
#[test]
fn a_worker_whose_boot_clock_has_missed_time_does_not_trust_an_expired_claim() {
    play(146, &Options { faults: "wild,date-jump=0".parse().unwrap(), ..Options::default() });
}
