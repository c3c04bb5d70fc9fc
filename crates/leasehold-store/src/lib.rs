//! Object stores with conditional writes: the only interface between Leasehold and storage.
//!
//! | module | contents |
//! | --- | --- |
//! | [`store`] | the trait [`Store`]: get, conditional put, delete, list, ranges, uploads in parts; one request per call |
//! | [`client`] | [`Client`]: requests with counting, timeouts, retries where safe, and a rule for lost answers |
//! | [`mod@update`] | read-decide-write loop for every change of a task |
//! | [`clock`] | store time as an interval, from the dates of ordinary answers |
//! | [`ledger`], [`price`] | counts and prices of requests |
//! | [`health`] | availability of the store, and the log messages about it |
//! | [`host`] | local clocks, timers and randomness, passed in so that a simulator can replay them |
//! | [`log`] | log of a journal, in a bucket or in a folder |
//! | [`memory`], [`folder`], [`object`] | the stores |
//! | [`delegating`] | store that wraps another and overrides some requests |
//! | [`mutant`] | rules that a test may break (feature `mutants`) |
//! | [`page`], [`parts`] | semantics of lists, ranges and uploads, for stores without their own |
//! | [`mod@open`] | opens a store by its address |
//! | [`mod@probe`] | check that a store meets the requirements; a store that ignores conditions is refused |
//! | `testing` | conformance suite, servers and a proxy with faults (feature `testing`) |

pub mod client;
pub mod clock;
pub mod delegating;
pub mod folder;
pub mod health;
pub mod host;
pub mod ledger;
pub mod log;
pub mod memory;
pub mod mutant;
pub mod object;
pub mod open;
pub mod page;
pub mod parts;
pub mod price;
pub mod probe;
pub mod store;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod update;

pub use client::{Client, PutOutcome, Upload};
pub use clock::Clock;
pub use delegating::DelegatingStore;
pub use folder::{Durability, FolderAccess, FolderOptions, FolderStore, FolderTime};
pub use health::{Health, Outage};
pub use host::{Host, HostExt, SystemHost};
pub use ledger::{Ledger, Purpose, Snapshot, Verb};
pub use log::{
    CommitOutcome, FencedLog, FolderLogDirectory, Followed, HeldLock, Log, LogDirectory, LogFault, LogFile,
    LogHolder, LogReader, LogThread, LogTrimmer, LogWriter, TakeOver,
};
pub use memory::MemoryStore;
pub use object::{AccessKey, BucketAddress, BucketStore};
pub use open::{OpenMode, OpenOptions, open};
pub use price::Prices;
pub use probe::probe;
pub use store::{
    Cause, Cursor, Failure, Get, List, ListEntry, LocalFolder, Object, Page, PartId, PutAnswer, Ranged,
    Store, UploadId, Version, When,
};
pub use update::{Decision, Updated, update, update_from};
