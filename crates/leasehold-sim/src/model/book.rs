//! What the checker finds, as `docs/protocol/models.md` tells it. Every test below is a line there.

use std::fmt::Write;
use std::sync::{LazyLock, OnceLock};

use super::index::{self, IndexModel, Pull};
use super::lease::{self, LeaseModel};
use super::{Counterexample, Exhausted, exhaust};

/// A model that was exhausted; whoever asks first lets the checker run.
type Run = (&'static str, LazyLock<Exhausted>);

static RUNS: [Run; 9] = [
    ("lease: 2 processes, a crash, a late request, 4 epochs", LazyLock::new(|| holds_lease(2, [1, 0, 1], 4))),
    ("lease: 3 processes, a lost answer, 3 epochs", LazyLock::new(|| holds_lease(3, [0, 1, 0], 3))),
    (
        "index, shared pull: 2 workers, an operation, a crash, 4 revisions",
        LazyLock::new(|| holds_index(Pull::Shared, [2, 1, 0], [1, 0, 0], 4)),
    ),
    (
        "index, shard owner: 2 workers, an operation, a crash, 4 revisions",
        LazyLock::new(|| holds_index(Pull::Owner, [2, 1, 0], [1, 0, 0], 4)),
    ),
    (
        "index, mixed: 2 workers, an operation, a crash, 4 revisions",
        LazyLock::new(|| holds_index(Pull::Mixed, [2, 1, 0], [1, 0, 0], 4)),
    ),
    (
        "index, mixed: 2 workers, a crash, 5 revisions",
        LazyLock::new(|| holds_index(Pull::Mixed, [2, 0, 0], [1, 0, 0], 5)),
    ),
    (
        "index, mixed: 3 workers, a lost answer, 4 revisions",
        LazyLock::new(|| holds_index(Pull::Mixed, [3, 0, 0], [0, 1, 0], 4)),
    ),
    (
        "index, mixed: 2 workers, a crash, a late request, 4 revisions",
        LazyLock::new(|| holds_index(Pull::Mixed, [2, 0, 0], [1, 0, 1], 4)),
    ),
    (
        "index, shared pull: a worker, an operation, a purge, a late request, 5 revisions",
        LazyLock::new(|| holds_index(Pull::Shared, [1, 1, 2], [0, 0, 1], 5)),
    ),
];

/// `faults`: crashes, lost answers, late requests.
fn holds_lease(processes: u8, faults: [u8; 3], epoch_max: u8) -> Exhausted {
    let [crashes, lost_answers, late] = faults;
    let model = LeaseModel { processes, crashes, lost_answers, late, epoch_max, without: None };
    exhaust(&model).unwrap()
}

/// `who`: workers, operations of an operator, purges; `faults`: crashes, lost answers, late requests.
fn holds_index(pull: Pull, who: [u8; 3], faults: [u8; 3], rev_max: u8) -> Exhausted {
    let ([workers, operations, purges], [crashes, lost_answers, late]) = (who, faults);
    let without = None;
    let model =
        IndexModel { workers, pull, operations, purges, crashes, lost_answers, late, rev_max, without };
    exhaust(&model).unwrap()
}

fn lease_without(rule: lease::Rule) -> &'static Counterexample {
    static FOUND: [OnceLock<Counterexample>; lease::Rule::ALL.len()] = [const { OnceLock::new() }; _];
    FOUND[rule as usize].get_or_init(|| {
        let without = Some(rule);
        let model = LeaseModel { processes: 2, crashes: 0, lost_answers: 0, late: 1, epoch_max: 3, without };
        exhaust(&model).unwrap_err()
    })
}

fn index_without(rule: index::Rule) -> &'static Counterexample {
    static FOUND: [OnceLock<Counterexample>; index::Rule::ALL.len()] = [const { OnceLock::new() }; _];
    FOUND[rule as usize].get_or_init(|| {
        let model = IndexModel {
            workers: 2,
            pull: Pull::Mixed,
            operations: 2,
            purges: 1,
            crashes: 0,
            lost_answers: 0,
            late: 1,
            rev_max: 5,
            without: Some(rule),
        };
        exhaust(&model).unwrap_err()
    })
}

fn is_exhausted(number: usize) {
    let (title, run) = &RUNS[number];
    println!("{title}: {} states, depth {}", run.states, run.depth);
    assert!(run.states > 1_000, "{title}: {run:?}");
}

#[test]
fn the_lease_holds_with_two_processes_a_crash_and_a_late_request() {
    is_exhausted(0);
}

#[test]
fn the_lease_holds_with_three_processes_and_a_lost_answer() {
    is_exhausted(1);
}

#[test]
fn the_index_holds_under_shared_pull_with_two_workers_and_a_crash() {
    is_exhausted(2);
}

#[test]
fn the_index_holds_under_shard_owners_with_two_workers_and_a_crash() {
    is_exhausted(3);
}

#[test]
fn the_index_holds_under_both_with_two_workers_and_a_crash() {
    is_exhausted(4);
}

#[test]
fn the_index_holds_over_several_attempts() {
    is_exhausted(5);
}

#[test]
fn the_index_holds_with_three_workers_and_a_lost_answer() {
    is_exhausted(6);
}

#[test]
fn the_index_holds_with_a_request_that_lands_late() {
    is_exhausted(7);
}

#[test]
fn the_index_holds_when_tasks_are_purged() {
    is_exhausted(8);
}

const TWO_TRUST: &str = "no two trust at once";
const EPOCH_TWICE: &str = "no epoch is held twice";
const TOLD_TO_STOP: &str = "no holder is told to stop";

#[test]
fn without_the_stores_time_two_trust() {
    assert_eq!(lease_without(lease::Rule::StoreTime).property, TWO_TRUST);
}

#[test]
fn without_a_condition_on_the_take_over_two_trust() {
    assert_eq!(lease_without(lease::Rule::TakeOnCondition).property, TWO_TRUST);
}

#[test]
fn without_a_condition_on_the_renewal_two_trust() {
    assert_eq!(lease_without(lease::Rule::RenewOnCondition).property, TWO_TRUST);
}

#[test]
fn without_a_raised_epoch_one_is_held_twice() {
    assert_eq!(lease_without(lease::Rule::RaiseEpoch).property, EPOCH_TWICE);
}

#[test]
fn without_instances_two_trust() {
    assert_eq!(lease_without(lease::Rule::Instance).property, TWO_TRUST);
}

#[test]
fn with_deleted_leases_an_epoch_is_held_twice() {
    assert_eq!(lease_without(lease::Rule::NeverDelete).property, EPOCH_TWICE);
}

#[test]
fn without_taking_ones_own_anew_two_trust() {
    assert_eq!(lease_without(lease::Rule::OwnAnew).property, TWO_TRUST);
}

#[test]
fn with_trust_in_what_is_not_confirmed_two_trust() {
    assert_eq!(lease_without(lease::Rule::ConfirmedOnly).property, TWO_TRUST);
}

#[test]
fn without_stopping_before_release_two_trust() {
    assert_eq!(lease_without(lease::Rule::StopBeforeRelease).property, TWO_TRUST);
}

#[test]
fn without_the_read_after_a_refusal_a_holder_is_told_to_stop() {
    assert_eq!(lease_without(lease::Rule::ReadBeforeLost).property, TOLD_TO_STOP);
}

const COVERED: &str = "an unfinished task has an entry";
const KEPT: &str = "an acknowledged task is there until it is purged";
const DENIED: &str = "a task that was said not to be submitted never is";

#[test]
fn without_new_before_old_a_task_has_no_entry() {
    assert_eq!(index_without(index::Rule::NewBeforeOld).property, COVERED);
}

#[test]
fn without_the_entry_first_a_task_has_no_entry() {
    assert_eq!(index_without(index::Rule::EntryFirst).property, COVERED);
}

#[test]
fn with_removals_after_a_refusal_a_task_has_no_entry() {
    assert_eq!(index_without(index::Rule::RefusedRemovesNothing).property, COVERED);
}

#[test]
fn without_the_cover_a_task_has_no_entry() {
    assert_eq!(index_without(index::Rule::CoverThenSweep).property, COVERED);
}

#[test]
fn without_revisions_in_keys_a_task_has_no_entry() {
    assert_eq!(index_without(index::Rule::Revisions).property, COVERED);
}

#[test]
fn without_the_pointer_first_a_task_has_no_entry() {
    assert_eq!(index_without(index::Rule::PointerFirst).property, COVERED);
}

#[test]
fn without_a_fence_of_ones_own_a_submit_that_failed_happens() {
    assert_eq!(index_without(index::Rule::FenceOwnSubmit).property, DENIED);
}

#[test]
fn with_an_entry_removed_while_in_doubt_a_submit_that_failed_happens() {
    assert_eq!(index_without(index::Rule::WithdrawWhenSure).property, DENIED);
}

#[test]
fn without_a_fence_before_removal_a_task_has_no_entry() {
    assert_eq!(index_without(index::Rule::FenceBeforeRemoval).property, COVERED);
}

#[test]
fn without_the_mark_a_retried_task_is_deleted() {
    assert_eq!(index_without(index::Rule::MarkBeforeDelete).property, KEPT);
}

#[test]
fn without_conditions_an_acknowledged_task_is_lost() {
    assert_eq!(index_without(index::Rule::OnCondition).property, KEPT);
}

#[test]
fn without_the_ready_entry_of_an_owner_a_task_has_no_entry() {
    assert_eq!(index_without(index::Rule::OwnerLeavesEntry).property, COVERED);
}

#[test]
fn the_models_are_documented() {
    let mut text = String::from(
        "# Models\n\nGenerated by the tests of `leasehold-sim`, `model/book.rs`; run them with `UPDATE_DOCS=1`. The models \
         decide by the real `step` and `Lease`; what they add is told in `model/index.rs` and `model/lease.rs`.\n\n\
         ## Exhausted\n\nEvery state was visited, and none of the promises below was ever broken.\n\n\
         | model | states | depth |\n| --- | ---: | ---: |\n",
    );
    for (title, run) in &RUNS {
        writeln!(text, "| {title} | {} | {} |", run.states, run.depth).unwrap();
    }
    text.push_str("\n## Each rule left out\n\nThe shortest way to break a promise, if everything else stays as it is.\n");
    let lease = lease::Rule::ALL.map(|rule| ("The lease", rule.told(), lease_without(rule)));
    let index = index::Rule::ALL.map(|rule| ("The index", rule.told(), index_without(rule)));
    let mut chapter = "";
    for (of, rule, found) in index.into_iter().chain(lease) {
        if of != chapter {
            write!(text, "\n### {of}\n").unwrap();
            chapter = of;
        }
        let (broken, count) = (found.property, found.steps.len());
        write!(text, "\n**Left out: {rule}.** After {count} steps it is no longer so that {broken}:\n\n")
            .unwrap();
        for (number, step) in found.steps.iter().enumerate() {
            writeln!(text, "{}. {step}", number + 1).unwrap();
        }
    }
    let documented = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/protocol/models.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&documented, &text).unwrap();
    }
    assert_eq!(std::fs::read_to_string(&documented).unwrap(), text, "run the test with UPDATE_DOCS=1");
}
