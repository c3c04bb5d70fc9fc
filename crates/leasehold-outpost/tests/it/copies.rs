//! Copies of the bucket's tasks, and files that the supervisor must not touch.

use leasehold_core::task::Claim;
use leasehold_core::{HexName, State, Status, Task};
use leasehold_outpost::{Checkout, Mirrored};
use std::time::Duration;

use crate::support::{
    BUCKET_MS, at, bucket, claim, complete, config, lease, op_names, order, places, remote, send_all,
    snapshot, stand, stand_with, worker,
};
use leasehold_core::outpost::{OpKind, Why};

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
fn a_copy_is_written_once_and_forgotten_when_it_is_free() {
    let stand = stand();
    let task = remote(1);
    assert_eq!(stand.spool.mirror(&task, None).unwrap(), Mirrored::Written);
    assert_eq!(stand.spool.mirror(&task, None).unwrap(), Mirrored::Same);
    let copy = &stand.spool.waiting().unwrap()[0];
    assert_eq!((&copy.task, copy.base_rev, &copy.lease), (&task, 4, &None));
    let newer = Task { rev: 5, ..task.clone() };
    assert_eq!(stand.spool.mirror(&newer, None).unwrap(), Mirrored::Written);
    assert_eq!(stand.spool.waiting().unwrap()[0].base_rev, 5);
    assert!(op_names(&stand.spool).is_empty());
    assert!(stand.spool.forget(&task.id).unwrap());
    assert!(!stand.spool.forget(&task.id).unwrap());
    assert!(places(&stand.spool, &task.id).is_empty());
}

#[test]
fn a_held_task_is_not_touched() {
    let stand = stand();
    let task = remote(1);
    stand.spool.mirror(&task, None).unwrap();
    let held = claim(&stand.spool, &task.id, "w").unwrap();
    for is_sent in [false, true] {
        if is_sent {
            send_all(&stand.spool);
        }
        let before = snapshot(stand.spool.root());
        let newer = Task { rev: 9, ..task.clone() };
        assert_eq!(stand.spool.mirror(&newer, None).unwrap(), Mirrored::Busy);
        let (ours, other) = checked_out(&task, 60_000);
        assert_eq!(stand.spool.mirror(&ours, Some(other)).unwrap(), Mirrored::Busy);
        assert!(!stand.spool.forget(&task.id).unwrap());
        let stranger = HexName::from_random(5);
        assert!(!stand.spool.confirm(&task.id, &stranger, &newer).unwrap());
        assert!(!stand.spool.revoke(&task.id, &stranger, false).unwrap());
        assert_eq!(snapshot(stand.spool.root()), before);
    }
    complete(&stand.spool, &held).unwrap();
}

#[test]
fn a_task_with_unsent_operations_is_not_removed() {
    let stand = stand();
    let new = stand.spool.submit(order()).unwrap();
    assert!(!stand.spool.forget(&new).unwrap(), "in the outbox");
    send_all(&stand.spool);
    assert!(stand.spool.forget(&new).unwrap(), "the bucket has it");
    let task = remote(1);
    stand.spool.mirror(&task, None).unwrap();
    let held = claim(&stand.spool, &task.id, "w").unwrap();
    stand.spool.release(&held, None).unwrap();
    let before = snapshot(stand.spool.root());
    assert!(!stand.spool.forget(&task.id).unwrap(), "in the outbox");
    assert_eq!(stand.spool.mirror(&Task { rev: 9, ..task.clone() }, None).unwrap(), Mirrored::Busy);
    assert_eq!(snapshot(stand.spool.root()), before);
    send_all(&stand.spool);
    assert_eq!(stand.spool.mirror(&Task { rev: 9, ..task.clone() }, None).unwrap(), Mirrored::Written);
    assert!(stand.spool.forget(&task.id).unwrap());
}

#[test]
fn operations_sent_by_another_process_do_not_block() {
    let stand = stand();
    let task = remote(1);
    stand.spool.mirror(&task, None).unwrap();
    let held = claim(&stand.spool, &task.id, "w").unwrap();
    stand.spool.release(&held, None).unwrap();
    assert_eq!(stand.spool.mirror(&task, None).unwrap(), Mirrored::Busy);
    let counts = stand.spool.count().unwrap();
    assert_eq!((counts.free, counts.leased, counts.outbox), (1, 0, 2));
    send_all(&stand.other());
    assert_eq!(stand.spool.mirror(&task, None).unwrap(), Mirrored::Written);
}

#[test]
fn a_task_that_has_ended_here_is_not_mirrored_before_its_end_is_sent() {
    let stand = stand();
    let task = remote(1);
    stand.spool.mirror(&task, None).unwrap();
    let held = claim(&stand.spool, &task.id, "w").unwrap();
    complete(&stand.spool, &held).unwrap();
    assert_eq!(stand.spool.mirror(&task, None).unwrap(), Mirrored::Busy);
    assert_eq!(places(&stand.spool, &task.id), ["completed"]);
    send_all(&stand.spool);
    assert_eq!(stand.spool.mirror(&Task { rev: 20, ..task.clone() }, None).unwrap(), Mirrored::Written);
    assert_eq!(places(&stand.spool, &task.id), ["pending"]);
}

#[test]
fn a_strict_claim_is_tentative_until_it_is_confirmed() {
    let stand = stand_with(config());
    stand.spool.learn_time(bucket(0)).unwrap();
    let task = remote(1);
    stand.spool.mirror(&task, None).unwrap();
    let mut held = claim(&stand.spool, &task.id, "w").unwrap();
    assert!(held.lease.tentative && !stand.spool.standing(&held).unwrap().confirmed);
    let (mut there, _) = checked_out(&task, 60_000);
    (there.epoch, there.attempt, there.rev) = (6, 3, 12);
    there.lease_id = Some(held.lease.lease_id.clone());
    assert!(stand.spool.confirm(&task.id, &held.lease.lease_id, &there).unwrap());
    assert!(stand.spool.standing(&held).unwrap().confirmed);
    assert!(stand.spool.heartbeat(&mut held).unwrap().confirmed);
    assert_eq!((held.task.epoch, held.task.attempt, held.lease.epoch), (6, 3, 6));
    send_all(&stand.spool);
    let done = complete(&stand.spool, &held).unwrap();
    assert_eq!((done.epoch, done.attempt, done.status()), (6, 3, Status::Completed));
    let (_, op) = &stand.spool.outbox().unwrap()[0];
    assert_eq!((op.epoch, op.base_rev), (6, 12));
}

#[test]
fn a_confirmation_passes_on_a_cancellation() {
    let stand = stand_with(config());
    let task = remote(1);
    stand.spool.mirror(&task, None).unwrap();
    let held = claim(&stand.spool, &task.id, "w").unwrap();
    let (mut there, _) = checked_out(&task, 60_000);
    if let State::Running(claim) = &mut there.state {
        claim.cancel_requested = true;
    }
    stand.spool.confirm(&task.id, &held.lease.lease_id, &there).unwrap();
    assert!(stand.spool.standing(&held).unwrap().cancelled);
}

#[test]
fn a_checked_out_task_may_start_at_once_under_the_claim_of_the_bucket() {
    let stand = stand_with(config());
    stand.spool.learn_time(bucket(0)).unwrap();
    let (task, checkout) = checked_out(&remote(1), 3_600_000);
    assert_eq!(stand.spool.mirror(&task, Some(checkout.clone())).unwrap(), Mirrored::Written);
    assert_eq!(stand.spool.mirror(&task, Some(checkout.clone())).unwrap(), Mirrored::Same);
    let held = claim(&stand.spool, &task.id, "w").unwrap();
    assert!(!held.lease.tentative && op_names(&stand.spool).is_empty());
    assert_eq!((&held.lease.lease_id, held.lease.epoch), (&checkout.lease_id, 1));
    assert_eq!((held.task.epoch, held.task.attempt), (1, 1));
    // Only the expiry of the claim changes.
    let longer = Checkout { expires_at: at(BUCKET_MS + 7_200_000), ..checkout };
    assert_eq!(
        stand.spool.mirror(&Task { rev: 10, ..task }, Some(longer.clone())).unwrap(),
        Mirrored::Written
    );
    assert_eq!(stand.spool.waiting().unwrap()[0].checkout, Some(longer));
    complete(&stand.spool, &held).unwrap();
    assert_eq!(op_names(&stand.spool), ["complete"]);
}

#[test]
fn an_expired_or_used_check_out_gives_no_claim() {
    let stand = stand_with(config());
    stand.spool.learn_time(bucket(0)).unwrap();
    let (task, checkout) = checked_out(&remote(1), 60_000);
    stand.spool.mirror(&task, Some(checkout.clone())).unwrap();
    let held = claim(&stand.spool, &task.id, "w").unwrap();
    stand.advance(601);
    let next = claim(&stand.spool, &task.id, "next").unwrap();
    assert!(next.lease.tentative && next.lease.lease_id != held.lease.lease_id);
    assert_eq!((next.lease.epoch, op_names(&stand.spool)), (2, vec!["claim".to_owned()]));
    stand.spool.fail(&next, "it broke", true, Some(Duration::ZERO)).unwrap();
    assert_eq!(stand.spool.waiting().unwrap()[0].checkout, None);
}

#[test]
fn an_unused_check_out_that_has_expired_is_replaced_by_a_new_claim() {
    let stand = stand_with(config());
    stand.spool.learn_time(bucket(0)).unwrap();
    let (task, checkout) = checked_out(&remote(1), 60_000);
    stand.spool.mirror(&task, Some(checkout.clone())).unwrap();
    stand.advance(61);
    let held = claim(&stand.spool, &task.id, "w").unwrap();
    assert!(held.lease.tentative && held.lease.lease_id != checkout.lease_id);
    assert_eq!(held.lease.epoch, 2);
    let (_, op) = stand.spool.outbox().unwrap().remove(0);
    let from = Some(checkout.lease_id);
    assert_eq!(op.deed, OpKind::Claim { lease_id: held.lease.lease_id, from, is_unused: true });
}

#[test]
fn a_revoked_check_out_is_gone_too() {
    let stand = stand_with(config());
    stand.spool.learn_time(bucket(0)).unwrap();
    let (task, checkout) = checked_out(&remote(1), 3_600_000);
    stand.spool.mirror(&task, Some(checkout.clone())).unwrap();
    claim(&stand.spool, &task.id, "w").unwrap();
    assert!(stand.spool.revoke(&task.id, &checkout.lease_id, true).unwrap());
    assert!(lease(&stand.spool, &task.id).is_none());
    assert!(claim(&stand.spool, &task.id, "next").unwrap().lease.tentative);
}

#[test]
fn nothing_of_the_node_is_in_what_goes_to_the_bucket() {
    let stand = stand();
    let id = stand.spool.submit(order()).unwrap();
    let held = claim(&stand.spool, &id, "w").unwrap();
    let copy = stand.spool.waiting().unwrap().remove(0);
    let there = stand.spool.get(&id).unwrap().unwrap().task;
    let done = complete(&stand.spool, &held).unwrap();
    for task in [held.task, copy.task, there, done] {
        assert!(task.unknown.is_empty(), "{:?}", task.unknown);
    }
    let ops = serde_json::to_string(&stand.spool.outbox().unwrap()).unwrap();
    assert!(!ops.contains("outpost"), "{ops}");
}

#[test]
fn the_buckets_record_of_an_ended_task_replaces_the_nodes() {
    let stand = stand();
    let task = remote(1);
    stand.spool.mirror(&task, None).unwrap();
    let held = claim(&stand.spool, &task.id, "w").unwrap();
    let mut theirs = complete(&stand.spool, &held).unwrap();
    let op = stand.spool.outbox().unwrap().pop().unwrap().1;
    stand.spool.conflict(&op, Why::FailedByOthers).unwrap();
    theirs.state = State::Failed { finished_at: at(BUCKET_MS) };
    stand.spool.replace_final(&theirs).unwrap();
    assert_eq!(places(&stand.spool, &task.id), ["failed"]);
    assert_eq!(stand.spool.get(&task.id).unwrap().unwrap().task, theirs);
    let claim = &held.lease.lease_id.as_str()[..8];
    let kept = stand.spool.root().join(format!("conflicts/{}.{}-{claim}.json", task.id, op.name()));
    assert_eq!(crate::support::json_of(&kept)["why"], "failed_by_others");
    // A task that did not end here is not kept.
    stand.spool.replace_final(&Task { id: remote(2).id, ..theirs }).unwrap();
    assert!(places(&stand.spool, &remote(2).id).is_empty());
}
