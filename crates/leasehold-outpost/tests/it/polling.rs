//! Polling: tasks that are due are found.

use leasehold_core::ids::TaskTypes;
use leasehold_core::{Name, NewTask, Priority, TaskId};
use serde_json::json;
use std::collections::{HashMap, HashSet};

use crate::support::{any, claim, failure, order, remote, test_spool};

#[test]
fn ten_free_tasks_among_five_thousand_are_found() {
    let test = test_spool();
    let mut ids = Vec::new();
    for n in 0..5_000 {
        let task = remote(n + 1);
        test.spool.mirror(&task, None).unwrap();
        ids.push(task.id);
    }
    let free: HashSet<_> = ids.iter().copied().step_by(500).collect();
    for id in ids.iter().filter(|id| !free.contains(id)) {
        claim(&test.spool, id, "w").unwrap();
    }
    let other = test.other();
    let found: HashSet<_> = other.poll(64, &any()).unwrap().into_iter().collect();
    assert_eq!(found, free);
    assert_eq!(other.poll(3, &any()).unwrap().len(), 3);
    for id in &free {
        claim(&other, id, "other").unwrap();
    }
    assert!(test.spool.poll(64, &any()).unwrap().is_empty());
}

#[test]
fn tasks_are_ordered_by_priority_and_then_randomly() {
    let test = test_spool();
    let mut priorities = HashMap::new();
    for n in 0..60 {
        let mut order = order();
        order.priority = Priority::new(n % 3 + 4).unwrap();
        priorities.insert(test.spool.submit(order).unwrap(), n % 3 + 4);
    }
    let polled = test.spool.poll(60, &any()).unwrap();
    let order: Vec<_> = polled.iter().map(|id| priorities[id]).collect();
    assert!(order.is_sorted_by(|a, b| a >= b), "{order:?}");
    let first = |spool: &leasehold_outpost::Spool| -> Vec<TaskId> { spool.poll(5, &any()).unwrap() };
    let scans: HashSet<_> = (0..10).map(|_| first(&test.spool)).collect();
    assert!(scans.len() > 5, "all scans found the same tasks");
    assert!(scans.iter().flatten().all(|id| priorities[id] == 6));
}

#[test]
fn only_handled_and_due_tasks_are_found() {
    let test = test_spool();
    let resize = test.spool.submit(NewTask::new("resize", json!(1)).unwrap()).unwrap();
    let mail = test.spool.submit(NewTask::new("mail", json!(1)).unwrap()).unwrap();
    let handles = |name: &str| TaskTypes::from_iter([Name::checked("task type", name).unwrap()]);
    assert_eq!(test.spool.poll(9, &handles("mail")).unwrap(), [mail]);
    assert_eq!(test.spool.poll(9, &handles("resize")).unwrap(), [resize]);
    assert!(test.spool.poll(9, &handles("x")).unwrap().is_empty());
    let held = claim(&test.spool, &mail, "w").unwrap();
    test.spool.settle(&held, failure("it broke", true, None)).unwrap();
    assert!(test.spool.poll(9, &handles("mail")).unwrap().is_empty());
    test.advance(10);
    assert_eq!(test.spool.poll(9, &handles("mail")).unwrap(), [mail]);
}
