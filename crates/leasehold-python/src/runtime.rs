//! Tokio runtime: one per process, created with the first queue and shut down with the last.
//!
//! A forked process has none of its parent's threads. A queue opened before the fork belongs to the parent, and the child
//! gets an error; a queue that the child opens gets a new runtime.
//!
//! A test queue has its own runtime with simulated time, which stands still while Python runs: while a handler is running,
//! and while no call waits for the queue. While a call waits and nothing else can run, time jumps to the next timer.

use futures::FutureExt;
use leasehold_core::{Error, Kind, Result};
use leasehold_store::host::words_of;
use pyo3::prelude::*;
use std::any::Any;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError, Weak, mpsc};
use std::time::Duration;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

use crate::event_queue::EventQueue;
use crate::json::{JsonAnswer, described, raised};

/// Largest number of files written at once: more threads would only wait for each other.
const BLOCKING_THREADS_MAX: usize = 64;
/// Longest wait for running tasks when the runtime is shut down.
const END_WAIT: Duration = Duration::from_secs(5);

/// Runtime of this process. Only threads that hold the interpreter lock access it, and a forking thread holds that lock
/// too: no child finds it locked by a thread that it does not have.
static SHARED: Mutex<Weak<Home>> = Mutex::new(Weak::new());

/// Runtime of a process, or of a test queue.
pub(crate) struct Home {
    process: u32,
    handle: Handle,
    runs_on: Mutex<Option<RunsOn>>,
    /// Stops simulated time; only for test queues.
    still: Option<Still>,
}

/// Threads of a runtime.
pub(crate) enum RunsOn {
    Threads(Runtime),
    /// One thread, which ends when the sender is dropped.
    Test {
        _end: oneshot::Sender<()>,
        thread: std::thread::JoinHandle<()>,
    },
}

impl Home {
    /// Returns the runtime of this process, and starts it if necessary.
    pub(crate) fn shared() -> Result<Arc<Self>> {
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(home) = shared.upgrade().filter(|home| home.check().is_ok() && home.is_open()) {
            return Ok(home);
        }
        let threads = Builder::new_multi_thread()
            .thread_name("leasehold")
            .max_blocking_threads(BLOCKING_THREADS_MAX)
            .enable_all()
            .build()
            .map_err(not_started)?;
        let handle = threads.handle().clone();
        let home = Arc::new(Self::new(handle, RunsOn::Threads(threads), None));
        *shared = Arc::downgrade(&home);
        Ok(home)
    }

    /// Starts a runtime with simulated time.
    #[expect(
        clippy::disallowed_methods,
        reason = "the runtime owns the thread, and waits for it when it is closed"
    )]
    pub(crate) fn for_test() -> Result<Arc<Self>> {
        let (end, ended) = oneshot::channel::<()>();
        let (sender, receiver) = mpsc::channel();
        let run = move || {
            let runtime = Builder::new_current_thread().enable_all().start_paused(true).build();
            match runtime {
                Ok(runtime) => {
                    let still = Still::new(runtime.handle().clone());
                    // The receiver exists: it has just started this thread.
                    let _ = sender.send(Ok((runtime.handle().clone(), still)));
                    let _ = runtime.block_on(ended);
                    runtime.shutdown_background();
                }
                Err(error) => drop(sender.send(Err(error))),
            }
        };
        let thread =
            std::thread::Builder::new().name("leasehold-test".into()).spawn(run).map_err(not_started)?;
        let started = receiver.recv().map_err(not_started)?;
        let (handle, still) = started.map_err(not_started)?;
        Ok(Arc::new(Self::new(handle, RunsOn::Test { _end: end, thread }, Some(still))))
    }

    fn new(handle: Handle, runs_on: RunsOn, still: Option<Still>) -> Self {
        Self { process: std::process::id(), handle, runs_on: Mutex::new(Some(runs_on)), still }
    }

    /// Returns an error in a forked process.
    pub(crate) fn check(&self) -> Result<()> {
        if self.process == std::process::id() {
            return Ok(());
        }
        Err(Error::invalid(
            "this process was forked after the queue was opened, and the queue's threads run only in the \
             parent: connect again in the child, or start processes with the method `spawn`",
        ))
    }

    fn is_open(&self) -> bool {
        self.runs_on.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Spawns a future. `waits` is true if a caller waits for it, which lets simulated time pass.
    pub(crate) fn start(
        &self,
        waits: bool,
        work: impl Future<Output = ()> + Send + 'static,
    ) -> PyResult<Call> {
        self.check().map_err(|error| raised(&error))?;
        let waiting = self.still.as_ref().filter(|_| waits).map(Still::let_go);
        #[expect(
            clippy::disallowed_methods,
            reason = "the call owns it, and the runtime ends with its owner"
        )]
        let task = self.handle.spawn(async move {
            work.await;
            drop(waiting);
        });
        Ok(Call { abort: task.abort_handle() })
    }

    /// Starts a call and puts its answer into the mailbox. A panic becomes an error, so that Python does not hang.
    pub(crate) fn answer(
        &self,
        waits: bool,
        (post, number): (Arc<EventQueue>, u64),
        work: impl Future<Output = JsonAnswer> + Send + 'static,
    ) -> PyResult<Call> {
        self.start(waits, async move {
            let answer = AssertUnwindSafe(work).catch_unwind().await;
            post.answer(
                number,
                answer.unwrap_or_else(|panic| Err(described(&panicked(&*panic)).to_string())),
            );
        })
    }

    /// Stops simulated time until the guard is dropped; `None` where time is real.
    pub(crate) fn hold_still(&self) -> Option<ClockPause> {
        self.still.as_ref().map(Still::held)
    }

    /// Calls a function inside this runtime, so that it reads its clock.
    pub(crate) fn at_this_time<T>(&self, look: impl FnOnce() -> T) -> T {
        let _guard = self.handle.enter();
        look()
    }

    pub(crate) fn is_for_tests(&self) -> bool {
        self.still.is_some()
    }

    /// Takes the threads if this is the last queue on them, so that no new queue uses them. The caller ends them without
    /// the interpreter lock.
    pub(crate) fn close(self: Arc<Self>) -> Option<RunsOn> {
        if Arc::strong_count(&self) > 1 {
            return None;
        }
        if let Some(still) = &self.still {
            still.forget();
        }
        let runs_on = self.runs_on.lock().unwrap_or_else(PoisonError::into_inner).take();
        if self.check().is_err() {
            // The threads belong to the parent.
            std::mem::forget(runs_on);
            return None;
        }
        runs_on
    }
}

impl RunsOn {
    /// Ends the threads and waits for them.
    pub(crate) fn end(self) {
        match self {
            RunsOn::Threads(runtime) => runtime.shutdown_timeout(END_WAIT),
            RunsOn::Test { _end: end, thread } => {
                drop(end);
                // Its result is `()`, or a panic that was already printed.
                let _ = thread.join();
            }
        }
    }
}

impl Drop for Home {
    /// Ends the threads of a queue that was not closed, without waiting. Leaves the threads of a parent process alone.
    fn drop(&mut self) {
        let runs_on = self.runs_on.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        match runs_on {
            Some(RunsOn::Threads(runtime)) if self.process == std::process::id() => {
                runtime.shutdown_background();
            }
            Some(RunsOn::Test { .. }) | None => {}
            Some(runs_on) => std::mem::forget(runs_on),
        }
    }
}

/// Returns the error for a panic.
pub(crate) fn panicked(panic: &(dyn Any + Send)) -> Error {
    Error::new(Kind::Internal, format!("internal error: {}; please report it", words_of(panic)))
}

fn not_started(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::new(Kind::Unavailable, "failed to start the threads of the queue").because(error)
}

/// A spawned call.
#[pyclass(frozen)]
pub(crate) struct Call {
    abort: AbortHandle,
}

#[pymethods]
impl Call {
    /// Aborts the call. The outcome of a write in progress is unknown.
    fn cancel(&self) {
        self.give_up();
    }
}

impl Call {
    pub(crate) fn give_up(&self) {
        self.abort.abort();
    }
}

/// Stops simulated time. Tokio does not advance a paused clock while a blocking task runs.
#[derive(Clone)]
struct Still {
    handle: Handle,
    /// Count and guard under one lock: a call that starts waiting while the last other one ends must not find time
    /// stopped.
    waiting: Arc<Mutex<Waiters>>,
}

/// Number of calls that wait for the queue: time stands still while it is zero.
#[derive(Default)]
struct Waiters {
    count: usize,
    held: Option<ClockPause>,
}

/// Guard that stops simulated time.
pub(crate) struct ClockPause {
    _until: mpsc::Sender<()>,
}

impl Still {
    fn new(handle: Handle) -> Self {
        let still = Self { handle, waiting: Arc::default() };
        still.waiters().held = Some(still.held());
        still
    }

    /// Spawns a blocking task that ends when the guard is dropped.
    fn held(&self) -> ClockPause {
        let (until, released) = mpsc::channel::<()>();
        let waits = move || {
            let _ = released.recv();
        };
        drop(self.handle.spawn_blocking(waits));
        ClockPause { _until: until }
    }

    /// Counts a waiting call until the guard is dropped.
    fn let_go(&self) -> Waiting {
        let mut waiters = self.waiters();
        waiters.count += 1;
        waiters.held = None;
        drop(waiters);
        Waiting { still: self.clone() }
    }

    fn forget(&self) {
        self.waiters().held = None;
    }

    fn waiters(&self) -> std::sync::MutexGuard<'_, Waiters> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Guard of a call that waits for the queue.
struct Waiting {
    still: Still,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut waiters = self.still.waiters();
        waiters.count -= 1;
        if waiters.count == 0 {
            waiters.held = Some(self.still.held());
        }
    }
}
