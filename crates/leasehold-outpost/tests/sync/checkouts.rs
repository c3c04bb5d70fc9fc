//! Check-outs: claims that were made in the bucket in advance, with crashes between two writes, and two workers that claim
//! one task in the same moment.

use leasehold_core::outpost::Consistency::{Relaxed, Strict};
use leasehold_core::settlement::Settlement;
use leasehold_core::{Event, HexName, NewTask, Status};
use leasehold_queue::QueueLayout;
use serde_json::json;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::cluster::{TestCluster, minutes, order};
use crate::edges::{check_out, claim_of, note_claim, one_task, take, write};

#[tokio::test]
async fn a_check_out_is_kept_when_the_supervisor_crashes_before_it_records_the_end() {
    let (cluster, mut node, id) = one_task(Strict).await;
    assert_eq!(check_out(&cluster, &mut node, minutes(600)).await, 1);
    let task = cluster.get(&id).await;
    note_claim(&node, &task, task.epoch, task.lease_id.clone().unwrap());
    node.sync().await;
    assert_eq!(cluster.get(&id).await.status(), Status::Running);
    node.cut();
    let held = node.claim(&id).unwrap();
    assert!(!held.lease.tentative);
    node.complete(&held, 7);
    node.reconnect();
    node.sync().await;
    assert_eq!(cluster.get(&id).await.output(), Some(&json!(7)));
}

#[tokio::test]
async fn a_result_counts_although_the_bucket_says_that_its_claim_was_released() {
    for consistency in [Strict, Relaxed] {
        let (cluster, mut node, id) = one_task(consistency).await;
        assert_eq!(check_out(&cluster, &mut node, minutes(600)).await, 1);
        let held = node.claim(&id).unwrap();
        write(&cluster, &id, Event::Release { lease_id: held.lease.lease_id.clone() }).await;
        node.complete(&held, 7);
        node.sync().await;
        assert_eq!(cluster.get(&id).await.output(), Some(&json!(7)), "{consistency:?}");
    }
}

#[tokio::test]
async fn a_check_out_of_a_task_that_was_claimed_here_meanwhile_is_released() {
    let (cluster, mut node, id) = one_task(Strict).await;
    let (spool, taken) = (node.spool.clone(), Arc::new(Mutex::new(None)));
    let out = taken.clone();
    node.link.on_list(move || *out.lock().unwrap() = take(&spool, &id));
    assert_eq!(check_out(&cluster, &mut node, minutes(600)).await, 0);
    let held = taken.lock().unwrap().take().unwrap();
    assert_eq!(cluster.get(&id).await.status(), Status::Pending);
    node.sync().await;
    assert!(node.spool.lease_status(&held).unwrap().confirmed);
    assert_eq!(cluster.get(&id).await.lease_id, Some(held.lease.lease_id));
}

#[tokio::test]
async fn a_check_out_ends_when_its_worker_has_crashed_and_the_next_one_releases_it() {
    let (cluster, mut node, id) = one_task(Strict).await;
    assert_eq!(check_out(&cluster, &mut node, minutes(600)).await, 1);
    node.cut();
    node.claim(&id).unwrap();
    cluster.advance(minutes(11));
    let second = node.claim(&id).unwrap();
    assert!(second.lease.tentative);
    node.spool.settle(&second, Settlement::Release).unwrap();
    node.reconnect();
    node.sync().await;
    assert_eq!(cluster.get(&id).await.status(), Status::Pending);
}

#[tokio::test]
async fn a_relaxed_check_out_whose_answer_was_lost_is_released() {
    let (cluster, mut node, id) = one_task(Relaxed).await;
    let lease_id = HexName::from_random(5);
    note_claim(&node, &cluster.get(&id).await, 1, lease_id.clone());
    write(&cluster, &id, claim_of("pi-1", lease_id, minutes(600))).await;
    node.sync().await;
    assert_eq!(cluster.get(&id).await.status(), Status::Pending);
}

#[tokio::test]
async fn an_unused_check_out_is_no_attempt() {
    let cluster = TestCluster::new(Strict).await;
    let id = cluster.queue.submit_task(NewTask { max_attempts: Some(1), ..order() }).await.unwrap().id;
    let mut node = cluster.node("pi-1");
    assert_eq!(check_out(&cluster, &mut node, minutes(5)).await, 1);
    for status in [Status::Running, Status::Pending, Status::Pending] {
        cluster.advance(minutes(11));
        // Also after a restart of the supervisor.
        node = cluster.node("pi-1");
        node.sync().await;
        let task = cluster.get(&id).await;
        let attempts = u32::from(status == Status::Running);
        assert_eq!((task.status(), task.attempt), (status, attempts), "{:?}", task.error);
    }
}

#[tokio::test]
async fn a_check_out_that_is_claimed_while_it_expires_stays() {
    let cluster = TestCluster::new(Strict).await;
    let mut ids = [cluster.submit().await, cluster.submit().await];
    ids.sort_by_key(ToString::to_string);
    let mut node = cluster.node("pi-1");
    assert_eq!(check_out(&cluster, &mut node, minutes(15)).await, 2);
    node.claim(&ids[0]).unwrap();
    cluster.advance(Duration::from_secs(295));
    // The cycle begins with a scan of the files. While the first of the two is renewed, a worker claims the second, and time
    // passes until the check-out has expired.
    let (spool, host, second) = (node.spool.clone(), cluster.host.clone(), ids[1]);
    let taken = Arc::new(Mutex::new(None));
    let out = taken.clone();
    node.link.on_put(move || {
        *out.lock().unwrap() = take(&spool, &second);
        host.advance(minutes(11));
    });
    node.sync().await;
    let held = taken.lock().unwrap().take().expect("it was renewed, and the other one taken");
    assert!(!held.lease.tentative);
    node.complete(&held, 7);
    node.sync().await;
    assert_eq!(cluster.get(&second).await.output(), Some(&json!(7)));
}

#[tokio::test]
async fn cancelling_a_checked_out_task_ends_its_claim_too() {
    // It is free, or held by a worker that has crashed.
    for is_taken in [false, true] {
        let (cluster, mut node, id) = one_task(Strict).await;
        assert_eq!(check_out(&cluster, &mut node, minutes(600)).await, 1);
        if is_taken {
            node.claim(&id).unwrap();
            cluster.advance(minutes(11));
        }
        node.spool.cancel(&id).unwrap();
        node.sync().await;
        assert_eq!(cluster.get(&id).await.status(), Status::Cancelled);
    }
}

#[tokio::test]
async fn a_task_that_was_cancelled_before_its_holder_crashed_ends_with_the_next_claim() {
    let (cluster, mut node, id) = one_task(Strict).await;
    assert_eq!(check_out(&cluster, &mut node, minutes(600)).await, 1);
    node.claim(&id).unwrap();
    node.spool.cancel(&id).unwrap();
    node.sync().await;
    cluster.advance(minutes(11));
    assert!(node.claim(&id).is_none());
    node.sync().await;
    assert_eq!(cluster.get(&id).await.status(), Status::Cancelled);
}

#[tokio::test]
async fn a_task_that_is_cancelled_in_the_bucket_ends_although_its_claim_lasts_for_hours() {
    let (cluster, mut node, id) = one_task(Relaxed).await;
    assert_eq!(check_out(&cluster, &mut node, minutes(600)).await, 1);
    node.claim(&id).unwrap();
    node.cut();
    cluster.queue.cancel(&id).await.unwrap();
    cluster.advance(minutes(11));
    let second = node.claim(&id).unwrap();
    node.reconnect();
    node.sync().await;
    assert_eq!(cluster.get(&id).await.status(), Status::Cancelled);
    assert!(node.spool.lease_status(&second).is_err(), "its process has to stop");
}

#[tokio::test]
async fn a_worker_of_a_checked_out_task_learns_that_it_was_cancelled() {
    let (cluster, mut node, id) = one_task(Strict).await;
    assert_eq!(check_out(&cluster, &mut node, minutes(600)).await, 1);
    let mut held = node.claim(&id).unwrap();
    cluster.queue.cancel(&id).await.unwrap();
    for _ in 0..5 {
        cluster.advance(minutes(1));
        node.spool.heartbeat(&mut held).unwrap();
        node.sync().await;
    }
    assert!(node.spool.heartbeat(&mut held).unwrap().cancelled);
}

#[tokio::test]
async fn a_check_out_of_unknown_expiry_is_no_attempt() {
    let cluster = TestCluster::new(Strict).await;
    let id = cluster.queue.submit_task(NewTask { max_attempts: Some(1), ..order() }).await.unwrap().id;
    let mut node = cluster.node("pi-1");
    assert_eq!(check_out(&cluster, &mut node, minutes(600)).await, 1);
    node.cut();
    // The machine was rebooted, and does not know the bucket's time.
    let rebooted = node.spool.clone().with_boot_id("another");
    let held = take(&rebooted, &id).unwrap();
    assert!(held.lease.tentative);
    rebooted.settle(&held, Settlement::Release).unwrap();
    node.reconnect();
    node.sync().await;
    let task = cluster.get(&id).await;
    assert_eq!((task.status(), task.attempt), (Status::Pending, 0), "{:?}", task.error);
}
