//! Log of a journal on a real S3 server, with and without lost answers.

use leasehold_store::Log;
use leasehold_store::testing::log_conformance::LogSuite;
use leasehold_store::testing::{Fault, FaultPlan, Proxy, RequestKind};

use crate::{client, weed};

#[tokio::test(flavor = "multi_thread")]
async fn a_log_in_a_real_bucket_conforms() {
    let endpoint = weed().await.endpoint();
    let open = move |name: &str| Log::in_bucket(client(&endpoint, &format!("log-{name}")));
    LogSuite::new(open).run().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_conforms_although_every_fifth_answer_to_a_put_is_lost() {
    let plan: FaultPlan = Box::new(|seen| {
        if seen.kind == RequestKind::Put && seen.index % 5 == 0 { Fault::DropAnswer } else { Fault::Pass }
    });
    let proxy = Proxy::start(&weed().await.endpoint(), plan).await.unwrap();
    let endpoint = proxy.endpoint();
    let open = move |name: &str| Log::in_bucket(client(&endpoint, &format!("lossy-log-{name}")));
    LogSuite::new(open).run().await.unwrap();
}
