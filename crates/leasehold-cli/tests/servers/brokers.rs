use leasehold_store::testing::{Lane, SeaweedFs, weed_binary};
use std::sync::Arc;

use crate::common::brokers::{self, BATCH, Processes, SharedJournal, produce};
use crate::common::crashes;
use crate::crashes::{bucket, bucket_on};

#[tokio::test(flavor = "multi_thread")]
async fn tasks_survive_a_kill_of_the_broker_every_two_seconds() {
    let (tasks, kills) = Lane::current().sized((800, 2), (10_000, 20));
    brokers::killed_every_two_seconds(&bucket().await, tasks, kills).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_processes_that_believe_to_be_the_broker_one_acknowledges() {
    brokers::replaced_while_it_lives(&bucket().await).await;
}

/// A producer and two workers use the queue meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn acknowledged_tasks_survive_a_power_cut_of_the_server() {
    let _slot = crashes::process_slot().await;
    let mut server = SeaweedFs::start(&weed_binary()).await.unwrap();
    let test_store = bucket_on(&server).await;
    let journal = SharedJournal::create(&test_store);
    let workers = ["w1", "w2"].map(|id| test_store.worker(id, "noop=true", &[]));
    let running = Arc::<Processes>::default();
    let batches =
        |count: usize| (0..count).map(|_| test_store.command(&["submit-many", "-", "--json"])).collect();
    let mut acknowledged = produce(running.clone(), batches(1), BATCH).await;
    let producer = tokio::spawn(produce(running, batches(20), 2 * BATCH));
    server.kill_and_restart().await.unwrap();
    acknowledged.extend(producer.await.unwrap());
    journal.until_empty().await;
    for worker in workers {
        crashes::summary(worker);
    }
    assert!(journal.audit(&acknowledged).0 >= acknowledged.len());
}
