//! Workers: take claimed tasks from a source, run their handlers and record the results.
//!
//! The engine of a worker runs tasks in slots and knows no layout. A [`TaskSource`] finds and claims tasks for the free
//! slots. While a handler runs, its claim is renewed from a thread of its own. When the handler has stopped, the result
//! is recorded and the claim ends. A worker that loses its claim stops the handler and writes nothing more. Workers
//! also do the maintenance duties of their layout, so no separate process is needed.
//!
//! ```text
//!   source ── next ──▶ engine ──▶ finish           one slot per running task
//!                         │
//!                       renew                      on a thread that handlers cannot block
//!
//!   duties of the source                           recover expired claims, clean up the index, …
//! ```
//!
//! | module | purpose |
//! | --- | --- |
//! | [`handler`] | handlers, their context and their errors |
//! | [`options`] | configuration of a worker |
//! | [`worker`] | a worker: handlers, source, view, counts |
//! | [`shutdown`] | stopping in two stages: drain, abort |
//! | `engine` | runs the tasks of a source in slots, from claim to settlement; the loop of maintenance duties |
//! | `renew` | renews claims |
//! | `runner` | runs a handler until it ends or has to stop |
//! | `run_handle` | handle of one run: its claim, stopping it, its progress |
//! | [`staging`] | artifacts, before and after the handler |
//! | `objects` | the source of tasks over a queue in the layout `objects` |
//!
//! [`TaskSource`]: leasehold_queue::source::TaskSource

mod engine;
pub mod handler;
mod objects;
pub mod options;
mod renew;
mod run_handle;
mod runner;
pub mod shutdown;
pub mod staging;
pub mod worker;

pub use handler::{Context, TaskError};
pub use leasehold_core::scan::Polling;
pub use leasehold_queue::source::DrainWait;
pub use options::{
    CLAIM_LEASE_MIN, InboxLeaseOptions, RENEWALS_MIN, RENEWED_LEASE_TTL_MIN, ShardLeasing, WorkerOptions,
};
pub use shutdown::{Shutdown, Stage};
pub use staging::{ArtifactIo, ProgressFn, StagedFile};
pub use worker::{Counts, Worker, WorkerView};
