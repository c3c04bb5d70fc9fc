//! Command line of the simulator: replays a seed, runs many seeds, and minimises a failure.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "the command line of the simulator prints")]

use anyhow::bail;
use clap::{Parser, Subcommand};
use leasehold_sim::args::PlayArgs;
use leasehold_sim::shrink::{Shrunk, shrink};
use leasehold_sim::{Failed, Options, Report, Scenario, mutants};
use leasehold_store::{Host, SystemHost};
use std::ops::Range;
use std::process::ExitCode;
use std::time::Duration;

/// Simulate a whole cluster in one thread, in virtual time, from one seed
#[derive(Debug, Parser)]
#[command(name = "leasehold-sim")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Replay one seed and show its trace
    Replay {
        /// Seed of the failure
        #[arg(long)]
        seed: u64,
        #[command(flatten)]
        play: PlayArgs,
        /// Print the whole trace, not only the last lines
        #[arg(long)]
        full: bool,
    },
    /// Minimise a failing seed and show the trace of the smallest failure
    Shrink {
        /// Seed of the failure
        #[arg(long)]
        seed: u64,
        #[command(flatten)]
        play: PlayArgs,
    },
    /// Run a range of seeds
    Run {
        /// Range without its end, such as 0..1000
        #[arg(long, value_name = "A..B", value_parser = range)]
        seeds: Range<u64>,
        #[command(flatten)]
        play: PlayArgs,
    },
    /// Find the first seed at which each mutant of a scenario is detected (needs the feature `mutants`)
    Mutants {
        /// Scenario of the mutants [default: all]
        #[arg(long, value_parser = leasehold_sim::args::scenario)]
        scenario: Option<Scenario>,
        /// Range without its end, such as 0..1000
        #[arg(long, value_name = "A..B", default_value = "0..400", value_parser = range)]
        seeds: Range<u64>,
    },
    /// Run fresh seeds for a number of minutes
    Soak {
        /// Minutes to run
        #[arg(long)]
        minutes: u64,
        #[command(flatten)]
        play: PlayArgs,
    },
}

fn main() -> ExitCode {
    match run(Args::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Replay { seed, play, full } => replay(seed, &play, full),
        Command::Shrink { seed, play } => minimise(seed, &play),
        Command::Run { seeds, play } => play_all(seeds, &play, None),
        Command::Mutants { scenario, seeds } => find_mutants(scenario, &seeds),
        Command::Soak { minutes, play } => {
            let first = SystemHost.random() >> 16;
            println!("fresh seeds, starting at {first}");
            play_all(first..u64::MAX, &play, Some(Duration::from_mins(minutes)))
        }
    }
}

fn range(text: &str) -> Result<Range<u64>, String> {
    let parsed = text.split_once("..").and_then(|(first, end)| Some(first.parse().ok()?..end.parse().ok()?));
    parsed.ok_or_else(|| format!("`{text}` is not a range such as 0..1000"))
}

/// Prints the first seed that detects each mutant. A change of the requests to the store moves them.
fn find_mutants(scenario: Option<Scenario>, seeds: &Range<u64>) -> anyhow::Result<()> {
    let mut undetected = Vec::new();
    for info in mutants::ALL.iter().filter(|info| scenario.is_none_or(|scenario| scenario == info.scenario)) {
        let name = info.mutant.name();
        let from_first = info.first_seed.max(seeds.start)..seeds.end;
        let detected = match info.detect(from_first).map_err(anyhow::Error::msg)? {
            None => info.detect(seeds.clone()).map_err(anyhow::Error::msg)?,
            detected => detected,
        };
        match detected {
            Some(failed) => println!("{name} {}", failed.seed),
            None => undetected.push(name),
        }
    }
    if undetected.is_empty() { Ok(()) } else { bail!("not detected in {seeds:?}: {}", undetected.join(", ")) }
}

fn replay(seed: u64, play: &PlayArgs, full: bool) -> anyhow::Result<()> {
    let report = match play.scenario.play(seed, &Options { full, ..play.options() }) {
        Ok(report) => report,
        Err(failed) => {
            if full {
                failed.tail.iter().for_each(|line| println!("{line}"));
            }
            bail!("\n{failed}");
        }
    };
    report.trace.iter().for_each(|line| println!("{line}"));
    println!("{}", describe_report(seed, &report));
    Ok(())
}

fn minimise(seed: u64, play: &PlayArgs) -> anyhow::Result<()> {
    let Some(Shrunk { before, after, plays }) = shrink(play.scenario, seed, &play.options()) else {
        bail!("seed {seed} does not fail");
    };
    after.tail.iter().for_each(|line| println!("{line}"));
    println!("\n{}", after.message);
    println!("before: {}\nafter:  {}, found in {plays} runs", describe_size(&before), describe_size(&after));
    println!("replay: {}", after.replay());
    Ok(())
}

fn describe_size(failed: &Failed) -> String {
    let (size, at) = (&failed.size, failed.at.as_secs());
    let (faults, actors, steps) = (size.faults, size.actors.len(), size.steps);
    format!("{faults} faults, {actors} actors, {steps} steps, {at} s")
}

/// Runs seeds until the range or the time is exhausted. Continues after a failure and fails at the end.
fn play_all(seeds: Range<u64>, play: &PlayArgs, time: Option<Duration>) -> anyhow::Result<()> {
    let (mut played, mut steps, mut took, mut bad) = (0_u32, 0_u64, Duration::ZERO, Vec::new());
    let (started, options) = (SystemHost.instant(), play.options());
    for seed in seeds {
        if time.is_some_and(|time| SystemHost.instant().since(started) >= time) {
            break;
        }
        played += 1;
        match play.scenario.play(seed, &options) {
            Ok(report) => {
                steps += report.steps;
                took += report.took;
            }
            Err(failed) => {
                println!("{failed}\n");
                bad.push(seed);
            }
        }
    }
    let seconds = SystemHost.instant().since(started).as_secs_f64();
    let hours = took.as_secs() / 3_600;
    println!("{played} seeds, {steps} steps and {hours} virtual hours in {seconds:.1} s");
    if bad.is_empty() { Ok(()) } else { bail!("{} seeds failed: {bad:?}", bad.len()) }
}

fn describe_report(seed: u64, report: &Report) -> String {
    let Report { summary, steps, took, trace_hash, trace_count, .. } = report;
    format!(
        "seed {seed}: {summary}; {steps} steps, {took:?}, {trace_count} lines with hash {trace_hash:016x}"
    )
}
