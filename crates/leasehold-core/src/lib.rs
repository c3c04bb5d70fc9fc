//! The rules of Leasehold, without I/O, clock or randomness.
//!
//! Everything here is a value or a pure function, so that workers, the command line, the simulator and the
//! model checker run the same code.
//!
//! | module | contents |
//! | --- | --- |
//! | [`error`] | error type and its kinds |
//! | [`ids`] | ids and names of tasks, workers, leases, writes and artifacts |
//! | [`keys`] | every path in the store and its writers |
//! | [`lease`] | lease: take, renew, release, expire |
//! | [`limits`] | every limit, with its reason (promise P10) |
//! | [`moved`] | forwarding marker at the old key of a task, written when the number of shards changes |
//! | [`new_task`] | new task as submitted by a producer, with validation |
//! | [`outpost`] | offline-first folder queue: its files, and the table that syncs a node with the bucket |
//! | [`piece`] | large files split into pieces |
//! | [`record`] | JSON record of a task |
//! | [`retry`] | backoff between attempts |
//! | [`shard`] | shards of a queue |
//! | [`mod@step`] | state machine: the one function that decides every change of a task |
//! | [`task`] | task, its states and its history |
//! | [`time`] | store time, with "now" as an interval (promise P6) |
//! | [`unread`] | placeholder for objects that are too large to read |

pub mod error;
pub mod ids;
pub mod keys;
pub mod lease;
pub mod limits;
pub mod moved;
pub mod new_task;
pub mod outpost;
pub mod piece;
pub mod record;
pub mod retry;
pub mod shard;
pub mod step;
pub mod task;
#[cfg(test)]
mod testing;
pub mod time;
pub mod unread;

pub use error::{Error, Kind, Reason, Result};
pub use ids::{
    ArtifactId, Artifacts, HexName, LeaseId, Name, TaskId, TaskIdPrefix, TaskType, WorkerId, WriteId,
};
pub use keys::{Entry, Index, IndexLocation};
pub use lease::{Holder, Lease};
pub use new_task::NewTask;
pub use retry::RetryPolicy;
pub use shard::{Shard, ShardLen, ShardRange};
pub use step::{Event, Order, Rejected, Step, StepContext, step};
pub use task::{Priority, State, Status, Task};
pub use time::{Minute, Now, StoreTime};
