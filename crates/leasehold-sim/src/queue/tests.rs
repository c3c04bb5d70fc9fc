use crate::faults::Faults;
use crate::scenario::{Options, Report, Scenario};

fn play(seed: u64, options: &Options) -> Report {
    Scenario::Queue.play(seed, options).unwrap_or_else(|failed| panic!("{failed}"))
}

#[test]
fn one_seed_gives_one_trace() {
    let options = Options { full: true, ..Options::default() };
    for seed in crate::seeds(0..50) {
        let (first, second) = (play(seed, &options), play(seed, &options));
        assert!(first.trace == second.trace, "seed {seed} gave two traces");
        assert_eq!(first, second);
    }
}

#[test]
fn the_queue_keeps_its_promises_under_wild_faults() {
    for seed in crate::seeds(1_000..1_350) {
        play(seed, &Options::default());
    }
}

/// More seeds, in a test of its own that runs in parallel.
#[test]
fn the_queue_keeps_its_promises_whatever_else_goes_wrong() {
    for seed in crate::seeds(1_350..1_700) {
        play(seed, &Options::default());
    }
}

#[test]
fn the_queue_keeps_its_promises_under_mild_faults() {
    let options = Options { faults: Faults::mild(), ..Options::default() };
    for seed in crate::seeds(2_000..2_300) {
        play(seed, &options);
    }
}

#[test]
fn the_queue_keeps_its_promises_without_faults() {
    let options = Options { faults: Faults::none(), ..Options::default() };
    for seed in crate::seeds(0..10) {
        play(seed, &options);
    }
}

/// Regression: a claim whose answer came late, or whose renewals failed, was trusted for up to a third of a
/// lease too long.
#[test]
fn an_expired_claim_is_not_trusted() {
    for seed in [0, 4, 7, 11] {
        play(seed, &Options::default());
    }
}

/// Regression: the task of an entry whose producer crashed between its two writes was read every second,
/// forever.
#[test]
fn an_entry_without_a_task_is_removed() {
    for seed in [4, 17, 30] {
        play(seed, &Options::default());
    }
}

/// Regression: a wall clock was set while the first answer after a jump of the store's time was in flight;
/// such an answer does not reveal the jump.
#[test]
fn an_answer_of_unknown_latency_reveals_no_jump() {
    play(5_681, &Options::default());
}

/// Regression: a check reported a task as uncovered if a worker claimed it in its own shard, or moved it,
/// during the check.
#[test]
fn a_check_does_not_report_tasks_that_change_meanwhile() {
    for seed in [28, 38] {
        play(seed, &Options::default());
    }
}

/// Regression: tombstones of abandoned submits were kept forever, because no list for the purge includes
/// them.
#[test]
fn tombstones_are_purged() {
    for seed in [5, 25] {
        play(seed, &Options::default());
    }
}

#[test]
fn a_task_that_is_purged_was_marked_for_a_day_under_wild_faults() {
    for seed in crate::seeds(0..100) {
        let played = Scenario::Purge.play(seed, &Options::of(Scenario::Purge));
        played.unwrap_or_else(|failed| panic!("{failed}"));
    }
}
