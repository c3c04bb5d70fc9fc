//! Snapshots of a journal: taken in time, loaded by the next broker and by readers; what they cover is deleted.

use leasehold_core::{Status, TaskId, keys};
use leasehold_queue::inspect::Filter;
use leasehold_queue::{Queue, Settlement};
use leasehold_store::Store;
use serde_json::{Value, json};
use std::time::Duration;

use super::{Journal, TestWorker, listed, submit};
use crate::support::{audit, mins};

pub(super) async fn lease(journal: &Journal) -> Value {
    audit::value(&journal.store, keys::JOURNAL_LEASE).await.unwrap()
}

async fn snapshots(journal: &Journal) -> Vec<String> {
    audit::keys(&journal.store, keys::JOURNAL_SNAPSHOTS).await
}

async fn chunks(journal: &Journal) -> Vec<String> {
    audit::keys(&journal.store, keys::JOURNAL_CHUNKS).await
}

/// Deletes every commit that a snapshot covers, as a broker does later.
pub(super) async fn delete_covered(journal: &Journal) {
    let floor = lease(journal).await["floor"].as_u64().unwrap();
    for key in audit::keys(&journal.store, keys::JOURNAL_LOG).await {
        let seq: u64 = key.rsplit('/').next().unwrap().parse().unwrap();
        if seq < floor {
            journal.store.delete(&key).await.unwrap();
        }
    }
}

async fn submit_large(queue: &Queue, number: usize) -> TaskId {
    queue.submit("large", json!({"number": number, "filling": "x".repeat(250_000)})).await.unwrap().id
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_is_taken_after_a_thousand_commits_and_replay_begins_there() {
    let journal = Journal::new();
    let queue = journal.process().await;
    for _ in 0..990 {
        submit(&queue).await;
    }
    let mut worker = TestWorker::new(&queue, 1, false).await;
    let claim = worker.one().await;
    let running = claim.task.task().id;
    for _ in 0..11 {
        submit(&queue).await;
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!((snapshots(&journal).await.len(), chunks(&journal).await.len()), (1, 1));
    let seq = lease(&journal).await["snapshot"]["seq"].as_u64().unwrap();
    assert!(seq >= 1_000, "{seq}");
    submit(&queue).await;
    delete_covered(&journal).await;
    drop((queue, worker, claim));
    let next = journal.process().await;
    submit(&next).await;
    assert_eq!(listed(&next, Filter::default()).await.len(), 1_003);
    assert_eq!(next.get(&running).await.unwrap().status(), Status::Running);
    // A process that only reads begins at the snapshot, too.
    let reader = journal.process().await;
    assert_eq!(listed(&reader, Filter::default()).await.len(), 1_003);
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_is_taken_after_five_minutes_with_changes_and_not_without() {
    let journal = Journal::new();
    let queue = journal.process().await;
    submit(&queue).await;
    tokio::time::sleep(mins(4)).await;
    assert!(snapshots(&journal).await.is_empty());
    tokio::time::sleep(mins(2)).await;
    let first = snapshots(&journal).await;
    assert_eq!(first.len(), 1);
    tokio::time::sleep(mins(30)).await;
    assert_eq!(snapshots(&journal).await, first);
}

#[tokio::test(start_paused = true)]
async fn covered_commits_are_deleted_after_an_hour_except_for_fences() {
    let journal = Journal::new();
    let (queue, reader) = (journal.process().await, journal.process().await);
    let id = submit(&queue).await;
    assert_eq!(reader.get(&id).await.unwrap().id, id);
    for _ in 0..3 {
        submit(&queue).await;
        tokio::time::sleep(mins(6)).await;
    }
    assert_eq!(snapshots(&journal).await.len(), 2, "the last two");
    assert_eq!(journal.commits().await, 5, "for an hour");
    tokio::time::sleep(mins(70)).await;
    assert_eq!(journal.commits().await, 1, "the fence");
    let last = submit(&queue).await;
    assert_eq!(reader.get(&last).await.unwrap().id, last, "it starts over");
    queue.close().await.unwrap();
    let next = journal.process().await;
    submit(&next).await;
    assert_eq!(listed(&next, Filter::default()).await.len(), 6);
}

#[tokio::test(start_paused = true)]
async fn a_chunk_that_has_not_changed_is_kept_and_a_replaced_one_deleted() {
    let journal = Journal::new();
    let queue = journal.process().await;
    let mut ids = Vec::new();
    for number in 0..40 {
        ids.push(submit_large(&queue, number).await);
    }
    tokio::time::sleep(mins(6)).await;
    let first = chunks(&journal).await;
    assert_eq!(first.len(), 3, "{first:?}");
    for id in &ids[38..] {
        queue.cancel(id).await.unwrap();
        tokio::time::sleep(mins(6)).await;
    }
    let now = chunks(&journal).await;
    assert_eq!(now.len(), 4, "two that are shared, and the last one of two snapshots: {now:?}");
    assert_eq!(now[..2], first[..2]);
    assert!(!now.contains(&first[2]), "no snapshot that is kept refers to it");
    delete_covered(&journal).await;
    queue.close().await.unwrap();
    let next = journal.process().await;
    assert_eq!(next.get(&ids[38]).await.unwrap().status(), Status::Cancelled);
    assert_eq!(listed(&next, Filter::default()).await.len(), 40);
}

#[tokio::test(start_paused = true)]
async fn changes_since_a_snapshot_are_in_the_next_one() {
    let journal = Journal::new();
    let queue = journal.process().await;
    let mut ids = Vec::new();
    for number in 0..20 {
        ids.push(submit_large(&queue, number).await);
    }
    tokio::time::sleep(mins(6)).await;
    // In the first chunk, by a broker that has loaded the snapshot: its replay has changed tasks, too.
    queue.close().await.unwrap();
    let queue = journal.process().await;
    let mut worker = TestWorker::new(&queue, 1, false).await;
    let mut claim = worker.one().await.task;
    let id = claim.task().id;
    claim.finish(Settlement::complete(json!(1))).await.unwrap();
    queue.close().await.unwrap();
    let queue = journal.process().await;
    submit(&queue).await;
    tokio::time::sleep(mins(6)).await;
    delete_covered(&journal).await;
    queue.close().await.unwrap();
    let last = journal.process().await;
    assert_eq!(last.get(&id).await.unwrap().output(), Some(&json!(1)));
    assert_eq!(listed(&last, Filter::default()).await.len(), 21);
}
