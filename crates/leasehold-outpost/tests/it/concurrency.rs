//! Random concurrent operations, on a disk that fails now and then.

use leasehold_core::outpost::{Op, OpKind};
use leasehold_core::settlement::Settlement;
use leasehold_core::{HexName, Kind, Status, TaskId};
use leasehold_outpost::{FileHook, Spool};
use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;

use crate::support::{
    TestSpool, any, claim, complete, failure, make_stale, op_names, ops, order, places, test_spool, worker,
};

/// Fails once, at this step.
#[derive(Debug)]
struct FailAt(AtomicU64);

impl FileHook for FailAt {
    fn step(&self, _: &'static str) -> io::Result<()> {
        let is_it = self.0.fetch_sub(1, Relaxed) == 1;
        if is_it { Err(io::Error::other("injected disk error")) } else { Ok(()) }
    }
}

fn whole_life(spool: &Spool) -> leasehold_core::Result<()> {
    let claim = |id: &TaskId| spool.claim(id, &worker("w"), &HexName::from_random(3));
    let id = spool.submit(order())?;
    let mut held = claim(&id)?.unwrap();
    spool.heartbeat(&mut held)?;
    spool.settle(&held, failure("it broke", false, None))?;
    spool.requeue(&id)?;
    let held = claim(&id)?.unwrap();
    complete(spool, &held).map(|_| ())
}

/// A change that fails at any step is finished by the next process, and sent to the bucket once.
#[test]
fn a_disk_that_fails_at_any_step_loses_nothing() {
    for step in 1.. {
        let TestSpool { data: _data, spool, .. } = test_spool();
        let failing = spool.clone().with_file_hook(Arc::new(FailAt(AtomicU64::new(step))));
        let lived = whole_life(&failing);
        spool.recover().unwrap();
        let case = format!("step {step}");
        let names = op_names(&spool);
        assert_eq!(
            names.len(),
            ops(&spool).iter().map(Op::name).collect::<HashSet<_>>().len(),
            "{case}: {names:?}"
        );
        let whole = ["submit", "claim", "fail", "requeue", "claim", "complete"];
        assert_eq!(names, whole[..names.len()], "{case}");
        let expected = match names.len() {
            0 => vec![],
            3 => vec!["failed"],
            6 => vec!["completed"],
            _ => vec!["pending"],
        };
        if let Some(op) = ops(&spool).first() {
            assert_eq!(places(&spool, &op.task), expected, "{case}");
        }
        assert_eq!(std::fs::read_dir(spool.root().join("tmp")).unwrap().count(), 0, "{case}");
        match lived {
            Ok(()) => return,
            Err(error) => assert_eq!(error.kind(), Kind::Unavailable, "{case}: {error}"),
        }
    }
}

fn dice(spool: &Spool, sides: u64) -> u64 {
    spool.host().random() % sides
}

/// Claims tasks and settles them in random ways.
fn claim_and_settle(test: &TestSpool, name: &str, turns: u32) {
    let spool = test.other();
    for _ in 0..turns {
        if dice(&spool, 20) == 0 {
            spool.recover().unwrap();
        }
        let Some(id) = spool.poll(1, &any()).unwrap().pop() else { continue };
        let Some(held) = claim(&spool, &id, name) else { continue };
        let settled = match dice(&spool, 6) {
            0 => spool.settle(&held, failure("it broke", false, None)),
            1 => spool.settle(&held, Settlement::Release),
            2 => {
                spool.cancel(&id).unwrap();
                spool.settle(&held, Settlement::Stop)
            }
            3 => {
                // As if it had died.
                make_stale(&spool, &id);
                continue;
            }
            _ => complete(&spool, &held),
        };
        settled.unwrap();
    }
}

/// Retries failed tasks, and cancels pending ones.
fn retry_and_cancel(test: &TestSpool, ids: &[TaskId], turns: u32) {
    let spool = test.other();
    for _ in 0..turns {
        let id = ids[usize::try_from(dice(&spool, ids.len() as u64)).unwrap()];
        let _ = if dice(&spool, 4) == 0 { spool.cancel(&id) } else { spool.requeue(&id).map(|_| ()) };
    }
}

#[test]
fn concurrent_operations_keep_a_task_in_one_place_and_complete_it_once_per_generation() {
    let test = test_spool();
    let mut template = order();
    template.max_attempts = Some(10_000);
    let ids: Vec<_> = (0..20).map(|_| test.spool.submit(template.clone()).unwrap()).collect();
    thread::scope(|scope| {
        for name in ["a", "b", "c", "d", "e", "f"] {
            let test = &test;
            scope.spawn(move || claim_and_settle(test, name, 150));
        }
        scope.spawn(|| retry_and_cancel(&test, &ids, 400));
        scope.spawn(|| retry_and_cancel(&test, &ids, 400));
    });
    test.spool.recover().unwrap();
    let mut completions = HashMap::new();
    let mut names = HashSet::new();
    for op in ops(&test.spool) {
        assert!(names.insert((op.task, op.name())), "{op:?} twice");
        if let OpKind::Complete { .. } = op.kind {
            *completions.entry((op.task, op.generation)).or_insert(0) += 1;
        }
    }
    assert!(completions.values().all(|count| *count == 1));
    for id in &ids {
        assert_eq!(places(&test.spool, id).len(), 1, "{id}");
        let there = test.spool.get(id).unwrap().unwrap();
        let is_completed = completions.contains_key(&(*id, there.generation));
        assert_eq!(there.status() == Status::Completed, is_completed);
    }
    assert_eq!(std::fs::read_dir(test.spool.root().join("tmp")).unwrap().count(), 0);
}
