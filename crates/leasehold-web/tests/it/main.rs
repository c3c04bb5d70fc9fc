//! Tests of the dashboard over loopback, with handwritten HTTP.
#![expect(clippy::unwrap_used, reason = "in a test a panic is the report, in its helpers too")]

mod access;
mod answers;
mod bounds;
mod fixture;
mod raw;
