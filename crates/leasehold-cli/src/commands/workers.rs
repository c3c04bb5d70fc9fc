//! `leasehold workers`: lists workers that lease shards or have an inbox, and the size of the inbox.

use clap::Args;
use futures::StreamExt;
use leasehold_core::WorkerId;
use leasehold_queue::{LeaseState, NameFor, Queue, SeenLease};
use serde_json::json;
use std::collections::BTreeMap;

use super::shards;
use crate::printer::{Printer, line};
use crate::table::{Cell, TextTable, moment};

#[derive(Debug, Args)]
pub(crate) struct WorkersArgs {
    /// Maximum number of workers to list; they stay listed for a week after their last use
    #[arg(long, value_name = "N", default_value_t = 1000)]
    limit: usize,
}

pub(crate) async fn run(queue: &Queue, args: &WorkersArgs, printer: &Printer) -> anyhow::Result<()> {
    let spinner = printer.spinner("reading workers");
    let mut names = std::pin::pin!(queue.worker_leases());
    let mut seen = Vec::new();
    while seen.len() < args.limit
        && let Some(name) = names.next().await
    {
        seen.push(name?);
        spinner.inc(1);
    }
    let are_more = seen.len() == args.limit && names.next().await.is_some();
    let sizes = queue.inbox_sizes().await?;
    spinner.finish_and_clear();
    let mut seen: Vec<_> =
        seen.into_iter().map(|(worker, name_for, seen)| Row::new(worker, name_for, seen, &sizes)).collect();
    if !are_more {
        seen.extend(nameless(&seen, &sizes));
    }
    print(queue, &seen, printer)?;
    if are_more {
        printer.note(&format!("limit of {} reached; raise --limit to list more", args.limit));
    }
    Ok(())
}

/// One worker, with the size of its inbox, if it has one.
struct Row {
    worker: WorkerId,
    name_for: NameFor,
    /// `None` if there is an inbox without a lease.
    seen: Option<SeenLease>,
    inbox: Option<u64>,
}

impl Row {
    fn new(worker: WorkerId, name_for: NameFor, seen: SeenLease, sizes: &BTreeMap<WorkerId, u64>) -> Self {
        let size = sizes.get(&worker).copied().unwrap_or(0);
        let inbox = (name_for == NameFor::Inbox).then_some(size);
        Self { worker, name_for, seen: Some(seen), inbox }
    }

    fn state(&self) -> LeaseState {
        self.seen.as_ref().map_or(LeaseState::Free, |seen| seen.state)
    }
}

/// Inboxes without a lease: a producer has written there late.
fn nameless(seen: &[Row], sizes: &BTreeMap<WorkerId, u64>) -> Vec<Row> {
    let is_named = |worker: &WorkerId| seen.iter().any(|row| row.worker == *worker && row.inbox.is_some());
    let left = sizes.iter().filter(|(worker, _)| !is_named(worker));
    left.map(|(worker, size)| Row {
        worker: worker.clone(),
        name_for: NameFor::Inbox,
        seen: None,
        inbox: Some(*size),
    })
    .collect()
}

fn print(queue: &Queue, seen: &[Row], printer: &Printer) -> anyhow::Result<()> {
    if printer.is_json() {
        seen.iter().for_each(print_json);
        return Ok(());
    }
    if seen.is_empty() {
        printer.note("no workers with leased shards or inboxes; workers that scan all shards are not listed");
        return Ok(());
    }
    let now = queue.now()?.earliest;
    let rows: Vec<_> = seen
        .iter()
        .map(|row| {
            let lease = row.seen.as_ref().and_then(|seen| seen.lease.as_ref());
            let holder = row.seen.as_ref().and_then(SeenLease::holder);
            let until = holder.and(lease).map(|lease| moment(lease.expires_at, now));
            vec![
                (&row.worker).into(),
                row.name_for.name().into(),
                shards::state(row.state(), word(row)),
                lease.map_or("-".into(), |lease| lease.epoch.into()),
                until.map_or("-".into(), Cell::from),
                row.inbox.map_or("-".into(), Cell::from),
            ]
        })
        .collect();
    let table = TextTable::default().left("WORKER", 0).left("FOR", 6).left("STATE", 8).right("EPOCH", 0);
    let table = table.left("UNTIL (UTC)", 0).right("IN INBOX", 0);
    table.rows(&rows, printer);
    Ok(())
}

fn print_json(row: &Row) {
    let lease = row.seen.as_ref().and_then(|seen| seen.lease.as_ref());
    let holder = row.seen.as_ref().and_then(SeenLease::holder);
    line(json!({
        "worker_id": row.worker,
        "for": row.name_for.name(),
        "state": word(row),
        "instance": lease.map(|lease| &lease.instance),
        "epoch": lease.map(|lease| lease.epoch),
        "until": holder.and(lease).map(|lease| lease.expires_at),
        "in_inbox": row.inbox,
    }));
}

/// State of a worker. A free lease was released: otherwise it would not exist.
fn word(row: &Row) -> &'static str {
    match (&row.seen, row.state()) {
        (None, _) => "gone",
        (_, LeaseState::Free) => "released",
        (_, state) => state.name(),
    }
}
