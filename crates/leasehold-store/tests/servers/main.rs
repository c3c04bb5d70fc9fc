//! Buckets on real servers, and on servers and networks that misbehave. `./test` installs what they need.
#![expect(clippy::disallowed_methods, reason = "tests own what they start")]
#![expect(clippy::unwrap_used, reason = "in a test a panic is the report, in its helpers too")]

mod buckets;
mod faults;
mod log;
mod moto;
mod refusals;
mod support;
mod time;

use leasehold_store::testing::SeaweedFs;
use leasehold_store::{AccessKey, Client, Host, OpenOptions, Store, SystemHost, open};
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::OnceCell;

/// Path of a program that `./test` has installed.
fn program(variable: &str) -> PathBuf {
    std::env::var_os(variable).unwrap_or_else(|| panic!("{variable} is not set: run ./test")).into()
}

/// Real server of this test binary, with one bucket; it ends with the process.
async fn weed() -> &'static SeaweedFs {
    static WEED: OnceCell<SeaweedFs> = OnceCell::const_new();
    WEED.get_or_init(|| async {
        let weed = SeaweedFs::start(&program("LEASEHOLD_WEED")).await.unwrap();
        weed.create_bucket("tasks").await.unwrap();
        weed
    })
    .await
}

fn host() -> Arc<dyn Host> {
    Arc::new(SystemHost)
}

fn options(endpoint: &str) -> OpenOptions {
    OpenOptions {
        endpoint: Some(endpoint.into()),
        region: Some("us-east-1".into()),
        access_key: Some(AccessKey { id: "test".into(), secret: "testsecret".into() }),
        ..OpenOptions::default()
    }
}

/// Prefix in the bucket for one test.
fn bucket(endpoint: &str, prefix: &str) -> Arc<dyn Store> {
    open(&format!("s3://tasks/{prefix}"), &options(endpoint), &host()).unwrap()
}

fn client(endpoint: &str, prefix: &str) -> Client {
    Client::new(bucket(endpoint, prefix), host())
}
