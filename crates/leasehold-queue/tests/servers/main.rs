//! Leases and scans of the index on a real S3 server, in real time. `./test` installs what they need.

use leasehold_core::{Index, ShardRange};
use leasehold_queue::discover::KeyRange;
use leasehold_queue::testing::leases::{LeaseExtent, LeaseSuite, Time};
use leasehold_queue::{ObjectQueue, QueueConfig};
use leasehold_store::testing::S3;
use leasehold_store::{Client, Host, Purpose, SystemHost, open};
use std::sync::Arc;
use std::time::Duration;

/// The time of a bucket is known to about two seconds; a lease must last longer than that to be trusted at all.
const TTL: Duration = Duration::from_secs(8);

#[tokio::test(flavor = "multi_thread")]
async fn leases_conform_in_a_real_bucket() {
    let s3 = S3::shared().await;
    let (address, options) = (format!("s3://{}/leases", s3.fresh_bucket().await), s3.options());
    let open = move |host: &Arc<dyn Host>| open(&address, &options, host).unwrap();
    let extent = LeaseExtent { ttl: TTL, contested: 20, ..LeaseExtent::default() };
    LeaseSuite::new(open, Time::Real, extent).run().await.unwrap();
}

/// A server that stores objects in folders may skip one whose name is the key to start after.
#[tokio::test(flavor = "multi_thread")]
async fn every_shard_of_a_range_is_scanned_in_a_real_bucket() {
    let s3 = S3::shared().await;
    let host: Arc<dyn Host> = Arc::new(SystemHost);
    let address = format!("s3://{}/ranges", s3.fresh_bucket().await);
    let client = Client::new(open(&address, &s3.options(), &host).unwrap(), host);
    let queue = ObjectQueue::with_config(client, QueueConfig::default()).await.unwrap();
    for number in 0..100 {
        queue.submit("work", number).await.unwrap();
    }
    let shards = queue.shard_len().all();
    for first in 0..shards.len() {
        let range = ShardRange { first: shards[first].clone(), last: shards[shards.len() - 1].clone() };
        let all = queue.discover(Purpose::Admin, vec![KeyRange::whole(Index::Ready)]).await.unwrap().due;
        let expected: Vec<_> = all
            .into_iter()
            .filter(|found| found.entry.shard().is_some_and(|shard| range.contains(shard)))
            .collect();
        let seen =
            queue.discover(Purpose::Admin, vec![KeyRange::of(Index::Ready, &range)]).await.unwrap().due;
        assert_eq!(seen, expected, "{range}");
    }
}
