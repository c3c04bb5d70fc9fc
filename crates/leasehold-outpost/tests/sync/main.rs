//! Nodes and a bucket: real files, real supervisors, a store in memory, links that are cut. Time passes only when a test
//! advances it.
#![expect(clippy::unwrap_used, reason = "in a test a panic is the report, in its helpers too")]

mod checkouts;
mod cluster;
mod edges;
mod reconnecting;
mod syncing;
