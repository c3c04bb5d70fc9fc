//! Conformance suite for leases, which runs over any store and any variant of the protocol.

pub mod leases;
mod mishap;
mod still_host;

pub use mishap::{Luck, Mishap};
pub use still_host::StillHost;
