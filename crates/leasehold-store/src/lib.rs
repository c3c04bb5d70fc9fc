//! The one seam between Leasehold and the world: a store of objects that can be written *on condition*.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`seam`] | the trait [`Store`]: get, put on condition, delete, list, ranges, uploads in parts; one request per call |
//! | [`client`] | [`Client`]: requests counted, bounded, retried where safe; every lost answer settled |
//! | [`mod@update`] | the one loop that reads, decides and writes back |
//! | [`clock`] | the store's time as an interval, from the answers that came anyway |
//! | [`ledger`], [`price`] | every request counted, and what it costs |
//! | [`health`] | whether the store answers, and the log messages about it |
//! | [`host`] | local clocks, pauses and chance, passed in so that a simulator can replay them |
//! | [`memory`], [`folder`], [`object`] | the stores |
//! | [`around`] | a store around another, which differs in some requests |
//! | [`mutant`] | rules that a test may break (feature `mutants`) |
//! | [`page`], [`parts`] | the rules of lists, ranges and uploads, for stores that have none of their own |
//! | [`mod@open`] | a store from an address |
//! | [`mod@probe`] | whether a store is good enough; one that ignores conditions is refused |
//! | `testing` | the conformance suite, servers and a proxy with faults (feature `testing`) |

pub mod around;
pub mod client;
pub mod clock;
pub mod folder;
pub mod health;
pub mod host;
pub mod ledger;
pub mod memory;
pub mod mutant;
pub mod object;
pub mod open;
pub mod page;
pub mod parts;
pub mod price;
pub mod probe;
pub mod seam;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod update;

pub use around::Around;
pub use client::{Client, Put, Upload};
pub use clock::Clock;
pub use folder::{Durability, FolderAccess, FolderOptions, FolderStore, FolderTime};
pub use health::{Health, Outage};
pub use host::{Host, HostExt, SystemHost};
pub use ledger::{Ledger, Purpose, Snapshot, Verb};
pub use memory::MemoryStore;
pub use object::{AccessKey, BucketAddress, BucketStore};
pub use open::{OpenMode, OpenOptions, open};
pub use price::Prices;
pub use probe::probe;
pub use seam::{
    Cause, Cursor, Entry, Failure, Get, List, Object, Page, PartId, PutAnswer, Ranged, Store, UploadId,
    Version, When,
};
pub use update::{Decision, Standing, Updated, update, update_from};
