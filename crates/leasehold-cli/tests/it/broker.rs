//! `leasehold broker`, roles, and what the broker knows of its workers.

use serde_json::{Value, json};

use crate::common::output_of;
use crate::fixture::QueueFixture;
use crate::until_stopped::{RunningCommand, until};

fn journal() -> QueueFixture {
    let fixture = QueueFixture::new();
    fixture.run(&["init", "--layout", "journal"]);
    fixture
}

fn broker(fixture: &QueueFixture) -> RunningCommand {
    RunningCommand::start(fixture.command(&["broker"]))
}

fn status(fixture: &QueueFixture) -> Value {
    serde_json::from_str(&fixture.run(&["broker", "status", "--json"])).unwrap()
}

fn epoch(fixture: &QueueFixture) -> u64 {
    status(fixture)["broker"]["holder"]["epoch"].as_u64().unwrap()
}

#[test]
fn a_broker_hands_over_to_one_that_waits() {
    let fixture = journal();
    let none = output_of(&mut fixture.command(&["broker", "status"]));
    assert!(none.contains("no broker: this queue has never had one"), "{none}");
    assert!(none.ends_with("--- exit code 75"), "{none}");
    let mut first = broker(&fixture);
    first.until("broker since ");
    fixture.run(&["submit", "-t", "greet"]);
    let shown = status(&fixture);
    let (shown, holder) = (&shown["broker"], &shown["broker"]["holder"]);
    assert_eq!((&holder["epoch"], &holder["pid"]), (&json!(1), &json!(first.pid())), "{shown}");
    assert_eq!((&shown["live_tasks"], &shown["commits"]["records"]), (&json!(1), &json!(1)), "{shown}");
    let text = fixture.run(&["broker", "status"]);
    assert!(text.contains("tasks     1 live, 0 archived\n"), "{text}");
    assert!(text.contains(&format!("broker    process {} on host ", first.pid())), "{text}");
    let mut second = broker(&fixture);
    second.until(&format!("waiting: the broker is process {}", first.pid()));
    first.signal("-TERM");
    let ended = first.end();
    assert!(ended.ends_with("--- exit code 0"), "{ended}");
    second.until("broker since ");
    assert_eq!(epoch(&fixture), 2);
    assert!(second.interrupt().ends_with("--- exit code 0"));
    let none = output_of(&mut fixture.command(&["broker", "status"]));
    assert!(none.contains("(epoch 2), released its lease at "), "{none}");
    let none = output_of(&mut fixture.command(&["broker", "status", "--json"]));
    assert!(none.contains(r#""state":"released""#) && none.ends_with("--- exit code 75"), "{none}");
    assert!(fixture.run(&["stats", "--json"]).contains(r#""due":1"#));
}

#[test]
fn a_killed_broker_is_replaced_by_one_that_waits() {
    let fixture = journal();
    let mut first = broker(&fixture);
    first.until("broker since ");
    let mut second = broker(&fixture);
    second.until("waiting: the broker is process");
    first.signal("-KILL");
    second.until("broker since ");
    let id = fixture.run(&["submit", "-t", "greet"]);
    assert_eq!(epoch(&fixture), 2);
    fixture.run(&["cancel", &id]);
    second.interrupt();
}

#[test]
fn up_without_programs_is_the_broker_of_a_journal() {
    let fixture = journal();
    let mut up = RunningCommand::start(fixture.command(&["up", "--no-dashboard"]));
    up.until("broker since ");
    fixture.run(&["submit", "-t", "greet"]);
    assert_eq!(epoch(&fixture), 1);
    assert!(up.interrupt().ends_with("--- exit code 0"));
}

#[test]
fn a_process_that_never_becomes_the_broker_needs_one() {
    let fixture = journal();
    let id = fixture.run(&["submit", "-t", "greet"]);
    let never = |args: &[&str]| {
        let mut command = fixture.command(args);
        command.env("LEASEHOLD_BROKER_ROLE", "never");
        command
    };
    assert!(output_of(&mut never(&["get", &id])).ends_with("--- exit code 0"));
    for args in [&["submit", "-t", "greet"][..], &["worker", "--exec", "greet=cat", "--drain"]] {
        let refused = output_of(&mut never(args));
        assert!(refused.contains("`broker.role` of this process is `never`"), "{refused}");
        assert!(refused.ends_with("--- exit code 75"), "{refused}");
    }
    let refused = output_of(&mut never(&["up", "--no-dashboard"]));
    assert!(refused.ends_with("--- exit code 64"), "{refused}");
    // The command says otherwise.
    let mut broker = RunningCommand::start(never(&["broker"]));
    broker.until("broker since ");
    assert!(output_of(&mut never(&["submit", "-t", "greet"])).ends_with("--- exit code 0"));
    let drained = output_of(&mut never(&["worker", "--exec", "greet=cat", "--drain"]));
    assert!(drained.contains("2 completed"), "{drained}");
    let refused =
        output_of(&mut fixture.command(&["worker", "--exec", "greet=cat", "--broker-role", "only"]));
    assert!(refused.contains("`broker.role` of this process is `only`"), "{refused}");
    assert!(refused.ends_with("--- exit code 64"), "{refused}");
    broker.interrupt();
}

#[test]
fn workers_of_a_journal_are_those_that_report_themselves_to_its_broker() {
    let fixture = journal();
    let none = output_of(&mut fixture.command(&["workers"]));
    assert!(none.contains("no broker: ") && none.ends_with("--- exit code 75"), "{none}");
    let mut broker = broker(&fixture);
    broker.until("broker since ");
    let idle = output_of(&mut fixture.command(&["workers"]));
    assert!(idle.contains("no worker is connected to the broker"), "{idle}");
    let args =
        ["worker", "--id", "ada", "--exec", "slow=sleep 600", "--concurrency", "3", "--lease-secs", "3"];
    let ada = RunningCommand::start(fixture.command(&args));
    fixture.run(&["submit", "-t", "slow"]);
    let rows = || -> Vec<Value> {
        fixture.run(&["workers", "--json"]).lines().map(|row| serde_json::from_str(row).unwrap()).collect()
    };
    until(|| rows().first().is_some_and(|row| row["running"] == 1));
    let row = rows().swap_remove(0);
    assert_eq!(
        (&row["worker_id"], &row["slots"], &row["state"]),
        (&json!("ada"), &json!(3), &json!("alive"))
    );
    assert_eq!((&row["pid"], &row["types"]), (&json!(ada.pid()), &json!(["slow"])), "{row}");
    let text = fixture.run(&["workers"]);
    assert!(text.starts_with("WORKER  STATE     RUNNING  SLOTS  HOST"), "{text}");
    ada.signal("-KILL");
    until(|| rows()[0]["state"] == "dead");
    broker.interrupt();
}

#[test]
fn tail_prints_the_changes_of_a_journal_once_with_a_broker_and_without() {
    let fixture = journal();
    let mut tail = RunningCommand::start(fixture.command(&["tail", "--every", "0.1"]));
    tail.until("watching");
    // Each command is the broker for a moment; the log is followed.
    let id = fixture.run(&["submit", "-t", "during", "--delay", "60"]);
    tail.until("pending");
    let mut broker = broker(&fixture);
    broker.until("broker since ");
    fixture.run(&["cancel", &id]);
    tail.until("cancelled");
    fixture.run(&["retry", &id]);
    tail.until("pending");
    broker.interrupt();
    fixture.run(&["cancel", &id]);
    tail.until("cancelled");
    let printed = tail.interrupt();
    assert_eq!(printed.matches(&id).count(), 4, "{printed}");
}

#[test]
fn commands_of_the_other_layout_name_the_way_out() {
    let fixture = journal();
    let refusals: Vec<_> = [
        &["shards"][..],
        &["migrate-shards", "--to", "2"],
        &["quarantine", "tasks/0/x.json"],
        &["leases", "break", "worker:w"],
        &["monitor"],
        &["worker", "--exec", "a=true", "--shard-leasing"],
        &["worker", "--exec", "a=true", "--direct"],
        &["worker", "--exec", "a=true", "--shards", "0"],
        &["submit", "-t", "a", "--direct"],
    ]
    .into_iter()
    .map(|args| format!("{}\n{}\n", args.join(" "), output_of(&mut fixture.command(args))))
    .collect();
    fixture.compare("journal_refusals", &refusals.join("\n"));
    let objects = QueueFixture::with_queue_of_objects();
    objects.assert_output("broker_of_objects", &["broker"]);
    objects.assert_output("broker_status_of_objects", &["broker", "status"]);
}

#[test]
fn an_outpost_of_a_journal_is_refused() {
    let fixture = QueueFixture::new();
    let store = fixture.path().join("campaigns/survey/queues/photos");
    let store = store.to_str().unwrap();
    let mut init = crate::common::leasehold(&["init", "--layout", "journal", "--store", store]);
    assert!(init.status().unwrap().success());
    let home = fixture.path().join(".leasehold/outposts");
    let args = ["outpost", "init", "--campaign", "survey/photos", "--node", "pi-1", "--data"];
    let refused = output_of(&mut fixture.command(&[&args[..], &[home.to_str().unwrap()]].concat()));
    assert!(
        refused.contains("has the layout `journal`, not `objects`; use a store without a queue"),
        "{refused}"
    );
    assert!(refused.ends_with("--- exit code 64"), "{refused}");
}
