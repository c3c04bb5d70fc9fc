//! Log of a journal: conformance of both homes, and every way in which a disk, a bucket or a process fails.

mod bucket;
mod bucket_world;
mod damage;
mod disk_world;
mod folder;
#[cfg(feature = "mutants")]
mod mutants;
mod processes;
mod random;
mod steps;

use futures::FutureExt;
use leasehold_core::journal::LogPosition;
use leasehold_store::testing::log_conformance::{LogSuite, ServingLog, commit, serve, texts};
use leasehold_store::testing::{FakeDisk, FakeHost};
use leasehold_store::{
    Client, Durability, FolderOptions, FolderStore, Host, Log, LogDirectory, LogReader, LogTrimmer,
    LogWriter, MemoryStore, Store, SystemHost,
};
use std::future::Future;
use std::sync::Arc;

/// Runs a future that waits for nothing: the host of the tests does blocking work at once.
fn run<T>(future: impl Future<Output = T>) -> T {
    future.now_or_never().expect("nothing is waited for")
}

fn host() -> Arc<dyn Host> {
    Arc::new(FakeHost::new())
}

/// Log on a disk of a test.
fn on_disk(directory: Arc<dyn LogDirectory>) -> Log {
    Log::in_directory(directory, host())
}

/// Takes a log over from its begin, as one that meets no failure.
fn take_over(log: &Log, number: u64) -> ServingLog {
    run(serve(log, number, LogPosition::START)).unwrap()
}

/// Records that the next process replays.
fn replayed(disk: &FakeDisk, number: u64) -> Vec<String> {
    texts(&take_over(&on_disk(disk.sound(99)), number).replayed)
}

fn write(serving: &mut ServingLog, records: &str) {
    run(commit(&mut serving.writer, records)).unwrap();
}

#[test]
fn a_log_can_be_used_by_any_thread() {
    fn is_shared<T: Send + Sync>() {}
    is_shared::<Log>();
    is_shared::<LogWriter>();
    is_shared::<LogReader>();
    is_shared::<LogTrimmer>();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_in_a_bucket_conforms() {
    let open = |_: &str| {
        let host: Arc<dyn Host> = Arc::new(SystemHost);
        Log::in_bucket(Client::new(Arc::new(MemoryStore::new(&host)), host))
    };
    LogSuite::new(open).run().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_as_objects_of_a_folder_conforms() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().to_owned();
    let open = move |name: &str| {
        let host: Arc<dyn Host> = Arc::new(SystemHost);
        let options = FolderOptions { durability: Durability::Os, ..FolderOptions::default() };
        let store: Arc<dyn Store> = Arc::new(FolderStore::open(root.join(name), options, &host).unwrap());
        Log::in_bucket(Client::new(store, host))
    };
    LogSuite::new(open).run().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_in_a_folder_conforms() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().to_owned();
    let open = move |name: &str| {
        std::fs::create_dir(root.join(name)).unwrap();
        Log::in_folder(&root.join(name), FolderOptions::default(), Arc::new(SystemHost))
    };
    LogSuite::new(open).run().await.unwrap();
}

#[tokio::test]
async fn a_log_on_a_disk_in_memory_conforms() {
    let open = |_: &str| on_disk(FakeDisk::new().sound(1));
    LogSuite::new(open).run().await.unwrap();
}
