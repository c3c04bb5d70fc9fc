//! Get, list, wait, count.

use futures::{StreamExt, TryStreamExt};
use leasehold_core::new_task::Start;
use leasehold_core::{Kind, NewTask, Reason, Status};
use leasehold_queue::{Filter, ListedTask, Queue, QueueLayout, Settlement};
use serde_json::json;

use crate::support::stage::Fate;
use crate::support::{World, mins, order, requests, secs};

#[tokio::test]
async fn lists_show_matching_tasks_and_no_tombstones() {
    let world = World::new().await;
    for n in 0..40 {
        let task_type = if n % 2 == 0 { "resize" } else { "shrink" };
        let tags = [("customer".to_owned(), (n % 4).to_string())].into();
        let id = world.submit_this(NewTask { tags, ..NewTask::new(task_type, json!(n)).unwrap() }).await;
        if n < 10 {
            world.queue.cancel(&id).await.unwrap();
        }
    }
    let (queue, stage) = world.staged().await;
    stage.play_at(1, Fate::Die);
    queue.submit_task(order()).await.unwrap_err();
    crate::support::recovery::recover(&world, 0, "").await;
    let count = async |filter: Filter| {
        world.queue.list(filter).filter(|task| futures::future::ready(task.is_ok())).count().await
    };
    assert_eq!(count(Filter::default()).await, 40);
    assert_eq!(count(Filter { status: Some(Status::Cancelled), ..Filter::default() }).await, 10);
    assert_eq!(count(Filter { task_type: Some("resize".into()), ..Filter::default() }).await, 20);
    let tags = [("customer".to_owned(), "3".to_owned())].into();
    assert_eq!(count(Filter { tags, status: Some(Status::Pending), ..Filter::default() }).await, 8);
    let tags = [("customer".to_owned(), "4".to_owned())].into();
    assert_eq!(count(Filter { tags, ..Filter::default() }).await, 0);
}

#[tokio::test]
async fn timestamps_show_which_tasks_to_read_again() {
    let world = World::new().await;
    let ids = [world.submit_this(order()).await, world.submit_this(order()).await];
    let listed = async || -> Vec<ListedTask> { world.queue.list_timestamps().try_collect().await.unwrap() };
    let before = listed().await;
    assert_eq!(before.len(), 2);
    world.queue.cancel(&ids[0]).await.unwrap();
    let changed: Vec<_> = listed().await.into_iter().filter(|one| !before.contains(one)).collect();
    let [changed] = changed.as_slice() else { panic!("{changed:?}") };
    let task = world.queue.read_listed(changed).await.unwrap().unwrap();
    assert_eq!((task.id, task.status()), (ids[0], Status::Cancelled));
}

#[tokio::test]
async fn counts_come_from_the_index_and_tasks_are_read_once() {
    let world = World::new().await;
    for _ in 0..3 {
        world.submit().await;
    }
    let running = world.submit().await;
    world.claim(&running).await;
    world.submit_this(NewTask { start: Start::After(mins(60)), ..order() }).await;
    world.advance(mins(10));
    let before = world.ledger();
    let stats = world.queue.stats().await.unwrap();
    // Ready and lease entries, the inboxes and the overflow; and three tasks that were not claimed for long.
    assert_eq!(requests(&world.queue, &before), [0, 3, 4, 0]);
    let before = world.ledger();
    assert_eq!(world.queue.stats().await.unwrap(), stats);
    assert_eq!(requests(&world.queue, &before), [0, 0, 4, 0]);
    assert_eq!((stats.due, stats.scheduled, stats.running), (3, 1, 1));
    assert!(stats.oldest_due_secs.is_some_and(|oldest| (600..660).contains(&oldest)), "{stats:?}");
    let by_shard = stats.shards.values().fold([0; 3], |sum, shard| [0, 1, 2].map(|n| sum[n] + shard[n]));
    assert_eq!(by_shard, [3, 1, 1]);
}

#[tokio::test]
async fn an_entry_without_a_task_is_not_due() {
    let world = World::new().await;
    let (queue, stage) = world.staged().await;
    stage.play_at(1, Fate::Die);
    queue.submit_task(order()).await.unwrap_err();
    let before = world.ledger();
    let stats = world.queue.stats().await.unwrap();
    assert_eq!((stats.due, stats.without_task), (1, 0), "its producer may be between its two writes");
    assert_eq!(requests(&world.queue, &before), [0, 0, 4, 0]);
    world.advance(secs(11));
    for gets in [1, 0] {
        let before = world.ledger();
        let stats = world.queue.stats().await.unwrap();
        assert_eq!((stats.due, stats.without_task, stats.oldest_due_secs), (0, 1, None));
        assert!(stats.shards.values().all(|counts| *counts == [0; 3]));
        assert_eq!(requests(&world.queue, &before), [0, gets, 4, 0]);
    }
    world.advance(mins(1));
    let before = world.ledger();
    world.queue.stats().await.unwrap();
    // The task may have been written since, or be at another key by now, which `queue.json` shows.
    assert_eq!(requests(&world.queue, &before), [0, 2, 4, 0]);
}

#[tokio::test]
async fn a_wait_ends_with_the_task() {
    let world = World::new().await;
    let id = world.submit().await;
    let claimed = world.claim(&id).await;
    let (queue, stage) = world.staged().await;
    let others = world.clone();
    stage.interrupt(|number, _| number == 3, async move {
        others.queue.settle(&claimed, Settlement::complete(json!(7))).await.unwrap().unwrap();
    });
    let task = Queue::from(queue.clone()).wait(&id, Some(mins(1))).await.unwrap();
    assert_eq!(task.status(), Status::Completed);
    assert_eq!(stage.asked().len(), 4);
}

#[tokio::test]
async fn a_wait_is_not_longer_than_its_limit() {
    let world = World::new().await;
    let id = world.submit().await;
    let started = world.now();
    let error = Queue::from(world.queue.clone()).wait(&id, Some(secs(20))).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    assert_eq!(world.now().since(started), secs(20));
}

#[tokio::test]
async fn a_task_is_found_by_the_first_characters_of_its_id() {
    for digits in [1, 4] {
        let world = World::with_shards(digits).await;
        let id = world.submit().await;
        for _ in 0..20 {
            world.submit().await;
        }
        let before = world.ledger();
        let prefix = id.to_string()[..20].parse().unwrap();
        assert_eq!(world.queue.find(&prefix).await.unwrap(), id);
        assert_eq!(requests(&world.queue, &before), [0, 0, 1, 0]);
        let missing = world.queue.find(&"00000000-0000-4000-8000-0".parse().unwrap()).await.unwrap_err();
        assert_eq!(missing.reason(), Some(Reason::Missing));
    }
}
