//! What a process gets from the machine it runs on: local clocks, pauses, chance, things that run beside each other.
//!
//! Nothing else in the workspace may ask for these (see `clippy.toml`): the simulator passes in a host of its
//! own and can then replay a whole cluster from one seed.

use futures::FutureExt;
use futures::future::BoxFuture;
use leasehold_core::{Error, Kind, Result};
use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::oneshot;

/// A machine, as far as Leasehold needs one.
pub trait Host: fmt::Debug + Send + Sync + 'static {
    /// Both local clocks, read together.
    fn instant(&self) -> Instant;

    /// Waits; nothing happens if the future is dropped.
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()>;

    /// 64 random bits.
    fn random(&self) -> u64;

    /// Runs something beside the caller, who owns it: it ends when the [`Running`] is dropped.
    fn spawn(&self, work: BoxFuture<'static, ()>) -> Running;

    /// Runs something on a thread of its own, which nothing else can keep busy.
    fn spawn_apart(&self, name: &str, work: BoxFuture<'static, ()>) -> Running;

    /// Does something that blocks, or computes for long, where it holds nobody up. It goes on if the future is dropped.
    /// A host that has but one thread does it at once.
    fn block(&self, work: Box<dyn FnOnce() + Send>) -> BoxFuture<'static, ()> {
        work();
        Box::pin(futures::future::ready(()))
    }
}

/// Something that runs beside its owner. Wait for it to end, or drop it to end it.
pub struct Running {
    end: BoxFuture<'static, End>,
    stop: Option<Box<dyn FnOnce() + Send + Sync>>,
}

/// How something that ran has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// It came to its end.
    Done,
    /// It panicked, with these words.
    Panicked(String),
    /// It was stopped.
    Stopped,
}

impl Running {
    /// For hosts: `end` tells how it ended, `stop` ends it early.
    pub fn new(end: BoxFuture<'static, End>, stop: impl FnOnce() + Send + Sync + 'static) -> Self {
        Self { end, stop: Some(Box::new(stop)) }
    }

    /// Ends it; it can still be waited for.
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

/// The words of a panic.
#[must_use]
pub fn words_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text =
        panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("a panic without words").to_owned()
}

/// One reading of the local clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Instant {
    /// Nanoseconds since the machine started, sleep included. Its zero means nothing to anyone else.
    pub boot_ns: i64,
    /// Nanoseconds since 1970 by the wall clock. It may be wrong by years and may jump; it is used only to
    /// notice that time has passed which the boot clock did not count, as when a virtual machine was paused.
    pub wall_ns: i64,
}

impl Instant {
    /// How long after `earlier` this is by the boot clock.
    #[must_use]
    pub fn since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(u64::try_from(self.boot_ns.saturating_sub(earlier.boot_ns)).unwrap_or(0))
    }
}

/// Chance in useful shapes, for any host.
pub trait HostExt: Host {
    /// 128 random bits.
    fn random_bits(&self) -> u128 {
        (u128::from(self.random()) << 64) | u128::from(self.random())
    }

    /// A random duration below `bound`.
    fn random_below(&self, bound: Duration) -> Duration {
        let nanos = u64::try_from(bound.as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos(if nanos == 0 { 0 } else { self.random() % nanos })
    }

    /// The result of something that blocks.
    fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> BoxFuture<'static, Result<T>> {
        let (tell, told) = oneshot::channel();
        let done = self.block(Box::new(move || {
            // Nobody may be left to tell.
            let _ = tell.send(work());
        }));
        Box::pin(async move {
            done.await;
            told.await.unwrap_or_else(|_| Err(Error::new(Kind::Internal, "a thread that blocked has died")))
        })
    }
}

impl<H: Host + ?Sized> HostExt for H {}

/// The machine this process really runs on.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemHost;

#[expect(clippy::disallowed_methods, reason = "the one place where the real clocks and real chance come in")]
impl Host for SystemHost {
    fn instant(&self) -> Instant {
        // CLOCK_BOOTTIME counts the time a laptop or a Raspberry Pi was asleep; Instant does not, and a lease
        // would seem to live on after a nap.
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
            Err(error) if error.is_panic() => End::Panicked(words_of(&*error.into_panic())),
            Err(_) => End::Stopped,
        });
        Running::new(end.boxed(), move || handle.abort())
    }

    fn spawn_apart(&self, name: &str, work: BoxFuture<'static, ()>) -> Running {
        let (stop, stopped) = oneshot::channel::<()>();
        let (tell, told) = oneshot::channel();
        let run = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let end = match runtime {
                Ok(runtime) => runtime.block_on(to_its_end(work, stopped)),
                Err(error) => End::Panicked(error.to_string()),
            };
            // Nobody may be left to tell.
            let _ = tell.send(end);
        };
        if let Err(error) = std::thread::Builder::new().name(name.to_owned()).spawn(run) {
            return Running::new(futures::future::ready(End::Panicked(error.to_string())).boxed(), || ());
        }
        Running::new(told.map(|end| end.unwrap_or(End::Stopped)).boxed(), move || drop(stop))
    }

    fn block(&self, work: Box<dyn FnOnce() + Send>) -> BoxFuture<'static, ()> {
        tokio::task::spawn_blocking(work).map(|_| ()).boxed()
    }
}

async fn to_its_end(work: BoxFuture<'static, ()>, stopped: oneshot::Receiver<()>) -> End {
    let guarded = AssertUnwindSafe(work).catch_unwind();
    match futures::future::select(guarded, stopped).await {
        futures::future::Either::Left((Ok(()), _)) => End::Done,
        futures::future::Either::Left((Err(panic), _)) => End::Panicked(words_of(&*panic)),
        futures::future::Either::Right(_) => End::Stopped,
    }
}

fn nanos(time: rustix::time::Timespec) -> i64 {
    time.tv_sec.saturating_mul(1_000_000_000).saturating_add(time.tv_nsec)
}
