//! Output of the command `depth`.

use serde_json::json;
use std::collections::BTreeMap;

use super::{BenchReport, megabytes, per_task, spread};
use crate::args::BenchStore;
use crate::depth::{Level, WorkerMeasurement};

impl BenchReport {
    /// Prints the measurement of a worker for the process that started it.
    pub(crate) fn worker_measurement(measured: &WorkerMeasurement) -> anyhow::Result<()> {
        println!("{}", serde_json::to_string(measured)?);
        Ok(())
    }

    /// Prints the depths of one store.
    pub(crate) fn depth(&mut self, place: BenchStore, levels: &[Level]) {
        if self.json {
            let rows: Vec<_> = levels
                .iter()
                .map(|level| json!({"waiting": level.waiting, "rounds": level.rounds}))
                .collect();
            self.stores.push(json!({"store": place.name(), "depths": rows}));
            return;
        }
        print_requests(place, levels);
        print_costs(place, levels);
    }
}

fn print_requests(place: BenchStore, levels: &[Level]) {
    println!("{:<7} {:>7} {:>6}  requests for one task, by the ledger", "store", "waiting", "tasks");
    for level in levels {
        let tasks: u64 = level.rounds.iter().map(|round| round.tasks).sum();
        let mut requests = BTreeMap::new();
        for (line, count) in level.rounds.iter().flat_map(|round| &round.requests) {
            *requests.entry(line).or_insert(0) += count;
        }
        let requests: Vec<_> =
            requests.iter().map(|(line, count)| format!("{:.3} {line}", per_task(*count, tasks))).collect();
        println!("{:<7} {:>7} {tasks:>6}  {}", place.name(), level.waiting, requests.join(", "));
    }
    println!();
}

/// Prints costs. Ratios are against the first depth, in the same round.
fn print_costs(place: BenchStore, levels: &[Level]) {
    println!(
        "{:<7} {:>7} {:>13} {:>8} {:>6} {:>14} {:>8} {:>6} {:>14} {:>9} {:>6}",
        "store",
        "waiting",
        "requests/task",
        "ms/task",
        "ratio",
        "range",
        "cpu µs",
        "ratio",
        "range",
        "memory MB",
        "ratio"
    );
    for level in levels {
        let against = |cost: fn(&WorkerMeasurement) -> f64| {
            spread(
                level
                    .rounds
                    .iter()
                    .zip(&levels[0].rounds)
                    .map(move |(round, first)| cost(round) / cost(first)),
            )
        };
        let middle = |cost: fn(&WorkerMeasurement) -> f64| spread(level.rounds.iter().map(cost)).0;
        let ((time, time_range), (cpu, cpu_range)) = (against(ms), against(cpu_us));
        println!(
            "{:<7} {:>7} {:>13.3} {:>8.3} {time:>6.2} {time_range:>14} {:>8.0} {cpu:>6.2} {cpu_range:>14} {:>9.1} {:>6.2}",
            place.name(),
            level.waiting,
            middle(requests),
            middle(ms),
            middle(cpu_us),
            middle(memory),
            against(memory).0,
        );
    }
    println!();
}

fn requests(round: &WorkerMeasurement) -> f64 {
    per_task(round.requests.values().sum(), round.tasks)
}

#[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52 tasks")]
fn ms(round: &WorkerMeasurement) -> f64 {
    round.seconds * 1e3 / round.tasks as f64
}

#[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52 tasks")]
fn cpu_us(round: &WorkerMeasurement) -> f64 {
    round.cpu_seconds * 1e6 / round.tasks as f64
}

fn memory(round: &WorkerMeasurement) -> f64 {
    megabytes(round.memory_peak)
}
