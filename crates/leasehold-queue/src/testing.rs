//! Conformance suite for leases, which runs over any store and any variant of the protocol.

mod faulty_store;
pub mod leases;

pub use faulty_store::{FaultyStore, PutFault};
