//! Deterministic simulator: a whole cluster in one thread, in virtual time, from one seed.
//!
//! The code under test is the real one. It reaches the world only through the traits [`Store`] and [`Host`]
//! of `leasehold-store`, and both are simulated here. A failing seed fails again, line by line.
//!
//! | module | content |
//! | --- | --- |
//! | [`world`] | the whole: processes, actors, checks after each change, `run_until` |
//! | [`executor`], [`sleep`] | tasks in processes, polled in random order; virtual time |
//! | [`host`] | machines with wrong clocks, and the [`Host`] of a process |
//! | [`bucket`] | the bucket's true state: objects, conditional writes, the store's time |
//! | `connections` | lines between processes, delayed, held back and lost |
//! | `network`, [`store`] | requests and answers in transit, and the store of one process |
//! | [`faults`], `process_faults` | faults of requests; crashes, pauses and clock jumps |
//! | [`trace`], [`alarm`], [`failed`] | the log of a run, the first failed check, the replay command |
//! | [`random`] | random numbers that are stable across versions |
//! | [`mutants`], [`shrink`] | rules broken on purpose, which a check must detect; minimising a failure |
//! | [`cost`] | request costs: the same code for a day, every request counted |
//! | [`scenario`], [`counters`], [`queue`], [`shards`], [`direct`], [`artifacts`], [`outpost`], [`journal`] | scenarios |
//! | `model` | index and lease for a model checker (tests only) |
//!
//! Code that runs here must not draw random numbers of its own: use `tokio::select!` only with `biased;` and
//! `futures::select_biased!` instead of `select!`, do not iterate over a `HashMap`, and do not wait for one
//! `tokio::sync::watch` in several futures of one task, which it wakes in random order.
//!
//! [`Store`]: leasehold_store::Store
//! [`Host`]: leasehold_store::Host

pub mod alarm;
pub mod args;
pub mod artifacts;
pub mod bucket;
mod connections;
pub mod cost;
pub mod counters;
pub mod direct;
pub mod executor;
pub mod failed;
pub mod faults;
pub mod host;
pub mod journal;
mod leases;
mod links;
#[cfg(test)]
mod model;
pub mod mutants;
mod network;
pub mod outpost;
mod process_faults;
pub mod queue;
pub mod random;
pub mod scenario;
pub mod shards;
pub mod shrink;
pub mod sleep;
pub mod store;
pub mod trace;
pub mod world;

pub use alarm::Alarm;
pub use bucket::{BucketChange, BucketObjects, SimBucket, StoredObject};
pub use executor::{Executor, ProcessId};
pub use failed::{Failed, Size};
pub use faults::{Faults, ProcessFaults};
pub use host::SimHost;
pub use mutants::Mutant;
pub use random::SimRandom;
pub use scenario::{Omissions, Options, Report, Scenario};
pub use store::SimStore;
pub use trace::Trace;
pub use world::World;

/// Seeds that a test plays in the current lane of `./test`.
#[cfg(test)]
fn seeds(all: std::ops::Range<u64>) -> impl Iterator<Item = u64> {
    leasehold_store::testing::Lane::current().seeds(all)
}
