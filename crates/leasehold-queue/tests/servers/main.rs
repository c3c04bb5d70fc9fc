//! Leases on a real S3 server, in real time. `./test` installs what it needs.

use leasehold_queue::testing::leases::{Extent, Suite, Time};
use leasehold_store::testing::Weed;
use leasehold_store::{AccessKey, Host, OpenOptions, open};
use std::sync::Arc;
use std::time::Duration;

/// The time of a bucket is known to about two seconds; a lease must last longer than that to be trusted at all.
const TTL: Duration = Duration::from_secs(8);

#[tokio::test(flavor = "multi_thread")]
async fn leases_conform_in_a_real_bucket() {
    let weed = std::env::var_os("LEASEHOLD_WEED").expect("LEASEHOLD_WEED is not set: run ./test");
    let weed = Weed::start(weed.as_ref()).await.unwrap();
    weed.create_bucket("tasks").await.unwrap();
    let options = OpenOptions {
        endpoint: Some(weed.endpoint()),
        region: Some("us-east-1".into()),
        access_key: Some(AccessKey { id: "test".into(), secret: "testsecret".into() }),
        ..OpenOptions::default()
    };
    let open = move |host: &Arc<dyn Host>| open("s3://tasks/leases", &options, host).unwrap();
    let extent = Extent { ttl: TTL, contested: 20, ..Extent::default() };
    Suite::new(open, Time::Real, extent).run().await.unwrap();
}
