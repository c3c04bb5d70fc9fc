//! One program for a queue in a bucket and for an outpost in a folder. `LEASEHOLD_QUEUE_TYPE` selects the backend.
//!
//! ```sh
//! cargo run --example any_queue
//! LEASEHOLD_QUEUE_TYPE=filesystem cargo run --example any_queue
//! ```
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use leasehold::{Consistency, Context, OutpostConfig, Queue, QueuePath, QueueType, Spool, Status};
use leasehold::{SystemHost, TaskError, Worker};
use serde_json::json;
use std::sync::Arc;

async fn measure(_: Context, picture: String) -> Result<usize, TaskError> {
    Ok(picture.len())
}

/// Opens the queue: the only part that differs. A folder takes the place of the bucket here.
async fn open(kind: QueueType, folder: &std::path::Path) -> leasehold::Result<Queue> {
    match kind {
        QueueType::Bucket => Queue::connect(folder.join("bucket").as_path()).await,
        QueueType::Filesystem => {
            let config = OutpostConfig {
                // Tasks run without the bucket, and a supervisor syncs them when the bucket is available.
                consistency: Consistency::Relaxed,
                ..OutpostConfig::new("pi-1".to_owned().try_into()?)
            };
            let path = QueuePath::new("spring", "pictures")?;
            Ok(Spool::create(&folder.join("node"), &path, config, Arc::new(SystemHost))?.into())
        }
    }
}

async fn run(kind: QueueType) -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let queue = open(kind, folder.path()).await?;
    let worker = Worker::new(queue.clone(), "worker-1", None)?;
    let submitted = queue.submit("measure", "0815.jpg").key("0815").await?;
    worker.handle("measure", measure)?.run_until_empty().await?;
    let task = queue.wait(&submitted.id, None).await?;
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
