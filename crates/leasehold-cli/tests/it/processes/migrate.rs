use leasehold_store::OpenOptions;
use leasehold_store::testing::Lane;
use std::path::Path;
use std::time::Duration;

use super::OF_OBJECTS;
use crate::common::assert_output;
use crate::common::crashes::TestStore;
use crate::common::migrating::{self, fill, migrate};

fn folder(root: &Path) -> TestStore {
    let variables = vec![(OF_OBJECTS.0, OF_OBJECTS.1.into())];
    TestStore { store: root.to_str().unwrap().into(), variables, options: OpenOptions::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_are_migrated_there_and_back_by_processes_that_are_killed() {
    let root = tempfile::tempdir().unwrap();
    println!(
        "{}",
        migrating::migrate_and_back_with_kills(&folder(root.path()), Lane::current().sized(1_500, 5_000))
            .await
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_migration_that_was_killed_can_be_aborted() {
    let root = tempfile::tempdir().unwrap();
    migrating::abort_after_kill(&folder(root.path()), 800).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn output_of_migrations() {
    let root = tempfile::tempdir().unwrap();
    let test_store = folder(root.path());
    let queue = test_store.queue().await;
    fill(queue.client(), 16).await;
    let folder = root.path().canonicalize().unwrap();
    let assert_step =
        |name: &str, args: &[&str]| assert_output(name, &mut test_store.command(args), Some(&folder));
    assert_step("migrate_dry_run", &["migrate-shards", "--to", "2", "--dry-run"]);
    assert_step("migrate_dry_run_json", &["migrate-shards", "--to", "2", "--dry-run", "--json"]);
    assert_step("migrate_no_wait", &migrate(&["--to", "2", "--no-wait"]));
    assert_step("migrate_abort_too_late", &migrate(&["--abort"]));
    assert_step("migrate_dry_run_left", &["migrate-shards", "--to", "2", "--dry-run"]);
    assert_step("migrate_finish", &migrate(&["--to", "2"]));
    assert_step("migrate_again", &migrate(&["--to", "2"]));
    // Otherwise it might wait for the grace of the last migration, depending on the speed of the machine.
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    assert_step("migrate_json", &migrate(&["--to", "1", "--json"]));
    assert_step("migrate_wrong", &migrate(&["--to", "5"]));
    assert_step("migrate_nowhere", &["migrate-shards"]);
    assert_step("migrate_abort_nothing", &migrate(&["--abort"]));
}
