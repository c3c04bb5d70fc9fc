//! Processes on a disk that fail at every one of their system calls: killed, out of space, without a sync, without power.

use bytes::Bytes;
use leasehold_core::journal::LogPosition;
use leasehold_store::testing::log_conformance::{commit, log_holder, serve, some_fence, texts};
use leasehold_store::testing::{DiskHook, DiskStep, FakeDisk, StepFate, Survival};
use leasehold_store::{CommitOutcome, Log, LogWriter, TakeOver};
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::random::Random;
use super::{on_disk, replayed, run};

/// More steps than the scenario has.
const STEPS_MAX: u64 = 1_000;

/// Most combinations of surviving writes that are tried at one step; more are chosen at random.
const COMBINATIONS_MAX: usize = 256;

/// Fails one step.
#[derive(Debug)]
struct FailAt {
    left: AtomicU64,
    fate: StepFate,
    only: Option<DiskStep>,
}

impl DiskHook for FailAt {
    fn step(&self, _: u32, step: DiskStep) -> StepFate {
        if self.only.is_some_and(|only| only != step) {
            return StepFate::Done;
        }
        if self.left.fetch_sub(1, Relaxed) == 1 { self.fate } else { StepFate::Done }
    }
}

/// Result of a scenario.
#[derive(Debug, Default)]
struct Ran {
    acknowledged: Vec<String>,
    /// Sent, and neither acknowledged nor surely failed.
    unknown: Vec<String>,
    /// Reported as surely not written.
    not_written: BTreeSet<String>,
}

impl Ran {
    /// Commits until an error. True if there was none.
    fn commits(&mut self, writer: &mut LogWriter, records: &[&str]) -> bool {
        for text in records {
            match run(writer.commit(Bytes::from((*text).to_owned()), 1)) {
                Ok(CommitOutcome::Committed(_)) => self.acknowledged.push((*text).to_owned()),
                Ok(other) => panic!("no other process is there: {other:?}"),
                Err(error) if error.outcome_is_unknown() => {
                    self.unknown.push((*text).to_owned());
                    assert!(run(writer.commit("x\n".into(), 1)).is_err(), "it is poisoned");
                    return false;
                }
                Err(_) => {
                    self.not_written.insert((*text).to_owned());
                    assert!(run(writer.commit("x\n".into(), 1)).is_err(), "it is poisoned");
                    return false;
                }
            }
        }
        true
    }

    fn process(&mut self, log: &Log, number: u64, records: &[&str]) {
        let taken =
            run(log.take_over(&log_holder(number), LogPosition::START, || Ok(some_fence()), |_| Ok(())));
        let Ok(TakeOver::Fenced(fenced)) = taken else {
            assert!(taken.is_err(), "no other process is there: {taken:?}");
            return;
        };
        let mut writer = run(fenced.confirm(|| async { Ok(true) })).unwrap().unwrap();
        if self.commits(&mut writer, records) {
            // Nothing is below this floor, but files of earlier takeovers are deleted.
            let _ = run(writer.trimmer().delete_below(
                LogPosition::START.seq,
                LogPosition::START.seq,
                &BTreeSet::new(),
            ));
        }
    }

    /// Checks what the next process replays.
    fn assert_kept(&self, found: &[String], case: &str) {
        let mut left = self.acknowledged.iter().peekable();
        for records in found {
            if left.peek() == Some(&records) {
                left.next();
            } else {
                assert!(
                    self.unknown.contains(records),
                    "{case}: {records} was not sent here: {found:?}, {self:?}"
                );
            }
        }
        assert_eq!(left.next(), None, "{case}: acknowledged, and not replayed: {found:?}, {self:?}");
        let returned: Vec<_> = found.iter().filter(|records| self.not_written.contains(*records)).collect();
        assert!(returned.is_empty(), "{case}: reported as not written: {returned:?}");
    }
}

/// Three processes, one after the other, each ended by its first failure; their segments are small.
fn scenario(disk: &FakeDisk, hook: &Arc<dyn DiskHook>) -> Ran {
    let mut ran = Ran::default();
    for (number, records) in
        [(1, &["\"1a\"\n", "\"1b\"\n"][..]), (2, &["\"2a\"\n"]), (3, &["\"3a\"\n", "\"3b\"\n", "\"3c\"\n"])]
    {
        let process = u32::try_from(number).unwrap();
        let log = on_disk(disk.process(process, hook.clone())).with_segment_bytes(1_100);
        ran.process(&log, number, records);
        disk.kill(process);
    }
    ran
}

/// Runs the scenario with one failure at each step.
fn at_every_step(fate: StepFate, only: Option<DiskStep>, check: impl Fn(FakeDisk, Ran, String)) {
    for step in 1..STEPS_MAX {
        let (disk, hook) = (FakeDisk::new(), Arc::new(FailAt { left: AtomicU64::new(step), fate, only }));
        let as_hook: Arc<dyn DiskHook> = hook.clone();
        let ran = scenario(&disk, &as_hook);
        let left = hook.left.load(Relaxed);
        let is_done = left > 0 && left < STEPS_MAX;
        check(disk, ran, format!("{fate:?} at step {step}"));
        if is_done {
            assert!(step > 3, "the scenario has no steps");
            return;
        }
    }
    panic!("the scenario does not end");
}

/// Checks the log, and that it can be continued.
fn check(disk: &FakeDisk, ran: &Ran, case: &str) {
    let found = replayed(disk, 8);
    ran.assert_kept(&found, case);
    let mut serving = run(serve(&on_disk(disk.sound(9)), 9, LogPosition::START)).unwrap();
    assert_eq!(texts(&serving.replayed), found, "{case}");
    run(commit(&mut serving.writer, "\"next\"\n")).unwrap();
    drop(serving);
    assert_eq!(replayed(disk, 10), [found, vec!["\"next\"\n".to_owned()]].concat(), "{case}");
}

#[test]
fn a_process_killed_at_any_step_loses_nothing_that_was_acknowledged() {
    for bytes in [0, 1, 300, usize::MAX] {
        at_every_step(StepFate::Killed(bytes), None, |disk, ran, case| check(&disk, &ran, &case));
    }
}

#[test]
fn a_full_disk_at_any_step_loses_nothing_and_its_failures_are_true() {
    for bytes in [0, 1, 300] {
        let fate = StepFate::Fails(ErrorKind::StorageFull, bytes);
        at_every_step(fate, None, |disk, ran, case| check(&disk, &ran, &case));
        at_every_step(fate, Some(DiskStep::Append), |disk, ran, case| {
            assert!(ran.unknown.is_empty(), "{case}: a commit that is not complete is none: {ran:?}");
            check(&disk, &ran, &case);
        });
    }
}

#[test]
fn any_failed_step_loses_nothing() {
    for bytes in [0, 300, usize::MAX] {
        let fate = StepFate::Fails(ErrorKind::Other, bytes);
        at_every_step(fate, None, |disk, ran, case| check(&disk, &ran, &case));
    }
}

/// Tries every combination of surviving writes, or many at random.
fn lose_power(disk: &FakeDisk, random: &mut Random, mut check: impl FnMut(FakeDisk)) {
    let unsynced = u32::try_from(disk.unsynced()).unwrap();
    let all = Survival::ALL.len().checked_pow(unsynced).filter(|all| *all <= COMBINATIONS_MAX);
    for number in 0..all.unwrap_or(COMBINATIONS_MAX) {
        let (copy, mut rest) = (disk.copied(), number);
        copy.lose_power(|| {
            if all.is_none() {
                return random.pick(&Survival::ALL);
            }
            let choice = Survival::ALL[rest % Survival::ALL.len()];
            rest /= Survival::ALL.len();
            choice
        });
        check(copy);
    }
}

#[test]
fn a_power_loss_at_any_step_keeps_what_was_acknowledged() {
    let random = std::cell::RefCell::new(Random(1));
    for bytes in [0, usize::MAX] {
        at_every_step(StepFate::Killed(bytes), None, |disk, ran, case| {
            lose_power(&disk, &mut random.borrow_mut(), |after| check(&after, &ran, &case));
        });
    }
}

#[test]
fn a_power_loss_after_a_failed_sync_and_another_takeover_keeps_what_was_acknowledged() {
    let random = std::cell::RefCell::new(Random(2));
    at_every_step(StepFate::Fails(ErrorKind::Other, 0), Some(DiskStep::Sync), |disk, ran, case| {
        // The commits are visible, and were never synced: the next process copies the last one.
        let mut serving = run(serve(&on_disk(disk.sound(9)), 9, LogPosition::START)).unwrap();
        let found = texts(&serving.replayed);
        ran.assert_kept(&found, &case);
        run(commit(&mut serving.writer, "\"next\"\n")).unwrap();
        let expected = [found, vec!["\"next\"\n".to_owned()]].concat();
        lose_power(&disk, &mut random.borrow_mut(), |after| {
            assert_eq!(replayed(&after, 10), expected, "{case}");
        });
    });
}
