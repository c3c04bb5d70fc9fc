//! A queue in the journal layout, from the command line.

use serde_json::{Value, json};
use std::process::Command;

use crate::common::output_of;
use crate::fixture::QueueFixture;
use crate::until_stopped::{RunningCommand, until};

fn journal() -> QueueFixture {
    let fixture = QueueFixture::new();
    fixture.run(&["init", "--layout", "journal"]);
    fixture
}

fn json_of(fixture: &QueueFixture, args: &[&str]) -> Value {
    serde_json::from_str(&fixture.run(&[args, &["--json"]].concat())).unwrap()
}

fn status(fixture: &QueueFixture, id: &str) -> Value {
    json_of(fixture, &["get", id])["status"].clone()
}

#[test]
fn a_task_lives_from_submit_to_its_output_in_a_journal() {
    let fixture = journal();
    let id = fixture.run(&["submit", "-t", "greet", "-i", r#"{"name": "Ada"}"#, "--tag", "colour=red"]);
    assert_eq!(status(&fixture, &id), "pending");
    let later = fixture.run(&["submit", "-t", "greet", "--delay", "1h", "--key", "once"]);
    assert_eq!(fixture.run(&["submit", "-t", "greet", "--delay", "1h", "--key", "once"]), later);
    let stats = json_of(&fixture, &["stats"]);
    assert_eq!((&stats["due"], &stats["scheduled"], &stats["completed"]), (&json!(1), &json!(1), &json!(0)));
    fixture.run(&["worker", "--id", "w1", "--exec", "greet=cat", "--drain"]);
    assert_eq!(json_of(&fixture, &["wait", &id])["output"], json!({"name": "Ada"}));
    let history = fixture.run(&["history", &id, "--json"]);
    let events: Vec<Value> = history.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let events: Vec<_> = events.iter().map(|event| event["event"].as_str().unwrap()).collect();
    assert_eq!(events, ["submit", "claim", "complete"]);
    fixture.run(&["cancel", &later]);
    assert_eq!(status(&fixture, &later), "cancelled");
    fixture.run(&["retry", &later]);
    assert_eq!(status(&fixture, &later), "pending");
    for sort in ["created", "updated", "due", "id"] {
        assert_eq!(fixture.run(&["list", "--sort", sort, "--json"]).lines().count(), 2, "{sort}");
    }
    assert_eq!(
        fixture.run(&["list", "--status", "completed", "--tag", "colour=red", "--json"]).lines().count(),
        1
    );
    fixture.assert_output("journal_check", &["check"]);
    fixture.assert_output("journal_stats", &["stats"]);
    fixture.assert_output("journal_init", &["init"]);
}

#[test]
fn many_tasks_are_submitted_and_drained() {
    let fixture = journal();
    let file = fixture.path().join(".leasehold/tasks.ndjson");
    std::fs::write(&file, "{\"task_type\": \"work\"}\n".repeat(500)).unwrap();
    assert_eq!(fixture.run(&["submit-many", file.to_str().unwrap(), "--json"]).lines().count(), 500);
    fixture.run(&["cancel", "--type", "work"]);
    assert_eq!(json_of(&fixture, &["stats"])["cancelled"], json!(500));
    fixture.run(&["retry", "--type", "work"]);
    fixture.run(&["worker", "--exec", "work=true", "--concurrency", "16", "--drain"]);
    assert_eq!(json_of(&fixture, &["stats"])["completed"], json!(500));
}

#[test]
fn commands_that_need_objects_are_refused() {
    let fixture = journal();
    fixture.assert_output("journal_shards", &["shards"]);
    let refused = output_of(&mut fixture.command(&["worker", "--exec", "greet=cat", "--shard-leasing"]));
    assert!(refused.contains("shards and inboxes require the layout `objects`"), "{refused}");
    fixture.assert_output("journal_other_layout", &["init", "--layout", "objects"]);
    fixture.assert_output("journal_unknown_layout", &["init", "--layout", "columns"]);
}

#[test]
fn tasks_are_exported_and_imported_between_layouts() {
    let (objects, journal) = (QueueFixture::of_objects(), journal());
    objects.run(&["init"]);
    let id = objects.run(&["submit", "-t", "greet", "-i", r#"{"name": "Ada"}"#, "--key", "once"]);
    objects.run(&["submit", "-t", "later", "--delay", "1h"]);
    let lines = objects.run(&["export"]);
    assert!(lines.ends_with("\n{\"exported\":2}"), "{lines}");
    let file = journal.path().join(".leasehold/tasks.ndjson");
    std::fs::write(&file, &lines).unwrap();
    let file = file.to_str().unwrap();
    assert_eq!(journal.run(&["import", file]), "imported 2 tasks");
    assert_eq!(journal.run(&["import", file]), "imported 0 tasks, 2 existed");
    assert_eq!(status(&journal, &id), "pending");
    journal.run(&["worker", "--exec", "greet=cat", "--drain"]);
    assert_eq!(status(&journal, &id), "completed");
    assert_eq!(journal.run(&["submit", "-t", "greet", "-i", r#"{"name": "Ada"}"#, "--key", "once"]), id);
    // A file that was cut off imports nothing.
    std::fs::write(file, lines.lines().next().unwrap()).unwrap();
    let other = QueueFixture::of_objects();
    other.run(&["init"]);
    let refused = output_of(&mut other.command(&["import", file]));
    assert!(refused.contains("is not a complete export: it has 1 task; export again"), "{refused}");
    assert_eq!(other.run(&["list", "--json"]), "");
    // The tasks of the journal as they are now.
    std::fs::write(file, journal.run(&["export"])).unwrap();
    assert_eq!(other.run(&["import", file, "--json"]), r#"{"imported":2,"existed":0,"refused":0}"#);
    assert_eq!(status(&other, &id), "completed");
}

#[test]
fn a_purge_of_many_tasks_of_a_journal_is_a_few_commits() {
    let (objects, journal) = (QueueFixture::of_objects(), journal());
    let file = journal.path().join(".leasehold/tasks.ndjson");
    std::fs::write(&file, "{\"task_type\": \"work\"}\n".repeat(300)).unwrap();
    let file = file.to_str().unwrap();
    let submitted = objects.run(&["submit-many", file, "--json"]);
    let first: Value = serde_json::from_str(submitted.lines().next().unwrap()).unwrap();
    objects.run(&["cancel", "--type", "work"]);
    let first = json_of(&objects, &["get", first["id"].as_str().unwrap()]);
    // Tasks of long ago.
    let year = &first["created_at"].as_str().unwrap()[..5];
    let exported = objects.run(&["export"]).replace(&format!("\"{year}"), "\"2020-");
    std::fs::write(file, exported).unwrap();
    journal.run(&["import", file]);
    let young = journal.run(&["submit", "-t", "work"]);
    journal.run(&["cancel", &young]);
    let pending = journal.run(&["submit", "-t", "work"]);
    let before = commits(&journal);
    let purged = json_of(&journal, &["purge", "--older-than-days", "0"]);
    assert_eq!(purged, json!({"marked": 0, "deleted": 300, "kept": 2, "too_new": 1}));
    // A fence, a copied commit and the purge. Task by task it would be at least ten: 32 are in flight at once.
    let after = commits(&journal);
    assert!(after - before < 6, "{before} and {after}");
    assert_eq!(status(&journal, &pending), "pending");
    assert_eq!(json_of(&journal, &["stats"])["cancelled"], json!(1));
}

/// Number of commits in the segments of a log, with the copied ones.
fn commits(fixture: &QueueFixture) -> usize {
    let files = std::fs::read_dir(fixture.path().join("journal/0/log")).unwrap();
    let paths = files.map(|file| file.unwrap().path());
    let segments = paths.filter(|path| path.extension().is_some_and(|extension| extension == "log"));
    segments.map(|path| std::fs::read_to_string(path).unwrap().matches("\"seq\":").count()).sum()
}

#[test]
fn an_archive_object_that_no_record_refers_to_is_reported_as_such() {
    let fixture = journal();
    fixture.run(&["submit", "-t", "greet"]);
    let folder = fixture.path().join("journal/0/archive/undated");
    std::fs::create_dir_all(&folder).unwrap();
    let id = "3f2c9a4e-0d1b-4c6f-9a57-2e8b6f10c4d3";
    let object = folder.join(format!("{id}-{id}-{}", "0a".repeat(16)));
    std::fs::write(&object, "").unwrap();
    let long_ago = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_600_000_000);
    std::fs::File::options().write(true).open(&object).unwrap().set_modified(long_ago).unwrap();
    fixture.assert_output("journal_leftover", &["check"]);
    fixture.run(&["check", "--repair"]);
    assert!(!object.exists());
}

#[test]
fn a_missing_part_of_the_log_is_named_and_check_reports_it() {
    let fixture = journal();
    fixture.run(&["submit", "-t", "greet"]);
    fixture.run(&["submit", "-t", "greet"]);
    let log = fixture.path().join("journal/0/log");
    let mut segments: Vec<_> = std::fs::read_dir(&log).unwrap().map(|entry| entry.unwrap().path()).collect();
    segments.retain(|path| path.extension().is_some_and(|extension| extension == "log"));
    segments.sort();
    std::fs::remove_file(&segments[0]).unwrap();
    let name = segments[0].file_name().unwrap().to_str().unwrap();
    for args in [&["submit", "-t", "greet"][..], &["stats"], &["check"]] {
        let refused = output_of(&mut fixture.command(args));
        assert!(refused.contains(name) && refused.ends_with("--- exit code 65"), "{args:?}: {refused}");
        assert!(refused.contains("restore it from a backup of the store"), "{args:?}: {refused}");
    }
}

#[test]
fn while_a_worker_is_the_broker_other_processes_use_the_queue() {
    let fixture = journal();
    let id = fixture.run(&["submit", "-t", "slow"]);
    let mut worker = RunningCommand::start(worker(&fixture, &["--exec", "slow=sleep 600"]));
    worker.until("task started");
    assert_eq!(status(&fixture, &id), "running");
    assert_eq!(json_of(&fixture, &["stats"])["running"], json!(1));
    assert_eq!(fixture.run(&["list", "--json"]).lines().count(), 1);
    fixture.run(&["check"]);
    let second = fixture.run(&["submit", "-t", "other"]);
    fixture.run(&["cancel", &second]);
    assert_eq!(status(&fixture, &second), "cancelled");
    worker.signal("-INT");
    let ended = worker.interrupt();
    assert!(ended.contains("1 requeued"), "{ended}");
    assert_eq!(status(&fixture, &id), "pending");
    fixture.run(&["submit", "-t", "slow"]);
}

#[test]
fn a_killed_broker_is_replaced_at_once_and_loses_nothing() {
    let fixture = journal();
    let file = fixture.path().join(".leasehold/tasks.ndjson");
    std::fs::write(&file, "{\"task_type\": \"quick\"}\n".repeat(200)).unwrap();
    fixture.run(&["submit-many", file.to_str().unwrap()]);
    let held = fixture.run(&["submit", "-t", "slow"]);
    let programs = ["--exec", "slow=sleep 600", "--exec", "quick=true"];
    for _ in 0..3 {
        let mut killed = RunningCommand::start(worker(&fixture, &programs));
        killed.until("task completed");
        killed.signal("-KILL");
        drop(killed);
    }
    let mut last = RunningCommand::start(worker(&fixture, &programs));
    until(|| {
        let stats = json_of(&fixture, &["stats"]);
        // Tasks of the killed workers run again when their claims have expired.
        stats["due"] == json!(0)
    });
    last.until("task completed");
    let stats = json_of(&fixture, &["stats"]);
    let number = |name: &str| stats[name].as_u64().unwrap();
    assert_eq!(number("completed") + number("running") + number("scheduled"), 201, "{stats}");
    assert!(number("completed") > 150, "{stats}");
    assert_eq!(status(&fixture, &held), "running");
    drop(last);
    fixture.run(&["check"]);
}

#[test]
fn producers_and_workers_go_on_when_the_broker_is_killed() {
    let fixture = journal();
    let file = fixture.path().join(".leasehold/tasks.ndjson");
    std::fs::write(&file, "{\"task_type\": \"quick\"}\n".repeat(3_000)).unwrap();
    let broker = RunningCommand::start(worker(&fixture, &["--exec", "other=true"]));
    until(|| {
        fixture.path().join(".leasehold/broker").read_dir().is_ok_and(|mut sockets| sockets.next().is_some())
    });
    let mut working = RunningCommand::start(worker(&fixture, &["--exec", "quick=true"]));
    fixture.run(&["submit", "-t", "quick"]);
    working.until("task completed");
    let producer = RunningCommand::start(fixture.command(&["submit-many", file.to_str().unwrap()]));
    until(|| json_of(&fixture, &["stats"])["completed"].as_u64().unwrap() > 10);
    broker.signal("-KILL");
    let ended = producer.end();
    assert!(ended.ends_with("submitted 3000 tasks\n--- exit code 0"), "{ended}");
    until(|| {
        let stats = json_of(&fixture, &["stats"]);
        let number = |name: &str| stats[name].as_u64().unwrap();
        assert_eq!(
            number("completed") + number("running") + number("scheduled") + number("due"),
            3_001,
            "{stats}"
        );
        number("completed") > 100
    });
    drop((broker, working));
    fixture.run(&["check"]);
}

/// A worker that logs the start and the end of its tasks.
fn worker(fixture: &QueueFixture, programs: &[&str]) -> Command {
    let mut command = fixture.command(&[&["worker"], programs].concat());
    command.env("LEASEHOLD_LOG", "info");
    command
}
