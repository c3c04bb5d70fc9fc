//! Metrics for Prometheus, in its text format.
//!
//! A scrape counts as viewing, so that scraped values are fresh. Values that have never been read are omitted rather than
//! reported as zero.

mod broker;

use std::fmt::{Display, Write};
use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::header::CONTENT_TYPE;
use leasehold_queue::LeaseState;

use crate::routes::{ApiError, App};
use crate::snapshot::QueueSnapshot;
use crate::viewers::Topic;

/// Content type of the text format, in the version that every scraper supports.
const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// All metrics.
pub(crate) async fn metrics(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    app.shared.viewers.record(Topic::Queue);
    let mut text = MetricsText::default();
    text.family("leasehold_build_info", "gauge", "Version of the server.");
    text.sample(&[("version", env!("CARGO_PKG_VERSION"))], 1);
    {
        let snapshot = app.shared.snapshot();
        tasks(&app, &snapshot, &mut text)?;
        holders(&snapshot, &mut text);
        if app.shared.journal().is_some() {
            broker::broker(&snapshot.journal, &mut text);
        }
        sample(&app, &snapshot, &mut text);
    }
    requests(&app, &mut text);
    Ok(([(CONTENT_TYPE, TEXT)], text.text).into_response())
}

fn tasks(app: &App, snapshot: &QueueSnapshot, text: &mut MetricsText) -> Result<(), ApiError> {
    if snapshot.pass.ended.is_some() {
        let figures = app.figures.get(snapshot, app.shared.queue().now()?.earliest);
        let counts = &figures.counts;
        text.family("leasehold_tasks", "gauge", "Tasks by status, as last read.");
        for (status, count) in [
            ("pending", counts.pending),
            ("running", counts.running),
            ("completed", counts.completed),
            ("failed", counts.failed),
            ("cancelled", counts.cancelled),
            ("expired", counts.expired),
        ] {
            text.sample(&[("status", status)], count);
        }
        let help = "Pending and running tasks, and failed ones in the table, by type: the largest types.";
        text.family("leasehold_type_tasks", "gauge", help);
        for one in &figures.types {
            for (status, count) in
                [("pending", one.pending), ("running", one.running), ("failed", one.failed)]
            {
                text.sample(&[("task_type", &one.task_type), ("status", status)], count);
            }
        }
        let help = "Due tasks of types of which no worker has claimed one for two minutes.";
        text.family("leasehold_unclaimed_tasks", "gauge", help);
        for one in &figures.unclaimed {
            text.sample(&[("task_type", &one.task_type)], one.due);
        }
    }
    if let Some(index) = &snapshot.index {
        text.family("leasehold_tasks_due", "gauge", "Pending tasks that are due.");
        text.sample(&[], index.value.due);
        text.family("leasehold_tasks_scheduled", "gauge", "Pending tasks that are scheduled for later.");
        text.sample(&[], index.value.scheduled);
        let oldest = "Waiting time of the oldest due task, to the minute; 0 if none is due.";
        text.family("leasehold_oldest_due_seconds", "gauge", oldest);
        text.sample(&[], index.value.oldest_due_secs.unwrap_or(0));
    }
    let finished = "Tasks that finished since this server started, as read by it, by status.";
    text.family("leasehold_tasks_finished_total", "counter", finished);
    for status in leasehold_core::Status::ALL.into_iter().filter(|status| status.is_final()) {
        let count = snapshot.table.finished().get(&status).copied().unwrap_or(0);
        text.sample(&[("status", status.name())], count);
    }
    Ok(())
}

/// Leases are read only while they are viewed: the values here may be as old as the last view.
fn holders(snapshot: &QueueSnapshot, text: &mut MetricsText) {
    let states = [LeaseState::Free, LeaseState::Held, LeaseState::Expired, LeaseState::Corrupt];
    if let Some(seen) = &snapshot.workers {
        text.family("leasehold_workers", "gauge", "Worker leases in the store, by state.");
        for state in states {
            let count = seen.value.0.iter().filter(|(_, _, seen)| seen.state == state).count();
            text.sample(&[("state", state.name())], count);
        }
    }
    if let Some(seen) = &snapshot.shards {
        text.family("leasehold_shards", "gauge", "Shards by state of their lease.");
        for state in states {
            let held = seen.value.iter().filter(|(_, seen)| seen.state == state);
            text.sample(&[("state", state.name())], held.map(|(group, _)| group.count()).sum::<usize>());
        }
    }
}

fn sample(app: &App, snapshot: &QueueSnapshot, text: &mut MetricsText) {
    let now = app.shared.host().instant();
    let ages = [("index", snapshot.index.as_ref().map(|index| index.at)), ("tasks", snapshot.pass.ended)];
    text.family("leasehold_sample_age_seconds", "gauge", "Time since the store was last read.");
    for (part, at) in ages {
        if let Some(at) = at {
            text.sample(&[("part", part)], now.since(at).as_secs_f64());
        }
    }
    text.family(
        "leasehold_sample_failing",
        "gauge",
        "1 if the store cannot be read at present, otherwise 0.",
    );
    text.sample(&[], u8::from(snapshot.fault(app.shared.host().instant()).is_some()));
}

fn requests(app: &App, text: &mut MetricsText) {
    let spent = app.spent();
    text.family("leasehold_store_requests_total", "counter", "Requests of this process to the store.");
    for (line, count) in spent.lines() {
        let labels =
            [("verb", line.verb.name()), ("purpose", line.purpose.name()), ("outcome", line.outcome.name())];
        text.sample(&labels, count.requests);
    }
    let (to_store, from_store) = spent
        .lines()
        .fold((0, 0), |(to, from), (_, count)| (to + count.bytes_sent, from + count.bytes_received));
    text.family(
        "leasehold_store_bytes_total",
        "counter",
        "Bytes of request and response bodies, by direction.",
    );
    text.sample(&[("direction", "sent")], to_store);
    text.sample(&[("direction", "received")], from_store);
    let cost = "Cost of the requests of this process at the provider's list prices, in US dollars.";
    text.family("leasehold_store_cost_usd_total", "counter", cost);
    text.sample(&[("provider", &app.prices.provider)], app.prices.total(&spent));
}

/// Builder of the text format.
#[derive(Default)]
struct MetricsText {
    text: String,
    /// Family of the next samples.
    family: &'static str,
}

impl MetricsText {
    fn family(&mut self, name: &'static str, kind: &str, help: &str) {
        self.family = name;
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, labels: &[(&str, &str)], value: impl Display) {
        let labels = labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value)));
        let labels = labels.collect::<Vec<_>>().join(",");
        let labels = if labels.is_empty() { labels } else { format!("{{{labels}}}") };
        let _ = writeln!(self.text, "{}{labels} {value}", self.family);
    }
}

/// Escapes a label's value for the text format.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_values_cannot_end_their_line() {
        let mut text = MetricsText::default();
        text.family("x", "gauge", "A value.");
        text.sample(&[("a", "1"), ("b", "\"\n\\")], 2.5);
        assert_eq!(text.text, "# HELP x A value.\n# TYPE x gauge\nx{a=\"1\",b=\"\\\"\\n\\\\\"} 2.5\n");
    }
}
