//! A task queue on object storage: the protocol that keeps tasks, index entries and leases consistent with nothing but
//! conditional writes.
//!
//! A task is one object, `tasks/{shard}/{id}.json`. The index consists of empty objects whose keys carry shard, minute,
//! priority and revision: a *ready entry* for a pending task, a *lease entry* for a running one. The index may be
//! outdated in one direction only: an entry can be superfluous, but a pending or running task always has one. Every
//! change of a task is decided by the pure function [`leasehold_core::step()`] and written by the store's
//! compare-and-set loop, so that of two concurrent changes one wins and the other is decided again.
//!
//! One module per operation:
//!
//! | module | purpose |
//! | --- | --- |
//! | [`front`] | what applications call, for every layout: submit, read, wait, cancel, retry, reschedule |
//! | [`connect`] | open a queue; refuse clients whose settings disagree with it (promise P8) |
//! | [`meta`] | `queue.json`: format, layout and number of shards of a queue |
//! | `create` | create `queue.json`, or restore it after a loss; never overwrite the tasks of an existing queue |
//! | [`meta_cache`] | re-read `queue.json` periodically, and decide what a client may write |
//! | [`journal`] | the second layout: one process writes the decisions for many tasks in one commit |
//! | [`mod@submit`] | submit tasks: index entry first, then the task |
//! | [`bell`] | notification object, so that idle workers need not list the index |
//! | [`unique`] | idempotency keys: submit a task only once |
//! | [`discover`] | scan the index for entries that are due |
//! | [`claim`] | claim a task for a worker; renew the claim; complete, fail, snooze, release |
//! | [`sweep`] | index cleanup: remove unneeded entries, time out expired claims |
//! | [`source`] | the interface between a worker and the layout of its tasks |
//! | [`lease`] | leases on shards and worker ids |
//! | [`holders`], `peer_leases` | list leases and their holders; cache the leases of other workers |
//! | [`inbox`] | direct dispatch: choose the worker for a task, recover the inboxes of crashed workers |
//! | [`update`] | for outposts: read a task, decide, and write only if it is unchanged |
//! | [`inspect`] | get, list, count |
//! | [`purge`] | remove final tasks whose retention has passed |
//! | [`check`] | find inconsistencies, and repair them |
//! | [`mod@quarantine`], `objects` | move corrupt objects aside; the kinds of objects in a queue |
//! | [`migrate`] | change the number of shards while the queue is in use |
//! | `forwarding` | follow forwarding markers to tasks that a migration has moved |
//! | `testing` | the conformance suite for leases (feature `testing`) |

pub mod bell;
pub mod check;
pub mod claim;
pub mod connect;
mod create;
pub mod discover;
mod forwarding;
pub mod front;
pub mod holders;
pub mod inbox;
pub mod inspect;
pub mod journal;
pub mod lease;
pub mod meta;
pub mod meta_cache;
pub mod migrate;
mod objects;
mod peer_leases;
pub mod purge;
pub mod quarantine;
pub mod source;
pub mod submit;
pub mod sweep;
mod tasks;
#[cfg(feature = "testing")]
pub mod testing;
mod transfer;
pub mod unique;
pub mod update;

pub use bell::{Bell, BellChange};
pub use claim::{ClaimOutcome, Claimed, Settlement, Unclaimed};
pub use connect::{BrokerRole, ObjectQueue, QueueConfig, QueueLocation};
pub use discover::IndexHit;
pub use front::{ExportedTask, Queue, QueueLayout, Submit, Submitted};
pub use holders::{LeaseInfo, LeaseState, WorkerLeaseKind};
pub use inbox::{DirectDispatch, Selection};
pub use inspect::{Filter, ListedTask, Stats};
pub use journal::{
    AcceptedClient, ArchiveLimits, BrokerAddress, BrokerHolder, BrokerListener, BrokerStatus, BrokerTerm,
    BrokerTransport, ChangePage, ChangePosition, ClientAccess, CommitFigures, FoundBroker, JournalQueue,
    JournalSample, JournalWorker, JournalWorkerState, LeaseSecret, LineChannel, NetworkAddress,
    PreparedListener, SnapshotLimits,
};
pub use lease::{HeldLease, Leases, Renewed, Taken, break_lease, read_lease};
pub use meta::{LayoutName, QueueMeta};
pub use migrate::{MigrateOptions, Migrated, MigrationPlan, Progress};
pub use peer_leases::PeerLeaseCache;
pub use quarantine::{Keep, Quarantined};
pub use tasks::{TaskSnapshot, Transition};
pub use unique::{Scope, UniqueKey};
