//! A handler with typed input and output: retry, snooze, progress, and the epoch as fencing token.
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use leasehold::{Context, Queue, RetryPolicy, TaskError, TaskId, Worker};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

#[derive(Serialize, Deserialize)]
struct Transfer {
    account: String,
    cents: u64,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Receipt {
    account: String,
    balance_cents: u64,
}

/// External system that the handler changes. It stores the highest epoch so far and rejects smaller ones: a run whose
/// claim was lost can do no harm, however late it writes.
#[derive(Default)]
struct Account {
    state: Mutex<(u64, u64)>,
}

impl Account {
    fn set_balance(&self, epoch: u64, cents: u64) -> Result<u64, TaskError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if epoch < state.0 {
            return Err(TaskError::Permanent(format!("epoch {epoch} was superseded by {}", state.0)));
        }
        *state = (epoch, cents);
        Ok(cents)
    }
}

async fn transfer(
    context: Context,
    transfer: Transfer,
    account: Arc<Account>,
    progress_seen: Arc<Notify>,
) -> Result<Receipt, TaskError> {
    match context.epoch() {
        // The first run fails: the task is retried after a delay, and an attempt is used.
        1 => return Err(TaskError::Retry("the bank does not respond".into())),
        // The second run snoozes, which does not count as an attempt.
        2 => return Err(TaskError::Snooze(Duration::from_millis(50))),
        _ => {}
    }
    // Progress is written with the next renewal of the claim; `extend` requests one soon.
    context.progress(json!({"step": "checked"}));
    context.extend();
    progress_seen.notified().await;
    let balance_cents = account.set_balance(context.epoch(), transfer.cents)?;
    Ok(Receipt { account: transfer.account, balance_cents })
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let queue = Queue::connect(folder.path()).await?;
    let quick = RetryPolicy { initial_secs: 0.05, ..RetryPolicy::default() };
    let input = Transfer { account: "ada".into(), cents: 1_250 };
    let id = queue.submit("transfer", input).max_attempts(2).retry_policy(quick).await?.id;

    let (account, progress_seen) = (Arc::new(Account::default()), Arc::new(Notify::new()));
    let worker = Worker::new(queue.clone(), "worker-1", None)?.handle("transfer", {
        let (account, progress_seen) = (account.clone(), progress_seen.clone());
        move |context, input| transfer(context, input, account.clone(), progress_seen.clone())
    })?;
    let watch = until_progress(&queue, &id, &progress_seen);
    let (counts, ()) = tokio::try_join!(worker.run_until_empty(), watch)?;
    assert_eq!(counts.started, 3);

    let task = queue.get(&id).await?;
    assert_eq!((task.attempt, task.epoch), (2, 3));
    assert_eq!(task.progress, Some(json!({"step": "checked"})));
    let receipt: Receipt = serde_json::from_value(task.output().cloned().unwrap_or_default())?;
    assert_eq!(receipt, Receipt { account: "ada".into(), balance_cents: 1_250 });

    // A late write with the epoch of an earlier claim is rejected.
    let late = account.set_balance(2, 0);
    assert_eq!(late, Err(TaskError::Permanent("epoch 2 was superseded by 3".into())));
    println!("{receipt:?} after {} attempts; a late run was rejected", task.attempt);
    Ok(())
}

/// Polls the task until it reports progress.
async fn until_progress(queue: &Queue, id: &TaskId, progress_seen: &Notify) -> leasehold::Result<()> {
    loop {
        let task = queue.get(id).await?;
        if task.progress.is_some() || task.status().is_final() {
            progress_seen.notify_one();
            return Ok(());
        }
    }
}
