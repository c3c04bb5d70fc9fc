//! `leasehold outpost status`: counts the tasks of the folder, and the changes not yet sent to the bucket.

use leasehold_core::outpost::ClockSource;
use leasehold_outpost::Spool;
use serde_json::json;

use crate::printer::{Printer, line};

pub(super) fn run(spool: &Spool, printer: &Printer) -> anyhow::Result<()> {
    let (counts, config, now) = (spool.count()?, spool.config(), spool.now());
    let clock = match now.clock() {
        ClockSource::Bucket => "from the bucket",
        ClockSource::Boot => "from this machine: the bucket was not reached since it booted",
    };
    if printer.is_json() {
        line(json!({
            "queue": spool.queue_path().to_string(), "node": config.node_id, "consistency": config.consistency,
            "folder": spool.root(), "counts": counts, "time": now.present().earliest, "clock": now.clock(),
        }));
        return Ok(());
    }
    let row = |name: &str, value: &str| line(format_args!("{name:<12} {value}"));
    row("queue", &format!("{} in {}", spool.queue_path(), spool.root().display()));
    row("node", &format!("{}, {}", config.node_id, config.consistency));
    row("time", clock);
    row("pending", &format!("{}, of which {} checked out", counts.free, counts.checked_out));
    row("running", &format!("{}, of which {} not confirmed", counts.leased, counts.tentative));
    row("completed", &counts.completed.to_string());
    row("failed", &counts.failed.to_string());
    row("unsent", &counts.outbox.to_string());
    row("conflicts", &format!("{}, of which {} run twice", counts.conflicts, counts.duplicates));
    Ok(())
}
