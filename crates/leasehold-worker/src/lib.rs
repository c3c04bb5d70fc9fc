//! Workers: find due tasks, claim them, run their handlers and record the results.
//!
//! A worker polls the index of a queue, claims a task per free slot, and runs its handler. While the handler runs,
//! the claim is renewed from a thread of its own. When the handler has stopped, the result is recorded and the claim
//! ends. A worker that loses its claim stops the handler and writes nothing more. Workers also do the maintenance
//! duties of the queue, so no separate process is needed.
//!
//! ```text
//!   poll ──▶ claim ──▶ execute ──▶ settle          one slot per running task
//!                         │
//!                       renew                      on a thread that handlers cannot block
//!
//!   duties: recover lost claims, sweep, expire     by every worker, for the shards that it serves
//! ```
//!
//! | module | purpose |
//! | --- | --- |
//! | [`handler`] | handlers, their context and their errors |
//! | [`options`] | configuration of a worker |
//! | [`shutdown`] | stopping in two stages: drain, abort |
//! | [`runner`] | runs handlers, whatever the source of the tasks |
//! | [`run_handle`] | handle of one run: stop it, read its progress |
//! | [`execute`] | one task from claim to settlement |
//! | [`staging`] | artifacts, before and after the handler |
//! | [`renew`] | renews claims |
//! | [`mod@poll`] | finds work and fills the slots |
//! | [`backoff`] | entries that are not checked again before a certain time |
//! | `shards` | shard leasing: divides the shards among workers |
//! | `shard_assignment` | the shards that a worker serves |
//! | `duty_lease` | chooses one worker for a duty |
//! | [`duties`] | maintenance duties |
//! | [`mod@run`] | a worker from start to stop |

pub mod backoff;
pub mod duties;
mod duty_lease;
pub mod execute;
pub mod handler;
mod inbox;
pub mod options;
pub mod poll;
pub mod renew;
pub mod run;
pub mod run_handle;
pub mod runner;
mod shard_assignment;
mod shards;
pub mod shutdown;
pub mod staging;

pub use handler::{Context, TaskError};
pub use options::{
    CLAIM_LEASE_MIN, InboxLease, Polling, RENEWALS_MIN, RENEWED_LEASE_TTL_MIN, ShardLeasing, WorkerOptions,
};
pub use run::{Counts, DrainWait, Monitor, Worker};
pub use run_handle::{RunHandle, Stop};
pub use runner::{NowFn, TaskRunner, TaskSource};
pub use shutdown::{Shutdown, Stage};
pub use staging::{ArtifactIo, ProgressFn, StagedFile};
