//! The spool of an outpost: claims, leases, crashes, clocks.
#![expect(clippy::unwrap_used, reason = "in a test a panic is the report, in its helpers too")]

mod clocks;
mod concurrency;
mod copies;
mod front;
mod leases;
mod lost_leases;
mod polling;
mod records;
mod retrying;
#[path = "../../../leasehold-worker/tests/it/suite.rs"]
mod suite;
mod support;
mod trimming;
mod working;
