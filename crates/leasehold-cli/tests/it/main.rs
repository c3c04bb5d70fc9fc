//! The command line as a person meets it, on folders.
#![expect(clippy::unwrap_used, reason = "in a test a panic is the report, in its helpers too")]

#[path = "../common/mod.rs"]
mod common;
mod config;
mod doctor;
