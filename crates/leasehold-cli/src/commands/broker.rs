//! `leasehold broker`: is the broker of a queue in the journal layout, or waits to become it; `leasehold broker status` shows the
//! broker.
//!
//! A process that waits is connected to the broker, so that it takes over as soon as the connection closes. One that cannot
//! connect, such as on another host, tries again every few seconds, and reads the lease meanwhile.

use clap::{Args, Subcommand};
use futures::future::{Either, select};
use leasehold_core::{Error, Kind, Reason, Result};
use leasehold_queue::{
    BrokerHolder, BrokerStatus, BrokerTerm, CommitFigures, FoundBroker, JournalQueue, LeaseState, Queue,
    QueueLayout,
};
use leasehold_worker::Shutdown;
use leasehold_worker::shutdown::Stage;
use serde_json::{Value, json};
use std::pin::pin;
use std::time::Duration;

use super::live::{ProgressDisplay, ShownProgress};
use crate::printer::{Printer, line};
use crate::table::{count, moment};

/// Pause after the broker could not be reached.
const RETRY_PAUSE: Duration = Duration::from_secs(5);

#[derive(Debug, Args)]
pub(crate) struct BrokerArgs {
    #[command(subcommand)]
    pub(crate) command: Option<BrokerCommand>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum BrokerCommand {
    /// Show the broker: its process, commits, commits to replay, memory and clients
    #[command(after_help = "Example:\n  leasehold broker status --json")]
    Status,
}

pub(crate) async fn run(
    queue: &Queue,
    args: &BrokerArgs,
    printer: &Printer,
    shutdown: &Shutdown,
) -> anyhow::Result<()> {
    let journal = journal(queue, "broker")?;
    match args.command {
        Some(BrokerCommand::Status) => status(queue, journal, printer).await,
        None => {
            printer.note(&format!(
                "serving {} as its broker, or waiting to become it; Ctrl-C stops",
                queue.describe()
            ));
            Ok(hold(journal, printer, shutdown).await?)
        }
    }
}

/// The queue in the layout `journal`, for a command that exists for this layout only.
pub(super) fn journal<'a>(queue: &'a Queue, command: &str) -> Result<&'a JournalQueue> {
    queue.journal().map_err(|error| match queue.meta() {
        Some(meta) => Error::invalid(format!(
            "`leasehold {command}` needs a queue with the layout `journal`, but this queue has the layout `{}`, which has no \
             broker; `leasehold init --layout journal` creates one in another store",
            meta.layout
        )),
        None => error,
    })
}

/// Is the broker, or waits to become it, until shutdown. The caller closes the queue, and with it the broker.
pub(super) async fn hold(journal: &JournalQueue, printer: &Printer, shutdown: &Shutdown) -> Result<()> {
    let holding = pin!(hold_terms(journal, printer));
    match select(holding, pin!(shutdown.reached(Stage::Drain))).await {
        Either::Left((ended, _)) => ended,
        Either::Right(_) => Ok(()),
    }
}

async fn hold_terms(journal: &JournalQueue, printer: &Printer) -> Result<()> {
    let mut display = ProgressDisplay::new(printer);
    let mut unreached = None;
    loop {
        match journal.join_broker().await {
            Ok(term) => {
                unreached = None;
                let ended = pin!(term.ended());
                select(ended, pin!(show(journal, &term, &mut display))).await;
            }
            // Another process is the broker, or the store does not answer. A note for each reason, not for each attempt.
            Err(error) if error.kind() == Kind::Unavailable => {
                let holder = journal.find_broker().await.ok();
                if unreached != Some(holder.as_ref().and_then(instance)) {
                    printer.note(&format!(
                        "retrying until this process is the broker or connected to it: {error}"
                    ));
                    unreached = Some(holder.as_ref().and_then(instance));
                }
                journal.host().sleep(RETRY_PAUSE).await;
            }
            Err(error) => return Err(error),
        }
    }
}

fn instance(found: &FoundBroker) -> Option<String> {
    match found {
        FoundBroker::Reached(status) => Some(status.holder.instance.to_string()),
        FoundBroker::Unreached(holder) => holder.as_ref().map(|holder| holder.instance.to_string()),
    }
}

/// Shows the broker until the term ends. Requests to the store: none.
async fn show(
    journal: &JournalQueue,
    term: &BrokerTerm,
    display: &mut ProgressDisplay<(bool, u64, u64, u64, u64)>,
) {
    loop {
        if let Ok(FoundBroker::Reached(status)) = journal.find_broker().await {
            display.show(&HeldBroker { is_broker: term.is_broker(), status: *status });
        }
        journal.host().sleep(display.every()).await;
    }
}

/// The broker, as this process or one behind which it waits.
struct HeldBroker {
    is_broker: bool,
    status: BrokerStatus,
}

impl ShownProgress for HeldBroker {
    type Figures = (bool, u64, u64, u64, u64);

    fn figures(&self) -> Self::Figures {
        let BrokerStatus { holder, commits, live_tasks, clients, .. } = &self.status;
        // Without records nothing has happened, although a commit may be a fence.
        (self.is_broker, holder.epoch, commits.commits, *live_tasks, *clients)
    }

    fn text(&self) -> String {
        let BrokerStatus { holder, since, commits, live_tasks, clients, .. } = &self.status;
        let BrokerHolder { host, pid, epoch, .. } = holder;
        if !self.is_broker {
            return format!(
                "waiting: the broker is process {pid} on host {host}, since {since} (epoch {epoch})"
            );
        }
        format!(
            "broker since {since} (epoch {epoch}); {} live, {}; {}",
            count(*live_tasks, "task", "tasks"),
            count(*clients, "connection", "connections"),
            rates(commits)
        )
    }

    fn json(&self) -> Value {
        json!({"is_broker": self.is_broker, "broker": status_json(&self.status)})
    }
}

fn rates(commits: &CommitFigures) -> String {
    let latency = match (commits.p50_us, commits.p99_us) {
        (Some(p50), Some(p99)) => format!(", p50 {}, p99 {}", millis(p50), millis(p99)),
        _ => String::new(),
    };
    format!("{}, {:.1}/s{latency}", count(commits.commits, "commit", "commits"), commits.per_second())
}

#[expect(clippy::cast_precision_loss, reason = "it is shown with one decimal")]
fn millis(micros: u64) -> String {
    format!("{:.1} ms", micros as f64 / 1_000.0)
}

/// Error for a queue whose broker cannot be reached. Says who was the last one.
pub(super) fn no_broker(queue: &Queue, last: Option<&BrokerHolder>) -> Result<Error> {
    let now = queue.now()?;
    let message = match last {
        None => {
            "no broker: this queue has never had one; start `leasehold broker`, a worker or `up`".to_owned()
        }
        Some(last) => {
            let BrokerHolder { host, pid, epoch, renewed_at, lease_expires_at, .. } = last;
            let holder = format!("process {pid} on host {host} (epoch {epoch})");
            match last.lease_state(now) {
                LeaseState::Held => format!(
                    "no broker can be reached from here: {holder} holds the lease until {lease_expires_at}; run this on its \
                     host, or retry when it has ended"
                ),
                LeaseState::Expired => format!(
                    "no broker: the lease of the last one, {holder}, expired at {lease_expires_at}; start `leasehold \
                     broker`, a worker or `up`"
                ),
                _ => format!(
                    "no broker: the last one, {holder}, released its lease at {renewed_at}; start `leasehold broker`, a \
                     worker or `up`"
                ),
            }
        }
    };
    Ok(Error::new(Kind::Unavailable, message).with_reason(Reason::NotYet))
}

async fn status(queue: &Queue, journal: &JournalQueue, printer: &Printer) -> anyhow::Result<()> {
    let status = match journal.find_broker().await? {
        FoundBroker::Reached(status) => *status,
        FoundBroker::Unreached(last) => {
            if printer.is_json() {
                let last = last.as_ref().map(|last| holder_json(last, Some(state_name(last, queue))));
                line(json!({"broker": null, "last": last}));
            }
            return Err(no_broker(queue, last.as_ref())?.into());
        }
    };
    if printer.is_json() {
        line(json!({"broker": status_json(&status)}));
        return Ok(());
    }
    let now = queue.now()?.earliest;
    let BrokerHolder { host, pid, instance, epoch, addresses, lease_expires_at, .. } = &status.holder;
    let figures = &status.commits;
    let rows = [
        ("broker", format!("process {pid} on host {host}")),
        ("since", moment(status.since, now)),
        ("epoch", format!("{epoch}, instance {instance}")),
        ("address", if addresses.is_empty() { "none".to_owned() } else { addresses.join(", ") }),
        ("lease", format!("until {}", moment(*lease_expires_at, now))),
        ("commits", rates(figures)),
        ("records", format!("{}, {:.1} per commit", figures.records, figures.records_per_commit())),
        ("written", mib(figures.bytes)),
        (
            "to replay",
            format!("{} since the newest snapshot", count(status.snapshot_lag, "commit", "commits")),
        ),
        ("tasks", format!("{} live, {} archived", status.live_tasks, status.archived_tasks)),
        (
            "clients",
            format!(
                "{}, {}",
                count(status.clients, "connection", "connections"),
                count(status.parked_claims, "claim waits", "claims wait")
            ),
        ),
        ("memory", memory(&status)),
    ];
    for (name, value) in rows {
        line(format_args!("{name:<10}{value}"));
    }
    Ok(())
}

fn state_name(holder: &BrokerHolder, queue: &Queue) -> &'static str {
    match queue.now().map(|now| holder.lease_state(now)) {
        Ok(LeaseState::Free) => "released",
        Ok(state) => state.name(),
        Err(_) => "unknown",
    }
}

fn memory(status: &BrokerStatus) -> String {
    let resident = status.resident_bytes.map_or_else(|| "unknown".to_owned(), mib);
    format!("{resident}, of which tasks {}", mib(status.body_bytes))
}

#[expect(clippy::cast_precision_loss, reason = "it is shown with one decimal")]
fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / (1_024.0 * 1_024.0))
}

fn holder_json(holder: &BrokerHolder, state: Option<&str>) -> Value {
    let mut fields = json!(holder);
    if let (Some(fields), Some(state)) = (fields.as_object_mut(), state) {
        fields.remove("is_released");
        fields.insert("state".to_owned(), state.into());
    }
    fields
}

fn status_json(status: &BrokerStatus) -> Value {
    let mut fields = json!(status);
    fields["holder"] = holder_json(&status.holder, Some("held"));
    fields["commits"]["per_second"] = json!(status.commits.per_second());
    fields["commits"]["records_per_commit"] = json!(status.commits.records_per_commit());
    fields
}
