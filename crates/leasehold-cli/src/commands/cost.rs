//! `leasehold cost`: what a workload would cost in a month. The real code is played in virtual time, and every request
//! it makes is counted.

use clap::Args;
use leasehold_core::{Error, Kind, ShardLen};
use leasehold_sim::cost::{Bill, Mode, Workload};
use leasehold_store::{Prices, Purpose, Verb};
use serde_json::json;
use std::collections::BTreeSet;

use crate::printer::{Printer, Style, line};
use crate::table::{Cell, Table};

const VERBS: [Verb; 4] = [Verb::Put, Verb::Get, Verb::List, Verb::Delete];
/// Half an hour: an estimate within a few seconds. Connecting weighs more in it than in a day.
const ESTIMATE_DAYS: f64 = 1.0 / 48.0;
/// With fewer tasks the exact bill is there as soon as an estimate would be.
const ESTIMATED_FROM: u64 = 10_000;

#[derive(Debug, Args)]
pub(crate) struct Cost {
    /// How many workers
    #[arg(long, value_name = "N", default_value_t = 50)]
    workers: u64,
    /// How many tasks are submitted each day, at moments chosen by chance
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    tasks_per_day: u64,
    /// For how many days to play; the bill is for 30
    #[arg(long, value_name = "DAYS", default_value_t = 1.0)]
    days: f64,
    /// How workers find work: `shared`, `leased` or `direct`
    #[arg(long, default_value = "shared")]
    mode: String,
    /// Whose prices: aws, aws-express, r2, gcs, azure
    #[arg(long, default_value = "aws")]
    provider: String,
    /// How many hex digits name a shard
    #[arg(long, value_name = "N", default_value_t = 1)]
    shard_prefix_len: u8,
    /// How long each task takes
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    handler_secs: f64,
    /// Print the estimate from half an hour of virtual time, and stop
    #[arg(long)]
    quick: bool,
}

pub(crate) fn run(args: &Cost, printer: &Printer) -> anyhow::Result<()> {
    let (mode, prices) = (Mode::named(&args.mode)?, Prices::of(&args.provider)?);
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
    let bill = if args.quick {
        played(&short, printer)?
    } else {
        if workload.tasks() >= ESTIMATED_FROM && short.days < workload.days {
            tell_estimate(&short, &prices, args.days, printer)?;
        }
        played(&workload, printer)?
    };
    if bill.tasks == 0 && args.tasks_per_day > 0 {
        return Err(Error::invalid("in so short a time no task is done; take more days").into());
    }
    if printer.is_json() {
        line(as_json(args, &bill, &prices));
    } else {
        print(args, mode, &bill, &prices, printer);
    }
    Ok(())
}

/// Says what it will come to, long before that is known exactly.
fn tell_estimate(short: &Workload, prices: &Prices, days: f64, printer: &Printer) -> anyhow::Result<()> {
    let estimate = detached(|| short.play(1, |_| ()))?;
    printer.note(&format!(
        "about US$ {:.0} a month, estimated from 30 minutes; simulating {days} days (--quick stops here)",
        estimate.per_month(prices)
    ));
    Ok(())
}

/// The bill of a workload. Shows a bar on a terminal, and a line for every tenth elsewhere.
fn played(workload: &Workload, printer: &Printer) -> leasehold_core::Result<Bill> {
    let bar = printer.bar(100, "% of the time simulated");
    // At once, not after the first step.
    bar.tick();
    let has_bar = !bar.is_hidden();
    let mut percent = 0u64;
    let bill = detached(|| {
        workload.play(1, |_| {
            percent += 1;
            bar.inc(1);
            if !has_bar && percent.is_multiple_of(10) && workload.tasks() >= ESTIMATED_FROM {
                printer.note(&format!("simulated {percent} %"));
            }
        })
    });
    bar.finish_and_clear();
    bill
}

/// On a thread of its own: here, inside a task, the runtime would make the played tasks give way to others that never come.
fn detached<T: Send>(play: impl FnOnce() -> leasehold_core::Result<T> + Send) -> leasehold_core::Result<T> {
    std::thread::scope(|scope| {
        let played = scope.spawn(play).join();
        played.unwrap_or_else(|_| Err(Error::new(Kind::Internal, "the simulation broke off")))
    })
}

fn purposes(bill: &Bill) -> BTreeSet<Purpose> {
    bill.requests.keys().map(|(purpose, _)| *purpose).collect()
}

fn of(bill: &Bill, purpose: Purpose, verb: Verb) -> u64 {
    bill.requests.get(&(purpose, verb)).copied().unwrap_or(0)
}

fn monthly(bill: &Bill, purpose: Purpose, prices: &Prices) -> f64 {
    let one_run: f64 = VERBS.iter().map(|verb| prices.cost(*verb, of(bill, purpose, *verb))).sum();
    one_run / bill.days * 30.0
}

#[expect(clippy::cast_precision_loss, reason = "tasks are counted in millions")]
fn per_million(bill: &Bill, prices: &Prices) -> f64 {
    bill.per_month(prices) * bill.days / 30.0 / bill.tasks.max(1) as f64 * 1e6
}

fn as_json(args: &Cost, bill: &Bill, prices: &Prices) -> serde_json::Value {
    let rows = purposes(bill).into_iter().map(|purpose| {
        let [put, get, list, delete] = VERBS.map(|verb| of(bill, purpose, verb));
        json!({"purpose": purpose, "put": put, "get": get, "list": list, "delete": delete,
               "usd_per_month": monthly(bill, purpose, prices)})
    });
    json!({
        "mode": args.mode, "provider": prices.provider, "workers": args.workers, "tasks": bill.tasks,
        "days": bill.days, "is_estimate": args.quick, "requests": rows.collect::<Vec<_>>(),
        "usd_per_month": bill.per_month(prices), "usd_per_million_tasks": per_million(bill, prices),
    })
}

fn print(args: &Cost, mode: Mode, bill: &Bill, prices: &Prices, printer: &Printer) {
    let table = Table::default().left("FOR", 0).right("PUT", 9).right("GET", 9).right("LIST", 9);
    let table = table.right("DELETE", 9).right("US$ A MONTH", 0);
    let mut rows: Vec<Vec<Cell>> = Vec::new();
    for purpose in purposes(bill) {
        let mut row = vec![Cell::from(purpose.name())];
        row.extend(VERBS.map(|verb| Cell::from(of(bill, purpose, verb))));
        row.push(format!("{:.2}", monthly(bill, purpose, prices)).into());
        rows.push(row);
    }
    let mut sum = vec![Cell::new(Style::Strong, "all")];
    sum.extend(VERBS.map(|verb| Cell::new(Style::Strong, bill.verb(verb))));
    sum.push(Cell::new(Style::Strong, format!("{:.2}", bill.per_month(prices))));
    rows.push(sum);
    table.rows(&rows, printer);
    line(format_args!(
        "\n{} tasks in {:.2} days by {} workers, {}: US$ {:.2} for a million tasks ({} prices)",
        bill.tasks,
        bill.days,
        args.workers,
        args.mode,
        per_million(bill, prices),
        prices.provider
    ));
    if (args.workers, args.tasks_per_day, args.provider.as_str()) == (50, 100_000, "aws") {
        line(format_args!(
            "estimated before it was built: US$ {:.0} a month; docs/cost.md says why it differs",
            mode.estimate()
        ));
    }
}
