//! Workers on a spool: the same handlers as over a bucket, in simulated time.
#![expect(clippy::disallowed_methods, reason = "tests own what they start, in tokio's time")]

use futures::future::BoxFuture;
use leasehold_core::outpost::{Consistency, OpKind};
use leasehold_core::task::Claim;
use leasehold_core::{NewTask, Result, State, Task, TaskId};
use leasehold_outpost::{Checkout, OutpostConfig, Spool};
use leasehold_store::host::{Instant, Running};
use leasehold_store::{Host, SystemHost};
use leasehold_worker::{Context, Counts, Shutdown, TaskError, Worker, WorkerOptions};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;

use crate::suite::{self, Fixture};
use crate::support::{
    self, bucket, claim, config, folder, lease, of, op_names, ops, places, relaxed, remote, send_all,
    snapshot,
};

/// A machine in tokio's time, with one thread.
#[derive(Debug)]
struct TokioHost {
    started: tokio::time::Instant,
    drawn: AtomicU64,
}

impl Host for TokioHost {
    fn instant(&self) -> Instant {
        let passed = tokio::time::Instant::now().duration_since(self.started);
        let boot_ns = 1_000_000_000_000 + i64::try_from(passed.as_nanos()).unwrap();
        Instant { boot_ns, wall_ns: boot_ns }
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        SystemHost.sleep(duration)
    }

    fn random(&self) -> u64 {
        self.drawn
            .fetch_add(0x9e37_79b9_7f4a_7c15, Relaxed)
            .wrapping_mul(0xbf58_476d_1ce4_e5b9)
            .rotate_left(31)
    }

    fn spawn(&self, work: BoxFuture<'static, ()>) -> Running {
        SystemHost.spawn(work)
    }

    fn spawn_thread(&self, _name: &str, work: BoxFuture<'static, ()>) -> Running {
        SystemHost.spawn(work)
    }
}

struct Node {
    _data: TempDir,
    spool: Spool,
}

fn node(config: OutpostConfig) -> Node {
    let data = folder();
    let host = TokioHost { started: tokio::time::Instant::now(), drawn: AtomicU64::new(1) };
    let spool = Spool::create(data.path(), &of(), config, Arc::new(host)).unwrap();
    Node { _data: data, spool }
}

/// A spool that knows the bucket's time.
fn strict() -> Node {
    let node = node(config());
    assert_eq!(node.spool.config().consistency, Consistency::Strict);
    node.spool.record_bucket_time(bucket(0)).unwrap();
    node
}

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

async fn pass(duration: Duration) {
    tokio::time::sleep(duration).await;
}

impl Node {
    fn worker(&self) -> Worker {
        Worker::from_source(Arc::new(self.spool.clone()), self.spool.host().clone(), "w1").unwrap()
    }

    fn submit(&self, task_type: &str, input: Value) -> TaskId {
        self.spool.submit(NewTask::new(task_type, input).unwrap()).unwrap()
    }

    /// A task and its place: its folder, or `leased`.
    fn get(&self, id: &TaskId) -> (Task, &'static str) {
        let is_leased = self.spool.lease_of(id).unwrap().is_some();
        let place = if is_leased { "leased" } else { places(&self.spool, id)[0] };
        (self.spool.get(id).unwrap().expect("the task is here"), place)
    }

    fn task(&self, id: &TaskId) -> Task {
        self.get(id).0
    }
}

/// A worker with one handler, until nothing is left.
async fn work<F, R>(node: &Node, task_type: &str, run: F) -> Counts
where
    F: Fn(Context, Value) -> R + Send + Sync + 'static,
    R: Future<Output = std::result::Result<Value, TaskError>> + Send + 'static,
{
    node.worker().handle(task_type, run).unwrap().run_until_empty().await.unwrap()
}

type AtWork = (Shutdown, tokio::task::JoinHandle<Result<Counts>>);

fn start(worker: Worker) -> AtWork {
    let shutdown = Shutdown::default();
    (shutdown.clone(), tokio::spawn(worker.run(shutdown)))
}

async fn stop((shutdown, running): AtWork) -> Counts {
    shutdown.drain();
    running.await.unwrap().unwrap()
}

/// A handler that starts, records when it is asked to stop, and never ends.
fn endless(worker: Worker, stops: &Arc<AtomicU64>) -> Worker {
    let stops = stops.clone();
    let run = move |context: Context, _: Value| {
        let stops = stops.clone();
        async move {
            let _ended = Ended(stops);
            context.cancelled().await;
            std::future::pending::<std::result::Result<Value, TaskError>>().await
        }
    };
    worker.handle("work", run).unwrap()
}

struct Ended(Arc<AtomicU64>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.fetch_add(1, Relaxed);
    }
}

#[tokio::test(start_paused = true)]
async fn a_relaxed_node_works_without_any_bucket() {
    let node = node(relaxed());
    let ids: Vec<_> = (0..20).map(|number| node.submit("double", json!(number))).collect();
    let wrong = node.submit("double", json!("two"));
    let other = node.submit("unknown", json!(0));
    let double = async |_: Context, number: u64| Ok::<_, TaskError>(2 * number);
    let worker = node.worker().handle("double", double).unwrap();
    let view = worker.view();
    let counts = worker.run_until_empty().await.unwrap();
    assert_eq!((counts.started, counts.completed, counts.failed, counts.lost), (21, 20, 1, 0));
    assert_eq!(view.counts(), counts);
    for (number, id) in ids.iter().enumerate() {
        let (task, place) = node.get(id);
        assert_eq!((task.output(), place), (Some(&json!(2 * number)), "completed"));
        assert_eq!(places(&node.spool, id), ["completed"]);
    }
    assert_eq!(node.get(&wrong).1, "failed", "what does not fit the handler fails permanently");
    assert_eq!(node.get(&other).1, "pending", "a task of an unhandled type stays");
    let mut counts = BTreeMap::<String, u64>::new();
    for name in op_names(&node.spool) {
        *counts.entry(name).or_default() += 1;
    }
    let counts: Vec<_> = counts.iter().map(|(name, times)| (name.as_str(), *times)).collect();
    assert_eq!(counts, [("claim", 21), ("complete", 20), ("fail", 1), ("submit", 22)]);
}

#[tokio::test(start_paused = true)]
async fn a_task_that_fails_permanently_stays_for_an_operator() {
    let node = node(relaxed());
    let often = node.spool.submit(NewTask { max_attempts: Some(2), ..support::order() }).unwrap();
    let at_once = node.submit("never", json!(null));
    let worker = node
        .worker()
        .handle("work", async |_: Context, _: Value| {
            Err::<(), _>(TaskError::RetryAfter("oh".into(), secs(3)))
        })
        .unwrap()
        .handle("never", async |_: Context, _: Value| Err::<(), _>(TaskError::Permanent("no".into())))
        .unwrap();
    let counts = worker.run_until_empty().await.unwrap();
    assert_eq!((counts.started, counts.failed, counts.requeued), (3, 2, 1));
    for (id, error) in [(often, "oh"), (at_once, "no")] {
        let (task, place) = node.get(&id);
        assert_eq!((task.error.as_deref(), place), (Some(error), "failed"));
    }
    let huge = node.submit("huge", json!(null));
    work(&node, "huge", |_, _| async { Ok(json!("x".repeat(3_000_000))) }).await;
    let (task, place) = node.get(&huge);
    assert_eq!(place, "failed");
    assert!(task.error.unwrap().contains("output"), "an output that is too large fails permanently");
}

#[tokio::test(start_paused = true)]
async fn a_failed_task_has_the_attempt_limit_of_its_handler() {
    let node = node(relaxed());
    let id = node.submit("work", json!(null));
    work(&node, "work", |context, _| async move {
        let attempt = context.task().attempt;
        let error = format!("attempt {attempt}");
        if attempt < 3 {
            return Err(TaskError::RetryAfter(error, secs(3)));
        }
        Err(TaskError::Exhausted(error, 3))
    })
    .await;
    let (task, place) = node.get(&id);
    assert_eq!((task.attempt, task.max_attempts, place), (3, 3, "failed"));
    // The bucket gets it, too.
    let sent = serde_json::to_value(ops(&node.spool).last().unwrap()).unwrap();
    assert_eq!((&sent["op"], &sent["max_attempts"]), (&json!("fail"), &json!(3)), "{sent}");
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_has_lost_its_task_is_stopped_and_writes_nothing() {
    let (node, stops) = (node(relaxed()), Arc::new(AtomicU64::new(0)));
    let id = node.submit("work", json!(null));
    let at_work = start(endless(node.worker(), &stops));
    pass(secs(1)).await;
    let held = lease(&node.spool, &id).unwrap();
    assert!(node.spool.revoke(&id, &held.lease_id, false).unwrap());
    let before = snapshot(node.spool.root());
    pass(secs(6)).await;
    assert_eq!(stops.load(Relaxed), 1);
    let counts = stop(at_work).await;
    assert_eq!((counts.started, counts.lost, counts.requeued), (1, 1, 0));
    assert_eq!(snapshot(node.spool.root()), before);
}

/// The handler ends between two checks of the lease, when the task is no longer its own.
#[tokio::test(start_paused = true)]
async fn a_result_that_comes_after_the_task_was_lost_is_only_kept() {
    let node = node(relaxed());
    let id = node.submit("work", json!(null));
    let (spool, seen) = (node.spool.clone(), Arc::new(Mutex::new(None)));
    let kept = seen.clone();
    let counts = work(&node, "work", move |_, _| {
        let held = lease(&spool, &id).unwrap();
        spool.revoke(&id, &held.lease_id, false).unwrap();
        *kept.lock().unwrap() = Some(snapshot(spool.root()));
        async { Ok(json!("late")) }
    })
    .await;
    assert_eq!((counts.completed, counts.lost), (0, 1));
    let mut after = snapshot(node.spool.root());
    let in_conflicts =
        |path: &std::path::PathBuf| path.parent().is_some_and(|folder| folder.ends_with("conflicts"));
    let kept: Vec<_> = after.keys().filter(|path| in_conflicts(path)).cloned().collect();
    assert_eq!(kept.len(), 1);
    let body = String::from_utf8(after.remove(&kept[0]).unwrap()).unwrap();
    assert!(body.contains("late") && body.contains("taken_by_others"), "{body}");
    assert_eq!(Some(after), seen.lock().unwrap().take());
}

#[tokio::test(start_paused = true)]
async fn heartbeats_renew_the_lease_of_a_long_run() {
    let node = node(relaxed());
    let id = node.submit("work", json!(null));
    let worker = node.worker().handle("work", async |_: Context, _: Value| {
        pass(Duration::from_mins(25)).await;
        Ok::<_, TaskError>("done")
    });
    let at_work = start(worker.unwrap());
    pass(secs(1)).await;
    let first = lease(&node.spool, &id).unwrap();
    for minute in 1..=24 {
        pass(Duration::from_mins(1)).await;
        let now = lease(&node.spool, &id).unwrap();
        assert_eq!(now.lease_id, first.lease_id, "minute {minute}");
        assert!(!now.is_stale(&node.spool.now()), "minute {minute}");
        let silent = node.spool.now().boot.since(now.heartbeat_at);
        assert!(silent <= secs(66), "minute {minute}: no heartbeat for {silent:?}");
        assert!(claim(&node.spool, &id, "w2").is_none());
    }
    pass(Duration::from_mins(2)).await;
    let counts = stop(at_work).await;
    assert_eq!((counts.started, counts.completed, counts.lost), (1, 1, 0));
}

#[tokio::test(start_paused = true)]
async fn the_task_of_a_crashed_worker_is_waited_for() {
    let node = node(relaxed());
    let id = node.submit("work", json!(null));
    claim(&node.spool, &id, "dead").unwrap();
    let began = tokio::time::Instant::now();
    let counts = work(&node, "work", |context, _| async move { Ok(json!(context.epoch())) }).await;
    assert!(began.elapsed() > Duration::from_mins(10));
    assert_eq!((counts.started, counts.completed), (1, 1));
    let task = node.task(&id);
    assert_eq!((task.epoch, task.attempt, task.output()), (2, 2, Some(&json!(2))));
}

#[tokio::test(start_paused = true)]
async fn a_new_task_is_found_soon() {
    let node = node(relaxed());
    let worker = node.worker().handle("work", async |_: Context, _: Value| Ok::<_, TaskError>(()));
    let at_work = start(worker.unwrap());
    pass(secs(600)).await;
    let id = node.submit("work", json!(null));
    pass(Duration::from_millis(2_100)).await;
    assert_eq!(node.get(&id).1, "completed");
    stop(at_work).await;
}

#[tokio::test(start_paused = true)]
async fn a_strict_node_starts_nothing_that_the_bucket_has_not_confirmed() {
    let node = strict();
    let ids: Vec<_> = (0..3).map(|_| node.submit("work", json!(null))).collect();
    let worker = node.worker().handle("work", async |_: Context, _: Value| Ok::<_, TaskError>(()));
    let at_work = start(worker.unwrap());
    pass(secs(30)).await;
    assert!(ids.iter().all(|id| node.get(id).1 == "leased"), "they wait for its word");
    pass(secs(40)).await;
    assert!(ids.iter().all(|id| node.get(id).1 == "pending"), "and are released");
    pass(Duration::from_hours(6)).await;
    let op_count = op_names(&node.spool).len();
    assert!(op_count < 3 + 6 * 30, "{op_count} operations in an outbox that is never emptied");
    let counts = stop(at_work).await;
    assert_eq!(counts, Counts::default());
    assert!(ids.iter().all(|id| node.task(id).attempt == 0));
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_waits_for_a_confirmation_releases_its_task_when_stopped() {
    let node = strict();
    let id = node.submit("work", json!(null));
    let worker = node.worker().handle("work", async |_: Context, _: Value| Ok::<_, TaskError>(()));
    let at_work = start(worker.unwrap());
    pass(secs(5)).await;
    let began = tokio::time::Instant::now();
    assert_eq!(stop(at_work).await, Counts::default());
    assert!(began.elapsed() < secs(1));
    assert_eq!(node.get(&id).1, "pending");
}

#[tokio::test(start_paused = true)]
async fn a_strict_node_runs_checked_out_tasks_while_the_bucket_is_unreachable() {
    let node = strict();
    let mine = node.submit("work", json!(null));
    let worker = node
        .worker()
        .handle("work", async |context: Context, _: Value| Ok::<_, TaskError>(json!(context.epoch())));
    let at_work = start(worker.unwrap());
    pass(secs(90)).await;
    let (task, checkout) = checked_out(&node, 7);
    node.spool.mirror(&task, Some(checkout.clone())).unwrap();
    pass(secs(3)).await;
    let (done, place) = node.get(&task.id);
    assert_eq!((done.output(), place), (Some(&json!(5)), "completed"), "with the epoch that it has there");
    assert_eq!(done.lease_id, Some(checkout.lease_id));
    assert_eq!(node.get(&mine).1, "pending");
    let counts = stop(at_work).await;
    assert_eq!((counts.started, counts.completed), (1, 1));
}

/// A task of the bucket that is claimed there for this node.
fn checked_out(node: &Node, bits: u128) -> (Task, Checkout) {
    let now = node.spool.now().bucket.unwrap().earliest;
    let expires_at = now.plus(Duration::from_hours(1));
    let lease_id = leasehold_core::HexName::from_random(bits);
    let claim = Claim { by: support::worker("pi-1"), expires_at, renewed_at: None, cancel_requested: false };
    let before = remote(bits);
    let task = Task {
        state: State::Running(claim),
        epoch: 5,
        attempt: 1,
        lease_id: Some(lease_id.clone()),
        updated_at: now,
        ..before
    };
    (task, Checkout { lease_id, epoch: 5, expires_at, is_extended: false })
}

#[tokio::test(start_paused = true)]
async fn a_strict_node_starts_what_the_bucket_confirms_with_its_epoch() {
    let node = strict();
    let task = remote(9);
    node.spool.mirror(&task, None).unwrap();
    let worker = node.worker().handle("work", async |context: Context, _: Value| {
        pass(Duration::from_mins(12)).await;
        Ok::<_, TaskError>(json!([context.epoch(), context.attempt()]))
    });
    let at_work = start(worker.unwrap());
    pass(secs(10)).await;
    let claims: Vec<_> =
        ops(&node.spool).into_iter().filter(|op| matches!(op.kind, OpKind::Claim { .. })).collect();
    let lease_id = claims[0].kind.lease_id().unwrap().clone();
    let (confirmed, _) = checked_out(&node, 9);
    let confirmed = Task { lease_id: Some(lease_id.clone()), attempt: 2, ..confirmed };
    assert!(node.spool.confirm(&task.id, &lease_id, &confirmed).unwrap());
    send_all(&node.spool);
    pass(Duration::from_mins(13)).await;
    let (done, place) = node.get(&task.id);
    assert_eq!((done.output(), place), (Some(&json!([5, 2])), "completed"));
    let counts = stop(at_work).await;
    assert_eq!((counts.started, counts.completed), (1, 1));
    assert_eq!(op_names(&node.spool), ["complete"]);
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_the_bucket_refuses_is_not_run() {
    let node = strict();
    let id = node.submit("work", json!(null));
    let worker = node.worker().handle("work", async |_: Context, _: Value| Ok::<_, TaskError>(()));
    let at_work = start(worker.unwrap());
    pass(secs(2)).await;
    let held = lease(&node.spool, &id).unwrap();
    assert!(node.spool.revoke(&id, &held.lease_id, false).unwrap());
    pass(secs(2)).await;
    assert_eq!(stop(at_work).await, Counts::default());
    assert!(places(&node.spool, &id).is_empty());
}

/// A spool on the real machine, without a bucket.
struct SpoolFixture {
    _data: TempDir,
    spool: Spool,
}

impl Fixture for SpoolFixture {
    fn worker(&self, id: &str) -> Worker {
        Worker::from_source(Arc::new(self.spool.clone()), self.spool.host().clone(), id).unwrap()
    }

    fn options(&self) -> WorkerOptions {
        WorkerOptions::default()
    }

    fn submit(&self, task: NewTask) -> BoxFuture<'_, TaskId> {
        let id = self.spool.submit(task).unwrap();
        Box::pin(async move { id })
    }

    fn get(&self, id: TaskId) -> BoxFuture<'_, Task> {
        let task = self.spool.get(&id).unwrap().expect("the task is here");
        Box::pin(async { task })
    }

    fn cancel(&self, id: TaskId) -> BoxFuture<'_, ()> {
        self.spool.cancel(&id).unwrap();
        Box::pin(async {})
    }

    fn hold(&self, id: TaskId) -> BoxFuture<'_, ()> {
        claim(&self.spool, &id, "other").unwrap();
        Box::pin(async {})
    }

    fn revoke(&self, id: TaskId) -> BoxFuture<'_, ()> {
        let held = lease(&self.spool, &id).unwrap();
        assert!(self.spool.revoke(&id, &held.lease_id, false).unwrap());
        Box::pin(async {})
    }
}

/// Runs on real threads for blocking work and heartbeats.
#[tokio::test(flavor = "multi_thread")]
async fn over_a_spool() {
    suite::run(|| {
        let data = folder();
        let spool = support::real(data.path());
        Box::pin(async { Arc::new(SpoolFixture { _data: data, spool }) as Arc<dyn Fixture> })
    })
    .await;
}
