use crate::faults::{Faults, Troubles};
use crate::scenario::{Options, Report, Scenario};

fn play(seed: u64, options: &Options) -> Report {
    Scenario::Shards.play(seed, options).unwrap_or_else(|failed| panic!("{failed}"))
}

/// Wild, but for the store's own time: after a jump nobody promises anything for hours.
fn wild() -> Faults {
    let wild = Faults::wild();
    Faults { troubles: Troubles { date_jump: 0, ..wild.troubles }, ..wild }
}

#[test]
fn one_seed_gives_one_trace() {
    let options = Options { full: true, ..Options::default() };
    for seed in 0..1 {
        let (first, second) = (play(seed, &options), play(seed, &options));
        assert!(first.trace == second.trace, "seed {seed} gave two traces");
        assert_eq!(first, second);
    }
}

#[test]
fn shards_have_one_holder_and_are_shared_evenly_whatever_goes_wrong() {
    let options = Options { faults: wild(), ..Options::default() };
    for seed in 0..10 {
        play(seed, &options);
    }
}

#[test]
fn shards_are_served_again_after_the_time_of_the_store_has_jumped() {
    for seed in 100..104 {
        play(seed, &Options::default());
    }
}

#[test]
fn shards_have_one_holder_and_are_shared_evenly_on_a_bad_day() {
    let options = Options { faults: Faults::mild(), ..Options::default() };
    for seed in 200..206 {
        play(seed, &options);
    }
}

#[test]
fn shards_are_shared_evenly_on_a_good_day() {
    let options = Options { faults: Faults::none(), ..Options::default() };
    for seed in 300..302 {
        play(seed, &options);
    }
}
