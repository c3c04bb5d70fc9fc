//! Archive of a journal: final tasks are read, listed, retried, purged and exported as live ones are.

use futures::TryStreamExt;
use leasehold_core::{Kind, Reason, Status, TaskId, keys};
use leasehold_queue::ExportedTask;
use leasehold_queue::inspect::Filter;
use leasehold_queue::purge::{Purged, Retention};
use leasehold_queue::{ArchiveLimits, LayoutName, Queue, QueueConfig, SnapshotLimits, Transition};
use leasehold_store::{Client, DelegatingStore, Purpose, Store, Verb, When};
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use super::snapshots::lease;
use super::{Journal, listed, submit};
use crate::support::{audit, mins, secs};

fn hours(hours: u64) -> Duration {
    Duration::from_hours(hours)
}

async fn archive(journal: &Journal) -> Vec<String> {
    audit::keys(&journal.store, keys::JOURNAL_ARCHIVE).await
}

/// Submits tasks and cancels them, and waits until they are archived. Returns one that is pending, too.
async fn archived(journal: &Journal, queue: &Queue, count: usize) -> (Vec<TaskId>, TaskId) {
    let mut ids = Vec::new();
    for _ in 0..count {
        let id = submit(queue).await;
        queue.cancel(&id).await.unwrap();
        ids.push(id);
    }
    tokio::time::sleep(mins(6)).await;
    let pending = submit(queue).await;
    tokio::time::sleep(mins(6)).await;
    assert!(!archive(journal).await.is_empty());
    (ids, pending)
}

fn all(older_than: Duration) -> Retention {
    Retention { statuses: Vec::new(), older_than }
}

#[tokio::test(start_paused = true)]
async fn an_archived_task_is_read_listed_counted_and_found() {
    let journal = Journal::new();
    let queue = journal.process().await;
    let (ids, pending) = archived(&journal, &queue, 3).await;
    assert_eq!(archive(&journal).await.len(), 1);
    assert_eq!(lease(&journal).await["requires"], json!(["archive"]));
    let reader = journal.process().await;
    for queue in [&queue, &reader] {
        for id in &ids {
            assert_eq!(queue.get(id).await.unwrap().status(), Status::Cancelled);
            assert_eq!(queue.get_history(id).await.unwrap().len(), 2);
            assert_eq!(queue.find(&id.to_string()[..35].parse().unwrap()).await.unwrap(), *id);
        }
        let mut expected = ids.clone();
        expected.push(pending);
        let all: Vec<_> = listed(queue, Filter::default()).await.iter().map(|task| task.id).collect();
        assert_eq!(all, expected);
        let cancelled = Filter { status: Some(Status::Cancelled), ..Filter::default() };
        assert_eq!(listed(queue, cancelled).await.len(), 3);
        let exported: Vec<ExportedTask> = queue.export().try_collect().await.unwrap();
        assert_eq!(exported.iter().map(|exported| exported.task.id).collect::<Vec<_>>(), expected);
        let finished = queue.stats().await.unwrap().finished.unwrap();
        assert_eq!(finished.get(&Status::Cancelled), Some(&3));
        let checked = queue.check(false).await.unwrap();
        assert_eq!((checked.tasks, checked.corrupt, checked.leftover), (4, vec![], vec![]));
        let unknown = TaskId::from_random(5);
        assert_eq!(queue.get(&unknown).await.unwrap_err().reason(), Some(Reason::Missing));
    }
    // A broker that takes over knows the archive from the snapshot and the log.
    queue.close().await.unwrap();
    let next = journal.process().await;
    submit(&next).await;
    assert_eq!(next.get(&ids[1]).await.unwrap().status(), Status::Cancelled);
    assert_eq!(listed(&next, Filter::default()).await.len(), 5);
}

#[tokio::test(start_paused = true)]
async fn a_read_of_an_archived_task_takes_at_most_four_requests() {
    let journal = Journal::new();
    let queue = journal.process().await;
    let (ids, _) = archived(&journal, &queue, 3).await;
    let gets = |queue: &Queue| {
        let ledger = queue.client().unwrap().ledger().snapshot();
        ledger.count(|line| line.purpose == Purpose::Journal && line.verb == Verb::Get)
    };
    let before = gets(&queue);
    queue.get(&ids[1]).await.unwrap();
    let requests = gets(&queue) - before;
    assert!((1..=3).contains(&requests), "{requests}");
}

#[tokio::test(start_paused = true)]
async fn operations_change_archived_tasks() {
    let journal = Journal::new();
    let queue = journal.process().await;
    let (ids, _) = archived(&journal, &queue, 3).await;
    assert!(matches!(queue.cancel(&ids[0]).await.unwrap(), Transition::Rejected(..)));
    assert!(queue.retry(&ids[0]).await.unwrap().is_done());
    assert_eq!(queue.get(&ids[0]).await.unwrap().status(), Status::Pending);
    assert!(matches!(queue.retry(&ids[0]).await.unwrap(), Transition::Rejected(..)));
    assert_eq!(queue.stats().await.unwrap().finished.unwrap().get(&Status::Cancelled), Some(&2));
    let list = listed(&queue, Filter::default()).await;
    assert_eq!(list.iter().filter(|task| task.id == ids[0]).count(), 1, "its outdated copy is not listed");
    // It is archived a second time, in another object.
    queue.cancel(&ids[0]).await.unwrap();
    tokio::time::sleep(mins(6)).await;
    submit(&queue).await;
    tokio::time::sleep(mins(6)).await;
    let task = queue.get(&ids[0]).await.unwrap();
    assert_eq!((task.status(), task.generation), (Status::Cancelled, 1));
    assert_eq!(listed(&queue, Filter::default()).await.len(), 5);
    let unknown = TaskId::from_time(ids[0].time().unwrap(), 5);
    assert_eq!(queue.retry(&unknown).await.unwrap_err().reason(), Some(Reason::Missing));
    assert_eq!(queue.check(false).await.unwrap().tasks, 5);
    queue.close().await.unwrap();
    let next = journal.process().await;
    assert!(next.retry(&ids[1]).await.unwrap().is_done());
    assert_eq!(next.get(&ids[0]).await.unwrap(), task);
}

#[tokio::test(start_paused = true)]
async fn an_import_of_an_archived_task_leaves_it_as_it_is() {
    let journal = Journal::new();
    let queue = journal.process().await;
    let (ids, _) = archived(&journal, &queue, 2).await;
    let exported: Vec<ExportedTask> = queue.export().try_collect().await.unwrap();
    for task in exported.clone() {
        assert!(!queue.import(task).await.unwrap());
    }
    let other = Journal { host: journal.host.clone(), ..Journal::new() };
    let copy = other.process().await;
    for task in exported {
        assert!(copy.import(task).await.unwrap());
    }
    assert_eq!(copy.get(&ids[0]).await.unwrap().status(), Status::Cancelled);
}

#[tokio::test(start_paused = true)]
async fn a_retention_removes_archived_tasks() {
    let journal = Journal::new();
    let queue = journal.process().await;
    let (old, pending) = archived(&journal, &queue, 3).await;
    queue.cancel(&pending).await.unwrap();
    tokio::time::sleep(hours(30)).await;
    let (new, _) = archived(&journal, &queue, 2).await;
    assert_eq!(queue.purge_all(&all(hours(48))).await.unwrap().deleted, 0);
    let one = queue.get(&old[0]).await.unwrap();
    assert_eq!(queue.purge(&one, &all(hours(1))).await.unwrap(), Purged::Deleted);
    assert_eq!(queue.get(&old[0]).await.unwrap_err().reason(), Some(Reason::Missing));
    let recent = queue.get(&new[0]).await.unwrap();
    assert_eq!(queue.purge(&recent, &all(secs(1))).await.unwrap(), Purged::TooNew);
    assert_eq!(
        queue.purge_all(&all(hours(1))).await.unwrap().deleted,
        3,
        "two archived ones, and the pending one"
    );
    for id in old.iter().chain([&pending]) {
        assert_eq!(queue.get(id).await.unwrap_err().reason(), Some(Reason::Missing));
    }
    assert_eq!(listed(&queue, Filter::default()).await.len(), 3);
    assert_eq!(queue.check(false).await.unwrap().tasks, 3);
    // Removed objects are deleted an hour later, with the next snapshot.
    let before = archive(&journal).await.len();
    tokio::time::sleep(hours(2)).await;
    submit(&queue).await;
    tokio::time::sleep(mins(12)).await;
    let after = archive(&journal).await;
    assert!(after.len() < before, "{after:?}");
    assert_eq!(queue.check(false).await.unwrap().leftover, Vec::<String>::new());
}

/// A store in which puts of archive objects are written, but the process is stopped before it gets the answer.
#[derive(Debug)]
struct StopAfterArchive {
    inner: Arc<dyn Store>,
    is_stopped: AtomicBool,
}

impl DelegatingStore for StopAfterArchive {
    fn inner(&self) -> &dyn Store {
        &*self.inner
    }

    fn put<'a>(
        &'a self,
        key: &'a str,
        body: bytes::Bytes,
        when: &'a When,
    ) -> leasehold_store::store::Answer<'a, leasehold_store::PutAnswer> {
        Box::pin(async move {
            if self.is_stopped.load(Relaxed) {
                return std::future::pending().await;
            }
            let answer = self.inner.put(key, body, when).await;
            if key.starts_with(keys::JOURNAL_ARCHIVE) {
                self.is_stopped.store(true, Relaxed);
                return std::future::pending().await;
            }
            answer
        })
    }
}

#[tokio::test(start_paused = true)]
async fn a_broker_that_is_killed_between_object_and_record_loses_nothing() {
    let journal = Journal::new();
    let store = StopAfterArchive { inner: journal.store.clone(), is_stopped: AtomicBool::new(false) };
    let queue = journal.process_over(Arc::new(store)).await;
    let id = submit(&queue).await;
    queue.cancel(&id).await.unwrap();
    tokio::time::sleep(mins(6)).await;
    // A snapshot of tasks that have just ended archives nothing; the next one does.
    let _ = tokio::time::timeout(mins(1), submit(&queue)).await;
    tokio::time::sleep(mins(6)).await;
    assert_eq!(archive(&journal).await.len(), 1);
    drop(queue);
    let next = journal.process().await;
    let other = submit(&next).await;
    assert_eq!(next.get(&id).await.unwrap().status(), Status::Cancelled);
    assert_eq!(
        next.check(true).await.unwrap().leftover,
        Vec::<String>::new(),
        "it may be about to be logged"
    );
    tokio::time::sleep(hours(2)).await;
    submit(&next).await;
    tokio::time::sleep(mins(6)).await;
    let objects = archive(&journal).await.len();
    let checked = next.check(false).await.unwrap();
    assert_eq!((checked.leftover.len(), checked.repaired), (1, 0));
    let checked = next.check(true).await.unwrap();
    assert_eq!((checked.leftover.len(), checked.repaired), (1, 1));
    assert_eq!(archive(&journal).await.len(), objects - 1, "nothing else is deleted");
    assert_eq!(next.check(false).await.unwrap().leftover, Vec::<String>::new());
    for id in [id, other] {
        next.get(&id).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_missing_or_corrupt_archive_object_is_reported() {
    let journal = Journal::new();
    let queue = journal.process().await;
    let (ids, _) = archived(&journal, &queue, 2).await;
    let key = archive(&journal).await.remove(0);
    let body = journal.store.get(&key, None).await.unwrap().found().unwrap().body;
    let mut changed = body.to_vec();
    changed[body.len() / 2] ^= 1;
    journal.overwrite(&key, changed).await;
    assert_eq!(queue.get(&ids[0]).await.unwrap_err().kind(), Kind::Corrupt);
    journal.store.delete(&key).await.unwrap();
    let error = queue.get(&ids[0]).await.unwrap_err();
    assert!(error.kind() == Kind::Corrupt && error.to_string().contains(&key), "{error}");
    assert_eq!(queue.retry(&ids[0]).await.unwrap_err().kind(), Kind::Corrupt);
    let checked = queue.check(false).await.unwrap();
    assert_eq!((checked.corrupt.len(), checked.corrupt[0].key.clone()), (1, key));
    // Everything else goes on.
    let other = submit(&queue).await;
    assert_eq!(queue.get(&other).await.unwrap().id, other);
}

#[tokio::test]
async fn tasks_in_a_folder_are_archived() {
    let folder = tempfile::tempdir().unwrap();
    let archive = ArchiveLimits { age: Duration::ZERO, ..ArchiveLimits::default() };
    let snapshots = SnapshotLimits { commits: 1, archive, ..SnapshotLimits::default() };
    let config = || QueueConfig { layout: Some(LayoutName::Journal), snapshots, ..QueueConfig::default() };
    let queue = Queue::with_config(folder.path(), config()).await.unwrap();
    let mut ids = Vec::new();
    for _ in 0..30 {
        let id = submit(&queue).await;
        queue.cancel(&id).await.unwrap();
        ids.push(id);
    }
    queue.close().await.unwrap();
    assert!(folder.path().join("journal/0/archive").is_dir());
    let queue = Queue::with_config(folder.path(), config()).await.unwrap();
    assert_eq!(listed(&queue, Filter::default()).await.len(), 30);
    assert!(queue.retry(&ids[3]).await.unwrap().is_done());
    assert_eq!(queue.get(&ids[3]).await.unwrap().status(), Status::Pending);
    let checked = queue.check(true).await.unwrap();
    assert_eq!((checked.tasks, checked.corrupt), (30, vec![]));
}

#[tokio::test(start_paused = true)]
async fn small_objects_are_merged() {
    let journal = Journal::new();
    let archive_limits = ArchiveLimits { age: Duration::ZERO, small: 2, ..ArchiveLimits::default() };
    let snapshots = SnapshotLimits { commits: 4, archive: archive_limits, ..SnapshotLimits::default() };
    let config = QueueConfig {
        layout: Some(LayoutName::Journal),
        snapshots,
        transport: None,
        ..QueueConfig::default()
    };
    let client = Client::new(journal.store.clone(), journal.host.clone());
    let queue = Queue::with_config(client, config).await.unwrap();
    for _ in 0..40 {
        let id = submit(&queue).await;
        queue.cancel(&id).await.unwrap();
        tokio::time::sleep(secs(1)).await;
    }
    tokio::time::sleep(hours(2)).await;
    submit(&queue).await;
    tokio::time::sleep(mins(12)).await;
    let objects = archive(&journal).await;
    assert!(objects.len() <= 3, "{objects:?}");
    assert_eq!(listed(&queue, Filter::default()).await.len(), 41);
}
