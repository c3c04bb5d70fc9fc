//! Output of the command `journal`.

use serde_json::{Value, json};

use super::{BenchReport, megabytes, percentiles, percentiles_json, spread};
use crate::args::BenchStore;
use crate::journal::{JournalMeasurement, JournalRates, JournalStage, ProcessMeasurement, Waiting};

impl BenchReport {
    /// Prints the stages of one store.
    pub(crate) fn journal(&mut self, place: BenchStore, measured: &JournalMeasurement) {
        if self.json {
            self.stores.push(json!({
                "store": place.name(),
                "stages": measured.stages.iter().map(as_json).collect::<Vec<_>>(),
                "lone_ms": percentiles_json(&measured.lone),
                "waiting": measured.waiting.as_ref().map(waiting_json),
            }));
            return;
        }
        println!(
            "{:<7} {:<13} {:>8} {:>8} {:>6} {:>14} {:>8} {:>13}",
            "store", "stage", "tasks/s", "bare/s", "ratio", "range", "cpu µs", "requests/task"
        );
        for stage in &measured.stages {
            let (ratio, range) = median_of(stage, |rates| rates.ours / rates.bare);
            println!(
                "{:<7} {:<13} {:>8.0} {:>8.0} {ratio:>6.2} {range:>14} {:>8.0} {:>13.4}",
                place.name(),
                stage.name,
                median_of(stage, |rates| rates.ours).0,
                median_of(stage, |rates| rates.bare).0,
                median_of(stage, |rates| rates.cpu_micros).0,
                median_of(stage, |rates| rates.requests).0,
            );
        }
        let [p50, p95, p99] = percentiles(&measured.lone);
        println!(
            "\nOne at a time, from submit to handler: p50 {p50:.1} ms, p95 {p95:.1} ms, p99 {p99:.1} ms."
        );
        if let Some(Waiting { tasks, filled, opened }) = &measured.waiting {
            println!(
                "{tasks} pending tasks: {:.0} MB after {:.1} s of submits; open {:.1} s after kill -9, with {:.0} MB.",
                megabytes(filled.memory_bytes),
                filled.seconds,
                opened.seconds,
                megabytes(opened.memory_bytes)
            );
        }
        println!();
    }

    /// Prints the measurement of a process to its parent.
    pub(crate) fn process_measurement(measured: &ProcessMeasurement) -> anyhow::Result<()> {
        Self::line(measured)
    }
}

/// Returns the median of the rounds, and their range.
fn median_of(stage: &JournalStage, value: fn(&JournalRates) -> f64) -> (f64, String) {
    spread(stage.rounds.iter().map(value))
}

fn as_json(stage: &JournalStage) -> Value {
    let rounds: Vec<_> = stage
        .rounds
        .iter()
        .map(|rates| {
            json!({
                "tasks_per_second": rates.ours,
                "bare_per_second": rates.bare,
                "cpu_us_per_task": rates.cpu_micros,
                "requests_per_task": rates.requests,
            })
        })
        .collect();
    json!({"stage": stage.name, "rounds": rounds})
}

fn waiting_json(waiting: &Waiting) -> Value {
    json!({"tasks": waiting.tasks, "filled": waiting.filled, "opened": waiting.opened})
}
