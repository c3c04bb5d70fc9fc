//! Journal: second layout of a queue, in which one process, the *broker*, keeps the live tasks in memory and writes the
//! decisions for many tasks in one commit.
//!
//! ```text
//!   request ──▶ decide ──▶ records ──▶ apply ──▶ state        the broker
//!                             │
//!                             └──▶ commit ──▶ the log ──▶ apply ──▶ an equal state        the next broker
//! ```
//!
//! A request is decided by [`step`](crate::step()), as in the object layout; only the place of the tasks differs. A
//! [record](JournalRecord) contains the *result* of a decision, so that a replay never decides, and a new rule cannot alter
//! the past. A broker keeps one state, the decided one. It holds every answer until the commit with the newest record that
//! was decided before the answer is confirmed; then no answer shows anything that is not in the log.
//!
//! Renewals and progress of claims are not logged. They are kept beside the task, and two rules make the next broker respect
//! them nevertheless: the first renewal of a claim since the last fence is logged (`heard`), and a [fence](JournalState::fence)
//! extends the claims that were made or renewed since the last fence. The rules are in `docs/protocol/journal.md`.
//!
//! | module | contents |
//! | --- | --- |
//! | [`archive`] | final tasks outside of the live state: objects, their table, what is archived and merged |
//! | [`change`] | difference between two revisions of a task |
//! | [`commit`] | encoding of one write to the log |
//! | [`decide`] | decisions on requests: one file each |
//! | [`evicted`] | tasks of which only the index is in memory |
//! | [`record`] | records: the lines of a commit |
//! | [`sealed`] | header line with a checksum |
//! | [`snapshot`] | the live tasks at one position of the log |
//! | [`state`] | live tasks, and how records change them |
//! | [`task`] | a task with what the journal keeps beside it |
//! | `index`, `types` | indexes of the live tasks |
//! | `read`, `upcoming` | reads: one task, lists, counts; what a worker could wait for |

pub mod archive;
pub mod change;
pub mod commit;
pub mod decide;
pub mod evicted;
mod index;
mod read;
pub mod record;
pub mod sealed;
pub mod snapshot;
pub mod state;
pub mod task;
mod types;
mod upcoming;

pub use archive::{
    ArchiveBatch, ArchiveChange, ArchiveLimits, ArchiveName, ArchivePage, ArchiveRef, ArchiveTable,
    ArchivedTask, MovedTask, OutdatedCopy, WrittenArchive,
};
pub use change::TaskChange;
pub use commit::{Commit, CommitHash, CommitHeader, EncodedCommit, Fence, LogPosition, Seq};
pub use decide::{
    ArchiveWork, ClaimRequest, ClaimToRenew, ClaimedTasks, JournalContext, JournalDecision, ObjectPurge,
    Operated, PurgeCursor, PurgePage, RenewRequest, RenewedClaim, SettleRequest, SubmitRequest, Ticked,
    check_same_task, purge_archived, purges_archived,
};
pub use evicted::LiveBody;
pub use read::{ArchivedRange, ExportPage, JournalCounts, TaskPage, TaskPlace};
pub use record::{ChangeKind, JournalRecord};
pub use snapshot::{ChunkName, ChunkRef, SnapshotManifest};
pub use state::{JournalState, Logged};
pub use task::{EncodedTask, JournalTask, KeyReservation, LoggedClaim};

#[cfg(test)]
mod tests;
