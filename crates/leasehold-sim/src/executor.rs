//! The executor: one thread, virtual time, many processes.
//!
//! ```text
//!   ready tasks ── one chosen at random ──▶ polled ──▶ waits, or ends
//!        ▲                                                  │
//!        └── woken ◀── nothing ready: time jumps to the next timer
//! ```
//!
//! Every task belongs to a process. A process that is *killed* loses its tasks at the await they are at. One
//! that is *paused* keeps them, but none is polled until the pause ends, so its timers seem to fire late.
//! Nothing here depends on addresses, hashes or real time: one seed gives one order of polls.
//!
//! Futures are polled, woken and dropped without a lock, because all of these may call back.

mod core;

use futures::FutureExt;
use futures::future::BoxFuture;
use leasehold_store::host::{End, Running, panic_message};
use std::fmt;
use std::mem::take;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::sync::oneshot;

use self::core::{Core, Process, ScheduledTask, TaskWaker, Timer};
use crate::random::SimRandom;
use crate::sleep::Sleep;
use crate::trace::Trace;

/// A started process; a restart creates a new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessId(usize);

impl ProcessId {
    /// The world itself: requests in flight, faults to come. It is never killed.
    pub const WORLD: ProcessId = ProcessId(0);

    /// Number of the process, in the order of their starts.
    #[must_use]
    pub fn number(self) -> u32 {
        u32::try_from(self.0).unwrap_or(u32::MAX)
    }
}

/// Outcome of one step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExecutorStep {
    /// A task was polled.
    Polled,
    /// A task without an owner was polled and panicked with this message.
    Panicked(String),
    /// No task was ready; time has advanced to the next timer, or to the given end.
    Passed,
    /// No task is ready and no timer is set: nothing will ever happen again.
    AtRest,
}

/// The executor. Clones share it.
#[derive(Clone)]
pub struct Executor {
    core: Arc<Mutex<Core>>,
    ready: Arc<Mutex<Vec<u64>>>,
    trace: Trace,
}

impl Executor {
    /// Creates an executor at virtual time zero, with only [`ProcessId::WORLD`] in it.
    #[must_use]
    pub fn new(rng: SimRandom, trace: Trace) -> Self {
        let executor = Self { core: Arc::new(Mutex::new(Core::new(rng))), ready: Arc::default(), trace };
        let world = executor.process("world");
        debug_assert_eq!(world, ProcessId::WORLD);
        executor
    }

    /// Starts a process without tasks.
    #[must_use]
    pub fn process(&self, name: &str) -> ProcessId {
        let mut core = lock(&self.core);
        core.processes.push(Process::new(name));
        ProcessId(core.processes.len() - 1)
    }

    /// Returns the virtual time since the start.
    #[must_use]
    pub fn now(&self) -> Duration {
        lock(&self.core).now
    }

    /// Returns whether a process has not been killed.
    #[must_use]
    pub fn is_alive(&self, process: ProcessId) -> bool {
        lock(&self.core).processes[process.0].alive
    }

    /// Spawns a task without an owner; it ends with its process. A killed process takes none.
    pub fn spawn(&self, process: ProcessId, work: BoxFuture<'static, ()>) {
        self.add(process, work, None);
    }

    /// Spawns a task that ends when its owner drops it.
    #[must_use]
    pub fn spawn_owned(&self, process: ProcessId, work: BoxFuture<'static, ()>) -> Running {
        let (sender, receiver) = oneshot::channel();
        let task = self.add(process, work, Some(sender));
        let executor = self.clone();
        let stop = move || drop(task.and_then(|task| lock(&executor.core).tasks.remove(&task)));
        Running::new(receiver.map(|end| end.unwrap_or(End::Stopped)).boxed(), stop)
    }

    /// Waits until this virtual time has passed.
    #[must_use]
    pub fn sleep(&self, duration: Duration) -> Sleep {
        Sleep::until(self.clone(), self.now() + duration)
    }

    /// Drops every task of a process at the await it is at; the process never runs again.
    pub fn kill(&self, process: ProcessId) {
        self.log(process, "is killed");
        let mut core = lock(&self.core);
        core.processes[process.0].alive = false;
        let dead: Vec<_> = core.tasks.extract_if(.., |_, task| task.process == process).collect();
        drop(core);
        drop(dead);
    }

    /// Polls none of a process's tasks for a while. A longer pause that is in progress continues.
    pub fn pause(&self, process: ProcessId, duration: Duration) {
        self.log(process, format_args!("is paused for {duration:?}"));
        let mut core = lock(&self.core);
        let until = core.now + duration;
        if until > core.processes[process.0].paused_until {
            core.processes[process.0].paused_until = until;
            let place = (until, core.next_id());
            core.timers.insert(place, Timer::Resume(process));
        }
    }

    /// Polls one task, or lets time pass, but not beyond `end`.
    #[must_use]
    pub fn step(&self, end: Duration) -> ExecutorStep {
        match self.choose() {
            Some((task, process, work, waker)) => self.poll(task, process, work, &waker),
            None => self.advance_time(end),
        }
    }

    /// Drops every task and timer, which hold the executor that holds them.
    pub fn clear(&self) {
        let mut core = lock(&self.core);
        core.processes.iter_mut().for_each(|process| process.alive = false);
        let gone = (take(&mut core.tasks), take(&mut core.timers));
        drop(core);
        drop(gone);
    }

    pub(crate) fn set_timer(&self, at: Duration, waker: Waker) -> (Duration, u64) {
        let mut core = lock(&self.core);
        let place = (at, core.next_id());
        core.timers.insert(place, Timer::Wake(waker));
        place
    }

    pub(crate) fn change_timer(&self, place: (Duration, u64), waker: Option<Waker>) {
        let mut core = lock(&self.core);
        let old = core.timers.remove(&place);
        if let Some(waker) = waker {
            core.timers.insert(place, Timer::Wake(waker));
        }
        drop(core);
        drop(old);
    }

    fn add(
        &self,
        process: ProcessId,
        work: BoxFuture<'static, ()>,
        on_end: Option<oneshot::Sender<End>>,
    ) -> Option<u64> {
        let mut core = lock(&self.core);
        if !core.processes[process.0].alive {
            drop(core);
            drop(work);
            return None;
        }
        let task = core.next_id();
        let waker = Arc::new(TaskWaker { task, queued: AtomicBool::new(false), ready: self.ready.clone() });
        core.tasks.insert(task, ScheduledTask { process, work: Some(work), waker: waker.clone(), on_end });
        drop(core);
        Waker::from(waker).wake();
        Some(task)
    }

    /// Takes a random ready task with its work; tasks of paused processes are set aside.
    fn choose(&self) -> Option<(u64, ProcessId, BoxFuture<'static, ()>, Arc<TaskWaker>)> {
        let mut core = lock(&self.core);
        let mut ready = lock(&self.ready);
        // Code that wakes several tasks at once may do so in any order, as tokio does.
        ready.sort_unstable();
        while !ready.is_empty() {
            let index = core.rng.index(ready.len());
            let task = ready.swap_remove(index);
            let Some(process) = core.tasks.get(&task).map(|task| task.process) else { continue };
            if core.processes[process.0].paused_until > core.now {
                core.processes[process.0].parked.push(task);
                continue;
            }
            let Some(found) = core.tasks.get_mut(&task) else { continue };
            let waker = found.waker.clone();
            if let Some(work) = found.work.take() {
                return Some((task, process, work, waker));
            }
        }
        None
    }

    fn poll(
        &self,
        task: u64,
        process: ProcessId,
        mut work: BoxFuture<'static, ()>,
        waker: &Arc<TaskWaker>,
    ) -> ExecutorStep {
        waker.queued.store(false, Relaxed);
        let as_waker = Waker::from(waker.clone());
        let polled =
            catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(&mut Context::from_waker(&as_waker))));
        let end = match polled {
            Ok(Poll::Pending) => {
                // A task that killed or stopped itself is dropped here, without a lock.
                if let Some(task) = lock(&self.core).tasks.get_mut(&task) {
                    task.work = Some(work);
                }
                return ExecutorStep::Polled;
            }
            Ok(Poll::Ready(())) => End::Done,
            Err(panic) => End::Panicked(panic_message(&*panic)),
        };
        drop(work);
        if let End::Panicked(words) = &end {
            self.log(process, format_args!("panics: {words}"));
        }
        let ended = lock(&self.core).tasks.remove(&task);
        match (ended.and_then(|task| task.on_end), end) {
            (Some(on_end), end) => {
                // The owner may be gone.
                let _ = on_end.send(end);
                ExecutorStep::Polled
            }
            (None, End::Panicked(words)) => ExecutorStep::Panicked(words),
            (None, _) => ExecutorStep::Polled,
        }
    }

    /// Lets time pass until the next timer, and fires every timer that is then due.
    fn advance_time(&self, end: Duration) -> ExecutorStep {
        let mut core = lock(&self.core);
        let Some((at, _)) = core.timers.keys().next().copied() else { return ExecutorStep::AtRest };
        let now = core.now.max(at.min(end));
        core.now = now;
        let later = core.timers.split_off(&(now, u64::MAX));
        let due = std::mem::replace(&mut core.timers, later);
        for timer in due.values() {
            if let Timer::Resume(process) = timer
                && core.processes[process.0].paused_until <= core.now
            {
                let parked = take(&mut core.processes[process.0].parked);
                lock(&self.ready).extend(parked);
            }
        }
        drop(core);
        for timer in due.into_values() {
            if let Timer::Wake(waker) = timer {
                waker.wake();
            }
        }
        ExecutorStep::Passed
    }

    fn log(&self, process: ProcessId, what: impl fmt::Display) {
        let core = lock(&self.core);
        let (now, name) = (core.now, core.processes[process.0].name.clone());
        drop(core);
        self.trace.line(now, &name, what);
    }
}

impl fmt::Debug for Executor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Executor").field("now", &self.now()).finish_non_exhaustive()
    }
}

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
