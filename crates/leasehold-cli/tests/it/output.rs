//! What every command says when all is well, and when it is not.

use serde_json::Value;

use crate::shelf::Shelf;

/// One task in each of four statuses, of four types, made by a worker called `w1`.
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

/// The only task of a type.
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
fn waiting_tells_how_a_task_ended() {
    let shelf = worked();
    for (task_type, code) in [("greet", 0), ("refuse", 2), ("never", 3)] {
        let output = shelf.command(&["wait", &id_of(&shelf, task_type)]).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{task_type}: {output:?}");
    }
    shelf.seen("wait_failed", &["wait", &id_of(&shelf, "refuse")]);
    shelf.seen("wait_failed_json", &["wait", &id_of(&shelf, "refuse"), "--output", "--json"]);
    assert_eq!(shelf.run(&["wait", &id_of(&shelf, "greet"), "--output"]), r#"{"name":"Ada"}"#);
    // The same for a submit that waits, here for the task of a key that is final already.
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
fn looking_at_tasks() {
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
    let object = |root: &str| shelf.objects().into_iter().find(|path| path.contains(root)).unwrap();
    std::fs::remove_file(object("/ready/")).unwrap();
    shelf.seen("check_fault", &["check"]);
    shelf.seen("check_repair", &["check", "--repair"]);
    shelf.seen("check_repaired", &["check"]);
    // Two faults that no program can put right, and one that it could.
    let entry = object("/ready/");
    std::fs::copy(&entry, entry.replace(".0", ".9")).unwrap();
    std::fs::write(object("/tasks/"), "{").unwrap();
    shelf.seen("check_corrupt", &["check", "--repair"]);
    shelf.seen("get_corrupt", &["get", &id]);
    shelf.seen("get_corrupt_json", &["get", &id, "--json"]);
}
