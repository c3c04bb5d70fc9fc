//! Conformance suite for leases, which runs over any store and any variant of the protocol.

mod faulty_store;
pub mod leases;
mod manual_clock_host;

pub use faulty_store::{FaultyStore, PutFault};
pub use manual_clock_host::ManualClockHost;
