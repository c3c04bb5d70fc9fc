//! State of the executor: tasks, timers, processes.

use futures::future::BoxFuture;
use leasehold_store::host::End;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};
use std::time::Duration;
use tokio::sync::oneshot;

use super::{Executor, ProcessId, lock};
use crate::random::SimRandom;

pub(super) struct Core {
    pub(super) now: Duration,
    pub(super) rng: SimRandom,
    pub(super) tasks: BTreeMap<u64, ScheduledTask>,
    pub(super) timers: BTreeMap<(Duration, u64), Timer>,
    pub(super) processes: Vec<Process>,
    pub(super) issued: u64,
}

pub(super) struct ScheduledTask {
    pub(super) process: ProcessId,
    /// The future; `None` while it is polled.
    pub(super) work: Option<BoxFuture<'static, ()>>,
    pub(super) waker: Arc<TaskWaker>,
    /// Reports the end of the task to its owner, if it has one; dropping it reports a stop.
    pub(super) on_end: Option<oneshot::Sender<End>>,
}

pub(super) enum Timer {
    Wake(Waker),
    Resume(ProcessId),
}

pub(super) struct Process {
    pub(super) name: String,
    pub(super) alive: bool,
    pub(super) paused_until: Duration,
    /// Tasks that became ready during a pause.
    pub(super) parked: Vec<u64>,
}

pub(super) struct TaskWaker {
    pub(super) task: u64,
    pub(super) queued: AtomicBool,
    pub(super) ready: Arc<Mutex<Vec<u64>>>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.swap(true, Relaxed) {
            lock(&self.ready).push(self.task);
        }
    }
}

impl Core {
    /// Creates the state at virtual time zero.
    pub(super) fn new(rng: SimRandom) -> Self {
        let (tasks, timers, processes) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
        Self { now: Duration::ZERO, rng, tasks, timers, processes, issued: 0 }
    }

    /// Returns an unused number, for a task or for a timer among those of one moment.
    pub(super) fn next_id(&mut self) -> u64 {
        self.issued += 1;
        self.issued
    }
}

impl Process {
    pub(super) fn new(name: &str) -> Self {
        Self { name: name.to_owned(), alive: true, paused_until: Duration::ZERO, parked: Vec::new() }
    }
}

impl Executor {
    /// Returns whether a process is paused, or was resumed only in this instant.
    #[must_use]
    pub fn is_paused(&self, process: ProcessId) -> bool {
        let core = lock(&self.core);
        let Process { paused_until, .. } = &core.processes[process.0];
        !paused_until.is_zero() && *paused_until >= core.now
    }
}
