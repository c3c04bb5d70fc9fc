//! Conformance of a real S3 server.

use leasehold_store::Purpose::Admin;
use leasehold_store::testing::conformance::{Suite, SuiteOptions};
use leasehold_store::testing::{Proxy, pass};
use leasehold_store::{List, PutOutcome, Verb, When};

use crate::{bucket, client, weed};

#[tokio::test(flavor = "multi_thread")]
async fn a_real_bucket_conforms() {
    // This server lists siblings that continue with a byte below the slash out of order; our keys do not
    // depend on that.
    let extent = SuiteOptions { whole_key_order: false, ..SuiteOptions::default() };
    let suite = Suite::new(bucket(&weed().await.endpoint(), "conformance"), extent);
    suite.run().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_bucket_passes_the_probe_which_leaves_no_objects() {
    let client = client(&weed().await.endpoint(), "probe");
    let report = leasehold_store::probe(&client).await.unwrap();
    report.verdict().unwrap();
    let left = client.list(Admin, &List::all("")).await.unwrap();
    assert!(left.entries.is_empty(), "{left:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_ledger_counts_what_the_wire_carries() {
    let proxy = Proxy::start(&weed().await.endpoint(), pass()).await.unwrap();
    let client = client(&proxy.endpoint(), "counted");
    leasehold_store::probe(&client).await.unwrap();
    for number in 0..30 {
        let key = format!("k/{number:02}");
        let PutOutcome::Written(version) =
            client.put(Admin, &key, "one".into(), &When::Absent).await.unwrap()
        else {
            panic!("there is no other writer")
        };
        client.put(Admin, &key, "two".into(), &When::Unchanged(version.clone())).await.unwrap();
        client.put(Admin, &key, "late".into(), &When::Unchanged(version.clone())).await.unwrap();
        client.get_unless(Admin, &key, Some(&version)).await.unwrap();
        client.get(Admin, "k/none").await.unwrap();
        client.list(Admin, &List::all("k/").limit(7)).await.unwrap();
        client.list(Admin, &List::all("").delimited()).await.unwrap();
        client.delete(Admin, &key).await.unwrap();
    }
    let (seen, ledger) = (proxy.counts(), client.ledger().snapshot());
    let counted = [Verb::Put, Verb::Get, Verb::List, Verb::Delete, Verb::Head].map(|verb| ledger.verb(verb));
    assert_eq!(counted, [seen.put, seen.get, seen.list, seen.delete, seen.head]);
    assert_eq!(seen.other, 0);
    assert!(counted[..4].iter().all(|count| *count > 0));
}
