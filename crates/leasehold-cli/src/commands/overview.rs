//! `leasehold init`, `leasehold stats` and `leasehold check`: the queue as a whole.

use clap::Args;
use futures::{StreamExt, TryStreamExt, stream};
use leasehold_core::{Error, Kind, Now, ShardLen, State, Status, Task};
use leasehold_queue::check::Checked;
use leasehold_queue::inspect::READS_AT_ONCE;
use leasehold_queue::{Listed, Queue};
use serde::Serialize;
use serde_json::json;
use std::collections::BTreeMap;

use crate::printer::{Printer, Style, line};
use crate::table::{Cell, Table, count, status as status_cell};

/// So many tasks are read to count them by status: some seconds on a bucket, and less than a cent.
const READ_MAX: usize = 10_000;

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

#[derive(Debug, Args)]
pub(crate) struct Stats {
    /// Read every task, however many there are: one request for each [default: up to 10,000]
    #[arg(long)]
    all: bool,
}

/// Counts by status, from the tasks themselves: one list per thousand and one read for each.
#[derive(Debug, Default, Serialize)]
struct Census {
    due: u64,
    scheduled: u64,
    running: u64,
    completed: u64,
    failed: u64,
    cancelled: u64,
    expired: u64,
    purged: u64,
    corrupt: u64,
    oldest_due_secs: Option<u64>,
    /// Shards with tasks that are not final: due, scheduled, running.
    shards: BTreeMap<String, [u64; 3]>,
}

impl Census {
    fn count(&mut self, task: &Task, len: ShardLen, now: Now) {
        let mut in_shard = |place: usize| {
            let shard = len.shard_of(&task.id).to_string();
            self.shards.entry(shard).or_default()[place] += 1;
        };
        let counter = match &task.state {
            State::Pending { available_at } if now.is_due(*available_at) => {
                in_shard(0);
                let waited = now.earliest.since(*available_at).as_secs();
                self.oldest_due_secs = self.oldest_due_secs.max(Some(waited));
                &mut self.due
            }
            State::Pending { .. } => {
                in_shard(1);
                &mut self.scheduled
            }
            State::Running(_) => {
                in_shard(2);
                &mut self.running
            }
            State::Completed { .. } => &mut self.completed,
            State::Failed { .. } => &mut self.failed,
            State::Cancelled { .. } => &mut self.cancelled,
            State::Expired { .. } => &mut self.expired,
            State::Purged { .. } => &mut self.purged,
        };
        *counter += 1;
    }
}

pub(crate) async fn stats(queue: &Queue, args: &Stats, printer: &Printer) -> anyhow::Result<()> {
    let spinner = printer.spinner("counting tasks");
    let mut listed = std::pin::pin!(queue.listed());
    let first: Vec<Listed> = listed.as_mut().take(READ_MAX + 1).try_collect().await?;
    if first.len() > READ_MAX && !args.all {
        let stats = queue.stats().await?;
        spinner.finish_and_clear();
        if printer.is_json() {
            line(serde_json::to_string(&stats)?);
        } else {
            print_shards(
                [stats.due, stats.scheduled, stats.running],
                stats.oldest_due_secs,
                &stats.shards,
                printer,
            );
        }
        printer.note(&format!(
            "more than {READ_MAX} tasks: only those that are not final are counted, to the minute; --all reads every task"
        ));
        return Ok(());
    }
    let reads = stream::iter(first).map(Ok).chain(listed);
    let reads = reads.map(|one| async move { queue.read_listed(&one?).await });
    let mut reads = std::pin::pin!(reads.buffered(READS_AT_ONCE));
    let mut census = Census::default();
    while let Some(read) = reads.next().await {
        spinner.inc(1);
        match read {
            Ok(Some(task)) => census.count(&task, queue.shard_len(), queue.now()?),
            Ok(None) => {}
            Err(error) if error.kind() == Kind::Corrupt => census.corrupt += 1,
            Err(error) => return Err(error.into()),
        }
    }
    spinner.finish_and_clear();
    if printer.is_json() {
        line(serde_json::to_string(&census)?);
    } else {
        print_census(&census, printer);
    }
    Ok(())
}

fn print_census(census: &Census, printer: &Printer) {
    let Census { due, scheduled, running, completed, failed, cancelled, expired, purged, corrupt, .. } =
        census;
    let mut rows: Vec<Vec<Cell>> = vec![
        vec![Cell::new(Style::Strong, "due"), due.into()],
        vec![Cell::new(Style::Plain, "scheduled"), scheduled.into()],
    ];
    for (status, number) in [
        (Status::Running, running),
        (Status::Completed, completed),
        (Status::Failed, failed),
        (Status::Cancelled, cancelled),
        (Status::Expired, expired),
    ] {
        rows.push(vec![status_cell(status), number.into()]);
    }
    if *purged > 0 {
        rows.push(vec![status_cell(Status::Purged), purged.into()]);
    }
    if *corrupt > 0 {
        rows.push(vec![Cell::new(Style::Bad, "corrupt"), corrupt.into()]);
    }
    Table::default().left("STATUS", 0).right("TASKS", 0).rows(&rows, printer);
    if !census.shards.is_empty() {
        line("");
        print_shards([*due, *scheduled, *running], census.oldest_due_secs, &census.shards, printer);
    }
}

/// The whole queue, then its shards that are not empty: due, scheduled, running.
fn print_shards(
    all: [u64; 3],
    oldest_due_secs: Option<u64>,
    shards: &BTreeMap<String, [u64; 3]>,
    printer: &Printer,
) {
    let table = Table::default().left("SHARD", 0).right("DUE", 0).right("SCHEDULED", 0).right("RUNNING", 0);
    let oldest = oldest_due_secs.map_or("nothing is due".into(), |secs| format!("{secs} s"));
    let all =
        std::iter::once("all".into()).chain(all.iter().map(Cell::from)).chain([oldest.into()]).collect();
    let shards = shards.iter().map(|(shard, counts)| {
        let counts = counts.iter().map(Cell::from);
        std::iter::once(Cell::from(shard)).chain(counts).collect()
    });
    let rows: Vec<Vec<Cell>> = std::iter::once(all).chain(shards).collect();
    table.left("OLDEST DUE", 0).rows(&rows, printer);
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
