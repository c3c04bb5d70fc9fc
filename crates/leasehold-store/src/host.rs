//! What a process gets from the machine it runs on: local clocks, pauses, chance.
//!
//! Nothing else in the workspace may ask for these (see `clippy.toml`): the simulator passes in a host of its
//! own and can then replay a whole cluster from one seed.

use futures::future::BoxFuture;
use std::fmt;
use std::time::Duration;

/// A machine, as far as Leasehold needs one.
pub trait Host: fmt::Debug + Send + Sync + 'static {
    /// Both local clocks, read together.
    fn instant(&self) -> Instant;

    /// Waits; nothing happens if the future is dropped.
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()>;

    /// 64 random bits.
    fn random(&self) -> u64;
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
}

fn nanos(time: rustix::time::Timespec) -> i64 {
    time.tv_sec.saturating_mul(1_000_000_000).saturating_add(time.tv_nsec)
}
