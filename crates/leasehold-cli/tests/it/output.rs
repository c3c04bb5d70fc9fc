//! Output of every command, on success and on failure.

use serde_json::Value;

use crate::common::output_of;
use crate::fixture::QueueFixture;

/// Queue with one task in each of four statuses, of four types, run by worker `w1`.
fn worked() -> QueueFixture {
    worked_in(QueueFixture::new())
}

fn worked_in(fixture: QueueFixture) -> QueueFixture {
    for (task_type, delay) in [("greet", "0"), ("refuse", "0"), ("later", "3600"), ("never", "3600")] {
        fixture.run(&["submit", "-t", task_type, "-i", "{\"name\": \"Ada\"}", "--delay", delay]);
    }
    fixture.run(&["cancel", "--type", "never"]);
    let refuse = "refuse=sh -c 'echo not today >&2; exit 65'";
    fixture.run(&["worker", "--id", "w1", "--drain", "--exec", "greet=cat", "--exec", refuse]);
    fixture
}

/// Id of the only task of a type.
fn id_of(fixture: &QueueFixture, task_type: &str) -> String {
    let task: Value = serde_json::from_str(&fixture.run(&["list", "--type", task_type, "--json"])).unwrap();
    task["id"].as_str().unwrap().to_owned()
}

#[test]
fn submitting() {
    let fixture = QueueFixture::new();
    fixture.assert_filtered_output("submit", &["submit", "-t", "greet"]);
    fixture.assert_filtered_output("submit_json", &["submit", "-t", "greet", "--key", "k", "--json"]);
    fixture.assert_filtered_output("submit_again_json", &["submit", "-t", "greet", "--key", "k", "--json"]);
    fixture.run(&["submit", "-t", "refuse", "--key", "dead"]);
    let refuse = "refuse=sh -c 'echo not today >&2; exit 65'";
    fixture.run(&["worker", "--drain", "--exec", refuse]);
    fixture.assert_filtered_output("submit_existing_failed", &["submit", "-t", "refuse", "--key", "dead"]);
    let json = ["submit", "-t", "refuse", "--key", "dead", "--json"];
    fixture.assert_filtered_output("submit_existing_failed_json", &json);
    let retry = ["submit", "-t", "refuse", "--key", "dead", "--key-retry-failed"];
    fixture.assert_filtered_output("submit_existing_retried", &retry);
    fixture.assert_filtered_output("submit_existing_pending", &retry);
    fixture.assert_filtered_output("submit_conflict", &["submit", "-t", "greet", "--key", "k", "-i", "1"]);
    let file = fixture.path().join(".leasehold/tasks.ndjson");
    std::fs::write(&file, "{\"task_type\": \"a\"}\n{\"task_type\": \"b\", \"tags\": {\"c\": \"d\"}}\n")
        .unwrap();
    fixture.assert_filtered_output("submit_many_json", &["submit-many", file.to_str().unwrap(), "--json"]);
    fixture.assert_filtered_output("submit_many_no_file", &["submit-many", "/no/such/file"]);
}

#[test]
fn the_exit_code_of_wait_shows_the_status() {
    let fixture = worked();
    for (task_type, code) in [("greet", 0), ("refuse", 2), ("never", 3)] {
        let output = fixture.command(&["wait", &id_of(&fixture, task_type)]).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{task_type}: {output:?}");
    }
    fixture.assert_filtered_output("wait_failed", &["wait", &id_of(&fixture, "refuse")]);
    fixture.assert_filtered_output(
        "wait_failed_json",
        &["wait", &id_of(&fixture, "refuse"), "--output", "--json"],
    );
    assert_eq!(fixture.run(&["wait", &id_of(&fixture, "greet"), "--output"]), r#"{"name":"Ada"}"#);
    // A submit with --wait does so too, here for an existing final task of its key.
    fixture.run(&["submit", "-t", "refuse", "--key", "k"]);
    fixture.run(&["worker", "--drain", "--exec", "refuse=sh -c 'exit 65'"]);
    let output = fixture.command(&["submit", "-t", "refuse", "--key", "k", "--wait"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    fixture.run(&["submit", "-t", "greet", "-i", "7", "--key", "g"]);
    fixture.run(&["worker", "--drain", "--exec", "greet=cat"]);
    assert_eq!(fixture.run(&["submit", "-t", "greet", "-i", "7", "--key", "g", "--wait", "--output"]), "7");
}

#[test]
fn an_error_of_an_earlier_attempt_is_not_the_error_of_the_task() {
    let fixture = QueueFixture::new();
    let id = fixture.run(&["submit", "-t", "moody"]);
    let moody = "moody=sh -c 'test $LEASEHOLD_TASK_ATTEMPT -gt 1 || { echo busy >&2; exit 75; }'";
    fixture.run(&["worker", "--drain", "--exec", moody]);
    let printed = fixture.run(&["get", &id]);
    assert!(printed.contains("\nlast error   busy"), "{printed}");
    assert!(!printed.contains("\nerror"), "{printed}");
}

#[test]
fn reasons_of_several_lines_stay_in_their_columns() {
    let fixture = QueueFixture::new();
    let id = fixture.run(&["submit", "-t", "verbose"]);
    let verbose = "verbose=sh -c 'printf \"Traceback:\\n  in line 3\\nno luck\\n\" >&2; exit 65'";
    fixture.run(&["worker", "--drain", "--exec", verbose]);
    let history = fixture.run(&["history", &id]);
    assert_eq!(history.lines().count(), 2 + 3, "{history}");
    assert!(history.ends_with("  no luck …"), "{history}");
    let printed = fixture.run(&["get", &id]);
    let indent = " ".repeat(13);
    assert!(
        printed.contains(&format!("error        Traceback:\n{indent}  in line 3\n{indent}no luck")),
        "{printed}"
    );
    let json = fixture.run(&["history", &id, "--json"]);
    assert!(json.contains(r"Traceback:\n  in line 3\nno luck"), "{json}");
}

#[test]
fn showing_tasks() {
    let fixture = worked();
    fixture.assert_filtered_output("list", &["list"]);
    fixture.assert_filtered_output("list_limited", &["list", "--type", "greet", "--limit", "0"]);
    fixture.assert_filtered_output("list_nothing", &["list", "--type", "unheard-of"]);
    fixture.assert_filtered_output("list_json", &["list", "--status", "failed", "--json"]);
    for task_type in ["greet", "refuse", "later"] {
        let id = id_of(&fixture, task_type);
        fixture.assert_filtered_output(&format!("get_{task_type}"), &["get", &id]);
        fixture.assert_filtered_output(&format!("history_{task_type}"), &["history", &id]);
    }
    fixture.assert_filtered_output("wait", &["wait", &id_of(&fixture, "greet")]);
    fixture.assert_filtered_output("wait_too_long", &["wait", &id_of(&fixture, "later"), "--timeout", "0.1"]);
    fixture.assert_filtered_output("stats", &["stats"]);
}

#[test]
fn counting_tasks_of_shards() {
    worked_in(QueueFixture::of_objects()).assert_filtered_output("stats_of_objects", &["stats"]);
}

#[test]
fn changing_tasks() {
    let fixture = worked();
    let (later, refused) = (id_of(&fixture, "later"), id_of(&fixture, "refuse"));
    fixture.assert_filtered_output("reschedule", &["reschedule", &later, "--at", "2027-01-01T00:00:00Z"]);
    fixture.assert_filtered_output("retry", &["retry", &refused]);
    fixture.assert_filtered_output("retry_json", &["retry", &later, "--json"]);
    fixture.assert_filtered_output("cancel_one", &["cancel", &later]);
    fixture.assert_filtered_output("cancel_again", &["cancel", &later]);
    fixture.assert_filtered_output("cancel_by_type", &["cancel", "--type", "refuse"]);
    fixture.assert_filtered_output("cancel_no_such_type", &["cancel", "--type", "unheard-of"]);
    fixture.assert_filtered_output("purge", &["purge", "--older-than-days", "0"]);
}

#[test]
fn checking() {
    let fixture = QueueFixture::of_objects();
    let id = fixture.run(&["submit", "-t", "a"]);
    let objects =
        |root: &str| fixture.objects().into_iter().filter(|path| path.contains(root)).collect::<Vec<_>>();
    let object = |root: &str| objects(root).remove(0);
    std::fs::remove_file(object("/ready/")).unwrap();
    fixture.assert_filtered_output("check_fault", &["check"]);
    fixture.assert_filtered_output("check_repair", &["check", "--repair"]);
    fixture.assert_filtered_output("check_repaired", &["check"]);
    let key = object("/tasks/").split_off(fixture.path().display().to_string().len() + 1);
    fixture.assert_filtered_output("quarantine_healthy", &["quarantine", &key]);
    // A corrupt object, a transient one, and one that can be repaired.
    let entry = object("/ready/");
    let strange = fixture.path().join("ready/strange");
    std::fs::write(&strange, "").unwrap();
    let lost = fixture.run(&["submit", "-t", "a"]);
    let file = |root: &str, id: &str| objects(root).into_iter().find(|path| path.contains(id)).unwrap();
    std::fs::remove_file(file("/tasks/", &lost)).unwrap();
    let uncovered = fixture.run(&["submit", "-t", "a"]);
    std::fs::remove_file(file("/ready/", &uncovered)).unwrap();
    std::fs::write(file("/tasks/", &id), "{").unwrap();
    assert!(std::path::Path::new(&entry).exists());
    fixture.assert_filtered_output("check_corrupt", &["check"]);
    fixture.assert_filtered_output("check_corrupt_repair", &["check", "--repair"]);
    fixture.assert_filtered_output("get_corrupt", &["get", &id]);
    fixture.assert_filtered_output("get_corrupt_json", &["get", &id, "--json"]);
    fixture.assert_filtered_output("quarantine", &["quarantine", &key]);
    fixture
        .assert_filtered_output("quarantine_delete", &["quarantine", "ready/strange", "--delete", "--json"]);
    assert!(!strange.exists());
    let copy = object("/quarantine/");
    assert_eq!((std::fs::read_to_string(&copy).unwrap().as_str(), copy.ends_with(&key)), ("{", true));
    // In the order of ids, which are random.
    let printed = fixture.run(&["check"]);
    assert!(
        printed.contains("its task has changed since")
            && printed.contains("2 transient objects are removed or replaced"),
        "{printed}"
    );
}

/// The entry of a killed producer is no inconsistency: it is transient, and `check` prints when.
#[test]
fn checking_after_a_kill() {
    let fixture = QueueFixture::of_objects();
    let id = fixture.run(&["submit", "-t", "a"]);
    let task = fixture.objects().into_iter().find(|path| path.contains("/tasks/")).unwrap();
    assert!(task.contains(&id));
    std::fs::remove_file(task).unwrap();
    fixture.assert_filtered_output("check_transient", &["check"]);
    fixture.assert_filtered_output("check_transient_repair", &["check", "--repair"]);
    fixture.assert_filtered_output("check_transient_grace", &["check", "--repair", "--grace-secs", "0"]);
}

#[test]
fn nothing_in_a_task_controls_the_terminal() {
    let fixture = QueueFixture::new();
    let (tag, input) = ("a=\u{1b}]52;c;aGk=\u{7}", "\"\u{9b}31m\u{7f}\"");
    let id = fixture.run(&["submit", "-t", "bad", "--max-attempts", "1", "--tag", tag, "-i", input]);
    let script = fixture.path().join(".leasehold/bad.sh");
    std::fs::write(&script, r"printf '\033]52;c;aGk=\007\r\n\033[31mred\n' >&2; exit 65").unwrap();
    let bad = format!("bad=sh {}", script.display());
    let worked = output_of(&mut fixture.command(&["worker", "--drain", "--exec", &bad]));
    assert!(worked.contains("1 failed"), "{worked}");
    for args in [
        ["get", &id].as_slice(),
        &["get", &id, "--json"],
        &["history", &id],
        &["history", &id, "--json"],
        &["list"],
        &["list", "--json"],
        &["list", "--tag", tag],
        &["list", "--tag", "\u{1b}[2J"],
    ] {
        let printed = output_of(&mut fixture.command(args));
        assert!(!printed.contains(|c: char| c.is_control() && c != '\n'), "{args:?}: {printed:?}");
    }
    let got: Value = serde_json::from_str(&fixture.run(&["get", &id, "--json"])).unwrap();
    assert_eq!(got["input"], "\u{9b}31m\u{7f}", "machines get what was there");
    assert!(fixture.run(&["get", &id]).contains("\n             \\u{1b}[31mred"), "lines stay apart");
}
