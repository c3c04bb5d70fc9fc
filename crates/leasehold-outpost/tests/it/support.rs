//! A spool in a temporary folder, and helpers for tests.

use leasehold_core::ids::TaskTypes;
use leasehold_core::outpost::{ClockSource, Consistency, DiskLease, Op, QueuePath, SpoolFile};
use leasehold_core::settlement::Settlement;
use leasehold_core::{HexName, Name, NewTask, Now, ShardLen, StepContext, StoreTime, Task, TaskId};
use leasehold_outpost::{HeldTask, OutpostConfig, Spool};
use leasehold_store::testing::FakeHost;
use leasehold_store::{Host, SystemHost};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

pub(crate) struct TestSpool {
    pub(crate) data: TempDir,
    pub(crate) host: FakeHost,
    pub(crate) spool: Spool,
}

pub(crate) fn of() -> QueuePath {
    QueuePath::new("survey", "photos").unwrap()
}

pub(crate) fn config() -> OutpostConfig {
    OutpostConfig::new(Name::checked("node", "pi-1").unwrap())
}

pub(crate) fn relaxed() -> OutpostConfig {
    OutpostConfig { consistency: Consistency::Relaxed, ..config() }
}

/// Temporary folder, in memory where possible: thousands of rounds do not wait for a disk.
pub(crate) fn folder() -> TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap()
}

/// A spool whose time the test advances.
pub(crate) fn test_spool() -> TestSpool {
    test_spool_with(relaxed())
}

pub(crate) fn test_spool_with(config: OutpostConfig) -> TestSpool {
    let (data, host) = (folder(), FakeHost::new());
    let spool = Spool::create(data.path(), &of(), config, Arc::new(host.clone())).unwrap();
    TestSpool { data, spool: spool.with_boot_id("boot-1"), host }
}

/// A spool on the real machine.
pub(crate) fn real(data: &Path) -> Spool {
    let host: Arc<dyn Host> = Arc::new(SystemHost);
    Spool::create(data, &of(), relaxed(), host).unwrap()
}

impl TestSpool {
    pub(crate) fn advance(&self, secs: u64) {
        self.host.advance(Duration::from_secs(secs));
    }

    /// Another process on the same node.
    pub(crate) fn other(&self) -> Spool {
        Spool::open(self.data.path(), &of(), Arc::new(self.host.clone())).unwrap().with_boot_id("boot-1")
    }
}

pub(crate) fn order() -> NewTask {
    NewTask::new("work", json!({"n": 1})).unwrap()
}

pub(crate) fn worker(name: &str) -> Name {
    Name::checked("worker id", name).unwrap()
}

pub(crate) fn claim(spool: &Spool, id: &TaskId, name: &str) -> Option<HeldTask> {
    let instance = HexName::from_random(name.bytes().map(u128::from).sum());
    spool.claim(id, &worker(name), &instance).unwrap()
}

pub(crate) fn any() -> TaskTypes {
    TaskTypes::all()
}

pub(crate) fn complete(spool: &Spool, held: &HeldTask) -> leasehold_core::Result<Task> {
    spool.settle(held, Settlement::complete(json!("output")))
}

pub(crate) fn at(millis: i64) -> StoreTime {
    StoreTime::from_millis(millis)
}

/// A time in 2026, by the bucket's clock.
pub(crate) const BUCKET_MS: i64 = 1_790_000_000_000;

pub(crate) fn bucket(offset_ms: i64) -> Now {
    Now::exactly(at(BUCKET_MS + offset_ms))
}

/// A task of the bucket.
pub(crate) fn remote(bits: u128) -> Task {
    let id = TaskId::from_random(bits);
    let act =
        StepContext { by: "someone".into(), now: bucket(0), write_id: HexName::from_random(bits), random: 1 };
    let mut task = order().submitted(id, ShardLen::DEFAULT.shard_of(&id), &act);
    task.rev = 4;
    task
}

pub(crate) fn path(spool: &Spool, file: &SpoolFile) -> PathBuf {
    spool.root().join(file.path())
}

/// The lease of a task on disk.
pub(crate) fn lease(spool: &Spool, id: &TaskId) -> Option<DiskLease> {
    let body = fs::read(path(spool, &SpoolFile::Lease(*id))).ok()?;
    Some(serde_json::from_slice(&body).unwrap())
}

/// Makes a lease look as if its holder had ended before a reboot.
pub(crate) fn make_stale(spool: &Spool, id: &TaskId) {
    let stale = DiskLease { boot_id: "before".into(), ..lease(spool, id).unwrap() };
    fs::write(path(spool, &SpoolFile::Lease(*id)), serde_json::to_vec(&stale).unwrap()).unwrap();
}

pub(crate) fn ops(spool: &Spool) -> Vec<Op> {
    spool.outbox().unwrap().into_iter().map(|(_, op)| op).collect()
}

pub(crate) fn op_names(spool: &Spool) -> Vec<String> {
    ops(spool).iter().map(|op| op.kind.name().to_owned()).collect()
}

/// Empties the outbox, as if the supervisor had sent everything.
pub(crate) fn send_all(spool: &Spool) {
    for (seq, _) in spool.outbox().unwrap() {
        spool.remove_op(seq).unwrap();
    }
}

/// Returns the folders, of three, that contain a task.
pub(crate) fn places(spool: &Spool, id: &TaskId) -> Vec<&'static str> {
    let folder = spool.root().join("pending").join(id.to_string());
    let mut places = Vec::new();
    if folder.exists() {
        places.push("pending");
    }
    if path(spool, &SpoolFile::Completed(*id)).exists() {
        places.push("completed");
    }
    if path(spool, &SpoolFile::Failed(*id)).exists() {
        places.push("failed");
    }
    places
}

/// Reads every file below a folder.
pub(crate) fn snapshot(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        files.insert(folder.clone(), Vec::new());
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.ends_with("wants") {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else {
                files.insert(path.clone(), fs::read(path).unwrap());
            }
        }
    }
    files
}

pub(crate) fn json_of(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

pub(crate) const BOOT: ClockSource = ClockSource::Boot;

pub(crate) fn failure(error: &str, retryable: bool, after: Option<Duration>) -> Settlement {
    Settlement::Fail { error: error.into(), retryable, after }
}
