//! Interface to the machine: local clocks, timers, randomness, concurrent tasks.
//!
//! Nothing else in the workspace may use these (see `clippy.toml`): the simulator passes in a host of its own and can
//! replay a whole cluster from one seed.

#[cfg(feature = "tokio-time")]
mod tokio_time;

#[cfg(feature = "tokio-time")]
pub use tokio_time::TokioTimeHost;

use futures::FutureExt;
use futures::future::{BoxFuture, Either, select};
use leasehold_core::{Error, HexName, Kind, Result};
use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::oneshot;

/// Machine on which a process runs.
pub trait Host: fmt::Debug + Send + Sync + 'static {
    /// Reads both local clocks together.
    fn instant(&self) -> Instant;

    /// Waits. Dropping the future has no effect.
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()>;

    /// Returns 64 random bits.
    fn random(&self) -> u64;

    /// Runs a future concurrently. It is stopped when the returned [`Running`] is dropped.
    fn spawn(&self, work: BoxFuture<'static, ()>) -> Running;

    /// Runs a future on a thread of its own, which no other work can block.
    fn spawn_thread(&self, name: &str, work: BoxFuture<'static, ()>) -> Running;

    /// This process and its machine, for messages to people. Two processes may have equal values.
    fn process(&self) -> HostProcess {
        HostProcess { host: "localhost".into(), pid: 0 }
    }

    /// Runs blocking or long computing work on another thread. It continues if the future is dropped. A host with only
    /// one thread runs it at once.
    fn block(&self, work: Box<dyn FnOnce() + Send>) -> BoxFuture<'static, ()> {
        work();
        Box::pin(futures::future::ready(()))
    }
}

/// Process on a machine, as people look for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostProcess {
    /// Name of the machine.
    pub host: String,
    /// Process id.
    pub pid: u32,
}

impl fmt::Display for HostProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} on host {}", self.pid, self.host)
    }
}

/// Memory of this process in bytes, as the kernel counts it; none if it does not tell.
#[must_use]
pub fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1_024)
}

/// Handle to concurrent work. Await it, or drop it to stop the work.
pub struct Running {
    end: BoxFuture<'static, End>,
    stop: Option<Box<dyn FnOnce() + Send + Sync>>,
}

/// End of concurrent work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// It finished.
    Done,
    /// It panicked, with this message.
    Panicked(String),
    /// It was stopped.
    Stopped,
}

impl Running {
    /// Creates a handle, for hosts: `end` resolves at the end, `stop` stops it early.
    pub fn new(end: BoxFuture<'static, End>, stop: impl FnOnce() + Send + Sync + 'static) -> Self {
        Self { end, stop: Some(Box::new(stop)) }
    }

    /// Stops it; it can still be awaited.
    pub fn stop(&mut self) {
        if let Some(stop) = self.stop.take() {
            stop();
        }
    }
}

impl Future for Running {
    type Output = End;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<End> {
        self.end.as_mut().poll(context)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop();
    }
}

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Running")
    }
}

/// Returns the message of a panic.
#[must_use]
pub fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text =
        panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("panic without a message").to_owned()
}

/// Reading of the local clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Instant {
    /// Nanoseconds since boot, including sleep. Not comparable between machines.
    pub boot_ns: i64,
    /// Nanoseconds since 1970 by the wall clock. It may be wrong by years and may jump; it is used only to detect time
    /// that the boot clock did not count, as when a virtual machine was paused.
    pub wall_ns: i64,
}

impl Instant {
    /// Duration since `earlier` by the boot clock.
    #[must_use]
    pub fn since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(u64::try_from(self.boot_ns.saturating_sub(earlier.boot_ns)).unwrap_or(0))
    }

    /// Duration since boot.
    #[must_use]
    pub fn since_boot(self) -> Duration {
        Duration::from_nanos(u64::try_from(self.boot_ns).unwrap_or(0))
    }
}

/// Random values in other types, for any host.
pub trait HostExt: Host {
    /// Returns 128 random bits.
    fn random_bits(&self) -> u128 {
        (u128::from(self.random()) << 64) | u128::from(self.random())
    }

    /// Returns a random name.
    fn random_name(&self) -> HexName {
        HexName::from_random(self.random_bits())
    }

    /// Returns a random duration below `bound`.
    fn random_below(&self, bound: Duration) -> Duration {
        let nanos = u64::try_from(bound.as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos(if nanos == 0 { 0 } else { self.random() % nanos })
    }

    /// Waits for an answer, up to a time limit.
    fn in_time<T>(
        &self,
        limit: Duration,
        answer: impl Future<Output = Result<T>> + Send,
    ) -> impl Future<Output = Result<T>> + Send {
        let late = self.sleep(limit);
        async move {
            match select(Box::pin(answer), late).await {
                Either::Left((answer, _)) => answer,
                Either::Right(_) => Err(Error::new(Kind::Unavailable, "request timed out")),
            }
        }
    }

    /// Runs blocking work and returns its result.
    fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> BoxFuture<'static, Result<T>> {
        let (sender, receiver) = oneshot::channel();
        let done = self.block(Box::new(move || {
            // The receiver may be gone.
            let _ = sender.send(work());
        }));
        Box::pin(async move {
            done.await;
            let panicked = |_| Err(Error::new(Kind::Internal, "blocking work panicked"));
            receiver.await.unwrap_or_else(panicked)
        })
    }
}

impl<H: Host + ?Sized> HostExt for H {}

/// Locks a mutex whose content is valid at every moment: that another holder has panicked does not matter.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The real machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemHost;

#[expect(clippy::disallowed_methods, reason = "the only use of the real clocks and random numbers")]
impl Host for SystemHost {
    fn instant(&self) -> Instant {
        // CLOCK_BOOTTIME includes the time during which a laptop or a Raspberry Pi was suspended; Instant does not, and
        // a lease would seem valid after a suspend.
        let boot = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let wall = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
        Instant { boot_ns: nanos(boot), wall_ns: nanos(wall) }
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(duration))
    }

    fn random(&self) -> u64 {
        rand::random()
    }

    fn spawn(&self, work: BoxFuture<'static, ()>) -> Running {
        let task = tokio::spawn(work);
        let handle = task.abort_handle();
        let end = task.map(|joined| match joined {
            Ok(()) => End::Done,
            Err(error) if error.is_panic() => End::Panicked(panic_message(&*error.into_panic())),
            Err(_) => End::Stopped,
        });
        Running::new(end.boxed(), move || handle.abort())
    }

    fn spawn_thread(&self, name: &str, work: BoxFuture<'static, ()>) -> Running {
        let (stop, stopped) = oneshot::channel::<()>();
        let (sender, receiver) = oneshot::channel();
        let run = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let end = match runtime {
                Ok(runtime) => runtime.block_on(to_its_end(work, stopped)),
                Err(error) => End::Panicked(error.to_string()),
            };
            // The receiver may be gone.
            let _ = sender.send(end);
        };
        if let Err(error) = std::thread::Builder::new().name(name.to_owned()).spawn(run) {
            return Running::new(futures::future::ready(End::Panicked(error.to_string())).boxed(), || ());
        }
        Running::new(receiver.map(|end| end.unwrap_or(End::Stopped)).boxed(), move || drop(stop))
    }

    fn process(&self) -> HostProcess {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        HostProcess { host, pid: std::process::id() }
    }

    fn block(&self, work: Box<dyn FnOnce() + Send>) -> BoxFuture<'static, ()> {
        tokio::task::spawn_blocking(work).map(|_| ()).boxed()
    }
}

async fn to_its_end(work: BoxFuture<'static, ()>, stopped: oneshot::Receiver<()>) -> End {
    let guarded = AssertUnwindSafe(work).catch_unwind();
    match futures::future::select(guarded, stopped).await {
        futures::future::Either::Left((Ok(()), _)) => End::Done,
        futures::future::Either::Left((Err(panic), _)) => End::Panicked(panic_message(&*panic)),
        futures::future::Either::Right(_) => End::Stopped,
    }
}

fn nanos(time: rustix::time::Timespec) -> i64 {
    time.tv_sec.saturating_mul(1_000_000_000).saturating_add(time.tv_nsec)
}
