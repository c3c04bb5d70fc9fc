//! Output of every command, on success and on failure.

use serde_json::Value;

use crate::common::said;
use crate::shelf::Shelf;

/// Queue with one task in each of four statuses, of four types, run by worker `w1`.
fn worked() -> Shelf {
    let shelf = Shelf::new();
    for (task_type, delay) in [("greet", "0"), ("refuse", "0"), ("later", "3600"), ("never", "3600")] {
        shelf.run(&["submit", "-t", task_type, "-i", "{\"name\": \"Ada\"}", "--delay", delay]);
    }
    shelf.run(&["cancel", "--type", "never"]);
    let refuse = "refuse=sh -c 'echo not today >&2; exit 65'";
    shelf.run(&["worker", "--id", "w1", "--drain", "--exec", "greet=cat", "--exec", refuse]);
    shelf
}

/// Id of the only task of a type.
fn id_of(shelf: &Shelf, task_type: &str) -> String {
    let task: Value = serde_json::from_str(&shelf.run(&["list", "--type", task_type, "--json"])).unwrap();
    task["id"].as_str().unwrap().to_owned()
}

#[test]
fn submitting() {
    let shelf = Shelf::new();
    shelf.seen("submit", &["submit", "-t", "greet"]);
    shelf.seen("submit_json", &["submit", "-t", "greet", "--key", "k", "--json"]);
    shelf.seen("submit_again_json", &["submit", "-t", "greet", "--key", "k", "--json"]);
    shelf.run(&["submit", "-t", "refuse", "--key", "dead"]);
    let refuse = "refuse=sh -c 'echo not today >&2; exit 65'";
    shelf.run(&["worker", "--drain", "--exec", refuse]);
    shelf.seen("submit_existing_failed", &["submit", "-t", "refuse", "--key", "dead"]);
    let json = ["submit", "-t", "refuse", "--key", "dead", "--json"];
    shelf.seen("submit_existing_failed_json", &json);
    let retry = ["submit", "-t", "refuse", "--key", "dead", "--key-retry-failed"];
    shelf.seen("submit_existing_retried", &retry);
    shelf.seen("submit_existing_pending", &retry);
    shelf.seen("submit_conflict", &["submit", "-t", "greet", "--key", "k", "-i", "1"]);
    let file = shelf.path().join(".leasehold/tasks.ndjson");
    std::fs::write(&file, "{\"task_type\": \"a\"}\n{\"task_type\": \"b\", \"tags\": {\"c\": \"d\"}}\n")
        .unwrap();
    shelf.seen("submit_many_json", &["submit-many", file.to_str().unwrap(), "--json"]);
    shelf.seen("submit_many_no_file", &["submit-many", "/no/such/file"]);
}

#[test]
fn the_exit_code_of_wait_shows_the_status() {
    let shelf = worked();
    for (task_type, code) in [("greet", 0), ("refuse", 2), ("never", 3)] {
        let output = shelf.command(&["wait", &id_of(&shelf, task_type)]).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{task_type}: {output:?}");
    }
    shelf.seen("wait_failed", &["wait", &id_of(&shelf, "refuse")]);
    shelf.seen("wait_failed_json", &["wait", &id_of(&shelf, "refuse"), "--output", "--json"]);
    assert_eq!(shelf.run(&["wait", &id_of(&shelf, "greet"), "--output"]), r#"{"name":"Ada"}"#);
    // A submit with --wait does so too, here for an existing final task of its key.
    shelf.run(&["submit", "-t", "refuse", "--key", "k"]);
    shelf.run(&["worker", "--drain", "--exec", "refuse=sh -c 'exit 65'"]);
    let output = shelf.command(&["submit", "-t", "refuse", "--key", "k", "--wait"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    shelf.run(&["submit", "-t", "greet", "-i", "7", "--key", "g"]);
    shelf.run(&["worker", "--drain", "--exec", "greet=cat"]);
    assert_eq!(shelf.run(&["submit", "-t", "greet", "-i", "7", "--key", "g", "--wait", "--output"]), "7");
}

#[test]
fn an_error_of_an_earlier_attempt_is_not_the_error_of_the_task() {
    let shelf = Shelf::new();
    let id = shelf.run(&["submit", "-t", "moody"]);
    let moody = "moody=sh -c 'test $LEASEHOLD_TASK_ATTEMPT -gt 1 || { echo busy >&2; exit 75; }'";
    shelf.run(&["worker", "--drain", "--exec", moody]);
    let said = shelf.run(&["get", &id]);
    assert!(said.contains("\nlast error   busy"), "{said}");
    assert!(!said.contains("\nerror"), "{said}");
}

#[test]
fn reasons_of_several_lines_stay_in_their_columns() {
    let shelf = Shelf::new();
    let id = shelf.run(&["submit", "-t", "verbose"]);
    let verbose = "verbose=sh -c 'printf \"Traceback:\\n  in line 3\\nno luck\\n\" >&2; exit 65'";
    shelf.run(&["worker", "--drain", "--exec", verbose]);
    let history = shelf.run(&["history", &id]);
    assert_eq!(history.lines().count(), 2 + 3, "{history}");
    assert!(history.ends_with("Traceback: …"), "{history}");
    let said = shelf.run(&["get", &id]);
    let indent = " ".repeat(13);
    assert!(
        said.contains(&format!("error        Traceback:\n{indent}  in line 3\n{indent}no luck")),
        "{said}"
    );
    let json = shelf.run(&["history", &id, "--json"]);
    assert!(json.contains(r"Traceback:\n  in line 3\nno luck"), "{json}");
}

#[test]
fn showing_tasks() {
    let shelf = worked();
    shelf.seen("list", &["list"]);
    shelf.seen("list_limited", &["list", "--type", "greet", "--limit", "0"]);
    shelf.seen("list_nothing", &["list", "--type", "unheard-of"]);
    shelf.seen("list_json", &["list", "--status", "failed", "--json"]);
    for task_type in ["greet", "refuse", "later"] {
        let id = id_of(&shelf, task_type);
        shelf.seen(&format!("get_{task_type}"), &["get", &id]);
        shelf.seen(&format!("history_{task_type}"), &["history", &id]);
    }
    shelf.seen("wait", &["wait", &id_of(&shelf, "greet")]);
    shelf.seen("wait_too_long", &["wait", &id_of(&shelf, "later"), "--timeout", "0.1"]);
    shelf.seen("stats", &["stats"]);
}

#[test]
fn changing_tasks() {
    let shelf = worked();
    let (later, refused) = (id_of(&shelf, "later"), id_of(&shelf, "refuse"));
    shelf.seen("reschedule", &["reschedule", &later, "--at", "2027-01-01T00:00:00Z"]);
    shelf.seen("retry", &["retry", &refused]);
    shelf.seen("retry_json", &["retry", &later, "--json"]);
    shelf.seen("cancel_one", &["cancel", &later]);
    shelf.seen("cancel_again", &["cancel", &later]);
    shelf.seen("cancel_by_type", &["cancel", "--type", "refuse"]);
    shelf.seen("cancel_no_such_type", &["cancel", "--type", "unheard-of"]);
    shelf.seen("purge", &["purge", "--older-than-days", "0"]);
}

#[test]
fn checking() {
    let shelf = Shelf::new();
    let id = shelf.run(&["submit", "-t", "a"]);
    let objects =
        |root: &str| shelf.objects().into_iter().filter(|path| path.contains(root)).collect::<Vec<_>>();
    let object = |root: &str| objects(root).remove(0);
    std::fs::remove_file(object("/ready/")).unwrap();
    shelf.seen("check_fault", &["check"]);
    shelf.seen("check_repair", &["check", "--repair"]);
    shelf.seen("check_repaired", &["check"]);
    let key = object("/tasks/").split_off(shelf.path().display().to_string().len() + 1);
    shelf.seen("quarantine_healthy", &["quarantine", &key]);
    // A corrupt object, one that heals by itself, and one that can be repaired.
    let entry = object("/ready/");
    let strange = shelf.path().join("ready/strange");
    std::fs::write(&strange, "").unwrap();
    let lost = shelf.run(&["submit", "-t", "a"]);
    let file = |root: &str, id: &str| objects(root).into_iter().find(|path| path.contains(id)).unwrap();
    std::fs::remove_file(file("/tasks/", &lost)).unwrap();
    let uncovered = shelf.run(&["submit", "-t", "a"]);
    std::fs::remove_file(file("/ready/", &uncovered)).unwrap();
    std::fs::write(file("/tasks/", &id), "{").unwrap();
    assert!(std::path::Path::new(&entry).exists());
    shelf.seen("check_corrupt", &["check"]);
    shelf.seen("check_corrupt_repair", &["check", "--repair"]);
    shelf.seen("get_corrupt", &["get", &id]);
    shelf.seen("get_corrupt_json", &["get", &id, "--json"]);
    shelf.seen("quarantine", &["quarantine", &key]);
    shelf.seen("quarantine_delete", &["quarantine", "ready/strange", "--delete", "--json"]);
    assert!(!strange.exists());
    let copy = object("/quarantine/");
    assert_eq!((std::fs::read_to_string(&copy).unwrap().as_str(), copy.ends_with(&key)), ("{", true));
    // In the order of ids, which are random.
    let said = shelf.run(&["check"]);
    assert!(
        said.contains("its task has changed since") && said.contains("2 objects heal without any action"),
        "{said}"
    );
}

/// The entry of a killed producer is no inconsistency: it heals by itself, and `check` prints when.
#[test]
fn checking_after_a_kill() {
    let shelf = Shelf::new();
    let id = shelf.run(&["submit", "-t", "a"]);
    let task = shelf.objects().into_iter().find(|path| path.contains("/tasks/")).unwrap();
    assert!(task.contains(&id));
    std::fs::remove_file(task).unwrap();
    shelf.seen("check_heals", &["check"]);
    shelf.seen("check_heals_repair", &["check", "--repair"]);
    shelf.seen("check_heals_grace", &["check", "--repair", "--grace-secs", "0"]);
}

#[test]
fn nothing_in_a_task_controls_the_terminal() {
    let shelf = Shelf::new();
    let (tag, input) = ("a=\u{1b}]52;c;aGk=\u{7}", "\"\u{9b}31m\u{7f}\"");
    let id = shelf.run(&["submit", "-t", "bad", "--max-attempts", "1", "--tag", tag, "-i", input]);
    let script = shelf.path().join(".leasehold/bad.sh");
    std::fs::write(&script, r"printf '\033]52;c;aGk=\007\r\n\033[31mred\n' >&2; exit 65").unwrap();
    let bad = format!("bad=sh {}", script.display());
    let worked = said(&mut shelf.command(&["worker", "--drain", "--exec", &bad]));
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
        let said = said(&mut shelf.command(args));
        assert!(!said.contains(|c: char| c.is_control() && c != '\n'), "{args:?}: {said:?}");
    }
    let got: Value = serde_json::from_str(&shelf.run(&["get", &id, "--json"])).unwrap();
    assert_eq!(got["input"], "\u{9b}31m\u{7f}", "machines get what was there");
    assert!(shelf.run(&["get", &id]).contains("\n             \\u{1b}[31mred"), "lines stay apart");
}
