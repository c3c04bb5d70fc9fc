//! `leasehold init`, `leasehold stats` and `leasehold check`: the queue as a whole.

use clap::Args;
use leasehold_core::{Error, Kind};
use leasehold_queue::Queue;
use serde_json::json;

use crate::printer::{Printer, Style, line};

#[derive(Debug, Args)]
pub(crate) struct Init {
    /// How many hex digits name a shard: 1 (16 shards) to 4 (65,536)
    #[arg(long, value_name = "N")]
    pub(crate) shard_prefix_len: Option<u8>,
}

pub(crate) fn init(queue: &Queue, printer: &Printer) -> anyhow::Result<()> {
    let agreement = queue.agreement();
    if printer.is_json() {
        line(serde_json::to_string(agreement)?);
    } else {
        let shards = queue.shard_len().count();
        line(format_args!("{} holds a queue with {shards} shards", queue.client().describe()));
    }
    Ok(())
}

pub(crate) async fn stats(queue: &Queue, printer: &Printer) -> anyhow::Result<()> {
    let stats = queue.stats().await?;
    if printer.is_json() {
        line(serde_json::to_string(&stats)?);
        return Ok(());
    }
    let oldest = stats.oldest_due_secs.map_or("nothing waits".into(), |secs| format!("{secs} s"));
    line(format_args!("due        {}", stats.due));
    line(format_args!("scheduled  {}", stats.scheduled));
    line(format_args!("running    {}", stats.running));
    line(format_args!("oldest     {oldest}"));
    if !stats.shards.is_empty() {
        line("\nSHARD   DUE  SCHEDULED  RUNNING");
    }
    for (shard, [due, scheduled, running]) in &stats.shards {
        line(format_args!("{shard:<5} {due:>5} {scheduled:>10} {running:>8}"));
    }
    Ok(())
}

#[derive(Debug, Args)]
pub(crate) struct Check {
    /// Write missing index entries, and remove those that no task calls for
    #[arg(long)]
    repair: bool,
    /// Treat entries as abandoned after so many seconds instead of 30 minutes. Only when nothing else uses the queue
    #[arg(long, value_name = "SECONDS")]
    pub(crate) grace_secs: Option<u64>,
}

pub(crate) async fn check(queue: &Queue, args: &Check, printer: &Printer) -> anyhow::Result<()> {
    let checked = queue.check(args.repair).await?;
    let faults = checked.uncovered.len() + checked.dangling.len() + checked.corrupt.len();
    if printer.is_json() {
        line(json!(checked));
    } else {
        line(format_args!("{} tasks, {} index entries", checked.tasks, checked.entries));
        for (what, found) in [
            ("not covered by an entry", &checked.uncovered),
            ("entry that no task calls for", &checked.dangling),
            ("corrupt", &checked.corrupt),
        ] {
            for item in found {
                line(format_args!("{} {what}: {item}", printer.paint(Style::Bad, "✗")));
            }
        }
        if faults == 0 {
            line(printer.paint(Style::Good, "all is well"));
        } else if args.repair {
            line(format_args!("{} put right", checked.repaired));
        }
    }
    let left = faults as u64 - checked.repaired.min(faults as u64);
    if left > 0 {
        let message = format!("{left} things are not as they should be; see --repair");
        return Err(Error::new(Kind::Corrupt, message).into());
    }
    Ok(())
}
