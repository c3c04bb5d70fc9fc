//! `leasehold export` and `leasehold import`: move tasks to another queue, of any layout.
//!
//! Every line is a task as a journal encodes it. The last line has the number of tasks, so that a file that was cut off is not
//! imported as if it were complete.

use clap::Args;
use futures::{StreamExt, TryStreamExt, stream};
use leasehold_core::{Error, Kind, Status};
use leasehold_queue::ExportedTask;
use leasehold_queue::Queue;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::io::{BufRead, BufReader, Read};

use crate::printer::{Printer, line, unescaped_line};
use crate::table::count;

#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    /// File that `leasehold export` has printed, or `-` for standard input
    #[arg(value_name = "FILE")]
    file: String,
}

/// Last line of an export.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExportEnd {
    exported: u64,
}

pub(crate) async fn export(queue: &Queue, printer: &Printer) -> anyhow::Result<()> {
    let (mut exported, mut running, mut corrupt) = (0, 0, 0);
    let mut tasks = queue.export();
    while let Some(task) = tasks.next().await {
        match task {
            Ok(task) => {
                exported += 1;
                running += u64::from(task.task.status() == Status::Running);
                unescaped_line(task.encode().body());
            }
            Err(error) if error.kind() == Kind::Corrupt => {
                corrupt += 1;
                printer.note(&format!("not exported: {error}"));
            }
            Err(error) => return Err(error.into()),
        }
    }
    if corrupt > 0 {
        let next = match queue.objects() {
            Ok(_) => "move them away with `leasehold quarantine`, then export again",
            Err(_) => "run `leasehold check`",
        };
        let message = format!(
            "{} not exported, so the export is incomplete and `leasehold import` refuses it; {next}",
            count(corrupt, "task was", "tasks were")
        );
        return Err(Error::new(Kind::Corrupt, message).into());
    }
    unescaped_line(&serde_json::to_vec(&ExportEnd { exported })?);
    if running > 0 {
        let running = count(running, "task is", "tasks are");
        printer.note(&format!(
            "warning: {running} running; an import runs them again when their claims have expired"
        ));
    }
    Ok(())
}

pub(crate) async fn import(queue: &Queue, args: &ImportArgs, printer: &Printer) -> anyhow::Result<()> {
    // All lines are parsed before anything is written: a file that is not complete imports nothing.
    let tasks = read(&args.file)?;
    let bar = printer.bar(tasks.len() as u64, "importing");
    let imports = stream::iter(tasks).map(|task| async {
        let id = task.task.id;
        let imported = queue.import(task).await;
        bar.inc(1);
        match imported {
            Err(error) if error.kind() == Kind::Invalid => {
                bar.suspend(|| printer.note(&format!("task {id} was not imported: {error}")));
                Ok(Err(error))
            }
            imported => imported.map(Ok),
        }
    });
    let results: Result<Vec<_>, Error> =
        imports.buffer_unordered(queue.submits_at_once()).try_collect().await;
    bar.finish_and_clear();
    // After an error of the store the command is repeated: tasks that exist are left as they are.
    let (mut imported, mut existed, mut refused) = (0, 0, None);
    let results = results?;
    let total = results.len() as u64;
    for result in results {
        match result {
            Ok(true) => imported += 1,
            Ok(false) => existed += 1,
            Err(error) => refused = Some(error),
        }
    }
    if printer.is_json() {
        line(json!({"imported": imported, "existed": existed, "refused": total - imported - existed}));
    } else {
        let existed = if existed > 0 { format!(", {existed} existed") } else { String::new() };
        line(format_args!("imported {}{existed}", count(imported, "task", "tasks")));
    }
    match refused {
        None => Ok(()),
        Some(error) => {
            let message = format!("{} of {total} tasks were not imported", total - imported - existed);
            Err(Error::new(error.kind(), message).because(error).into())
        }
    }
}

fn read(file: &str) -> leasehold_core::Result<Vec<ExportedTask>> {
    let unreadable =
        |error: std::io::Error| Error::invalid(format!("`{file}` cannot be read: {error}")).because(error);
    let source: Box<dyn Read> = if file == "-" {
        Box::new(std::io::stdin())
    } else {
        Box::new(std::fs::File::open(file).map_err(unreadable)?)
    };
    let (mut tasks, mut end) = (Vec::new(), None);
    for (number, text) in BufReader::new(source).lines().enumerate() {
        let (number, text) = (number + 1, text.map_err(unreadable)?);
        if let Some(ExportEnd { exported }) = end {
            return Err(Error::invalid(format!(
                "line {number} follows the end of an export of {exported} tasks"
            )));
        }
        end = serde_json::from_str(&text).ok();
        if end.is_none() {
            let parsed = ExportedTask::decode(text.as_bytes());
            tasks.push(
                parsed.map_err(|error| Error::invalid(format!("line {number} is not a task: {error}")))?,
            );
        }
    }
    match end {
        Some(ExportEnd { exported }) if exported == tasks.len() as u64 => Ok(tasks),
        _ => {
            let found = count(tasks.len() as u64, "task", "tasks");
            Err(Error::invalid(format!("`{file}` is not a complete export: it has {found}; export again")))
        }
    }
}
