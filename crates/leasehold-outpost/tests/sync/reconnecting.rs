//! The reconnect table, row by row: real files, a real supervisor, a bucket in memory, a link that is cut and restored.

use leasehold_core::outpost::Consistency::{self, Relaxed, Strict};
use leasehold_core::settlement::Settlement;
use leasehold_core::{Event, HexName, Kind, Name, Status, Task, TaskId};
use leasehold_queue::{QueueLayout, TaskSnapshot, Transition};
use leasehold_store::Purpose;
use serde_json::{Value, json};
use std::time::Duration;

use crate::cluster::{Node, TestCluster, failure, minutes, order};

/// Claims the task as a worker on the bucket.
async fn taken_by_others(cluster: &TestCluster, id: &TaskId) -> TaskSnapshot {
    let snapshot = cluster.queue.load(Purpose::Admin, id).await.unwrap().unwrap();
    let worker = Name::checked("worker id", "others").unwrap();
    let lease_id = HexName::from_random(0xbeef);
    update(cluster, &snapshot, &Event::Claim { worker, lease_id, lease: minutes(30) }).await
}

async fn update(cluster: &TestCluster, snapshot: &TaskSnapshot, event: &Event) -> TaskSnapshot {
    match cluster.queue.update_if(snapshot, event).await.unwrap() {
        Transition::Done(snapshot) | Transition::Superseded(snapshot) => snapshot,
        other => panic!("{event:?}: {other:?}"),
    }
}

async fn completed_by_others(cluster: &TestCluster, id: &TaskId) {
    let snapshot = taken_by_others(cluster, id).await;
    let lease_id = snapshot.task.lease_id.clone().unwrap();
    let output = json!("others");
    update(
        cluster,
        &snapshot,
        &Event::Complete { lease_id, output, results: leasehold_core::Artifacts::new() },
    )
    .await;
}

async fn failed_by_others(cluster: &TestCluster, id: &TaskId) {
    let snapshot = taken_by_others(cluster, id).await;
    let lease_id = snapshot.task.lease_id.clone().unwrap();
    let fail = Event::Fail { lease_id, error: "broken".into(), retryable: false, after: None };
    update(cluster, &snapshot, &fail).await;
}

async fn cancelled(cluster: &TestCluster, id: &TaskId) {
    assert!(cluster.queue.cancel(id).await.unwrap().is_done());
}

/// A node that has a copy of one task, and no link.
async fn disconnected_node(consistency: Consistency) -> (TestCluster, Node, TaskId) {
    let cluster = TestCluster::new(consistency).await;
    let id = cluster.submit().await;
    let mut node = cluster.node("pi-1");
    assert_eq!(node.sync().await.mirrored, 1);
    node.cut();
    assert_eq!(node.supervisor.sync().await.unwrap_err().kind(), Kind::Unavailable);
    (cluster, node, id)
}

fn completions(task: &Task) -> usize {
    task.history.events().filter(|change| change.to == Status::Completed).count()
}

#[tokio::test]
async fn new_tasks_are_created_and_duplicates_and_tombstones_reported() {
    let cluster = TestCluster::new(Relaxed).await;
    let mut node = cluster.node("pi-1");
    node.cut();
    let id = node.spool.submit(order()).unwrap();
    assert_eq!(node.supervisor.sync().await.unwrap_err().kind(), Kind::Unavailable);
    node.reconnect();
    assert_eq!(node.sync().await.sent, 1);
    let task = cluster.get(&id).await;
    assert_eq!((task.status(), &task.input), (Status::Pending, &json!({"picture": 1})));
    assert!(task.unknown.is_empty(), "fields of the node are not sent: {:?}", task.unknown);
    assert!(node.has_nothing_to_send());
    assert_eq!(node.sync().await.sent, 0);
    // An equal key on another node gives the same task.
    let mut other = cluster.node("pi-2");
    let keyed = || leasehold_core::NewTask { idempotency_key: Some("k".into()), ..order() };
    let (first, second) = (node.spool.submit(keyed()).unwrap(), other.spool.submit(keyed()).unwrap());
    assert_eq!(first, second);
    node.sync().await;
    other.sync().await;
    assert_eq!(cluster.get(&first).await.rev, 1, "the bucket's stays");
    assert!(other.has_nothing_to_send());
}

#[tokio::test]
async fn a_check_out_continues_is_claimed_again_or_dropped() {
    let (cluster, mut node, id) = disconnected_node(Strict).await;
    node.reconnect();
    let until = cluster.queue.now().unwrap().earliest.plus(minutes(60));
    assert_eq!(node.supervisor.check_out(10, &[], until).await.unwrap(), 1);
    let epoch = cluster.get(&id).await.epoch;
    assert_eq!(cluster.get(&id).await.status(), Status::Running);
    // Live: no request to the bucket.
    node.cut();
    let held = node.claim(&id).unwrap();
    assert!(!held.lease.tentative);
    node.spool.settle(&held, Settlement::Release).unwrap();
    node.reconnect();
    node.sync().await;
    // Released: any worker may claim it.
    assert_eq!(cluster.get(&id).await.status(), Status::Pending);
    // Expired and still ours: claimed again, with a new epoch.
    let until = cluster.queue.now().unwrap().earliest.plus(minutes(5));
    node.supervisor.check_out(10, &[], until).await.unwrap();
    cluster.advance(minutes(6));
    node.sync().await;
    let again = cluster.get(&id).await;
    assert_eq!(again.status(), Status::Running);
    assert!(again.epoch > epoch + 1);
    assert_eq!(again.attempt, 1, "no worker has started it");
    // Only once: a node that does not start it releases it.
    cluster.advance(minutes(11));
    node.sync().await;
    assert_eq!(cluster.get(&id).await.status(), Status::Pending);
    // Held by another worker: removed.
    let until = cluster.queue.now().unwrap().earliest.plus(minutes(5));
    node.supervisor.check_out(10, &[], until).await.unwrap();
    node.cut();
    cluster.advance(minutes(6));
    let snapshot = cluster.queue.load(Purpose::Admin, &id).await.unwrap().unwrap();
    let worker = Name::checked("worker id", "others").unwrap();
    let lease_id = HexName::from_random(7);
    let (lease, from) = (minutes(30), None);
    update(&cluster, &snapshot, &Event::TakeOver { worker, lease_id, lease, from, is_unused: false }).await;
    node.reconnect();
    node.sync().await;
    assert!(node.spool.get(&id).unwrap().is_none());
    assert_eq!(cluster.get(&id).await.lease_id, Some(HexName::from_random(7)));
}

#[tokio::test]
async fn a_tentative_claim_is_confirmed_or_revoked() {
    let (cluster, mut node, id) = disconnected_node(Strict).await;
    let mut held = node.claim(&id).unwrap();
    assert!(held.lease.tentative);
    assert!(!node.spool.lease_status(&held).unwrap().confirmed);
    node.reconnect();
    assert_eq!(node.sync().await.confirmed, 1);
    assert!(node.spool.heartbeat(&mut held).unwrap().confirmed);
    let task = cluster.get(&id).await;
    assert_eq!((task.status(), task.epoch), (Status::Running, held.lease.epoch));
    node.complete(&held, 1);
    node.sync().await;
    assert_eq!(cluster.get(&id).await.output(), Some(&json!(1)));

    for others in 0..3 {
        let (cluster, mut node, id) = disconnected_node(Strict).await;
        let held = node.claim(&id).unwrap();
        match others {
            0 => drop(taken_by_others(&cluster, &id).await),
            1 => completed_by_others(&cluster, &id).await,
            _ => cancelled(&cluster, &id).await,
        }
        node.reconnect();
        assert_eq!(node.sync().await.refused, 1, "{others}");
        assert_eq!(node.spool.lease_status(&held).unwrap_err().kind(), Kind::Lost);
        assert!(node.has_nothing_to_send());
    }
}

#[tokio::test]
async fn a_running_task_is_claimed_renewed_taken_over_or_stopped() {
    // Pending: claimed. Ours: renewed. A lost answer is recognized by the lease id.
    let (cluster, mut node, id) = disconnected_node(Relaxed).await;
    let mut held = node.claim(&id).unwrap();
    node.reconnect();
    assert_eq!(node.sync().await.confirmed, 1);
    for _ in 0..6 {
        cluster.advance(minutes(5));
        node.spool.heartbeat(&mut held).unwrap();
        node.sync().await;
    }
    let task = cluster.get(&id).await;
    assert_eq!((task.status(), task.epoch, task.attempt), (Status::Running, 1, 1));
    node.complete(&held, 1);
    node.sync().await;
    assert_eq!(completions(&cluster.get(&id).await), 1);

    // Held by another worker: stopped, unless the setting allows it to finish.
    let (cluster, mut node, id) = disconnected_node(Relaxed).await;
    let held = node.claim(&id).unwrap();
    taken_by_others(&cluster, &id).await;
    node.reconnect();
    node.sync().await;
    assert_eq!(node.spool.lease_status(&held).unwrap_err().kind(), Kind::Lost);

    // Held by another worker that has crashed: taken over.
    let (cluster, mut node, id) = disconnected_node(Relaxed).await;
    let mut held = node.claim(&id).unwrap();
    taken_by_others(&cluster, &id).await;
    for _ in 0..4 {
        cluster.advance(minutes(8));
        node.spool.heartbeat(&mut held).unwrap();
    }
    node.reconnect();
    node.sync().await;
    let task = cluster.get(&id).await;
    assert_eq!(
        (task.status(), task.epoch, task.lease_id),
        (Status::Running, 2, Some(held.lease.lease_id.clone()))
    );

    // Completed by another worker: stopped, and counted.
    let (cluster, mut node, id) = disconnected_node(Relaxed).await;
    let held = node.claim(&id).unwrap();
    completed_by_others(&cluster, &id).await;
    node.reconnect();
    assert_eq!(node.sync().await.duplicates, 1);
    assert_eq!(node.spool.lease_status(&held).unwrap_err().kind(), Kind::Lost);
    assert_eq!(node.spool.count().unwrap().duplicates, 1);

    // Failed or cancelled: stopped.
    for is_failed in [true, false] {
        let (cluster, mut node, id) = disconnected_node(Relaxed).await;
        let held = node.claim(&id).unwrap();
        if is_failed {
            failed_by_others(&cluster, &id).await;
        } else {
            cancelled(&cluster, &id).await;
        }
        node.reconnect();
        node.sync().await;
        assert_eq!(node.spool.lease_status(&held).unwrap_err().kind(), Kind::Lost);
    }
}

#[tokio::test]
async fn a_completion_is_recorded_once_and_never_discarded() {
    for consistency in [Strict, Relaxed] {
        for case in ["pending", "others", "completed", "failed", "cancelled"] {
            let (cluster, mut node, id) = match consistency {
                Relaxed => disconnected_node(Relaxed).await,
                Strict => {
                    // The check-out has expired.
                    let (cluster, mut node, id) = disconnected_node(Strict).await;
                    node.reconnect();
                    let until = cluster.queue.now().unwrap().earliest.plus(minutes(5));
                    node.supervisor.check_out(1, &[], until).await.unwrap();
                    node.cut();
                    (cluster, node, id)
                }
            };
            let held = node.claim(&id).unwrap();
            if consistency == Strict {
                cluster.advance(minutes(6));
                let snapshot = cluster.queue.load(Purpose::Admin, &id).await.unwrap().unwrap();
                update(&cluster, &snapshot, &Event::TimeOut).await;
                cluster.advance(minutes(5));
            }
            match case {
                "others" => drop(taken_by_others(&cluster, &id).await),
                "completed" => completed_by_others(&cluster, &id).await,
                "failed" => failed_by_others(&cluster, &id).await,
                "cancelled" => cancelled(&cluster, &id).await,
                _ => {}
            }
            node.complete(&held, 42);
            node.reconnect();
            node.sync().await;
            let task = cluster.get(&id).await;
            let is_ours = match case {
                "pending" => true,
                "others" | "failed" => consistency == Relaxed,
                _ => false,
            };
            let case_text = format!("{consistency:?} {case}: {task:?}");
            assert_eq!(task.output() == Some(&json!(42)), is_ours, "{case_text}");
            assert_eq!(node.conflicts(), usize::from(!is_ours), "{case_text}");
            assert!(completions(&task) <= 1, "{case_text}");
            if is_ours {
                assert_eq!(task.history.events().last().unwrap().event, "completed_offline", "{case_text}");
            }
            assert!(node.has_nothing_to_send(), "{case_text}");
            // Sent again, as after a lost answer, it changes nothing.
            node.sync().await;
            assert_eq!(cluster.get(&id).await.rev, task.rev);
        }
    }
}

#[tokio::test]
async fn a_failed_attempt_counts_unless_another_worker_has_claimed_it() {
    let (cluster, mut node, id) = disconnected_node(Relaxed).await;
    let held = node.claim(&id).unwrap();
    node.spool.settle(&held, failure("no film", true, None)).unwrap();
    node.reconnect();
    node.sync().await;
    let task = cluster.get(&id).await;
    assert_eq!((task.status(), task.attempt, task.error.as_deref()), (Status::Pending, 1, Some("no film")));

    let (cluster, mut node, id) = disconnected_node(Relaxed).await;
    let held = node.claim(&id).unwrap();
    node.spool.settle(&held, failure("no film", true, None)).unwrap();
    let others = taken_by_others(&cluster, &id).await;
    node.reconnect();
    node.sync().await;
    assert_eq!(cluster.get(&id).await, others.task);
    assert!(node.has_nothing_to_send());
}

#[tokio::test]
async fn a_released_or_snoozed_task_is_released_in_the_bucket() {
    let (cluster, mut node, id) = disconnected_node(Relaxed).await;
    let held = node.claim(&id).unwrap();
    node.reconnect();
    node.sync().await;
    node.cut();
    let until = node.spool.now().present().latest_known().plus(minutes(30));
    node.spool.settle(&held, Settlement::Snooze(minutes(30))).unwrap();
    node.reconnect();
    node.sync().await;
    let task = cluster.get(&id).await;
    assert_eq!((task.status(), task.attempt), (Status::Pending, 0));
    assert_eq!(task.state, leasehold_core::State::Pending { available_at: until });
}

#[tokio::test]
async fn a_requeue_makes_another_generation_unless_another_client_was_faster() {
    for case in ["failed", "retried", "completed"] {
        let (cluster, mut node, id) = disconnected_node(Relaxed).await;
        let held = node.claim(&id).unwrap();
        node.spool.settle(&held, failure("broken", false, None)).unwrap();
        node.reconnect();
        node.sync().await;
        assert_eq!(cluster.get(&id).await.status(), Status::Failed);
        node.cut();
        assert_eq!(node.spool.requeue(&id).unwrap().generation, 1);
        if case != "failed" {
            cluster.queue.retry(&id).await.unwrap();
        }
        if case == "completed" {
            completed_by_others(&cluster, &id).await;
        }
        node.reconnect();
        node.sync().await;
        let task = cluster.get(&id).await;
        assert_eq!(task.generation, 1, "{case}");
        assert_eq!(task.status() == Status::Pending, case != "completed", "{case}");
        assert!(node.has_nothing_to_send());
        if case == "failed" {
            // In the new generation there is one more completion.
            let held = node.claim(&id).unwrap();
            node.complete(&held, 2);
            node.sync().await;
            assert_eq!(completions(&cluster.get(&id).await), 1);
        }
    }
}

#[tokio::test]
async fn a_cancel_is_applied_in_the_bucket_where_it_still_applies() {
    let (cluster, mut node, id) = disconnected_node(Relaxed).await;
    node.spool.cancel(&id).unwrap();
    node.reconnect();
    node.sync().await;
    assert_eq!(cluster.get(&id).await.status(), Status::Cancelled);

    let (cluster, mut node, id) = disconnected_node(Relaxed).await;
    taken_by_others(&cluster, &id).await;
    node.spool.cancel(&id).unwrap();
    node.reconnect();
    node.sync().await;
    let task = cluster.get(&id).await;
    let leasehold_core::State::Running(claim) = &task.state else { panic!("{task:?}") };
    assert!(claim.cancel_requested);

    let (cluster, mut node, id) = disconnected_node(Relaxed).await;
    completed_by_others(&cluster, &id).await;
    node.spool.cancel(&id).unwrap();
    node.reconnect();
    node.sync().await;
    assert_eq!(cluster.get(&id).await.output(), Some(&Value::from("others")));
    assert!(node.has_nothing_to_send());
}

#[tokio::test]
async fn a_cancel_from_another_client_reaches_the_worker_that_runs_the_task() {
    let (cluster, mut node, id) = disconnected_node(Relaxed).await;
    let mut held = node.claim(&id).unwrap();
    node.reconnect();
    node.sync().await;
    cancelled(&cluster, &id).await;
    cluster.advance(minutes(5));
    node.spool.heartbeat(&mut held).unwrap();
    node.sync().await;
    assert!(node.spool.lease_status(&held).unwrap().cancelled);
    node.spool.settle(&held, Settlement::Stop).unwrap();
    node.sync().await;
    assert_eq!(cluster.get(&id).await.status(), Status::Cancelled);
    assert_eq!(node.spool.get(&id).unwrap().unwrap().status(), Status::Cancelled);
}

#[tokio::test]
async fn a_task_that_was_submitted_before_the_first_connection_gets_the_buckets_time() {
    let cluster = TestCluster::new(Relaxed).await;
    let mut node = cluster.node("pi-1");
    node.cut();
    let delayed =
        leasehold_core::NewTask { start: leasehold_core::new_task::Start::After(minutes(90)), ..order() };
    let (now, later) = (node.spool.submit(order()).unwrap(), node.spool.submit(delayed).unwrap());
    let created_at = node.spool.get(&now).unwrap().unwrap().created_at;
    assert!(cluster.queue.now().unwrap().earliest.since(created_at) > minutes(600), "in a time of its own");
    node.reconnect();
    node.sync().await;
    let sent_at = cluster.queue.now().unwrap().earliest;
    let [first, second] = [cluster.get(&now).await, cluster.get(&later).await];
    assert_eq!((first.created_at, first.history.events().next().unwrap().at), (sent_at, sent_at));
    assert_eq!(second.state, leasehold_core::State::Pending { available_at: sent_at.plus(minutes(90)) });
}

#[tokio::test]
async fn a_check_out_whose_process_has_crashed_is_released() {
    let (cluster, mut node, id) = disconnected_node(Strict).await;
    node.reconnect();
    // The operations before it records that it holds the task.
    let op = leasehold_core::outpost::Op {
        task: id,
        generation: 0,
        epoch: 1,
        base_rev: 1,
        at: cluster.queue.now().unwrap().earliest,
        clock: leasehold_core::outpost::ClockSource::Bucket,
        kind: leasehold_core::outpost::OpKind::Claim {
            lease_id: HexName::from_random(5),
            from: None,
            is_unused: false,
        },
    };
    node.spool.append(&op).unwrap();
    let snapshot = cluster.queue.load(Purpose::Admin, &id).await.unwrap().unwrap();
    let worker = Name::checked("worker id", "pi-1").unwrap();
    let claim = Event::Claim { worker, lease_id: HexName::from_random(5), lease: minutes(600) };
    update(&cluster, &snapshot, &claim).await;
    node.sync().await;
    assert_eq!(cluster.get(&id).await.status(), Status::Pending);
    assert!(node.has_nothing_to_send());
}

#[tokio::test]
async fn the_next_supervisor_recovers_from_a_crash_between_two_writes() {
    // The claim is in the bucket, and the node has not received the answer.
    let (cluster, mut node, id) = disconnected_node(Strict).await;
    let held = node.claim(&id).unwrap();
    node.reconnect();
    let ops = node.spool.outbox().unwrap();
    node.sync().await;
    // As if its end had not been recorded: the operation is there again.
    for (_, op) in ops {
        node.spool.append(&op).unwrap();
    }
    node.sync().await;
    assert!(node.spool.lease_status(&held).unwrap().confirmed);
    let task = cluster.get(&id).await;
    assert_eq!((task.status(), task.epoch), (Status::Running, 1));
    cluster.advance(Duration::from_secs(1));
}

#[tokio::test]
async fn a_retry_that_the_bucket_has_refused_does_not_count() {
    let (cluster, mut node, id) = disconnected_node(Relaxed).await;
    node.spool.cancel(&id).unwrap();
    taken_by_others(&cluster, &id).await;
    assert_eq!(node.spool.requeue(&id).unwrap().generation, 1);
    let held = node.claim(&id).unwrap();
    node.complete(&held, 7);
    node.reconnect();
    node.sync().await;
    let task = cluster.get(&id).await;
    assert_eq!((task.status(), task.generation), (Status::Running, 0));
    assert_eq!(node.conflicts(), 1);
    assert!(node.has_nothing_to_send());
}

#[tokio::test]
async fn the_bucket_keeps_the_attempt_limit_of_a_handler() {
    for is_claimed_before in [true, false] {
        let (cluster, mut node, id) = disconnected_node(Relaxed).await;
        let held = node.claim(&id).unwrap();
        if is_claimed_before {
            node.reconnect();
            node.sync().await;
            assert_eq!(cluster.get(&id).await.status(), Status::Running);
            node.cut();
        }
        let failed = node
            .spool
            .settle(&held, Settlement::Exhaust { error: "no more".into(), max_attempts: 1 })
            .unwrap();
        assert_eq!((failed.attempt, failed.max_attempts), (1, 1));
        node.reconnect();
        node.sync().await;
        let task = cluster.get(&id).await;
        assert_eq!((task.status(), task.attempt, task.max_attempts), (Status::Failed, 1, 1));
    }
}
