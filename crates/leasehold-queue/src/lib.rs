//! Tasks over a store.
//!
//! One file per verb; all of them move a task by the one pure function [`leasehold_core::step()`] and write it by the
//! one update loop of the store.
//!
//! | module | what it does |
//! | --- | --- |
//! | [`connect`], [`place`] | opens a queue; refuses clients that disagree with it (promise P8) |
//! | `create` | creates `queue.json`, or creates it again; never over the tasks of a lost one without being told to |
//! | [`layout`] | asks `queue.json` again in time, and says what may be written by it |
//! | [`mod@submit`] | puts tasks in, pointer first |
//! | [`bell`] | tells workers that there is something new |
//! | [`unique`] | submits only once under an idempotency key |
//! | [`discover`] | finds entries that are due |
//! | [`claim`] | makes a task ours |
//! | [`settle`] | renews, completes, fails, snoozes, releases |
//! | [`sweep`] | covers and removes stale entries, times out lost claims: the rules of the index |
//! | [`lease`] | holds something for a while: shards, names |
//! | [`holders`], `others` | who holds which lease; what is known of them without reading |
//! | [`inbox`] | direct dispatch: whose inbox a task goes to, and what becomes of it when that worker dies |
//! | [`advance`] | for outposts: see, decide, and change only what was seen |
//! | [`operate`] | cancel, retry, reschedule |
//! | [`inspect`] | get, list, wait, count |
//! | [`purge`] | removes what is past its retention |
//! | [`check`] | finds inconsistencies, and repairs what can be repaired |
//! | [`mod@quarantine`], `objects` | takes corrupt objects out of the way; which kinds of objects there are |
//! | [`migrate`] | changes the number of shards while everything goes on |
//! | `follow` | finds tasks that have moved to a shard of another length |
//! | `testing` | the conformance suite for leases (feature `testing`) |

pub mod advance;
pub mod bell;
pub mod check;
pub mod claim;
pub mod connect;
mod create;
pub mod discover;
mod follow;
pub mod holders;
pub mod inbox;
pub mod inspect;
pub mod layout;
pub mod lease;
pub mod migrate;
mod objects;
pub mod operate;
mod others;
pub mod place;
pub mod purge;
pub mod quarantine;
pub mod settle;
pub mod submit;
pub mod sweep;
mod tasks;
#[cfg(feature = "testing")]
pub mod testing;
pub mod unique;

pub use advance::{Advanced, Created, Seen};
pub use bell::Bell;
pub use claim::{Claimed, Met};
pub use connect::{Agreement, News, Queue, QueueConfig};
pub use discover::Found;
pub use holders::{LeaseState, NameFor, SeenLease};
pub use inbox::{DirectDispatch, Rescued, Selection};
pub use inspect::{Filter, Listed, Stats};
pub use lease::{HeldLease, Leases, Renewed, Taken, break_lease, break_nonsense, read_lease};
pub use migrate::{MigrateOptions, Migrated, Plan, Progress};
pub use operate::Operated;
pub use others::Others;
pub use place::Place;
pub use quarantine::{Keep, Quarantined};
pub use settle::{Renewal, Settlement};
pub use submit::{Submit, Submitted};
pub use unique::{Scope, UniqueKey};
