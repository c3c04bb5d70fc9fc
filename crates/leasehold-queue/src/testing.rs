//! What tests of leases need: a conformance suite that runs over any store, with any variant of the protocol.

pub mod leases;
mod mishap;
mod still_host;

pub use mishap::{Luck, Mishap};
pub use still_host::StillHost;
