//! The listener over loopback, and signatures.
#![expect(clippy::unwrap_used, reason = "in a test a panic is the report, in its helpers too")]

mod limits;
mod shutdown;
mod signing;
mod test_server;
mod timeouts;
