//! The models of the journal: sizes, counterexamples, and rules that the checker does not need.

use std::fmt::Write;
use std::sync::{LazyLock, OnceLock};

use super::super::journal::bucket::{BucketModel, BucketRule};
use super::super::journal::claims::{ClaimRule, ClaimsModel};
use super::super::journal::folder::{FolderModel, FolderRule};
use super::super::{Counterexample, Exhausted, exhaust};
use super::{Run, assert_visited};
use leasehold_store::testing::Lane;

pub(super) static RUNS: [Run; 6] = [
    (
        "journal, bucket: 3 processes, a lost answer, 4 epochs, 6 slots",
        LazyLock::new(|| exhaust_bucket(4, 6, [1, 0], false)),
    ),
    (
        "journal, bucket: 3 processes, a lost answer, a late request, 3 epochs, 5 slots",
        LazyLock::new(|| exhaust_bucket(3, 5, [1, 1], false)),
    ),
    (
        "journal, bucket: 3 processes, mail, a lost answer, 3 epochs, 5 slots",
        LazyLock::new(|| exhaust_bucket(3, 5, [1, 0], true)),
    ),
    (
        "journal, bucket: 3 processes, mail, a late request, 3 epochs, 4 slots",
        LazyLock::new(|| exhaust_bucket(3, 4, [0, 1], true)),
    ),
    (
        "journal, claims: 3 brokers, 2 workers, an early takeover, 3 epochs, 2 attempts",
        LazyLock::new(|| exhaust_claims(3, 1)),
    ),
    (
        "journal, folder: 3 processes, 2 power losses, a failed sync, 3 epochs, 4 commits",
        LazyLock::new(|| exhaust_folder(3, 2)),
    ),
];

/// `faults`: lost answers, late requests.
fn exhaust_bucket(epoch_max: u8, slots: u8, faults: [u8; 2], mail: bool) -> Exhausted {
    let [lost_answers, late] = faults;
    let model = BucketModel { processes: 3, epoch_max, slots, lost_answers, late, mail, without: None };
    exhaust(&model).unwrap()
}

fn exhaust_claims(epoch_max: u8, early: u8) -> Exhausted {
    exhaust(&ClaimsModel {
        brokers: 3,
        workers: 2,
        epoch_max,
        attempts: 2,
        early,
        ttl: 3,
        claim_ttl: 1,
        without: None,
    })
    .unwrap()
}

fn exhaust_folder(epoch_max: u8, power_losses: u8) -> Exhausted {
    let model = FolderModel {
        processes: 3,
        epoch_max,
        segments: epoch_max,
        commits: 4,
        power_losses,
        failed_syncs: 1,
        without: None,
    };
    exhaust(&model).unwrap()
}

fn bucket_without(rule: BucketRule) -> &'static Counterexample {
    static FOUND: [OnceLock<Counterexample>; BucketRule::ALL.len()] = [const { OnceLock::new() }; _];
    let (processes, epoch_max, late) = match rule {
        BucketRule::CorruptIfHeld => (3, 4, 0),
        BucketRule::Confirm | BucketRule::ConfirmAfterFence => (3, 3, 0),
        _ => (2, 2, 1),
    };
    let mail = matches!(rule, BucketRule::MailIsTask | BucketRule::MailAfterCommit | BucketRule::MailInTime);
    let without = Some(rule);
    FOUND[rule as usize].get_or_init(|| {
        let model = BucketModel { processes, epoch_max, slots: 5, lost_answers: 0, late, mail, without };
        exhaust(&model).unwrap_err()
    })
}

fn claims_without(rule: ClaimRule) -> &'static Counterexample {
    static FOUND: [OnceLock<Counterexample>; ClaimRule::ALL.len()] = [const { OnceLock::new() }; _];
    FOUND[rule as usize].get_or_init(|| {
        let model = ClaimsModel {
            brokers: 2,
            workers: 1,
            epoch_max: 3,
            attempts: 1,
            early: 1,
            ttl: 3,
            claim_ttl: 1,
            without: Some(rule),
        };
        exhaust(&model).unwrap_err()
    })
}

fn folder_without(rule: FolderRule) -> &'static Counterexample {
    static FOUND: [OnceLock<Counterexample>; FolderRule::ALL.len()] = [const { OnceLock::new() }; _];
    FOUND[rule as usize].get_or_init(|| {
        let model = FolderModel {
            processes: 2,
            epoch_max: 3,
            segments: 4,
            commits: 3,
            power_losses: 1,
            failed_syncs: 1,
            without: Some(rule),
        };
        exhaust(&model).unwrap_err()
    })
}

static SPARE_BUCKET: LazyLock<Exhausted> = LazyLock::new(|| {
    let without = Some(BucketRule::SPARE);
    let model =
        BucketModel { processes: 3, epoch_max: 3, slots: 4, lost_answers: 1, late: 1, mail: false, without };
    exhaust(&model).unwrap()
});

static SPARE_FOLDER: LazyLock<Exhausted> = LazyLock::new(|| {
    let model = FolderModel {
        processes: 3,
        epoch_max: 3,
        segments: 3,
        commits: 3,
        power_losses: 1,
        failed_syncs: 1,
        without: Some(FolderRule::SPARE),
    };
    exhaust(&model).unwrap()
});

/// Chapter, rule and counterexample for every rule that can be left out.
pub(super) fn counterexamples() -> impl Iterator<Item = (&'static str, &'static str, &'static Counterexample)>
{
    let bucket =
        BucketRule::ALL.map(|rule| ("The journal in a bucket", rule.description(), bucket_without(rule)));
    let claims =
        ClaimRule::ALL.map(|rule| ("Claims in the journal", rule.description(), claims_without(rule)));
    let folder =
        FolderRule::ALL.map(|rule| ("The journal in a folder", rule.description(), folder_without(rule)));
    bucket.into_iter().chain(claims).chain(folder)
}

/// The last chapter.
pub(super) fn spare_rules() -> String {
    let mut text = String::from(
        "\n## Rules that the models do not need\n\nThe checker visited every state without these rules, and no state \
         violates a property. The code keeps them: they cost little, and stop a process earlier.\n\n",
    );
    let bucket = (BucketRule::SPARE.description(), &SPARE_BUCKET);
    let folder = (FolderRule::SPARE.description(), &SPARE_FOLDER);
    for (rule, run) in [bucket, folder] {
        writeln!(text, "* {rule}: {} states, depth {}", run.states, run.depth).unwrap();
    }
    text
}

/// Checks a run that is documented, and in the soak lane one with larger bounds.
fn assert_holds(number: usize, larger: fn() -> Exhausted) {
    assert_visited(&RUNS[number]);
    if Lane::current() == Lane::Soak {
        let Exhausted { states, depth } = larger();
        println!("{} and more: {states} states, depth {depth}", RUNS[number].0);
        assert!(states > RUNS[number].1.states);
    }
}

#[test]
fn the_bucket_holds_with_a_lost_answer() {
    assert_holds(0, || exhaust_bucket(4, 7, [1, 0], false));
}

#[test]
fn the_bucket_holds_with_a_lost_answer_and_a_late_request() {
    assert_holds(1, || exhaust_bucket(3, 4, [0, 2], false));
}

#[test]
fn the_bucket_holds_with_mail_and_a_lost_answer() {
    assert_holds(2, || exhaust_bucket(3, 4, [1, 1], true));
}

#[test]
fn the_bucket_holds_with_mail_and_a_late_request() {
    assert_visited(&RUNS[3]);
}

#[test]
fn claims_hold_while_brokers_change() {
    assert_holds(4, || exhaust_claims(4, 1));
}

#[test]
fn the_folder_holds_with_power_losses_and_a_failed_sync() {
    assert_holds(5, || exhaust_folder(4, 1));
}

#[test]
fn a_snapshot_may_cover_the_commit_in_flight() {
    assert!(SPARE_BUCKET.states > 1_000);
}

#[test]
fn a_new_broker_in_a_folder_may_serve_before_it_reads_the_epoch_again() {
    assert!(SPARE_FOLDER.states > 1_000);
}

const REPLAYED: &str = "every acknowledged commit is replayed by the next broker, in order";
const ONE_HISTORY: &str = "brokers that serve have one history";
const CURRENT: &str = "refusals and current reads know every acknowledged commit";
const MAIL_ONCE: &str = "acknowledged mail is applied exactly once";
const COMPLETE: &str = "the holder of the lease finds the log complete";
const NOT_CORRUPT: &str = "no process reports a corrupt log";

#[test]
fn with_deleted_fences_two_brokers_serve_two_histories() {
    assert_eq!(bucket_without(BucketRule::FencesStay).property, ONE_HISTORY);
}

#[test]
fn without_the_confirmation_two_brokers_serve_two_histories() {
    assert_eq!(bucket_without(BucketRule::Confirm).property, ONE_HISTORY);
}

#[test]
fn with_the_confirmation_before_the_fence_two_brokers_serve_two_histories() {
    assert_eq!(bucket_without(BucketRule::ConfirmAfterFence).property, ONE_HISTORY);
}

#[test]
fn without_reading_back_an_acknowledged_commit_is_lost() {
    assert_eq!(bucket_without(BucketRule::ReadBack).property, REPLAYED);
}

#[test]
fn with_other_bytes_two_brokers_serve_two_histories() {
    assert_eq!(bucket_without(BucketRule::SameBytes).property, ONE_HISTORY);
}

#[test]
fn with_two_puts_in_flight_an_acknowledged_commit_is_lost() {
    assert_eq!(bucket_without(BucketRule::OnePut).property, REPLAYED);
}

#[test]
fn with_the_floor_outside_the_lease_the_log_has_a_gap() {
    assert_eq!(bucket_without(BucketRule::FloorInLease).property, COMPLETE);
}

#[test]
fn with_a_commit_in_flight_a_read_misses_acknowledged_commits() {
    assert_eq!(bucket_without(BucketRule::ReadAfterCommit).property, CURRENT);
}

#[test]
fn with_other_task_ids_mail_is_applied_twice() {
    assert_eq!(bucket_without(BucketRule::MailIsTask).property, MAIL_ONCE);
}

#[test]
fn with_mail_deleted_before_the_commit_it_is_lost() {
    assert_eq!(bucket_without(BucketRule::MailAfterCommit).property, MAIL_ONCE);
}

#[test]
fn with_mail_of_any_age_it_is_applied_twice() {
    assert_eq!(bucket_without(BucketRule::MailInTime).property, MAIL_ONCE);
}

#[test]
fn without_the_lease_a_process_reports_a_corrupt_log() {
    assert_eq!(bucket_without(BucketRule::CorruptIfHeld).property, NOT_CORRUPT);
}

const ONE_HOLDER: &str = "a worker that trusts its claim holds it (P2)";
const FENCED: &str = "a worker that lost its claim cannot change the task (P3)";
const CRASHED_ENDS: &str = "a crashed worker's claim is extended at most once";

#[test]
fn with_renewals_past_the_lease_a_claim_ends_early() {
    assert_eq!(claims_without(ClaimRule::TrustedLease).property, ONE_HOLDER);
}

#[test]
fn without_the_trust_of_earlier_holders_a_claim_ends_early() {
    assert_eq!(claims_without(ClaimRule::CarryTrust).property, ONE_HOLDER);
}

#[test]
fn without_heard_in_the_log_a_claim_ends_early() {
    assert_eq!(claims_without(ClaimRule::LogHeard).property, ONE_HOLDER);
}

#[test]
fn without_the_extension_a_claim_ends_early() {
    assert_eq!(claims_without(ClaimRule::ExtendHeard).property, ONE_HOLDER);
}

#[test]
fn with_all_claims_extended_those_of_crashed_workers_do_not_end() {
    assert_eq!(claims_without(ClaimRule::OnlyHeard).property, CRASHED_ENDS);
}

#[test]
fn with_a_claim_released_after_bytes_were_written_its_worker_runs_it_nevertheless() {
    assert_eq!(claims_without(ClaimRule::NoByteWritten).property, ONE_HOLDER);
}

#[test]
fn with_durations_a_delayed_claim_is_trusted_too_long() {
    assert_eq!(claims_without(ClaimRule::AbsoluteTime).property, ONE_HOLDER);
}

#[test]
fn with_results_of_any_attempt_a_worker_changes_a_task_that_it_lost() {
    assert_eq!(claims_without(ClaimRule::SameAttempt).property, FENCED);
}

#[test]
fn without_a_lock_an_acknowledged_commit_is_lost() {
    assert_eq!(folder_without(FolderRule::Lock).property, REPLAYED);
}

#[test]
fn without_reading_the_epoch_under_the_lock_an_acknowledged_commit_is_lost() {
    assert_eq!(folder_without(FolderRule::ReadUnderLock).property, REPLAYED);
}

#[test]
fn with_the_end_read_before_the_epoch_an_acknowledged_commit_is_lost() {
    assert_eq!(folder_without(FolderRule::EndAfterEpoch).property, REPLAYED);
}

#[test]
fn with_the_epoch_read_before_the_append_an_acknowledged_commit_is_lost() {
    assert_eq!(folder_without(FolderRule::EpochAfterSync).property, REPLAYED);
}

#[test]
fn without_a_durable_epoch_an_acknowledged_commit_is_lost() {
    assert_eq!(folder_without(FolderRule::DurableEpoch).property, REPLAYED);
}

#[test]
fn without_the_copied_frame_an_acknowledged_commit_is_lost() {
    assert_eq!(folder_without(FolderRule::CopiedFrame).property, REPLAYED);
}

#[test]
fn with_two_unsynced_frames_an_acknowledged_commit_is_lost() {
    assert_eq!(folder_without(FolderRule::OneFrame).property, REPLAYED);
}

#[test]
fn with_a_retried_sync_an_acknowledged_commit_is_lost() {
    assert_eq!(folder_without(FolderRule::FailedSync).property, REPLAYED);
}

#[test]
fn with_the_newest_segment_by_its_first_commit_an_acknowledged_commit_is_lost() {
    assert_eq!(folder_without(FolderRule::NewestByEpoch).property, REPLAYED);
}

#[test]
fn without_a_durable_header_an_acknowledged_commit_is_lost() {
    assert_eq!(folder_without(FolderRule::DurableHeader).property, REPLAYED);
}

#[test]
fn without_reading_the_epoch_a_read_misses_acknowledged_commits() {
    assert_eq!(folder_without(FolderRule::ReadEpoch).property, CURRENT);
}
