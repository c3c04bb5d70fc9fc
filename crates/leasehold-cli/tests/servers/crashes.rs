use leasehold_store::testing::S3;

use crate::common::crashes::{self, TestStore};

/// Queue in its own bucket on the shared server.
pub(crate) async fn bucket() -> TestStore {
    bucket_on(&S3::shared().await).await
}

/// Queue in its own bucket on a server.
pub(crate) async fn bucket_on(s3: &S3) -> TestStore {
    let variables = vec![
        ("AWS_ENDPOINT_URL", s3.endpoint()),
        ("AWS_ACCESS_KEY_ID", "test".into()),
        ("AWS_SECRET_ACCESS_KEY", "testsecret".into()),
        ("AWS_REGION", "us-east-1".into()),
    ];
    TestStore { store: format!("s3://{}/queue", s3.fresh_bucket().await), variables, options: s3.options() }
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_survive_a_kill_every_second() {
    let test_store = bucket().await;
    crashes::killed_every_second(&test_store).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_check_of_a_busy_queue_finds_no_inconsistency() {
    let test_store = bucket().await;
    crashes::checked_while_busy(&test_store).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_worker_cannot_change_a_task_taken_by_another_worker() {
    let test_store = bucket().await;
    crashes::stopped_longer_than_its_lease(&test_store).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crashed_workers_task_runs_again_within_its_lease_and_ten_seconds() {
    let test_store = bucket().await;
    crashes::recovered_in_time(&test_store).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_worker_releases_its_tasks() {
    let test_store = bucket().await;
    crashes::interrupted(&test_store).await;
}
