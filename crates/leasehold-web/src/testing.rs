//! A queue in memory under a clock that tests move, and a dashboard on it without a network.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::to_bytes;
use axum::extract::State;
use axum::response::IntoResponse;
use http::HeaderMap;
use leasehold_core::{Index, Kind, NewTask, Result, StoreTime, Task, TaskId, WorkerId};
use leasehold_queue::discover::Stretch;
use leasehold_queue::{Claimed, Met, Queue, Settlement};
use leasehold_store::seam::Answer;
use leasehold_store::testing::FakeHost;
use leasehold_store::{
    Around, Client, Failure, Get, Host, List, MemoryStore, Page, Prices, Purpose, Store, Version,
};
use serde_json::{Value, json};

use crate::looks::Topic;
use crate::pace::Pace;
use crate::routes::App;
use crate::table::Table;
use crate::{WebOptions, sampler};

/// All of it.
pub(crate) struct Stand {
    pub(crate) host: FakeHost,
    /// For whoever uses the queue; the dashboard has a ledger of its own.
    pub(crate) queue: Queue,
    pub(crate) app: Arc<App>,
}

impl Stand {
    pub(crate) async fn new() -> Self {
        Self::at_pace(Pace::Folder).await
    }

    pub(crate) async fn at_pace(pace: Pace) -> Self {
        let host = FakeHost::new();
        let real: Arc<dyn Host> = Arc::new(host.clone());
        Self::on(host, Arc::new(MemoryStore::new(&real)), pace).await
    }

    /// One whose store falls ill when it is told to.
    pub(crate) async fn ailing() -> (Self, Health) {
        let (host, health) = (FakeHost::new(), Health::default());
        let real: Arc<dyn Host> = Arc::new(host.clone());
        let store = Ailing(MemoryStore::new(&real), health.clone());
        (Self::on(host, Arc::new(store), Pace::Folder).await, health)
    }

    /// One whose store stamps in whole seconds, as S3 does.
    pub(crate) async fn with_coarse_stamps() -> Self {
        let host = FakeHost::new();
        let clock = host.clone();
        let store = MemoryStore::with_time(move || {
            StoreTime::from_millis(clock.instant().wall_ns.div_euclid(1_000_000_000) * 1_000)
        });
        Self::on(host, Arc::new(store), Pace::Folder).await
    }

    pub(crate) async fn on(host: FakeHost, store: Arc<dyn Store>, pace: Pace) -> Self {
        let queue = Queue::connect(Client::new(store, Arc::new(host.clone()))).await.unwrap();
        let options = WebOptions {
            addr: ([127, 0, 0, 1], 0).into(),
            token: None,
            allows_actions: true,
            pace,
            prices: Prices::of("aws").unwrap(),
            settings: Vec::new(),
        };
        let app = Arc::new(App::new(queue.clone(), options));
        Self { host, queue, app }
    }

    /// Room for so many tasks only.
    pub(crate) fn with_room(self, room: usize) -> Self {
        self.app.shared.board_mut().table = Table::with_room(room);
        self
    }

    pub(crate) async fn submitted(&self, task_type: &str) -> Result<Task> {
        let id = self.queue.submit_task(NewTask::new(task_type, json!(1))?).await?.id;
        // Read by another ledger.
        self.queue.counted_apart().get(&id).await
    }

    pub(crate) async fn submit(&self, task_type: &str) -> TaskId {
        self.submitted(task_type).await.unwrap().id
    }

    /// Lets a worker run a task to this end.
    pub(crate) async fn run(&self, id: TaskId, end: Settlement) -> Task {
        let claimed = claim(&self.queue, id).await.unwrap();
        self.queue.settle(&claimed, end).await.unwrap().unwrap()
    }

    /// Someone asks for the overview.
    pub(crate) async fn overview(&self) -> Value {
        body(crate::api::overview::overview(State(self.app.clone()), HeaderMap::new()).await).await
    }

    /// Everything that is due is sampled.
    pub(crate) async fn sample(&self) {
        let shared = &self.app.shared;
        sampler::index(shared).await;
        sampler::tasks(shared).await;
        sampler::workers(shared).await;
        sampler::shards(shared).await;
        sampler::artifacts(shared).await;
    }

    /// Someone looks, and what they see is fresh.
    pub(crate) async fn look(&self) {
        self.host.advance(Duration::from_mins(1));
        self.app.shared.looks.at(Topic::Queue);
        self.sample().await;
    }

    /// What the dashboard has asked the store for: lists and gets.
    pub(crate) fn asked(&self) -> [u64; 2] {
        let ledger = self.app.shared.queue().client().ledger().snapshot();
        [leasehold_store::Verb::List, leasehold_store::Verb::Get].map(|verb| ledger.verb(verb))
    }
}

/// How a store is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Ill {
    #[default]
    Well,
    /// It refuses.
    Denied,
    /// It cannot be reached.
    Unavailable,
    /// Its answers do not come.
    Silent,
}

/// How a store is, for whoever decides that.
#[derive(Debug, Clone, Default)]
pub(crate) struct Health(Arc<Mutex<Ill>>);

impl Health {
    pub(crate) fn set(&self, ill: Ill) {
        *self.0.lock().unwrap() = ill;
    }

    /// What it answers instead, if it is ill.
    fn failure<T: Send + 'static>(&self) -> Option<Answer<'static, T>> {
        let kind = match *self.0.lock().unwrap() {
            Ill::Well => return None,
            Ill::Silent => return Some(Box::pin(std::future::pending())),
            Ill::Denied => Kind::Denied,
            Ill::Unavailable => Kind::Unavailable,
        };
        Some(Box::pin(async move { Err(Failure::last(kind, "reads are forbidden")) }))
    }
}

/// A store whose reads fail for a while.
#[derive(Debug)]
struct Ailing(MemoryStore, Health);

impl Around for Ailing {
    fn inner(&self) -> &dyn Store {
        &self.0
    }

    fn get<'a>(&'a self, key: &'a str, unless: Option<&'a Version>) -> Answer<'a, Get> {
        self.1.failure().unwrap_or_else(|| self.0.get(key, unless))
    }

    fn list<'a>(&'a self, list: &'a List) -> Answer<'a, Page> {
        self.1.failure().unwrap_or_else(|| self.0.list(list))
    }
}

/// Makes a task ours.
pub(crate) async fn claim(queue: &Queue, id: TaskId) -> Result<Claimed> {
    let look = queue.discover(Purpose::Discover, vec![Stretch::whole(Index::Ready)]).await?;
    let found = look.due.iter().find(|found| found.entry.id == id).expect("it is due");
    let worker = WorkerId::checked("worker id", "w1")?;
    match queue.claim(found, &worker, Duration::from_mins(1), &|_| true).await? {
        Met::Claimed(claimed) => Ok(*claimed),
        other => panic!("{other:?}"),
    }
}

/// The JSON of an answer.
pub(crate) async fn body(answer: impl IntoResponse) -> Value {
    let bytes = to_bytes(answer.into_response().into_body(), usize::MAX).await.unwrap();
    serde_json::from_slice(&bytes).unwrap()
}
