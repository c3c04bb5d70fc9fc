//! Delays, changed plans, and the history that remembers them.
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use futures::TryStreamExt;
use leasehold::{Context, Filter, Operated, Queue, Status, TaskError, Worker};
use std::time::Duration;

async fn report(context: Context, (): ()) -> Result<u32, TaskError> {
    Ok(context.attempt())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let queue = Queue::connect(folder.path()).await?;
    let worker = || Worker::new(queue.clone(), "worker-1", None)?.handle("report", report);

    // Times are the store's: no local clock has to be right.
    let tomorrow = queue.now()?.earliest.plus(Duration::from_hours(24));
    let hourly = queue.submit("report", ()).delay(Duration::from_hours(1)).tag("kind", "hourly").await?;
    let daily = queue.submit("report", ()).at(tomorrow).tag("kind", "daily").await?;
    assert_eq!(queue.stats().await?.scheduled, 2);

    // Nothing is due, so there is nothing to do.
    assert_eq!(worker()?.run_until_empty().await?.started, 0);

    // One is called off; a task that is final cannot be planned any more.
    assert!(matches!(queue.cancel(&daily.id).await?, Operated::Done(_)));
    let Operated::Refused(why) = queue.reschedule(&daily.id, tomorrow).await? else {
        return Err("a cancelled task was planned".into());
    };
    println!("refused: {why}");

    // The other is wanted now.
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

    // Called off is not gone: it can be put back.
    assert!(matches!(queue.retry(&daily.id).await?, Operated::Done(_)));
    assert_eq!(worker()?.run_until_empty().await?.completed, 1);
    Ok(())
}
