//! Fixture: an in-memory queue with a simulated clock, and a dashboard on it without a network.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::to_bytes;
use axum::extract::State;
use axum::response::IntoResponse;
use http::HeaderMap;
use leasehold_core::{Index, Kind, NewTask, Result, StoreTime, Task, TaskId, WorkerId};
use leasehold_queue::discover::KeyRange;
use leasehold_queue::source::TaskTypes;
use leasehold_queue::{Claimed, ObjectQueue, Settlement};
use leasehold_store::store::Answer;
use leasehold_store::testing::FakeHost;
use leasehold_store::{
    Client, DelegatingStore, Failure, Get, Host, List, MemoryStore, Page, Prices, Purpose, Store, Version,
};
use serde_json::{Value, json};

use crate::pace::RefreshPace;
use crate::routes::App;
use crate::table::TaskTable;
use crate::viewers::Topic;
use crate::{WebOptions, sampler};

/// Queue and dashboard under test.
pub(crate) struct DashboardFixture {
    pub(crate) host: FakeHost,
    /// Queue of the test; the dashboard has its own ledger.
    pub(crate) queue: ObjectQueue,
    pub(crate) app: Arc<App>,
}

impl DashboardFixture {
    pub(crate) async fn new() -> Self {
        Self::at_pace(RefreshPace::Folder).await
    }

    pub(crate) async fn at_pace(pace: RefreshPace) -> Self {
        let host = FakeHost::new();
        let real: Arc<dyn Host> = Arc::new(host.clone());
        Self::on(host, Arc::new(MemoryStore::new(&real)), pace).await
    }

    /// Creates a fixture whose store can be made to fail.
    pub(crate) async fn with_failing_store() -> (Self, HealthSwitch) {
        let (host, health) = (FakeHost::new(), HealthSwitch::default());
        let real: Arc<dyn Host> = Arc::new(host.clone());
        let store = FailingReads(MemoryStore::new(&real), health.clone());
        (Self::on(host, Arc::new(store), RefreshPace::Folder).await, health)
    }

    /// Creates a fixture whose store has timestamps in whole seconds, as S3 does.
    pub(crate) async fn with_coarse_stamps() -> Self {
        let host = FakeHost::new();
        let clock = host.clone();
        let store = MemoryStore::with_time(move || {
            StoreTime::from_millis(clock.instant().wall_ns.div_euclid(1_000_000_000) * 1_000)
        });
        Self::on(host, Arc::new(store), RefreshPace::Folder).await
    }

    pub(crate) async fn on(host: FakeHost, store: Arc<dyn Store>, pace: RefreshPace) -> Self {
        let queue = ObjectQueue::connect(Client::new(store, Arc::new(host.clone()))).await.unwrap();
        let options = WebOptions {
            addr: ([127, 0, 0, 1], 0).into(),
            token: None,
            allows_actions: true,
            pace,
            prices: Prices::of("aws").unwrap(),
            settings: Vec::new(),
        };
        let app = Arc::new(App::new(&queue.clone().into(), options).unwrap());
        Self { host, queue, app }
    }

    /// Limits the table to this many tasks.
    pub(crate) fn with_capacity(self, room: usize) -> Self {
        self.app.shared.snapshot_mut().table = TaskTable::with_capacity(room);
        self
    }

    pub(crate) async fn submitted(&self, task_type: &str) -> Result<Task> {
        let id = self.queue.submit_task(NewTask::new(task_type, json!(1))?).await?.id;
        // Read with another ledger.
        self.queue.with_own_ledger().get(&id).await
    }

    pub(crate) async fn submit(&self, task_type: &str) -> TaskId {
        self.submitted(task_type).await.unwrap().id
    }

    /// Claims a task and records this result.
    pub(crate) async fn run(&self, id: TaskId, end: Settlement) -> Task {
        let claimed = claim(&self.queue, id).await.unwrap();
        self.queue.clone().acting_as("w1").settle(&claimed, end).await.unwrap().unwrap()
    }

    /// Requests the overview.
    pub(crate) async fn overview(&self) -> Value {
        body(crate::api::overview::overview(State(self.app.clone()), HeaderMap::new()).await).await
    }

    /// Samples every part that is due.
    pub(crate) async fn sample(&self) {
        let shared = &self.app.shared;
        sampler::objects::index(shared).await;
        sampler::objects::tasks(shared).await;
        sampler::objects::workers(shared).await;
        sampler::objects::shards(shared).await;
        sampler::artifacts(shared).await;
    }

    /// Moves the clock by a minute, records a view and samples.
    pub(crate) async fn view_and_sample(&self) {
        self.host.advance(Duration::from_mins(1));
        self.app.shared.viewers.record(Topic::Queue);
        self.sample().await;
    }

    /// Number of lists and gets of the dashboard.
    pub(crate) fn requests(&self) -> [u64; 2] {
        let ledger = self.app.shared.client().ledger().snapshot();
        [leasehold_store::Verb::List, leasehold_store::Verb::Get].map(|verb| ledger.verb(verb))
    }
}

/// State of a store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum StoreState {
    #[default]
    Well,
    /// The store denies access.
    Denied,
    /// The store cannot be reached.
    Unavailable,
    /// The store does not respond.
    Silent,
    /// The store has no objects, as a folder that was removed.
    Empty,
}

/// Handle that sets the state of a store.
#[derive(Debug, Clone, Default)]
pub(crate) struct HealthSwitch(Arc<Mutex<StoreState>>);

impl HealthSwitch {
    pub(crate) fn set(&self, state: StoreState) {
        *self.0.lock().unwrap() = state;
    }

    /// Returns the answer of a store that is not well; `empty` is that of a store without objects.
    fn failure<T: Send + 'static>(&self, empty: T) -> Option<Answer<'static, T>> {
        let kind = match *self.0.lock().unwrap() {
            StoreState::Well => return None,
            StoreState::Empty => return Some(Box::pin(async { Ok(empty) })),
            StoreState::Silent => return Some(Box::pin(std::future::pending())),
            StoreState::Denied => Kind::Denied,
            StoreState::Unavailable => Kind::Unavailable,
        };
        Some(Box::pin(async move { Err(Failure::permanent(kind, "reads are forbidden")) }))
    }
}

/// Store whose reads can be made to fail.
#[derive(Debug)]
struct FailingReads(MemoryStore, HealthSwitch);

impl DelegatingStore for FailingReads {
    fn inner(&self) -> &dyn Store {
        &self.0
    }

    fn get<'a>(&'a self, key: &'a str, unless: Option<&'a Version>) -> Answer<'a, Get> {
        self.1.failure(Get::Missing).unwrap_or_else(|| self.0.get(key, unless))
    }

    fn list<'a>(&'a self, list: &'a List) -> Answer<'a, Page> {
        self.1.failure(Page::default()).unwrap_or_else(|| self.0.list(list))
    }
}

/// Claims a task.
pub(crate) async fn claim(queue: &ObjectQueue, id: TaskId) -> Result<Claimed> {
    let page = queue.discover(Purpose::Discover, vec![KeyRange::whole(Index::Ready)]).await?;
    let found = page.due.iter().find(|found| found.entry.id == id).expect("it is due");
    let worker = WorkerId::checked("worker id", "w1")?;
    let queue = queue.clone().acting_as(worker.as_str());
    let claimed = queue.claim(found, &worker, Duration::from_mins(1), &TaskTypes::all(), false).await?;
    Ok(*claimed.expect("it is pending"))
}

/// Returns the JSON of a response.
pub(crate) async fn body(answer: impl IntoResponse) -> Value {
    let bytes = to_bytes(answer.into_response().into_body(), usize::MAX).await.unwrap();
    serde_json::from_slice(&bytes).unwrap()
}
