//! An outpost behind the front of a queue: the operations that it has, and those that it refuses.

use futures::TryStreamExt;
use leasehold_core::{Kind, Reason, Rejected, Status};
use leasehold_outpost::QueueType;
use leasehold_queue::{Filter, Queue, Scope, Transition, UniqueKey};
use serde_json::json;
use std::time::Duration;

use crate::support::{claim, complete, test_spool};

#[tokio::test]
async fn a_task_is_submitted_once_per_key_and_read_and_waited_for() {
    let test = test_spool();
    let queue = Queue::from(test.spool.clone());
    let first = queue.submit("work", json!({"n": 1})).key("once").await.unwrap();
    assert!(first.is_new);
    let second = queue.submit("work", json!({"n": 1})).key("once").await.unwrap();
    assert_eq!((second.id, second.is_new, second.existing), (first.id, false, Some(Status::Pending)));
    let other = queue.submit("work", json!({"n": 2})).key("once").await.unwrap_err();
    assert_eq!((other.kind(), other.reason()), (Kind::Invalid, Some(Reason::Conflict)));
    let waiting = queue.wait(&first.id, Some(Duration::ZERO)).await.unwrap_err();
    assert_eq!(waiting.reason(), Some(Reason::NotYet));
    let held = claim(&test.spool, &first.id, "w").unwrap();
    complete(&test.spool, &held).unwrap();
    assert_eq!(queue.wait(&first.id, None).await.unwrap().status(), Status::Completed);
    let events: Vec<_> = queue.get_history(&first.id).await.unwrap();
    assert_eq!(events.last().map(|change| change.event.as_str()), Some("complete"));
}

#[tokio::test]
async fn cancel_and_retry_return_the_task_or_why_not() {
    let test = test_spool();
    let queue = Queue::from(test.spool.clone());
    let id = queue.submit("work", 1).await.unwrap().id;
    let cancelled = queue.cancel(&id).await.unwrap();
    assert!(matches!(cancelled, Transition::Done(task) if task.status() == Status::Cancelled));
    let again = queue.cancel(&id).await.unwrap();
    assert!(matches!(again, Transition::Rejected(Rejected::Status(Status::Cancelled), _)), "{again:?}");
    assert!(queue.retry(&id).await.unwrap().is_done());
    assert!(matches!(queue.retry(&id).await.unwrap(), Transition::Rejected(..)));
    let unknown = leasehold_core::TaskId::from_random(7);
    assert_eq!(queue.cancel(&unknown).await.unwrap_err().reason(), Some(Reason::Missing));
    assert_eq!(queue.get(&unknown).await.unwrap_err().reason(), Some(Reason::Missing));
}

#[tokio::test]
async fn what_an_outpost_does_not_have_is_refused_with_what_to_use_instead() {
    let test = test_spool();
    let queue = Queue::from(test.spool.clone());
    let id = queue.submit("work", 1).await.unwrap().id;
    let later = queue.now().unwrap().earliest.plus(Duration::from_mins(1));
    let key = UniqueKey { scope: Scope::TaskType, ..UniqueKey::new("k") };
    for error in [
        queue.stats().await.unwrap_err(),
        queue.check(false).await.unwrap_err(),
        queue.list(Filter::default()).try_collect::<Vec<_>>().await.unwrap_err(),
        queue.reschedule(&id, later).await.unwrap_err(),
        queue.submit("work", 1).key(key).await.unwrap_err(),
        queue.objects().unwrap_err(),
        queue.client().unwrap_err(),
    ] {
        assert_eq!(error.kind(), Kind::Invalid, "{error}");
        let message = error.to_string();
        assert!(message.starts_with("an outpost cannot "), "{message}");
        let way_out = "; open its queue in the bucket instead, with LEASEHOLD_QUEUE_TYPE=bucket";
        assert!(message.ends_with(way_out), "{message}");
    }
}

#[test]
fn the_error_for_an_unknown_type_names_the_known_ones() {
    for kind in [QueueType::Bucket, QueueType::Filesystem] {
        assert_eq!(kind.to_string().parse::<QueueType>().unwrap(), kind);
    }
    let error = "folder".parse::<QueueType>().unwrap_err();
    assert_eq!(error.to_string(), "unknown queue type `folder`; use bucket or filesystem");
}
