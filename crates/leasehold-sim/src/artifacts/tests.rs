use crate::faults::Faults;
use crate::scenario::{Options, Report, Scenario};

fn play(seed: u64, options: &Options) -> Report {
    Scenario::Artifacts.play(seed, options).unwrap_or_else(|failed| panic!("{failed}"))
}

#[test]
fn one_seed_gives_one_trace() {
    let options = Options { full: true, ..Options::of(Scenario::Artifacts) };
    for seed in 0..4 {
        let (first, second) = (play(seed, &options), play(seed, &options));
        assert!(first.trace == second.trace, "seed {seed} gave two traces");
        assert_eq!(first, second);
    }
}

#[test]
fn files_keep_their_promises_under_wild_faults() {
    for seed in crate::seeds(0..40) {
        play(seed, &Options::of(Scenario::Artifacts));
    }
}

#[test]
fn files_keep_their_promises_on_bad_and_on_good_days() {
    for seed in crate::seeds(0..10) {
        play(seed, &Options { faults: Faults::mild(), ..Options::default() });
        play(seed, &Options { faults: Faults::none(), ..Options::default() });
    }
}

/// After a jump of the store's time, retentions are undefined; but all tasks end, and no handler reads wrong
/// bytes.
#[test]
fn everything_ends_when_the_time_of_the_store_jumps() {
    for seed in crate::seeds(0..10) {
        play(seed, &Options::default());
    }
}
