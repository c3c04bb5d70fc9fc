//! The suite of workers, over any source of tasks. Each crate with a source runs it.
//!
//! Every case starts a worker first and submits tasks when it is ready, so that they take the usual way of the source.
#![expect(clippy::disallowed_methods, reason = "tests own what they start, on the real machine")]

use futures::future::{BoxFuture, join_all};
use leasehold_core::{NewTask, RetryPolicy, Status, Task, TaskId};
use leasehold_worker::{Context, Counts, DrainWait, Shutdown, TaskError, Worker, WorkerOptions, WorkerView};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;

/// A queue with one kind of source.
pub(crate) trait Fixture: Send + Sync + 'static {
    /// A worker without handlers.
    fn worker(&self, id: &str) -> Worker;
    /// Options of its workers, which run until they are stopped.
    fn options(&self) -> WorkerOptions;
    /// True if a worker has everything that it needs to find tasks.
    fn is_ready(&self, _: &WorkerView) -> bool {
        true
    }
    fn submit(&self, task: NewTask) -> BoxFuture<'_, TaskId>;
    /// Reads a task.
    fn get(&self, id: TaskId) -> BoxFuture<'_, Task>;
    fn cancel(&self, id: TaskId) -> BoxFuture<'_, ()>;
    /// Claims a pending task for a worker that does not exist.
    fn hold(&self, id: TaskId) -> BoxFuture<'_, ()>;
    /// Takes a running task from its worker.
    fn revoke(&self, id: TaskId) -> BoxFuture<'_, ()>;
}

type Case = fn(Arc<dyn Fixture>) -> BoxFuture<'static, ()>;

/// Runs all cases at the same time, each with a queue of its own.
pub(crate) async fn run(open: fn() -> BoxFuture<'static, Arc<dyn Fixture>>) {
    let cases: [(&str, Case); 15] = [
        ("a typed handler runs, and its output is kept", |f| Box::pin(outputs_are_kept(f))),
        ("failures are retried, panics too", |f| Box::pin(failures_are_retried(f))),
        ("snoozing costs no attempt", |f| Box::pin(snoozing_costs_no_attempt(f))),
        ("a handler that takes too long is stopped", |f| Box::pin(timeouts_stop_handlers(f))),
        ("other task types are not claimed", |f| Box::pin(other_types_are_not_claimed(f))),
        ("two workers share the tasks", |f| Box::pin(two_workers_share(f))),
        ("more tasks than slots", |f| Box::pin(slots_limit_concurrency(f))),
        ("draining lets handlers finish", |f| Box::pin(draining_finishes(f))),
        ("after the drain time tasks are released", |f| Box::pin(late_handlers_are_released(f))),
        ("aborting releases without using an attempt", |f| Box::pin(aborting_releases(f))),
        ("cancelled handlers are stopped", |f| Box::pin(cancelled_handlers_stop(f))),
        ("an awaited handler has ended before anything is written", |f| Box::pin(awaited_handlers_end(f))),
        ("a handler that does not stop keeps its claim", |f| Box::pin(unstoppable_handlers_keep_claims(f))),
        ("a handler whose task is lost is stopped", |f| Box::pin(lost_tasks_stop(f))),
        ("until empty: waits for tasks that others hold", |f| Box::pin(held_tasks_are_waited_for(f))),
    ];
    let runs = cases.map(|(name, case)| async move {
        let case = tokio::spawn(async move { case(open().await).await });
        let ended = tokio::time::timeout(Duration::from_mins(2), case).await;
        assert!(matches!(ended, Ok(Ok(()))), "{name}: {ended:?}");
    });
    join_all(runs).await;
}

struct Started {
    shutdown: Shutdown,
    running: JoinHandle<leasehold_core::Result<Counts>>,
}

impl Started {
    /// Starts a worker, and waits until it is ready.
    async fn new(fixture: &Arc<dyn Fixture>, worker: Worker, options: WorkerOptions) -> Self {
        let (shutdown, view) = (Shutdown::default(), worker.view());
        let running = tokio::spawn(worker.options(options).run(shutdown.clone()));
        while !fixture.is_ready(&view) {
            pause().await;
        }
        Self { shutdown, running }
    }

    async fn drained(self) -> Counts {
        self.shutdown.drain();
        self.running.await.unwrap().unwrap()
    }
}

async fn pause() {
    tokio::time::sleep(Duration::from_millis(10)).await;
}

fn task(task_type: &str, input: Value) -> NewTask {
    let quick = RetryPolicy { initial_secs: 0.0, max_secs: 0.0, ..RetryPolicy::default() };
    NewTask { retry_policy: Some(quick), ..NewTask::new(task_type, input).unwrap() }
}

async fn submit(fixture: &Arc<dyn Fixture>, task_type: &str) -> TaskId {
    fixture.submit(task(task_type, json!(null))).await
}

/// Waits until a task has a final status.
async fn finished(fixture: &Arc<dyn Fixture>, id: TaskId) -> Task {
    loop {
        let task = fixture.get(id).await;
        if task.status().is_final() {
            return task;
        }
        pause().await;
    }
}

/// Handler that sends the id of its task when it starts, and ends on a signal.
fn patient(worker: Worker, finish: &Arc<Notify>) -> (Worker, mpsc::UnboundedReceiver<TaskId>) {
    let (sender, started) = mpsc::unbounded_channel();
    let finish = finish.clone();
    let run = move |context: Context, (): ()| {
        sender.send(context.task().id).unwrap();
        let finish = finish.clone();
        async move {
            finish.notified().await;
            Ok::<_, TaskError>(())
        }
    };
    (worker.handle("patient", run).unwrap(), started)
}

/// Handler of work that does not end with its future: sends when it starts and when it is asked to stop, and ends on a
/// signal.
fn unstoppable(worker: Worker, finish: &Arc<Notify>) -> (Worker, mpsc::UnboundedReceiver<&'static str>) {
    let (sender, events) = mpsc::unbounded_channel();
    let finish = finish.clone();
    let run = move |context: Context, (): ()| {
        let (sender, finish) = (sender.clone(), finish.clone());
        async move {
            sender.send("started").unwrap();
            context.cancelled().await;
            sender.send("asked to stop").unwrap();
            finish.notified().await;
            Ok::<_, TaskError>("ended")
        }
    };
    (worker.handle_awaited("unstoppable", run).unwrap(), events)
}

async fn outputs_are_kept(fixture: Arc<dyn Fixture>) {
    let worker = fixture.worker("w1").handle("double", async |context: Context, number: u64| {
        assert_eq!((context.attempt(), context.epoch()), (1, 1));
        context.progress("half");
        Ok::<_, TaskError>(2 * number)
    });
    let started = Started::new(&fixture, worker.unwrap(), fixture.options()).await;
    let fits = fixture.submit(task("double", json!(21))).await;
    let odd = fixture.submit(task("double", json!("two"))).await;
    assert_eq!(finished(&fixture, fits).await.output(), Some(&json!(42)));
    let odd = finished(&fixture, odd).await;
    assert_eq!(
        (odd.status(), odd.attempt),
        (Status::Failed, 1),
        "an input that does not fit fails permanently"
    );
    let counts = started.drained().await;
    assert_eq!(counts, Counts { started: 2, completed: 1, failed: 1, ..Counts::default() });
}

async fn failures_are_retried(fixture: Arc<dyn Fixture>) {
    let worker =
        fixture.worker("w1").handle("flaky", async |context: Context, (): ()| match context.attempt() {
            1 => Err(TaskError::Retry("not yet".into())),
            2 => panic!("ouch"),
            attempt => Ok(attempt),
        });
    let worker = worker
        .unwrap()
        .handle("hopeless", async |_: Context, (): ()| Err::<(), _>(TaskError::Permanent("never".into())));
    let worker = worker.unwrap().handle("limited", async |context: Context, (): ()| {
        let error = format!("attempt {}", context.attempt());
        Err::<(), _>(if context.attempt() < 2 {
            TaskError::Retry(error)
        } else {
            TaskError::Exhausted(error, 2)
        })
    });
    let started = Started::new(&fixture, worker.unwrap(), fixture.options()).await;
    let ids = [
        submit(&fixture, "flaky").await,
        submit(&fixture, "hopeless").await,
        submit(&fixture, "limited").await,
    ];
    let flaky = finished(&fixture, ids[0]).await;
    assert_eq!((flaky.status(), flaky.attempt, flaky.output()), (Status::Completed, 3, Some(&json!(3))));
    assert_eq!(flaky.error.as_deref(), Some("the handler panicked: ouch"));
    let hopeless = finished(&fixture, ids[1]).await;
    assert_eq!((hopeless.status(), hopeless.attempt), (Status::Failed, 1));
    let limited = finished(&fixture, ids[2]).await;
    assert_eq!((limited.status(), limited.attempt, limited.max_attempts), (Status::Failed, 2, 2));
    let counts = started.drained().await;
    assert_eq!((counts.started, counts.completed, counts.failed, counts.requeued), (6, 1, 2, 3));
}

async fn snoozing_costs_no_attempt(fixture: Arc<dyn Fixture>) {
    let naps = Arc::new(AtomicU32::new(0));
    let worker = fixture.worker("w1").handle("snoozer", move |context: Context, (): ()| {
        let nap = naps.fetch_add(1, SeqCst);
        async move {
            assert_eq!(context.attempt(), 1);
            if nap < 2 { Err(TaskError::Snooze(Duration::from_millis(10))) } else { Ok(()) }
        }
    });
    let started = Started::new(&fixture, worker.unwrap(), fixture.options()).await;
    let id = submit(&fixture, "snoozer").await;
    let task = finished(&fixture, id).await;
    assert_eq!((task.status(), task.attempt, task.epoch), (Status::Completed, 1, 3));
    assert_eq!(started.drained().await.requeued, 2);
}

async fn timeouts_stop_handlers(fixture: Arc<dyn Fixture>) {
    let slow = |_: Context, (): ()| std::future::pending::<Result<(), TaskError>>();
    // Returns all the same: its output comes too late, and the error says so.
    let late = async |context: Context, (): ()| {
        context.cancelled().await;
        Ok::<_, TaskError>("too late")
    };
    let worker = fixture.worker("w1").handle("slow", slow).unwrap().handle_awaited("late", late).unwrap();
    let started = Started::new(&fixture, worker, fixture.options()).await;
    let limited = |name| NewTask { timeout_secs: Some(1), max_attempts: Some(1), ..task(name, json!(null)) };
    for (name, error) in [
        ("slow", "did not finish within 1 s"),
        ("late", "did not finish within 1 s; it returned after that, and its output was dropped"),
    ] {
        let id = fixture.submit(limited(name)).await;
        let task = finished(&fixture, id).await;
        assert_eq!((task.status(), task.error.as_deref()), (Status::Failed, Some(error)));
    }
    started.drained().await;
}

async fn other_types_are_not_claimed(fixture: Arc<dyn Fixture>) {
    let ours =
        fixture.worker("w1").handle("ours", async |_: Context, (): ()| Ok::<_, TaskError>(())).unwrap();
    let options = WorkerOptions { concurrency: 2, ..fixture.options() };
    let started = Started::new(&fixture, ours, options).await;
    let mut others = Vec::new();
    for _ in 0..10 {
        others.push(submit(&fixture, "foreign").await);
    }
    let id = submit(&fixture, "ours").await;
    assert_eq!(finished(&fixture, id).await.status(), Status::Completed);
    assert_eq!(started.drained().await.started, 1);
    for id in others {
        let task = fixture.get(id).await;
        assert_eq!((task.status(), task.epoch), (Status::Pending, 0));
    }
}

async fn two_workers_share(fixture: Arc<dyn Fixture>) {
    let runs = Arc::new(Mutex::new(BTreeMap::<TaskId, u32>::new()));
    let worker = |id: &str| {
        let runs = runs.clone();
        let run = move |context: Context, (): ()| {
            *runs.lock().unwrap().entry(context.task().id).or_default() += 1;
            async {
                pause().await;
                Ok::<_, TaskError>(())
            }
        };
        fixture.worker(id).handle("work", run).unwrap()
    };
    let one = Started::new(&fixture, worker("w1"), fixture.options()).await;
    let two = Started::new(&fixture, worker("w2"), fixture.options()).await;
    let mut ids = Vec::new();
    for _ in 0..40 {
        ids.push(submit(&fixture, "work").await);
    }
    for id in ids {
        assert_eq!(finished(&fixture, id).await.status(), Status::Completed);
    }
    assert_eq!(one.drained().await.completed + two.drained().await.completed, 40);
    let runs = runs.lock().unwrap();
    assert!(runs.len() == 40 && runs.values().all(|times| *times == 1), "{runs:?}");
}

async fn slots_limit_concurrency(fixture: Arc<dyn Fixture>) {
    let finish = Arc::new(Notify::new());
    let (worker, mut begun) = patient(fixture.worker("w1"), &finish);
    let view = worker.view();
    let options = WorkerOptions { concurrency: 2, ..fixture.options() };
    let started = Started::new(&fixture, worker, options).await;
    let mut ids = Vec::new();
    for _ in 0..6 {
        ids.push(submit(&fixture, "patient").await);
    }
    for _ in &ids {
        begun.recv().await.unwrap();
        assert!(view.running() <= 2, "{} at once", view.running());
        finish.notify_one();
    }
    for id in ids {
        assert_eq!(finished(&fixture, id).await.status(), Status::Completed);
    }
    assert_eq!(started.drained().await.completed, 6);
}

async fn draining_finishes(fixture: Arc<dyn Fixture>) {
    let finish = Arc::new(Notify::new());
    let (worker, mut begun) = patient(fixture.worker("w1"), &finish);
    // Without a free slot nothing is claimed at the time of the request.
    let options = WorkerOptions { concurrency: 1, ..fixture.options() };
    let started = Started::new(&fixture, worker, options).await;
    let id = submit(&fixture, "patient").await;
    begun.recv().await.unwrap();
    started.shutdown.drain();
    let late = submit(&fixture, "patient").await;
    finish.notify_one();
    assert_eq!(started.drained().await, Counts { started: 1, completed: 1, ..Counts::default() });
    assert_eq!(fixture.get(id).await.status(), Status::Completed);
    assert_eq!(fixture.get(late).await.status(), Status::Pending, "nothing new is begun");
}

async fn late_handlers_are_released(fixture: Arc<dyn Fixture>) {
    let (worker, mut begun) = patient(fixture.worker("w1"), &Arc::new(Notify::new()));
    let options = WorkerOptions { drain: Duration::from_millis(100), ..fixture.options() };
    let started = Started::new(&fixture, worker, options).await;
    let id = submit(&fixture, "patient").await;
    begun.recv().await.unwrap();
    assert_eq!(started.drained().await, Counts { started: 1, requeued: 1, ..Counts::default() });
    let task = fixture.get(id).await;
    assert_eq!((task.status(), task.attempt), (Status::Pending, 0), "no attempt is lost");
}

async fn aborting_releases(fixture: Arc<dyn Fixture>) {
    let finish = Arc::new(Notify::new());
    let (worker, mut begun) = patient(fixture.worker("w1"), &Arc::new(Notify::new()));
    let started = Started::new(&fixture, worker, fixture.options()).await;
    let id = submit(&fixture, "patient").await;
    begun.recv().await.unwrap();
    started.shutdown.abort();
    assert_eq!(started.drained().await.requeued, 1);
    assert_eq!(fixture.get(id).await.attempt, 0);
    finish.notify_one();
    let (other, mut begun) = patient(fixture.worker("w2"), &finish);
    let options = WorkerOptions { until_empty: true, ..fixture.options() };
    let counts = other.options(options).run(Shutdown::default()).await.unwrap();
    assert_eq!((begun.recv().await, counts.completed), (Some(id), 1), "another worker runs it at once");
}

/// Handlers are asked to stop at the same time as their worker, and may have ended before the worker is polled.
async fn cancelled_handlers_stop(fixture: Arc<dyn Fixture>) {
    let (sender, mut begun) = mpsc::unbounded_channel();
    let run = move |context: Context, (): ()| {
        let sender = sender.clone();
        async move {
            sender.send(()).unwrap();
            context.cancelled().await;
            Ok::<_, TaskError>("stopped in time")
        }
    };
    let worker =
        fixture.worker("w1").handle("prompt", run.clone()).unwrap().handle_awaited("waited", run).unwrap();
    let options = WorkerOptions { concurrency: 16, ..fixture.options() };
    let started = Started::new(&fixture, worker, options).await;
    let mut ids = Vec::new();
    for task_type in ["prompt", "waited"].repeat(8) {
        ids.push(submit(&fixture, task_type).await);
    }
    for _ in &ids {
        begun.recv().await.unwrap();
    }
    for id in &ids {
        fixture.cancel(*id).await;
    }
    for id in ids {
        assert_eq!(finished(&fixture, id).await.status(), Status::Cancelled);
    }
    assert_eq!(started.drained().await.cancelled, 16);
}

async fn awaited_handlers_end(fixture: Arc<dyn Fixture>) {
    let finish = Arc::new(Notify::new());
    let (worker, mut events) = unstoppable(fixture.worker("w1"), &finish);
    let started = Started::new(&fixture, worker, fixture.options()).await;
    let cancelled = submit(&fixture, "unstoppable").await;
    assert_eq!(events.recv().await, Some("started"));
    fixture.cancel(cancelled).await;
    assert_eq!(events.recv().await, Some("asked to stop"));
    assert!(!fixture.get(cancelled).await.status().is_final());
    finish.notify_one();
    assert_eq!(finished(&fixture, cancelled).await.status(), Status::Cancelled);
    let aborted = submit(&fixture, "unstoppable").await;
    assert_eq!(events.recv().await, Some("started"));
    started.shutdown.abort();
    assert_eq!(events.recv().await, Some("asked to stop"));
    finish.notify_one();
    let counts = started.drained().await;
    assert_eq!((counts.cancelled, counts.completed), (1, 1), "it has finished all the same");
    assert_eq!(fixture.get(aborted).await.output(), Some(&json!("ended")));
}

async fn unstoppable_handlers_keep_claims(fixture: Arc<dyn Fixture>) {
    let (worker, mut events) = unstoppable(fixture.worker("w1"), &Arc::new(Notify::new()));
    let options = WorkerOptions { stop_wait: Duration::from_millis(50), ..fixture.options() };
    let started = Started::new(&fixture, worker, options).await;
    let id = submit(&fixture, "unstoppable").await;
    assert_eq!(events.recv().await, Some("started"));
    started.shutdown.abort();
    let counts = started.drained().await;
    assert_eq!((counts.started, counts.lost, counts.requeued), (1, 1, 0), "its claim is left to expire");
    assert!(!fixture.get(id).await.status().is_final());
}

async fn lost_tasks_stop(fixture: Arc<dyn Fixture>) {
    let (worker, mut events) = unstoppable(fixture.worker("w1"), &Arc::new(Notify::new()));
    let options = WorkerOptions { stop_wait: Duration::from_millis(50), ..fixture.options() };
    let started = Started::new(&fixture, worker, options).await;
    let id = submit(&fixture, "unstoppable").await;
    assert_eq!(events.recv().await, Some("started"));
    fixture.revoke(id).await;
    assert_eq!(events.recv().await, Some("asked to stop"));
    let counts = started.drained().await;
    assert_eq!((counts.started, counts.lost, counts.completed), (1, 1, 0), "nothing is written");
}

async fn held_tasks_are_waited_for(fixture: Arc<dyn Fixture>) {
    let [done, held] = [submit(&fixture, "patient").await, submit(&fixture, "patient").await];
    fixture.hold(held).await;
    let finish = Arc::new(Notify::new());
    finish.notify_one();
    let (worker, _begun) = patient(fixture.worker("w1"), &finish);
    let (view, shutdown) = (worker.view(), Shutdown::default());
    assert_eq!(view.drain_wait(), None);
    let options = WorkerOptions { until_empty: true, ..fixture.options() };
    let running = tokio::spawn(worker.options(options).run(shutdown.clone()));
    while view.drain_wait() != Some(DrainWait::Held(held)) {
        assert!(!running.is_finished(), "it does not leave the task behind");
        pause().await;
    }
    assert_eq!(fixture.get(done).await.status(), Status::Completed);
    shutdown.drain();
    assert_eq!(running.await.unwrap().unwrap().completed, 1);
}
