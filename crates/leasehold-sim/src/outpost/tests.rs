use crate::faults::Faults;
use crate::scenario::{Options, Report, Scenario};

fn play(seed: u64, options: &Options) -> Report {
    Scenario::Outpost.play(seed, options).unwrap_or_else(|failed| panic!("{failed}"))
}

#[test]
fn one_seed_gives_one_trace() {
    let options = Options { full: true, ..Options::of(Scenario::Outpost) };
    for seed in 0..2 {
        let (first, second) = (play(seed, &options), play(seed, &options));
        assert!(first.trace == second.trace, "seed {seed} gave two traces");
        assert_eq!(first, second);
    }
}

#[test]
fn outposts_keep_their_promises_under_wild_faults() {
    for seed in crate::seeds(0..24) {
        play(seed, &Options::of(Scenario::Outpost));
    }
}

#[test]
fn outposts_keep_their_promises_on_bad_and_on_good_days() {
    for seed in 0..4 {
        play(seed, &Options { faults: Faults::mild(), ..Options::default() });
        play(seed, &Options { faults: Faults::none(), ..Options::default() });
    }
}
