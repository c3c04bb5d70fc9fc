//! Real worker processes with inboxes, on any store: one is killed with a full inbox.

use futures::StreamExt;
use leasehold_core::{WorkerId, keys};
use leasehold_queue::{DirectDispatch, Queue, QueueConfig};
use leasehold_store::{Client, List, Purpose};
use std::process::Child;
use std::time::Duration;

use super::crashes::{self, Place};

/// Short intervals, so that the tests wait little. A worker that is delayed for longer keeps its lease as long as no other
/// worker takes it.
const NAMES: [(&str, &str); 3] = [
    ("LEASEHOLD_WORKER_LEASE_DURATION_SECS", "6"),
    ("LEASEHOLD_WORKER_LEASE_RENEWAL_INTERVAL_SECS", "2"),
    ("LEASEHOLD_WORKER_OVERFLOW_SCAVENGE_INTERVAL_SECS", "4"),
];

/// Producer that caches its list of workers for the whole test.
pub(crate) async fn stubborn(place: &Place) -> Queue {
    let direct = DirectDispatch { discovery_ttl: Duration::from_hours(1), ..DirectDispatch::default() };
    let config = QueueConfig { direct: Some(direct), ..QueueConfig::default() };
    Queue::with_config(Client::open(&place.store, &place.options).unwrap(), config).await.unwrap()
}

pub(crate) async fn until_named(queue: &Queue, worker: &str) {
    let key = keys::inbox_lease(&WorkerId::checked("worker id", worker).unwrap());
    while leasehold_queue::read_lease(queue.client(), &key).await.unwrap().is_none() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Waits until the lease on a worker's inbox has expired, also by the clock of a process that has just started: after its
/// first requests on a busy machine it knows the store's time less exactly than this one.
async fn until_free(queue: &Queue, worker: &str) {
    let key = keys::inbox_lease(&WorkerId::checked("worker id", worker).unwrap());
    let lease = || leasehold_queue::read_lease(queue.client(), &key);
    let margin = Duration::from_secs(5);
    while !queue.now().unwrap().is_past(lease().await.unwrap().unwrap().expires_at.plus(margin)) {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn submit(queue: &Queue, tasks: usize) {
    let submits = (0..tasks).map(|number| queue.submit("t", number).max_attempts(crashes::ATTEMPTS));
    let submitted: Vec<_> = queue.submit_many(submits).collect().await;
    assert!(submitted.iter().all(Result::is_ok));
}

async fn count(queue: &Queue, prefix: &str) -> usize {
    queue.client().list(Purpose::Admin, &List::all(prefix)).await.unwrap().entries.len()
}

fn kill(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

/// A worker is killed with a full inbox; another worker that empties it is killed too. The remaining workers run all tasks,
/// also those that a producer puts there later; meanwhile the worker restarts with the same id.
pub(crate) async fn killed_with_a_full_inbox(place: &mut Place, tasks: usize) {
    let _machine = crashes::machine().await;
    place.variables.extend(NAMES.map(|(name, value)| (name, value.to_owned())));
    let (queue, stubborn) = (place.queue().await, stubborn(place).await);
    let dead = place.worker("dead", "t=sleep 120", &["--direct"]);
    until_named(&queue, "dead").await;
    submit(&stubborn, tasks).await;
    // Its id is in use while it runs.
    let report = place.command(&["worker", "--id", "dead", "--exec", "t=true", "--direct"]).output().unwrap();
    let complaint = String::from_utf8(report.stderr).unwrap();
    assert_eq!(report.status.code(), Some(75), "{complaint}");
    assert!(complaint.contains("worker id \"dead\" is in use until "), "{complaint}");
    kill(dead);
    let first = place.worker("first", "t=true", &["--direct"]);
    while count(&queue, keys::OVERFLOW).await == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    kill(first);
    let kinds = [("shared", &[][..]), ("leased", &["--shard-leasing"][..]), ("direct", &["--direct"][..])];
    let mut workers: Vec<_> = kinds.iter().map(|(id, more)| place.worker(id, "t=true", more)).collect();
    until_free(&queue, "dead").await;
    workers.push(place.worker("dead", "t=true", &["--direct"]));
    submit(&stubborn, 20).await;
    crashes::until_empty(&queue).await;
    for worker in workers {
        crashes::summary(worker);
    }
    assert_eq!(crashes::audit(&queue).await.tasks, tasks + 20, "a task was lost");
    assert_eq!(count(&queue, keys::INBOXES).await + count(&queue, keys::OVERFLOW).await, 0);
}
