//! `leasehold doctor`: checks whether a store meets the requirements.

use leasehold_core::Now;
use leasehold_store::probe::ProbeReport;
use leasehold_store::{Client, Prices, Snapshot, Verb};
use serde_json::json;
use std::time::Duration;

use crate::printer::{Printer, Style, line};

/// Time for which requests are retried: short, so that an unreachable store is reported soon.
const RETRY_FOR: Duration = Duration::from_secs(3);

pub(crate) async fn run(client: Client, printer: &Printer) -> anyhow::Result<()> {
    let client = client.with_timeout(RETRY_FOR);
    let report = leasehold_store::probe(&client).await?;
    let ledger = client.ledger().snapshot();
    if printer.is_json() {
        line(as_json(&report, &ledger));
    } else {
        print_report(&report, &ledger, printer)?;
    }
    Ok(report.verdict()?)
}

fn print_report(report: &ProbeReport, ledger: &Snapshot, printer: &Printer) -> anyhow::Result<()> {
    line(printer.paint(Style::Strong, &report.store));
    for finding in &report.findings {
        let mark =
            if finding.is_met { printer.paint(Style::Good, "✓") } else { printer.paint(Style::Bad, "✗") };
        let fault = if finding.is_met { String::new() } else { format!(": {}", finding.consequence) };
        line(format_args!("  {mark} {}{fault}", finding.requirement));
    }
    line(format_args!("time      {}", report.now.map_or("unknown".into(), format_time)));
    line(format_args!("requests  {}", format_requests(ledger)?));
    if report.verdict().is_ok() {
        line(printer.paint(Style::Good, "this store meets all requirements"));
    }
    Ok(())
}

fn format_time(now: Now) -> String {
    match now.width() {
        Some(width) if width.is_zero() => format!("{}, exact", now.earliest),
        Some(width) => format!("{} or up to {:.1} s later", now.earliest, width.as_secs_f64()),
        None => format!("{} or later", now.earliest),
    }
}

fn format_requests(ledger: &Snapshot) -> anyhow::Result<String> {
    let counts = [Verb::Put, Verb::Get, Verb::List, Verb::Delete]
        .map(|verb| format!("{} {}", ledger.verb(verb), verb.name()))
        .join(", ");
    let price = Prices::of("aws")?.total(ledger);
    Ok(format!("{counts}; cost on S3: US$ {price:.6}"))
}

fn as_json(report: &ProbeReport, ledger: &Snapshot) -> serde_json::Value {
    json!({
        "store": report.store,
        "good": report.verdict().is_ok(),
        "findings": report.findings,
        "time": report.now.map(|now| json!({
            "earliest": now.earliest,
            "latest": now.width().map(|_| now.latest),
        })),
        "requests": ledger,
    })
}
