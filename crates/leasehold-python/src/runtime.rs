//! Tokio runtime: one per process, created with the first queue and shut down with the last.
//!
//! A forked process has none of its parent's threads. A queue opened before the fork belongs to the parent, and the child
//! gets an error; a queue that the child opens gets a new runtime.
//!
//! A test queue has its own runtime with simulated time, which stands still while Python runs: while a handler is running,
//! and while no call waits for the queue. While a call waits and nothing else can run, time jumps to the next timer.

use futures::FutureExt;
use leasehold_core::{Error, Kind, Result};
use leasehold_store::host::panic_message;
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
use crate::json::{JsonAnswer, describe_error, exception};

/// Largest number of files written at once: more threads would only wait for each other.
const BLOCKING_THREADS_MAX: usize = 64;
/// Longest wait for running tasks when the runtime is shut down.
const END_WAIT: Duration = Duration::from_secs(5);

/// Runtime of this process. Only threads that hold the interpreter lock access it, and a forking thread holds that lock
/// too: no child finds it locked by a thread that it does not have.
static SHARED: Mutex<Weak<SharedRuntime>> = Mutex::new(Weak::new());

/// Runtime of a process, or of a test queue.
pub(crate) struct SharedRuntime {
    process: u32,
    handle: Handle,
    threads: Mutex<Option<RuntimeThreads>>,
    /// Stops simulated time; only for test queues.
    clock: Option<PausedClock>,
}

/// Threads of a runtime.
pub(crate) enum RuntimeThreads {
    Threads(Runtime),
    /// One thread, which ends when the sender is dropped.
    Test {
        _end: oneshot::Sender<()>,
        thread: std::thread::JoinHandle<()>,
    },
}

impl SharedRuntime {
    /// Returns the runtime of this process, and starts it if necessary.
    pub(crate) fn of_process() -> Result<Arc<Self>> {
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(runtime) = shared.upgrade().filter(|runtime| runtime.check().is_ok() && runtime.is_open())
        {
            return Ok(runtime);
        }
        let threads = Builder::new_multi_thread()
            .thread_name("leasehold")
            .max_blocking_threads(BLOCKING_THREADS_MAX)
            .enable_all()
            .build()
            .map_err(start_error)?;
        let handle = threads.handle().clone();
        let runtime = Arc::new(Self::new(handle, RuntimeThreads::Threads(threads), None));
        *shared = Arc::downgrade(&runtime);
        Ok(runtime)
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
                    let clock = PausedClock::new(runtime.handle().clone());
                    // The receiver exists: it has just started this thread.
                    let _ = sender.send(Ok((runtime.handle().clone(), clock)));
                    let _ = runtime.block_on(ended);
                    runtime.shutdown_background();
                }
                Err(error) => drop(sender.send(Err(error))),
            }
        };
        let thread =
            std::thread::Builder::new().name("leasehold-test".into()).spawn(run).map_err(start_error)?;
        let started = receiver.recv().map_err(start_error)?;
        let (handle, clock) = started.map_err(start_error)?;
        Ok(Arc::new(Self::new(handle, RuntimeThreads::Test { _end: end, thread }, Some(clock))))
    }

    fn new(handle: Handle, threads: RuntimeThreads, clock: Option<PausedClock>) -> Self {
        Self { process: std::process::id(), handle, threads: Mutex::new(Some(threads)), clock }
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
        self.threads.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Spawns a future. `waits` is true if a caller waits for it, which lets simulated time pass.
    pub(crate) fn start(
        &self,
        waits: bool,
        work: impl Future<Output = ()> + Send + 'static,
    ) -> PyResult<Call> {
        self.check().map_err(|error| exception(&error))?;
        let waiting = self.clock.as_ref().filter(|_| waits).map(PausedClock::count_waiting);
        #[expect(
            clippy::disallowed_methods,
            reason = "the call owns it, and the runtime ends with its owner"
        )]
        let task = self.handle.spawn(async move {
            work.await;
            drop(waiting);
        });
        Ok(Call { handle: task.abort_handle() })
    }

    /// Starts a call and puts its answer into the event queue. A panic becomes an error, so that Python does not hang.
    pub(crate) fn answer(
        &self,
        waits: bool,
        (events, number): (Arc<EventQueue>, u64),
        work: impl Future<Output = JsonAnswer> + Send + 'static,
    ) -> PyResult<Call> {
        self.start(waits, async move {
            let answer = AssertUnwindSafe(work).catch_unwind().await;
            events.answer(
                number,
                answer.unwrap_or_else(|panic| Err(describe_error(&panic_error(&*panic)).to_string())),
            );
        })
    }

    /// Stops simulated time until the guard is dropped; `None` where time is real.
    pub(crate) fn pause_clock(&self) -> Option<ClockPause> {
        self.clock.as_ref().map(PausedClock::pause)
    }

    /// Calls a function inside this runtime, so that it reads its clock.
    pub(crate) fn with_clock<T>(&self, read: impl FnOnce() -> T) -> T {
        let _guard = self.handle.enter();
        read()
    }

    pub(crate) fn is_for_tests(&self) -> bool {
        self.clock.is_some()
    }

    /// Ends the background work of this process for a queue, such as a broker, and waits for that.
    pub(crate) fn close_queue(&self, queue: &leasehold_queue::Queue) {
        // The threads of a parent process do not run in a fork.
        if self.check().is_ok()
            && let Err(error) = self.handle.block_on(queue.close())
        {
            tracing::warn!(%error, "failed to close the queue cleanly, its lease is left to expire");
        }
    }

    /// Takes the threads if this is the last queue on them, so that no new queue uses them. The caller ends them without
    /// the interpreter lock.
    pub(crate) fn close(self: Arc<Self>) -> Option<RuntimeThreads> {
        if Arc::strong_count(&self) > 1 {
            return None;
        }
        if let Some(clock) = &self.clock {
            clock.release();
        }
        let threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner).take();
        if self.check().is_err() {
            // The threads belong to the parent.
            std::mem::forget(threads);
            return None;
        }
        threads
    }
}

impl RuntimeThreads {
    /// Ends the threads and waits for them.
    pub(crate) fn end(self) {
        match self {
            RuntimeThreads::Threads(runtime) => runtime.shutdown_timeout(END_WAIT),
            RuntimeThreads::Test { _end: end, thread } => {
                drop(end);
                // Its result is `()`, or a panic that was already printed.
                let _ = thread.join();
            }
        }
    }
}

impl Drop for SharedRuntime {
    /// Ends the threads of a queue that was not closed, without waiting. Leaves the threads of a parent process alone.
    fn drop(&mut self) {
        let threads = self.threads.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        match threads {
            Some(RuntimeThreads::Threads(runtime)) if self.process == std::process::id() => {
                runtime.shutdown_background();
            }
            Some(RuntimeThreads::Test { .. }) | None => {}
            Some(threads) => std::mem::forget(threads),
        }
    }
}

/// Returns the error for a panic.
pub(crate) fn panic_error(panic: &(dyn Any + Send)) -> Error {
    Error::new(Kind::Internal, format!("internal error: {}; please report it", panic_message(panic)))
}

fn start_error(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::new(Kind::Unavailable, "failed to start the threads of the queue").because(error)
}

/// A spawned call.
#[pyclass(frozen)]
pub(crate) struct Call {
    handle: AbortHandle,
}

#[pymethods]
impl Call {
    /// Aborts the call. The outcome of a write in progress is unknown.
    fn cancel(&self) {
        self.abort();
    }
}

impl Call {
    pub(crate) fn abort(&self) {
        self.handle.abort();
    }
}

/// Stops simulated time. Tokio does not advance a paused clock while a blocking task runs.
#[derive(Clone)]
struct PausedClock {
    handle: Handle,
    /// Count and guard under one lock: a call that starts waiting while the last other one ends must not find time
    /// stopped.
    waiting: Arc<Mutex<Waiters>>,
}

/// Number of calls that wait for the queue: time stands still while it is zero.
#[derive(Default)]
struct Waiters {
    count: usize,
    pause: Option<ClockPause>,
}

/// Guard that stops simulated time.
pub(crate) struct ClockPause {
    _until: mpsc::Sender<()>,
}

impl PausedClock {
    fn new(handle: Handle) -> Self {
        let clock = Self { handle, waiting: Arc::default() };
        clock.waiters().pause = Some(clock.pause());
        clock
    }

    /// Spawns a blocking task that ends when the guard is dropped.
    fn pause(&self) -> ClockPause {
        let (until, released) = mpsc::channel::<()>();
        let waits = move || {
            let _ = released.recv();
        };
        drop(self.handle.spawn_blocking(waits));
        ClockPause { _until: until }
    }

    /// Counts a waiting call until the guard is dropped.
    fn count_waiting(&self) -> Waiting {
        let mut waiters = self.waiters();
        waiters.count += 1;
        waiters.pause = None;
        drop(waiters);
        Waiting { clock: self.clone() }
    }

    fn release(&self) {
        self.waiters().pause = None;
    }

    fn waiters(&self) -> std::sync::MutexGuard<'_, Waiters> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Guard of a call that waits for the queue.
struct Waiting {
    clock: PausedClock,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut waiters = self.clock.waiters();
        waiters.count -= 1;
        if waiters.count == 0 {
            waiters.pause = Some(self.clock.pause());
        }
    }
}
