//! `leasehold migrate-shards`: changing the number of shards of a live queue.

use clap::Args;
use futures::future::{Either, select};
use indicatif::ProgressBar;
use leasehold_core::{Error, Kind};
use leasehold_queue::migrate::{Wait, Work};
use leasehold_queue::{MigrateOptions, Migrated, Plan, Progress, Queue};
use leasehold_worker::Shutdown;
use leasehold_worker::shutdown::Stage;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::printer::{Printer, line};

#[derive(Debug, Args)]
pub(crate) struct Migrate {
    /// How many hex digits are to name a shard: 1 (16 shards) to 4 (65,536)
    #[arg(long, value_name = "N", required_unless_present = "abort")]
    to: Option<u8>,
    /// Only say what would be done
    #[arg(long, conflicts_with = "abort")]
    dry_run: bool,
    /// Call a migration off, before the switch: bring everything back to where it was
    #[arg(long, conflicts_with = "to")]
    abort: bool,
    /// Do not wait for half an hour to remove what is left of the old place; the same command does it later
    #[arg(long)]
    no_wait: bool,
    /// Wait so many seconds, not two minutes, until all clients know. Only when nothing else uses the queue
    #[arg(long, value_name = "SECONDS", hide = true)]
    known_secs: Option<f64>,
    /// Remove what is left after so many seconds, not half an hour. Only when nothing else uses the queue
    #[arg(long, value_name = "SECONDS", hide = true)]
    grace_secs: Option<f64>,
}

pub(crate) async fn run(
    queue: &Queue,
    args: &Migrate,
    printer: &Printer,
    shutdown: &Shutdown,
) -> anyhow::Result<()> {
    if let (true, Some(to)) = (args.dry_run, args.to) {
        return told_plan(&queue.plan_migration(to).await?, printer);
    }
    let (options, shown) = (options(args)?, Shown::new(printer));
    let report = |progress| shown.show(progress);
    let migrated = async {
        match args.to {
            Some(to) => queue.migrate(to, &options, &report).await,
            None => queue.abort_migration(&options, &report).await,
        }
    };
    let stopped = shutdown.reached(Stage::Drain);
    match select(Box::pin(migrated), Box::pin(stopped)).await {
        Either::Left((migrated, _)) => told(&migrated?, printer),
        // Stopping it here is like a crash, which it survives at any point.
        Either::Right(_) => Err(interrupted().into()),
    }
}

fn options(args: &Migrate) -> anyhow::Result<MigrateOptions> {
    let usual = MigrateOptions::default();
    let or = |name, secs: Option<f64>, usual: Duration| {
        secs.map_or(Ok(usual), |secs| super::submit::seconds(name, secs))
    };
    Ok(MigrateOptions {
        until_known: or("known-secs", args.known_secs, usual.until_known)?,
        grace: or("grace-secs", args.grace_secs, usual.grace)?,
        sweeps: !args.no_wait,
    })
}

fn interrupted() -> Error {
    let message = "interrupted: until the migration is finished by the same command, or called off with --abort, \
                   nothing is submitted or claimed";
    Error::new(Kind::Unavailable, message)
}

fn told_plan(plan: &Plan, printer: &Printer) -> anyhow::Result<()> {
    if printer.is_json() {
        line(serde_json::to_string(plan)?);
        return Ok(());
    }
    let Plan { shard_prefix_len: from, to, under_way, tasks, there, entries } = plan;
    line(format_args!("{} shards now (shard_prefix_len {})", from.count(), from.digits()));
    if let Some(under_way) = under_way {
        line(format_args!("{under_way}: the command would go on from there"));
    }
    if from == to {
        return Ok(());
    }
    line(format_args!("{} shards are wanted (shard_prefix_len {})", to.count(), to.digits()));
    line(format_args!(
        "{tasks} tasks and {entries} index entries would move; {there} tasks are there already"
    ));
    line("meanwhile nothing would be submitted or claimed, for two minutes and as long as the moving takes");
    line("clients that are connected would be refused afterwards, until they connect again");
    Ok(())
}

fn told(migrated: &Migrated, printer: &Printer) -> anyhow::Result<()> {
    if printer.is_json() {
        line(serde_json::to_string(migrated)?);
        return Ok(());
    }
    let shards = migrated.shard_prefix_len.count();
    line(format_args!("{} tasks moved; the queue has {shards} shards", migrated.moved));
    for corrupt in &migrated.corrupt {
        printer.note(&format!("left where it was: {corrupt}"));
    }
    if let Some(after) = migrated.sweep_after {
        line(format_args!("what is left of the old place is removed by the same command after {after}"));
    }
    Ok(())
}

/// Shows how far a migration is: a bar for each part of it, or a note where there is no terminal.
struct Shown<'a> {
    printer: &'a Printer,
    part: Mutex<Option<(&'static str, ProgressBar)>>,
}

impl<'a> Shown<'a> {
    fn new(printer: &'a Printer) -> Self {
        Self { printer, part: Mutex::default() }
    }

    fn show(&self, progress: Progress) {
        let (what, done, total) = match progress {
            Progress::Waiting(wait, left) => (waiting(wait), 0, left.as_secs() + 1),
            Progress::Working(work, done, total) => (working(work), done, total),
        };
        let mut part = self.part.lock().unwrap_or_else(PoisonError::into_inner);
        if part.as_ref().is_none_or(|(before, _)| *before != what) {
            let bar = self.printer.bar(total, what);
            if bar.is_hidden() {
                self.printer.note(what);
            }
            if let Some((_, before)) = part.replace((what, bar)) {
                before.finish();
            }
        }
        if let Some((_, bar)) = &*part {
            match progress {
                // The bar of a wait was made as long as the whole of it.
                Progress::Waiting(_, left) => {
                    bar.set_position(bar.length().unwrap_or(0).saturating_sub(left.as_secs()));
                }
                Progress::Working(..) => bar.set_position(done),
            }
        }
    }
}

fn waiting(wait: Wait) -> &'static str {
    match wait {
        Wait::Known => "waiting until all clients know of it",
        Wait::Landed => "waiting until nothing can land in the old place any more",
        Wait::Removed => "waiting until nothing of the last migration is on its way any more",
    }
}

fn working(work: Work) -> &'static str {
    match work {
        Work::Move => "moving tasks",
        Work::Close => "making sure that nothing moves any more",
        Work::Verify => "verifying",
        Work::Sweep => "removing what is left",
    }
}
