//! `leasehold workers`: the names under which workers divide the shards among themselves.

use clap::Args;
use futures::StreamExt;
use leasehold_core::WorkerId;
use leasehold_queue::{LeaseState, Queue, SeenLease};
use serde_json::json;

use super::shards;
use crate::printer::{Printer, line};
use crate::table::{Cell, Table, moment};

#[derive(Debug, Args)]
pub(crate) struct Workers {
    /// At most so many; names stay for a week after their last use
    #[arg(long, value_name = "N", default_value_t = 1000)]
    limit: usize,
}

pub(crate) async fn run(queue: &Queue, args: &Workers, printer: &Printer) -> anyhow::Result<()> {
    let spinner = printer.spinner("reading names");
    let mut names = std::pin::pin!(queue.worker_leases());
    let mut seen = Vec::new();
    while seen.len() < args.limit
        && let Some(name) = names.next().await
    {
        seen.push(name?);
        spinner.inc(1);
    }
    let are_more = seen.len() == args.limit && names.next().await.is_some();
    spinner.finish_and_clear();
    print(queue, &seen, printer)?;
    if are_more {
        printer.note(&format!("there are more than {}; see --limit", args.limit));
    }
    Ok(())
}

fn print(queue: &Queue, seen: &[(WorkerId, SeenLease)], printer: &Printer) -> anyhow::Result<()> {
    if printer.is_json() {
        for (worker, seen) in seen {
            print_json(worker, seen);
        }
        return Ok(());
    }
    if seen.is_empty() {
        printer
            .note("no worker has divided the shards here yet; those without --shard-leasing are not listed");
        return Ok(());
    }
    let now = queue.now()?.earliest;
    let rows: Vec<_> = seen
        .iter()
        .map(|(worker, seen)| {
            let lease = seen.lease.as_ref();
            let until = seen.holder().and(lease).map(|lease| moment(lease.expires_at, now));
            vec![
                worker.into(),
                shards::state(seen.state, word(seen.state)),
                lease.map_or("-".into(), |lease| lease.epoch.into()),
                until.map_or("-".into(), Cell::from),
            ]
        })
        .collect();
    let table = Table::default().left("WORKER", 0).left("STATE", 8).right("EPOCH", 0).left("UNTIL (UTC)", 0);
    table.rows(&rows, printer);
    Ok(())
}

fn print_json(worker: &WorkerId, seen: &SeenLease) {
    let lease = seen.lease.as_ref();
    line(json!({
        "worker_id": worker,
        "state": word(seen.state),
        "instance": lease.map(|lease| &lease.instance),
        "epoch": lease.map(|lease| lease.epoch),
        "until": seen.holder().and(lease).map(|lease| lease.expires_at),
    }));
}

/// A name that is free was given back: it would not stand there otherwise.
fn word(state: LeaseState) -> &'static str {
    if state == LeaseState::Free { "released" } else { state.name() }
}
