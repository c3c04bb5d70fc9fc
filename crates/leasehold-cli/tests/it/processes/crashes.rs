use leasehold_store::OpenOptions;

use super::OF_OBJECTS;
use crate::common::crashes::{self, TestStore};

fn folder(root: &std::path::Path) -> TestStore {
    let variables = vec![(OF_OBJECTS.0, OF_OBJECTS.1.into())];
    TestStore { store: root.to_str().unwrap().into(), variables, options: OpenOptions::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_survive_a_kill_every_second() {
    let root = tempfile::tempdir().unwrap();
    crashes::killed_every_second(&folder(root.path())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_worker_cannot_change_a_task_taken_by_another_worker() {
    let root = tempfile::tempdir().unwrap();
    crashes::stopped_longer_than_its_lease(&folder(root.path())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crashed_workers_task_runs_again_within_its_lease_and_ten_seconds() {
    let root = tempfile::tempdir().unwrap();
    crashes::recovered_in_time(&folder(root.path())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_worker_releases_its_tasks() {
    let root = tempfile::tempdir().unwrap();
    crashes::interrupted(&folder(root.path())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_check_of_a_busy_queue_finds_no_inconsistency() {
    let root = tempfile::tempdir().unwrap();
    crashes::checked_while_busy(&folder(root.path())).await;
}
