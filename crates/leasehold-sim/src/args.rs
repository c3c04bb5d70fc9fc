//! Arguments that select a world: everything that a failure names, so that one command replays it.

use clap::Args;
use std::time::Duration;

use crate::faults::Faults;
use crate::mutants::Mutant;
use crate::scenario::{Omissions, Options, Scenario};

/// Scenario, faults and restrictions of a run.
#[derive(Debug, Clone, Args)]
pub struct PlayArgs {
    /// Scenario: counters, queue, bell, purge, shards, direct, artifacts, outpost or journal
    #[arg(long, default_value = "counters", value_parser = scenario)]
    pub scenario: Scenario,
    /// Faults: wild, mild or none, with changes such as wild,late=0 [default: those of the scenario]
    #[arg(long)]
    pub faults: Option<Faults>,
    /// Mutant to enable, by its name in docs/protocol/mutants.md
    #[arg(long, value_parser = mutant)]
    pub mutant: Option<Mutant>,
    /// Stop all faults after this many seconds
    #[arg(long, value_name = "SECONDS")]
    pub faults_for: Option<u64>,
    /// Inject only the faults with these numbers, or - for none
    #[arg(long, value_name = "N,N", value_parser = numbers)]
    pub only: Option<Numbers>,
    /// Submit only this many tasks
    #[arg(long)]
    pub tasks: Option<u64>,
    /// Leave out these actors
    #[arg(long, value_name = "NAME,NAME", value_delimiter = ',')]
    pub without: Vec<String>,
}

/// Numbers of faults.
#[derive(Debug, Clone)]
pub struct Numbers(Vec<u64>);

impl PlayArgs {
    /// Converts the arguments to options of a scenario.
    #[must_use]
    pub fn options(&self) -> Options {
        let omissions = Omissions {
            faults_for: self.faults_for.map(Duration::from_secs),
            only: self.only.clone().map(|Numbers(numbers)| numbers.into_iter().collect()),
            without: self.without.iter().cloned().collect(),
            tasks: self.tasks,
        };
        let faults = self.faults.clone().unwrap_or_else(|| self.scenario.faults());
        Options { faults, omissions, mutant: self.mutant, ..Options::default() }
    }
}

/// Parses the name of a scenario.
pub fn scenario(name: &str) -> Result<Scenario, String> {
    let known = Scenario::ALL.map(Scenario::name).join(", ");
    Scenario::from_name(name).ok_or_else(|| format!("unknown scenario `{name}`; use one of: {known}"))
}

fn mutant(name: &str) -> Result<Mutant, String> {
    Mutant::from_name(name)
        .ok_or_else(|| format!("unknown mutant `{name}`; docs/protocol/mutants.md lists all"))
}

fn numbers(text: &str) -> Result<Numbers, String> {
    let numbers = text.split(',').filter(|number| *number != "-").map(str::parse);
    numbers
        .collect::<Result<_, _>>()
        .map(Numbers)
        .map_err(|_| format!("numbers must be separated by commas, as in 3,17, got `{text}`"))
}
