//! One program for a queue in a bucket and for an outpost in a folder. `LEASEHOLD_QUEUE_TYPE` selects the backend.
//!
//! ```sh
//! cargo run --example either
//! LEASEHOLD_QUEUE_TYPE=filesystem cargo run --example either
//! ```
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use leasehold::{AnyQueue, Campaign, Consistency, Context, NewTask, OutpostConfig, Queue, QueueType};
use leasehold::{Shutdown, Spool, Status, SystemHost, TaskError, WorkerOptions};
use serde_json::json;
use std::sync::Arc;

async fn measure(_: Context, picture: String) -> Result<usize, TaskError> {
    Ok(picture.len())
}

/// Opens the queue: the only part that differs. A folder takes the place of the bucket here.
async fn open(kind: QueueType, place: &std::path::Path) -> leasehold::Result<AnyQueue> {
    Ok(match kind {
        QueueType::Bucket => Queue::connect(place.join("bucket").display().to_string()).await?.into(),
        QueueType::Filesystem => {
            let config = OutpostConfig {
                // Tasks run without the bucket, and a supervisor syncs them when the bucket is available.
                consistency: Consistency::Relaxed,
                ..OutpostConfig::new("pi-1".to_owned().try_into()?)
            };
            let of = Campaign::new("spring", "pictures")?;
            Spool::create(&place.join("node"), &of, config, Arc::new(SystemHost))?.into()
        }
    })
}

async fn run(kind: QueueType) -> Result<(), Box<dyn std::error::Error>> {
    let place = tempfile::tempdir()?;
    let queue = open(kind, place.path()).await?;
    let id = queue.submit(NewTask::new("measure", json!("0815.jpg"))?).await?;
    let worker = queue.worker("worker-1")?.handle("measure", measure)?;
    worker
        .options(WorkerOptions { until_empty: true, ..WorkerOptions::default() })
        .run(Shutdown::default())
        .await?;
    let task = queue.get(&id).await?;
    assert_eq!((task.status(), task.output()), (Status::Completed, Some(&json!(8))));
    println!("{kind}: {} returned {}", task.id, json!(task.output()));
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Without the variable, runs both.
    if std::env::var_os("LEASEHOLD_QUEUE_TYPE").is_some() {
        return run(QueueType::from_env()?).await;
    }
    run(QueueType::Bucket).await?;
    run(QueueType::Filesystem).await
}
