//! `leasehold submit`: submits one task.

use clap::Args;
use leasehold_core::new_task::Start;
use leasehold_core::{Artifacts, Error, Name, NewTask, Priority, Result, Status, StoreTime, record};
use leasehold_pieces::PublishOptions;
use leasehold_queue::unique::LIFETIME;
use leasehold_queue::{Queue, Scope, Submit as Submitting, Submitted, UniqueKey};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

use super::artifact::publish_file;
use crate::durations::{duration, whole_secs};
use crate::printer::{Printer, line};
use crate::settings::typed::PiecesSettings;

/// Options of a new task, which work on a bucket and on an outpost.
#[derive(Debug, Args)]
pub(crate) struct NewTaskArgs {
    /// Task type, which selects the handler
    #[arg(short = 't', long = "type", value_name = "TYPE")]
    task_type: String,
    /// Input: JSON, `@file` or `-` for standard input
    #[arg(short, long, value_name = "JSON", default_value = "null")]
    input: String,
    /// Delay before the task can start, in seconds, or with a unit such as 5m, 12h, 3d [default: 0s]
    #[arg(long, value_name = "DURATION", value_parser = duration, conflicts_with = "at")]
    delay: Option<Duration>,
    /// Earliest start, by the store's clock, such as 2026-12-24T18:00:00Z [default: now]
    #[arg(long, value_name = "TIME")]
    at: Option<StoreTime>,
    /// Idempotency key: submit only one task with this key within a day [default: none]
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// Maximum number of attempts [default: 4]
    #[arg(long, value_name = "N")]
    max_attempts: Option<u32>,
    /// Time limit of an attempt, in seconds, or with a unit such as 5m, 12h; rounded up to whole seconds [default: none]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    timeout: Option<Duration>,
    /// Time after which an unstarted task expires, in seconds, or with a unit such as 5m, 12h, 3d [default: never]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    expires: Option<Duration>,
    /// Priority 0–9, 9 first, among tasks due in the same minute [default: 5]
    #[arg(long, value_name = "N")]
    priority: Option<u8>,
    /// Tag to find the task by; repeatable
    #[arg(long = "tag", value_name = "KEY=VALUE")]
    tags: Vec<String>,
    /// Input file: name for the handler, and hash of an artifact; repeatable
    #[arg(long = "artifact", value_name = "NAME=HASH")]
    artifacts: Vec<String>,
}

#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag")]
pub(crate) struct SubmitArgs {
    #[command(flatten)]
    task: NewTaskArgs,
    /// With --key: retry the existing task if it has failed or expired
    #[arg(long, requires = "key")]
    key_retry_failed: bool,
    /// Input file: name for the handler, and path of a local file to publish first; repeatable
    #[arg(long = "file", value_name = "NAME=PATH")]
    files: Vec<String>,
    /// Send the task to the inbox of a live worker, if there is one (setting `queue.dispatch_mode`)
    #[arg(long)]
    pub(crate) direct: bool,
    /// Wait until the task is final; the exit code shows its status
    #[arg(long)]
    wait: bool,
    /// With --wait: print only the output of the completed task, as JSON
    #[arg(long, requires = "wait")]
    output: bool,
}

pub(crate) async fn run(
    queue: &Queue,
    args: &SubmitArgs,
    settings: &PiecesSettings,
    printer: &Printer,
) -> anyhow::Result<()> {
    if args.direct {
        super::objects(queue, "submit --direct", NO_INBOXES)?;
    }
    let key = args.task.key.clone();
    let mut task = new_task(&args.task)?;
    publish_files(queue, &mut task.artifacts, args, settings, printer).await?;
    let submit = queue.submit_task(task);
    let submitted = match key {
        Some(key) => submit.key(UniqueKey { retry_failed: args.key_retry_failed, ..key.into() }).await?,
        None => submit.await?,
    };
    if !printer.is_json() {
        note_existing(&submitted, args, printer);
    }
    if args.wait {
        let task = super::get::wait_until_final(queue, &submitted.id, None, printer).await?;
        return super::get::print_result(&task, args.output, printer);
    }
    if printer.is_json() {
        line(submitted_json(&submitted));
    } else {
        line(submitted.id);
    }
    Ok(())
}

/// Prints a note if the key already belongs to a task, with the status of that task.
fn note_existing(submitted: &Submitted, args: &SubmitArgs, printer: &Printer) {
    let (Some(status), Some(key)) = (submitted.existing, &args.task.key) else { return };
    if submitted.is_retried {
        return printer.note(&format!("the task with key `{key}` had status {status}, and is retried"));
    }
    let advice = match status {
        Status::Failed | Status::Expired if !args.key_retry_failed => "; add --key-retry-failed to retry it",
        Status::Cancelled => "; retry it with `leasehold retry`",
        _ => "",
    };
    printer.note(&format!("a task with key `{key}` exists, with status {status}{advice}"));
}

/// Result of a submit as JSON.
pub(super) fn submitted_json(submitted: &Submitted) -> Value {
    let Submitted { id, is_new, existing, is_retried } = submitted;
    json!({"id": id, "is_new": is_new, "existing": existing, "is_retried": is_retried})
}

impl SubmitArgs {
    /// Options that also work on an outpost. Refuses the others.
    pub(crate) fn for_outpost(&self) -> Result<&NewTaskArgs> {
        refuse_on_outpost(&[
            (self.wait, "--wait"),
            (self.direct, "--direct"),
            (!self.files.is_empty(), "--file"),
            (self.key_retry_failed, "--key-retry-failed"),
        ])?;
        Ok(&self.task)
    }
}

/// Advice for `--direct` on a queue in the layout `journal`.
pub(super) const NO_INBOXES: &str = "its broker gives each task to a worker that waits; remove --direct";

/// Refuses options that have no effect on an outpost, if they are given.
pub(super) fn refuse_on_outpost(options: &[(bool, &str)]) -> Result<()> {
    match options.iter().find(|(is_given, _)| *is_given) {
        Some((_, flag)) => {
            Err(Error::invalid(format!("{flag} needs the bucket; it cannot be used on an outpost")))
        }
        None => Ok(()),
    }
}

/// Task for an outpost, where the idempotency key is part of the task.
pub(crate) fn outpost_task(args: &NewTaskArgs) -> Result<NewTask> {
    let mut task = new_task(args)?;
    task.idempotency_key.clone_from(&args.key);
    Ok(task)
}

fn new_task(args: &NewTaskArgs) -> Result<NewTask> {
    let mut task = NewTask::new(&args.task_type, parse_input(&args.input)?)?;
    task.start = match (args.delay, args.at) {
        (Some(delay), _) => Start::After(delay),
        (None, Some(at)) => Start::At(at),
        (None, None) => Start::Now,
    };
    task.max_attempts = args.max_attempts;
    task.timeout_secs = args.timeout.map(whole_secs);
    task.expires_in = args.expires;
    task.priority = args.priority.map(Priority::new).transpose()?.unwrap_or_default();
    task.tags = args.tags.iter().map(|text| parse_tag(text)).collect::<Result<_>>()?;
    for text in &args.artifacts {
        let (name, hash) = parse_named("artifact", text)?;
        if let Some(other) = task.artifacts.insert(name, hash.parse()?) {
            return Err(Error::invalid(format!(
                "artifact `{text}` has the same name as {other}; choose another name"
            )));
        }
    }
    Ok(task)
}

/// Publishes the local files. Comes after all checks of the arguments, so that a mistake uploads nothing.
async fn publish_files(
    queue: &Queue,
    artifacts: &mut Artifacts,
    args: &SubmitArgs,
    settings: &PiecesSettings,
    printer: &Printer,
) -> Result<()> {
    let files = args.files.iter().map(|text| parse_named("file", text)).collect::<Result<Vec<_>>>()?;
    let names: BTreeSet<_> = files.iter().map(|(name, _)| name).chain(artifacts.keys()).collect();
    if names.len() < files.len() + artifacts.len() {
        return Err(Error::invalid("two files of the task have the same name; choose different names"));
    }
    let options = PublishOptions { keep: settings.keep, ..PublishOptions::default() };
    for (name, path) in files {
        let published = publish_file(queue.client()?, Path::new(path), &options, printer).await?;
        artifacts.insert(name, published.manifest.artifact);
    }
    Ok(())
}

/// Parses `NAME=…`.
fn parse_named<'a>(what: &str, text: &'a str) -> Result<(Name, &'a str)> {
    let (name, rest) = text
        .split_once('=')
        .ok_or_else(|| Error::invalid(format!("{what} `{text}` has no `=`; write NAME={text}")))?;
    Ok((Name::checked(&format!("{what} name"), name)?, rest))
}

/// Parses `KEY=VALUE`.
pub(crate) fn parse_tag(text: &str) -> Result<(String, String)> {
    let (key, value) = text
        .split_once('=')
        .ok_or_else(|| Error::invalid(format!("tag `{text}` has no `=`; write KEY=VALUE")))?;
    Ok((key.to_owned(), value.to_owned()))
}

pub(crate) fn seconds(what: &str, secs: f64) -> Result<Duration> {
    Duration::try_from_secs_f64(secs)
        .map_err(|_| Error::invalid(format!("{what} must be from 0 to 1.8e19 seconds, got {secs}")))
}

fn parse_input(input: &str) -> Result<Value> {
    let unreadable = |error: std::io::Error| {
        Error::invalid(format!("input `{input}` cannot be read: {error}")).because(error)
    };
    let text = match (input, input.strip_prefix('@')) {
        ("-", _) => {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).map_err(unreadable)?;
            text
        }
        (_, Some(path)) => std::fs::read_to_string(path).map_err(unreadable)?,
        (text, None) => text.to_owned(),
    };
    crate::json::read("the input", &text)
}

/// One line of `submit-many`: a task with all its options.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaskLine {
    task_type: String,
    #[serde(default)]
    input: Value,
    delay_secs: Option<f64>,
    at: Option<StoreTime>,
    key: Option<String>,
    key_scope: Option<KeyScope>,
    key_lifetime_secs: Option<u64>,
    #[serde(default)]
    key_retry_failed: bool,
    max_attempts: Option<u32>,
    timeout_secs: Option<u64>,
    expires_secs: Option<u64>,
    priority: Option<Priority>,
    #[serde(default)]
    tags: std::collections::BTreeMap<String, String>,
    #[serde(default)]
    artifacts: Artifacts,
    retry_policy: Option<leasehold_core::RetryPolicy>,
}

#[derive(Debug, Clone, Copy, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
enum KeyScope {
    Queue,
    TaskType,
}

impl TaskLine {
    /// Converts the line into a submit. Sends nothing before it is awaited.
    pub fn submit(self, queue: &Queue) -> Result<Submitting<'_>> {
        let mut task = NewTask::new(&self.task_type, self.input)?;
        task.start = match (self.delay_secs, self.at) {
            (Some(_), Some(_)) => {
                return Err(Error::invalid("delay_secs and at exclude each other; remove one"));
            }
            (Some(secs), None) => Start::After(seconds("delay_secs", secs)?),
            (None, Some(at)) => Start::At(at),
            (None, None) => Start::Now,
        };
        task.max_attempts = self.max_attempts;
        task.timeout_secs = self.timeout_secs;
        task.expires_in = self.expires_secs.map(Duration::from_secs);
        task.priority = self.priority.unwrap_or_default();
        task.tags = self.tags;
        task.artifacts = self.artifacts;
        task.retry_policy = self.retry_policy;
        let scope = match self.key_scope {
            Some(KeyScope::TaskType) => Scope::TaskType,
            Some(KeyScope::Queue) | None => Scope::Queue,
        };
        let lifetime = self.key_lifetime_secs.map_or(LIFETIME, Duration::from_secs);
        let submit = queue.submit_task(task);
        Ok(match self.key {
            Some(key) => submit.key(UniqueKey { key, scope, lifetime, retry_failed: self.key_retry_failed }),
            None => submit,
        })
    }
}

/// Prints a task as one line of JSON.
pub(crate) fn json_line(task: &leasehold_core::Task) {
    line(record::value(task));
}
