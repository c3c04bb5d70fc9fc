//! Tasks over a store.
//!
//! One file per verb; all of them move a task by the one pure function [`leasehold_core::step()`] and write it by the
//! one update loop of the store.
//!
//! | module | what it does |
//! | --- | --- |
//! | [`connect`] | opens a queue, or founds it; refuses clients that disagree with it (promise P8) |
//! | [`mod@submit`] | puts tasks in, pointer first |
//! | [`unique`] | submits only once under an idempotency key |
//! | [`discover`] | finds entries that are due |
//! | [`claim`] | makes a task ours |
//! | [`settle`] | renews, completes, fails, snoozes, releases |
//! | [`sweep`] | covers and removes stale entries, times out lost claims: the rules of the index |
//! | [`lease`] | holds something for a while: shards, names |
//! | [`operate`] | cancel, retry, reschedule |
//! | [`inspect`] | get, list, wait, count |
//! | [`purge`] | removes what is past its retention |
//! | [`check`] | looks at everything, and repairs |
//! | `testing` | the conformance suite for leases (feature `testing`) |

pub mod check;
pub mod claim;
pub mod connect;
pub mod discover;
pub mod inspect;
pub mod lease;
pub mod operate;
pub mod purge;
pub mod settle;
pub mod submit;
pub mod sweep;
mod tasks;
#[cfg(feature = "testing")]
pub mod testing;
pub mod unique;

pub use claim::{Claimed, Met};
pub use connect::{Agreement, News, Queue, QueueOptions};
pub use discover::Found;
pub use inspect::{Filter, Stats};
pub use lease::{HeldLease, Leases, Renewed, Taken, break_lease, read_lease};
pub use operate::Operated;
pub use settle::{Renewal, Settlement};
pub use submit::Submitted;
pub use unique::{Scope, UniqueKey};
