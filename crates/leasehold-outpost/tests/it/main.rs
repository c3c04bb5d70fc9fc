//! The spool of an outpost: claims, leases, crashes, clocks.
#![expect(clippy::unwrap_used, reason = "in a test a panic is the report, in its helpers too")]

mod clocks;
mod copies;
mod killed;
mod leases;
mod lost;
mod polling;
mod racing;
mod records;
mod retrying;
mod support;
mod together;
mod trimming;
mod working;
