//! Models of the protocols for a model checker, which visits every state and so finds what random runs may miss.
//!
//! | module | content |
//! | --- | --- |
//! | `lease` | the lease: take, renew, release, take-over |
//! | `index` | the revisioned index: a task, its entries, and every process that writes them |
//! | `journal` | the journal: log and mail in a bucket, claims, log in a folder |
//! | `document` | `docs/protocol/models.md`: sizes of the visited models, and a counterexample for each omitted rule |
//!
//! A model calls the same functions as the queue, [`leasehold_core::step()`] and [`leasehold_core::Lease`]. It adds the
//! environment: which process has read what, which request is in flight, which answer was lost, which process has
//! crashed. Each rule can be left out, and then the checker must find a counterexample.

mod document;
mod index;
mod journal;
mod lease;

use stateright::{Checker, Expectation, HasDiscoveries, Model, Path};
use std::collections::HashMap;
use std::fmt::Debug;
use std::hash::Hash;

/// Fate of one request in a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum RequestFate {
    Answered,
    AnswerLost,
    /// The request is carried out later.
    Late,
}

/// Size of a model whose states were all visited without a violation.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Exhausted {
    states: usize,
    depth: usize,
}

/// Steps to a state that violates a property.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Counterexample {
    property: &'static str,
    steps: Vec<String>,
}

/// A model that describes its steps in words.
trait DescribeAction:
    Model<
        State: Clone + Debug + Hash + PartialEq + Send + Sync,
        Action: Clone + Debug + PartialEq + Send + Sync,
    > + Clone
    + Send
    + Sync
    + 'static
{
    /// Describes `action` when it is taken in this state.
    fn describe(&self, state: &Self::State, action: &Self::Action) -> String;
}

/// Visits every state, on one thread so that the depth is the same in every run.
fn exhaust<M: DescribeAction>(model: &M) -> Result<Exhausted, Counterexample> {
    let checker = model.clone().checker().finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let found = checker.discoveries();
    if let Some(first) = refutation(model, found.clone()) {
        return Err(shortest(model, first));
    }
    for property in
        model.properties().iter().filter(|property| property.expectation == Expectation::Sometimes)
    {
        assert!(found.contains_key(property.name), "never reached: {}", property.name);
    }
    Ok(Exhausted { states: checker.unique_state_count(), depth: checker.max_depth() })
}

type Paths<M> = HashMap<&'static str, Path<<M as Model>::State, <M as Model>::Action>>;

/// Returns the shortest violation among the discoveries.
fn refutation<M: DescribeAction>(model: &M, found: Paths<M>) -> Option<Counterexample> {
    let is_failure = |name| model.property(name).expectation.discovery_is_failure();
    let failures = found.into_iter().filter(|(name, _)| is_failure(*name));
    let violations = failures.map(|(property, path)| {
        let steps = path.into_vec().into_iter();
        let steps = steps.filter_map(|(state, action)| Some(model.describe(&state, &action?))).collect();
        Counterexample { property, steps }
    });
    violations.min_by_key(|refutation| (refutation.steps.len(), refutation.property))
}

/// Searches for shorter counterexamples until there is none: the checker keeps the last one of a batch, not the
/// shortest.
fn shortest<M: DescribeAction>(model: &M, mut known: Counterexample) -> Counterexample {
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
