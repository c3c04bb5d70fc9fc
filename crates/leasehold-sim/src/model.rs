//! The protocols as models, every one of whose states is visited: what chance may miss, exhaustion finds.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `lease` | the lease: take, renew, release, take-over |
//! | `index` | the revisioned index: a task, its entries, and everyone who writes them |
//! | `book` | `docs/protocol/models.md`: what was exhausted, and how each rule is missed |
//!
//! A model decides by the very functions that the queue decides by, [`leasehold_core::step()`] and
//! [`leasehold_core::Lease`]; what it adds is the world around them: who has read what, which request is under way,
//! whose answer was lost, who has crashed. A rule can be left out, and then the checker must find out why it is there.

mod book;
mod index;
mod lease;

use stateright::{Checker, Expectation, HasDiscoveries, Model, Path};
use std::collections::HashMap;
use std::fmt::Debug;
use std::hash::Hash;

/// A model all of whose states were visited.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Exhausted {
    states: usize,
    depth: usize,
}

/// The way to a state that must not be.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Counterexample {
    property: &'static str,
    steps: Vec<String>,
}

/// A model that tells its steps in words.
trait Told:
    Model<
        State: Clone + Debug + Hash + PartialEq + Send + Sync,
        Action: Clone + Debug + PartialEq + Send + Sync,
    > + Clone
    + Send
    + Sync
    + 'static
{
    /// What happens when `action` is taken in this state.
    fn tell(&self, state: &Self::State, action: &Self::Action) -> String;
}

/// Visits every state. One thread, so that the depth is the same in every run.
fn exhaust<M: Told>(model: &M) -> Result<Exhausted, Counterexample> {
    let checker = model.clone().checker().finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let found = checker.discoveries();
    if let Some(first) = refutation(model, found.clone()) {
        return Err(shortest(model, first));
    }
    for property in
        model.properties().iter().filter(|property| property.expectation == Expectation::Sometimes)
    {
        assert!(found.contains_key(property.name), "it never happens that {}", property.name);
    }
    Ok(Exhausted { states: checker.unique_state_count(), depth: checker.max_depth() })
}

type Paths<M> = HashMap<&'static str, Path<<M as Model>::State, <M as Model>::Action>>;

/// The shortest way to break a property, of those that were found.
fn refutation<M: Told>(model: &M, found: Paths<M>) -> Option<Counterexample> {
    let is_failure = |name| model.property(name).expectation.discovery_is_failure();
    let failures = found.into_iter().filter(|(name, _)| is_failure(*name));
    let told = failures.map(|(property, path)| {
        let steps = path.into_vec().into_iter();
        let steps = steps.filter_map(|(state, action)| Some(model.tell(&state, &action?))).collect();
        Counterexample { property, steps }
    });
    told.min_by_key(|refutation| (refutation.steps.len(), refutation.property))
}

/// The checker keeps the last counterexample of those that it has met in one go; so it is asked for shorter ones until
/// there is none.
fn shortest<M: Told>(model: &M, mut known: Counterexample) -> Counterexample {
    loop {
        let checker = model.clone().checker().finish_when(HasDiscoveries::AnyFailures);
        // The first state has depth one.
        let checker = checker.target_max_depth(known.steps.len() + 1).spawn_bfs().join();
        match refutation(model, checker.discoveries()) {
            Some(shorter) if shorter.steps.len() < known.steps.len() => known = shorter,
            _ => return known,
        }
    }
}
