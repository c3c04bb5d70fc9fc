use leasehold_store::testing::{FaultyServer, S3, Violations};
use std::process::Command;

use crate::common::{assert_output, leasehold};

fn doctor(endpoint: &str, bucket: &str) -> Command {
    let mut command = leasehold(&["doctor", "--store", &format!("s3://{bucket}/q")]);
    command
        .env("AWS_ENDPOINT_URL", endpoint)
        .env("AWS_ACCESS_KEY_ID", "test")
        .env("AWS_SECRET_ACCESS_KEY", "testsecret")
        .env("AWS_REGION", "us-east-1");
    command
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_server_meets_the_requirements_and_its_refusals_are_explained() {
    let s3 = S3::shared().await;
    // The name is part of the output.
    s3.create_bucket("tasks").await.unwrap();
    assert_output("real", &mut doctor(&s3.endpoint(), "tasks"), None);
    let mut by_settings = leasehold(&["doctor", "--store", "s3://tasks/q"]);
    by_settings
        .env("LEASEHOLD_QUEUE_ENDPOINT", s3.endpoint())
        .env("LEASEHOLD_QUEUE_REGION", "us-east-1")
        .env("LEASEHOLD_QUEUE_ACCESS_KEY_ID", "test")
        .env("LEASEHOLD_QUEUE_SECRET_ACCESS_KEY", "testsecret");
    assert_output("real", &mut by_settings, None);
    assert_output("missing_bucket", &mut doctor(&s3.endpoint(), "nowhere"), None);
    assert_output(
        "wrong_credentials",
        doctor(&s3.endpoint(), "tasks").env("AWS_SECRET_ACCESS_KEY", "wrong"),
        None,
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_that_ignore_conditions_are_refused() {
    let create = Violations { ignore_if_none_match: true, ..Violations::default() };
    let replace = Violations { ignore_if_match: true, ..Violations::default() };
    for (name, violations) in [("ignores_if_none_match", create), ("ignores_if_match", replace)] {
        let server = FaultyServer::start(violations).await.unwrap();
        assert_output(name, &mut doctor(&server.endpoint(), "tasks"), None);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_bucket_is_named_when_the_server_answers_only_404() {
    let server =
        FaultyServer::start(Violations { bare_not_found: true, ..Violations::default() }).await.unwrap();
    assert_output("missing_bucket_bare", &mut doctor(&server.endpoint(), "tasks"), None);
}

#[test]
fn an_unreachable_server_is_explained() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    assert_output("unreachable", &mut doctor(&format!("http://{free}"), "tasks"), None);
}

#[test]
fn plain_http_beyond_this_machine_is_refused() {
    assert_output("plain_http", &mut doctor("http://store.example:9000", "tasks"), None);
}
