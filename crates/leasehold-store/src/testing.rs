//! What tests of stores need: a conformance suite, a host whose clocks the test moves, real and unruly servers,
//! a proxy with faults.

#[cfg(feature = "testing")]
pub mod conformance;
mod fake_host;
#[cfg(feature = "testing")]
pub mod lawless;
#[cfg(feature = "testing")]
pub mod proxy;
#[cfg(feature = "testing")]
pub mod weed;

pub use fake_host::FakeHost;

use leasehold_core::WriteId;

/// A body of about `size` bytes that shows whether it is whole: it ends as it begins, and knows its length.
#[must_use]
pub fn whole_body(id: &WriteId, size: usize) -> String {
    format!("{id} {size} {} {id}", "x".repeat(size))
}

/// Whether a body is one that [`whole_body`] has made, from its first byte to its last.
#[must_use]
pub fn is_whole(body: &[u8]) -> bool {
    let text = String::from_utf8_lossy(body);
    let parts: Vec<_> = text.split(' ').collect();
    let [first, size, filling, last] = parts[..] else { return false };
    first == last && size.parse() == Ok(filling.len())
}
