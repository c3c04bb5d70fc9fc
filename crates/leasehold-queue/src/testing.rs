//! Conformance suite for leases, which runs over any store and any variant of the protocol; hosts and stores for tests.

mod faulty_store;
pub mod journal;
pub mod leases;
mod manual_clock_host;
mod tokio_time_host;

pub use faulty_store::{FaultyStore, PutFault};
pub use manual_clock_host::ManualClockHost;
pub use tokio_time_host::TokioTimeHost;
