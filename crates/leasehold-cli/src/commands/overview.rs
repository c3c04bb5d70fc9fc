//! `leasehold init`, `leasehold stats` and `leasehold check`: the queue as a whole.

use clap::Args;
use futures::{StreamExt, TryStreamExt, stream};
use leasehold_core::{ArtifactId, Error, Kind, Now, Result, ShardLen, State, Status, StoreTime, Task, keys};
use leasehold_pieces::manifest::ManifestRecord;
use leasehold_pieces::prune;
use leasehold_queue::check::{Checked, CorruptObject, Remedy, TransientObject};
use leasehold_queue::inspect::READS_AT_ONCE;
use leasehold_queue::{LayoutName, ListedTask, Queue};
use leasehold_store::Purpose;
use serde::Serialize;
use serde_json::json;
use std::collections::BTreeMap;

use crate::printer::{Printer, Style, line};
use crate::table::{Cell, TextTable, count, moment, status as status_cell};

/// Maximum number of tasks that are read to count them by status: some seconds on a bucket, and less than a cent.
const READ_MAX: usize = 10_000;

#[derive(Debug, Args)]
pub(crate) struct InitArgs {
    /// Layout of a new queue: objects, or journal, in which one process writes the changes of many tasks at once [default:
    /// journal in a folder of this host, otherwise objects]
    #[arg(long, value_name = "LAYOUT")]
    pub(crate) layout: Option<String>,
    /// Number of hex digits of a shard: 1 (16 shards) to 4 (65,536 shards); a new queue gets the layout objects [default: 1]
    #[arg(long, value_name = "N")]
    pub(crate) shard_prefix_len: Option<u8>,
    /// Recreate queue.json of a queue that has lost it, from its tasks
    #[arg(long)]
    pub(crate) restore: bool,
}

pub(crate) fn init(queue: &Queue, printer: &Printer) -> anyhow::Result<()> {
    let Some(meta) = queue.meta() else { return Err(queue.unsupported("be created").into()) };
    if printer.is_json() {
        line(serde_json::to_string(meta)?);
        return Ok(());
    }
    let store = queue.describe();
    match meta.layout {
        LayoutName::Objects => {
            let shards = meta.shard_prefix_len.count();
            line(format_args!("queue in {store}: layout objects, {shards} shards"));
        }
        LayoutName::Journal => line(format_args!("queue in {store}: layout journal")),
    }
    Ok(())
}

#[derive(Debug, Args)]
pub(crate) struct StatsArgs {
    /// Read every task of a queue with more than 10,000; no effect in the layout `journal` [default: count only its due, scheduled and running tasks, from the
    /// index: one request per 1,000]
    #[arg(long)]
    all: bool,
}

/// Counts by status, from the tasks themselves. Requests: 1 list per thousand tasks and 1 get per task. Keys have no
/// status, and final tasks have no index entries, so lists alone do not suffice.
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

pub(crate) async fn stats(queue: &Queue, args: &StatsArgs, printer: &Printer) -> anyhow::Result<()> {
    if queue.objects().is_err() {
        return stats_of_layout(queue, printer).await;
    }
    let spinner = printer.spinner("counting tasks");
    let mut listed = queue.list_timestamps();
    let first: Vec<ListedTask> = listed.as_mut().take(READ_MAX + 1).try_collect().await?;
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
            "more than {READ_MAX} tasks: counted only due, scheduled and running tasks, from the index, where a task is \
             due from the start of its minute; --all reads every task"
        ));
        return Ok(());
    }
    let reads = stream::iter(first).map(Ok).chain(listed);
    let reads = reads.map(|one| async move { queue.read_listed(&one?).await });
    let mut reads = std::pin::pin!(reads.buffered(READS_AT_ONCE));
    let (mut census, shard_len) = (Census::default(), queue.objects()?.shard_len());
    while let Some(read) = reads.next().await {
        spinner.inc(1);
        match read {
            Ok(Some(task)) => census.count(&task, shard_len, queue.now()?),
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

/// Counts of a layout that knows them without reading every task.
async fn stats_of_layout(queue: &Queue, printer: &Printer) -> anyhow::Result<()> {
    let stats = queue.stats().await?;
    let finished =
        |status| stats.finished.as_ref().and_then(|counts| counts.get(&status)).copied().unwrap_or(0);
    let census = Census {
        due: stats.due,
        scheduled: stats.scheduled,
        running: stats.running,
        completed: finished(Status::Completed),
        failed: finished(Status::Failed),
        cancelled: finished(Status::Cancelled),
        expired: finished(Status::Expired),
        oldest_due_secs: stats.oldest_due_secs,
        ..Census::default()
    };
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
    TextTable::default().left("STATUS", 0).right("TASKS", 0).rows(&rows, printer);
    if !census.shards.is_empty() {
        line("");
        print_shards([*due, *scheduled, *running], census.oldest_due_secs, &census.shards, printer);
    }
}

/// Prints counts of due, scheduled and running tasks: of the whole queue, then of each shard that is not empty.
fn print_shards(
    all: [u64; 3],
    oldest_due_secs: Option<u64>,
    shards: &BTreeMap<String, [u64; 3]>,
    printer: &Printer,
) {
    let table =
        TextTable::default().left("SHARD", 0).right("DUE", 0).right("SCHEDULED", 0).right("RUNNING", 0);
    let oldest = oldest_due_secs.map_or("-".into(), |secs| format!("{secs} s"));
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
pub(crate) struct CheckArgs {
    /// Create missing index entries, delete those that no task requires, and delete objects that killed processes have left
    #[arg(long)]
    pub(crate) repair: bool,
    /// Seconds after which an index entry counts as abandoned; use it only when nothing else uses the queue [default: 1800
    /// for an entry without a task, 60 for an outdated entry]
    #[arg(long, value_name = "SECONDS")]
    pub(crate) grace_secs: Option<u64>,
}

pub(crate) async fn check(queue: &Queue, args: &CheckArgs, printer: &Printer) -> anyhow::Result<()> {
    let clock = printer.clock("checking every object");
    let checked = check_all(queue, args.repair).await;
    clock.finish_and_clear();
    let checked = checked?;
    if printer.is_json() {
        line(json!(checked));
    } else {
        print_checked(&checked, queue.now()?.earliest, printer);
    }
    match verdict(&checked) {
        None => Ok(()),
        Some(message) => Err(Error::new(Kind::Corrupt, message).into()),
    }
}

/// Checks the objects of the queue, and the manifests of artifacts, which the queue crate cannot read.
async fn check_all(queue: &Queue, repair: bool) -> Result<Checked> {
    let mut checked = queue.check(repair).await?;
    for (artifact, listed) in prune::list(queue.client()?, Purpose::Admin).await? {
        checked.corrupt.extend(check_artifact(queue, &artifact, listed).await?);
    }
    Ok(checked)
}

async fn check_artifact(
    queue: &Queue,
    artifact: &ArtifactId,
    listed: prune::ListedArtifact,
) -> Result<Option<CorruptObject>> {
    let corrupt = |key, reason, remedy| Ok(Some(CorruptObject { key, reason, remedy }));
    if listed.manifest.is_none() {
        let key = keys::artifact_data(artifact);
        let is_over =
            |(at, _): (StoreTime, u64)| queue.now().map(|now| now.is_past(at.plus(prune::UPLOAD_TIME_MAX)));
        if listed.data.map(is_over).transpose()? != Some(true) {
            return Ok(None);
        }
        let reason = format!("`{key}` has no manifest: its publisher did not finish");
        return corrupt(key, reason, Remedy::Prune);
    }
    let key = keys::manifest(artifact);
    let object = match queue.client()?.get(Purpose::Admin, &key).await {
        Err(error) if error.kind() == Kind::Corrupt => {
            return corrupt(key, error.to_string(), Remedy::StoreTools);
        }
        object => object?,
    };
    match object.map(|object| ManifestRecord::read(&key, artifact, &object.body)) {
        Some(Err(error)) => corrupt(key, error.to_string(), Remedy::Quarantine),
        _ => Ok(None),
    }
}

/// Error message of a check; none if every object is consistent, transient, or was repaired.
fn verdict(checked: &Checked) -> Option<String> {
    let (repairable, decisions) = (checked.repairable() - checked.repaired, checked.corrupt.len() as u64);
    let repair = format!("run again with --repair to repair {repairable}");
    let decide = if decisions == 1 { "1 needs a decision" } else { &format!("{decisions} need a decision") };
    let found = format!("check found {}", count(repairable + decisions, "inconsistency", "inconsistencies"));
    match (repairable, decisions) {
        (0, 0) => None,
        (_, 0) => Some(format!("{found}; {repair}")),
        (0, _) => Some(format!("{found}; {decide}, see above")),
        _ => Some(format!("{found}; {repair}; {decide}, see above")),
    }
}

fn print_checked(checked: &Checked, now: StoreTime, printer: &Printer) {
    let tasks = count(checked.tasks, "task", "tasks");
    let entries = count(checked.entries, "index entry", "index entries");
    line(format_args!("{tasks}, {entries}, {}", count(checked.others, "other object", "other objects")));
    let rows: Vec<_> = transient_rows(checked, now)
        .chain(repair_rows(checked))
        .chain(checked.corrupt.iter().map(corrupt_row))
        .collect();
    if rows.is_empty() {
        return line(printer.paint(Style::Good, "no inconsistencies"));
    }
    TextTable::default().left("CLASS", 0).left("OBJECT", 0).left("ACTION", 0).rows(&rows, printer);
    if let Some(last) = checked.transient.iter().map(|object| object.by).max() {
        let objects = count(checked.transient.len() as u64, "transient object is", "transient objects are");
        let by = moment(last, now);
        line(format_args!("{objects} removed or replaced by {by}, if a worker or `leasehold monitor` runs"));
    }
    if checked.repaired > 0 {
        line(format_args!("{} repaired", checked.repaired));
    }
}

fn transient_rows(checked: &Checked, now: StoreTime) -> impl Iterator<Item = Vec<Cell>> {
    checked.transient.iter().map(move |TransientObject { key, by, reason }| {
        let todo = format!("none: workers remove or replace it by {}", moment(*by, now));
        vec![Cell::from("transient"), format!("{key}: {reason}").into(), todo.into()]
    })
}

fn repair_rows(checked: &Checked) -> impl Iterator<Item = Vec<Cell>> {
    let todo = if checked.repaired > 0 { "repaired" } else { "leasehold check --repair" };
    let row = move |key: &String, what: &str| {
        vec![Cell::new(Style::Strong, "repair"), format!("{key}: {what}").into(), todo.into()]
    };
    let uncovered = checked.uncovered.iter().map(move |key| row(key, "task without an index entry"));
    let unneeded = checked.unneeded.iter().map(move |key| row(key, "index entry that no task requires"));
    let leftover = checked.leftover.iter().map(move |key| row(key, leftover_kind(key)));
    uncovered.chain(unneeded).chain(leftover)
}

/// Kind of an object that a killed process has left.
fn leftover_kind(key: &str) -> &'static str {
    if key.starts_with(keys::JOURNAL_ARCHIVE) {
        "archive object that no record refers to"
    } else {
        "temporary object of a killed `leasehold doctor` or of a killed creation of the queue"
    }
}

fn corrupt_row(corrupt: &CorruptObject) -> Vec<Cell> {
    let CorruptObject { key, reason, remedy } = corrupt;
    let todo = match remedy {
        Remedy::Quarantine => format!("leasehold quarantine {key}"),
        Remedy::Prune => "leasehold artifact prune".into(),
        Remedy::Update => "upgrade leasehold: a newer version wrote this object".into(),
        Remedy::Restore => "restore it from a backup of the store".into(),
        Remedy::StoreTools => "delete it with the tools of the store".into(),
    };
    vec![Cell::new(Style::Bad, "corrupt"), reason.into(), todo.into()]
}
