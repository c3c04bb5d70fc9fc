//! Sync of nodes with the bucket: copies, recovery of tasks of crashed nodes, request counts.

use futures::{StreamExt, stream};
use leasehold_core::ids::TaskTypes;
use leasehold_core::limits::DISK_LEASE_STALE;
use leasehold_core::outpost::Consistency::{Relaxed, Strict};
use leasehold_core::{Event, HexName, Name, Status};
use leasehold_outpost::SupervisorOptions;
use leasehold_queue::Transition;
use leasehold_store::{Purpose, Verb};
use leasehold_worker::Shutdown;
use serde_json::json;
use std::time::Duration;

use crate::cluster::{TestCluster, minutes, order};

#[tokio::test]
async fn of_five_thousand_tasks_the_ten_free_ones_are_found() {
    let cluster = TestCluster::new(Strict).await;
    let worker = Name::checked("worker id", "others").unwrap();
    let tasks: Vec<_> = stream::iter(0..5_000_u32)
        .map(|_| async { cluster.submit().await })
        .buffer_unordered(32)
        .collect()
        .await;
    for (number, id) in tasks.iter().enumerate().skip(10) {
        let snapshot = cluster.queue.load(Purpose::Admin, id).await.unwrap().unwrap();
        let lease_id = HexName::from_random(number as u128);
        let claim = Event::Claim { worker: worker.clone(), lease_id, lease: Duration::from_hours(10) };
        let updated = cluster.queue.update_if(&snapshot, &claim).await.unwrap();
        assert!(matches!(updated, Transition::Done(_)));
    }
    let mut node = cluster.node("pi-1");
    assert_eq!(node.sync().await.mirrored, 10);
    let found = node.spool.poll(100, &TaskTypes::all()).unwrap();
    assert_eq!(found.len(), 10);
    assert!(found.iter().all(|id| tasks[..10].contains(id)));
}

#[tokio::test]
async fn more_than_a_page_of_pending_tasks_is_copied_a_window_at_a_time() {
    let cluster = TestCluster::new(Strict).await;
    for _ in 0..1_200 {
        cluster.submit().await;
    }
    let mut node = cluster.node("pi-1");
    let window = SupervisorOptions::default().window;
    assert_eq!(node.sync().await.mirrored, window as u64);
    for _ in 0..50 {
        let found = node.spool.poll(window, &TaskTypes::all()).unwrap();
        let held: Vec<_> = found.iter().filter_map(|id| node.claim(id)).collect();
        node.sync().await;
        for held in held {
            assert!(node.spool.lease_status(&held).unwrap().confirmed);
            node.complete(&held, 1);
        }
        node.sync().await;
        if cluster.queue.stats().await.unwrap().due == 0 {
            break;
        }
    }
    node.sync().await;
    assert_eq!(cluster.queue.stats().await.unwrap().due, 0);
}

#[tokio::test]
async fn nothing_is_deleted_from_the_bucket_because_it_is_missing_here() {
    let cluster = TestCluster::new(Relaxed).await;
    let (mut a, mut b) = (cluster.node("a"), cluster.node("b"));
    a.sync().await;
    let id = b.spool.submit(order()).unwrap();
    b.sync().await;
    a.sync().await;
    assert_eq!(cluster.get(&id).await.status(), Status::Pending);
    assert!(a.spool.get(&id).unwrap().is_some(), "and it came here");
    // Its folder is lost.
    std::fs::remove_dir_all(a.spool.root().join("pending")).unwrap();
    a.sync().await;
    assert_eq!(cluster.get(&id).await.status(), Status::Pending);
}

#[tokio::test]
async fn copies_of_tasks_that_other_workers_hold_are_removed() {
    let cluster = TestCluster::new(Strict).await;
    let id = cluster.submit().await;
    let (mut a, mut b) = (cluster.node("a"), cluster.node("b"));
    a.sync().await;
    b.sync().await;
    let held = a.claim(&id).unwrap();
    a.sync().await;
    assert!(a.spool.lease_status(&held).unwrap().confirmed);
    cluster.advance(Duration::from_secs(61));
    assert_eq!(b.sync().await.forgotten, 1);
    assert!(b.spool.get(&id).unwrap().is_none());
}

#[tokio::test]
async fn the_copy_of_a_crashed_process_is_removed_when_another_worker_has_ended_the_task() {
    let cluster = TestCluster::new(Strict).await;
    let id = cluster.submit().await;
    let (mut a, mut b) = (cluster.node("a"), cluster.node("b"));
    a.sync().await;
    a.claim(&id).unwrap();
    a.sync().await;
    cluster.advance(Duration::from_secs(601));
    // No worker here claims it any longer, but its claim in the bucket may still be ours.
    b.sync().await;
    let held = b.claim(&id).unwrap();
    b.sync().await;
    b.complete(&held, 1);
    b.sync().await;
    assert_eq!(cluster.get(&id).await.status(), Status::Completed);
    assert!(a.spool.get(&id).unwrap().is_some());
    assert_eq!(a.sync().await.forgotten, 1);
    assert!(a.spool.get(&id).unwrap().is_none());
}

#[tokio::test]
async fn the_task_of_a_crashed_node_is_run_by_another_node() {
    for consistency in [Strict, Relaxed] {
        let cluster = TestCluster::new(consistency).await;
        let id = cluster.submit().await;
        let mut dead = cluster.node("dead");
        dead.sync().await;
        dead.claim(&id).unwrap();
        dead.sync().await;
        assert_eq!(cluster.get(&id).await.status(), Status::Running);
        drop(dead);
        let mut other = cluster.node("other");
        let (began, mut done) = (cluster.queue.now().unwrap().earliest, false);
        let cycle = SupervisorOptions::default().cycle;
        while !done {
            cluster.advance(Duration::from_secs(20));
            other.sync().await;
            if let Some(held) =
                other.spool.poll(1, &TaskTypes::all()).unwrap().first().and_then(|id| other.claim(id))
            {
                other.sync().await;
                assert!(other.spool.lease_status(&held).unwrap().confirmed);
                other.complete(&held, 1);
                other.sync().await;
                done = true;
            }
            let passed = cluster.queue.now().unwrap().earliest.since(began);
            assert!(passed <= DISK_LEASE_STALE + cycle, "{consistency:?}: {passed:?}");
        }
        let task = cluster.get(&id).await;
        assert_eq!((task.status(), task.epoch), (Status::Completed, 2));
    }
}

#[tokio::test]
async fn a_strict_node_without_the_bucket_starts_only_what_was_checked_out() {
    let cluster = TestCluster::new(Strict).await;
    let (first, second) = (cluster.submit().await, cluster.submit().await);
    let mut node = cluster.node("pi-1");
    let until = cluster.queue.now().unwrap().earliest.plus(minutes(60));
    assert_eq!(node.supervisor.check_out(1, &[], until).await.unwrap(), 1);
    node.sync().await;
    node.cut();
    let mut started = Vec::new();
    for id in [first, second] {
        let held = node.claim(&id).unwrap();
        if node.spool.lease_status(&held).unwrap().confirmed {
            node.complete(&held, 1);
            started.push(id);
        }
    }
    assert_eq!(started.len(), 1);
    cluster.advance(minutes(10));
    node.reconnect();
    node.sync().await;
    assert_eq!(cluster.get(&started[0]).await.status(), Status::Completed);
}

#[tokio::test]
async fn an_idle_hour_makes_few_requests() {
    let cluster = TestCluster::new(Strict).await;
    let node = cluster.node("pi-1");
    let client = node.client.clone();
    let shutdown = Shutdown::default();
    let running = node.supervisor.run(shutdown.clone());
    let hour = async {
        cluster.run_for(Duration::from_hours(1)).await;
        shutdown.drain();
    };
    let (synced, ()) = futures::join!(running, hour);
    synced.unwrap();
    let ledger = client.ledger().snapshot();
    // A get of the bell and a list of leases in every cycle; a list of all once; connecting.
    let (gets, lists) = (ledger.verb(Verb::Get), ledger.verb(Verb::List));
    assert!(gets <= 66 && lists <= 63, "{gets} gets, {lists} lists");
    assert!(ledger.verb(Verb::Put) <= 2, "{} puts", ledger.verb(Verb::Put));
    assert_eq!(ledger.verb(Verb::Delete), 0);
}

#[tokio::test]
async fn clocks_that_are_two_hours_off_neither_steal_nor_lose() {
    let cluster = TestCluster::new(Relaxed).await;
    let id = cluster.submit().await;
    let mut node = cluster.node("pi-1");
    node.sync().await;
    let mut held = node.claim(&id).unwrap();
    for seconds in [7_200, -14_400, 7_200] {
        cluster.host.jump_wall(seconds);
        assert!(node.claim(&id).is_none(), "its holder lives");
        node.spool.heartbeat(&mut held).unwrap();
        node.sync().await;
        assert_eq!(cluster.get(&id).await.status(), Status::Running);
    }
    assert_eq!(cluster.get(&id).await.epoch, 1);
    node.complete(&held, 1);
    node.sync().await;
    assert_eq!(cluster.get(&id).await.output(), Some(&json!(1)));
}

#[tokio::test]
async fn a_missing_folder_is_an_error() {
    let cluster = TestCluster::new(Relaxed).await;
    let mut node = cluster.node("pi-1");
    std::fs::remove_dir_all(node.spool.root()).unwrap();
    let error = node.supervisor.sync().await.unwrap_err();
    assert!(error.to_string().contains("the folder of the outpost is missing"), "{error}");
}
