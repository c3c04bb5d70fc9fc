//! The crate as applications use it.
#![expect(clippy::unwrap_used, reason = "in a test a panic is the report, in its helpers too")]

mod bucket;
mod processes;
mod testing;
