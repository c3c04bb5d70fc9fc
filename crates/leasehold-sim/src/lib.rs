//! A world that can be replayed: a whole cluster in one thread, in virtual time, from one seed.
//!
//! The code under test is the real one. It talks to the world only through the seams [`Store`] and [`Host`] of
//! `leasehold-store`, and both are simulated here; a failing seed fails again, line by line.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`world`] | ties it together: processes, actors, checks after each change, `run_until` |
//! | [`executor`], [`sleep`] | tasks in processes, polled in an order that chance decides; virtual time |
//! | [`host`] | machines with wrong clocks, and what a process gets from one |
//! | [`bucket`] | the truth: objects written on condition, the store's time |
//! | `network`, [`store`] | the way there and back, and the bucket as one process sees it |
//! | [`faults`], `trouble` | what goes wrong with requests; with processes and clocks |
//! | [`trace`], [`alarm`], [`failed`] | what happened, what was wrong, how to see it again |
//! | [`chance`] | one seed, one sequence, for ever |
//! | [`mutants`], [`shrink`] | rules broken on purpose, which must be noticed; a failure made small |
//! | [`cost`] | the bill: the same code for a day, every request counted |
//! | [`scenario`], [`counters`], [`queue`], [`shards`], [`direct`], [`artifacts`], [`outpost`] | what is played in a world |
//! | `model` | index and lease as models, exhausted by a checker (tests only) |
//!
//! What runs here must draw no chance of its own: `tokio::select!` only with `biased;`, `futures::select_biased!`
//! rather than `select!`, no iteration over a `HashMap`.
//!
//! [`Store`]: leasehold_store::Store
//! [`Host`]: leasehold_store::Host

pub mod alarm;
pub mod args;
pub mod artifacts;
pub mod bucket;
pub mod chance;
pub mod cost;
pub mod counters;
pub mod direct;
pub mod executor;
pub mod failed;
pub mod faults;
pub mod host;
mod leases;
mod links;
#[cfg(test)]
mod model;
pub mod mutants;
mod network;
pub mod outpost;
pub mod queue;
pub mod scenario;
pub mod shards;
pub mod shrink;
pub mod sleep;
pub mod store;
pub mod trace;
mod trouble;
pub mod world;

pub use alarm::Alarm;
pub use bucket::{Change, Objects, SimBucket, Stored};
pub use chance::Chance;
pub use executor::{Executor, ProcessId};
pub use failed::{Failed, Size};
pub use faults::{Faults, Troubles};
pub use host::SimHost;
pub use mutants::Mutant;
pub use scenario::{Cut, Options, Report, Scenario};
pub use store::SimStore;
pub use trace::Trace;
pub use world::World;

/// The seeds that a test plays in this lane of `./test`.
#[cfg(test)]
fn seeds(all: std::ops::Range<u64>) -> impl Iterator<Item = u64> {
    leasehold_store::testing::Lane::current().seeds(all)
}
