use leasehold_store::testing::Lane;

use crate::common::migrating;
use crate::crashes::bucket;

#[tokio::test(flavor = "multi_thread")]
async fn tasks_are_migrated_there_and_back_by_processes_that_are_killed() {
    let test_store = bucket().await;
    println!(
        "{}",
        migrating::migrate_and_back_with_kills(&test_store, Lane::current().sized(400, 1_000)).await
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_migration_that_was_killed_can_be_aborted() {
    let test_store = bucket().await;
    migrating::abort_after_kill(&test_store, 400).await;
}
