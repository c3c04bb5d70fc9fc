//! Output of the command `manager`.

use serde_json::json;

use super::{BenchReport, megabytes, percentiles, percentiles_json};
use crate::args;
use crate::manager::TransferMeasurement;

impl BenchReport {
    /// Prints the measurements of the transfers.
    pub(crate) fn manager(args: &args::ManagerArgs, measured: &TransferMeasurement) {
        if args.json {
            println!("{}", as_json(args, measured));
            return;
        }
        let [p50, _, p99] = percentiles(&measured.requests);
        let [max, max_cpu] =
            [measured.request_max, measured.request_cpu_max].map(|max| max.as_secs_f64() * 1e3);
        println!(
            "pieces   peers  rounds  requests  rejected   p50 ms   p99 ms   max ms  max cpu ms    pieces scanned"
        );
        println!(
            "{:>6} {:>7} {:>7} {:>9} {:>9} {p50:>8.4} {p99:>8.4} {max:>8.4} {max_cpu:>11.4} {:>17.0}",
            args.pieces,
            args.peers,
            args.rounds,
            measured.request_count,
            measured.rejected,
            per_request(measured),
        );
        let [p50, _, p99] = percentiles(&measured.completions);
        println!("completions: p50 {p50:.4} ms, p99 {p99:.4} ms");
        println!("second leases: {}, pieces overtaken: {}", measured.duplicates, measured.overtaken);
        println!(
            "{:.1} s in total; peak memory {:.1} MB, {:.1} MB before the first transfer",
            measured.seconds,
            megabytes(measured.memory_peak),
            megabytes(measured.memory_before)
        );
    }
}

#[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52 pieces")]
fn per_request(measured: &TransferMeasurement) -> f64 {
    measured.scanned as f64 / measured.request_count.max(1) as f64
}

fn as_json(args: &args::ManagerArgs, measured: &TransferMeasurement) -> serde_json::Value {
    json!({
        "pieces": args.pieces,
        "peers": args.peers,
        "rounds": args.rounds,
        "requests": measured.request_count,
        "rejected": measured.rejected,
        "looked_at_per_request": per_request(measured),
        "request_ms": percentiles_json(&measured.requests),
        "request_max_ms": measured.request_max.as_secs_f64() * 1e3,
        "request_max_cpu_ms": measured.request_cpu_max.as_secs_f64() * 1e3,
        "completion_ms": percentiles_json(&measured.completions),
        "duplicates": measured.duplicates,
        "overtaken": measured.overtaken,
        "seconds": measured.seconds,
        "memory_before_bytes": measured.memory_before,
        "memory_peak_bytes": measured.memory_peak,
    })
}
