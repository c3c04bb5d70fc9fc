//! Servers for tests, tested with the plain client that the stores use.

mod client;
mod lawless;
mod proxy;
mod weed;
