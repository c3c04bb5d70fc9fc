//! Default log on standard error, and its format.

use crate::shelf::Shelf;

/// Standard error of a worker that runs this program until no task is left.
fn logged(shelf: &Shelf, program: &str, level: Option<&str>) -> String {
    let mut worker = shelf.command(&["worker", "--drain", "--exec", program]);
    worker.env_remove("LEASEHOLD_LOG").envs(level.map(|level| ("LEASEHOLD_LOG", level)));
    let output = worker.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

const BAD: &str = "bad=sh -c 'echo no luck >&2; echo at all >&2; exit 65'";

#[test]
fn a_failed_task_is_a_warning_with_its_reason_and_without_colours() {
    let shelf = Shelf::new();
    let id = shelf.run(&["submit", "-t", "bad", "--max-attempts", "1"]);
    let said = logged(&shelf, BAD, None);
    let warnings: Vec<_> = said.lines().filter(|line| line.contains(" WARN ")).collect();
    let [warning] = warnings.as_slice() else { panic!("{said}") };
    for part in ["task failed", "no luck", &id] {
        assert!(warning.contains(part), "no `{part}` in {warning}");
    }
    assert!(!said.contains('\u{1b}'), "{said}");
}

#[test]
fn an_attempt_that_is_retried_is_a_warning_too() {
    let shelf = Shelf::new();
    shelf.run(&["submit", "-t", "busy", "--max-attempts", "2"]);
    let said = logged(&shelf, "busy=sh -c 'echo busy >&2; exit 75'", None);
    let first = said.lines().find(|line| line.contains(" WARN ")).unwrap();
    assert!(first.contains("attempt failed, task will be retried error=\"busy\""), "{said}");
}

#[test]
fn no_field_is_logged_twice() {
    let shelf = Shelf::new();
    let id = shelf.run(&["submit", "-t", "bad", "--max-attempts", "1"]);
    let said = logged(&shelf, BAD, Some("info"));
    let about_task: Vec<_> = said.lines().filter(|line| line.contains(&id)).collect();
    for words in ["task claimed", "task started", "task failed"] {
        assert!(about_task.iter().any(|line| line.contains(words)), "no `{words}` in {said}");
    }
    for line in about_task {
        assert_eq!(line.matches(&id).count(), 1, "{line}");
    }
}
