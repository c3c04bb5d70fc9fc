//! Idempotency keys: a task that is submitted twice runs once.
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use futures::TryStreamExt;
use leasehold::{Kind, Queue, Scope, UniqueKey};
use serde_json::json;
use std::time::Duration;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let queue = Queue::connect(folder.path()).await?;
    let welcome = |name: &str| queue.submit("welcome", json!({"name": name}));

    // A producer that does not know whether its first submit succeeded submits again.
    let first = welcome("Ada").key("signup-17").await?;
    let again = welcome("Ada").key("signup-17").await?;
    assert!(first.is_new && !again.is_new);
    assert_eq!(first.id, again.id);

    // Twenty concurrent submits create one task.
    let tries = (0..20).map(|_| welcome("Bob").key("signup-18"));
    let tries: Vec<_> = queue.submit_many(tries).try_collect().await?;
    assert!(tries.iter().all(|submitted| submitted.id == tries[0].id));

    // Using the key for a different task is an error.
    let error = welcome("Eve").key("signup-17").await.expect_err("the key belongs to Ada");
    assert_eq!(error.kind(), Kind::Invalid);
    println!("{error}");

    // By default, keys are unique in the whole queue for a day.
    let key = UniqueKey {
        scope: Scope::TaskType,
        lifetime: Duration::from_hours(48),
        ..UniqueKey::new("signup-17")
    };
    assert!(queue.submit("survey", ()).key(key).await?.is_new);

    assert_eq!(queue.stats().await?.due, 3);
    println!("3 tasks from 24 submits");
    Ok(())
}
