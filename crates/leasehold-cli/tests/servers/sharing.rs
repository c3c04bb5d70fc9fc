use crate::common::sharing;
use crate::crashes::bucket;

#[tokio::test(flavor = "multi_thread")]
async fn shards_are_divided_evenly_when_workers_come_and_die() {
    let (_weed, place) = bucket().await;
    sharing::divided_evenly(&place).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_thousand_tasks_are_done_once_by_workers_with_and_without_leases() {
    let (_weed, place) = bucket().await;
    sharing::side_by_side(&place, 2_000).await;
}
