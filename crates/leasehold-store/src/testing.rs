//! Test support for stores: conformance suites of stores and of logs, a host with clocks that the test moves, a disk that
//! loses power, real and misbehaving servers, a proxy with faults.
//!
//! All servers listen on loopback only and stop when their value is dropped.

#[cfg(feature = "testing")]
pub mod conformance;
#[cfg(feature = "testing")]
mod fake_disk;
mod fake_host;
#[cfg(feature = "testing")]
mod fault;
#[cfg(feature = "testing")]
mod faulty_server;
#[cfg(feature = "testing")]
mod hooked_directory;
mod lane;
#[cfg(feature = "testing")]
mod listen;
#[cfg(feature = "testing")]
mod listing;
#[cfg(feature = "testing")]
pub mod log_conformance;
#[cfg(feature = "testing")]
mod ports;
#[cfg(feature = "testing")]
mod proxy;
#[cfg(feature = "testing")]
mod seaweedfs;
#[cfg(feature = "testing")]
mod stamp;

#[cfg(feature = "testing")]
pub use fake_disk::{DiskHook, DiskStep, FakeDisk, NoDiskHook, StepFate, Survival};
pub use fake_host::FakeHost;
#[cfg(feature = "testing")]
pub use fault::{Fault, FaultPlan, ObservedRequest, RequestCounts, RequestKind, once, pass};
#[cfg(feature = "testing")]
pub use faulty_server::{FaultyServer, Violations};
#[cfg(feature = "testing")]
pub use hooked_directory::HookedDirectory;
pub use lane::Lane;
#[cfg(feature = "testing")]
pub use proxy::Proxy;
#[cfg(feature = "testing")]
pub use seaweedfs::{S3, SeaweedFs, weed_binary};

use leasehold_core::WriteId;

/// Creates a body of about `size` bytes whose integrity can be checked: it ends as it begins, and contains its length.
#[must_use]
pub fn whole_body(id: &WriteId, size: usize) -> String {
    format!("{id} {size} {} {id}", "x".repeat(size))
}

/// True if a body was created by [`whole_body`] and is complete.
#[must_use]
pub fn is_whole(body: &[u8]) -> bool {
    let text = String::from_utf8_lossy(body);
    let parts: Vec<_> = text.split(' ').collect();
    let [first, size, filling, last] = parts[..] else { return false };
    first == last && size.parse() == Ok(filling.len())
}
