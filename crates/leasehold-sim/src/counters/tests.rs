use crate::scenario::{Mutant, Options, Report, Scenario};

fn play(seed: u64, full: bool) -> Report {
    let options = Options { full, ..Options::default() };
    Scenario::Counters.play(seed, &options).unwrap_or_else(|failed| panic!("{failed}"))
}

#[test]
fn one_seed_gives_one_trace() {
    for seed in 0..50 {
        let (first, second) = (play(seed, true), play(seed, true));
        assert!(first.trace == second.trace, "seed {seed} gave two traces");
        assert_eq!(first, second);
        assert_eq!(first.trace.len() as u64, first.trace_count);
        assert_ne!(first.trace_hash, play(seed + 1, false).trace_hash);
    }
}

#[test]
fn counters_count_whatever_goes_wrong() {
    for seed in 1_000..1_300 {
        play(seed, false);
    }
}

#[test]
fn mutants_are_caught_within_few_seeds() {
    for mutant in [Mutant::LostAnswerIsLostRace, Mutant::ForgetsHistory] {
        let options = Options { mutant: Some(mutant), ..Options::default() };
        let caught = (0..20).find_map(|seed| Scenario::Counters.play(seed, &options).err());
        let caught = caught.unwrap_or_else(|| panic!("{mutant:?} lives"));
        assert!(caught.message.contains("was carried out twice"), "{mutant:?}: {caught}");
        assert!(caught.replay().ends_with(&format!("--seed {} --scenario counters", caught.seed)));
    }
}
