//! Output of the command `queue`.

use serde_json::{Value, json};

use super::{BenchReport, cpu_us, megabytes, per_task, percentiles, percentiles_json, spread};
use crate::args::BenchStore;
use crate::queue::{QueueMeasurement, Rates, TaskStage};

impl BenchReport {
    /// Prints the tasks of one store.
    pub(crate) fn queue(&mut self, place: BenchStore, worked: &QueueMeasurement) {
        let stages = [("submit", &worked.submit), ("work", &worked.work)];
        if self.json {
            let rows: Vec<_> = stages.iter().map(|(name, stage)| as_json(name, stage)).collect();
            self.stores.push(json!({
                "store": place.name(),
                "stages": rows,
                "lone_ms": percentiles_json(&worked.lone),
                "memory_peak_bytes": worked.memory_peak,
            }));
            return;
        }
        print_requests(place, &stages);
        print_rates(place, &stages);
        let [p50, p95, p99] = percentiles(&worked.lone);
        println!(
            "One at a time, from submit to handler: p50 {p50:.1} ms, p95 {p95:.1} ms, p99 {p99:.1} ms. \
             Peak memory: {:.0} MB.\n",
            megabytes(worked.memory_peak)
        );
    }
}

fn print_requests(place: BenchStore, stages: &[(&str, &TaskStage)]) {
    println!("{:<7} {:<7} {:>6}  requests for one task, by the ledger", "store", "stage", "tasks");
    for (name, stage) in stages {
        let requests: Vec<_> = stage
            .requests
            .iter()
            .map(|(line, count)| format!("{:.3} {line}", per_task(*count, stage.tasks)))
            .collect();
        println!("{:<7} {name:<7} {:>6}  {}", place.name(), stage.tasks, requests.join(", "));
    }
    println!();
}

fn print_rates(place: BenchStore, stages: &[(&str, &TaskStage)]) {
    println!(
        "{:<7} {:<7} {:>7} {:>8} {:>6} {:>12} {:>9} {:>12} {:>8} {:>8} {:>8} {:>8}",
        "store",
        "stage",
        "tasks/s",
        "limit/s",
        "ratio",
        "range",
        "of writes",
        "range",
        "p50 ms",
        "p95 ms",
        "p99 ms",
        "cpu µs"
    );
    for (name, stage) in stages {
        let (ratio, range) = middle(stage, ratio);
        let (of_writes, writes_range) = middle(stage, of_writes);
        println!(
            "{:<7} {name:<7} {:>7.0} {:>8.0} {ratio:>6.2} {range:>12} {of_writes:>9.2} {writes_range:>12} {} {:>8.0}",
            place.name(),
            middle(stage, |rates| rates.ours).0,
            middle(stage, |rates| rates.limit).0,
            latencies(stage),
            cpu_us(stage.cpu, stage.tasks),
        );
    }
    println!();
}

/// Returns latencies of submits. Tasks of a worker have none: their wait is that of the queue before them.
fn latencies(stage: &TaskStage) -> String {
    if stage.latencies.is_empty() {
        return format!("{:>8} {:>8} {:>8}", "-", "-", "-");
    }
    let [p50, p95, p99] = percentiles(&stage.latencies);
    format!("{p50:>8.3} {p95:>8.3} {p99:>8.3}")
}

fn ratio(rates: &Rates) -> f64 {
    rates.ours / rates.limit
}

fn of_writes(rates: &Rates) -> f64 {
    rates.ours / rates.write_limit
}

/// Returns the median of the rounds, and their range.
fn middle(stage: &TaskStage, value: fn(&Rates) -> f64) -> (f64, String) {
    spread(stage.rounds.iter().map(value))
}

fn as_json(name: &str, stage: &TaskStage) -> Value {
    let requests: Vec<_> = stage
        .requests
        .iter()
        .map(|(line, count)| json!({"line": line, "requests": count, "per_task": per_task(*count, stage.tasks)}))
        .collect();
    let rounds: Vec<_> = stage
        .rounds
        .iter()
        .map(|rates| {
            json!({
                "tasks_per_second": rates.ours,
                "limit": rates.limit,
                "ratio": ratio(rates),
                "of_writes": of_writes(rates),
            })
        })
        .collect();
    json!({
        "stage": name,
        "tasks": stage.tasks,
        "requests": requests,
        "rounds": rounds,
        "latency_ms": (!stage.latencies.is_empty()).then(|| percentiles_json(&stage.latencies)),
        "cpu_us": cpu_us(stage.cpu, stage.tasks),
    })
}
