use leasehold_store::testing::Lane;
use leasehold_store::{Durability, FolderOptions, OpenOptions};

use crate::common::brokers;
use crate::common::crashes::TestStore;

/// Folder with fsync.
fn folder(root: &std::path::Path) -> TestStore {
    let folder = FolderOptions { durability: Durability::Fsync, ..FolderOptions::default() };
    let options = OpenOptions { folder, ..OpenOptions::default() };
    TestStore { store: root.to_str().unwrap().into(), variables: Vec::new(), options }
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_survive_a_kill_of_the_broker_every_two_seconds() {
    let root = tempfile::tempdir().unwrap();
    let (tasks, kills) = Lane::current().sized((1_600, 4), (20_000, 30));
    brokers::killed_every_two_seconds(&folder(root.path()), tasks, kills).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_was_stopped_beyond_its_lease_acknowledges_nothing() {
    let root = tempfile::tempdir().unwrap();
    brokers::stopped_beyond_its_lease(&folder(root.path())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_processes_that_believe_to_be_the_broker_one_acknowledges() {
    let root = tempfile::tempdir().unwrap();
    brokers::replaced_while_it_lives(&folder(root.path())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_broker_has_acknowledged_survives_its_full_disk() {
    let root = tempfile::tempdir().unwrap();
    brokers::broker_on_a_full_disk(&folder(root.path())).await;
}
