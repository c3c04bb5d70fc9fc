//! Operations on tasks: cancel, retry, reschedule.

use leasehold_core::new_task::Start;
use leasehold_core::{Index, Kind, NewTask, Rejected, Status, StoreTime, Task, TaskId};
use leasehold_queue::{Queue, QueueLayout, Settlement, Transition};
use serde_json::json;

use crate::support::audit::assert_covered;
use crate::support::{World, mins, order};

fn done(operated: Transition<Task>) -> Task {
    operated.done().expect("it is allowed")
}

#[tokio::test]
async fn a_pending_task_is_cancelled_at_once() {
    let world = World::new().await;
    let id = world.submit().await;
    let task = done(world.queue.cancel(&id).await.unwrap());
    assert_eq!(task.status(), Status::Cancelled);
    assert!(world.entries_of(&id, Index::Ready).await.is_empty());
    let again = world.queue.cancel(&id).await.unwrap();
    assert!(matches!(again, Transition::Rejected(Rejected::Status(Status::Cancelled), _)));
}

#[tokio::test]
async fn a_failed_or_cancelled_task_is_retried_with_all_its_attempts() {
    let world = World::new().await;
    let id = world.submit_this(NewTask { max_attempts: Some(1), ..order() }).await;
    for _ in 0..2 {
        let claimed = world.claim(&id).await;
        let failure = Settlement::Fail { error: "oh".into(), retryable: true, after: None };
        let task = world.queue.settle(&claimed, failure).await.unwrap().unwrap();
        assert_eq!(task.status(), Status::Failed);
        let task = done(world.queue.retry(&id).await.unwrap());
        assert_eq!((task.status(), task.attempt), (Status::Pending, 0));
        assert_covered(&world.store, "retried").await;
    }
    done(world.queue.cancel(&id).await.unwrap());
    done(world.queue.retry(&id).await.unwrap());
    let claimed = world.claim(&id).await;
    world.queue.settle(&claimed, Settlement::complete(json!(1))).await.unwrap().unwrap();
    let refused = world.queue.retry(&id).await.unwrap();
    assert!(matches!(refused, Transition::Rejected(Rejected::Status(Status::Completed), _)));
    let events: Vec<_> = Queue::from(world.queue.clone())
        .get_history(&id)
        .await
        .unwrap()
        .into_iter()
        .map(|change| change.event)
        .collect();
    assert_eq!(events.join(" "), "submit claim fail retry claim fail retry cancel retry claim complete");
}

#[tokio::test]
async fn an_expired_task_can_be_retried_and_does_not_expire_again() {
    let world = World::new().await;
    let id = world.submit_this(NewTask { expires_in: Some(mins(1)), ..order() }).await;
    world.advance(mins(2));
    let found = world.due(Index::Ready).await.pop().unwrap();
    world.queue.sweep(&found).await.unwrap();
    done(world.queue.retry(&id).await.unwrap());
    world.claim(&id).await;
}

#[tokio::test]
async fn a_task_can_be_rescheduled_earlier_and_later() {
    let world = World::new().await;
    let id = world.submit_this(NewTask { start: Start::After(mins(60)), ..order() }).await;
    assert!(world.due(Index::Ready).await.is_empty());
    done(world.queue.reschedule(&id, world.now()).await.unwrap());
    assert_covered(&world.store, "earlier").await;
    assert_eq!(world.due(Index::Ready).await.len(), 1);

    let later = world.now().plus(mins(60));
    done(world.queue.reschedule(&id, later).await.unwrap());
    assert_covered(&world.store, "later").await;
    assert!(world.due(Index::Ready).await.is_empty());
    assert_eq!(world.entries_of(&id, Index::Ready).await.len(), 1);
    world.advance(mins(60));
    assert!(world.try_claim(&id).await.is_ok());
    let refused = world.queue.reschedule(&id, later).await.unwrap();
    assert!(matches!(refused, Transition::Rejected(Rejected::Status(Status::Running), _)));
}

#[tokio::test]
async fn an_impossible_time_is_refused_and_nothing_is_written() {
    let world = World::new().await;
    let id = world.submit().await;
    let before = world.raw(&id).await;
    for at in [StoreTime::NEVER, StoreTime::from_millis(-1), StoreTime::from_millis(i64::MIN)] {
        let error = world.queue.reschedule(&id, at).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid, "{error}");
    }
    assert_eq!(world.raw(&id).await, before);
    assert_eq!(world.entries_of(&id, Index::Ready).await.len(), 1);
}

#[tokio::test]
async fn an_unknown_task_is_named() {
    let world = World::new().await;
    let id = TaskId::from_random(7);
    for error in [
        world.queue.cancel(&id).await.unwrap_err(),
        world.queue.retry(&id).await.unwrap_err(),
        world.queue.get(&id).await.unwrap_err(),
        Queue::from(world.queue.clone()).wait(&id, None).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), Kind::Invalid);
        assert_eq!(error.to_string(), format!("no task {id} in this queue"));
    }
}
