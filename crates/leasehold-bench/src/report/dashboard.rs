//! Output of the command `dashboard`.

use serde_json::json;

use super::BenchReport;
use crate::args;
use crate::dashboard::DashboardMeasurement;

impl BenchReport {
    pub(crate) fn dashboard(args: &args::DashboardBenchArgs, measured: &DashboardMeasurement) {
        let grown = measured.memory_after.saturating_sub(measured.memory_before);
        if args.json {
            let views = measured.views.iter().map(|(view, middle, longest, bytes)| {
                json!({
                    "view": view,
                    "p50_ms": middle.as_secs_f64() * 1e3,
                    "max_ms": longest.as_secs_f64() * 1e3,
                    "bytes": bytes,
                })
            });
            let views: Vec<_> = views.collect();
            let reading = measured.reading.as_secs_f64();
            println!(
                "{}",
                json!({"tasks": args.tasks, "reading_secs": reading, "grown_bytes": grown, "views": views})
            );
            return;
        }
        println!(
            "{} tasks were read in {:.1} s; the process grew by {} MiB, {} bytes per task",
            args.tasks,
            measured.reading.as_secs_f64(),
            grown >> 20,
            grown / u64::from(args.tasks)
        );
        println!("{:<50} {:>10} {:>10} {:>10}", "view", "p50 ms", "max ms", "bytes");
        for (view, middle, longest, bytes) in &measured.views {
            let (middle, longest) = (middle.as_secs_f64() * 1e3, longest.as_secs_f64() * 1e3);
            println!("{view:<50} {middle:>10.2} {longest:>10.2} {bytes:>10}");
        }
    }
}
