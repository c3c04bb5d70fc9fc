//! Nodes around one bucket: each with a folder, a supervisor and a link that can be cut. Tests advance the time.

use bytes::Bytes;
use futures::FutureExt;
use leasehold_core::outpost::{Consistency, QueuePath};
use leasehold_core::settlement::Settlement;
use leasehold_core::{HexName, Kind, Name, NewTask, Task, TaskId, WorkerId};
use leasehold_outpost::{HeldTask, OutpostConfig, Spool, Supervisor, SupervisorOptions, Synced};
use leasehold_queue::ObjectQueue;
use leasehold_store::store::{Answer, Failure, Get, List, Page, PutAnswer, When};
use leasehold_store::testing::FakeHost;
use leasehold_store::{Client, DelegatingStore, Host, MemoryStore, Store, Version};
use serde_json::json;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;

/// The bucket, and the state that all nodes share.
pub(crate) struct TestCluster {
    pub(crate) host: FakeHost,
    pub(crate) store: Arc<MemoryStore>,
    pub(crate) queue: ObjectQueue,
    directory: TempDir,
    consistency: Consistency,
}

/// One machine.
pub(crate) struct Node {
    pub(crate) spool: Spool,
    pub(crate) supervisor: Supervisor,
    pub(crate) link: Arc<Link>,
    pub(crate) client: Client,
    instances: AtomicU64,
}

/// A store that can be made unreachable.
pub(crate) struct Link {
    inner: Arc<MemoryStore>,
    is_cut: AtomicBool,
    is_refused: AtomicBool,
    before_put: OnceHook,
    before_list: OnceHook,
}

/// Hook that runs once, before the next request of its kind.
type OnceHook = Mutex<Option<Box<dyn FnOnce() + Send>>>;

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("is_cut", &self.is_cut).finish_non_exhaustive()
    }
}

impl Link {
    fn new(inner: Arc<MemoryStore>) -> Self {
        let (is_cut, is_refused) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { inner, is_cut, is_refused, before_put: OnceHook::default(), before_list: OnceHook::default() }
    }

    fn check(&self) -> Result<(), Failure> {
        if self.is_cut.load(SeqCst) {
            return Err(Failure::permanent(Kind::Unavailable, "the link is cut"));
        }
        if self.is_refused.load(SeqCst) {
            return Err(Failure::permanent(Kind::Denied, "the credentials are refused"));
        }
        Ok(())
    }

    pub(crate) fn cut(&self) {
        self.is_cut.store(true, SeqCst);
    }

    /// Rejects the credentials.
    pub(crate) fn refuse(&self) {
        self.is_refused.store(true, SeqCst);
    }

    /// Accepts the credentials again.
    pub(crate) fn allow(&self) {
        self.is_refused.store(false, SeqCst);
    }

    /// Runs this before the next put.
    pub(crate) fn on_put(&self, work: impl FnOnce() + Send + 'static) {
        *self.before_put.lock().unwrap() = Some(Box::new(work));
    }

    /// Runs this before the next list.
    pub(crate) fn on_list(&self, work: impl FnOnce() + Send + 'static) {
        *self.before_list.lock().unwrap() = Some(Box::new(work));
    }
}

fn run_hook(once: &OnceHook) {
    let work = once.lock().unwrap().take();
    if let Some(work) = work {
        work();
    }
}

impl DelegatingStore for Link {
    fn inner(&self) -> &dyn Store {
        &*self.inner
    }

    fn get<'a>(&'a self, key: &'a str, unless: Option<&'a Version>) -> Answer<'a, Get> {
        match self.check() {
            Ok(()) => self.inner.get(key, unless),
            Err(failure) => async { Err(failure) }.boxed(),
        }
    }

    fn put<'a>(&'a self, key: &'a str, body: Bytes, when: &'a When) -> Answer<'a, PutAnswer> {
        run_hook(&self.before_put);
        match self.check() {
            Ok(()) => self.inner.put(key, body, when),
            Err(failure) => async { Err(failure) }.boxed(),
        }
    }

    fn delete<'a>(&'a self, key: &'a str) -> Answer<'a, ()> {
        match self.check() {
            Ok(()) => self.inner.delete(key),
            Err(failure) => async { Err(failure) }.boxed(),
        }
    }

    fn list<'a>(&'a self, list: &'a List) -> Answer<'a, Page> {
        run_hook(&self.before_list);
        match self.check() {
            Ok(()) => self.inner.list(list),
            Err(failure) => async { Err(failure) }.boxed(),
        }
    }
}

pub(crate) fn minutes(minutes: u64) -> Duration {
    Duration::from_mins(minutes)
}

pub(crate) fn order() -> NewTask {
    NewTask::new("measure", json!({"picture": 1})).unwrap()
}

impl TestCluster {
    pub(crate) async fn new(consistency: Consistency) -> Self {
        let host = FakeHost::new();
        let as_host: Arc<dyn Host> = Arc::new(host.clone());
        let store = Arc::new(MemoryStore::new(&as_host));
        let queue =
            ObjectQueue::connect(Client::new(store.clone(), as_host)).await.unwrap().acting_as("bucket");
        Self { host, store, queue, directory: tempfile::tempdir().unwrap(), consistency }
    }

    pub(crate) fn data(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn node(&self, name: &str) -> Node {
        self.node_with(name, |_| {})
    }

    pub(crate) fn node_with(&self, name: &str, change: impl FnOnce(&mut OutpostConfig)) -> Node {
        let host: Arc<dyn Host> = Arc::new(self.host.clone());
        let mut config = OutpostConfig::new(Name::checked("node", name).unwrap());
        config.consistency = self.consistency;
        change(&mut config);
        let of = QueuePath::new("spring", "pictures").unwrap();
        let spool = Spool::create(&self.data(name), &of, config, host.clone()).unwrap();
        let link = Arc::new(Link::new(self.store.clone()));
        let client = Client::new(link.clone(), host).with_timeout(Duration::from_secs(1));
        let connect = {
            let client = client.clone();
            Arc::new(move || ObjectQueue::connect(client.clone()).boxed())
        };
        let supervisor = Supervisor::new(spool.clone(), connect, SupervisorOptions::default());
        Node { spool, supervisor, link, client, instances: AtomicU64::new(0) }
    }

    pub(crate) async fn submit(&self) -> TaskId {
        self.queue.submit_task(order()).await.unwrap().id
    }

    pub(crate) async fn get(&self, id: &TaskId) -> Task {
        self.queue.get(id).await.unwrap()
    }

    pub(crate) async fn store_key(&self, id: &TaskId) -> String {
        format!("tasks/{}/{}.json", self.get(id).await.shard, id)
    }

    /// Advances the time while other tasks run.
    pub(crate) async fn run_for(&self, time: Duration) {
        let began = self.queue.now().unwrap().earliest;
        while self.queue.now().unwrap().earliest.since(began) < time {
            self.host.sleep(Duration::from_millis(10)).await;
            tokio::task::yield_now().await;
        }
    }

    pub(crate) fn advance(&self, time: Duration) {
        self.host.advance(time);
    }
}

impl Node {
    pub(crate) async fn sync(&mut self) -> Synced {
        self.supervisor.sync().await.unwrap()
    }

    pub(crate) fn cut(&self) {
        self.link.cut();
    }

    pub(crate) fn reconnect(&self) {
        self.link.is_cut.store(false, SeqCst);
    }

    /// Claims the task as a worker of this node.
    pub(crate) fn claim(&self, id: &TaskId) -> Option<HeldTask> {
        let worker: WorkerId = Name::checked("worker id", "w").unwrap();
        let instance = HexName::from_random(self.instances.fetch_add(1, SeqCst).into());
        self.spool.claim(id, &worker, &instance).unwrap()
    }

    pub(crate) fn complete(&self, held: &HeldTask, output: u32) -> Task {
        self.spool.settle(held, Settlement::complete(json!(output))).unwrap()
    }

    /// Number of results that the bucket has rejected.
    pub(crate) fn conflicts(&self) -> usize {
        std::fs::read_dir(self.spool.root().join("conflicts")).map_or(0, Iterator::count)
    }

    pub(crate) fn has_nothing_to_send(&self) -> bool {
        self.spool.outbox().unwrap().is_empty()
    }
}

pub(crate) fn failure(error: &str, retryable: bool, after: Option<Duration>) -> Settlement {
    Settlement::Fail { error: error.into(), retryable, after }
}
