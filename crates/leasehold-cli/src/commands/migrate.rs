//! `leasehold migrate-shards`: changes the number of shards of a live queue.

use clap::Args;
use futures::future::{Either, select};
use indicatif::ProgressBar;
use leasehold_core::{Error, Kind};
use leasehold_queue::migrate::{MigrationPass, MigrationWait};
use leasehold_queue::{MigrateOptions, Migrated, MigrationPlan, ObjectQueue, Progress};
use leasehold_worker::Shutdown;
use leasehold_worker::shutdown::Stage;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::printer::{Printer, line};

#[derive(Debug, Args)]
pub(crate) struct MigrateArgs {
    /// New number of hex digits of a shard: 1 (16 shards) to 4 (65,536 shards)
    #[arg(long, value_name = "N", required_unless_present = "abort")]
    to: Option<u8>,
    /// Print the plan without changing anything
    #[arg(long, conflicts_with = "abort")]
    dry_run: bool,
    /// Abort a migration that has not taken effect yet, and move all tasks back
    #[arg(long, conflicts_with = "to")]
    abort: bool,
    /// Do not wait 30 minutes to delete the objects at the old keys; run the same command later to delete them
    #[arg(long)]
    no_wait: bool,
    /// Seconds between announcing the migration and moving the first task; use it only when nothing else uses the queue
    /// [default: 120]
    #[arg(long, value_name = "SECONDS", hide = true)]
    known_secs: Option<f64>,
    /// Seconds to wait before leftovers are deleted; use it only when nothing else uses the queue [default: 1800]
    #[arg(long, value_name = "SECONDS", hide = true)]
    grace_secs: Option<f64>,
}

pub(crate) async fn run(
    queue: &ObjectQueue,
    args: &MigrateArgs,
    printer: &Printer,
    shutdown: &Shutdown,
) -> anyhow::Result<()> {
    if let (true, Some(to)) = (args.dry_run, args.to) {
        return print_plan(&queue.plan_migration(to).await?, printer);
    }
    let (options, display) = (options(args)?, MigrationDisplay::new(printer));
    let report = |progress| display.show(progress);
    let migrated = async {
        match args.to {
            Some(to) => queue.migrate(to, &options, &report).await,
            None => queue.abort_migration(&options, &report).await,
        }
    };
    let stopped = shutdown.reached(Stage::Drain);
    match select(Box::pin(migrated), Box::pin(stopped)).await {
        Either::Left((migrated, _)) => print_migrated(&migrated?, printer),
        // Stopping here is like a crash, which a migration survives at any point.
        Either::Right(_) => Err(interrupted().into()),
    }
}

fn options(args: &MigrateArgs) -> anyhow::Result<MigrateOptions> {
    let default = MigrateOptions::default();
    let secs_or = |name, secs: Option<f64>, default: Duration| {
        secs.map_or(Ok(default), |secs| super::submit::seconds(name, secs))
    };
    Ok(MigrateOptions {
        until_known: secs_or("known-secs", args.known_secs, default.until_known)?,
        grace: secs_or("grace-secs", args.grace_secs, default.grace)?,
        removes_old_keys: !args.no_wait,
    })
}

fn interrupted() -> Error {
    let message = "migration interrupted; no task is submitted or claimed until you run the same command again, or abort \
                   the migration with --abort";
    Error::new(Kind::Unavailable, message)
}

fn print_plan(plan: &MigrationPlan, printer: &Printer) -> anyhow::Result<()> {
    if printer.is_json() {
        line(serde_json::to_string(plan)?);
        return Ok(());
    }
    let MigrationPlan { shard_prefix_len: from, to, in_progress, tasks, already_moved, entries } = plan;
    line(format_args!("{} shards now (shard_prefix_len {})", from.count(), from.digits()));
    if let Some(in_progress) = in_progress {
        line(format_args!("{in_progress}: the command would resume from there"));
    }
    if from == to {
        return Ok(());
    }
    line(format_args!("{} shards after the migration (shard_prefix_len {})", to.count(), to.digits()));
    line(format_args!(
        "{tasks} tasks and {entries} index entries to move; {already_moved} tasks already moved"
    ));
    line("no task can be submitted or claimed for two minutes and while tasks are moved");
    line("connected clients are refused afterwards until they reconnect");
    Ok(())
}

fn print_migrated(migrated: &Migrated, printer: &Printer) -> anyhow::Result<()> {
    if printer.is_json() {
        line(serde_json::to_string(migrated)?);
        return Ok(());
    }
    let shards = migrated.shard_prefix_len.count();
    line(format_args!("{} tasks moved; the queue has {shards} shards", migrated.moved));
    for corrupt in &migrated.corrupt {
        printer.note(&format!("not moved: {corrupt}"));
    }
    if let Some(after) = migrated.old_keys_deleted_after {
        line(format_args!("run the same command after {after} to delete the objects at the old keys"));
    }
    Ok(())
}

/// Progress display of a migration: a bar for each phase on a terminal, else a note.
struct MigrationDisplay<'a> {
    printer: &'a Printer,
    part: Mutex<Option<(&'static str, ProgressBar)>>,
}

impl<'a> MigrationDisplay<'a> {
    fn new(printer: &'a Printer) -> Self {
        Self { printer, part: Mutex::default() }
    }

    fn show(&self, progress: Progress) {
        let (what, done, total) = match progress {
            Progress::Waiting(wait, left) => (wait_text(wait), 0, left.as_secs() + 1),
            Progress::Working(work, done, total) => (pass_text(work), done, total),
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
                // The bar of a wait is as long as the whole wait.
                Progress::Waiting(_, left) => {
                    bar.set_position(bar.length().unwrap_or(0).saturating_sub(left.as_secs()));
                }
                Progress::Working(..) => bar.set_position(done),
            }
        }
    }
}

fn wait_text(wait: MigrationWait) -> &'static str {
    match wait {
        MigrationWait::Known => "waiting until all clients have read the migration",
        MigrationWait::Landed => "waiting until no write to an old key can be in flight",
        MigrationWait::Removed => "waiting until no delete of the last migration can be in flight",
    }
}

fn pass_text(work: MigrationPass) -> &'static str {
    match work {
        MigrationPass::Move => "moving tasks",
        MigrationPass::Close => "making sure that no earlier move can still be applied",
        MigrationPass::Verify => "verifying",
        MigrationPass::RemoveOldKeys => "deleting the objects at the old keys",
    }
}
