//! Events for a Python event loop. Sending one needs no interpreter lock: an event is put into the event queue, and the first
//! one wakes the loop through a file descriptor. Under load one wake-up delivers many events.

use leasehold_worker::Shutdown;
use pyo3::prelude::*;
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use crate::json::JsonAnswer;
use crate::log::{self, LogLine};
use crate::worker::HandlerRun;

/// Largest number of log lines that wait for an event loop. While it is blocked, further lines are dropped.
const LINES_MAX: usize = 1_000;
/// Level of warnings in `logging`.
const WARNING: u8 = 30;

/// One event.
pub(crate) enum LoopEvent {
    /// A call has ended.
    Answer { number: u64, answer: JsonAnswer },
    /// A handler is to be run.
    Run(HandlerRun),
    /// A run is to be stopped.
    Stop { worker: u64, run: u64 },
    /// A line is to be logged.
    Log(LogLine),
}

/// Queue of events.
pub(crate) struct EventQueue {
    process: u32,
    wake: OwnedFd,
    pending: Mutex<PendingEvents>,
}

#[derive(Default)]
struct PendingEvents {
    events: Vec<LoopEvent>,
    /// Number of log lines among them.
    lines: usize,
    /// Number of lines dropped since the events were last collected.
    lines_dropped: u64,
    /// Workers to abort when the event queue is closed.
    workers: Vec<Shutdown>,
    is_closed: bool,
}

impl EventQueue {
    pub(crate) fn put(&self, event: LoopEvent) {
        let is_first = {
            let mut pending = self.pending();
            if pending.is_closed {
                return;
            }
            pending.events.push(event);
            pending.events.len() == 1
        };
        if is_first {
            // Fails only if the counter is full, and then the loop is awake.
            let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
        }
    }

    pub(crate) fn answer(&self, number: u64, answer: JsonAnswer) {
        self.put(LoopEvent::Answer { number, answer });
    }

    /// Logs a line on this event loop. Returns false if the event queue is closed, or belongs to the parent process.
    pub(crate) fn log(&self, line: LogLine) -> bool {
        if self.process != std::process::id() {
            return false;
        }
        {
            let mut pending = self.pending();
            if pending.is_closed {
                return false;
            }
            if pending.lines >= LINES_MAX {
                pending.lines_dropped += 1;
                return true;
            }
            pending.lines += 1;
        }
        self.put(LoopEvent::Log(line));
        true
    }

    /// Aborts this worker when the event queue is closed.
    pub(crate) fn abort_on_close(&self, worker: Shutdown) {
        let mut pending = self.pending();
        pending.workers.retain(|worker| worker.stage() == leasehold_worker::shutdown::Stage::Running);
        pending.workers.push(worker);
    }

    fn close(&self) {
        let (events, workers) = {
            let mut pending = self.pending();
            pending.is_closed = true;
            (std::mem::take(&mut pending.events), std::mem::take(&mut pending.workers))
        };
        // Runs that were not started are released by being dropped.
        drop(events);
        workers.iter().for_each(Shutdown::abort);
    }

    fn pending(&self) -> std::sync::MutexGuard<'_, PendingEvents> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Answers, runs, stops and log lines, as a tuple for Python.
type Collected =
    (Vec<(u64, Option<String>, Option<String>)>, Vec<HandlerRun>, Vec<(u64, u64)>, Vec<(u8, String, String)>);

/// Event queue of one event loop.
#[pyclass(frozen, name = "EventQueue")]
pub(crate) struct PyEventQueue {
    pub(crate) events: Arc<EventQueue>,
}

#[pymethods]
impl PyEventQueue {
    #[new]
    fn new() -> PyResult<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| std::io::Error::from_raw_os_error(error.raw_os_error()))?;
        let events = Arc::new(EventQueue { process: std::process::id(), wake, pending: Mutex::default() });
        log::listen(&events);
        Ok(Self { events })
    }

    /// Returns a file descriptor that is readable when there are events.
    fn fileno(&self) -> i32 {
        self.events.wake.as_raw_fd()
    }

    /// Takes all events: answers `(number, text, error)`, runs, stops `(worker, run)`, and log lines `(level, logger, text)`.
    fn collect(&self) -> Collected {
        let mut collected = Collected::default();
        if self.events.process != std::process::id() {
            // The descriptor is shared with the parent, which would miss a wake-up that a child has read.
            return collected;
        }
        let mut count = [0; 8];
        // Empty if another call has read it already.
        let _ = rustix::io::read(&self.events.wake, &mut count);
        let (events, dropped) = {
            let mut pending = self.events.pending();
            pending.lines = 0;
            (std::mem::take(&mut pending.events), std::mem::take(&mut pending.lines_dropped))
        };
        let (answers, runs, stops, lines) = &mut collected;
        for event in events {
            match event {
                LoopEvent::Answer { number, answer: Ok(text) } => answers.push((number, Some(text), None)),
                LoopEvent::Answer { number, answer: Err(error) } => answers.push((number, None, Some(error))),
                LoopEvent::Run(run) => runs.push(run),
                LoopEvent::Stop { worker, run } => stops.push((worker, run)),
                LoopEvent::Log(line) => lines.push((line.level, line.logger, line.text)),
            }
        }
        if dropped > 0 {
            let text = format!("log lines dropped, event loop was blocked count={dropped}");
            lines.push((WARNING, "leasehold".to_owned(), text));
        }
        collected
    }

    /// Closes the event queue: workers abort and release their tasks.
    fn close(&self) {
        self.events.close();
    }
}

impl Drop for PyEventQueue {
    fn drop(&mut self) {
        self.events.close();
    }
}
