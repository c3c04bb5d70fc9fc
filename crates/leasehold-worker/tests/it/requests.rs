//! Requests of many tasks, and tasks in the shards of other workers.

use leasehold_core::Status;
use leasehold_store::{Purpose, Verb};
use leasehold_worker::{ShardLeasing, Shutdown, TaskError, Worker, WorkerOptions};
use serde_json::json;
use std::time::{Duration, Instant};

use crate::{options, queue, submit};

#[tokio::test(flavor = "multi_thread")]
async fn two_thousand_tasks_cost_the_documented_requests() {
    const TASKS: u64 = 2_000;
    let queue = queue().await;
    let (before, began) = (queue.client().ledger().snapshot(), Instant::now());
    for _ in 0..TASKS {
        submit(&queue, "noop", json!(null)).await;
    }
    let submitted = queue.client().ledger().snapshot();
    let spent = submitted.since(&before);
    // The bell is rung at most once a second.
    let rings = spent.verb(Verb::Put) - 2 * TASKS;
    assert!(1 <= rings && rings <= 1 + began.elapsed().as_secs(), "{rings} rings");
    assert_eq!(spent.requests(), 2 * TASKS + rings);
    let worker = Worker::new(queue.clone(), "w1", None).unwrap();
    let worker = worker.handle("noop", |_, (): ()| async { Ok::<_, TaskError>(()) }).unwrap();
    let worker = worker.options(WorkerOptions { concurrency: 64, ..options() });
    let counts = worker.run(Shutdown::default()).await.unwrap();
    assert_eq!(counts.completed, TASKS);
    let spent = queue.client().ledger().snapshot().since(&submitted);
    let count = |verb, purpose| spent.count(|line| line.verb == verb && line.purpose == purpose);
    assert_eq!(count(Verb::Put, Purpose::Claim) + count(Verb::Put, Purpose::Settle), 3 * TASKS);
    assert_eq!(count(Verb::Get, Purpose::Claim), TASKS);
    let (polls, leases) = (count(Verb::Get, Purpose::Discover), count(Verb::Get, Purpose::Lease));
    assert_eq!(spent.verb(Verb::Get), TASKS + polls + leases);
    assert!(polls <= 10 && leases <= 2, "{polls} reads of the bell, {leases} of the recovery lease");
    assert!(spent.verb(Verb::Put) <= 3 * TASKS + 4, "the recovery lease is taken, renewed and released");
    assert_eq!(spent.verb(Verb::Delete), 2 * TASKS);
    // One per thousand, one that finds the end, one for recovery, one for the overflow, two that find nothing in any
    // inbox and in the overflow at the end, and a few that find running tasks.
    let lists = spent.verb(Verb::List);
    assert!(lists <= 2 + 11, "{lists} lists");
}

/// Promise P4: the holder of the shard of a task may not be able to run it.
#[tokio::test(flavor = "multi_thread")]
async fn tasks_reach_a_worker_with_a_handler_even_if_another_holds_their_shard() {
    const TASKS: usize = 40;
    let (queue, shutdown) = (queue().await, Shutdown::default());
    let mut ids = Vec::new();
    for number in 0..TASKS {
        ids.push(submit(&queue, ["left", "right"][number % 2], json!(null)).await);
    }
    let running = ["left", "right"].map(|task_type| {
        let worker = Worker::new(queue.clone(), &format!("only-{task_type}"), None).unwrap();
        let worker = worker.handle(task_type, |_, (): ()| async { Ok::<_, TaskError>(()) }).unwrap();
        let leasing = Some(ShardLeasing::default());
        let full_scan_every = Duration::from_secs(1);
        let options = WorkerOptions { leasing, full_scan_every, until_empty: false, ..options() };
        tokio::spawn(worker.options(options).run(shutdown.clone()))
    });
    for id in &ids {
        assert_eq!(
            leasehold_queue::Queue::from(queue.clone())
                .wait(id, Some(Duration::from_mins(1)))
                .await
                .unwrap()
                .status(),
            Status::Completed
        );
    }
    shutdown.drain();
    let mut completed = 0;
    for running in running {
        completed += running.await.unwrap().unwrap().completed;
    }
    assert_eq!(completed, TASKS as u64);
}
