//! Tasks beyond the limit in memory: they are evicted when a snapshot has them, and read back for whatever needs them.

use futures::TryStreamExt;
use leasehold_core::journal::SnapshotManifest;
use leasehold_core::retention::Retention;
use leasehold_core::{Kind, NewTask, State, Status, TaskId, keys};
use leasehold_queue::inspect::Filter;
use leasehold_queue::{ArchiveLimits, LayoutName, Queue, QueueConfig, Settlement, SnapshotLimits, UniqueKey};
use leasehold_store::{Client, Store};
use serde_json::{Value, json};
use std::time::Duration;

use super::snapshots::{delete_covered, lease};
use super::{Journal, TestWorker, listed, submit};
use crate::support::{audit, hours, mins, secs};

/// Bytes of an input: sixteen tasks are more than a chunk.
const INPUT_BYTES: usize = 250_000;
/// Bytes in memory: four such tasks.
const RESIDENT_BYTES: u64 = 1_000_000;

fn limits() -> SnapshotLimits {
    let archive = ArchiveLimits { age: hours(100), ..ArchiveLimits::default() };
    let interval = mins(5);
    SnapshotLimits { interval, archive, resident_bytes: RESIDENT_BYTES, ..SnapshotLimits::default() }
}

fn config(snapshots: SnapshotLimits) -> QueueConfig {
    QueueConfig { layout: Some(LayoutName::Journal), snapshots, transport: None, ..QueueConfig::default() }
}

impl Journal {
    async fn small_process(&self, limits: SnapshotLimits) -> Queue {
        let client = Client::new(self.store.clone(), self.host.clone());
        Queue::with_config(client, config(limits)).await.unwrap()
    }

    /// Keys of the chunks of the newest snapshot.
    async fn newest_chunks(&self) -> Vec<String> {
        let position = serde_json::from_value(lease(self).await["snapshot"].clone()).unwrap();
        let key = audit::keys(&self.store, keys::JOURNAL_SNAPSHOTS).await.pop().unwrap();
        let body = self.store.get(&key, None).await.unwrap().found().unwrap().body;
        let manifest = SnapshotManifest::decode("snapshot", &body, position).unwrap();
        manifest.chunks.iter().map(|chunk| keys::journal_chunk(chunk.name)).collect()
    }
}

fn input(number: usize) -> Value {
    json!({"number": number, "filling": "x".repeat(INPUT_BYTES)})
}

async fn submit_numbered(queue: &Queue, number: usize) -> TaskId {
    queue.submit("large", input(number)).await.unwrap().id
}

/// Submits large tasks, and waits for the snapshot after which most of them are evicted.
async fn backlog(queue: &Queue, tasks: usize) -> Vec<TaskId> {
    let mut ids = Vec::new();
    for number in 0..tasks {
        ids.push(submit_numbered(queue, number).await);
    }
    tokio::time::sleep(mins(6)).await;
    ids
}

/// Fails if a task is in memory.
async fn assert_evicted(journal: &Journal, queue: &Queue, id: TaskId) {
    let mut bodies = Vec::new();
    for key in journal.newest_chunks().await {
        bodies.push((key.clone(), journal.store.get(&key, None).await.unwrap().found().unwrap().body));
        journal.store.delete(&key).await.unwrap();
    }
    let read = queue.get(&id).await;
    assert_eq!(read.err().map(|error| error.kind()), Some(Kind::Corrupt), "it is in memory");
    for (key, body) in bodies {
        journal.overwrite(&key, body.to_vec()).await;
    }
}

/// Runs tasks until none is left; returns their numbers and ids in the order in which they were claimed.
async fn drain(queue: &Queue, slots: usize) -> Vec<(u64, TaskId)> {
    let (mut worker, mut claimed) = (TestWorker::new(queue, slots, true).await, Vec::new());
    while let Some(mut next) = worker.next().await {
        let task = next.task.task();
        let number = task.input["number"].as_u64().unwrap();
        assert!(task.input == input(usize::try_from(number).unwrap()), "the input of task {number} differs");
        claimed.push((number, task.id));
        next.task.finish(Settlement::complete(json!(1))).await.unwrap();
    }
    claimed
}

fn numbered(ids: &[TaskId]) -> Vec<(u64, TaskId)> {
    (0..).zip(ids.iter().copied()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_backlog_larger_than_the_memory_is_drained_in_order() {
    let journal = Journal::new();
    let queue = journal.small_process(limits()).await;
    let ids = backlog(&queue, 60).await;
    assert_evicted(&journal, &queue, ids[0]).await;
    assert_eq!(queue.stats().await.unwrap().due, 60);
    // The estimate of the store's time may go back between two submits.
    let mut due = listed(&queue, Filter::default()).await;
    due.sort_by_key(|task| match &task.state {
        State::Pending { available_at } => (*available_at, task.id),
        _ => panic!("task {} is {}", task.id, task.status()),
    });
    let drained: Vec<_> = drain(&queue, 1).await.into_iter().map(|(_, id)| id).collect();
    assert_eq!((drained.len(), drained), (60, due.iter().map(|task| task.id).collect::<Vec<_>>()));
    tokio::time::sleep(mins(6)).await;
    let tasks = listed(&queue, Filter::default()).await;
    assert_eq!(tasks.len(), ids.len());
    assert!(tasks.iter().all(|task| task.status() == Status::Completed));
    assert_evicted(&journal, &queue, ids[59]).await;
}

#[tokio::test(start_paused = true)]
async fn evicted_tasks_are_read_listed_changed_and_exported() {
    let journal = Journal::new();
    let queue = journal.small_process(limits()).await;
    let first = journal_key_submit(&queue).await;
    let ids = backlog(&queue, 40).await;
    assert_eq!(queue.get(&ids[17]).await.unwrap().input, input(17));
    assert_eq!(journal_key_submit(&queue).await, first, "the task that has the key is evicted");
    assert!(queue.submit("large", input(7)).key(UniqueKey::new("a".to_owned())).await.is_err());
    assert_eq!(listed(&queue, Filter::default()).await.len(), 41);
    let none = Filter { status: Some(Status::Cancelled), ..Filter::default() };
    assert_eq!(listed(&queue, none.clone()).await, []);
    assert!(queue.cancel(&ids[30]).await.unwrap().is_done());
    assert!(queue.reschedule(&ids[2], queue.now().unwrap().earliest.plus(hours(1))).await.unwrap().is_done());
    assert_eq!(listed(&queue, none).await[0].id, ids[30]);
    tokio::time::sleep(mins(6)).await;
    assert!(queue.retry(&ids[30]).await.unwrap().is_done());
    let exported: Vec<_> = queue.export().try_collect().await.unwrap();
    assert_eq!(exported.len(), 41);
    assert!(!queue.import(exported[20].clone()).await.unwrap(), "it exists");
    let waited = tokio::spawn({
        let (queue, id) = (queue.clone(), ids[12]);
        async move { queue.wait(&id, Some(mins(1))).await.unwrap().status() }
    });
    tokio::task::yield_now().await;
    queue.cancel(&ids[12]).await.unwrap();
    assert_eq!(waited.await.unwrap(), Status::Cancelled);
    assert_eq!(queue.get_history(&ids[30]).await.unwrap().len(), 3);
}

async fn journal_key_submit(queue: &Queue) -> TaskId {
    queue.submit("keyed", 1).key(UniqueKey::new("a".to_owned())).await.unwrap().id
}

#[tokio::test(start_paused = true)]
async fn a_killed_broker_is_followed_by_one_that_loads_as_little() {
    let journal = Journal::new();
    let queue = journal.small_process(limits()).await;
    let ids = backlog(&queue, 50).await;
    // Records that change evicted tasks of several chunks, after the snapshot.
    for place in [45, 3, 20, 4] {
        queue.cancel(&ids[place]).await.unwrap();
    }
    let mut worker = TestWorker::new(&queue, 1, false).await;
    assert_eq!(worker.one().await.task.task().id, ids[0]);
    let last = submit_numbered(&queue, 50).await;
    drop((queue, worker));
    let reader = journal.small_process(limits()).await;
    assert_eq!(listed(&reader, Filter::default()).await.len(), 51);
    assert_eq!(reader.get(&ids[20]).await.unwrap().status(), Status::Cancelled);
    let next = journal.small_process(limits()).await;
    let newest = submit(&next).await;
    assert_evicted(&journal, &next, ids[40]).await;
    for place in [45, 3, 20, 4] {
        assert_eq!(next.get(&ids[place]).await.unwrap().status(), Status::Cancelled);
    }
    assert_eq!(next.get(&ids[0]).await.unwrap().status(), Status::Running);
    // Its snapshot has the tasks that it has never read.
    tokio::time::sleep(mins(6)).await;
    delete_covered(&journal).await;
    assert_eq!(reader.get(&newest).await.unwrap().id, newest);
    assert_eq!(reader.get(&ids[41]).await.unwrap().input, input(41));
    next.close().await.unwrap();
    let whole = journal.process().await;
    let tasks = listed(&whole, Filter::default()).await;
    assert_eq!((tasks.len(), &tasks[41].input, &tasks[50].id), (52, &input(41), &last));
    assert_eq!(whole.check(false).await.unwrap().corrupt, []);
}

#[tokio::test(start_paused = true)]
async fn a_damaged_chunk_stops_what_needs_it_and_nothing_else() {
    let journal = Journal::new();
    let queue = journal.small_process(limits()).await;
    let ids = backlog(&queue, 40).await;
    let chunks = journal.newest_chunks().await;
    assert_eq!(chunks.len(), 3);
    let body = journal.store.get(&chunks[0], None).await.unwrap().found().unwrap().body;
    for damaged in [None, Some(Vec::new()), Some([&body[..90], b"x", &body[91..]].concat())] {
        match damaged {
            None => journal.store.delete(&chunks[0]).await.unwrap(),
            Some(damaged) => journal.overwrite(&chunks[0], damaged).await,
        }
        let mut worker = TestWorker::new(&queue, 1, false).await;
        let claimed = worker.source.next().await.err().unwrap();
        let cancelled = queue.cancel(&ids[1]).await.err().unwrap();
        let list = queue.list(Filter::default()).try_collect::<Vec<_>>().await.unwrap_err();
        for error in [queue.get(&ids[0]).await.unwrap_err(), claimed, cancelled, list] {
            let text = error.to_string();
            assert!(error.kind() == Kind::Corrupt && text.contains(&chunks[0]), "{text}");
            assert!(text.ends_with("restore it from a backup of the store"), "{text}");
        }
        assert_eq!(queue.get(&ids[39]).await.unwrap().input, input(39));
        submit(&queue).await;
        let checked = queue.check(true).await.unwrap();
        assert_eq!((checked.corrupt.len(), &checked.corrupt[0].key), (1, &chunks[0]));
    }
    // It is referred to as before, and everything goes on when it is back.
    tokio::time::sleep(mins(6)).await;
    journal.overwrite(&chunks[0], body.to_vec()).await;
    assert_eq!(queue.get(&ids[0]).await.unwrap().input, input(0));
    assert_eq!(listed(&queue, Filter::default()).await.len(), 43);
}

#[tokio::test(start_paused = true)]
async fn evicted_tasks_expire_and_are_archived_and_purged() {
    let journal = Journal::new();
    let archive = ArchiveLimits { age: mins(10), ..ArchiveLimits::default() };
    let queue = journal.small_process(SnapshotLimits { archive, ..limits() }).await;
    let mut ids = Vec::new();
    for number in 0..20 {
        let new_task = NewTask { expires_in: Some(mins(8)), ..NewTask::new("large", input(number)).unwrap() };
        ids.push(queue.submit_task(new_task).await.unwrap().id);
    }
    let kept = backlog(&queue, 20).await;
    assert_evicted(&journal, &queue, ids[19]).await;
    tokio::time::sleep(mins(3)).await;
    assert_eq!(queue.stats().await.unwrap().due, 20);
    assert_eq!(queue.get(&ids[19]).await.unwrap().status(), Status::Expired);
    tokio::time::sleep(mins(6)).await;
    assert_evicted(&journal, &queue, ids[19]).await;
    submit(&queue).await;
    tokio::time::sleep(mins(15)).await;
    assert!(!audit::keys(&journal.store, keys::JOURNAL_ARCHIVE).await.is_empty());
    assert_eq!(queue.get(&ids[3]).await.unwrap().input, input(3));
    queue.cancel(&kept[5]).await.unwrap();
    tokio::time::sleep(mins(6)).await;
    assert_evicted(&journal, &queue, kept[5]).await;
    tokio::time::sleep(hours(48)).await;
    let retention = Retention { statuses: vec![Status::Cancelled], older_than: hours(1) };
    assert_eq!(queue.purge_all(&retention).await.unwrap().deleted, 1);
    assert_eq!(listed(&queue, Filter::default()).await.len(), 40);
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_is_taken_when_many_changed_tasks_are_in_memory() {
    let journal = Journal::new();
    let limits = SnapshotLimits { interval: hours(100), ..limits() };
    let queue = journal.small_process(limits).await;
    for number in 0..15 {
        submit_numbered(&queue, number).await;
    }
    tokio::time::sleep(secs(1)).await;
    assert_eq!(audit::keys(&journal.store, keys::JOURNAL_SNAPSHOTS).await, [""; 0]);
    for number in 15..40 {
        submit_numbered(&queue, number).await;
    }
    tokio::time::sleep(secs(1)).await;
    assert!(!audit::keys(&journal.store, keys::JOURNAL_SNAPSHOTS).await.is_empty());
    assert_eq!(drain(&queue, 2).await.len(), 40);
}

#[tokio::test(start_paused = true)]
async fn a_bulk_submit_beyond_the_memory_waits_for_snapshots_and_ends() {
    let journal = Journal::new();
    let queue = journal.small_process(SnapshotLimits { interval: hours(100), ..limits() }).await;
    let submits = (0..150).map(|number| queue.submit("large", input(number)));
    let submitted: Vec<_> = queue.submit_many(submits).try_collect().await.unwrap();
    assert_eq!(submitted.len(), 150);
    assert!(
        audit::keys(&journal.store, keys::JOURNAL_SNAPSHOTS).await.len() > 1,
        "snapshots of some of them"
    );
    queue.close().await.unwrap();
    let next = journal.small_process(limits()).await;
    assert_eq!(drain(&next, 4).await.len(), 150);
}

#[tokio::test]
async fn a_folder_keeps_as_little_in_memory() {
    let folder = tempfile::tempdir().unwrap();
    let limits = SnapshotLimits { commits: 30, interval: Duration::MAX, ..limits() };
    let process = || async { Queue::with_config(folder.path(), config(limits)).await.unwrap() };
    let queue = process().await;
    let mut ids = Vec::new();
    for number in 0..60 {
        ids.push(submit_numbered(&queue, number).await);
    }
    queue.cancel(&ids[59]).await.unwrap();
    queue.close().await.unwrap();
    let queue = process().await;
    assert_eq!(queue.get(&ids[40]).await.unwrap().input, input(40));
    // Claims at once are answered in any order.
    let mut drained = drain(&queue, 4).await;
    drained.sort_unstable();
    assert_eq!(drained, numbered(&ids[..59]));
    queue.close().await.unwrap();
    let queue = process().await;
    assert_eq!(listed(&queue, Filter::default()).await.len(), 60);
    assert_eq!(queue.check(true).await.unwrap().corrupt, []);
}
