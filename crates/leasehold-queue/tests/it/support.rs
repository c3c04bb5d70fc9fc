//! Test environment for one queue: a store in memory, a clock that a test moves, a store wrapper with faults.

pub(crate) mod audit;
pub(crate) mod migrations;
pub(crate) mod operations;
pub(crate) mod recovery;
pub(crate) mod stage;

use leasehold_core::ids::TaskTypes;
use leasehold_core::{Index, Name, NewTask, Status, StoreTime, Task, TaskId, WorkerId};
use leasehold_queue::discover::KeyRange;
use leasehold_queue::sweep::Swept;
use leasehold_queue::{ClaimOutcome, Claimed, IndexHit, ObjectQueue, QueueConfig, Submitted};
use leasehold_store::testing::FakeHost;
use leasehold_store::{Client, Host, MemoryStore, Purpose, Snapshot, Store, Verb, When};
use serde_json::{Value, json};
use stage::Stage;
use std::sync::Arc;
use std::time::Duration;

pub(crate) const LEASE: Duration = Duration::from_mins(1);

/// A queue with its store and its clock. Clones share them.
#[derive(Clone)]
pub(crate) struct World {
    pub(crate) host: FakeHost,
    pub(crate) store: Arc<MemoryStore>,
    pub(crate) queue: ObjectQueue,
}

pub(crate) fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

pub(crate) fn mins(mins: u64) -> Duration {
    Duration::from_mins(mins)
}

pub(crate) fn hours(hours: u64) -> Duration {
    Duration::from_hours(hours)
}

pub(crate) fn worker(name: &str) -> WorkerId {
    Name::checked("worker id", name).unwrap()
}

pub(crate) fn any_type() -> TaskTypes {
    TaskTypes::all()
}

/// A plain task.
pub(crate) fn order() -> NewTask {
    NewTask::new("resize", json!({"url": "x"})).unwrap()
}

impl World {
    pub(crate) async fn new() -> Self {
        Self::with_shards(None).await
    }

    /// Creates an environment whose shards have this number of digits.
    pub(crate) async fn with_shards(shard_prefix_len: impl Into<Option<u8>>) -> Self {
        let host = FakeHost::new();
        let as_host: Arc<dyn Host> = Arc::new(host.clone());
        let store = Arc::new(MemoryStore::new(&as_host));
        let client = Client::new(store.clone(), as_host);
        let config = QueueConfig { shard_prefix_len: shard_prefix_len.into(), ..QueueConfig::default() };
        let queue = ObjectQueue::with_config(client, config).await.unwrap();
        Self { host, store, queue }
    }

    /// Another process in the same world.
    pub(crate) async fn process(&self, store: Arc<dyn Store>) -> ObjectQueue {
        self.process_with(store, QueueConfig::default()).await
    }

    async fn process_with(&self, store: Arc<dyn Store>, config: QueueConfig) -> ObjectQueue {
        let client = Client::new(store, Arc::new(self.host.clone()));
        ObjectQueue::with_config(client, config).await.unwrap()
    }

    /// A process whose requests fail on request.
    pub(crate) async fn staged(&self) -> (ObjectQueue, Arc<Stage>) {
        self.staged_with(QueueConfig::default()).await
    }

    /// A process with this configuration whose requests fail on request.
    pub(crate) async fn staged_with(&self, config: QueueConfig) -> (ObjectQueue, Arc<Stage>) {
        let stage = Arc::new(Stage::new(self.store.clone()));
        let queue = self.process_with(stage.clone(), config).await;
        (queue, stage)
    }

    pub(crate) fn advance(&self, duration: Duration) {
        self.host.advance(duration);
    }

    pub(crate) fn now(&self) -> StoreTime {
        self.queue.now().unwrap().earliest
    }

    pub(crate) async fn submit(&self) -> TaskId {
        self.submit_this(order()).await
    }

    pub(crate) async fn submit_this(&self, order: NewTask) -> TaskId {
        let Submitted { id, .. } = self.queue.submit_task(order).await.unwrap();
        id
    }

    /// The due entries of an index.
    pub(crate) async fn due(&self, index: Index) -> Vec<IndexHit> {
        self.queue.discover(Purpose::Discover, vec![KeyRange::whole(index)]).await.unwrap().due
    }

    /// All entries of a task in an index, due or not.
    pub(crate) async fn entries_of(&self, id: &TaskId, index: Index) -> Vec<String> {
        let keys = audit::keys(&self.store, index.root()).await;
        keys.into_iter().filter(|key| key.contains(&id.to_string())).collect()
    }

    pub(crate) async fn try_claim(&self, id: &TaskId) -> ClaimOutcome {
        self.try_claim_as(&self.queue, id, "w1").await
    }

    /// Tries to claim by the newest due ready entry of a task.
    pub(crate) async fn try_claim_as(&self, queue: &ObjectQueue, id: &TaskId, by: &str) -> ClaimOutcome {
        let due = self.due(Index::Ready).await;
        let found = due.iter().filter(|found| found.entry.id == *id).max_by_key(|found| found.entry.rev);
        queue.claim(found.expect("a due entry"), &worker(by), LEASE, &any_type(), false).await.unwrap()
    }

    pub(crate) async fn claim(&self, id: &TaskId) -> Claimed {
        match self.try_claim(id).await {
            Ok(claimed) => *claimed,
            outcome => panic!("{outcome:?}"),
        }
    }

    pub(crate) async fn get(&self, id: &TaskId) -> Task {
        self.queue.get(id).await.unwrap()
    }

    /// Puts a raw object, as another program might.
    pub(crate) async fn overwrite(&self, key: &str, body: impl Into<bytes::Bytes>) {
        self.store.put(key, body.into(), &When::Always).await.unwrap();
    }

    /// A raw record of a task.
    pub(crate) async fn raw(&self, id: &TaskId) -> Option<Value> {
        audit::task(&self.store, id).await
    }

    pub(crate) fn ledger(&self) -> Snapshot {
        self.queue.client().ledger().snapshot()
    }
}

/// Puts, gets, lists and deletes since then.
pub(crate) fn requests(queue: &ObjectQueue, since: &Snapshot) -> [u64; 4] {
    let counted = queue.client().ledger().snapshot().since(since);
    [Verb::Put, Verb::Get, Verb::List, Verb::Delete].map(|verb| counted.verb(verb))
}

/// True if the task is pending again, for another attempt.
pub(crate) fn is_requeued(swept: &Swept) -> bool {
    matches!(swept, Swept::Changed(task) if task.status() == Status::Pending)
}
