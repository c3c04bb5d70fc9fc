//! The native half of the Python package `leasehold`. It holds no rules: it translates.
//!
//! ```text
//!   Python, on its event loop                         here, on a runtime of tokio's
//!     Queue.submit(…) ── a call, JSON as text ──▶       runs it
//!     the loop wakes up, collects the mail   ◀── mail ── answers, runs of handlers, stops, log lines
//!     the handler ends ── Run.finish(…) ─────▶          settles the task
//! ```
//!
//! No thread of the runtime ever takes the interpreter's lock. What is to be told to Python is put into a box, and the
//! event loop is woken by a file descriptor: a handler that keeps the lock, or blocks the loop, delays nothing but other
//! Python code. Claims are renewed meanwhile.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`home`] | the runtime, the process it belongs to, the clock of tests |
//! | [`mailbox`] | what is to be told to an event loop |
//! | [`log`] | what the Rust half logs, for Python's `logging` |
//! | [`queue`] | a queue: one method per operation |
//! | [`listing`] | a list of tasks, page by page |
//! | [`worker`] | a worker, and the runs of its handlers |
//! | [`told`] | answers and errors as text |
#![expect(clippy::needless_pass_by_value, reason = "what comes from Python is made for the call")]

mod home;
mod listing;
mod log;
mod mailbox;
mod queue;
mod told;
mod worker;

use pyo3::panic::PanicException;
use pyo3::prelude::*;
use std::ffi::OsString;

/// Runs the command line; gives its exit code.
#[pyfunction]
fn main(py: Python<'_>, program: Vec<OsString>, args: Vec<OsString>) -> u8 {
    py.detach(|| leasehold_cli::main(&program, args))
}

/// The names of all shards of a queue with so many digits.
#[pyfunction]
fn all_shards(digits: u8) -> PyResult<Vec<String>> {
    let shards = leasehold_queue::Queue::all_shards(digits).map_err(|error| told::raised(&error))?;
    Ok(shards.iter().map(|shard| shard.as_str().to_owned()).collect())
}

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("Failure", module.py().get_type::<told::Failure>())?;
    module.add("Panic", module.py().get_type::<PanicException>())?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<home::Call>()?;
    module.add_class::<listing::Listing>()?;
    module.add_class::<mailbox::Mailbox>()?;
    module.add_class::<queue::Queue>()?;
    module.add_class::<worker::Run>()?;
    module.add_class::<worker::Worker>()?;
    module.add_function(wrap_pyfunction!(all_shards, module)?)?;
    module.add_function(wrap_pyfunction!(main, module)?)
}
