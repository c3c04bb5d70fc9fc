//! Conformance suite for leases, which runs over any store and any variant of the protocol; a store and claims for tests.

mod faulty_store;
pub mod journal;
pub mod leases;

pub use faulty_store::{FaultyStore, PutFault};
