//! Polling: tasks that are due are found.

use leasehold_core::{NewTask, Priority, TaskId};
use serde_json::json;
use std::collections::{HashMap, HashSet};

use crate::support::{any, claim, order, remote, stand};

#[test]
fn ten_free_tasks_among_five_thousand_are_found() {
    let stand = stand();
    let mut ids = Vec::new();
    for n in 0..5_000 {
        let task = remote(n + 1);
        stand.spool.mirror(&task, None).unwrap();
        ids.push(task.id);
    }
    let free: HashSet<_> = ids.iter().copied().step_by(500).collect();
    for id in ids.iter().filter(|id| !free.contains(id)) {
        claim(&stand.spool, id, "w").unwrap();
    }
    let other = stand.other();
    let found: HashSet<_> = other.poll(64, &any).unwrap().into_iter().collect();
    assert_eq!(found, free);
    assert_eq!(other.poll(3, &any).unwrap().len(), 3);
    for id in &free {
        claim(&other, id, "other").unwrap();
    }
    assert!(stand.spool.poll(64, &any).unwrap().is_empty());
}

#[test]
fn tasks_are_ordered_by_priority_and_then_randomly() {
    let stand = stand();
    let mut priorities = HashMap::new();
    for n in 0..60 {
        let mut order = order();
        order.priority = Priority::new(n % 3 + 4).unwrap();
        priorities.insert(stand.spool.submit(order).unwrap(), n % 3 + 4);
    }
    let polled = stand.spool.poll(60, &any).unwrap();
    let order: Vec<_> = polled.iter().map(|id| priorities[id]).collect();
    assert!(order.is_sorted_by(|a, b| a >= b), "{order:?}");
    let first = |spool: &leasehold_outpost::Spool| -> Vec<TaskId> { spool.poll(5, &any).unwrap() };
    let looks: HashSet<_> = (0..10).map(|_| first(&stand.spool)).collect();
    assert!(looks.len() > 5, "all look at the same ones");
    assert!(looks.iter().flatten().all(|id| priorities[id] == 6));
}

#[test]
fn only_what_is_wanted_and_due_is_found() {
    let stand = stand();
    let resize = stand.spool.submit(NewTask::new("resize", json!(1)).unwrap()).unwrap();
    let mail = stand.spool.submit(NewTask::new("mail", json!(1)).unwrap()).unwrap();
    let wants = |name: &'static str| move |task_type: &leasehold_core::TaskType| task_type.as_str() == name;
    assert_eq!(stand.spool.poll(9, &wants("mail")).unwrap(), [mail]);
    assert_eq!(stand.spool.poll(9, &wants("resize")).unwrap(), [resize]);
    assert!(stand.spool.poll(9, &wants("x")).unwrap().is_empty());
    let held = claim(&stand.spool, &mail, "w").unwrap();
    stand.spool.fail(&held, "it broke", true, None).unwrap();
    assert!(stand.spool.poll(9, &wants("mail")).unwrap().is_empty());
    stand.advance(10);
    assert_eq!(stand.spool.poll(9, &wants("mail")).unwrap(), [mail]);
}
