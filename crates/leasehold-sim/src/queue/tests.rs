use super::Broken;
use crate::faults::Faults;
use crate::scenario::{Mutant, Options, Report, Scenario};

fn play(seed: u64, options: &Options) -> Report {
    Scenario::Queue.play(seed, options).unwrap_or_else(|failed| panic!("{failed}"))
}

#[test]
fn one_seed_gives_one_trace() {
    let options = Options { full: true, ..Options::default() };
    for seed in 0..20 {
        let (first, second) = (play(seed, &options), play(seed, &options));
        assert!(first.trace == second.trace, "seed {seed} gave two traces");
        assert_eq!(first, second);
    }
}

#[test]
fn the_queue_keeps_its_promises_whatever_goes_wrong() {
    (1_000..1_300).for_each(|seed| drop(play(seed, &Options::default())));
}

#[test]
fn the_queue_keeps_its_promises_on_a_bad_day() {
    let options = Options { faults: Faults::mild(), ..Options::default() };
    (2_000..2_100).for_each(|seed| drop(play(seed, &options)));
}

#[test]
fn the_queue_keeps_its_promises_on_a_good_day() {
    let options = Options { faults: Faults::none(), ..Options::default() };
    (0..10).for_each(|seed| drop(play(seed, &options)));
}

#[test]
fn broken_rules_are_noticed() {
    for broken in Broken::ALL {
        let options = Options { mutant: Some(Mutant::Broken(broken)), ..Options::default() };
        let caught = (0..20).find_map(|seed| Scenario::Queue.play(seed, &options).err());
        assert!(caught.is_some(), "{broken:?} lives");
    }
}
