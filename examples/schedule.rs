//! Delayed tasks, rescheduling, cancelling, and a task's history.
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use futures::TryStreamExt;
use leasehold::{Context, Filter, Queue, Status, TaskError, Transition, Worker};
use std::time::Duration;

async fn report(context: Context, (): ()) -> Result<u32, TaskError> {
    Ok(context.attempt())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let queue = Queue::connect(folder.path()).await?;
    let worker = || Worker::new(queue.clone(), "worker-1", None)?.handle("report", report);

    // Times are the store's: local clocks need not be right.
    let tomorrow = queue.now()?.earliest.plus(Duration::from_hours(24));
    let hourly = queue.submit("report", ()).delay(Duration::from_hours(1)).tag("kind", "hourly").await?;
    let daily = queue.submit("report", ()).at(tomorrow).tag("kind", "daily").await?;
    assert_eq!(queue.stats().await?.scheduled, 2);

    // No task is due, so the worker returns at once.
    assert_eq!(worker()?.run_until_empty().await?.started, 0);

    // Cancel one task; a final task can no longer be rescheduled.
    assert!(queue.cancel(&daily.id).await?.is_done());
    let Transition::Rejected(why, _) = queue.reschedule(&daily.id, tomorrow).await? else {
        return Err("a cancelled task was rescheduled".into());
    };
    println!("rejected: {why}");

    // Run the other one now.
    queue.reschedule(&hourly.id, queue.now()?.earliest).await?;
    assert_eq!(worker()?.run_until_empty().await?.completed, 1);

    for change in queue.get_history(&hourly.id).await? {
        println!("{} {} by {}: {}", change.at, change.event, change.by, change.to);
    }
    let history = queue.get_history(&hourly.id).await?;
    let events: Vec<_> = history.iter().map(|change| change.event.as_str()).collect();
    assert_eq!(events, ["submit", "reschedule", "claim", "complete"]);

    let filter = Filter { status: Some(Status::Cancelled), ..Filter::default() };
    let cancelled: Vec<_> = queue.list(filter).try_collect().await?;
    assert_eq!(cancelled.len(), 1);
    assert_eq!(cancelled[0].tags["kind"], "daily");

    // A cancelled task can be retried.
    assert!(queue.retry(&daily.id).await?.is_done());
    assert_eq!(worker()?.run_until_empty().await?.completed, 1);
    Ok(())
}
