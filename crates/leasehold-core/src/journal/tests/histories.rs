//! Random histories: the journal has the tasks of the object layout, every prefix of its log is legal, and replays agree.

use proptest::prelude::*;
use serde_json::json;
use std::collections::BTreeMap;
use std::time::Duration;

use super::archive::EAGER;
use super::broker::{TestBroker, minutes, secs};
use crate::ids::{TaskId, TaskTypes};
use crate::journal::{ArchiveLimits, ChangeKind, JournalRecord, JournalState};
use crate::new_task::{NewTask, Start};
use crate::settlement::Settlement;
use crate::step::Event;
use crate::task::{Priority, Status};
use crate::unique::{Scope, UniqueKey};

/// One step of a history. Numbers select among what exists.
#[derive(Debug, Clone)]
enum Op {
    Submit {
        task_type: u8,
        priority: u8,
        delay: u16,
        expiry: Option<u16>,
        key: Option<(u8, bool, bool)>,
        input: u8,
    },
    Claim {
        worker: u8,
        slots: usize,
        task_type: Option<u8>,
    },
    Renew {
        worker: u8,
        progress: Option<u8>,
    },
    Settle {
        claim: usize,
        how: u8,
    },
    Operate {
        task: usize,
        how: u8,
    },
    Tick,
    Purge {
        older_than: u32,
    },
    /// Archives what has ended; a task that ended is retried while an object is written.
    Archive {
        age: u16,
        small: usize,
        retried: Option<usize>,
    },
    /// Evicts tasks from one on.
    Evict {
        first: usize,
        tasks: usize,
    },
    TakeOver,
    Pass {
        millis: u32,
    },
    Blur {
        millis: u16,
    },
}

fn op() -> impl Strategy<Value = Op> {
    let key = prop::option::weighted(0.3, (0u8..3, any::<bool>(), any::<bool>()));
    prop_oneof![
        4 => (0u8..3, 0u8..10, 0u16..3, prop::option::weighted(0.2, 1u16..200), key, 0u8..5).prop_map(
            |(task_type, priority, delay, expiry, key, input)| {
                Op::Submit { task_type, priority, delay: delay * 40, expiry, key, input: input / 4 }
            }
        ),
        4 => (0u8..3, 0usize..4, prop::option::of(0u8..3))
            .prop_map(|(worker, slots, task_type)| Op::Claim { worker, slots, task_type }),
        2 => (0u8..3, prop::option::of(any::<u8>())).prop_map(|(worker, progress)| Op::Renew { worker, progress }),
        4 => (any::<usize>(), 0u8..7).prop_map(|(claim, how)| Op::Settle { claim, how }),
        2 => (any::<usize>(), 0u8..3).prop_map(|(task, how)| Op::Operate { task, how }),
        2 => Just(Op::Tick),
        1 => (0u32..400_000).prop_map(|older_than| Op::Purge { older_than }),
        2 => (0u16..100, 1usize..5, prop::option::of(any::<usize>()))
            .prop_map(|(age, small, retried)| Op::Archive { age, small, retried }),
        4 => (any::<usize>(), 1usize..20).prop_map(|(first, tasks)| Op::Evict { first, tasks }),
        1 => Just(Op::TakeOver),
        3 => prop_oneof![0u32..2_000, 0u32..90_000, Just(100_000_000)].prop_map(|millis| Op::Pass { millis }),
        1 => (0u16..2_000).prop_map(|millis| Op::Blur { millis }),
    ]
}

const TYPES: [&str; 3] = ["resize", "shrink", "crop"];
const WORKERS: [&str; 3] = ["w1", "w2", "w3"];

fn run(broker: &mut TestBroker, op: &Op) {
    match op {
        Op::Submit { task_type, priority, delay, expiry, key, input } => {
            let new_task = NewTask {
                priority: Priority::new(*priority).unwrap(),
                start: if *delay == 0 { Start::Now } else { Start::After(secs((*delay).into())) },
                expires_in: expiry.map(|expiry| secs(u64::from(expiry + delay) + 1)),
                max_attempts: Some(2),
                ..NewTask::new(TYPES[usize::from(*task_type)], json!(input)).unwrap()
            };
            let key = key.map(|(key, is_typed, retry_failed)| UniqueKey {
                scope: if is_typed { Scope::TaskType } else { Scope::Queue },
                lifetime: Duration::from_hours(1),
                retry_failed,
                ..UniqueKey::new(format!("key {key}"))
            });
            // The only error is that the key belongs to another task.
            let _ = broker.submit_task(new_task, key);
        }
        Op::Claim { worker, slots, task_type } => {
            let name =
                |task_type: u8| crate::Name::checked("task type", TYPES[usize::from(task_type)]).unwrap();
            let types =
                task_type.map_or(TaskTypes::all(), |task_type| [name(task_type)].into_iter().collect());
            broker.claim_types(WORKERS[usize::from(*worker)], *slots, types);
        }
        Op::Renew { worker, progress } => {
            broker
                .renew_with(WORKERS[usize::from(*worker)], progress.map(|progress| json!(progress)).as_ref());
        }
        Op::Settle { claim, how } if !broker.claims.is_empty() => {
            let claim = broker.claims[claim % broker.claims.len()].clone();
            broker.settle(&claim, settlement(*how));
        }
        Op::Operate { task, how } if !broker.objects.is_empty() => {
            let id = *broker.objects.keys().nth(task % broker.objects.len()).unwrap();
            let at = broker.now().earliest.plus(secs(90));
            let event = [Event::Cancel, Event::Retry, Event::Reschedule { at }][usize::from(*how)].clone();
            broker.operate(id, &event).unwrap();
        }
        Op::Settle { .. } | Op::Operate { .. } => {}
        Op::Tick => drop(broker.tick()),
        Op::Purge { older_than } => drop(broker.purge(secs((*older_than).into()))),
        Op::Archive { age, small, retried } => {
            let limits = ArchiveLimits { age: secs((*age).into()), small: *small, ..EAGER };
            broker.archive_with(&limits, |broker| {
                if let Some(task) = retried.filter(|_| !broker.objects.is_empty()) {
                    let id = *broker.objects.keys().nth(task % broker.objects.len()).unwrap();
                    broker.operate(id, &Event::Retry).unwrap();
                }
            });
        }
        Op::Evict { first, tasks } => broker.evict(*first, *tasks),
        Op::TakeOver => broker.take_over(),
        Op::Pass { millis } => broker.pass(Duration::from_millis((*millis).into())),
        Op::Blur { millis } => broker.blur(Duration::from_millis((*millis).into())),
    }
}

fn settlement(how: u8) -> Settlement {
    let error = "oh".to_owned();
    match how {
        0 => Settlement::complete(json!("done")),
        1 => Settlement::Fail { error, retryable: true, after: None },
        2 => Settlement::Fail { error, retryable: false, after: None },
        3 => Settlement::Exhaust { error, max_attempts: 1 },
        4 => Settlement::Snooze(minutes(1)),
        5 => Settlement::Release,
        _ => Settlement::Stop,
    }
}

/// Checks that a log is a legal history, line by line.
fn check_log(broker: &TestBroker) {
    let mut state = JournalState::default();
    let mut known: BTreeMap<TaskId, (u64, Status)> = BTreeMap::new();
    let mut archived: BTreeMap<TaskId, (u64, Status)> = BTreeMap::new();
    for line in broker.lines() {
        let record = JournalRecord::read(line.as_bytes()).unwrap();
        state.apply(record.clone()).unwrap();
        match record {
            JournalRecord::Submit(task) => {
                let new = state.get(&task.id()).unwrap().unwrap();
                if let Some(known_before) = archived.remove(&new.id) {
                    assert_eq!(known_before, (new.rev, new.status()), "it becomes live as it was archived");
                    known.insert(new.id, known_before);
                    continue;
                }
                assert_eq!((new.rev, new.status()), (1, Status::Pending));
                assert_eq!(known.insert(new.id, (1, Status::Pending)), None);
            }
            JournalRecord::Change { kind, task, change } => {
                let (rev, from) = known[&task];
                assert_eq!(change.rev, rev + 1);
                let Some(new) = state.get(&task).unwrap() else {
                    assert_eq!((kind, from.is_final()), (ChangeKind::Purge, true));
                    known.remove(&task);
                    continue;
                };
                assert!(is_legal(kind, from, new.status()), "{kind:?}: {from} to {}", new.status());
                assert!(new.attempt <= new.max_attempts);
                assert_eq!(new.history.events().count() as u64 + new.history.folded(), new.rev);
                known.insert(task, (new.rev, new.status()));
            }
            JournalRecord::Archive(change) => {
                for moved in change.tasks {
                    let (rev, status) = known.remove(&moved.id).unwrap();
                    assert!(status.is_final() && rev == moved.rev);
                    archived.insert(moved.id, (rev, status));
                }
            }
            JournalRecord::Heard { tasks, .. } => {
                assert!(tasks.iter().all(|task| known[task].1 == Status::Running));
            }
        }
    }
}

/// The diagram of `task.rs`.
fn is_legal(kind: ChangeKind, from: Status, to: Status) -> bool {
    use ChangeKind as Kind;
    use Status::{Cancelled, Completed, Expired, Failed, Pending, Running};
    let possible: &[Status] = match (from, kind) {
        (Pending, Kind::Claim) | (Running, Kind::Cancel) => &[Running],
        (Pending, Kind::Reschedule) | (Failed | Cancelled | Expired, Kind::Retry) => &[Pending],
        (Pending, Kind::Cancel) | (Running, Kind::Stop) => &[Cancelled],
        (Pending, Kind::Expire) => &[Expired],
        (Running, Kind::Complete) => &[Completed],
        (Running, Kind::Fail | Kind::Timeout) => &[Pending, Failed, Cancelled],
        (Running, Kind::Snooze | Kind::Release) => &[Pending, Cancelled],
        _ => &[],
    };
    possible.contains(&to)
}

proptest! {
    #[test]
    fn any_history_is_legal_and_can_be_replayed(ops in prop::collection::vec(op(), 0..80)) {
        let mut broker = TestBroker::new();
        for (number, op) in ops.iter().enumerate() {
            run(&mut broker, op);
            // A check replays the whole log.
            if number % 8 == 0 {
                broker.check();
            }
        }
        broker.check();
        check_log(&broker);
    }

    /// A worker that trusts its claim has it (P2): the assertion is in the broker's tick. Workers renew in time and brokers
    /// come and go, until the time is far beyond every lease.
    #[test]
    fn no_claim_times_out_before_the_time_that_its_worker_was_promised(
        ops in prop::collection::vec((0u8..4, 0u32..40_000), 1..60),
    ) {
        let mut broker = TestBroker::new();
        broker.submit("resize");
        broker.submit("shrink");
        broker.claim("w1", 1);
        for (how, millis) in ops {
            broker.pass(Duration::from_millis(millis.into()));
            match how {
                0 => drop(broker.renew("w1")),
                1 => broker.take_over(),
                2 => drop(broker.claim("w1", 1)),
                _ => drop(broker.tick()),
            }
        }
        broker.check();
    }
}
