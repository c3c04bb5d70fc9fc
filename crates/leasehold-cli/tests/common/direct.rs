//! Real worker processes with inboxes, on any store: one is killed with a full inbox.

use futures::StreamExt;
use leasehold_core::{WorkerId, keys};
use leasehold_queue::{DirectDispatch, ObjectQueue, Queue, QueueConfig};
use leasehold_store::{Client, List, Purpose};
use std::process::Child;
use std::time::Duration;

use super::crashes::{self, TestStore};

/// Short intervals, so that the tests wait little. A worker that is delayed for longer keeps its lease as long as no other
/// worker takes it.
const SHORT_LEASES: [(&str, &str); 3] = [
    ("LEASEHOLD_WORKER_LEASE_DURATION_SECS", "6"),
    ("LEASEHOLD_WORKER_LEASE_RENEWAL_INTERVAL_SECS", "2"),
    ("LEASEHOLD_WORKER_OVERFLOW_SCAVENGE_INTERVAL_SECS", "4"),
];

/// Producer that caches its list of workers for the whole test.
pub(crate) async fn producer_with_cached_workers(test_store: &TestStore) -> ObjectQueue {
    let direct = DirectDispatch { discovery_ttl: Duration::from_hours(1), ..DirectDispatch::default() };
    let config = QueueConfig { direct: Some(direct), ..QueueConfig::default() };
    ObjectQueue::with_config(Client::open(&test_store.store, &test_store.options).unwrap(), config)
        .await
        .unwrap()
}

pub(crate) async fn until_inbox_leased(queue: &ObjectQueue, worker: &str) {
    let key = keys::inbox_lease(&WorkerId::checked("worker id", worker).unwrap());
    while leasehold_queue::read_lease(queue.client(), &key).await.unwrap().is_none() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Waits until the lease on a worker's inbox has expired, also by the clock of a process that has just started: after its
/// first requests on a busy machine it knows the store's time less exactly than this one.
async fn until_free(queue: &ObjectQueue, worker: &str) {
    let key = keys::inbox_lease(&WorkerId::checked("worker id", worker).unwrap());
    let lease = || leasehold_queue::read_lease(queue.client(), &key);
    let margin = Duration::from_secs(5);
    while !queue.now().unwrap().is_past(lease().await.unwrap().unwrap().expires_at.plus(margin)) {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn submit(queue: &ObjectQueue, tasks: usize) {
    let submits = (0..tasks).map(|number| queue.submit("t", number).max_attempts(crashes::ATTEMPTS));
    let submitted: Vec<_> = Queue::from(queue.clone()).submit_many(submits).collect().await;
    assert!(submitted.iter().all(Result::is_ok));
}

async fn count(queue: &ObjectQueue, prefix: &str) -> usize {
    queue.client().list(Purpose::Admin, &List::all(prefix)).await.unwrap().entries.len()
}

fn kill(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

/// A worker is killed with a full inbox; another worker that empties it is killed too. The remaining workers run all tasks,
/// also those that a producer puts there later; meanwhile the worker restarts with the same id.
pub(crate) async fn killed_with_a_full_inbox(test_store: &mut TestStore, tasks: usize) {
    let _slot = crashes::process_slot().await;
    test_store.variables.extend(SHORT_LEASES.map(|(name, value)| (name, value.to_owned())));
    let (queue, producer) = (test_store.queue().await, producer_with_cached_workers(test_store).await);
    let dead = test_store.worker("dead", "t=sleep 120", &["--direct"]);
    until_inbox_leased(&queue, "dead").await;
    submit(&producer, tasks).await;
    // Its id is in use while it runs.
    let report =
        test_store.command(&["worker", "--id", "dead", "--exec", "t=true", "--direct"]).output().unwrap();
    let stderr = String::from_utf8(report.stderr).unwrap();
    assert_eq!(report.status.code(), Some(75), "{stderr}");
    assert!(stderr.contains("worker id `dead` is in use until "), "{stderr}");
    kill(dead);
    let first = test_store.worker("first", "t=true", &["--direct"]);
    while count(&queue, keys::OVERFLOW).await == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    kill(first);
    let kinds = [("shared", &[][..]), ("leased", &["--shard-leasing"][..]), ("direct", &["--direct"][..])];
    let mut workers: Vec<_> = kinds.iter().map(|(id, more)| test_store.worker(id, "t=true", more)).collect();
    until_free(&queue, "dead").await;
    workers.push(test_store.worker("dead", "t=true", &["--direct"]));
    submit(&producer, 20).await;
    crashes::until_empty(&queue).await;
    for worker in workers {
        crashes::summary(worker);
    }
    assert_eq!(crashes::audit(&queue).await.tasks, tasks + 20, "a task was lost");
    assert_eq!(count(&queue, keys::INBOXES).await + count(&queue, keys::OVERFLOW).await, 0);
}
