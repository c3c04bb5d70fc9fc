//! The rules of Leasehold, without I/O, clock or randomness.
//!
//! Everything here is a value or a pure function, so that workers, the command line, the simulator and the
//! model checker run the same code.
//!
//! | module | contents |
//! | --- | --- |
//! | [`error`] | error type and its kinds |
//! | [`filter`] | filter for a list of tasks |
//! | [`forwarding`] | forwarding marker at the old key of a task, written when the number of shards changes |
//! | [`ids`] | ids and names of tasks, workers, leases, writes and artifacts |
//! | [`journal`] | second layout of a queue: many decisions in one write |
//! | [`keys`] | every path in the store and its writers |
//! | [`lease`] | lease: take, renew, release, expire |
//! | [`limits`] | every limit, with its reason (promise P10) |
//! | [`new_task`] | new task as submitted by a producer, with validation |
//! | [`outpost`] | offline-first folder queue: its files, and the table that syncs a node with the bucket |
//! | [`oversize`] | placeholder for objects that are too large to read |
//! | [`piece`] | large files split into pieces |
//! | [`record`] | JSON record of a task |
//! | [`retention`] | final tasks that are removed after a while |
//! | [`retry`] | backoff between attempts |
//! | [`scan`] | when a worker scans the index, which part of it, and which entries it skips |
//! | [`settlement`] | end of a run, as its worker reports it |
//! | [`shard`] | shards of a queue |
//! | [`shard_share`] | share of a worker in the shards |
//! | [`mod@step`] | state machine: the one function that decides every change of a task |
//! | [`task`] | task, its states and its history |
//! | [`time`] | store time, with "now" as an interval (promise P6) |
//! | [`unique`] | idempotency keys |

pub mod error;
pub mod filter;
pub mod forwarding;
pub mod ids;
pub mod journal;
pub mod keys;
pub mod lease;
pub mod limits;
pub mod new_task;
pub mod outpost;
pub mod oversize;
pub mod piece;
mod random;
pub mod record;
pub mod retention;
pub mod retry;
pub mod scan;
pub mod settlement;
pub mod shard;
pub mod shard_share;
pub mod step;
pub mod task;
#[cfg(test)]
mod testing;
pub mod time;
pub mod unique;

pub use error::{Error, Kind, Reason, Result};
pub use ids::{
    ArtifactId, Artifacts, HexName, LeaseId, Name, TaskId, TaskIdPrefix, TaskType, WorkerId, WriteId,
};
pub use keys::{Entry, Index, IndexLocation};
pub use lease::{Holder, Lease};
pub use new_task::NewTask;
pub use retry::RetryPolicy;
pub use shard::{Shard, ShardLen, ShardRange};
pub use step::{Event, Rejected, Step, StepContext, WriteOrder, step};
pub use task::{Priority, State, Status, Task};
pub use time::{Minute, Now, StoreTime};
