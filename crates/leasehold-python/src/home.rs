//! The runtime on which everything runs: one per process, made when the first queue is opened, and ended with the last.
//!
//! A process that was forked has none of its parent's threads. Whatever was opened before belongs to the parent and is
//! refused in the child; what the child opens gets a runtime of its own.
//!
//! A queue for tests has a runtime to itself, in a time that stands still while Python runs: while a handler does, and
//! while nobody waits for the queue. Whenever someone waits and nothing can happen, time jumps to the next moment that
//! something waits for.

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

use crate::mailbox::Post;
use crate::told::{Told, described, raised};

/// So many files are written at once, at most: more threads than that only wait for each other.
const BLOCKING_THREADS_MAX: usize = 64;
/// How long the end of a runtime waits for what still runs there.
const END_WAIT: Duration = Duration::from_secs(5);

/// The runtime of this process. It is only touched by threads that hold the interpreter's lock, as whoever forks does
/// too: no child finds it locked by a thread that it does not have.
static SHARED: Mutex<Weak<Home>> = Mutex::new(Weak::new());

/// Where things run.
pub(crate) struct Home {
    process: u32,
    handle: Handle,
    runs_on: Mutex<Option<RunsOn>>,
    /// For tests: what keeps time still.
    still: Option<Still>,
}

/// The threads themselves.
pub(crate) enum RunsOn {
    Threads(Runtime),
    /// One thread, which ends when this is dropped.
    Test {
        _end: oneshot::Sender<()>,
        thread: std::thread::JoinHandle<()>,
    },
}

impl Home {
    /// The runtime of this process.
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

    /// A runtime in which a test moves the time.
    #[expect(
        clippy::disallowed_methods,
        reason = "the home owns the thread, and waits for it when it is closed"
    )]
    pub(crate) fn for_test() -> Result<Arc<Self>> {
        let (end, ended) = oneshot::channel::<()>();
        let (tell, told) = mpsc::channel();
        let run = move || {
            let runtime = Builder::new_current_thread().enable_all().start_paused(true).build();
            match runtime {
                Ok(runtime) => {
                    let still = Still::new(runtime.handle().clone());
                    // Whoever waits for it is there: it has just started this thread.
                    let _ = tell.send(Ok((runtime.handle().clone(), still)));
                    let _ = runtime.block_on(ended);
                    runtime.shutdown_background();
                }
                Err(error) => drop(tell.send(Err(error))),
            }
        };
        let thread =
            std::thread::Builder::new().name("leasehold-test".into()).spawn(run).map_err(not_started)?;
        let started = told.recv().map_err(not_started)?;
        let (handle, still) = started.map_err(not_started)?;
        Ok(Arc::new(Self::new(handle, RunsOn::Test { _end: end, thread }, Some(still))))
    }

    fn new(handle: Handle, runs_on: RunsOn, still: Option<Still>) -> Self {
        Self { process: std::process::id(), handle, runs_on: Mutex::new(Some(runs_on)), still }
    }

    /// Refuses a process that was forked.
    pub(crate) fn check(&self) -> Result<()> {
        if self.process == std::process::id() {
            return Ok(());
        }
        Err(Error::invalid(
            "this process was forked after the queue was opened, and has none of the threads that serve it: connect \
             again in the child, or start processes with the method `spawn`",
        ))
    }

    fn is_open(&self) -> bool {
        self.runs_on.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Starts something. `waits` says that someone waits for it, so that the time of a test may pass.
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

    /// Starts a call and mails its answer. A panic is an answer, too: in Python a bug of ours is an error and not a hang.
    pub(crate) fn answer(
        &self,
        waits: bool,
        (post, number): (Arc<Post>, u64),
        work: impl Future<Output = Told> + Send + 'static,
    ) -> PyResult<Call> {
        self.start(waits, async move {
            let told = AssertUnwindSafe(work).catch_unwind().await;
            post.answer(number, told.unwrap_or_else(|panic| Err(described(&panicked(&*panic)).to_string())));
        })
    }

    /// Keeps the time of a test still until the guard is dropped; nothing where time is real.
    pub(crate) fn hold_still(&self) -> Option<Held> {
        self.still.as_ref().map(Still::held)
    }

    /// Looks at something in the time of this runtime.
    pub(crate) fn at_this_time<T>(&self, look: impl FnOnce() -> T) -> T {
        let _guard = self.handle.enter();
        look()
    }

    pub(crate) fn is_for_tests(&self) -> bool {
        self.still.is_some()
    }

    /// Takes the threads away from the last queue on them, so that nobody else finds them; to be ended without the
    /// interpreter's lock.
    pub(crate) fn close(self: Arc<Self>) -> Option<RunsOn> {
        if Arc::strong_count(&self) > 1 {
            return None;
        }
        if let Some(still) = &self.still {
            still.forget();
        }
        let runs_on = self.runs_on.lock().unwrap_or_else(PoisonError::into_inner).take();
        if self.check().is_err() {
            // They are the parent's.
            std::mem::forget(runs_on);
            return None;
        }
        runs_on
    }
}

impl RunsOn {
    /// Ends the threads, and waits for them.
    pub(crate) fn end(self) {
        match self {
            RunsOn::Threads(runtime) => runtime.shutdown_timeout(END_WAIT),
            RunsOn::Test { _end: end, thread } => {
                drop(end);
                // It has nothing to say.
                let _ = thread.join();
            }
        }
    }
}

impl Drop for Home {
    /// Nobody has closed the queue. Its threads end, but nobody waits for that; those of a parent are not ours to end.
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

/// The error for a panic.
pub(crate) fn panicked(panic: &(dyn Any + Send)) -> Error {
    Error::new(Kind::Internal, format!("internal error: {}; please report it", words_of(panic)))
}

fn not_started(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::new(Kind::Unavailable, "the threads of the queue cannot be started").because(error)
}

/// Something that was started.
#[pyclass(frozen)]
pub(crate) struct Call {
    abort: AbortHandle,
}

#[pymethods]
impl Call {
    /// Gives it up. What it was about to write may be written, or may not.
    fn cancel(&self) {
        self.give_up();
    }
}

impl Call {
    pub(crate) fn give_up(&self) {
        self.abort.abort();
    }
}

/// What keeps the time of a test still. Tokio does not let time jump while something blocks.
#[derive(Clone)]
struct Still {
    handle: Handle,
    /// Counted and held under one lock: one who begins to wait while the last other one ends must find time moving.
    waiting: Arc<Mutex<Waiters>>,
}

/// Who waits for the queue: time stands still while it is nobody.
#[derive(Default)]
struct Waiters {
    count: usize,
    held: Option<Held>,
}

/// Time stands still as long as this is there.
pub(crate) struct Held {
    _until: mpsc::Sender<()>,
}

impl Still {
    fn new(handle: Handle) -> Self {
        let still = Self { handle, waiting: Arc::default() };
        still.waiters().held = Some(still.held());
        still
    }

    /// What is spawned only waits for its guard, which ends it.
    fn held(&self) -> Held {
        let (until, released) = mpsc::channel::<()>();
        let waits = move || {
            let _ = released.recv();
        };
        drop(self.handle.spawn_blocking(waits));
        Held { _until: until }
    }

    /// Someone waits for the queue, until the guard is dropped.
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

/// Someone waits for the queue.
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
