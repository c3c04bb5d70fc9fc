//! Submit, run, wait: a producer and a worker in one process, on a folder.
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use leasehold::{Context, Queue, Shutdown, TaskError, Worker};
use serde_json::json;

async fn greet(_: Context, name: String) -> Result<String, TaskError> {
    Ok(format!("Hello, {name}!"))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // A bucket works the same way: Queue::connect("s3://my-bucket/tasks").
    let folder = tempfile::tempdir()?;
    let queue = Queue::connect(folder.path()).await?;

    let worker = Worker::new(queue.clone(), "worker-1", None)?.handle("greet", greet)?;
    let shutdown = Shutdown::default();
    let produce = async {
        let submitted = queue.submit("greet", "Ada").await?;
        let task = queue.wait(&submitted.id, None).await;
        shutdown.drain();
        task
    };
    let (counts, task) = tokio::join!(worker.run(shutdown.clone()), produce);

    let (counts, task) = (counts?, task?);
    assert_eq!(task.output(), Some(&json!("Hello, Ada!")));
    assert_eq!(counts.completed, 1);
    println!("{} is {}: {}", task.id, task.status(), json!(task.output()));
    Ok(())
}
