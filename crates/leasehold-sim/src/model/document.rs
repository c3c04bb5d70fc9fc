//! Runs the model checker and generates `docs/protocol/models.md`. Every test below is an entry there.

mod journal;

use std::fmt::Write;
use std::sync::{LazyLock, OnceLock};

use super::index::{self, ClaimKind, IndexModel};
use super::lease::{self, LeaseModel};
use super::{Counterexample, Exhausted, exhaust};

/// Title and size of a fully visited model. The first access runs the checker.
type Run = (&'static str, LazyLock<Exhausted>);

static RUNS: [Run; 9] = [
    (
        "lease: 2 processes, a crash, a late request, 4 epochs",
        LazyLock::new(|| exhaust_lease(2, [1, 0, 1], 4)),
    ),
    ("lease: 3 processes, a lost answer, 3 epochs", LazyLock::new(|| exhaust_lease(3, [0, 1, 0], 3))),
    (
        "index, shared: 2 workers, an operation, a crash, 4 revisions",
        LazyLock::new(|| exhaust_index(ClaimKind::Shared, [2, 1, 0], [1, 0, 0], 4)),
    ),
    (
        "index, shard holder: 2 workers, an operation, a crash, 4 revisions",
        LazyLock::new(|| exhaust_index(ClaimKind::Holder, [2, 1, 0], [1, 0, 0], 4)),
    ),
    (
        "index, mixed: 2 workers, an operation, a crash, 4 revisions",
        LazyLock::new(|| exhaust_index(ClaimKind::Mixed, [2, 1, 0], [1, 0, 0], 4)),
    ),
    (
        "index, mixed: 2 workers, a crash, 5 revisions",
        LazyLock::new(|| exhaust_index(ClaimKind::Mixed, [2, 0, 0], [1, 0, 0], 5)),
    ),
    (
        "index, mixed: 3 workers, a lost answer, 4 revisions",
        LazyLock::new(|| exhaust_index(ClaimKind::Mixed, [3, 0, 0], [0, 1, 0], 4)),
    ),
    (
        "index, mixed: 2 workers, a crash, a late request, 4 revisions",
        LazyLock::new(|| exhaust_index(ClaimKind::Mixed, [2, 0, 0], [1, 0, 1], 4)),
    ),
    (
        "index, shared: a worker, an operation, a purge, a late request, 5 revisions",
        LazyLock::new(|| exhaust_index(ClaimKind::Shared, [1, 1, 2], [0, 0, 1], 5)),
    ),
];

/// `faults`: crashes, lost answers, late requests.
fn exhaust_lease(processes: u8, faults: [u8; 3], epoch_max: u8) -> Exhausted {
    let [crashes, lost_answers, late] = faults;
    let model = LeaseModel { processes, crashes, lost_answers, late, epoch_max, without: None };
    exhaust(&model).unwrap()
}

/// `who`: workers, operations of an operator, purges; `faults`: crashes, lost answers, late requests.
fn exhaust_index(claims: ClaimKind, who: [u8; 3], faults: [u8; 3], rev_max: u8) -> Exhausted {
    let ([workers, operations, purges], [crashes, lost_answers, late]) = (who, faults);
    let without = None;
    let model =
        IndexModel { workers, claims, operations, purges, crashes, lost_answers, late, rev_max, without };
    exhaust(&model).unwrap()
}

fn lease_without(rule: lease::LeaseRule) -> &'static Counterexample {
    static FOUND: [OnceLock<Counterexample>; lease::LeaseRule::ALL.len()] = [const { OnceLock::new() }; _];
    FOUND[rule as usize].get_or_init(|| {
        let without = Some(rule);
        let model = LeaseModel { processes: 2, crashes: 0, lost_answers: 0, late: 1, epoch_max: 3, without };
        exhaust(&model).unwrap_err()
    })
}

fn index_without(rule: index::IndexRule) -> &'static Counterexample {
    static FOUND: [OnceLock<Counterexample>; index::IndexRule::ALL.len()] = [const { OnceLock::new() }; _];
    FOUND[rule as usize].get_or_init(|| {
        let model = IndexModel {
            workers: 2,
            claims: ClaimKind::Mixed,
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

fn assert_exhausted(number: usize) {
    assert_visited(&RUNS[number]);
}

fn assert_visited((title, run): &Run) {
    println!("{title}: {} states, depth {}", run.states, run.depth);
    assert!(run.states > 1_000, "{title}: {run:?}");
}

#[test]
fn the_lease_holds_with_two_processes_a_crash_and_a_delayed_request() {
    assert_exhausted(0);
}

#[test]
fn the_lease_holds_with_three_processes_and_a_lost_answer() {
    assert_exhausted(1);
}

#[test]
fn the_index_holds_under_shared_pull_with_two_workers_and_a_crash() {
    assert_exhausted(2);
}

#[test]
fn the_index_holds_under_shard_owners_with_two_workers_and_a_crash() {
    assert_exhausted(3);
}

#[test]
fn the_index_holds_under_both_with_two_workers_and_a_crash() {
    assert_exhausted(4);
}

#[test]
fn the_index_holds_over_several_attempts() {
    assert_exhausted(5);
}

#[test]
fn the_index_holds_with_three_workers_and_a_lost_answer() {
    assert_exhausted(6);
}

#[test]
fn the_index_holds_with_a_delayed_request() {
    assert_exhausted(7);
}

#[test]
fn the_index_holds_when_tasks_are_purged() {
    assert_exhausted(8);
}

const TWO_HOLDERS_TRUST: &str = "no two processes trust the lease at once";
const EPOCH_TWICE: &str = "no epoch is held twice";
const GAVE_UP_HELD: &str = "no holder gives up a lease that it still holds";

#[test]
fn without_the_stores_time_two_processes_trust_the_lease() {
    assert_eq!(lease_without(lease::LeaseRule::StoreTime).property, TWO_HOLDERS_TRUST);
}

#[test]
fn without_a_condition_on_the_take_over_two_processes_trust_the_lease() {
    assert_eq!(lease_without(lease::LeaseRule::TakeOnCondition).property, TWO_HOLDERS_TRUST);
}

#[test]
fn without_a_condition_on_the_renewal_two_processes_trust_the_lease() {
    assert_eq!(lease_without(lease::LeaseRule::RenewOnCondition).property, TWO_HOLDERS_TRUST);
}

#[test]
fn without_a_raised_epoch_one_is_held_twice() {
    assert_eq!(lease_without(lease::LeaseRule::RaiseEpoch).property, EPOCH_TWICE);
}

#[test]
fn without_instances_two_processes_trust_the_lease() {
    assert_eq!(lease_without(lease::LeaseRule::Instance).property, TWO_HOLDERS_TRUST);
}

#[test]
fn with_deleted_leases_an_epoch_is_held_twice() {
    assert_eq!(lease_without(lease::LeaseRule::NeverDelete).property, EPOCH_TWICE);
}

#[test]
fn without_a_new_epoch_for_ones_own_lease_two_processes_trust_the_lease() {
    assert_eq!(lease_without(lease::LeaseRule::OwnAnew).property, TWO_HOLDERS_TRUST);
}

#[test]
fn with_an_unconfirmed_expiry_two_processes_trust_the_lease() {
    assert_eq!(lease_without(lease::LeaseRule::ConfirmedOnly).property, TWO_HOLDERS_TRUST);
}

#[test]
fn without_stopping_before_release_two_processes_trust_the_lease() {
    assert_eq!(lease_without(lease::LeaseRule::StopBeforeRelease).property, TWO_HOLDERS_TRUST);
}

#[test]
fn without_the_read_after_a_refusal_a_holder_gives_up_its_lease() {
    assert_eq!(lease_without(lease::LeaseRule::ReadBeforeLost).property, GAVE_UP_HELD);
}

const COVERED: &str = "an unfinished task has an entry";
const KEPT: &str = "an acknowledged task exists until it is purged";
const DENIED: &str = "a submit reported as failed never creates a task";

#[test]
fn without_new_before_old_a_task_has_no_entry() {
    assert_eq!(index_without(index::IndexRule::NewBeforeOld).property, COVERED);
}

#[test]
fn without_the_entry_first_a_task_has_no_entry() {
    assert_eq!(index_without(index::IndexRule::EntryFirst).property, COVERED);
}

#[test]
fn with_removals_after_a_refusal_a_task_has_no_entry() {
    assert_eq!(index_without(index::IndexRule::RefusedRemovesNothing).property, COVERED);
}

#[test]
fn without_the_cover_a_task_has_no_entry() {
    assert_eq!(index_without(index::IndexRule::CoverThenRemove).property, COVERED);
}

#[test]
fn without_revisions_in_keys_a_task_has_no_entry() {
    assert_eq!(index_without(index::IndexRule::Revisions).property, COVERED);
}

#[test]
fn without_the_entry_first_at_a_submit_a_task_has_no_entry() {
    assert_eq!(index_without(index::IndexRule::SubmitEntryFirst).property, COVERED);
}

#[test]
fn without_a_fence_of_ones_own_a_submit_that_failed_happens() {
    assert_eq!(index_without(index::IndexRule::FenceOwnSubmit).property, DENIED);
}

#[test]
fn with_an_entry_removed_while_in_doubt_a_submit_that_failed_happens() {
    assert_eq!(index_without(index::IndexRule::WithdrawWhenSure).property, DENIED);
}

#[test]
fn without_a_fence_before_removal_a_task_has_no_entry() {
    assert_eq!(index_without(index::IndexRule::FenceBeforeRemoval).property, COVERED);
}

#[test]
fn without_the_mark_a_retried_task_is_deleted() {
    assert_eq!(index_without(index::IndexRule::MarkBeforeDelete).property, KEPT);
}

#[test]
fn without_conditions_an_acknowledged_task_is_lost() {
    assert_eq!(index_without(index::IndexRule::OnCondition).property, KEPT);
}

#[test]
fn without_the_ready_entry_of_an_owner_a_task_has_no_entry() {
    assert_eq!(index_without(index::IndexRule::HolderLeavesEntry).property, COVERED);
}

#[test]
fn the_models_are_documented() {
    let mut text = String::from(
        "# Models\n\n**Summary.** A model checker visits every reachable state of small models of the index, the lease and the \
         journal, and checks their properties in each. For each rule of these protocols it then finds the shortest sequence \
         of steps that violates a property if that rule is left out. Generated by the tests of `leasehold-sim`, \
         `model/document.rs`; run them with `UPDATE_DOCS=1`. The models \
         call the real `step` and `Lease`; `model/index.rs`, `model/lease.rs` and `model/journal.rs` describe the rest. The \
         journal is built in part: [journal.md](journal.md).\n\n\
         ## Fully visited models\n\nThe checker visited every state, and no state violates a property.\n\n\
         | model | states | depth |\n| --- | ---: | ---: |\n",
    );
    for (title, run) in RUNS.iter().chain(&journal::RUNS) {
        writeln!(text, "| {title} | {} | {} |", run.states, run.depth).unwrap();
    }
    text.push_str(
        "\n## Counterexamples\n\nThe shortest violation when one rule is left out and all others hold; its last step \
         violates the property. The rules of the index are numbered as in [queue.md](queue.md), those of the journal as in \
         [journal.md](journal.md).\n",
    );
    let lease = lease::LeaseRule::ALL.map(|rule| ("The lease", rule.description(), lease_without(rule)));
    let index = index::IndexRule::ALL.map(|rule| ("The index", rule.description(), index_without(rule)));
    let mut chapter = "";
    for (of, rule, found) in index.into_iter().chain(lease).chain(journal::counterexamples()) {
        if of != chapter {
            write!(text, "\n### {of}\n").unwrap();
            chapter = of;
        }
        let (broken, count) = (found.property, found.steps.len());
        write!(text, "\n**Left out: {rule}.** {count} steps violate *{broken}*:\n\n").unwrap();
        for (number, step) in found.steps.iter().enumerate() {
            writeln!(text, "{}. {step}", number + 1).unwrap();
        }
    }
    text.push_str(&journal::spare_rules());
    let documented = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/protocol/models.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&documented, &text).unwrap();
    }
    assert_eq!(std::fs::read_to_string(&documented).unwrap(), text, "run the test with UPDATE_DOCS=1");
}
