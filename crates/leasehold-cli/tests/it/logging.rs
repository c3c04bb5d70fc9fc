//! Default log on standard error, and its format.

use crate::fixture::QueueFixture;

/// Standard error of a worker that runs this program until no task is left.
fn logged(fixture: &QueueFixture, program: &str, level: Option<&str>) -> String {
    let mut worker = fixture.command(&["worker", "--drain", "--exec", program]);
    worker.env_remove("LEASEHOLD_LOG").envs(level.map(|level| ("LEASEHOLD_LOG", level)));
    let output = worker.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

const BAD: &str = "bad=sh -c 'echo no luck >&2; echo at all >&2; exit 65'";

#[test]
fn a_failed_task_is_a_warning_with_its_reason_and_without_colours() {
    let fixture = QueueFixture::new();
    let id = fixture.run(&["submit", "-t", "bad", "--max-attempts", "1"]);
    let printed = logged(&fixture, BAD, None);
    let warnings: Vec<_> = printed.lines().filter(|line| line.contains(" WARN ")).collect();
    let [warning] = warnings.as_slice() else { panic!("{printed}") };
    for part in ["task failed", "no luck", &id] {
        assert!(warning.contains(part), "no `{part}` in {warning}");
    }
    assert!(!printed.contains('\u{1b}'), "{printed}");
}

#[test]
fn an_attempt_that_is_retried_is_a_warning_too() {
    let fixture = QueueFixture::new();
    fixture.run(&["submit", "-t", "busy", "--max-attempts", "2"]);
    let printed = logged(&fixture, "busy=sh -c 'echo busy >&2; exit 75'", None);
    let first = printed.lines().find(|line| line.contains(" WARN ")).unwrap();
    assert!(first.contains("attempt failed, task will be retried error=\"busy\""), "{printed}");
}

#[test]
fn the_reason_of_a_program_with_a_traceback_is_its_exception() {
    let fixture = QueueFixture::new();
    fixture.run(&["submit", "-t", "bad", "--max-attempts", "1"]);
    let program = "bad=sh -c 'printf \"Traceback:\\n  in line 3\\nOSError: no\\n\" >&2; exit 65'";
    let printed = logged(&fixture, program, None);
    assert!(printed.contains("task failed error=\"OSError: no\""), "{printed}");
}

#[test]
fn no_field_is_logged_twice() {
    let fixture = QueueFixture::new();
    let id = fixture.run(&["submit", "-t", "bad", "--max-attempts", "1"]);
    let printed = logged(&fixture, BAD, Some("info"));
    let about_task: Vec<_> = printed.lines().filter(|line| line.contains(&id)).collect();
    for words in ["task claimed", "task started", "task failed"] {
        assert!(about_task.iter().any(|line| line.contains(words)), "no `{words}` in {printed}");
    }
    for line in about_task {
        assert_eq!(line.matches(&id).count(), 1, "{line}");
        let mut names: Vec<_> = line.split([' ', '{']).filter_map(|word| word.split_once('=')).collect();
        let fields = names.len();
        names.sort_unstable();
        names.dedup_by_key(|(name, _)| *name);
        assert_eq!(names.len(), fields, "{line}");
    }
}

#[test]
fn a_closed_standard_error_ends_no_worker_and_changes_no_exit_code() {
    let fixture = QueueFixture::new();
    let id = fixture.run(&["submit", "-t", "bad", "--max-attempts", "1"]);
    let code = |args: &[&str]| {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        fixture.command(args).stderr(writer).status().unwrap().code()
    };
    assert_eq!(code(&["worker", "--drain", "--exec", BAD]), Some(0));
    let task: serde_json::Value = serde_json::from_str(&fixture.run(&["get", &id, "--json"])).unwrap();
    assert_eq!(task["status"], "failed", "{task}");
    assert_eq!(code(&["cancel", &id]), Some(1));
    assert_eq!(code(&["cancel", &id, "--json"]), Some(1));
}
