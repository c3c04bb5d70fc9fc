//! Dashboard during an outage of its store.

use leasehold_store::testing::{S3, SeaweedFs, weed_binary};
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::http::{address, ask, json};
use crate::common::leasehold;

/// Polls the dashboard, as a page does, until it shows that reading the store fails or succeeds. A read is retried for half
/// a minute before it fails.
async fn until_failing(address: &str, is_failing: bool) {
    let began = Instant::now();
    loop {
        let overview = json(&ask(address, "GET /api/overview", ""));
        let sample = &overview["sample"];
        if sample["error"].is_string() == is_failing && !overview["index"].is_null() {
            return;
        }
        assert!(began.elapsed() < Duration::from_mins(2), "{sample}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn command(s3: S3, bucket: &str, args: &[&str]) -> Command {
    let mut command = leasehold(args);
    command.args(["--store", &format!("s3://{bucket}/queue")]).env("AWS_ENDPOINT_URL", s3.endpoint());
    command.env("AWS_ACCESS_KEY_ID", "test").env("AWS_SECRET_ACCESS_KEY", "testsecret");
    command.env("AWS_REGION", "us-east-1").env("LEASEHOLD_LOG", "warn");
    command
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_is_logged_once_and_its_end_once() {
    let mut weed = SeaweedFs::start(&weed_binary()).await.unwrap();
    let bucket = weed.fresh_bucket().await;
    assert!(command(*weed, &bucket, &["init"]).output().unwrap().status.success());
    let mut dashboard = command(*weed, &bucket, &["dashboard", "--port", "0", "--json"]);
    let mut dashboard = dashboard.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut first = String::new();
    BufReader::new(dashboard.stdout.take().unwrap()).read_line(&mut first).unwrap();
    let address = address(&first);
    until_failing(&address, false).await;
    weed.stop().await.unwrap();
    until_failing(&address, true).await;
    weed.restart().await.unwrap();
    until_failing(&address, false).await;
    let pid = dashboard.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    let mut logged = String::new();
    dashboard.stderr.take().unwrap().read_to_string(&mut logged).unwrap();
    assert!(dashboard.wait().unwrap().success(), "{logged}");
    let warnings: Vec<_> = logged.lines().filter(|line| line.contains(" WARN ")).collect();
    let [away, back] = warnings.as_slice() else { panic!("{logged}") };
    assert!(away.contains("store unreachable, retrying"), "{logged}");
    assert!(back.contains("store available again"), "{logged}");
}
