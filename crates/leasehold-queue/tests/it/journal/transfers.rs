//! Export and import between layouts.

use futures::TryStreamExt;
use leasehold_core::{Kind, Reason, ShardLen, Status, Task};
use leasehold_queue::ExportedTask;
use leasehold_queue::unique::Scope;
use leasehold_queue::{Queue, QueueConfig, Settlement, UniqueKey};
use leasehold_store::{Client, MemoryStore};
use serde_json::json;
use std::sync::Arc;

use super::{Journal, LEASE, TestWorker, submit};
use crate::support::audit::assert_covered;
use crate::support::stage::Fate;
use crate::support::{World, audit, mins, order, secs};

async fn exported(queue: &Queue) -> Vec<ExportedTask> {
    let mut tasks: Vec<_> = queue.export().try_collect().await.unwrap();
    tasks.sort_by_key(|exported| exported.task.id);
    tasks
}

/// Imports all tasks, and returns the number of new ones.
async fn import(queue: &Queue, tasks: &[ExportedTask]) -> usize {
    let mut new = 0;
    for task in tasks {
        // As lines of a file.
        let line = task.encode();
        new += usize::from(queue.import(ExportedTask::decode(line.body()).unwrap()).await.unwrap());
    }
    new
}

/// Tasks without what depends on the layout.
fn tasks(exported: &[ExportedTask]) -> Vec<Task> {
    let task = |task: &Task| Task { shard: ShardLen::DEFAULT.shard_of(&task.id), ..task.clone() };
    exported.iter().map(|exported| task(&exported.task)).collect()
}

/// Queue with a task in each status, and two keys.
async fn filled(journal: &Journal) -> Queue {
    let queue = journal.process().await;
    let mut worker = TestWorker::new(&queue, 3, false).await;
    for _ in 0..3 {
        submit(&queue).await;
    }
    let (mut one, mut two, _running) = (worker.one().await, worker.one().await, worker.one().await);
    one.task.finish(Settlement::complete(json!({"n": 1}))).await.unwrap();
    let broken = Settlement::Fail { error: "broken".into(), retryable: false, after: None };
    two.task.finish(broken).await.unwrap();
    worker.slots.close();
    queue.submit("keyed", 1).delay(mins(20)).key("a").await.unwrap();
    let scoped = UniqueKey { scope: Scope::TaskType, ..UniqueKey::new("b") };
    queue.submit("keyed", 2).delay(mins(20)).key(scoped).await.unwrap();
    let cancelled = queue.submit("later", 3).delay(mins(20)).await.unwrap().id;
    queue.cancel(&cancelled).await.unwrap();
    queue
}

#[tokio::test(start_paused = true)]
async fn tasks_move_from_a_journal_to_objects_and_back() {
    let journal = Journal::new();
    let first = exported(&filled(&journal).await).await;
    assert_eq!(first.len(), 6);
    assert_eq!(first.iter().filter(|exported| exported.key.is_some()).count(), 2);
    let store = Arc::new(MemoryStore::new(&journal.host));
    let config = QueueConfig { shard_prefix_len: Some(2), ..QueueConfig::default() };
    let objects = Queue::with_config(Client::new(store.clone(), journal.host.clone()), config).await.unwrap();
    assert_eq!(import(&objects, &first).await, 6);
    assert_eq!(import(&objects, &first).await, 0, "it is repeated");
    assert_covered(&store, "imported").await;
    assert_eq!(objects.check(false).await.unwrap().corrupt, []);
    let second = exported(&objects).await;
    assert_eq!(tasks(&second), tasks(&first));
    let keys = |exported: &[ExportedTask]| exported.iter().map(|exported| exported.key).collect::<Vec<_>>();
    assert_eq!(keys(&second), keys(&first));
    let other = Journal::new();
    let other = Journal { host: journal.host.clone(), ..other };
    let back = other.process().await;
    assert_eq!((import(&back, &second).await, import(&back, &second).await), (6, 0));
    assert_eq!(tasks(&exported(&back).await), tasks(&first));
    for queue in [&objects, &back] {
        let again = queue.submit("keyed", 1).key("a").await.unwrap();
        assert!(!again.is_new && first.iter().any(|exported| exported.task.id == again.id));
        assert!(queue.submit("other", 2).key("b").await.unwrap().is_new, "the scope is kept");
    }
    // The next broker replays what was imported; the claim expires there.
    let running = first.iter().find(|exported| exported.task.status() == Status::Running).unwrap();
    back.close().await.unwrap();
    let next = other.process().await;
    assert_eq!(next.get(&running.task.id).await.unwrap(), back.get(&running.task.id).await.unwrap());
    submit(&next).await;
    tokio::time::sleep(LEASE + secs(40)).await;
    assert_eq!(next.get(&running.task.id).await.unwrap().status(), Status::Pending);
}

#[tokio::test(start_paused = true)]
async fn another_task_with_the_id_or_the_key_is_not_overwritten() {
    let journal = Journal::new();
    let queue = journal.process().await;
    let id = queue.submit("work", 1).key("a").await.unwrap().id;
    let objects = World::new().await;
    let objects: Queue = objects.queue.into();
    let exported = exported(&queue).await.remove(0);
    assert!(objects.import(exported.clone()).await.unwrap());
    for queue in [&queue, &objects] {
        let before = queue.get(&id).await.unwrap();
        let mut other = exported.clone();
        other.task.input = json!(2);
        let error = queue.import(other).await.unwrap_err();
        assert_eq!((error.kind(), error.reason()), (Kind::Invalid, Some(Reason::Conflict)), "{error}");
        let mut other = exported.clone();
        other.task.id = leasehold_core::TaskId::from_random(7);
        let error = queue.import(other).await.unwrap_err();
        assert_eq!((error.kind(), error.reason()), (Kind::Invalid, Some(Reason::Conflict)), "{error}");
        assert_eq!(queue.get(&id).await.unwrap(), before);
    }
}

#[tokio::test]
async fn an_import_that_dies_at_any_request_is_completed_by_the_next() {
    let source = World::new().await;
    source.queue.submit_task(order()).key("a").await.unwrap();
    let source: Queue = source.queue.into();
    let task = exported(&source).await.remove(0);
    let world = World::new().await;
    let (queue, stage) = world.staged().await;
    stage.play_at(usize::MAX, Fate::Pass);
    assert!(queue.import(task.clone()).await.unwrap());
    let requests = stage.asked().len();
    assert!(requests >= 4, "a read, the key, the entry, the task: {requests}");
    for number in 0..requests {
        for fate in [Fate::Die, Fate::PassThenDie, Fate::HoldThenDie, Fate::LoseAnswer] {
            let context = format!("request {number} {fate:?}");
            let world = World::new().await;
            let (queue, stage) = world.staged().await;
            stage.play_at(number, fate);
            // The task may have been written before the process crashed.
            let _ = queue.import(task.clone()).await;
            assert_covered(&world.store, &context).await;
            let next: Queue = world.queue.clone().into();
            next.import(task.clone()).await.unwrap();
            stage.apply_late().await;
            assert_covered(&world.store, &context).await;
            assert_eq!(audit::keys(&world.store, "tasks/").await.len(), 1, "{context}");
            assert_eq!(next.get(&task.task.id).await.unwrap(), task.task, "{context}");
            let again = next.submit_task(order()).key("a").await.unwrap();
            assert_eq!((again.id, again.is_new), (task.task.id, false), "{context}");
        }
    }
}
