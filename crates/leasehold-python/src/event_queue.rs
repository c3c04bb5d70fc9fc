//! Events for a Python event loop. Sending one needs no interpreter lock: a letter is put into the mailbox, and the first
//! one wakes the loop through a file descriptor. Under load one wake-up delivers many letters.

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
pub(crate) enum Letter {
    /// A call has ended.
    Answer { number: u64, told: JsonAnswer },
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
    mail: Mutex<Mail>,
}

#[derive(Default)]
struct Mail {
    letters: Vec<Letter>,
    /// Number of log lines among the letters.
    lines: usize,
    /// Number of lines dropped since the letters were last collected.
    lines_dropped: u64,
    /// Workers to abort when the mailbox is closed.
    workers: Vec<Shutdown>,
    is_closed: bool,
}

impl EventQueue {
    pub(crate) fn put(&self, letter: Letter) {
        let is_first = {
            let mut mail = self.mail();
            if mail.is_closed {
                return;
            }
            mail.letters.push(letter);
            mail.letters.len() == 1
        };
        if is_first {
            // Fails only if the counter is full, and then the loop is awake.
            let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
        }
    }

    pub(crate) fn answer(&self, number: u64, told: JsonAnswer) {
        self.put(Letter::Answer { number, told });
    }

    /// Logs a line on this event loop. Returns false if the mailbox is closed, or belongs to the parent process.
    pub(crate) fn log(&self, line: LogLine) -> bool {
        if self.process != std::process::id() {
            return false;
        }
        {
            let mut mail = self.mail();
            if mail.is_closed {
                return false;
            }
            if mail.lines >= LINES_MAX {
                mail.lines_dropped += 1;
                return true;
            }
            mail.lines += 1;
        }
        self.put(Letter::Log(line));
        true
    }

    /// Aborts this worker when the mailbox is closed.
    pub(crate) fn serves(&self, worker: Shutdown) {
        let mut mail = self.mail();
        mail.workers.retain(|worker| worker.stage() == leasehold_worker::shutdown::Stage::Go);
        mail.workers.push(worker);
    }

    fn close(&self) {
        let (letters, workers) = {
            let mut mail = self.mail();
            mail.is_closed = true;
            (std::mem::take(&mut mail.letters), std::mem::take(&mut mail.workers))
        };
        // Runs that were not started are released by being dropped.
        drop(letters);
        workers.iter().for_each(Shutdown::abort);
    }

    fn mail(&self) -> std::sync::MutexGuard<'_, Mail> {
        self.mail.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Answers, runs, stops and log lines, as a tuple for Python.
type Collected =
    (Vec<(u64, Option<String>, Option<String>)>, Vec<HandlerRun>, Vec<(u64, u64)>, Vec<(u8, String, String)>);

/// Mailbox of one event loop.
#[pyclass(frozen)]
pub(crate) struct Mailbox {
    pub(crate) post: Arc<EventQueue>,
}

#[pymethods]
impl Mailbox {
    #[new]
    fn new() -> PyResult<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| std::io::Error::from_raw_os_error(error.raw_os_error()))?;
        let post = Arc::new(EventQueue { process: std::process::id(), wake, mail: Mutex::default() });
        log::listen(&post);
        Ok(Self { post })
    }

    /// Returns a file descriptor that is readable when there are letters.
    fn fileno(&self) -> i32 {
        self.post.wake.as_raw_fd()
    }

    /// Takes all letters: answers `(number, text, error)`, runs, stops `(worker, run)`, and log lines `(level, logger, text)`.
    fn collect(&self) -> Collected {
        let mut collected = Collected::default();
        if self.post.process != std::process::id() {
            // The descriptor is shared with the parent, which would miss a wake-up that a child has read.
            return collected;
        }
        let mut count = [0; 8];
        // Empty if another call has read it already.
        let _ = rustix::io::read(&self.post.wake, &mut count);
        let (letters, dropped) = {
            let mut mail = self.post.mail();
            mail.lines = 0;
            (std::mem::take(&mut mail.letters), std::mem::take(&mut mail.lines_dropped))
        };
        let (answers, runs, stops, lines) = &mut collected;
        for letter in letters {
            match letter {
                Letter::Answer { number, told: Ok(text) } => answers.push((number, Some(text), None)),
                Letter::Answer { number, told: Err(error) } => answers.push((number, None, Some(error))),
                Letter::Run(run) => runs.push(run),
                Letter::Stop { worker, run } => stops.push((worker, run)),
                Letter::Log(line) => lines.push((line.level, line.logger, line.text)),
            }
        }
        if dropped > 0 {
            let text = format!("log lines dropped, event loop was blocked count={dropped}");
            lines.push((WARNING, "leasehold".to_owned(), text));
        }
        collected
    }

    /// Closes the mailbox: workers abort and release their tasks.
    fn close(&self) {
        self.post.close();
    }
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        self.post.close();
    }
}
