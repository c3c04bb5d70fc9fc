//! Tests of the command line on folders.
#![expect(clippy::disallowed_methods, reason = "real processes live in real time")]
#![expect(clippy::unwrap_used, reason = "in a test a panic is the report, in its helpers too")]

mod artifacts;
mod broker;
#[path = "../common/mod.rs"]
mod common;
mod config;
mod dashboard;
mod doctor;
mod fixture;
mod group;
mod help;
mod journal;
mod leases;
mod logging;
mod outposts;
mod output;
mod processes;
mod programs;
mod tasks;
#[cfg(feature = "otel")]
mod telemetry;
mod until_stopped;
