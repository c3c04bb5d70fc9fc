//! Processes that take over from each other on one disk, in any order of their system calls, with kills, failed syncs and
//! power losses. What the model checker shows of the rules, this shows of the code.
//!
//! Each process is a thread that waits before every system call until it is its turn, so a seed determines everything. The
//! thread that begins to wait chooses the next one: mostly itself, and then no thread is switched.

use leasehold_core::journal::{Commit, CommitHash, LogPosition};
use leasehold_store::testing::log_conformance::{log_holder, some_fence};
use leasehold_store::testing::{DiskHook, DiskStep, FakeDisk, Lane, StepFate, Survival};
use leasehold_store::{CommitOutcome, Log, LogWriter, TakeOver};
use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use super::random::Random;
use super::{on_disk, run};

const PROCESSES: u32 = 3;
const BOOTS: u32 = 3;
const STEPS_PER_BOOT: usize = 250;

/// History: the hashes of all commits from the first one on.
type History = Vec<CommitHash>;

#[derive(Debug)]
struct World {
    disk: FakeDisk,
    turns: Turns,
    shared: Mutex<Shared>,
    broken: Option<&'static str>,
}

/// Knowledge of the test, beyond that of the processes.
#[derive(Debug, Default)]
struct Shared {
    random: Option<Random>,
    /// Longest history that a process has acknowledged.
    acknowledged: History,
    lease: LeaseState,
    violation: Option<String>,
    /// Number of commits that were acknowledged, and of takeovers, to show that something happens.
    commits: u32,
    takeovers: u32,
}

/// Lease: its epoch, and the snapshot at which replay begins.
#[derive(Debug, Default, Clone)]
struct LeaseState {
    epoch: u64,
    snapshot: Option<(LogPosition, History)>,
}

/// Threads that wait for their turn.
#[derive(Debug)]
struct Turns {
    state: Mutex<TurnState>,
    changed: Condvar,
}

#[derive(Debug)]
struct TurnState {
    random: Random,
    live: BTreeSet<u32>,
    waiting: BTreeMap<u32, DiskStep>,
    granted: Option<(u32, StepFate)>,
    killed: BTreeSet<u32>,
    favourite: u32,
    /// Number of steps until the power fails.
    left: usize,
}

impl TurnState {
    /// Chooses the next process and the fate of its step, when all processes wait.
    fn choose(&mut self) {
        if self.granted.is_some() || self.waiting.len() < self.live.len() || self.live.is_empty() {
            return;
        }
        let (processes, random) = (self.waiting.keys().copied().collect::<Vec<_>>(), &mut self.random);
        // Mostly the same process goes on, and the others are stopped in the middle of something.
        if random.one_in(6) || !self.waiting.contains_key(&self.favourite) {
            self.favourite = random.pick(&processes);
        }
        let step = self.waiting[&self.favourite];
        let fate = match random.below(100) {
            _ if self.left == 0 => StepFate::Killed(random.below(600)),
            0 => StepFate::Killed(random.below(600)),
            1 if step == DiskStep::Sync => StepFate::Fails(ErrorKind::Other, 0),
            2 if step == DiskStep::Append => StepFate::Fails(ErrorKind::StorageFull, random.below(300)),
            _ => StepFate::Done,
        };
        self.left = self.left.saturating_sub(1);
        if matches!(fate, StepFate::Killed(_)) {
            self.killed.insert(self.favourite);
        }
        self.granted = Some((self.favourite, fate));
    }
}

impl Turns {
    fn new(random: &mut Random, live: BTreeSet<u32>) -> Self {
        let state = TurnState {
            left: random.below(STEPS_PER_BOOT),
            random: Random(random.next()),
            live,
            waiting: BTreeMap::new(),
            granted: None,
            killed: BTreeSet::new(),
            favourite: 0,
        };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, TurnState> {
        self.state.lock().unwrap()
    }

    /// Waits for a turn of this process, and returns the fate of its step.
    fn wait(&self, process: u32, step: DiskStep) -> StepFate {
        let mut state = self.lock();
        state.waiting.insert(process, step);
        state.choose();
        let is_other = |state: &mut TurnState| state.granted.is_none_or(|(to, _)| to != process);
        if is_other(&mut state) {
            self.changed.notify_all();
        }
        let mut state = self.changed.wait_while(state, is_other).unwrap();
        let (_, fate) = state.granted.take().unwrap();
        state.waiting.remove(&process);
        fate
    }

    fn end(&self, process: u32) {
        let mut state = self.lock();
        state.live.remove(&process);
        state.choose();
        self.changed.notify_all();
    }

    /// Lets the power fail now.
    fn stop(&self) {
        self.lock().left = 0;
    }

    fn is_killed(&self, process: u32) -> bool {
        self.lock().killed.contains(&process)
    }
}

/// Ends the turns of a process, even if it panics.
struct EndTurns<'a>(&'a Turns, u32);

impl Drop for EndTurns<'_> {
    fn drop(&mut self) {
        self.0.end(self.1);
    }
}

#[derive(Debug)]
struct WaitForTurn(Arc<World>);

impl DiskHook for WaitForTurn {
    fn step(&self, process: u32, step: DiskStep) -> StepFate {
        self.0.turns.wait(process, step)
    }
}

impl World {
    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap()
    }

    /// Process that takes over and commits, again and again, until it is killed.
    fn process(self: Arc<Self>, number: u32) {
        #[cfg(feature = "mutants")]
        let _broken = self.broken.map(leasehold_store::mutant::Broken::new);
        let hook: Arc<dyn DiskHook> = Arc::new(WaitForTurn(self.clone()));
        let log = on_disk(self.disk.process(number, hook)).with_segment_bytes(2_500);
        let _turns = EndTurns(&self.turns, number);
        for _ in 0..6 {
            // The order in which processes take the lease is part of the seed, too.
            self.turns.wait(number, DiskStep::Read);
            if !self.turns.is_killed(number)
                && let Err(violation) = self.serve(&log)
            {
                self.shared().violation.get_or_insert(violation);
                self.turns.stop();
            }
            if self.turns.is_killed(number) {
                break;
            }
        }
    }

    /// One takeover, and the commits after it.
    fn serve(&self, log: &Log) -> Result<(), String> {
        let lease = {
            let mut shared = self.shared();
            shared.lease.epoch += 1;
            shared.lease.clone()
        };
        let (from, mut history) = lease.snapshot.unwrap_or((LogPosition::START, Vec::new()));
        let on_commit = |commit: Commit| {
            history.push(commit.hash);
            Ok(())
        };
        let holder = log_holder(lease.epoch);
        let fenced = match run(log.take_over(&holder, from, || Ok(some_fence()), on_commit)) {
            Ok(TakeOver::Fenced(fenced)) => fenced,
            Ok(TakeOver::Mismatch(error)) if self.shared().lease.epoch == lease.epoch => {
                return Err(format!("a log that is not corrupt is reported: {error}"));
            }
            Ok(_) | Err(_) => return Ok(()),
        };
        self.acknowledge("the fence", &history)?;
        self.shared().takeovers += 1;
        let is_held = self.shared().lease.epoch == lease.epoch;
        let Some(mut writer) = run(fenced.confirm(|| async { Ok(is_held) })).unwrap() else { return Ok(()) };
        for _ in 0..8 {
            if !self.act(&mut writer, lease.epoch, &mut history)? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// One action of a process that serves; false if it has lost the log.
    fn act(&self, writer: &mut LogWriter, epoch: u64, history: &mut History) -> Result<bool, String> {
        let choice = self.shared().random.as_mut().unwrap().below(8);
        match choice {
            0 => match run(writer.is_current()) {
                Ok(true) => {
                    let is_known = history.starts_with(&self.shared().acknowledged);
                    is_known
                        .then_some(true)
                        .ok_or("a current read does not know an acknowledged commit".into())
                }
                Ok(false) | Err(_) => Ok(false),
            },
            1 => {
                {
                    // The lease fixes the floor: a process that lost it cannot move it.
                    let mut shared = self.shared();
                    if shared.lease.epoch != epoch {
                        return Ok(true);
                    }
                    shared.lease.snapshot = Some((writer.position(), history.clone()));
                }
                let (floor, none) = (writer.position().seq.next(), BTreeSet::new());
                Ok(run(writer.trimmer().delete_below(floor, LogPosition::START.seq, &none)).is_ok())
            }
            _ => match run(writer.commit("{}\n".into(), 1)) {
                Ok(CommitOutcome::Committed(_)) => {
                    history.push(writer.position().hash);
                    self.shared().commits += 1;
                    self.acknowledge("a commit", history).map(|()| true)
                }
                Ok(CommitOutcome::Mismatch(error)) => Err(format!("a commit finds other content: {error}")),
                Ok(CommitOutcome::Superseded) | Err(_) => Ok(false),
            },
        }
    }

    fn acknowledge(&self, what: &str, history: &[CommitHash]) -> Result<(), String> {
        let mut shared = self.shared();
        if !history.starts_with(&shared.acknowledged) {
            return Err(format!(
                "{what} is acknowledged after {} commits, but {} others were acknowledged before",
                history.len(),
                shared.acknowledged.len()
            ));
        }
        shared.acknowledged = history.to_vec();
        Ok(())
    }

    /// Checks that a process that meets no other one replays what was acknowledged.
    fn check(&self) -> Result<(), String> {
        let before = self.shared().takeovers;
        self.serve(&on_disk(self.disk.sound(1_000)))?;
        let is_taken = self.shared().takeovers > before;
        is_taken.then_some(()).ok_or_else(|| "the log cannot be taken over".to_owned())
    }
}

/// Number of commits and takeovers of a world, or the violation that it has shown.
pub(crate) fn play(seed: u64, broken: Option<&'static str>) -> Result<(u32, u32), String> {
    let mut random = Random(seed);
    let shared = Shared { random: Some(Random(seed ^ 0x5eed)), ..Shared::default() };
    let disk = FakeDisk::new();
    let mut shared = Some(shared);
    let mut totals = (0, 0);
    for boot in 0..BOOTS {
        let numbers = boot * PROCESSES..(boot + 1) * PROCESSES;
        let world = Arc::new(World {
            disk: disk.clone(),
            turns: Turns::new(&mut random, numbers.clone().collect()),
            shared: Mutex::new(shared.take().unwrap()),
            broken,
        });
        std::thread::scope(|scope| {
            for number in numbers {
                let world = world.clone();
                scope.spawn(move || world.process(number));
            }
        });
        if let Some(violation) = world.shared().violation.take() {
            return Err(violation);
        }
        // Without a power loss half of the time.
        if random.one_in(2) {
            world.disk.lose_power(|| random.pick(&Survival::ALL));
        }
        world.check()?;
        let left = Arc::into_inner(world).unwrap().shared.into_inner().unwrap();
        totals = (left.commits, left.takeovers);
        shared = Some(left);
    }
    Ok(totals)
}

#[test]
fn processes_that_take_over_in_any_order_lose_nothing() {
    let (mut commits, mut takeovers) = (0, 0);
    for seed in Lane::current().seeds(0..Lane::current().sized(1_000, 50_000)) {
        let (more_commits, more_takeovers) =
            play(seed, None).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        commits += more_commits;
        takeovers += more_takeovers;
    }
    assert!(commits > 1_000 && takeovers > 500, "{commits} commits, {takeovers} takeovers");
}

#[test]
fn a_seed_determines_everything() {
    for seed in 0..5 {
        assert_eq!(play(seed, None), play(seed, None));
    }
}
