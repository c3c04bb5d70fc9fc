use leasehold_store::testing::Lane;

use crate::common::{direct, sharing};
use crate::crashes::bucket;

#[tokio::test(flavor = "multi_thread")]
async fn shards_are_divided_evenly_when_workers_come_and_die() {
    let test_store = bucket().await;
    sharing::divided_evenly(&test_store).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_are_completed_once_by_workers_of_all_kinds() {
    let test_store = bucket().await;
    sharing::side_by_side(&test_store, Lane::current().sized(800, 2_000)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_killed_with_a_full_inbox_loses_nothing() {
    let mut test_store = bucket().await;
    direct::killed_with_a_full_inbox(&mut test_store, Lane::current().sized(300, 1_000)).await;
}
