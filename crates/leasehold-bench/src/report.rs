//! Output, in one place: requests first, then rates and latencies. Progress goes to standard error.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "this module prints the report")]

use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::time::Duration;

use crate::args::BenchStore;
use crate::histogram::Histogram;
use crate::measure::{Measurement, median};
use crate::operation::BenchRequest;

mod artifact;
mod dashboard;
mod depth;
mod journal;
mod manager;
mod queue;

pub(crate) struct BenchReport {
    json: bool,
    stores: Vec<Value>,
}

impl BenchReport {
    pub(crate) fn new(json: bool) -> Self {
        Self { json, stores: Vec::new() }
    }

    pub(crate) fn progress(place: BenchStore, what: &str) {
        if std::io::stderr().is_terminal() {
            eprintln!("{} {what}", place.name());
        }
    }

    /// Prints the requests of one store.
    pub(crate) fn requests(&mut self, place: BenchStore, measured: &[Measurement]) {
        if self.json {
            let rows: Vec<_> = measured.iter().map(as_json).collect();
            self.stores.push(json!({"store": place.name(), "rows": rows}));
        } else {
            print_requests(place, measured);
            print_rates(place, measured);
        }
    }

    /// Prints one line for the program that started this one.
    pub(crate) fn line(line: &impl Serialize) -> anyhow::Result<()> {
        // A pipe that is closed is an error, not a panic: the reader may stop early.
        Ok(writeln!(std::io::stdout(), "{}", serde_json::to_string(line)?)?)
    }

    pub(crate) fn finish(self) {
        if self.json {
            println!("{}", json!({"stores": self.stores}));
        }
    }
}

/// Prints the ledger's counts in the measured rounds, for all numbers in flight together.
fn print_requests(place: BenchStore, measured: &[Measurement]) {
    println!("{:<7} {:<10} {:>10}  requests by the ledger", "store", "operation", "operations");
    for operation in BenchRequest::ALL {
        let rows = || measured.iter().filter(|row| row.operation == operation);
        let operations: u64 = rows().map(|row| row.operations).sum();
        let mut requests = BTreeMap::new();
        for (kind, count) in rows().flat_map(|row| &row.requests) {
            *requests.entry(*kind).or_insert(0) += count;
        }
        let requests: Vec<_> =
            requests.iter().map(|((verb, outcome), count)| format!("{count} {verb} {outcome}")).collect();
        if operations > 0 {
            let requests = requests.join(", ");
            println!("{:<7} {:<10} {operations:>10}  {requests}", place.name(), operation.name());
        }
    }
    println!();
}

fn print_rates(place: BenchStore, measured: &[Measurement]) {
    println!(
        "{:<7} {:<10} {:>9} {:>9} {:>10} {:>6} {:>8} {:>8} {:>8} {:>8} {:>8}",
        "store",
        "operation",
        "in flight",
        "ours/s",
        "baseline/s",
        "ratio",
        "p50 ms",
        "p95 ms",
        "p99 ms",
        "cpu µs",
        "baseline"
    );
    for row in measured {
        let [p50, p95, p99] = percentiles(&row.ours);
        println!(
            "{:<7} {:<10} {:>9} {:>9.0} {:>10.0} {:>6.2} {p50:>8.3} {p95:>8.3} {p99:>8.3} {:>8.0} {:>8.0}",
            place.name(),
            row.operation.name(),
            row.in_flight,
            row.ours_per_second,
            row.plain_per_second,
            row.ratio,
            cpu_us(row.ours_cpu, row.operations),
            cpu_us(row.plain_cpu, row.plain_operations),
        );
    }
    println!();
}

fn as_json(row: &Measurement) -> Value {
    let requests: Vec<_> = row
        .requests
        .iter()
        .map(|((verb, outcome), count)| json!({"verb": verb, "outcome": outcome, "requests": count}))
        .collect();
    json!({
        "operation": row.operation.name(),
        "in_flight": row.in_flight,
        "operations": row.operations,
        "requests": requests,
        "ours_per_second": row.ours_per_second,
        "baseline_per_second": row.plain_per_second,
        "ratio": row.ratio,
        "ours_ms": percentiles_json(&row.ours),
        "baseline_ms": percentiles_json(&row.plain),
        "ours_cpu_us": cpu_us(row.ours_cpu, row.operations),
        "baseline_cpu_us": cpu_us(row.plain_cpu, row.plain_operations),
    })
}

/// Returns the processor time of this process per operation, without that of the server or the kernel's own
/// threads.
#[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52 operations")]
fn cpu_us(cpu: Duration, operations: u64) -> f64 {
    cpu.as_secs_f64() * 1e6 / operations.max(1) as f64
}

#[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52 bytes")]
fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

#[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52 requests")]
fn per_task(requests: u64, tasks: u64) -> f64 {
    requests as f64 / tasks.max(1) as f64
}

/// Returns the median of the rounds, and their range.
fn spread(values: impl Iterator<Item = f64> + Clone) -> (f64, String) {
    let (least, most) = (values.clone().fold(f64::INFINITY, f64::min), values.clone().fold(0.0, f64::max));
    (median(values), format!("{least:.2} to {most:.2}"))
}

fn percentiles(latencies: &Histogram) -> [f64; 3] {
    [50, 95, 99].map(|percent| latencies.percentile_ms(percent))
}

fn percentiles_json(latencies: &Histogram) -> Value {
    let [p50, p95, p99] = percentiles(latencies);
    json!({"p50": p50, "p95": p95, "p99": p99})
}
