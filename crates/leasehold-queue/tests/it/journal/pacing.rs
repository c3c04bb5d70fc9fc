//! The interval of commits in a bucket, in the long run.

use futures::TryStreamExt;
use futures::future::join_all;
use leasehold_core::limits::{COMMIT_INTERVAL, COMMITS_SAVED};
use leasehold_queue::Queue;
use std::time::Duration;
use tokio::time::Instant;

use super::{Journal, submit};
use crate::support::{mins, secs};

/// Submits a task for later every ten milliseconds, for a minute, whether or not earlier submits are confirmed.
async fn a_minute_of_submits(queue: &Queue) {
    let submits = (0..6_000_u32).map(async |number| {
        tokio::time::sleep(Duration::from_millis(10) * number).await;
        queue.submit("later", number).delay(mins(600)).await.unwrap();
    });
    join_all(submits).await;
}

/// Submits some tasks for later at once, and waits for them, again and again. Returns the average time of a round.
async fn rounds(queue: &Queue, rounds: u32) -> Duration {
    let began = Instant::now();
    for _ in 0..rounds {
        let submits = (0..64).map(|number| queue.submit("later", number).delay(mins(600)));
        queue.submit_many(submits).try_collect::<Vec<_>>().await.unwrap();
    }
    began.elapsed() / rounds
}

async fn commits_of_a_minute(journal: &Journal, queue: &Queue) -> u32 {
    let before = journal.commits().await;
    a_minute_of_submits(queue).await;
    u32::try_from(journal.commits().await - before).unwrap()
}

/// The time for which a broker is not bound by the interval, at this rate.
async fn spend_what_is_saved(queue: &Queue) {
    a_minute_of_submits(queue).await;
    a_minute_of_submits(queue).await;
}

#[tokio::test(start_paused = true)]
async fn commits_that_follow_each_other_for_minutes_are_written_at_an_interval() {
    let journal = Journal::new();
    let queue = journal.process().await;
    let at_first = commits_of_a_minute(&journal, &queue).await;
    let at_the_interval = u32::try_from(secs(60).as_millis() / COMMIT_INTERVAL.as_millis()).unwrap();
    let with_the_saved = at_the_interval + COMMITS_SAVED - 10;
    assert!(at_first > with_the_saved, "{at_first}");
    a_minute_of_submits(&queue).await;
    let later = commits_of_a_minute(&journal, &queue).await;
    assert!((at_the_interval - 5..=at_the_interval + 5).contains(&later), "{later}");
    // Nothing is submitted for a time that saves all of them up again.
    tokio::time::sleep(COMMIT_INTERVAL * COMMITS_SAVED).await;
    assert!(commits_of_a_minute(&journal, &queue).await > with_the_saved);
}

#[tokio::test(start_paused = true)]
async fn clients_that_wait_for_their_outcomes_are_not_slowed_down() {
    let journal = Journal::new();
    let queue = journal.process().await;
    let at_first = rounds(&queue, COMMITS_SAVED).await;
    let later = (rounds(&queue, 3 * COMMITS_SAVED).await, rounds(&queue, COMMITS_SAVED).await);
    assert_eq!(later, (at_first, at_first));
}

#[tokio::test(start_paused = true)]
async fn commits_are_not_delayed_while_a_task_waits_for_a_worker() {
    let journal = Journal::new();
    let queue = journal.process().await;
    spend_what_is_saved(&queue).await;
    submit(&queue).await;
    assert!(commits_of_a_minute(&journal, &queue).await > 3 * COMMITS_SAVED);
}

#[tokio::test(start_paused = true)]
async fn a_broker_that_closes_does_not_wait_for_the_interval() {
    let journal = Journal::new();
    let queue = journal.process().await;
    spend_what_is_saved(&queue).await;
    let began = Instant::now();
    let submits = (0..64).map(|number| queue.submit("later", number).delay(mins(600)));
    let (submitted, closed) =
        futures::join!(queue.submit_many(submits).try_collect::<Vec<_>>(), queue.close());
    closed.unwrap();
    assert_eq!(submitted.unwrap().len(), 64);
    assert!(began.elapsed() < COMMIT_INTERVAL / 2, "{:?}", began.elapsed());
}
