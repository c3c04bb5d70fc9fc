use leasehold_store::OpenOptions;
use leasehold_store::testing::Lane;
use std::path::Path;
use std::time::Duration;

use crate::common::crashes::Place;
use crate::common::migrating::{self, fill, migrate};
use crate::common::shown;

fn folder(root: &Path) -> Place {
    Place { store: root.to_str().unwrap().into(), variables: Vec::new(), options: OpenOptions::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_are_migrated_there_and_back_by_processes_that_are_killed() {
    let root = tempfile::tempdir().unwrap();
    println!(
        "{}",
        migrating::there_and_back(&folder(root.path()), Lane::current().sized(1_500, 5_000)).await
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_migration_that_was_killed_can_be_aborted() {
    let root = tempfile::tempdir().unwrap();
    migrating::called_off(&folder(root.path()), 800).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn output_of_migrations() {
    let root = tempfile::tempdir().unwrap();
    let place = folder(root.path());
    let queue = place.queue().await;
    fill(queue.client(), 16).await;
    let folder = root.path().canonicalize().unwrap();
    let say = |name: &str, args: &[&str]| shown(name, &mut place.command(args), Some(&folder));
    say("migrate_dry_run", &["migrate-shards", "--to", "2", "--dry-run"]);
    say("migrate_dry_run_json", &["migrate-shards", "--to", "2", "--dry-run", "--json"]);
    say("migrate_no_wait", &migrate(&["--to", "2", "--no-wait"]));
    say("migrate_abort_too_late", &migrate(&["--abort"]));
    say("migrate_dry_run_left", &["migrate-shards", "--to", "2", "--dry-run"]);
    say("migrate_finish", &migrate(&["--to", "2"]));
    say("migrate_again", &migrate(&["--to", "2"]));
    // Otherwise it might wait for the grace of the last migration, depending on the speed of the machine.
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    say("migrate_json", &migrate(&["--to", "1", "--json"]));
    say("migrate_wrong", &migrate(&["--to", "5"]));
    say("migrate_nowhere", &["migrate-shards"]);
    say("migrate_abort_nothing", &migrate(&["--abort"]));
}
