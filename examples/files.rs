//! Artifacts: a task with an input file and a result file.
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use leasehold::{ArtifactStore, Cache, Context, PublishOptions, Queue, TaskError, Worker};
use std::sync::Arc;

async fn count_lines(context: Context, (): ()) -> Result<usize, TaskError> {
    // The worker fetches the file before the handler starts.
    let text = std::fs::read_to_string(context.artifact("book.txt").ok_or(missing())?)?;
    let upper_case = std::env::temp_dir().join(format!("upper_case-{}.txt", context.task().id));
    std::fs::write(&upper_case, text.to_uppercase())?;
    // The worker uploads the file before the task is completed.
    context.publish("upper_case.txt", upper_case)?;
    Ok(text.lines().count())
}

fn missing() -> TaskError {
    TaskError::Permanent("no book".to_owned())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let queue = Queue::connect(folder.path().join("queue").as_path()).await?;
    let cache = Cache::open(folder.path().join("cache"), Some(10 << 30))?;
    let artifacts = ArtifactStore::new(queue.client()?.clone(), cache);

    let book = folder.path().join("book.txt");
    std::fs::write(&book, "once\nupon\na time\n")?;
    let published = artifacts.publish(&book, &PublishOptions::default()).await?;
    let submitted = queue.submit("count", ()).artifact("book.txt", published.manifest.artifact).await?;

    let worker = Worker::new(queue.clone(), "reader", None)?;
    worker.artifact_io(Arc::new(artifacts.clone())).handle("count", count_lines)?.run_until_empty().await?;

    let task = queue.get(&submitted.id).await?;
    assert_eq!(task.output(), Some(&3.into()));
    let upper_case = task.results().and_then(|results| results.values().next()).ok_or("no result")?;
    let (file, _) = artifacts.fetch(upper_case, &|_| ()).await?;
    assert_eq!(std::fs::read_to_string(file.path())?, "ONCE\nUPON\nA TIME\n");
    println!("{upper_case} is the book in upper case");
    Ok(())
}
