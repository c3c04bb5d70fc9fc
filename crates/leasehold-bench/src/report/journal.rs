//! Output of the command `journal`.

use serde_json::{Value, json};

use super::{BenchReport, megabytes};
use crate::args::BenchStore;
use crate::journal::{JournalMeasurement, JournalStage, StageRound};
use crate::measure::median;

impl BenchReport {
    /// Prints the stages of one store.
    pub(crate) fn journal(&mut self, place: BenchStore, measured: &JournalMeasurement) {
        let JournalMeasurement { stages, reopened, tasks, memory_peak } = measured;
        if self.json {
            let rows: Vec<_> = stages.iter().map(|(stage, rounds)| as_json(*stage, rounds)).collect();
            self.stores.push(json!({
                "store": place.name(),
                "stages": rows,
                "reopened_secs": reopened.as_secs_f64(),
                "tasks": tasks,
                "memory_peak_bytes": memory_peak,
            }));
            return;
        }
        println!("{:<7} {:<22} {:>9} {:>9} {:>7} {:>8}", "store", "stage", "tasks/s", "loop/s", "ratio", "cpu µs");
        for (stage, rounds) in stages {
            let StageRound { tasks_per_second, loops_per_second, cpu_us } = medians(rounds);
            let ratio = tasks_per_second / loops_per_second;
            println!(
                "{:<7} {:<22} {tasks_per_second:>9.0} {loops_per_second:>9.0} {ratio:>7.2} {cpu_us:>8.1}",
                place.name(),
                stage.name()
            );
        }
        println!(
            "Opened again with {tasks} tasks: {:.2} s. Most memory: {:.0} MB.\n",
            reopened.as_secs_f64(),
            megabytes(*memory_peak)
        );
    }
}

fn medians(rounds: &[StageRound]) -> StageRound {
    let of = |value: fn(&StageRound) -> f64| median(rounds.iter().map(value));
    StageRound {
        tasks_per_second: of(|round| round.tasks_per_second),
        loops_per_second: of(|round| round.loops_per_second),
        cpu_us: of(|round| round.cpu_us),
    }
}

fn as_json(stage: JournalStage, rounds: &[StageRound]) -> Value {
    let StageRound { tasks_per_second, loops_per_second, cpu_us } = medians(rounds);
    json!({
        "stage": stage.name(),
        "tasks_per_second": tasks_per_second,
        "loops_per_second": loops_per_second,
        "ratio": tasks_per_second / loops_per_second,
        "cpu_us": cpu_us,
    })
}
