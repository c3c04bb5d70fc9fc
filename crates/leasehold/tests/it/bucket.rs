//! A queue in a bucket, opened by its address and the AWS environment variables.

use leasehold::{AccessKey, Client, OpenOptions, Queue};
use leasehold_store::testing::{FaultyServer, Violations};
use std::process::Command;

const ADDRESS: &str = "s3://tasks/queue";
const VARIABLE: &str = "AWS_ENDPOINT_URL";

/// A process cannot change its own variables safely, so this runs the next test in another one.
#[tokio::test(flavor = "multi_thread")]
async fn environment_variables_configure_a_bucket() {
    let server = FaultyServer::start(Violations::default()).await.unwrap();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "bucket::a_task_is_submitted_with_environment_variables"])
        .env(VARIABLE, server.endpoint())
        .envs([
            ("AWS_ACCESS_KEY_ID", "test"),
            ("AWS_SECRET_ACCESS_KEY", "secret"),
            ("AWS_REGION", "eu-west-1"),
        ])
        .output()
        .unwrap();
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stdout));
    let options = OpenOptions {
        endpoint: Some(server.endpoint()),
        region: Some("eu-west-1".into()),
        access_key: Some(AccessKey { id: "test".into(), secret: "secret".into() }),
        ..OpenOptions::default()
    };
    let queue = Queue::connect(Client::open(ADDRESS, &options).unwrap()).await.unwrap();
    assert_eq!(queue.stats().await.unwrap().due, 1);
}

/// Does nothing unless the test above runs it.
#[tokio::test]
async fn a_task_is_submitted_with_environment_variables() {
    let is_on_loopback = |endpoint: String| endpoint.starts_with("http://127.0.0.1:");
    if std::env::var(VARIABLE).is_ok_and(is_on_loopback) {
        Queue::connect(ADDRESS).await.unwrap().submit("greet", "Ada").await.unwrap();
    }
}
