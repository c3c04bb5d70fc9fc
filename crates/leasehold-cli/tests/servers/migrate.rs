use leasehold_store::testing::Lane;

use crate::common::migrating;
use crate::crashes::bucket;

#[tokio::test(flavor = "multi_thread")]
async fn tasks_are_migrated_there_and_back_by_processes_that_are_killed() {
    let place = bucket().await;
    println!("{}", migrating::there_and_back(&place, Lane::current().sized(400, 1_000)).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_migration_that_was_killed_can_be_aborted() {
    let place = bucket().await;
    migrating::called_off(&place, 400).await;
}
