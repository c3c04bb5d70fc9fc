//! Spools of several processes, started and killed by the tests.
//!
//! These tests are a program of their own and run one after another: a process that is being started holds copies of all open
//! file descriptors for a moment, and with them the locks of other tests, whose spools then skip what seems to be in use.
#![expect(clippy::unwrap_used, reason = "in a test a panic is the report, in its helpers too")]

mod crashes;
mod racing;
#[expect(dead_code, reason = "shared with the tests in one process, which use the rest")]
#[path = "../it/support.rs"]
mod support;

use std::sync::{Mutex, MutexGuard, PoisonError};

static STARTING: Mutex<()> = Mutex::new(());

/// Waits until no other test starts processes.
fn one_at_a_time() -> MutexGuard<'static, ()> {
    STARTING.lock().unwrap_or_else(PoisonError::into_inner)
}
