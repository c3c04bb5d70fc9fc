//! A change leads from a task to its next revision, for every state and every event.

use crate::journal::TaskChange;
use crate::record::short::write_id_of;
use crate::step::step;
use crate::step::tests::{events, later, tasks};
use crate::task::Task;

#[test]
fn every_change_is_applied_as_it_was_made() {
    let mut changes = 0;
    for (name, old) in tasks() {
        for event in events() {
            for derived in [false, true] {
                let mut context = later(7_200);
                if derived {
                    context.write_id = write_id_of(&old.id, old.rev + 1);
                }
                let Ok(step) = step(&old, &event, &context) else { continue };
                let change = TaskChange::between(&old, &step.task);
                let json = serde_json::to_string(&change).unwrap();
                assert_eq!(json.contains("write_id"), !derived, "{json}");
                for change in [change, serde_json::from_str(&json).unwrap()] {
                    let mut task = old.clone();
                    change.apply(&mut task).unwrap();
                    assert_eq!(task, step.task, "{name}, {}: {json}", event.name());
                }
                changes += 1;
            }
        }
    }
    assert!(changes > 100, "{changes}");
}

#[test]
fn a_change_applies_to_its_own_revision_only() {
    let old = crate::testing::pending();
    let new = step(&old, &crate::step::Event::Cancel, &later(1)).unwrap().task;
    let change = TaskChange::between(&old, &new);
    for rev in [0, 2, 3] {
        let error = change.clone().apply(&mut Task { rev, ..old.clone() }).unwrap_err();
        let message = format!("revision 2 of task {} follows revision {rev} in the journal", old.id);
        assert_eq!(error.to_string(), message);
    }
}
