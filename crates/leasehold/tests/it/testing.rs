//! The helper for tests: nothing waits in real time, and everything else behaves as in production.

use leasehold::{
    Context, Counts, Queue, QueueConfig, RetryPolicy, Status, StoreTime, TaskError, Worker, testing,
};
use serde_json::json;
use std::time::Duration;

const HOUR: Duration = Duration::from_hours(1);

/// Sleeps with tokio, as handlers do.
#[expect(clippy::disallowed_methods, reason = "a user's handler has nothing but tokio")]
async fn nap(context: Context, secs: u64) -> Result<u32, TaskError> {
    tokio::time::sleep(Duration::from_secs(secs)).await;
    Ok(context.attempt())
}

async fn fails(context: Context, (): ()) -> Result<(), TaskError> {
    Err(TaskError::Retry(format!("attempt {}", context.attempt())))
}

fn worker(queue: &Queue) -> Worker {
    let worker = Worker::new(queue.objects().unwrap().clone(), "worker-1", None).unwrap();
    worker.handle("nap", nap).unwrap().handle("fails", fails).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_sleeps_for_a_day_keeps_its_claim() {
    let queue = testing::queue().await.unwrap();
    let id = queue.submit("nap", 86_400).await.unwrap().id;
    let counts = worker(&queue).run_until_empty().await.unwrap();
    assert_eq!(counts, Counts { started: 1, completed: 1, ..Counts::default() });
    let task = queue.get(&id).await.unwrap();
    assert_eq!((task.output(), task.epoch), (Some(&json!(1)), 1));
    assert!(task.updated_at.since(task.created_at) >= HOUR * 24);
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_takes_too_long_is_stopped_in_the_same_time() {
    let queue = testing::queue().await.unwrap();
    let slow = queue.submit("nap", 3_600).timeout(Duration::from_mins(1)).max_attempts(1).await.unwrap();
    worker(&queue).run_until_empty().await.unwrap();
    let task = queue.get(&slow.id).await.unwrap();
    assert_eq!(task.error.as_deref(), Some("did not finish within 60 s"));
    assert!(task.updated_at.since(task.created_at) < HOUR);
}

#[tokio::test(start_paused = true)]
async fn retries_wait_for_their_time() {
    let queue = testing::queue().await.unwrap();
    let policy =
        RetryPolicy { initial_secs: 7_200.0, max_secs: 7_200.0, jitter: 0.0, ..RetryPolicy::default() };
    let id = queue.submit("fails", ()).retry_policy(policy).max_attempts(2).await.unwrap().id;
    let status = async || queue.get(&id).await.unwrap().status();
    worker(&queue).run_until_empty().await.unwrap();
    testing::advance(HOUR).await;
    worker(&queue).run_until_empty().await.unwrap();
    assert_eq!(status().await, Status::Pending);
    testing::advance(HOUR).await;
    worker(&queue).run_until_empty().await.unwrap();
    assert_eq!(status().await, Status::Failed);
}

#[tokio::test(start_paused = true)]
async fn every_run_begins_at_the_same_time_with_the_same_random_numbers() {
    let submitted = async || {
        let config = QueueConfig { shard_prefix_len: Some(2), ..QueueConfig::default() };
        let queue = Queue::with_config(testing::client(), config).await.unwrap();
        let id = queue.submit("nap", 1).await.unwrap().id;
        (id, queue.get(&id).await.unwrap().created_at)
    };
    let first = submitted().await;
    assert_eq!(first.1, "2026-01-01T00:00:00Z".parse::<StoreTime>().unwrap());
    assert_eq!(submitted().await, first);
}
