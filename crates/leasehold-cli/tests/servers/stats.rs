//! Number of requests of `leasehold stats`.

use leasehold_core::NewTask;
use leasehold_store::testing::{Proxy, S3, pass};

use crate::crashes::bucket;

#[tokio::test(flavor = "multi_thread")]
async fn stats_read_each_task_once() {
    let test_store = bucket().await;
    let queue = test_store.queue().await;
    for _ in 0..25 {
        queue.submit_task(NewTask::new("a", 1.into()).unwrap()).await.unwrap();
    }
    let proxy = Proxy::start(&S3::shared().await.endpoint(), pass()).await.unwrap();
    let mut stats = test_store.command(&["stats", "--json"]);
    let output = stats.env("AWS_ENDPOINT_URL", proxy.endpoint()).output().unwrap();
    let counted: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(counted["due"], 25, "{output:?}");
    let counts = proxy.counts();
    // The 25 tasks in one page, and `queue.json`.
    assert_eq!((counts.list, counts.get), (1, 25 + 1), "{counts:?}");
    assert_eq!((counts.put, counts.delete), (0, 0), "{counts:?}");
}
