//! Tasks from the command line: what is printed, what is refused, and that what is refused writes nothing.

use serde_json::Value;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::leasehold;
use crate::shelf::Shelf;

#[test]
fn a_task_lives_from_submit_to_its_output() {
    let shelf = Shelf::new();
    let id = shelf.run(&["submit", "-t", "greet", "-i", r#"{"name": "Ada"}"#, "--tag", "colour=red"]);
    let waiting: Value = serde_json::from_str(&shelf.run(&["get", &id, "--json"])).unwrap();
    assert_eq!((&waiting["status"], &waiting["tags"]["colour"]), (&"pending".into(), &"red".into()));
    shelf.run(&["worker", "--id", "w1", "--exec", "greet=cat", "--drain"]);
    let done: Value = serde_json::from_str(&shelf.run(&["wait", &id, "--json"])).unwrap();
    assert_eq!(done["output"], serde_json::json!({"name": "Ada"}));
    let history = shelf.run(&["history", &id, "--json"]);
    let events: Vec<Value> = history.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let events: Vec<_> = events.iter().map(|event| event["event"].as_str().unwrap()).collect();
    assert_eq!(events, ["submit", "claim", "complete"]);
    assert_eq!(shelf.run(&["list", "--status", "completed", "--json"]).lines().count(), 1);
    assert_eq!(shelf.run(&["list", "--status", "failed", "--json"]), "");
    shelf.shown("check_clean", &["check"]);
}

#[test]
fn exit_codes_of_programs_decide() {
    let shelf = Shelf::new();
    let submit = |kind: &str| shelf.run(&["submit", "-t", kind, "--max-attempts", "2"]);
    let cases = [("later", 75, 2), ("broken", 1, 2), ("odd", 3, 2), ("never", 65, 1)];
    let ids = cases.map(|(kind, _, _)| submit(kind));
    let mut worker = shelf.command(&["worker", "--id", "w1", "--drain"]);
    for (kind, code, _) in cases {
        worker.args(["--exec", &format!("{kind}=sh -c 'echo no {kind} >&2; exit {code}'")]);
    }
    assert!(worker.output().unwrap().status.success());
    for ((kind, code, attempts), id) in cases.into_iter().zip(ids) {
        let task: Value = serde_json::from_str(&shelf.run(&["get", &id, "--json"])).unwrap();
        assert_eq!(
            (&task["status"], &task["attempt"], &task["error"]),
            (&"failed".into(), &attempts.into(), &format!("no {kind}").into()),
            "exit code {code}"
        );
    }
}

#[test]
fn many_tasks_are_understood_before_any_is_written() {
    let shelf = Shelf::new();
    shelf.run(&["init"]);
    let before = shelf.objects();
    let file = shelf.path().join(".leasehold/tasks.ndjson");
    std::fs::write(&file, "{\"task_type\": \"a\"}\n\n{\"task_type\": \"b\", \"dely_secs\": 5}\n").unwrap();
    shelf.shown("many_with_a_slip", &["submit-many", file.to_str().unwrap()]);
    assert_eq!(shelf.objects(), before);
    std::fs::write(
        &file,
        "{\"task_type\": \"a\"}\n{\"task_type\": \"b\", \"delay_secs\": 5, \"key\": \"k\"}\n",
    )
    .unwrap();
    shelf.shown("many", &["submit-many", file.to_str().unwrap()]);
    assert_eq!(shelf.objects().len(), before.len() + 6, "two tasks, two entries, one key, the bell");
}

#[test]
fn bad_input_is_refused_in_one_line_and_writes_nothing() {
    let shelf = Shelf::new();
    shelf.run(&["init"]);
    let before = shelf.objects();
    let large = format!("\"{}\"", "x".repeat(300_000));
    let large_file = shelf.path().join(".leasehold/large.json");
    std::fs::write(&large_file, large).unwrap();
    let large = format!("@{}", large_file.display());
    for (name, args) in [
        ("bad_unknown_id", ["get", "3f2c9a4e-0d1b-4c6f-9a57-2e8b6f10c4d3"].as_slice()),
        ("bad_malformed_id", &["get", "3f2c"]),
        ("bad_json", &["submit", "-t", "a", "-i", "{oops"]),
        ("bad_large", &["submit", "-t", "a", "-i", &large]),
        ("bad_file", &["submit", "-t", "a", "-i", "@/no/such/file"]),
        ("bad_time", &["submit", "-t", "a", "--at", "2126-01-01T00:00:00Z"]),
        ("bad_delay", &["submit", "-t", "a", "--delay=-5"]),
        ("bad_empty_type", &["submit", "-t", ""]),
        ("bad_odd_type", &["submit", "-t", "a/b"]),
        ("bad_long_type", &["submit", "-t", &"x".repeat(200)]),
        ("bad_priority", &["submit", "-t", "a", "--priority", "10"]),
        ("bad_tag", &["submit", "-t", "a", "--tag", "red"]),
        ("bad_status", &["list", "--status", "done"]),
        ("bad_list_tag", &["list", "--tag", "red"]),
        ("bad_purge_status", &["purge", "--status", "running"]),
        ("bad_wait_unknown", &["wait", "3f2c9a4e-0d1b-4c6f-9a57-2e8b6f10c4d3"]),
        (
            "bad_reschedule_time",
            &["reschedule", "3f2c9a4e-0d1b-4c6f-9a57-2e8b6f10c4d3", "--at", "2126-01-01T00:00:00Z"],
        ),
        ("bad_up_drain", &["up", "--drain"]),
        ("bad_cancel_nothing", &["cancel"]),
        ("bad_shards", &["worker", "--exec", "a=true", "--shards", "00"]),
        ("bad_range", &["worker", "--exec", "a=true", "--shard-range", "f-0"]),
        ("bad_exec", &["worker", "--exec", "nothing"]),
        ("bad_disagreement", &["init", "--shard-prefix-len", "2"]),
        ("bad_retry_unknown", &["retry", "3f2c9a4e-0d1b-4c6f-9a57-2e8b6f10c4d3"]),
    ] {
        shelf.shown(name, args);
        assert_eq!(shelf.objects(), before, "{name} has written something");
    }
}

#[test]
fn operators_can_cancel_retry_and_reschedule() {
    let shelf = Shelf::new();
    let id = shelf.run(&["submit", "-t", "a", "--delay", "3600"]);
    let status =
        || serde_json::from_str::<Value>(&shelf.run(&["get", &id, "--json"])).unwrap()["status"].clone();
    shelf.run(&["reschedule", &id, "--at", "2027-01-01T00:00:00Z"]);
    shelf.run(&["cancel", &id]);
    assert_eq!(status(), "cancelled");
    let again = shelf.command(&["cancel", &id]).output().unwrap();
    assert_eq!(again.status.code(), Some(1));
    shelf.run(&["retry", &id]);
    assert_eq!(status(), "pending");
    shelf.run(&["cancel", "--type", "a"]);
    assert_eq!(status(), "cancelled");
}

#[test]
fn the_demo_ends_by_itself_with_everything_done() {
    let output = leasehold(&["demo"]).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    for part in
        ["alice is dead", "the lease of alice ran out", "for a million tasks", "All 200 tasks were completed"]
    {
        assert!(said.contains(part), "no `{part}` in {said}");
    }
}

#[test]
fn a_bill_counts_every_request_of_the_real_code() {
    let bill = |mode| {
        let args = [
            "cost",
            "--workers",
            "3",
            "--tasks-per-day",
            "48000",
            "--days",
            "0.02",
            "--mode",
            mode,
            "--json",
        ];
        let output = leasehold(&args).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    let count = |bill: &Value, purpose: &str, verb: &str| {
        let rows = bill["requests"].as_array().unwrap();
        let row = rows.iter().find(|row| row["purpose"] == purpose).unwrap();
        row[verb].as_u64().unwrap()
    };
    for (mode, claim_puts) in [("shared", 2), ("leased", 1), ("direct", 1)] {
        let bill = bill(mode);
        assert_eq!(bill["tasks"], 960);
        assert_eq!(count(&bill, "settle", "put"), 960);
        assert!(count(&bill, "claim", "put") >= 960 * claim_puts);
        assert!(bill["usd_per_month"].as_f64().unwrap() > 0.0);
    }
    let output = leasehold(&["cost", "--mode", "undivided"]).output().unwrap();
    assert_eq!(output.status.code(), Some(64));
}

/// A command on a disk that takes no byte more: empty files can be created, and every write to one fails.
fn on_a_full_disk(command: &Command) -> Command {
    let mut limited = Command::new("sh");
    limited.args(["-c", "trap '' XFSZ; ulimit -S -f 0; exec \"$@\"", "sh"]);
    limited.arg(command.get_program()).args(command.get_args()).current_dir("/").env_clear();
    limited
}

#[test]
fn a_submit_that_the_disk_refuses_fails_at_once_and_leaves_no_entry() {
    let shelf = Shelf::new();
    shelf.run(&["init"]);
    let (before, began) = (shelf.objects(), Instant::now());
    let output = on_a_full_disk(&shelf.command(&["submit", "-t", "a"])).output().unwrap();
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    assert_eq!(output.status.code(), Some(75), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("was not submitted") && said.contains("File too large"), "{said}");
    assert_eq!(shelf.objects(), before);
}
