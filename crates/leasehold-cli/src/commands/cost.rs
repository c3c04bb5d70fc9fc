//! `leasehold cost`: estimates the monthly cost of a workload. Simulates the real code in virtual time, and counts every
//! request.

use clap::Args;
use leasehold_core::{Error, Kind, ShardLen};
use leasehold_queue::LayoutName;
use leasehold_sim::cost::{CostReport, Mode, Workload};
use leasehold_store::{Prices, Purpose, Verb};
use serde_json::json;
use std::collections::BTreeSet;

use crate::printer::{Printer, Style, line};
use crate::table::{Cell, TextTable};

const VERBS: [Verb; 4] = [Verb::Put, Verb::Get, Verb::List, Verb::Delete];
/// Half an hour: gives an estimate within a few seconds. Connecting weighs more in it than in a day.
const ESTIMATE_DAYS: f64 = 1.0 / 48.0;
/// Number of tasks from which on an estimate is printed. With fewer tasks, the exact simulation takes no longer.
const ESTIMATED_FROM: u64 = 10_000;

#[derive(Debug, Args)]
pub(crate) struct CostArgs {
    /// Number of workers
    #[arg(long, value_name = "N", default_value_t = 50)]
    workers: u64,
    /// Number of tasks submitted per day, at random times
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    tasks_per_day: u64,
    /// Number of days to simulate; the cost is for 30 days
    #[arg(long, value_name = "DAYS", default_value_t = 1.0)]
    days: f64,
    /// Layout of the queue: objects or journal
    #[arg(long, default_value = "objects")]
    layout: String,
    /// Way in which workers find tasks: shared, shard-leasing or direct
    #[arg(long, default_value = "shared")]
    mode: String,
    /// Price list: aws, aws-express, r2, gcs or azure
    #[arg(long, default_value = "aws")]
    provider: String,
    /// Number of hex digits of a shard: 1 (16 shards) to 4 (65,536 shards)
    #[arg(long, value_name = "N", default_value_t = 1)]
    shard_prefix_len: u8,
    /// Run time of each task in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    handler_secs: f64,
    /// Print only the estimate from 30 minutes of virtual time
    #[arg(long)]
    quick: bool,
}

pub(crate) fn run(args: &CostArgs, printer: &Printer) -> anyhow::Result<()> {
    let mode = match args.layout.parse::<LayoutName>()? {
        LayoutName::Objects => Mode::from_name(&args.mode)?,
        LayoutName::Journal => Mode::Journal,
    };
    let prices = Prices::of(&args.provider)?;
    let workload = Workload {
        workers: args.workers,
        tasks_per_day: args.tasks_per_day,
        days: args.days,
        mode,
        shard_len: ShardLen::new(args.shard_prefix_len)?,
        handler: super::submit::seconds("handler-secs", args.handler_secs)?,
    };
    workload.check()?;
    let short = Workload { days: workload.days.min(ESTIMATE_DAYS), ..workload.clone() };
    let report = if args.quick {
        simulate(&short, printer)?
    } else {
        if workload.tasks() >= ESTIMATED_FROM && short.days < workload.days {
            print_estimate(&short, &prices, args.days, printer)?;
        }
        simulate(&workload, printer)?
    };
    if report.tasks == 0 && args.tasks_per_day > 0 {
        let message = format!("no task completes within {} days; raise --days", args.days);
        return Err(Error::invalid(message).into());
    }
    if printer.is_json() {
        line(as_json(args, &report, &prices));
    } else {
        print(args, &report, &prices, printer);
    }
    Ok(())
}

/// Prints an estimate from a short simulation.
fn print_estimate(short: &Workload, prices: &Prices, days: f64, printer: &Printer) -> anyhow::Result<()> {
    let estimate = on_own_thread(|| short.play(1, |_| ()))?;
    printer.note(&format!(
        "about US$ {:.0} a month, estimated from 30 minutes; simulating --days {days} (--quick stops here)",
        estimate.per_month(prices)
    ));
    Ok(())
}

/// Simulates a workload. Shows a bar on a terminal, else prints a line for every 10 %.
fn simulate(workload: &Workload, printer: &Printer) -> leasehold_core::Result<CostReport> {
    let bar = printer.bar(100, "% of the time simulated");
    // Draws the bar at once, not after the first step.
    bar.tick();
    let has_bar = !bar.is_hidden();
    let mut percent = 0u64;
    let report = on_own_thread(|| {
        workload.play(1, |_| {
            percent += 1;
            bar.inc(1);
            if !has_bar && percent.is_multiple_of(10) && workload.tasks() >= ESTIMATED_FROM {
                printer.note(&format!("simulated {percent} %"));
            }
        })
    });
    bar.finish_and_clear();
    report
}

/// Runs a simulation on its own thread: inside a task of the runtime, simulated tasks would be made to yield.
fn on_own_thread<T: Send>(
    play: impl FnOnce() -> leasehold_core::Result<T> + Send,
) -> leasehold_core::Result<T> {
    std::thread::scope(|scope| {
        let played = scope.spawn(play).join();
        played.unwrap_or_else(|_| Err(Error::new(Kind::Internal, "simulation panicked; please report it")))
    })
}

fn purposes(report: &CostReport) -> BTreeSet<Purpose> {
    report.requests.keys().map(|(purpose, _)| *purpose).collect()
}

fn requests_of(report: &CostReport, purpose: Purpose, verb: Verb) -> u64 {
    report.requests.get(&(purpose, verb)).copied().unwrap_or(0)
}

fn monthly(report: &CostReport, purpose: Purpose, prices: &Prices) -> f64 {
    let one_run: f64 = VERBS.iter().map(|verb| prices.cost(*verb, requests_of(report, purpose, *verb))).sum();
    one_run / report.days * 30.0
}

#[expect(clippy::cast_precision_loss, reason = "tasks are counted in millions")]
fn per_million(report: &CostReport, prices: &Prices) -> f64 {
    report.per_month(prices) * report.days / 30.0 / report.tasks.max(1) as f64 * 1e6
}

fn as_json(args: &CostArgs, report: &CostReport, prices: &Prices) -> serde_json::Value {
    let rows = purposes(report).into_iter().map(|purpose| {
        let [put, get, list, delete] = VERBS.map(|verb| requests_of(report, purpose, verb));
        json!({"purpose": purpose, "put": put, "get": get, "list": list, "delete": delete,
               "usd_per_month": monthly(report, purpose, prices)})
    });
    json!({
        "layout": args.layout, "mode": args.mode, "provider": prices.provider, "workers": args.workers, "tasks": report.tasks,
        "days": report.days, "is_estimate": args.quick, "requests": rows.collect::<Vec<_>>(),
        "usd_per_month": report.per_month(prices), "usd_per_million_tasks": per_million(report, prices),
    })
}

fn print(args: &CostArgs, report: &CostReport, prices: &Prices, printer: &Printer) {
    let table = TextTable::default().left("PURPOSE", 0).right("PUT", 9).right("GET", 9).right("LIST", 9);
    let table = table.right("DELETE", 9).right("US$ A MONTH", 0);
    let mut rows: Vec<Vec<Cell>> = Vec::new();
    for purpose in purposes(report) {
        let mut row = vec![Cell::from(purpose.name())];
        row.extend(VERBS.map(|verb| Cell::from(requests_of(report, purpose, verb))));
        row.push(format!("{:.2}", monthly(report, purpose, prices)).into());
        rows.push(row);
    }
    let mut sum = vec![Cell::new(Style::Strong, "all")];
    sum.extend(VERBS.map(|verb| Cell::new(Style::Strong, report.verb(verb))));
    sum.push(Cell::new(Style::Strong, format!("{:.2}", report.per_month(prices))));
    rows.push(sum);
    table.rows(&rows, printer);
    line(format_args!(
        "\n{} tasks in {:.2} days by {} workers, {}: US$ {:.2} for a million tasks ({} prices)",
        report.tasks,
        report.days,
        args.workers,
        if args.layout == LayoutName::Journal.as_str() { "layout journal" } else { &args.mode },
        per_million(report, prices),
        prices.provider
    ));
}
