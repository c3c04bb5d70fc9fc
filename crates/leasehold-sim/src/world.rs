//! The world: processes on machines, one bucket, a network between them, and all that can go wrong.
//!
//! ```text
//!   actor ── starts ──▶ process ── SimHost, Client ──▶ SimStore ══ network ══▶ SimBucket
//!     ▲                    │                              ║                        │
//!     └── restarted ◀── killed                        faults                checks, each change
//! ```
//!
//! A run is a function of its seed: replay it with the command that its failure names.

pub(crate) mod inner;

use futures::future::BoxFuture;
use leasehold_store::{Client, Store};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::alarm::Alarm;
use crate::bucket::{Change, Objects, SimBucket};
use crate::chance::Chance;
use crate::executor::{Executor, ProcessId, Step};
use crate::failed::{Failed, Size};
use crate::faults::Faults;
use crate::host::{Machine, SimHost};
use crate::mutants::Mutant;
use crate::network::Network;
use crate::scenario::{Cut, Options};
use crate::trace::Trace;
use crate::trouble;

/// Most steps without any time passing: more means that tasks wake each other for ever.
const STEPS_AT_ONCE_MAX: u64 = 100_000;

/// Looks at each change of the bucket, with everything that stands there since; an error fails the run.
pub type Check = Box<dyn FnMut(&Change, &Objects) -> Result<(), String> + Send>;

/// Starts an actor's work in a fresh process.
pub type Start = Arc<dyn Fn(Arc<SimHost>, Client) -> BoxFuture<'static, ()> + Send + Sync>;

/// Puts something between a process and its store.
pub type Wrap = Arc<dyn Fn(Arc<dyn Store>) -> Arc<dyn Store> + Send + Sync>;

/// The same, with a look at the machine.
pub(crate) type WrapOnHost = Arc<dyn Fn(Arc<dyn Store>, &Arc<SimHost>) -> Arc<dyn Store> + Send + Sync>;

/// A world that can be replayed.
pub struct World {
    scenario: String,
    inner: Arc<Inner>,
    checks: Vec<Check>,
    cut: Cut,
    mutant: Option<Mutant>,
    steps: u64,
    steps_max: Option<u64>,
}

/// What the world's own tasks share with it.
pub(crate) struct Inner {
    pub(crate) seed: u64,
    pub(crate) executor: Executor,
    pub(crate) bucket: Arc<SimBucket>,
    pub(crate) network: Arc<Network>,
    pub(crate) trace: Trace,
    pub(crate) alarm: Alarm,
    pub(crate) people: Mutex<People>,
    wrap: Mutex<Option<WrapOnHost>>,
    /// Of every process that was ever started.
    clients: Mutex<Vec<(String, Client)>>,
}

/// Who lives in the world.
#[derive(Default)]
pub(crate) struct People {
    machines: BTreeMap<String, Arc<Machine>>,
    /// How often each process was started.
    starts: BTreeMap<String, u64>,
    pub(crate) actors: BTreeMap<String, Actor>,
}

/// Someone who is started again after a crash.
pub(crate) struct Actor {
    pub(crate) start: Start,
    pub(crate) host: Option<Arc<SimHost>>,
}

impl World {
    /// A world at the beginning of time.
    #[must_use]
    pub fn new(seed: u64, faults: Faults) -> Self {
        let trace = Trace::new();
        let executor = Executor::new(Chance::derived(seed, "executor"), trace.clone());
        let bucket = Arc::new(SimBucket::new(executor.clone()));
        let chance = Chance::derived(seed, "network");
        let network = Network::new(executor.clone(), bucket.clone(), trace.clone(), chance, faults);
        let inner = Arc::new(Inner {
            seed,
            executor,
            bucket,
            network: Arc::new(network),
            trace,
            alarm: Alarm::default(),
            people: Mutex::default(),
            wrap: Mutex::default(),
            clients: Mutex::default(),
        });
        inner.executor.spawn(ProcessId::WORLD, Box::pin(trouble::come(inner.clone())));
        Self {
            scenario: "counters".into(),
            inner,
            checks: Vec::new(),
            cut: Cut::default(),
            mutant: None,
            steps: 0,
            steps_max: None,
        }
    }

    /// The name under which this world can be replayed.
    #[must_use]
    pub fn called(mut self, scenario: &str) -> Self {
        scenario.clone_into(&mut self.scenario);
        self
    }

    /// Puts something between the processes that start from now on and their stores: a deliberate mistake.
    pub fn wrap_stores(&self, wrap: Wrap) {
        self.wrap_on_hosts(Arc::new(move |store, _| wrap(store)));
    }

    pub(crate) fn wrap_on_hosts(&self, wrap: WrapOnHost) {
        *self.inner.wrap.lock().unwrap_or_else(PoisonError::into_inner) = Some(wrap);
    }

    /// Leaves something out. To be said before anyone starts.
    pub fn cut(&mut self, cut: Cut) {
        self.inner.network.events(|events| events.only.clone_from(&cut.only));
        self.cut = cut;
    }

    /// Fails after so many steps.
    pub fn give_up_after(&mut self, steps: Option<u64>) {
        self.steps_max = steps;
    }

    /// What is left out.
    #[must_use]
    pub fn what_is_cut(&self) -> &Cut {
        &self.cut
    }

    /// Someone here makes a mistake.
    pub(crate) fn make_mistake(&mut self, mutant: Mutant) {
        self.mutant = Some(mutant);
    }

    /// The mistake that is made here.
    pub(crate) fn mutant(&self) -> Option<Mutant> {
        self.mutant
    }

    /// The clients of all processes that were ever started, by the name of the process.
    #[must_use]
    pub fn clients(&self) -> Vec<(String, Client)> {
        self.inner.clients.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Starts a process on the machine of this name, which keeps its clocks from start to start. What stands before a slash
    /// names the machine: `n1/worker` and `n1/supervisor` share one.
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
        if self.cut.without.contains(name) {
            return;
        }
        let actor = Actor { start: Arc::new(start), host: None };
        self.inner.people().actors.insert(name.to_owned(), actor);
        self.inner.start(name);
    }

    /// Runs something in a process until it ends or the process is killed; a panic fails the run.
    pub fn spawn(&self, process: ProcessId, work: impl Future<Output = ()> + Send + 'static) {
        self.inner.executor.spawn(process, Box::pin(work));
    }

    /// Calls a check after every step that changed the bucket.
    pub fn check(&mut self, check: impl FnMut(&Change, &Objects) -> Result<(), String> + Send + 'static) {
        self.checks.push(Box::new(check));
    }

    /// What goes wrong at present.
    #[must_use]
    pub fn faults(&self) -> Faults {
        self.inner.network.faults()
    }

    /// Other faults from now on.
    pub fn change_faults(&self, change: impl FnOnce(&mut Faults)) {
        let mut faults = self.inner.network.faults();
        change(&mut faults);
        self.inner.network.set_faults(faults);
    }

    /// No new fault from this moment on; what is on its way still comes.
    pub fn stop_faults_at(&self, at: Duration) {
        let at = self.cut.faults_for.map_or(at, |cut| at.min(cut));
        let (executor, network) = (self.inner.executor.clone(), self.inner.network.clone());
        let trace = self.inner.trace.clone();
        let stop = async move {
            executor.sleep(at.saturating_sub(executor.now())).await;
            network.set_faults(Faults::none());
            trace.line(executor.now(), "world", "has no more faults");
        };
        self.spawn(ProcessId::WORLD, stop);
    }

    /// Whether every request is in its client's ledger, if no client has more than one under way.
    pub(crate) fn every_request_is_counted(&self) -> Result<(), String> {
        for (name, client) in self.clients() {
            let (sent, counted) = (self.inner.network.sent(&name), client.ledger().snapshot().requests());
            if sent > counted + 1 {
                return Err(format!("requests: {name} has sent {sent}, and its ledger knows of {counted}"));
            }
        }
        Ok(())
    }

    /// Kills whoever is named to it after the step, as long as anyone is to be killed.
    pub(crate) fn reaper(&self) -> Arc<dyn Fn(ProcessId) -> bool + Send + Sync> {
        let network = self.inner.network.clone();
        Arc::new(move |process| network.doom(process))
    }

    /// Cuts machines off from the bucket.
    pub(crate) fn links(&self) -> crate::links::Links {
        crate::links::Links::new(self.inner.network.clone(), self.inner.executor.clone())
    }

    /// What goes wrong from now on.
    pub(crate) fn set_faults(&self, faults: Faults) -> Faults {
        let before = self.inner.network.faults();
        self.inner.network.set_faults(faults);
        before
    }

    /// Runs until the condition holds; an error if it does not within so much virtual time, or any check fails.
    pub fn run_until(&mut self, mut condition: impl FnMut() -> bool, limit: Duration) -> Result<(), Failed> {
        let end = self.now() + limit;
        let mut at_once = 0;
        while !condition() {
            if self.now() >= end {
                return Err(self.failed(format!("what was waited for did not come within {limit:?}")));
            }
            if self.steps_max.is_some_and(|most| self.steps >= most) {
                return Err(self.failed("given up"));
            }
            self.steps += 1;
            at_once += 1;
            match self.inner.executor.step(end) {
                Step::Polled => {}
                Step::Panicked(words) => return Err(self.failed(format!("a task panicked: {words}"))),
                Step::Passed => at_once = 0,
                Step::AtRest => return Err(self.failed("nothing is left to happen, and nobody is done")),
            }
            if at_once > STEPS_AT_ONCE_MAX {
                return Err(self.failed("the world does not come to rest: tasks wake each other for ever"));
            }
            self.after_step().map_err(|message| self.failed(message))?;
        }
        Ok(())
    }

    /// Lets so much virtual time pass.
    pub fn run_for(&mut self, duration: Duration) -> Result<(), Failed> {
        let (executor, end) = (self.inner.executor.clone(), self.now() + duration);
        // Something must keep time going in a world in which nothing happens.
        self.spawn(ProcessId::WORLD, executor.sleep(duration));
        self.run_until(|| executor.now() >= end, duration + Duration::from_nanos(1))
    }

    /// The bucket, for raw reads.
    #[must_use]
    pub fn bucket(&self) -> &SimBucket {
        &self.inner.bucket
    }

    /// The same, to be kept by a judge.
    #[must_use]
    pub fn bucket_handle(&self) -> Arc<SimBucket> {
        self.inner.bucket.clone()
    }

    /// Everything in the bucket.
    #[must_use]
    pub fn objects(&self) -> Objects {
        self.inner.bucket.objects()
    }

    /// Virtual time since the beginning.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.inner.executor.now()
    }

    /// How many steps were taken: polls, and jumps of time.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// What happened.
    #[must_use]
    pub fn trace(&self) -> &Trace {
        &self.inner.trace
    }

    /// For checks inside tasks: whoever raises it fails the run.
    #[must_use]
    pub fn alarm(&self) -> &Alarm {
        &self.inner.alarm
    }

    /// The executor: to kill and to pause.
    #[must_use]
    pub fn executor(&self) -> &Executor {
        &self.inner.executor
    }

    /// What this world follows from.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.inner.seed
    }

    /// Chance for a scenario's own choices.
    #[must_use]
    pub fn chance(&self, purpose: &str) -> Chance {
        Chance::derived(self.inner.seed, purpose)
    }

    /// The failure of this run, with all that is needed to look at it.
    pub fn failed(&self, message: impl Into<String>) -> Failed {
        let (seed, scenario, tail) = (self.inner.seed, self.scenario.clone(), self.inner.trace.lines());
        let (faults_drawn, faults) = self.inner.network.events(|events| (events.drawn, events.happened));
        let actors = self.inner.people().actors.keys().cloned().collect();
        let size = Box::new(Size { actors, faults_drawn, faults, steps: self.steps });
        let options = Box::<Options>::default();
        Failed { seed, scenario, options, message: message.into(), at: self.now(), size, tail }
    }

    fn after_step(&mut self) -> Result<(), String> {
        for change in self.inner.bucket.take_changes() {
            let checks = &mut self.checks;
            self.inner
                .bucket
                .look(|objects| checks.iter_mut().try_for_each(|check| check(&change, objects)))?;
        }
        for process in self.inner.network.take_doomed() {
            trouble::crash_process(&self.inner, process);
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
