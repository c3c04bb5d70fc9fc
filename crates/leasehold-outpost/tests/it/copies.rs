//! Copies of the bucket's tasks, and files that the supervisor must not touch.

use leasehold_core::settlement::Settlement;
use leasehold_core::task::Claim;
use leasehold_core::{HexName, State, Status, Task};
use leasehold_outpost::{Checkout, Mirrored};
use std::time::Duration;

use crate::support::{
    BUCKET_MS, at, bucket, claim, complete, config, failure, lease, op_names, order, places, remote,
    send_all, snapshot, test_spool, test_spool_with, worker,
};
use leasehold_core::outpost::{OpKind, SyncRefusal};

/// Returns the task as claimed in the bucket for this node.
fn checked_out(task: &Task, expires_ms: i64) -> (Task, Checkout) {
    let expires_at = at(BUCKET_MS + expires_ms);
    let lease_id = HexName::from_random(77);
    let claim = Claim { by: worker("pi-1"), expires_at, renewed_at: None, cancel_requested: false };
    let mut task = task.clone();
    (task.rev, task.epoch, task.attempt) = (9, task.epoch + 1, task.attempt + 1);
    task.lease_id = Some(lease_id.clone());
    task.state = State::Running(claim);
    let epoch = task.epoch;
    (task, Checkout { lease_id, epoch, expires_at, is_extended: false })
}

#[test]
fn a_copy_is_written_once_and_removed_when_it_is_free() {
    let test = test_spool();
    let task = remote(1);
    assert_eq!(test.spool.mirror(&task, None).unwrap(), Mirrored::Written);
    assert_eq!(test.spool.mirror(&task, None).unwrap(), Mirrored::Same);
    let copy = &test.spool.local_tasks().unwrap()[0];
    assert_eq!((&copy.task, copy.base_rev, &copy.lease), (&task, 4, &None));
    let newer = Task { rev: 5, ..task.clone() };
    assert_eq!(test.spool.mirror(&newer, None).unwrap(), Mirrored::Written);
    assert_eq!(test.spool.local_tasks().unwrap()[0].base_rev, 5);
    assert!(op_names(&test.spool).is_empty());
    assert!(test.spool.remove_copy(&task.id).unwrap());
    assert!(!test.spool.remove_copy(&task.id).unwrap());
    assert!(places(&test.spool, &task.id).is_empty());
}

#[test]
fn a_held_task_is_not_touched() {
    let test = test_spool();
    let task = remote(1);
    test.spool.mirror(&task, None).unwrap();
    let held = claim(&test.spool, &task.id, "w").unwrap();
    for is_sent in [false, true] {
        if is_sent {
            send_all(&test.spool);
        }
        let before = snapshot(test.spool.root());
        let newer = Task { rev: 9, ..task.clone() };
        assert_eq!(test.spool.mirror(&newer, None).unwrap(), Mirrored::Busy);
        let (ours, other) = checked_out(&task, 60_000);
        assert_eq!(test.spool.mirror(&ours, Some(other)).unwrap(), Mirrored::Busy);
        assert!(!test.spool.remove_copy(&task.id).unwrap());
        let stranger = HexName::from_random(5);
        assert!(!test.spool.confirm(&task.id, &stranger, &newer).unwrap());
        assert!(!test.spool.revoke(&task.id, &stranger, false).unwrap());
        assert_eq!(snapshot(test.spool.root()), before);
    }
    complete(&test.spool, &held).unwrap();
}

#[test]
fn a_task_with_unsent_operations_is_not_removed() {
    let test = test_spool();
    let new = test.spool.submit(order()).unwrap();
    assert!(!test.spool.remove_copy(&new).unwrap(), "in the outbox");
    send_all(&test.spool);
    assert!(test.spool.remove_copy(&new).unwrap(), "the bucket has it");
    let task = remote(1);
    test.spool.mirror(&task, None).unwrap();
    let held = claim(&test.spool, &task.id, "w").unwrap();
    test.spool.settle(&held, Settlement::Release).unwrap();
    let before = snapshot(test.spool.root());
    assert!(!test.spool.remove_copy(&task.id).unwrap(), "in the outbox");
    assert_eq!(test.spool.mirror(&Task { rev: 9, ..task.clone() }, None).unwrap(), Mirrored::Busy);
    assert_eq!(snapshot(test.spool.root()), before);
    send_all(&test.spool);
    assert_eq!(test.spool.mirror(&Task { rev: 9, ..task.clone() }, None).unwrap(), Mirrored::Written);
    assert!(test.spool.remove_copy(&task.id).unwrap());
}

#[test]
fn operations_sent_by_another_process_do_not_block() {
    let test = test_spool();
    let task = remote(1);
    test.spool.mirror(&task, None).unwrap();
    let held = claim(&test.spool, &task.id, "w").unwrap();
    test.spool.settle(&held, Settlement::Release).unwrap();
    assert_eq!(test.spool.mirror(&task, None).unwrap(), Mirrored::Busy);
    let counts = test.spool.count().unwrap();
    assert_eq!((counts.free, counts.leased, counts.outbox), (1, 0, 2));
    send_all(&test.other());
    assert_eq!(test.spool.mirror(&task, None).unwrap(), Mirrored::Written);
}

#[test]
fn a_task_that_has_ended_here_is_not_mirrored_before_its_end_is_sent() {
    let test = test_spool();
    let task = remote(1);
    test.spool.mirror(&task, None).unwrap();
    let held = claim(&test.spool, &task.id, "w").unwrap();
    complete(&test.spool, &held).unwrap();
    assert_eq!(test.spool.mirror(&task, None).unwrap(), Mirrored::Busy);
    assert_eq!(places(&test.spool, &task.id), ["completed"]);
    send_all(&test.spool);
    assert_eq!(test.spool.mirror(&Task { rev: 20, ..task.clone() }, None).unwrap(), Mirrored::Written);
    assert_eq!(places(&test.spool, &task.id), ["pending"]);
}

#[test]
fn a_strict_claim_is_tentative_until_it_is_confirmed() {
    let test = test_spool_with(config());
    test.spool.record_bucket_time(bucket(0)).unwrap();
    let task = remote(1);
    test.spool.mirror(&task, None).unwrap();
    let mut held = claim(&test.spool, &task.id, "w").unwrap();
    assert!(held.lease.tentative && !test.spool.lease_status(&held).unwrap().confirmed);
    let (mut there, _) = checked_out(&task, 60_000);
    (there.epoch, there.attempt, there.rev) = (6, 3, 12);
    there.lease_id = Some(held.lease.lease_id.clone());
    assert!(test.spool.confirm(&task.id, &held.lease.lease_id, &there).unwrap());
    assert!(test.spool.lease_status(&held).unwrap().confirmed);
    assert!(test.spool.heartbeat(&mut held).unwrap().confirmed);
    assert_eq!((held.task.epoch, held.task.attempt, held.lease.epoch), (6, 3, 6));
    send_all(&test.spool);
    let done = complete(&test.spool, &held).unwrap();
    assert_eq!((done.epoch, done.attempt, done.status()), (6, 3, Status::Completed));
    let (_, op) = &test.spool.outbox().unwrap()[0];
    assert_eq!((op.epoch, op.base_rev), (6, 12));
}

#[test]
fn a_confirmation_passes_on_a_cancellation() {
    let test = test_spool_with(config());
    let task = remote(1);
    test.spool.mirror(&task, None).unwrap();
    let held = claim(&test.spool, &task.id, "w").unwrap();
    let (mut there, _) = checked_out(&task, 60_000);
    if let State::Running(claim) = &mut there.state {
        claim.cancel_requested = true;
    }
    test.spool.confirm(&task.id, &held.lease.lease_id, &there).unwrap();
    assert!(test.spool.lease_status(&held).unwrap().cancelled);
}

#[test]
fn a_checked_out_task_may_start_at_once_under_the_claim_of_the_bucket() {
    let test = test_spool_with(config());
    test.spool.record_bucket_time(bucket(0)).unwrap();
    let (task, checkout) = checked_out(&remote(1), 3_600_000);
    assert_eq!(test.spool.mirror(&task, Some(checkout.clone())).unwrap(), Mirrored::Written);
    assert_eq!(test.spool.mirror(&task, Some(checkout.clone())).unwrap(), Mirrored::Same);
    let held = claim(&test.spool, &task.id, "w").unwrap();
    assert!(!held.lease.tentative && op_names(&test.spool).is_empty());
    assert_eq!((&held.lease.lease_id, held.lease.epoch), (&checkout.lease_id, 1));
    assert_eq!((held.task.epoch, held.task.attempt), (1, 1));
    // Only the expiry of the claim changes.
    let longer = Checkout { expires_at: at(BUCKET_MS + 7_200_000), ..checkout };
    assert_eq!(
        test.spool.mirror(&Task { rev: 10, ..task }, Some(longer.clone())).unwrap(),
        Mirrored::Written
    );
    assert_eq!(test.spool.local_tasks().unwrap()[0].checkout, Some(longer));
    complete(&test.spool, &held).unwrap();
    assert_eq!(op_names(&test.spool), ["complete"]);
}

#[test]
fn an_expired_or_used_check_out_gives_no_claim() {
    let test = test_spool_with(config());
    test.spool.record_bucket_time(bucket(0)).unwrap();
    let (task, checkout) = checked_out(&remote(1), 60_000);
    test.spool.mirror(&task, Some(checkout.clone())).unwrap();
    let held = claim(&test.spool, &task.id, "w").unwrap();
    test.advance(601);
    let next = claim(&test.spool, &task.id, "next").unwrap();
    assert!(next.lease.tentative && next.lease.lease_id != held.lease.lease_id);
    assert_eq!((next.lease.epoch, op_names(&test.spool)), (2, vec!["claim".to_owned()]));
    test.spool.settle(&next, failure("it broke", true, Some(Duration::ZERO))).unwrap();
    assert_eq!(test.spool.local_tasks().unwrap()[0].checkout, None);
}

#[test]
fn an_unused_check_out_that_has_expired_is_replaced_by_a_new_claim() {
    let test = test_spool_with(config());
    test.spool.record_bucket_time(bucket(0)).unwrap();
    let (task, checkout) = checked_out(&remote(1), 60_000);
    test.spool.mirror(&task, Some(checkout.clone())).unwrap();
    test.advance(61);
    let held = claim(&test.spool, &task.id, "w").unwrap();
    assert!(held.lease.tentative && held.lease.lease_id != checkout.lease_id);
    assert_eq!(held.lease.epoch, 2);
    let (_, op) = test.spool.outbox().unwrap().remove(0);
    let from = Some(checkout.lease_id);
    assert_eq!(op.kind, OpKind::Claim { lease_id: held.lease.lease_id, from, is_unused: true });
}

#[test]
fn a_revoked_check_out_is_gone_too() {
    let test = test_spool_with(config());
    test.spool.record_bucket_time(bucket(0)).unwrap();
    let (task, checkout) = checked_out(&remote(1), 3_600_000);
    test.spool.mirror(&task, Some(checkout.clone())).unwrap();
    claim(&test.spool, &task.id, "w").unwrap();
    assert!(test.spool.revoke(&task.id, &checkout.lease_id, true).unwrap());
    assert!(lease(&test.spool, &task.id).is_none());
    assert!(claim(&test.spool, &task.id, "next").unwrap().lease.tentative);
}

#[test]
fn the_note_of_the_node_is_not_sent_to_the_bucket() {
    let test = test_spool();
    let id = test.spool.submit(order()).unwrap();
    let held = claim(&test.spool, &id, "w").unwrap();
    let copy = test.spool.local_tasks().unwrap().remove(0);
    let there = test.spool.get(&id).unwrap().unwrap();
    let done = complete(&test.spool, &held).unwrap();
    for task in [held.task, copy.task, there, done] {
        assert!(task.unknown.is_empty(), "{:?}", task.unknown);
    }
    let ops = serde_json::to_string(&test.spool.outbox().unwrap()).unwrap();
    assert!(!ops.contains("outpost"), "{ops}");
}

#[test]
fn the_buckets_record_of_an_ended_task_replaces_the_nodes() {
    let test = test_spool();
    let task = remote(1);
    test.spool.mirror(&task, None).unwrap();
    let held = claim(&test.spool, &task.id, "w").unwrap();
    let mut theirs = complete(&test.spool, &held).unwrap();
    let op = test.spool.outbox().unwrap().pop().unwrap().1;
    test.spool.record_conflict(&op, SyncRefusal::FailedByOthers).unwrap();
    theirs.state = State::Failed { finished_at: at(BUCKET_MS) };
    test.spool.replace_final(&theirs).unwrap();
    assert_eq!(places(&test.spool, &task.id), ["failed"]);
    assert_eq!(test.spool.get(&task.id).unwrap().unwrap(), theirs);
    let claim = &held.lease.lease_id.as_str()[..8];
    let kept = test.spool.root().join(format!("conflicts/{}.{}-{claim}.json", task.id, op.name()));
    assert_eq!(crate::support::json_of(&kept)["why"], "failed_by_others");
    // A task that did not end here is not kept.
    test.spool.replace_final(&Task { id: remote(2).id, ..theirs }).unwrap();
    assert!(places(&test.spool, &remote(2).id).is_empty());
}
