//! The interval of commits in a bucket, in the long run.

use futures::TryStreamExt;
use leasehold_core::limits::{COMMIT_INTERVAL, COMMIT_RECORDS_SMALL, COMMITS_SAVED};
use leasehold_queue::Queue;
use std::time::Duration;
use tokio::time::Instant;

use super::{Journal, submit};
use crate::support::{mins, secs};

/// Submits this many tasks for later at once, again and again. Returns the average time that each round took.
async fn rounds(queue: &Queue, rounds: u32, tasks: u32) -> Duration {
    let began = Instant::now();
    for _ in 0..rounds {
        let submits = (0..tasks).map(|number| queue.submit("later", number).delay(mins(600)));
        queue.submit_many(submits).try_collect::<Vec<_>>().await.unwrap();
    }
    began.elapsed() / rounds
}

const LARGE: u32 = COMMIT_RECORDS_SMALL + 1;

#[tokio::test(start_paused = true)]
async fn large_commits_that_follow_each_other_for_minutes_are_written_at_an_interval() {
    let journal = Journal::new();
    let queue = journal.process().await;
    let at_first = rounds(&queue, COMMITS_SAVED, LARGE).await;
    assert!(at_first < secs(1) / 15, "{at_first:?}");
    // What has been saved up meanwhile is spent, too.
    rounds(&queue, COMMITS_SAVED, LARGE).await;
    assert_eq!(rounds(&queue, 100, LARGE).await, COMMIT_INTERVAL);
    tokio::time::sleep(mins(1)).await;
    let after_a_minute = rounds(&queue, 100, LARGE).await;
    assert!(after_a_minute < secs(1) / 15, "{after_a_minute:?}");
}

#[tokio::test(start_paused = true)]
async fn few_records_and_tasks_that_wait_for_workers_are_not_delayed() {
    let journal = Journal::new();
    let queue = journal.process().await;
    rounds(&queue, 3 * COMMITS_SAVED, LARGE).await;
    let few = rounds(&queue, 20, COMMIT_RECORDS_SMALL).await;
    assert!(few < secs(1) / 15, "{few:?}");
    submit(&queue).await;
    let beside_a_due_task = rounds(&queue, 20, LARGE).await;
    assert!(beside_a_due_task < secs(1) / 15, "{beside_a_due_task:?}");
}

#[tokio::test(start_paused = true)]
async fn a_broker_that_closes_does_not_wait_for_the_interval() {
    let journal = Journal::new();
    let queue = journal.process().await;
    rounds(&queue, 3 * COMMITS_SAVED, LARGE).await;
    let began = Instant::now();
    let submits = (0..LARGE).map(|number| queue.submit("later", number).delay(mins(600)));
    let (submitted, closed) =
        futures::join!(queue.submit_many(submits).try_collect::<Vec<_>>(), queue.close());
    closed.unwrap();
    assert_eq!(submitted.unwrap().len(), LARGE as usize);
    assert!(began.elapsed() < COMMIT_INTERVAL, "{:?}", began.elapsed());
}
