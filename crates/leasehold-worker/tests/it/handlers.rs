//! Handlers: their context, their results and their errors.

use leasehold_core::{NewTask, RetryPolicy, State, Status};
use leasehold_store::{Purpose, Verb};
use leasehold_worker::{Context, Counts, ShardLeasing, Shutdown, TaskError, Worker, WorkerOptions};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::{Duration, Instant};

use crate::{options, queue, status, submit, work};

#[derive(Deserialize)]
struct Pair {
    a: u64,
    b: u64,
}

#[derive(Serialize)]
struct Sum {
    sum: u64,
}

#[tokio::test(flavor = "multi_thread")]
async fn a_typed_handler_runs_and_its_output_is_kept() {
    let queue = queue().await;
    let id = submit(&queue, "add", json!({"a": 2, "b": 3})).await;
    let odd = submit(&queue, "add", json!({"a": "two"})).await;
    let worker = Worker::new(queue.clone(), "w1", None).unwrap();
    let worker = worker
        .handle("add", |context: Context, pair: Pair| async move {
            assert_eq!((context.attempt(), context.epoch()), (1, 1));
            Ok::<_, TaskError>(Sum { sum: pair.a + pair.b })
        })
        .unwrap();
    let counts = work(worker).await;
    assert_eq!(counts, Counts { started: 2, completed: 1, failed: 1, ..Counts::default() });
    let State::Completed { output, .. } = queue.get(&id).await.unwrap().state else {
        panic!("not completed")
    };
    assert_eq!(output, json!({"sum": 5}));
    let failed = queue.get(&odd).await.unwrap();
    assert_eq!(
        (failed.status(), failed.attempt),
        (Status::Failed, 1),
        "an input that does not fit fails for good"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_are_retried_panics_too_until_the_attempts_are_used_up() {
    let queue = queue().await;
    let quick = RetryPolicy { initial_secs: 0.0, max_secs: 0.0, ..RetryPolicy::default() };
    let order =
        |kind: &str| NewTask { retry_policy: quick.clone(), ..NewTask::new(kind, json!(null)).unwrap() };
    let flaky = queue.submit_task(order("flaky")).await.unwrap().id;
    let hopeless = queue.submit_task(order("hopeless")).await.unwrap().id;
    let panicking = queue.submit_task(order("panicking")).await.unwrap().id;
    let tries = Arc::new(AtomicU32::new(0));
    let worker = Worker::new(queue.clone(), "w1", None)
        .unwrap()
        .handle("flaky", move |_, (): ()| {
            let attempt = tries.fetch_add(1, SeqCst);
            async move { if attempt < 2 { Err(TaskError::Retry("not yet".into())) } else { Ok("done") } }
        })
        .unwrap()
        .handle("hopeless", |_, (): ()| async { Err::<Value, _>(TaskError::Permanent("never".into())) })
        .unwrap()
        .handle("panicking", |_, (): ()| async { if true { panic!("ouch") } else { Ok(1) } })
        .unwrap();
    work(worker).await;
    let task = queue.get(&flaky).await.unwrap();
    assert_eq!((task.status(), task.attempt, task.epoch), (Status::Completed, 3, 3));
    assert_eq!(status(&queue, &hopeless).await, Status::Failed);
    let task = queue.get(&panicking).await.unwrap();
    assert_eq!((task.status(), task.attempt), (Status::Failed, 4));
    assert_eq!(task.error.as_deref(), Some("the handler panicked: ouch"));
}

#[tokio::test(flavor = "multi_thread")]
async fn snoozing_costs_no_attempt_and_a_handler_that_takes_too_long_is_stopped() {
    let queue = queue().await;
    let snoozer = submit(&queue, "snoozer", json!(null)).await;
    let slow =
        NewTask { timeout_secs: Some(1), max_attempts: 1, ..NewTask::new("slow", json!(null)).unwrap() };
    let slow = queue.submit_task(slow).await.unwrap().id;
    let naps = Arc::new(AtomicU32::new(0));
    let worker = Worker::new(queue.clone(), "w1", None)
        .unwrap()
        .handle("snoozer", move |context: Context, (): ()| {
            let nap = naps.fetch_add(1, SeqCst);
            async move {
                assert_eq!(context.attempt(), 1);
                if nap < 3 { Err(TaskError::Snooze(Duration::from_millis(10))) } else { Ok(()) }
            }
        })
        .unwrap()
        .handle("slow", |_, (): ()| futures::future::pending::<Result<(), TaskError>>())
        .unwrap();
    work(worker).await;
    let task = queue.get(&snoozer).await.unwrap();
    assert_eq!((task.status(), task.attempt, task.epoch), (Status::Completed, 1, 4));
    let task = queue.get(&slow).await.unwrap();
    assert_eq!((task.status(), task.error.as_deref()), (Status::Failed, Some("did not finish within 1 s")));
}

#[tokio::test(flavor = "multi_thread")]
async fn types_without_a_handler_are_not_claimed_and_block_nothing() {
    let queue = queue().await;
    for _ in 0..30 {
        submit(&queue, "foreign", json!(null)).await;
    }
    let ours = submit(&queue, "ours", json!(null)).await;
    let worker = Worker::new(queue.clone(), "w1", None).unwrap();
    let worker = worker.handle("ours", |_, (): ()| async { Ok::<_, TaskError>(()) }).unwrap();
    let worker = worker.options(WorkerOptions { concurrency: 2, ..options() });
    let counts = worker.run(Shutdown::default()).await.unwrap();
    assert_eq!(counts.started, 1);
    assert_eq!(status(&queue, &ours).await, Status::Completed);
    let stats = queue.stats().await.unwrap();
    assert_eq!((stats.due, stats.running), (30, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn two_thousand_tasks_cost_what_the_protocol_says() {
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
    let (polls, turns) = (count(Verb::Get, Purpose::Discover), count(Verb::Get, Purpose::Lease));
    assert_eq!(spent.verb(Verb::Get), TASKS + polls + turns);
    assert!(polls <= 10 && turns <= 2, "{polls} times the bell, {turns} turns");
    assert!(spent.verb(Verb::Put) <= 3 * TASKS + 4, "a turn at recovery is taken, kept and passed on");
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
        let sweep_every = Duration::from_secs(1);
        let options = WorkerOptions { leasing, sweep_every, until_empty: false, ..options() };
        tokio::spawn(worker.options(options).run(shutdown.clone()))
    });
    for id in &ids {
        assert_eq!(queue.wait(id, Some(Duration::from_mins(1))).await.unwrap().status(), Status::Completed);
    }
    shutdown.drain();
    let mut completed = 0;
    for running in running {
        completed += running.await.unwrap().unwrap().completed;
    }
    assert_eq!(completed, TASKS as u64);
}
