//! Tests of the command line on real servers, and on servers that violate the requirements.
#![expect(clippy::disallowed_methods, reason = "real processes live in real time")]
#![expect(clippy::unwrap_used, reason = "in a test a panic is the report, in its helpers too")]

mod artifacts;
mod brokers;
#[path = "../common/mod.rs"]
mod common;
mod crashes;
mod dashboard;
mod doctor;
mod late_submits;
mod migrate;
mod outposts;
mod sharing;
mod stats;
mod submit_many;
