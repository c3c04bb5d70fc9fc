//! What every command says when all is well, and when it is not.

use serde_json::Value;

use crate::common::said;
use crate::shelf::Shelf;

/// One task in each of four statuses, of four types, made by a worker called `w1`.
fn worked() -> Shelf {
    let shelf = Shelf::new();
    for (task_type, delay) in [("greet", "0"), ("refuse", "0"), ("later", "3600"), ("never", "3600")] {
        shelf.run(&["submit", "-t", task_type, "-i", "{\"name\": \"Ada\"}", "--delay", delay]);
    }
    shelf.run(&["cancel", "--type", "never"]);
    let refuse = "refuse=sh -c 'echo not today >&2; exit 3'";
    shelf.run(&["worker", "--id", "w1", "--drain", "--exec", "greet=cat", "--exec", refuse]);
    shelf
}

/// The only task of a type.
fn id_of(shelf: &Shelf, task_type: &str) -> String {
    let task: Value = serde_json::from_str(&shelf.run(&["list", "--type", task_type, "--json"])).unwrap();
    task["id"].as_str().unwrap().to_owned()
}

/// Rows stand in the order of ids, which are made by chance: puts them in that of the rest.
fn sorted(said: &str) -> String {
    let mut lines: Vec<_> = said.lines().collect();
    let rows = lines.iter().rposition(|line| line.len() > 36 && !line.starts_with("---")).unwrap_or(0);
    lines[1..=rows].sort_by_key(|line| &line[36..]);
    lines.join("\n")
}

#[test]
fn submitting() {
    let shelf = Shelf::new();
    shelf.seen("submit", &["submit", "-t", "greet"]);
    shelf.seen("submit_json", &["submit", "-t", "greet", "--key", "k", "--json"]);
    shelf.seen("submit_again_json", &["submit", "-t", "greet", "--key", "k", "--json"]);
    shelf.seen("submit_conflict", &["submit", "-t", "greet", "--key", "k", "-i", "1"]);
    let file = shelf.path().join(".leasehold/tasks.ndjson");
    std::fs::write(&file, "{\"task_type\": \"a\"}\n{\"task_type\": \"b\", \"tags\": {\"c\": \"d\"}}\n")
        .unwrap();
    shelf.seen("submit_many_json", &["submit-many", file.to_str().unwrap(), "--json"]);
    shelf.seen("submit_many_no_file", &["submit-many", "/no/such/file"]);
}

#[test]
fn looking_at_tasks() {
    let shelf = worked();
    shelf.compare("list", &sorted(&said(&mut shelf.command(&["list"]))));
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
    // One object that only a person can decide upon, one that heals by itself, and one that can be repaired.
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
        said.contains("its task has moved on") && said.contains("2 objects heal without any action"),
        "{said}"
    );
}

/// What a killed producer leaves is no fault: it goes by itself, and `check` says when.
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
