//! Native module of the Python package `leasehold`. It only translates; the rules are in the other crates.
//!
//! ```text
//!   Python, on its event loop                         here, on a tokio runtime
//!     Queue.submit(…) ── a call, JSON as text ──▶       runs it
//!     the loop wakes up, collects events     ◀─ events ─ answers, runs of handlers, stops, log lines
//!     the handler ends ── Run.finish(…) ─────▶          settles the task
//! ```
//!
//! No thread of the runtime ever takes the interpreter lock. Events for Python are put into an event queue, and the event loop
//! is woken through a file descriptor: a handler that holds the lock, or blocks the loop, delays only other Python code.
//! Claims are renewed meanwhile.
//!
//! | module | contents |
//! | --- | --- |
//! | [`runtime`] | the tokio runtime, its process, the clock of tests |
//! | [`event_queue`] | events for a Python event loop |
//! | [`log`] | forwarding of log events to Python's `logging` |
//! | [`queue`] | queue: one method per operation |
//! | [`listing`] | paged list of tasks |
//! | [`worker`] | worker, and the runs of its handlers |
//! | [`json`] | results and errors as JSON text |
#![expect(clippy::needless_pass_by_value, reason = "arguments from Python are created for the call")]

mod event_queue;
mod json;
mod listing;
mod log;
mod queue;
mod runtime;
mod worker;

use pyo3::panic::PanicException;
use pyo3::prelude::*;
use std::ffi::OsString;

/// Runs the command line and returns its exit code.
#[pyfunction]
fn main(py: Python<'_>, program: Vec<OsString>, args: Vec<OsString>) -> u8 {
    py.detach(|| leasehold_cli::main(&program, args))
}

/// Returns the names of all shards of a queue with this many digits.
#[pyfunction]
fn all_shards(digits: u8) -> PyResult<Vec<String>> {
    let shards = leasehold_core::ShardLen::new(digits).map_err(|error| json::exception(&error))?.all();
    Ok(shards.iter().map(|shard| shard.as_str().to_owned()).collect())
}

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("Failure", module.py().get_type::<json::Failure>())?;
    module.add("Panic", module.py().get_type::<PanicException>())?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<runtime::Call>()?;
    module.add_class::<listing::Listing>()?;
    module.add_class::<event_queue::PyEventQueue>()?;
    module.add_class::<queue::Queue>()?;
    module.add_class::<worker::HandlerRun>()?;
    module.add_class::<worker::Worker>()?;
    module.add_function(wrap_pyfunction!(all_shards, module)?)?;
    module.add_function(wrap_pyfunction!(main, module)?)
}
