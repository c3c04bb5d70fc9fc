//! Runs handlers.
//!
//! ```text
//!   poll ──▶ claim ──▶ execute ──▶ settle          one slot per task under way
//!                         │
//!                       renew                      on a thread that no handler can starve
//!
//!   duties: recover lost claims, sweep, expire     every worker does them for the shards it serves
//! ```
//!
//! | module | what it does |
//! | --- | --- |
//! | [`handler`] | what runs a task, and what it is given |
//! | [`options`] | how a worker behaves |
//! | [`shutdown`] | stopping in two stages: drain, abort |
//! | [`crew`] | who runs tasks, wherever they come from |
//! | [`hold`] | one run, seen from outside |
//! | [`execute`] | one task from claim to settlement |
//! | [`staging`] | artifacts, before and after the handler |
//! | [`renew`] | keeps what is held |
//! | [`mod@poll`] | finds work and fills the slots |
//! | [`remember`] | entries that are not to be looked at again before a certain moment |
//! | `shards` | divides the shards with other workers |
//! | `served` | which shards are served |
//! | `turn` | which of many equal workers does a duty |
//! | [`duties`] | what the monitor does |
//! | [`mod@run`] | a worker from start to end |

pub mod crew;
pub mod duties;
pub mod execute;
pub mod handler;
pub mod hold;
mod inbox;
pub mod options;
pub mod poll;
pub mod remember;
pub mod renew;
pub mod run;
mod served;
mod shards;
pub mod shutdown;
pub mod staging;
mod turn;

pub use crew::{Crew, Present, Provider};
pub use handler::{Context, TaskError};
pub use hold::{Hold, Stop};
pub use options::{
    CLAIM_LEASE_MIN, InboxLease, Polling, RENEWALS_MIN, RENEWED_LEASE_TTL_MIN, ShardLeasing, WorkerOptions,
};
pub use run::{Counts, DrainWait, Monitor, Worker};
pub use shutdown::{Shutdown, Stage};
pub use staging::{Brought, Carrier, Tell};
