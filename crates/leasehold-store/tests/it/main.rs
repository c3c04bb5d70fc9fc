//! Stores as they are used: the conformance suite, several processes, crashes, real servers.
#![expect(clippy::disallowed_methods, reason = "tests own what they start")]
#![expect(clippy::unwrap_used, reason = "in a test a panic is the report, in its helpers too")]

mod folder;
mod group;
mod log;
mod lost_answers;
mod memory;
mod uploads;
