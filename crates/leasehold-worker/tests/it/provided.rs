//! Workers with a source of tasks other than a bucket.

use futures::future::BoxFuture;
use leasehold_core::{HexName, Kind, NewTask, Now, Result, ShardLen, StepContext, StoreTime, Task, TaskId};
use leasehold_queue::Settlement;
use leasehold_store::{Host, SystemHost};
use leasehold_worker::{
    Context, Counts, RunHandle, ShardLeasing, Shutdown, Stage, Stop, TaskError, TaskRunner, TaskSource,
    Worker, WorkerOptions,
};
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Tasks in a list, and the settlement of each.
#[derive(Debug, Default)]
struct Tray {
    tasks: Mutex<Vec<(Task, Option<Stop>)>>,
    ended: Mutex<Vec<Option<Settlement>>>,
}

const NOON: StoreTime = StoreTime::from_millis(1_700_000_000_000);

fn task(task_type: &str, input: Value) -> Task {
    let act = StepContext {
        by: "test".into(),
        now: Now::exactly(NOON),
        write_id: HexName::from_random(1),
        chance: 0,
    };
    let id = TaskId::from_random(7);
    NewTask::new(task_type, input).unwrap().submitted(id, ShardLen::DEFAULT.shard_of(&id), &act)
}

impl Tray {
    fn with(tasks: impl IntoIterator<Item = (Task, Option<Stop>)>) -> Arc<Self> {
        Arc::new(Self { tasks: Mutex::new(tasks.into_iter().collect()), ..Self::default() })
    }

    fn worker(self: &Arc<Self>) -> Worker {
        let host: Arc<dyn Host> = Arc::new(SystemHost);
        Worker::at(self.clone(), host, "w1").unwrap()
    }

    fn ended(&self) -> Vec<Option<Settlement>> {
        std::mem::take(&mut self.ended.lock().unwrap())
    }
}

impl TaskSource for Tray {
    fn work(self: Arc<Self>, runner: TaskRunner, shutdown: Shutdown) -> BoxFuture<'static, Result<Counts>> {
        Box::pin(async move {
            let tasks = std::mem::take(&mut *self.tasks.lock().unwrap());
            for (task, stop) in tasks {
                if !runner.handles(&task.task_type) {
                    continue;
                }
                let hold = RunHandle::new(task.id);
                if let Some(stop) = stop {
                    hold.stop(stop);
                }
                let settlement = runner.run(task.clone(), &hold, &|| Ok(NOON)).await;
                hold.settled();
                runner.count(settlement.as_ref().map(|_| &task));
                self.ended.lock().unwrap().push(settlement);
            }
            if !runner.options().until_empty {
                shutdown.reached(Stage::Drain).await;
            }
            Ok(runner.counts())
        })
    }
}

fn double(worker: Worker) -> Worker {
    worker.handle("double", async |_: Context, number: u64| Ok::<_, TaskError>(2 * number)).unwrap()
}

#[tokio::test]
async fn handlers_run_tasks_from_another_source() {
    let snooze = task("snooze", json!(30));
    let tray = Tray::with(
        [task("double", json!(21)), task("double", json!("two")), task("unknown", json!(1)), snooze]
            .map(|task| (task, None)),
    );
    let worker = double(tray.worker()).handle("snooze", async |context: Context, secs: u64| {
        assert_eq!((context.attempt(), context.epoch()), (0, 0));
        context.progress("half");
        Err::<(), _>(TaskError::Snooze(Duration::from_secs(secs)))
    });
    let worker = worker.unwrap();
    let monitor = worker.monitor();
    let counts = worker.run_until_empty().await.unwrap();
    assert_eq!((counts.started, counts.put_back, counts.lost), (3, 3, 0), "they stay pending in this tray");
    assert_eq!(monitor.counts(), counts);
    assert!(!monitor.has_inbox() && monitor.shards().is_empty());
    let ended = tray.ended();
    assert_eq!(ended[0], Some(Settlement::complete(json!(42))));
    assert!(matches!(&ended[1], Some(Settlement::Fail { retryable: false, .. })), "{ended:?}");
    assert_eq!(ended[2], Some(Settlement::Snooze(NOON.plus(Duration::from_secs(30)))));
}

#[tokio::test]
async fn a_handler_is_stopped_by_the_source_of_its_task() {
    let stops = [Stop::Lost, Stop::Cancelled, Stop::Shutdown];
    let tray = Tray::with(stops.map(|stop| (task("wait", json!(null)), Some(stop))));
    let wait = async |context: Context, (): ()| {
        context.cancelled().await;
        std::future::pending::<Result<(), TaskError>>().await
    };
    let worker = tray.worker().handle("wait", wait).unwrap();
    let counts = worker.run_until_empty().await.unwrap();
    assert_eq!((counts.started, counts.lost), (3, 1));
    assert_eq!(tray.ended(), [None, Some(Settlement::Stop), Some(Settlement::Release)]);
}

#[tokio::test]
async fn options_that_require_a_bucket_are_refused() {
    let tray = Tray::with([]);
    let leasing = WorkerOptions { leasing: Some(ShardLeasing::default()), ..WorkerOptions::default() };
    let run = double(tray.worker()).options(leasing).run(Shutdown::default());
    assert_eq!(run.await.unwrap_err().kind(), Kind::Invalid);
    let duties = double(tray.worker()).run_duties(Shutdown::default());
    assert_eq!(duties.await.unwrap_err().kind(), Kind::Invalid);
    let idle = tray.worker().run(Shutdown::default());
    assert!(idle.await.unwrap_err().to_string().contains("no handlers"));
    let shutdown = Shutdown::default();
    shutdown.drain();
    assert_eq!(double(tray.worker()).run(shutdown).await.unwrap(), Counts::default());
}
