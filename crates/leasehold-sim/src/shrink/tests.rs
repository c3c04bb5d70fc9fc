use clap::Parser;

use super::*;
use crate::args::PlayArgs;
use crate::mutants::{BrokenRule, Mutant};

#[derive(Parser)]
struct Line {
    #[arg(long)]
    seed: u64,
    #[command(flatten)]
    play: PlayArgs,
}

/// Runs the replay command of a failure.
fn replayed(failed: &Failed) -> Failed {
    let command = failed.replay();
    let (_, arguments) = command.split_once(" -- ").unwrap();
    let line = Line::parse_from(arguments.split(' '));
    line.play.scenario.play(line.seed, &line.play.options()).unwrap_err()
}

#[test]
fn a_failure_is_minimised_and_stays_the_same() {
    let mutant = Some(Mutant::Store(BrokenRule::NoLeaseEntry));
    let options = Options { mutant, ..Options::default() };
    let shrunk = shrink(Scenario::Queue, 0, &options).unwrap();
    let (before, after) = (&shrunk.before, &shrunk.after);
    assert_eq!(after.kind(), before.kind());
    let sizes =
        [&before, &after].map(|failed| (failed.size.faults, failed.size.actors.len(), failed.size.steps));
    assert!(sizes[1].0 < sizes[0].0 && sizes[1].1 < sizes[0].1 && sizes[1].2 < sizes[0].2, "{sizes:?}");
    assert_eq!(shrink(Scenario::Queue, 0, &options).unwrap().after.replay(), after.replay());
    let again = replayed(after);
    assert_eq!((again.message, again.at, again.size), (after.message.clone(), after.at, after.size.clone()));
}
