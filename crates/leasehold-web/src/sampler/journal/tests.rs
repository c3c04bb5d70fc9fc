//! The dashboard of a journal in memory, in tokio's paused time: what it shows, and the requests that it sends.

use super::*;
use axum::extract::{Path, State};
use leasehold_core::{NewTask, TaskId};
use leasehold_queue::purge::Retention;
use leasehold_queue::{LayoutName, Queue, QueueConfig};
use leasehold_store::host::TokioTimeHost;
use leasehold_store::{Client, Host, MemoryStore, Prices};
use leasehold_worker::{Shutdown, TaskError, Worker};
use serde_json::{Value, json};
use std::sync::Arc;

use crate::WebOptions;
use crate::api;
use crate::pace::RefreshPace;
use crate::routes::{App, healthz};
use crate::table::TaskTable;
use crate::testing::body;

/// A store in memory, and a process that uses it.
struct JournalFixture {
    store: Arc<MemoryStore>,
    host: Arc<dyn Host>,
    queue: Queue,
}

impl JournalFixture {
    async fn new() -> Self {
        let host: Arc<dyn Host> = Arc::new(TokioTimeHost::new());
        let store = Arc::new(MemoryStore::new(&host));
        let queue = process(&store, &host).await;
        Self { store, host, queue }
    }

    /// A process without a connection to the broker of the first one.
    async fn other_process(&self) -> Queue {
        process(&self.store, &self.host).await
    }

    /// A dashboard in the process of the broker.
    fn dashboard(&self, pace: RefreshPace) -> JournalDashboard {
        JournalDashboard::of(&self.queue, pace)
    }

    async fn submit(&self, task_type: &str) -> TaskId {
        self.queue.submit_task(NewTask::new(task_type, json!(1)).unwrap()).await.unwrap().id
    }

    /// Runs the due tasks of type `a`; those of type `bad` fail.
    async fn work(&self) {
        let worker = Worker::new(self.queue.clone(), "w1", None).unwrap();
        let worker = worker.handle("a", |_, number: u64| async move { Ok::<_, TaskError>(number) }).unwrap();
        let worker = worker
            .handle(
                "bad",
                |_, _: Value| async move { Err::<Value, _>(TaskError::Permanent("no luck".into())) },
            )
            .unwrap();
        worker.run_until_empty().await.unwrap();
    }
}

async fn process(store: &Arc<MemoryStore>, host: &Arc<dyn Host>) -> Queue {
    let layout = Some(LayoutName::Journal);
    let config = QueueConfig { layout, by: "cli".into(), transport: None, ..QueueConfig::default() };
    Queue::with_config(Client::new(store.clone(), host.clone()), config).await.unwrap()
}

struct JournalDashboard {
    app: Arc<App>,
}

impl JournalDashboard {
    fn of(queue: &Queue, pace: RefreshPace) -> Self {
        let options = WebOptions {
            addr: ([127, 0, 0, 1], 0).into(),
            token: None,
            allows_actions: true,
            pace,
            prices: Prices::of("aws").unwrap(),
            settings: Vec::new(),
        };
        Self { app: Arc::new(App::new(queue, options).unwrap()) }
    }

    async fn overview(&self) -> Value {
        body(api::overview::overview(State(self.app.clone()), http::HeaderMap::new()).await).await
    }

    async fn workers(&self) -> Value {
        body(api::workers::workers(State(self.app.clone())).await).await["workers"].clone()
    }

    async fn health(&self) -> u16 {
        healthz(State(self.app.clone())).await.status().as_u16()
    }

    async fn metrics(&self) -> String {
        let answer = crate::metrics::metrics(State(self.app.clone())).await.ok().unwrap();
        String::from_utf8(axum::body::to_bytes(answer.into_body(), usize::MAX).await.unwrap().to_vec())
            .unwrap()
    }

    /// Waits until a sample is due, and takes it as for a viewer.
    async fn view(&self) -> Value {
        self.overview().await;
        let pause = sample(&self.app.shared).await;
        self.app.shared.host().sleep(pause).await;
        self.app.shared.viewers.record(Topic::Queue);
        sample(&self.app.shared).await;
        self.overview().await
    }

    /// Runs the sampler while viewers request the overview every second.
    async fn serve(&self, viewers: usize, secs: u64) {
        let shutdown = Shutdown::default();
        let sampling = super::super::run(&self.app.shared, shutdown.clone());
        let viewing = async {
            for _ in 0..secs {
                for _ in 0..viewers {
                    self.overview().await;
                    self.workers().await;
                }
                self.app.shared.host().sleep(Duration::from_secs(1)).await;
            }
            shutdown.drain();
        };
        futures::future::join(sampling, viewing).await;
    }

    /// Requests other than those that look for artifacts.
    fn requests(&self) -> u64 {
        let ledger = self.app.shared.client().ledger().snapshot();
        ledger.count(|line| line.purpose != leasehold_store::Purpose::Admin)
    }

    fn rows(&self) -> usize {
        self.app.shared.snapshot().table.len()
    }
}

#[tokio::test(start_paused = true)]
async fn viewers_of_a_broker_cost_no_requests() {
    for pace in [RefreshPace::Folder, RefreshPace::Bucket] {
        let mut process = Vec::new();
        for viewers in [1, 10] {
            let fixture = JournalFixture::new().await;
            for _ in 0..20 {
                fixture.submit("a").await;
            }
            let dashboard = fixture.dashboard(pace);
            dashboard.serve(viewers, 120).await;
            assert_eq!(dashboard.requests(), 0, "{pace:?}");
            let overview = dashboard.overview().await;
            assert_eq!(overview["counts"]["due"], 20, "{overview}");
            assert!(overview["charts"]["depth"].as_array().unwrap().len() > 50, "{pace:?}: it was sampled");
            process.push(fixture.queue.client().unwrap().ledger().snapshot().requests());
        }
        assert_eq!(process[0], process[1], "{pace:?}: the requests of the broker, which renews its lease");
    }
}

#[tokio::test(start_paused = true)]
async fn each_sample_shows_what_has_changed_and_who_the_broker_is() {
    let fixture = JournalFixture::new().await;
    let id = fixture.submit("a").await;
    let dashboard = fixture.dashboard(RefreshPace::Folder);
    let overview = dashboard.view().await;
    assert_eq!((&overview["layout"], &overview["shards"]), (&json!("journal"), &Value::Null));
    let broker = &overview["broker"];
    assert_eq!((&broker["is_reached"], &broker["host"]), (&json!(true), &json!("localhost")), "{broker}");
    assert_eq!(
        (&broker["epoch"], &broker["live_tasks"], &broker["commits"]),
        (&json!(1), &json!(1), &json!(1))
    );
    assert!(overview["cost"]["tasks"].is_null());
    fixture.queue.cancel(&id).await.unwrap();
    let later = fixture.submit("a").await;
    let overview = dashboard.view().await;
    let counts = &overview["counts"];
    assert_eq!((&counts["cancelled"], &counts["due"]), (&json!(1), &json!(1)), "{counts}");
    assert_eq!(overview["broker"]["commits"], 3);
    assert_eq!(overview["sample"]["is_complete"], true);
    // A task is opened and changed without a request to the store by the dashboard.
    let opened = body(api::task::task(State(dashboard.app.clone()), Path(later.to_string())).await).await;
    assert_eq!(opened["can"], json!(["cancel"]));
    let act = Path((later.to_string(), "cancel".to_owned()));
    let cancelled = body(api::actions::act(State(dashboard.app.clone()), act).await).await;
    assert_eq!(cancelled["task"]["status"], "cancelled");
    assert_eq!(fixture.queue.get_history(&later).await.unwrap().last().unwrap().by, "dashboard");
    assert_eq!(dashboard.requests(), 0);
}

#[tokio::test(start_paused = true)]
async fn without_viewers_the_broker_is_asked_once_a_minute() {
    let fixture = JournalFixture::new().await;
    fixture.submit("a").await;
    let dashboard = fixture.dashboard(RefreshPace::Bucket);
    dashboard.serve(0, 600).await;
    assert_eq!(dashboard.app.shared.snapshot().depth().len(), 10);
    assert_eq!((dashboard.rows(), dashboard.requests()), (0, 0), "tasks are read when they are viewed");
    assert_eq!(dashboard.health().await, 200);
}

#[tokio::test(start_paused = true)]
async fn without_a_broker_the_log_is_read_less_often_and_health_is_bad_after_a_minute() {
    let fixture = JournalFixture::new().await;
    fixture.submit("a").await;
    // The memory store is a bucket to the journal.
    let dashboard = JournalDashboard::of(&fixture.other_process().await, RefreshPace::Bucket);
    let overview = dashboard.view().await;
    let last = &overview["broker"]["last"];
    assert_eq!(
        (&overview["broker"]["is_reached"], &last["state"]),
        (&json!(false), &json!("held")),
        "{overview}"
    );
    assert_eq!(overview["counts"]["due"], 1, "it is read from the log");
    assert_eq!(dashboard.health().await, 200, "it may be replaced at any moment");
    dashboard.serve(1, 60).await;
    let before = dashboard.requests();
    dashboard.serve(10, 300).await;
    // Two of the lease and one beyond the end of the log; the process has no connection that it could try.
    let requests = dashboard.requests() - before;
    assert!((30..=60).contains(&requests), "{requests} requests for ten samples");
    assert_eq!(dashboard.health().await, 503);
    let metrics = dashboard.metrics().await;
    assert!(metrics.contains("\nleasehold_broker_reachable 0\n"), "{metrics}");
    assert!(!metrics.contains("leasehold_broker_commits_total"), "{metrics}");
    // Without viewers only the broker is looked for.
    dashboard.app.shared.host().sleep(Duration::from_mins(1)).await;
    let before = dashboard.requests();
    dashboard.serve(0, 600).await;
    assert!((10..=22).contains(&(dashboard.requests() - before)), "{}", dashboard.requests() - before);
}

#[tokio::test(start_paused = true)]
async fn health_is_good_again_when_there_is_a_broker() {
    let fixture = JournalFixture::new().await;
    fixture.submit("a").await;
    let dashboard = fixture.dashboard(RefreshPace::Folder);
    dashboard.serve(1, 10).await;
    fixture.queue.close().await.unwrap();
    dashboard.serve(0, 150).await;
    assert_eq!(dashboard.health().await, 503);
    let last = dashboard.overview().await["broker"]["last"].clone();
    assert_eq!(last["state"], "released", "{last}");
    // The next broker counts its changes anew, so that all tasks are read again.
    let id = fixture.submit("a").await;
    dashboard.serve(1, 10).await;
    assert_eq!(dashboard.health().await, 200);
    assert_eq!(dashboard.rows(), 2);
    assert!(dashboard.app.shared.snapshot().table.get(&id).is_some());
    assert_eq!(dashboard.overview().await["broker"]["epoch"], 2);
}

#[tokio::test(start_paused = true)]
async fn archived_tasks_are_read_once_and_counted_always() {
    let fixture = JournalFixture::new().await;
    for _ in 0..5 {
        fixture.submit("a").await;
    }
    fixture.submit("bad").await;
    fixture.work().await;
    fixture.host.sleep(Duration::from_mins(6)).await;
    fixture.submit("later").await;
    fixture.host.sleep(Duration::from_mins(6)).await;
    let dashboard = fixture.dashboard(RefreshPace::Bucket);
    let overview = dashboard.view().await;
    assert_eq!(overview["broker"]["archived_tasks"], 6, "{overview}");
    assert_eq!((dashboard.rows(), dashboard.requests()), (7, 1), "one get of an object of the archive");
    assert_eq!((&overview["counts"]["completed"], &overview["counts"]["failed"]), (&json!(5), &json!(1)));
    assert_eq!(overview["recent_failures"][0]["error"], "no luck");
    dashboard.serve(1, 60).await;
    assert_eq!(dashboard.requests(), 1);
    // Beyond the room of the table they are counted only.
    let small = fixture.dashboard(RefreshPace::Bucket);
    small.app.shared.snapshot_mut().table = TaskTable::with_capacity(3);
    let overview = small.view().await;
    assert_eq!((small.rows(), &overview["sample"]["unlisted"]), (3, &json!(4)));
    assert_eq!((&overview["counts"]["completed"], &overview["sample"]["is_cut"]), (&json!(5), &json!(false)));
}

#[tokio::test(start_paused = true)]
async fn a_purged_task_is_removed_at_once_if_it_is_live_and_minutes_later_from_the_archive() {
    let fixture = JournalFixture::new().await;
    let failed = fixture.submit("bad").await;
    for _ in 0..4 {
        fixture.submit("a").await;
    }
    fixture.work().await;
    fixture.host.sleep(Duration::from_mins(6)).await;
    fixture.submit("later").await;
    // Tasks are kept for a day.
    fixture.host.sleep(Duration::from_hours(26)).await;
    let dashboard = fixture.dashboard(RefreshPace::Folder);
    dashboard.view().await;
    assert_eq!(dashboard.rows(), 6);
    assert!(fixture.queue.retry(&failed).await.unwrap().is_done());
    assert!(fixture.queue.cancel(&failed).await.unwrap().is_done());
    let overview = dashboard.view().await;
    assert_eq!((dashboard.rows(), &overview["counts"]["cancelled"]), (6, &json!(1)));
    let retention = Retention { statuses: Vec::new(), older_than: Duration::ZERO };
    fixture.host.sleep(Duration::from_secs(10)).await;
    assert_eq!(fixture.queue.purge_all(&retention).await.unwrap().deleted, 5);
    let overview = dashboard.view().await;
    assert_eq!((dashboard.rows(), &overview["counts"]["completed"]), (5, &json!(0)));
    dashboard.serve(1, 660).await;
    assert_eq!(dashboard.rows(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_full_table_keeps_the_tasks_that_are_not_finished_and_those_that_ended_last() {
    let fixture = JournalFixture::new().await;
    let dashboard = fixture.dashboard(RefreshPace::Folder);
    dashboard.app.shared.snapshot_mut().table = TaskTable::with_capacity(4);
    let waiting = fixture.submit("waiting").await;
    dashboard.view().await;
    let mut ended = Vec::new();
    for _ in 0..8 {
        let id = fixture.submit("a").await;
        fixture.queue.cancel(&id).await.unwrap();
        dashboard.view().await;
        ended.push(id);
    }
    let last = fixture.submit("waiting").await;
    let overview = dashboard.view().await;
    let snapshot = dashboard.app.shared.snapshot();
    for id in [&waiting, &last, &ended[7], &ended[6]] {
        assert!(snapshot.table.get(id).is_some(), "{id}");
    }
    assert_eq!((snapshot.table.len(), &overview["counts"]["cancelled"]), (4, &json!(8)));
    assert_eq!(overview["sample"]["is_cut"], false);
}

#[tokio::test(start_paused = true)]
async fn a_table_that_is_full_of_unfinished_tasks_ends_the_reading_of_others() {
    let fixture = JournalFixture::new().await;
    for _ in 0..2 * PAGE {
        fixture.submit("waiting").await;
    }
    let dashboard = fixture.dashboard(RefreshPace::Folder);
    dashboard.app.shared.snapshot_mut().table = TaskTable::with_capacity(3);
    let overview = dashboard.view().await;
    let snapshot = dashboard.app.shared.snapshot();
    assert_eq!((snapshot.table.len(), snapshot.pass.read), (3, PAGE as u64));
    assert_eq!(overview["sample"]["is_cut"], true, "{overview}");
}

#[tokio::test(start_paused = true)]
async fn workers_that_report_themselves_are_shown_with_their_types_and_tasks() {
    let fixture = JournalFixture::new().await;
    let worker = Worker::new(fixture.queue.clone(), "ada", None).unwrap();
    let worker = worker
        .handle("slow", |_, _: Value| async move { std::future::pending::<Result<Value, TaskError>>().await })
        .unwrap();
    let shutdown = Shutdown::default();
    let working = worker.run(shutdown.clone());
    let (held, waiting) = (fixture.submit("slow").await, fixture.submit("nobody").await);
    let dashboard = fixture.dashboard(RefreshPace::Folder);
    let viewing = async {
        dashboard.serve(1, 150).await;
        let workers = dashboard.workers().await;
        let [row] = workers.as_array().unwrap().as_slice() else { panic!("{workers}") };
        assert_eq!(
            (&row["worker_id"], &row["state"], &row["types"], &row["running"], &row["held"]),
            (&json!("ada"), &json!("alive"), &json!(["slow"]), &json!([held]), &json!(1))
        );
        // A task of a type that a worker handles waits for a slot; the other one waits for a worker.
        for _ in 0..20 {
            fixture.submit("slow").await;
        }
        dashboard.serve(1, 150).await;
        let untaken = dashboard.overview().await["untaken"].clone();
        assert_eq!(untaken.as_array().unwrap().len(), 1, "{untaken}");
        assert_eq!(untaken[0]["task_type"], "nobody");
        let metrics = dashboard.metrics().await;
        for line in [
            "leasehold_broker_reachable 1",
            "leasehold_workers{state=\"alive\"} 1",
            "leasehold_workers{state=\"dead\"} 0",
            "leasehold_type_tasks{task_type=\"nobody\",status=\"pending\"} 1",
            "leasehold_unclaimed_tasks{task_type=\"nobody\"} 1",
            "leasehold_broker_epoch 1",
        ] {
            assert!(metrics.contains(&format!("\n{line}\n")), "{line} in {metrics}");
        }
        fixture.queue.cancel(&waiting).await.unwrap();
        shutdown.abort();
    };
    futures::future::join(working, viewing).await.0.unwrap();
}
