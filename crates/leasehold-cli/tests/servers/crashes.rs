use leasehold_store::testing::Weed;
use leasehold_store::{AccessKey, OpenOptions};

use crate::common::crashes::{self, Place};

pub(crate) async fn bucket() -> (Weed, Place) {
    let weed = Weed::start(std::env::var_os("LEASEHOLD_WEED").expect("run ./test").as_ref()).await.unwrap();
    weed.create_bucket("tasks").await.unwrap();
    let options = OpenOptions {
        endpoint: Some(weed.endpoint()),
        region: Some("us-east-1".into()),
        access_key: Some(AccessKey { id: "test".into(), secret: "testsecret".into() }),
        ..OpenOptions::default()
    };
    let variables = vec![
        ("AWS_ENDPOINT_URL", weed.endpoint()),
        ("AWS_ACCESS_KEY_ID", "test".into()),
        ("AWS_SECRET_ACCESS_KEY", "testsecret".into()),
        ("AWS_REGION", "us-east-1".into()),
    ];
    (weed, Place { store: "s3://tasks/queue".into(), variables, options })
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_tasks_survive_a_kill_every_second() {
    let (_weed, place) = bucket().await;
    crashes::killed_every_second(&place, 10_000, 20).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_worker_cannot_change_what_others_have_taken() {
    let (_weed, place) = bucket().await;
    crashes::stopped_longer_than_its_lease(&place).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_workers_task_runs_again_within_its_lease_and_ten_seconds() {
    let (_weed, place) = bucket().await;
    crashes::recovered_in_time(&place).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_worker_gives_back_what_it_holds() {
    let (_weed, place) = bucket().await;
    crashes::interrupted(&place).await;
}
