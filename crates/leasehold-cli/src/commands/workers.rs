//! `leasehold workers`: lists workers that lease shards or have an inbox, and the size of the inbox. In the layout `journal` the
//! broker tells which workers have reported themselves; that costs no request to the store beside those that find it.

use clap::Args;
use futures::StreamExt;
use leasehold_core::WorkerId;
use leasehold_queue::{
    FoundBroker, JournalQueue, JournalWorker, JournalWorkerState, LeaseInfo, LeaseState, ObjectQueue, Queue,
    QueueLayout, WorkerLeaseKind,
};
use serde_json::json;
use std::collections::BTreeMap;

use super::{broker, shards};
use crate::printer::{Printer, Style, line};
use crate::table::{Cell, TextTable, moment};

#[derive(Debug, Args)]
pub(crate) struct WorkersArgs {
    /// Maximum number of workers to list (workers that have ended stay listed for a week; in the layout `journal`, dead ones for
    /// an hour)
    #[arg(long, value_name = "N", default_value_t = 1000)]
    limit: usize,
}

pub(crate) async fn run(queue: &ObjectQueue, args: &WorkersArgs, printer: &Printer) -> anyhow::Result<()> {
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
    let mut seen: Vec<_> = seen
        .into_iter()
        .map(|(worker, lease_kind, seen)| Row::new(worker, lease_kind, seen, &sizes))
        .collect();
    if !are_more {
        seen.extend(inboxes_without_lease(&seen, &sizes));
    }
    print(queue, &seen, printer)?;
    if are_more {
        printer.note(&format!("limit of {} reached; raise --limit to list more", args.limit));
    }
    Ok(())
}

/// Lists the workers of a queue with the layout `journal`.
pub(crate) async fn run_of_journal(
    queue: &Queue,
    journal: &JournalQueue,
    args: &WorkersArgs,
    printer: &Printer,
) -> anyhow::Result<()> {
    let Some(mut workers) = journal.workers().await? else {
        let last = match journal.find_broker().await? {
            FoundBroker::Unreached(last) => last,
            FoundBroker::Reached(status) => Some(status.holder),
        };
        return Err(broker::no_broker(queue, last.as_ref())?.into());
    };
    let number = workers.len();
    workers.truncate(args.limit);
    if printer.is_json() {
        for worker in &workers {
            line(json!(worker));
        }
    } else if workers.is_empty() {
        printer.note("no worker is connected to the broker");
    } else {
        print_of_journal(journal, &workers, printer)?;
    }
    if number > args.limit {
        printer.note(&format!("limit of {} reached; raise --limit to list more", args.limit));
    }
    Ok(())
}

fn print_of_journal(
    journal: &JournalQueue,
    workers: &[JournalWorker],
    printer: &Printer,
) -> anyhow::Result<()> {
    let now = journal.now()?.earliest;
    let number = |number: Option<u64>| number.map_or("-".into(), Cell::from);
    let rows: Vec<_> = workers
        .iter()
        .map(|worker| {
            let style = match worker.state {
                JournalWorkerState::Alive => Style::Good,
                JournalWorkerState::Dead => Style::Bad,
                JournalWorkerState::Stopping | JournalWorkerState::Unknown => Style::Plain,
            };
            let types = worker
                .types
                .names()
                .map(|names| names.iter().map(ToString::to_string).collect::<Vec<_>>().join(","));
            vec![
                (&worker.worker_id).into(),
                Cell::new(style, worker.state.name()),
                worker.running.into(),
                number(worker.slots),
                worker.host.as_ref().map_or("-".into(), Cell::from),
                number(worker.pid.map(u64::from)),
                worker.last_seen_at.map_or("-".into(), |at| moment(at, now).into()),
                types.map_or("*".into(), Cell::from),
            ]
        })
        .collect();
    let table = TextTable::default().left("WORKER", 0).left("STATE", 8).right("RUNNING", 0).right("SLOTS", 0);
    let table = table.left("HOST", 0).right("PID", 0).left("LAST SEEN (UTC)", 0).left("TYPES", 0);
    table.rows(&rows, printer);
    Ok(())
}

/// One worker, with the size of its inbox, if it has one.
struct Row {
    worker: WorkerId,
    lease_kind: WorkerLeaseKind,
    /// `None` if there is an inbox without a lease.
    seen: Option<LeaseInfo>,
    inbox: Option<u64>,
}

impl Row {
    fn new(
        worker: WorkerId,
        lease_kind: WorkerLeaseKind,
        seen: LeaseInfo,
        sizes: &BTreeMap<WorkerId, u64>,
    ) -> Self {
        let size = sizes.get(&worker).copied().unwrap_or(0);
        let inbox = (lease_kind == WorkerLeaseKind::Inbox).then_some(size);
        Self { worker, lease_kind, seen: Some(seen), inbox }
    }

    fn state(&self) -> LeaseState {
        self.seen.as_ref().map_or(LeaseState::Free, |seen| seen.state)
    }
}

/// Inboxes without a lease: a producer has written there late.
fn inboxes_without_lease(seen: &[Row], sizes: &BTreeMap<WorkerId, u64>) -> Vec<Row> {
    let is_named = |worker: &WorkerId| seen.iter().any(|row| row.worker == *worker && row.inbox.is_some());
    let left = sizes.iter().filter(|(worker, _)| !is_named(worker));
    left.map(|(worker, size)| Row {
        worker: worker.clone(),
        lease_kind: WorkerLeaseKind::Inbox,
        seen: None,
        inbox: Some(*size),
    })
    .collect()
}

fn print(queue: &ObjectQueue, seen: &[Row], printer: &Printer) -> anyhow::Result<()> {
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
            let holder = row.seen.as_ref().and_then(LeaseInfo::holder);
            let until = holder.and(lease).map(|lease| moment(lease.expires_at, now));
            vec![
                (&row.worker).into(),
                row.lease_kind.name().into(),
                shards::state_cell(row.state(), state_text(row)),
                lease.map_or("-".into(), |lease| lease.epoch.into()),
                until.map_or("-".into(), Cell::from),
                row.inbox.map_or("-".into(), Cell::from),
            ]
        })
        .collect();
    let table = TextTable::default().left("WORKER", 0).left("LEASE", 6).left("STATE", 8).right("EPOCH", 0);
    let table = table.left("UNTIL (UTC)", 0).right("INBOX", 0);
    table.rows(&rows, printer);
    Ok(())
}

fn print_json(row: &Row) {
    let lease = row.seen.as_ref().and_then(|seen| seen.lease.as_ref());
    let holder = row.seen.as_ref().and_then(LeaseInfo::holder);
    line(json!({
        "worker_id": row.worker,
        "for": row.lease_kind.name(),
        "state": state_name(row),
        "instance": lease.map(|lease| &lease.instance),
        "epoch": lease.map(|lease| lease.epoch),
        "until": holder.and(lease).map(|lease| lease.expires_at),
        "in_inbox": row.inbox,
    }));
}

/// State of a worker for people.
fn state_text(row: &Row) -> &'static str {
    if row.seen.is_none() { "no lease" } else { state_name(row) }
}

/// State of a worker in JSON. A free lease was released: otherwise it would not exist.
fn state_name(row: &Row) -> &'static str {
    match (&row.seen, row.state()) {
        (None, _) => "gone",
        (_, LeaseState::Free) => "released",
        (_, state) => state.name(),
    }
}
