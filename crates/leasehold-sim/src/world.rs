//! The world: processes on machines, one bucket, a network between them, and all faults.
//!
//! ```text
//!   actor ── starts ──▶ process ── SimHost, Client ──▶ SimStore ══ network ══▶ SimBucket
//!     ▲                    │                              ║                        │
//!     └── restarted ◀── killed                        faults                checks, each change
//! ```
//!
//! A run is a function of its seed: replay it with the command that its failure prints.

pub(crate) mod inner;

use futures::future::BoxFuture;
use leasehold_store::{Client, Store};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::alarm::Alarm;
use crate::bucket::{BucketChange, BucketObjects, SimBucket};
use crate::connections::{ConnectionFaults, Connections};
use crate::executor::{Executor, ExecutorStep, ProcessId};
use crate::failed::{Failed, Size};
use crate::faults::Faults;
use crate::host::{Machine, SimHost};
use crate::mutants::Mutant;
use crate::network::Network;
use crate::process_faults;
use crate::random::SimRandom;
use crate::scenario::{Omissions, Options};
use crate::trace::Trace;

/// Maximum number of steps without time passing; more means that tasks wake each other forever.
const STEPS_AT_ONCE_MAX: u64 = 100_000;

/// Checks each change of the bucket, with all objects after it. An error fails the run.
pub type Check = Box<dyn FnMut(&BucketChange, &BucketObjects) -> Result<(), String> + Send>;

/// Starts an actor's work in a fresh process.
pub type ActorStart = Arc<dyn Fn(Arc<SimHost>, Client) -> BoxFuture<'static, ()> + Send + Sync>;

/// Wraps the store of a process.
pub type Wrap = Arc<dyn Fn(Arc<dyn Store>) -> Arc<dyn Store> + Send + Sync>;

/// Wraps the store of a process, with access to its machine.
pub(crate) type WrapOnHost = Arc<dyn Fn(Arc<dyn Store>, &Arc<SimHost>) -> Arc<dyn Store> + Send + Sync>;

/// A world that can be replayed.
pub struct World {
    scenario: String,
    inner: Arc<Inner>,
    checks: Vec<Check>,
    omissions: Omissions,
    mutant: Option<Mutant>,
    steps: u64,
    steps_max: Option<u64>,
}

/// State shared between the world and its own tasks.
pub(crate) struct Inner {
    pub(crate) seed: u64,
    pub(crate) executor: Executor,
    pub(crate) bucket: Arc<SimBucket>,
    pub(crate) network: Arc<Network>,
    pub(crate) trace: Trace,
    pub(crate) alarm: Alarm,
    pub(crate) registry: Mutex<Registry>,
    wrap: Mutex<Option<WrapOnHost>>,
    /// Clients of every process that was ever started.
    clients: Mutex<Vec<(String, Client)>>,
}

/// Actors and machines of the world.
#[derive(Default)]
pub(crate) struct Registry {
    machines: BTreeMap<String, Arc<Machine>>,
    /// Number of starts of each process.
    starts: BTreeMap<String, u64>,
    pub(crate) actors: BTreeMap<String, Actor>,
}

/// A process that is restarted after a crash.
pub(crate) struct Actor {
    pub(crate) start: ActorStart,
    pub(crate) host: Option<Arc<SimHost>>,
}

impl World {
    /// Creates a world at virtual time zero.
    #[must_use]
    pub fn new(seed: u64, faults: Faults) -> Self {
        let trace = Trace::new();
        let executor = Executor::new(SimRandom::derived(seed, "executor"), trace.clone());
        let bucket = Arc::new(SimBucket::new(executor.clone()));
        let rng = SimRandom::derived(seed, "network");
        let network = Network::new(executor.clone(), bucket.clone(), trace.clone(), rng, faults);
        let inner = Arc::new(Inner {
            seed,
            executor,
            bucket,
            network: Arc::new(network),
            trace,
            alarm: Alarm::default(),
            registry: Mutex::default(),
            wrap: Mutex::default(),
            clients: Mutex::default(),
        });
        inner.executor.spawn(ProcessId::WORLD, Box::pin(process_faults::inject(inner.clone())));
        Self {
            scenario: "counters".into(),
            inner,
            checks: Vec::new(),
            omissions: Omissions::default(),
            mutant: None,
            steps: 0,
            steps_max: None,
        }
    }

    /// Sets the name of the scenario, under which this world can be replayed.
    #[must_use]
    pub fn with_scenario(mut self, scenario: &str) -> Self {
        scenario.clone_into(&mut self.scenario);
        self
    }

    /// Wraps the stores of all processes that start from now on: a mutant.
    pub fn wrap_stores(&self, wrap: Wrap) {
        self.wrap_on_hosts(Arc::new(move |store, _| wrap(store)));
    }

    pub(crate) fn wrap_on_hosts(&self, wrap: WrapOnHost) {
        *self.inner.wrap.lock().unwrap_or_else(PoisonError::into_inner) = Some(wrap);
    }

    /// Leaves parts out. Must be called before any actor starts.
    pub fn omit(&mut self, omissions: Omissions) {
        self.inner.network.events(|events| events.only.clone_from(&omissions.only));
        self.omissions = omissions;
    }

    /// Fails the run after this number of steps.
    pub fn limit_steps(&mut self, steps: Option<u64>) {
        self.steps_max = steps;
    }

    /// Returns the parts that are left out.
    #[must_use]
    pub fn omissions(&self) -> &Omissions {
        &self.omissions
    }

    /// Enables a mutant.
    pub(crate) fn set_mutant(&mut self, mutant: Mutant) {
        self.mutant = Some(mutant);
    }

    /// Returns the enabled mutant.
    pub(crate) fn mutant(&self) -> Option<Mutant> {
        self.mutant
    }

    /// Returns the clients of all processes that were ever started, with the name of the process.
    #[must_use]
    pub fn clients(&self) -> Vec<(String, Client)> {
        self.inner.clients.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Starts a process on the machine of this name, which keeps its clocks from start to start. The part
    /// before a slash names the machine: `n1/worker` and `n1/supervisor` share one.
    #[must_use]
    pub fn process(&self, name: &str) -> (Arc<SimHost>, Client) {
        self.inner.process(name)
    }

    /// Starts an actor: its work runs in a process of its own, and again in a new one after each crash.
    pub fn actor(
        &self,
        name: &str,
        start: impl Fn(Arc<SimHost>, Client) -> BoxFuture<'static, ()> + Send + Sync + 'static,
    ) {
        if self.omissions.without.contains(name) {
            return;
        }
        let actor = Actor { start: Arc::new(start), host: None };
        self.inner.registry().actors.insert(name.to_owned(), actor);
        self.inner.start(name);
    }

    /// Runs work in a process until it ends or the process is killed; a panic fails the run.
    pub fn spawn(&self, process: ProcessId, work: impl Future<Output = ()> + Send + 'static) {
        self.inner.executor.spawn(process, Box::pin(work));
    }

    /// Adds a check that is called after every step that changed the bucket.
    pub fn check(
        &mut self,
        check: impl FnMut(&BucketChange, &BucketObjects) -> Result<(), String> + Send + 'static,
    ) {
        self.checks.push(Box::new(check));
    }

    /// Returns the current faults.
    #[must_use]
    pub fn faults(&self) -> Faults {
        self.inner.network.faults()
    }

    /// Changes the faults from now on.
    pub fn change_faults(&self, change: impl FnOnce(&mut Faults)) {
        let mut faults = self.inner.network.faults();
        change(&mut faults);
        self.inner.network.set_faults(faults);
    }

    /// Stops new faults from this moment on; requests already delayed still arrive.
    pub fn stop_faults_at(&self, at: Duration) {
        let at = self.omissions.faults_for.map_or(at, |end| at.min(end));
        let (executor, network) = (self.inner.executor.clone(), self.inner.network.clone());
        let trace = self.inner.trace.clone();
        let stop = async move {
            executor.sleep(at.saturating_sub(executor.now())).await;
            network.set_faults(Faults::none());
            trace.line(executor.now(), "world", "stops all faults");
        };
        self.spawn(ProcessId::WORLD, stop);
    }

    /// Checks that every request is in its client's ledger, if no client has more than one in flight.
    pub(crate) fn every_request_is_counted(&self) -> Result<(), String> {
        for (name, client) in self.clients() {
            let (sent, counted) = (self.inner.network.sent(&name), client.ledger().snapshot().requests());
            if sent > counted + 1 {
                return Err(format!("requests: {name} sent {sent}, but its ledger counts {counted}"));
            }
        }
        Ok(())
    }

    /// Returns a function that kills a process after the step, as long as faults may kill processes.
    pub(crate) fn process_killer(&self) -> Arc<dyn Fn(ProcessId) -> bool + Send + Sync> {
        let network = self.inner.network.clone();
        Arc::new(move |process| network.kill_after_step(process))
    }

    /// Returns a handle that cuts machines off from the bucket.
    pub(crate) fn links(&self) -> crate::links::Links {
        crate::links::Links::new(self.inner.network.clone(), self.inner.executor.clone())
    }

    /// Returns connections between processes, whose faults have these rates.
    pub(crate) fn connections(&self, rates: ConnectionFaults, rng: SimRandom) -> Connections {
        let Inner { network, executor, trace, .. } = &*self.inner;
        Connections::new(network.clone(), executor.clone(), trace.clone(), rates, rng)
    }

    /// Replaces the faults from now on. Returns the previous ones.
    pub(crate) fn set_faults(&self, faults: Faults) -> Faults {
        let before = self.inner.network.faults();
        self.inner.network.set_faults(faults);
        before
    }

    /// Runs until the condition holds. Fails if it does not within this virtual time, or if any check fails.
    pub fn run_until(&mut self, mut condition: impl FnMut() -> bool, limit: Duration) -> Result<(), Failed> {
        let end = self.now() + limit;
        let mut at_once = 0;
        while !condition() {
            if self.now() >= end {
                return Err(self.failed(format!("the expected state was not reached within {limit:?}")));
            }
            if self.steps_max.is_some_and(|most| self.steps >= most) {
                return Err(self.failed("the maximum number of steps is reached"));
            }
            self.steps += 1;
            at_once += 1;
            match self.inner.executor.step(end) {
                ExecutorStep::Polled => {}
                ExecutorStep::Panicked(message) => {
                    return Err(self.failed(format!("a task panicked: {message}")));
                }
                ExecutorStep::Passed => at_once = 0,
                ExecutorStep::AtRest => {
                    return Err(self.failed("no task is ready and no timer is set, but the run is not done"));
                }
            }
            if at_once > STEPS_AT_ONCE_MAX {
                return Err(self.failed("time does not advance: tasks wake each other forever"));
            }
            self.after_step().map_err(|message| self.failed(message))?;
        }
        Ok(())
    }

    /// Lets virtual time pass.
    pub fn run_for(&mut self, duration: Duration) -> Result<(), Failed> {
        let (executor, end) = (self.inner.executor.clone(), self.now() + duration);
        // Time advances only to a timer, and an idle world has none.
        self.spawn(ProcessId::WORLD, executor.sleep(duration));
        self.run_until(|| executor.now() >= end, duration + Duration::from_nanos(1))
    }

    /// Returns the bucket, for raw reads.
    #[must_use]
    pub fn bucket(&self) -> &SimBucket {
        &self.inner.bucket
    }

    /// Returns a shared handle of the bucket, for a checker.
    #[must_use]
    pub fn bucket_handle(&self) -> Arc<SimBucket> {
        self.inner.bucket.clone()
    }

    /// Returns all objects of the bucket.
    #[must_use]
    pub fn objects(&self) -> BucketObjects {
        self.inner.bucket.objects()
    }

    /// Returns the virtual time since the start.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.inner.executor.now()
    }

    /// Returns the number of steps: polls, and jumps of time.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Returns the trace.
    #[must_use]
    pub fn trace(&self) -> &Trace {
        &self.inner.trace
    }

    /// Returns the alarm, by which checks inside tasks fail the run.
    #[must_use]
    pub fn alarm(&self) -> &Alarm {
        &self.inner.alarm
    }

    /// Returns the executor, to kill and pause processes.
    #[must_use]
    pub fn executor(&self) -> &Executor {
        &self.inner.executor
    }

    /// Returns the seed.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.inner.seed
    }

    /// Returns random numbers for a scenario's own choices.
    #[must_use]
    pub fn rng(&self, purpose: &str) -> SimRandom {
        SimRandom::derived(self.inner.seed, purpose)
    }

    /// Builds the failure of this run, with everything needed to examine it.
    pub fn failed(&self, message: impl Into<String>) -> Failed {
        let (seed, scenario, tail) = (self.inner.seed, self.scenario.clone(), self.inner.trace.lines());
        let (faults_drawn, faults) = self.inner.network.events(|events| (events.drawn, events.happened));
        let actors = self.inner.registry().actors.keys().cloned().collect();
        let size = Box::new(Size { actors, faults_drawn, faults, steps: self.steps });
        let options = Box::<Options>::default();
        Failed { seed, scenario, options, message: message.into(), at: self.now(), size, tail }
    }

    fn after_step(&mut self) -> Result<(), String> {
        for change in self.inner.bucket.take_changes() {
            let checks = &mut self.checks;
            self.inner
                .bucket
                .with_objects(|objects| checks.iter_mut().try_for_each(|check| check(&change, objects)))?;
        }
        for process in self.inner.network.take_processes_to_kill() {
            process_faults::crash_process(&self.inner, process);
        }
        self.inner.alarm.raised().map_or(Ok(()), Err)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.inner.executor.clear();
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World")
            .field("seed", &self.inner.seed)
            .field("now", &self.now())
            .finish_non_exhaustive()
    }
}
