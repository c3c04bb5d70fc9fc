use leasehold_core::{Kind, Status, TaskId};
use leasehold_queue::Queue;
use leasehold_store::testing::Lane;
use leasehold_store::{Durability, FolderOptions, OpenOptions};
use serde_json::Value;
use std::collections::BTreeSet;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::brokers::{self, LONGEST, RawConnection, SharedJournal, assert_missing};
use crate::common::crashes::{self, ATTEMPTS, TestStore};

/// Folder with fsync.
fn folder(root: &std::path::Path) -> TestStore {
    let folder = FolderOptions { durability: Durability::Fsync, ..FolderOptions::default() };
    let options = OpenOptions { folder, ..OpenOptions::default() };
    TestStore { store: root.to_str().unwrap().into(), variables: Vec::new(), options }
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_survive_a_kill_of_the_broker_every_two_seconds() {
    let root = tempfile::tempdir().unwrap();
    let (tasks, kills) = Lane::current().sized((1_200, 3), (20_000, 30));
    brokers::killed_every_two_seconds(&folder(root.path()), tasks, kills).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_was_stopped_beyond_its_lease_acknowledges_nothing() {
    let root = tempfile::tempdir().unwrap();
    stopped_beyond_its_lease(&folder(root.path())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_processes_that_believe_to_be_the_broker_one_acknowledges() {
    let root = tempfile::tempdir().unwrap();
    brokers::replaced_while_it_lives(&folder(root.path())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_broker_has_acknowledged_survives_its_full_disk() {
    let root = tempfile::tempdir().unwrap();
    broker_on_a_full_disk(&folder(root.path())).await;
}

/// Submits a task when a process is the broker again.
async fn until_submitted(queue: &Queue) -> TaskId {
    let began = Instant::now();
    loop {
        match queue.submit("noop", Value::Null).await {
            Ok(submitted) => return submitted.id,
            Err(error) => assert!(error.kind() == Kind::Unavailable && began.elapsed() < LONGEST, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// Stops the broker for longer than its lease: another process takes over, and the first one acknowledges nothing when it
/// continues. Its worker goes on as a client.
async fn stopped_beyond_its_lease(test_store: &TestStore) {
    let _slot = crashes::process_slot().await;
    let journal = SharedJournal::create(test_store);
    let stopped = test_store.worker("stopped", "noop=true", &[]);
    let lease = journal.until_broker(stopped.id()).await;
    let producer = journal.process("producer", true).await;
    let first = until_submitted(&producer).await;
    let mut raw = RawConnection::open(&lease).await;
    let second = raw.submit(1, &producer).await;
    assert_eq!(raw.answer().await.unwrap()["answer"]["is_new"], true);
    crashes::signal(&stopped, "-STOP");
    let unanswered = raw.submit(2, &producer).await;
    raw.count(3).await;
    let third = until_submitted(&producer).await;
    assert_ne!(journal.lease().await.unwrap()["instance"], lease["instance"]);
    crashes::signal(&stopped, "-CONT");
    raw.assert_unanswered().await;
    assert_missing(&producer, &unanswered).await;
    assert_eq!(producer.wait(&third, None).await.unwrap().status(), Status::Completed);
    // It has held the claims of its tasks for longer than the lease of a claim.
    journal.until_empty().await;
    crashes::summary(stopped);
    producer.close().await.unwrap();
    let acknowledged = [first, second, third].map(|id| id.to_string());
    assert_eq!(journal.audit(&acknowledged.into()).0, 3);
}

/// The broker cannot write beyond some length of a file, as on a full disk: it stops, and what it has acknowledged is kept by
/// the next one.
async fn broker_on_a_full_disk(test_store: &TestStore) {
    let _slot = crashes::process_slot().await;
    let journal = SharedJournal::create(test_store);
    let limited =
        with_file_size_limit(&test_store.command(&["worker", "--exec", "noop=true", "--json"]), 200);
    let limited = { limited }.stdout(Stdio::piped()).spawn().unwrap();
    let lease = journal.until_broker(limited.id()).await;
    let producer = journal.process("producer", true).await;
    let input = "x".repeat(1_000);
    let mut acknowledged = BTreeSet::new();
    for _ in 0..400 {
        // A submit may be repeated three times, and then its outcome is unknown.
        if let Ok(submitted) = producer.submit("noop", &input).max_attempts(ATTEMPTS).await {
            acknowledged.insert(submitted.id.to_string());
        }
    }
    assert!(acknowledged.len() > 300, "{} acknowledged", acknowledged.len());
    assert_ne!(journal.lease().await.unwrap()["instance"], lease["instance"], "the disk was not full");
    journal.until_empty().await;
    producer.close().await.unwrap();
    crashes::summary(limited);
    assert!(journal.audit(&acknowledged).0 >= acknowledged.len());
}

/// Command with a limit on the file size, in blocks of 512 bytes.
fn with_file_size_limit(command: &Command, blocks: u32) -> Command {
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(format!("trap '' XFSZ; ulimit -S -f {blocks}; exec \"$0\" \"$@\""));
    shell.arg(command.get_program()).args(command.get_args()).env_clear().current_dir("/");
    shell.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    shell
}
