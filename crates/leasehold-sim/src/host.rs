//! Machines with wrong clocks, and the processes that run on them.
//!
//! A machine's boot clock runs up to 500 ppm fast or slow and starts at a random value. Its wall clock runs
//! at the same rate (one crystal drives both), is off by hours or years, and jumps on demand. When a machine
//! *stalls* (a paused virtual machine), its boot clock misses that time and its wall clock does not.

use futures::FutureExt;
use futures::future::BoxFuture;
use leasehold_store::host::{Host, HostExt, HostProcess, Instant, Running};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;

use crate::executor::{Executor, ProcessId};
use crate::random::SimRandom;

/// Maximum rate error of a local clock: the most by which `ntpd` and `chronyd` slew.
const RATE_PPM_MAX: i64 = 500;
/// Maximum delay before blocking work runs.
const BLOCKS_WITHIN: Duration = Duration::from_millis(20);
/// 2026-01-01, the origin of wall clocks.
pub(crate) const EPOCH_NS: i64 = 1_767_225_600_000_000_000;

/// Clocks of one machine. They outlive its processes.
#[derive(Debug)]
pub struct Machine {
    rate_ppm: i64,
    /// Number of boots.
    boots: u64,
    clocks: Mutex<Clocks>,
}

#[derive(Debug)]
#[expect(clippy::struct_field_names, reason = "units last")]
struct Clocks {
    boot_offset_ns: i64,
    wall_offset_ns: i64,
    /// Time that the boot clock did not count.
    missed_ns: i64,
}

impl Machine {
    /// Creates a machine with random clock errors.
    pub(crate) fn new(rng: &mut SimRandom) -> Self {
        let years_off = rng.around_zero(2) * i64::from(rng.happens(2_000));
        let wall_offset_ns =
            EPOCH_NS + years_off * 365 * 86_400 * SECOND_NS + rng.around_zero(10 * 3_600 * SECOND_NS);
        let boot_offset_ns = rng.around_zero(1_000_000 * SECOND_NS).abs();
        let clocks = Mutex::new(Clocks { boot_offset_ns, wall_offset_ns, missed_ns: 0 });
        Self { rate_ppm: rng.around_zero(RATE_PPM_MAX), boots: 1, clocks }
    }

    /// Returns the machine after a reboot: its boot clock starts at zero.
    pub(crate) fn rebooted(&self, now: Duration) -> Self {
        let clocks = self.clocks();
        let boot_offset_ns = -self.local_ns(now);
        let again = Clocks { boot_offset_ns, wall_offset_ns: clocks.wall_offset_ns, missed_ns: 0 };
        Self { rate_ppm: self.rate_ppm, boots: self.boots + 1, clocks: Mutex::new(again) }
    }

    /// Sets the wall clock forward or back.
    pub(crate) fn jump_wall(&self, by_ns: i64) {
        self.clocks().wall_offset_ns += by_ns;
    }

    /// Makes the boot clock miss the last `duration`.
    pub(crate) fn miss(&self, duration: Duration) {
        let missed_ns = self.local_ns(duration);
        self.clocks().missed_ns += missed_ns;
    }

    fn instant(&self, now: Duration) -> Instant {
        let (local_ns, clocks) = (self.local_ns(now), self.clocks());
        Instant {
            boot_ns: clocks.boot_offset_ns + local_ns - clocks.missed_ns,
            wall_ns: clocks.wall_offset_ns + local_ns,
        }
    }

    /// Converts virtual time to time as this machine's crystal counts it.
    fn local_ns(&self, duration: Duration) -> i64 {
        let ns = nanos(duration);
        ns + ns / MILLION * self.rate_ppm + ns % MILLION * self.rate_ppm / MILLION
    }

    /// Returns the virtual time that passes while this machine counts `duration`.
    fn virtual_of(&self, duration: Duration) -> Duration {
        let ns = nanos(duration);
        let faster = ns / MILLION * self.rate_ppm + ns % MILLION * self.rate_ppm / MILLION;
        Duration::from_nanos(u64::try_from(ns.saturating_sub(faster)).unwrap_or(0))
    }

    fn clocks(&self) -> MutexGuard<'_, Clocks> {
        self.clocks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const SECOND_NS: i64 = 1_000_000_000;
const MILLION: i64 = 1_000_000;

pub(crate) fn nanos(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

/// The [`Host`] of one process.
#[derive(Debug)]
pub struct SimHost {
    process: ProcessId,
    name: String,
    machine: Arc<Machine>,
    executor: Executor,
    rng: Mutex<SimRandom>,
}

impl SimHost {
    pub(crate) fn new(
        process: ProcessId,
        name: String,
        machine: Arc<Machine>,
        executor: Executor,
        rng: SimRandom,
    ) -> Self {
        Self { process, name, machine, executor, rng: Mutex::new(rng) }
    }

    /// Returns the process that runs here.
    #[must_use]
    pub fn process(&self) -> ProcessId {
        self.process
    }

    /// Name in the trace: the machine, and the number of the start.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Number of the machine's boot that the process runs in.
    #[must_use]
    pub fn boot(&self) -> u64 {
        self.machine.boots
    }

    pub(crate) fn machine(&self) -> &Machine {
        &self.machine
    }
}

impl Host for SimHost {
    fn instant(&self) -> Instant {
        self.machine.instant(self.executor.now())
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.executor.sleep(self.machine.virtual_of(duration)).boxed()
    }

    fn random(&self) -> u64 {
        self.rng.lock().unwrap_or_else(PoisonError::into_inner).next()
    }

    fn spawn(&self, work: BoxFuture<'static, ()>) -> Running {
        self.executor.spawn_owned(self.process, work)
    }

    /// Spawns a normal task: the simulation has only one thread.
    fn spawn_thread(&self, _name: &str, work: BoxFuture<'static, ()>) -> Running {
        self.executor.spawn_owned(self.process, work)
    }

    fn process(&self) -> HostProcess {
        HostProcess { host: self.name.clone(), pid: self.process.number() }
    }

    /// Runs blocking work in one step after a short delay, in which the process may be killed.
    fn block(&self, work: Box<dyn FnOnce() + Send>) -> BoxFuture<'static, ()> {
        let moment = self.sleep(self.random_below(BLOCKS_WITHIN));
        let (done, finished) = oneshot::channel::<()>();
        let later = async move {
            moment.await;
            work();
            drop(done);
        };
        self.executor.spawn(self.process, Box::pin(later));
        finished.map(|_| ()).boxed()
    }
}
