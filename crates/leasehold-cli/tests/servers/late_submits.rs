//! Submits whose write arrives after the producer has given up, on a real server behind a proxy: the task runs or is fenced
//! off, and the result of the submit never contradicts that.

use leasehold_core::{Entry, Index, NewTask, Status, TaskId};
use leasehold_queue::{ObjectQueue, QueueConfig};
use leasehold_store::testing::{Fault, FaultPlan, Proxy, RequestKind, S3, pass};
use leasehold_store::{Client, Host, List, OpenOptions, Purpose, SystemHost, open};
use leasehold_worker::{Context, Counts, Shutdown, TaskError, Worker, WorkerOptions};
use serde_json::Value;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::crashes::TestStore;
use crate::crashes::bucket;

/// Time for which a producer retries.
const SUBMIT_WAIT: Duration = Duration::from_secs(2);
/// Delay of its writes: they arrive after it has given up, also on a busy machine.
const WRITE_DELAY: Duration = Duration::from_secs(15);
/// Length of the task's input.
const INPUT_BYTES: u64 = 10_000;

struct ProxyFixture {
    test_store: TestStore,
    proxy: Proxy,
    /// Connected past the proxy.
    queue: ObjectQueue,
}

async fn fixture() -> ProxyFixture {
    let test_store = bucket().await;
    let proxy = Proxy::start(&S3::shared().await.endpoint(), pass()).await.unwrap();
    let queue = test_store.queue().await;
    ProxyFixture { test_store, proxy, queue }
}

impl ProxyFixture {
    /// Producer behind the proxy, which retries only for a short time.
    async fn producer(&self) -> ObjectQueue {
        let host: Arc<dyn Host> = Arc::new(SystemHost);
        let options =
            OpenOptions { endpoint: Some(self.proxy.endpoint()), ..self.test_store.options.clone() };
        let client = Client::new(open(&self.test_store.store, &options, &host).unwrap(), host);
        let config = QueueConfig { submit_wait: SUBMIT_WAIT, ..QueueConfig::default() };
        ObjectQueue::with_config(client.with_timeout(SUBMIT_WAIT / 4), config).await.unwrap()
    }

    /// Id of the task in the ready entry.
    async fn id(&self) -> TaskId {
        let page = self.queue.client().list(Purpose::Admin, &List::all(Index::Ready.root())).await.unwrap();
        Entry::parse(&page.entries.first().unwrap().key).unwrap().id
    }

    async fn work(&self) -> Counts {
        let options = WorkerOptions { until_empty: true, ..WorkerOptions::default() };
        let worker = Worker::new(self.queue.clone(), "w1", None).unwrap().options(options);
        let worker = worker.handle("late", |_: Context, _: Value| async { Ok::<_, TaskError>(()) });
        worker.unwrap().run(Shutdown::default()).await.unwrap()
    }
}

/// Fault plan: writes to tasks arrive late without an answer, reads of tasks are lost. A fence passes if
/// `is_fence_let_through`: it is shorter than the task.
fn late(is_fence_let_through: bool) -> FaultPlan {
    Box::new(move |seen| match seen.kind {
        _ if !seen.path.contains("/queue/tasks/") => Fault::Pass,
        RequestKind::Put if is_fence_let_through && seen.body_bytes < INPUT_BYTES => Fault::Pass,
        RequestKind::Put => Fault::ApplyLate(WRITE_DELAY),
        _ => Fault::DropRequest,
    })
}

fn new_task() -> NewTask {
    let input = "x".repeat(usize::try_from(INPUT_BYTES).unwrap());
    NewTask::new("late", input.into()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_submit_that_was_fenced_off_never_runs_when_it_lands() {
    let fixture = fixture().await;
    let producer = fixture.producer().await;
    fixture.proxy.set_plan(late(true));
    let error = producer.submit_task(new_task()).await.unwrap_err();
    assert!(!error.outcome_is_unknown(), "{error}");
    let id = fixture.id().await;
    assert!(error.to_string().contains(&id.to_string()), "{error}");
    fixture.proxy.settled().await;
    assert_eq!(fixture.work().await.started, 0);
    assert_eq!(fixture.queue.get(&id).await.unwrap().status(), Status::Cancelled);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_submit_of_unknown_outcome_is_reported_with_its_id_and_runs_when_it_lands() {
    let fixture = fixture().await;
    let producer = fixture.producer().await;
    fixture.proxy.set_plan(late(false));
    let error = producer.submit_task(new_task()).await.unwrap_err();
    let id = fixture.id().await;
    assert!(error.outcome_is_unknown());
    assert_eq!(error.to_string(), format!("outcome unknown: task {id} may or may not run"));
    fixture.proxy.settled().await;
    assert_eq!(fixture.work().await.completed, 1);
    assert_eq!(fixture.queue.get(&id).await.unwrap().status(), Status::Completed);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_submit_that_lands_before_its_fence_is_acknowledged_and_runs() {
    let fixture = fixture().await;
    let producer = fixture.producer().await;
    let began = Instant::now();
    fixture.proxy.set_plan(Box::new(move |seen| {
        let is_early = began.elapsed() < SUBMIT_WAIT / 2 && seen.path.contains("/queue/tasks/");
        if is_early { Fault::DropAnswer } else { Fault::Pass }
    }));
    let submitted = producer.submit_task(new_task()).await.unwrap();
    assert_eq!(fixture.work().await.completed, 1);
    assert_eq!(fixture.queue.get(&submitted.id).await.unwrap().status(), Status::Completed);
}
