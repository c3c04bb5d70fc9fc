//! Stores as they are used: the conformance suite, several processes, crashes, real servers.
#![expect(clippy::disallowed_methods, reason = "tests own what they start")]

mod folder;
mod lost_answers;
mod memory;
