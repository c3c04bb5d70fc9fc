//! The same for Prometheus, in its text format.
//!
//! A scrape counts as looking, so that what is scraped is fresh; what has never been read is left out rather than told as
//! zero.

use std::fmt::{Display, Write};
use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::header::CONTENT_TYPE;
use leasehold_queue::LeaseState;

use crate::board::Board;
use crate::looks::Topic;
use crate::routes::{App, Failed};

/// The format, in the version that every scraper reads.
const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Everything that is measured.
pub(crate) async fn metrics(State(app): State<Arc<App>>) -> Result<Response, Failed> {
    app.shared.looks.at(Topic::Queue);
    let mut text = Text::default();
    text.family("leasehold_build_info", "gauge", "The program that serves this.");
    text.sample(&[("version", env!("CARGO_PKG_VERSION"))], 1);
    {
        let board = app.shared.board();
        tasks(&app, &board, &mut text)?;
        holders(&board, &mut text);
        sample(&app, &board, &mut text);
    }
    requests(&app, &mut text);
    Ok(([(CONTENT_TYPE, TEXT)], text.text).into_response())
}

fn tasks(app: &App, board: &Board, text: &mut Text) -> Result<(), Failed> {
    if board.pass.ended.is_some() {
        let figures = app.counted.get(board, app.shared.queue().now()?.earliest);
        let counts = &figures.counts;
        text.family("leasehold_tasks", "gauge", "Tasks by status, as they were last read.");
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
    }
    if let Some(index) = &board.index {
        text.family("leasehold_tasks_due", "gauge", "Tasks that wait and are due.");
        text.sample(&[], index.what.due);
        text.family("leasehold_tasks_scheduled", "gauge", "Tasks that are planned for later.");
        text.sample(&[], index.what.scheduled);
        let oldest = "How long the oldest due task has been waiting, to the minute; 0 if none is due.";
        text.family("leasehold_oldest_due_seconds", "gauge", oldest);
        text.sample(&[], index.what.oldest_due_secs.unwrap_or(0));
    }
    let finished = "Tasks that have ended since this server began and were seen by it, by how they did.";
    text.family("leasehold_tasks_finished_total", "counter", finished);
    for status in leasehold_core::Status::ALL.into_iter().filter(|status| status.is_final()) {
        let count = board.table.finished().get(&status).copied().unwrap_or(0);
        text.sample(&[("status", status.name())], count);
    }
    Ok(())
}

/// Leases are read only while someone looks at them: as old as that is what is told here.
fn holders(board: &Board, text: &mut Text) {
    let states = [LeaseState::Free, LeaseState::Held, LeaseState::Expired, LeaseState::Corrupt];
    if let Some(seen) = &board.workers {
        text.family(
            "leasehold_workers",
            "gauge",
            "Names of workers in the store, by the state of their lease.",
        );
        for state in states {
            let count = seen.what.0.iter().filter(|(_, _, seen)| seen.state == state).count();
            text.sample(&[("state", state.name())], count);
        }
    }
    if let Some(seen) = &board.shards {
        text.family("leasehold_shards", "gauge", "Shards by the state of the lease on them.");
        for state in states {
            let held = seen.what.iter().filter(|(_, seen)| seen.state == state);
            text.sample(&[("state", state.name())], held.map(|(group, _)| group.count()).sum::<usize>());
        }
    }
}

fn sample(app: &App, board: &Board, text: &mut Text) {
    let now = app.shared.host().instant();
    let ages = [("index", board.index.as_ref().map(|index| index.at)), ("tasks", board.pass.ended)];
    text.family("leasehold_sample_age_seconds", "gauge", "How long ago the store was read for this.");
    for (part, at) in ages {
        if let Some(at) = at {
            text.sample(&[("part", part)], now.since(at).as_secs_f64());
        }
    }
    text.family("leasehold_sample_failing", "gauge", "Whether the store cannot be read at present.");
    text.sample(&[], u8::from(board.fault(app.shared.host().instant()).is_some()));
}

fn requests(app: &App, text: &mut Text) {
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
        "Bytes of bodies that went to the store and came from it.",
    );
    text.sample(&[("direction", "sent")], to_store);
    text.sample(&[("direction", "received")], from_store);
    let cost = "What the requests of this process cost by the provider's list prices, in US dollars.";
    text.family("leasehold_store_cost_usd_total", "counter", cost);
    text.sample(&[("provider", &app.prices.provider)], app.prices.total(&spent));
}

/// Metrics in the making.
#[derive(Default)]
struct Text {
    text: String,
    /// The family whose samples come now.
    family: &'static str,
}

impl Text {
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

/// A label's value as the format wants it.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_values_cannot_end_their_line() {
        let mut text = Text::default();
        text.family("x", "gauge", "What it is.");
        text.sample(&[("a", "1"), ("b", "\"\n\\")], 2.5);
        assert_eq!(text.text, "# HELP x What it is.\n# TYPE x gauge\nx{a=\"1\",b=\"\\\"\\n\\\\\"} 2.5\n");
    }
}
