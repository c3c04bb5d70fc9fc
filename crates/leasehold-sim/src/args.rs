//! A world on the command line: everything that a failure names, so that one line plays it again.

use clap::Args;
use std::time::Duration;

use crate::faults::Faults;
use crate::mutants::Mutant;
use crate::scenario::{Cut, Options, Scenario};

/// What is played, and what goes wrong.
#[derive(Debug, Clone, Args)]
pub struct PlayArgs {
    /// What to play: counters, queue, bell, purge, shards, direct, artifacts or outpost
    #[arg(long, default_value = "counters", value_parser = scenario)]
    pub scenario: Scenario,
    /// What goes wrong: wild, mild or none, with what differs, like wild,late=0; what is usual there, if not given
    #[arg(long)]
    pub faults: Option<Faults>,
    /// A rule to break, by its name in docs/protocol/mutants.md
    #[arg(long, value_parser = mutant)]
    pub mutant: Option<Mutant>,
    /// Stop all faults after so many seconds
    #[arg(long, value_name = "SECONDS")]
    pub faults_for: Option<u64>,
    /// Of the faults only those with these numbers, or - for none
    #[arg(long, value_name = "N,N", value_parser = numbers)]
    pub only: Option<Numbers>,
    /// Submit only so many tasks
    #[arg(long)]
    pub tasks: Option<u64>,
    /// Leave these actors out
    #[arg(long, value_name = "NAME,NAME", value_delimiter = ',')]
    pub without: Vec<String>,
}

/// Numbers of faults.
#[derive(Debug, Clone)]
pub struct Numbers(Vec<u64>);

impl PlayArgs {
    /// The same, as a scenario takes it.
    #[must_use]
    pub fn options(&self) -> Options {
        let cut = Cut {
            faults_for: self.faults_for.map(Duration::from_secs),
            only: self.only.clone().map(|Numbers(numbers)| numbers.into_iter().collect()),
            without: self.without.iter().cloned().collect(),
            tasks: self.tasks,
        };
        let faults = self.faults.clone().unwrap_or_else(|| self.scenario.faults());
        Options { faults, cut, mutant: self.mutant, ..Options::default() }
    }
}

fn scenario(name: &str) -> Result<Scenario, String> {
    let known = Scenario::ALL.map(Scenario::name).join(", ");
    Scenario::named(name).ok_or_else(|| format!("no scenario `{name}`; there are: {known}"))
}

fn mutant(name: &str) -> Result<Mutant, String> {
    Mutant::named(name).ok_or_else(|| format!("no mutant `{name}`; they are in docs/protocol/mutants.md"))
}

fn numbers(text: &str) -> Result<Numbers, String> {
    let numbers = text.split(',').filter(|number| *number != "-").map(str::parse);
    numbers.collect::<Result<_, _>>().map(Numbers).map_err(|_| format!("`{text}` is not like 3,17"))
}
