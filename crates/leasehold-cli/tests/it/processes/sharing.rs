use leasehold_store::testing::Lane;
use leasehold_store::{Durability, FolderOptions, OpenOptions};

use super::OF_OBJECTS;
use crate::common::crashes::{self, TestStore};
use crate::common::{direct, sharing};

/// Folder without fsync: these tests do not depend on durability.
fn folder(root: &std::path::Path) -> TestStore {
    let folder = FolderOptions { durability: Durability::Os, ..FolderOptions::default() };
    TestStore {
        store: root.to_str().unwrap().into(),
        variables: vec![("LEASEHOLD_QUEUE_DURABILITY", "os".into()), (OF_OBJECTS.0, OF_OBJECTS.1.into())],
        options: OpenOptions { folder, ..OpenOptions::default() },
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn shards_are_divided_evenly_when_workers_come_and_die() {
    let root = tempfile::tempdir().unwrap();
    sharing::divided_evenly(&folder(root.path())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_are_completed_once_by_workers_of_all_kinds() {
    let root = tempfile::tempdir().unwrap();
    sharing::side_by_side(&folder(root.path()), Lane::current().sized(3_000, 10_000)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_killed_with_a_full_inbox_loses_nothing() {
    let root = tempfile::tempdir().unwrap();
    direct::killed_with_a_full_inbox(&mut folder(root.path()), Lane::current().sized(400, 1_000)).await;
}

/// Store where every worker leases shards.
fn divided(root: &std::path::Path) -> TestStore {
    let mut test_store = folder(root);
    test_store.variables.extend([
        ("LEASEHOLD_SHARD_LEASING", "1".to_owned()),
        ("LEASEHOLD_SHARD_LEASING_TTL_SECS", "3".to_owned()),
        ("LEASEHOLD_SHARD_LEASING_RENEW_SECS", "1".to_owned()),
    ]);
    test_store
}

#[tokio::test(flavor = "multi_thread")]
async fn the_task_of_a_lost_holder_runs_again_within_its_lease_and_ten_seconds() {
    let root = tempfile::tempdir().unwrap();
    crashes::recovered_in_time(&divided(root.path())).await;
}
