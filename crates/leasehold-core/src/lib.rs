//! The rules of Leasehold, without I/O, without a clock and without chance.
//!
//! Everything here is a value or a pure function, so that workers, the command line, the simulator and the
//! model checker decide by the same code.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`error`] | the one error type and its few kinds |
//! | [`ids`] | random names: of writes, of processes |
//! | [`keys`] | every path in the store, and who may write it |
//! | [`lease`] | what one holder has for a while, and when it changes hands |
//! | [`limits`] | every bound, with its reason (promise P10) |
//! | [`moved`] | the mark that a task leaves where it was when the number of shards changes |
//! | [`new_task`] | what a producer asks for, checked |
//! | [`outpost`] | the offline-first folder queue: its files, and the table by which a node and the bucket agree |
//! | [`piece`] | large files in pieces |
//! | [`record`] | how a task is written down |
//! | [`retry`] | when a failed task runs again |
//! | [`shard`] | the parts into which a queue is divided |
//! | [`mod@step`] | the one function that decides every change of a task |
//! | [`task`] | a task, its states, its history |
//! | [`time`] | the store's time, and "now" as an interval (promise P6) |
//! | [`unread`] | what stands for an object that is too large to be read |

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

pub use error::{Error, Kind, Matter, Result};
pub use ids::{
    ArtifactId, Artifacts, HexName, LeaseId, Name, TaskId, TaskIdPrefix, TaskType, WorkerId, WriteId,
};
pub use keys::{Entry, Index, Where};
pub use lease::{Holder, Lease};
pub use new_task::NewTask;
pub use retry::RetryPolicy;
pub use shard::{Shard, ShardLen, ShardRange};
pub use step::{Act, Event, Order, Rejected, Step, step};
pub use task::{Priority, State, Status, Task};
pub use time::{Minute, Now, StoreTime};
