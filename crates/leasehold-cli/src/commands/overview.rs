//! `leasehold init`, `leasehold stats` and `leasehold check`: the queue as a whole.

use clap::Args;
use leasehold_core::{Error, Kind};
use leasehold_queue::check::Checked;
use leasehold_queue::{Queue, Stats};
use serde_json::json;

use crate::printer::{Printer, Style, line};
use crate::table::{Cell, Table, count};

#[derive(Debug, Args)]
pub(crate) struct Init {
    /// How many hex digits name a shard: 1 (16 shards) to 4 (65,536)
    #[arg(long, value_name = "N")]
    pub(crate) shard_prefix_len: Option<u8>,
    /// Create queue.json again for the tasks of a queue whose queue.json was lost
    #[arg(long)]
    pub(crate) restore: bool,
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
    print_stats(&stats, printer);
    if stats.without_task > 0 {
        let entries = count(stats.without_task, "index entry", "index entries");
        printer.note(&format!(
            "{entries} without a task, of submits that were not finished, not counted; removed by a worker 30 minutes \
             after they were written"
        ));
    }
    Ok(())
}

/// The whole queue, then its shards that are not empty.
fn print_stats(stats: &Stats, printer: &Printer) {
    let table = Table::default().left("SHARD", 0).right("DUE", 0).right("SCHEDULED", 0).right("RUNNING", 0);
    let oldest = stats.oldest_due_secs.map_or("nothing is due".into(), |secs| format!("{secs} s"));
    let all = ["all".into(), stats.due.into(), stats.scheduled.into(), stats.running.into(), oldest.into()];
    let shards = stats.shards.iter().map(|(shard, counts)| {
        let counts = counts.iter().map(Cell::from);
        std::iter::once(Cell::from(shard)).chain(counts).collect()
    });
    let rows: Vec<Vec<Cell>> = std::iter::once(all.into()).chain(shards).collect();
    table.left("OLDEST DUE", 0).rows(&rows, printer);
}

#[derive(Debug, Args)]
pub(crate) struct Check {
    /// Write missing index entries, and remove those that no task calls for
    #[arg(long)]
    pub(crate) repair: bool,
    /// Treat entries as abandoned after so many seconds instead of 30 minutes. Only when nothing else uses the queue
    #[arg(long, value_name = "SECONDS")]
    pub(crate) grace_secs: Option<u64>,
}

pub(crate) async fn check(queue: &Queue, args: &Check, printer: &Printer) -> anyhow::Result<()> {
    let clock = printer.clock("looking at every task and every entry");
    let checked = queue.check(args.repair).await;
    clock.finish_and_clear();
    let checked = checked?;
    let faults = (checked.uncovered.len() + checked.dangling.len() + checked.corrupt.len()) as u64;
    if printer.is_json() {
        line(json!(checked));
    } else {
        print_checked(&checked, faults, args.repair, printer);
    }
    let left = faults.saturating_sub(checked.repaired);
    let message = match (left, args.repair) {
        (0, _) => return Ok(()),
        (_, false) => {
            format!("not as it should be: {}; --repair puts it right", count(left, "thing", "things"))
        }
        (_, true) => format!("not put right: {}; look at what is left above", count(left, "thing", "things")),
    };
    Err(Error::new(Kind::Corrupt, message).into())
}

fn print_checked(checked: &Checked, faults: u64, repair: bool, printer: &Printer) {
    let tasks = count(checked.tasks, "task", "tasks");
    line(format_args!("{tasks}, {}", count(checked.entries, "index entry", "index entries")));
    if faults == 0 {
        return line(printer.paint(Style::Good, "all is well"));
    }
    let row = |fault: &str, item: &String| vec![Cell::new(Style::Bad, fault), item.into()];
    let uncovered = checked.uncovered.iter().map(|item| row("task without its entry", item));
    let dangling = checked.dangling.iter().map(|item| row("entry no task calls for", item));
    let corrupt = checked.corrupt.iter().map(|item| row("corrupt", item));
    let rows: Vec<_> = uncovered.chain(dangling).chain(corrupt).collect();
    Table::default().left("FAULT", 0).left("WHAT", 0).rows(&rows, printer);
    if repair {
        line(format_args!("{} put right", checked.repaired));
    }
}
