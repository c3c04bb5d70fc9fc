//! Artifacts on a real server: put, get, input and result of a task.

use leasehold_store::testing::S3;
use serde_json::Value;
use std::fs;
use std::path::Path;

use crate::common::leasehold;

struct Bucket {
    s3: S3,
    store: String,
    root: tempfile::TempDir,
}

impl Bucket {
    fn run(&self, args: &[&str]) -> String {
        let mut command = leasehold(args);
        command
            .args(["--store", &self.store])
            .env("AWS_ENDPOINT_URL", self.s3.endpoint())
            .env("AWS_ACCESS_KEY_ID", "test")
            .env("AWS_SECRET_ACCESS_KEY", "testsecret")
            .env("AWS_REGION", "us-east-1")
            .env("LEASEHOLD_PIECES_CACHE", self.root.path().join("cache"));
        let output = command.output().unwrap();
        assert!(output.status.success(), "{args:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.run(args)).unwrap()
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn files_go_to_a_bucket_and_come_back() {
    let s3 = S3::shared().await;
    let bucket = Bucket {
        s3,
        store: format!("s3://{}/q", s3.fresh_bucket().await),
        root: tempfile::tempdir().unwrap(),
    };
    let (file, out) = (bucket.root.path().join("large.raw"), bucket.root.path().join("out.raw"));
    // More than one part, and a last one that is shorter.
    let contents: Vec<u8> =
        (0..20_000_001_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    fs::write(&file, &contents).unwrap();
    let put = bucket.json(&["artifact", "put", text(&file), "--json"]);
    assert_eq!((&put["size"], &put["was_there"]), (&20_000_001.into(), &false.into()));
    let hash = put["artifact"].as_str().unwrap();
    assert_eq!(bucket.json(&["artifact", "put", text(&file), "--json"])["was_there"], true);
    let got = bucket.json(&["artifact", "get", hash, "-o", text(&out), "--json"]);
    assert_eq!(got["fetched"]["origin_bytes"], 20_000_001, "{got}");
    assert!(fs::read(&out).unwrap() == contents, "what came back is not what was put");
    assert_eq!(bucket.run(&["artifact", "ls", "--long", "--json"]).lines().count(), 1);
    let id = bucket.run(&["submit", "-t", "tail", "--artifact", &format!("large={hash}")]);
    let tail = "tail=sh -c 'tail -c 1000 \"$LEASEHOLD_ARTIFACTS/large\" > \"$LEASEHOLD_RESULTS/tail.raw\"'";
    bucket.run(&["worker", "--drain", "--exec", tail]);
    let task = bucket.json(&["get", &id, "--json"]);
    let result = task["results"]["tail.raw"].as_str().unwrap_or_else(|| panic!("no result in {task}"));
    bucket.run(&["artifact", "get", result, "-o", text(&out)]);
    assert_eq!(fs::read(&out).unwrap(), contents[contents.len() - 1_000..]);
}
