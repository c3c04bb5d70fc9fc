//! What is to be told to an event loop. Whoever tells it needs no lock of Python's: a letter is put into the box, and
//! the first one wakes the loop through a file descriptor. Under load one wake-up brings many letters.

use leasehold_worker::Shutdown;
use pyo3::prelude::*;
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use crate::log::{self, LogLine};
use crate::told::Told;
use crate::worker::Run;

/// The most lines that wait for an event loop. One that is blocked for longer than that loses the rest.
const LINES_MAX: usize = 1_000;
/// The level of warnings in `logging`.
const WARNING: u8 = 30;

/// One thing to be told.
pub(crate) enum Letter {
    /// A call has ended.
    Answer { number: u64, told: Told },
    /// A handler is to be run.
    Run(Run),
    /// A run is to be stopped.
    Stop { worker: u64, run: u64 },
    /// A line is to be logged.
    Log(LogLine),
}

/// The box itself.
pub(crate) struct Post {
    process: u32,
    wake: OwnedFd,
    mail: Mutex<Mail>,
}

#[derive(Default)]
struct Mail {
    letters: Vec<Letter>,
    /// How many of the letters are lines for the log.
    lines: usize,
    /// How many lines were dropped since the mail was last collected.
    lines_dropped: u64,
    /// Told to stop when nobody reads the mail any more.
    workers: Vec<Shutdown>,
    is_closed: bool,
}

impl Post {
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
            // It can only fail by being full, and then the loop is awake.
            let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
        }
    }

    pub(crate) fn answer(&self, number: u64, told: Told) {
        self.put(Letter::Answer { number, told });
    }

    /// Logs a line on this event loop; false if the box is closed, or belongs to the parent of this process.
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

    /// Stops this worker when the box is closed.
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
        // Runs that were not begun are given back by being dropped.
        drop(letters);
        workers.iter().for_each(Shutdown::abort);
    }

    fn mail(&self) -> std::sync::MutexGuard<'_, Mail> {
        self.mail.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Answers, runs, stops and log lines, as Python takes them apart.
type Collected =
    (Vec<(u64, Option<String>, Option<String>)>, Vec<Run>, Vec<(u64, u64)>, Vec<(u8, String, String)>);

/// The box of one event loop.
#[pyclass(frozen)]
pub(crate) struct Mailbox {
    pub(crate) post: Arc<Post>,
}

#[pymethods]
impl Mailbox {
    #[new]
    fn new() -> PyResult<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| std::io::Error::from_raw_os_error(error.raw_os_error()))?;
        let post = Arc::new(Post { process: std::process::id(), wake, mail: Mutex::default() });
        log::listen(&post);
        Ok(Self { post })
    }

    /// Readable when there is mail.
    fn fileno(&self) -> i32 {
        self.post.wake.as_raw_fd()
    }

    /// Takes all mail: answers `(number, text, error)`, runs, stops `(worker, run)`, and log lines `(level, logger, text)`.
    fn collect(&self) -> Collected {
        let mut collected = Collected::default();
        if self.post.process != std::process::id() {
            // The descriptor is shared with the parent, who would miss what a child has read.
            return collected;
        }
        let mut count = [0; 8];
        // Empty: someone was faster.
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
            let text = format!("log lines were dropped, the event loop was blocked count={dropped}");
            lines.push((WARNING, "leasehold".to_owned(), text));
        }
        collected
    }

    /// Nobody reads the mail any more: workers stop, and give back what they hold.
    fn close(&self) {
        self.post.close();
    }
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        self.post.close();
    }
}
