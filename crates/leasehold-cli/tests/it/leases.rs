//! Shard leases of real workers: showing and breaking them.

use serde_json::Value;
use std::process::{Child, Stdio};

use crate::fixture::QueueFixture;
use crate::until_stopped::{RunningCommand, until};

/// Worker that leases shards. It renews often, so that the test waits little; its leases are long, so that none expires on
/// a slow machine. A request may take a quarter of the interval, so it does not wait for the disk.
fn sharing(fixture: &QueueFixture, id: &str) -> Child {
    let mut command = fixture.command(&["worker", "--id", id, "--exec", "greet=cat", "--shard-leasing"]);
    command.env("LEASEHOLD_SHARD_LEASING_TTL_SECS", "600").env("LEASEHOLD_SHARD_LEASING_RENEW_SECS", "3");
    command.env("LEASEHOLD_QUEUE_DURABILITY", "os");
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

fn rows(fixture: &QueueFixture) -> Vec<Value> {
    fixture.run(&["shards", "--json"]).lines().map(|row| serde_json::from_str(row).unwrap()).collect()
}

fn held(fixture: &QueueFixture, id: &str) -> usize {
    rows(fixture).iter().filter(|row| row["state"] == "held" && row["worker_id"] == id).count()
}

/// Two workers; Ada has released half of the shards to Ben.
fn divided(fixture: &QueueFixture) -> (Child, Child) {
    let ada = sharing(fixture, "ada");
    until(|| held(fixture, "ada") == 16);
    let ben = sharing(fixture, "ben");
    until(|| held(fixture, "ada") == 8 && held(fixture, "ben") == 8);
    (ada, ben)
}

fn kill(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

fn interrupt(mut child: Child) {
    let pid = child.id().to_string();
    assert!(std::process::Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    assert!(child.wait().unwrap().success());
}

#[test]
fn holders_of_shards_are_shown() {
    let fixture = QueueFixture::with_queue_of_objects();
    fixture.assert_filtered_output("shards_free", &["shards"]);
    fixture.assert_filtered_output("workers_none", &["workers"]);
    let (ada, ben) = divided(&fixture);
    fixture.assert_filtered_output("shards", &["shards"]);
    fixture.assert_filtered_output("workers", &["workers"]);
    // No worker takes over from Ben within the ttl; Ada releases her leases.
    kill(ben);
    interrupt(ada);
    let lease = |shard: &str| fixture.path().join(format!("shard-leases/{shard}.json"));
    let mut expired: Value = serde_json::from_slice(&std::fs::read(lease("8")).unwrap()).unwrap();
    expired["lease_expires_at"] = "2026-01-01T00:00:00.000Z".into();
    std::fs::write(lease("8"), expired.to_string()).unwrap();
    std::fs::write(lease("9"), "{").unwrap();
    fixture.assert_filtered_output("shards_of_crashed_workers", &["shards"]);
    fixture.assert_filtered_output("shards_json", &["shards", "--json"]);
    fixture.assert_filtered_output("workers_lost", &["workers"]);
    fixture.assert_filtered_output("workers_json", &["workers", "--json"]);
    fixture.assert_filtered_output("workers_limited", &["workers", "--limit", "1"]);
}

#[test]
fn inbox_sizes_are_shown() {
    let fixture = QueueFixture::with_queue_of_objects();
    let mut command = fixture.command(&["worker", "--id", "ada", "--exec", "greet=cat", "--direct"]);
    command.env("LEASEHOLD_WORKER_LEASE_DURATION_SECS", "600");
    let ada = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    until(|| fixture.run(&["workers", "--json"]).contains("\"held\""));
    kill(ada);
    for number in ["1", "2", "3"] {
        fixture.run(&["submit", "--direct", "-t", "greet", "-i", number]);
    }
    fixture.assert_filtered_output("workers_inbox", &["workers"]);
    fixture.assert_filtered_output(
        "worker_id_in_use",
        &["worker", "--id", "ada", "--exec", "greet=cat", "--direct", "--drain"],
    );
    fixture.assert_filtered_output("break_inbox", &["leases", "break", "inbox:ada"]);
    // The inbox has no holder: new tasks are shared, and those in the inbox are recovered.
    fixture.run(&["submit", "--direct", "-t", "greet", "-i", "4"]);
    let mut command = fixture.command(&["worker", "--exec", "greet=cat", "--drain", "--json"]);
    let report = command.env("LEASEHOLD_WORKER_OVERFLOW_SCAVENGE_INTERVAL_SECS", "2").output().unwrap();
    let report: Value = serde_json::from_slice(&report.stdout).unwrap();
    assert_eq!(report["counts"]["completed"], 4);
    fixture.assert_filtered_output("workers_inbox_empty", &["workers"]);
}

#[test]
fn a_lease_can_be_broken() {
    let fixture = QueueFixture::with_queue_of_objects();
    let (ada, ben) = divided(&fixture);
    kill(ada);
    kill(ben);
    let before = fixture.objects();
    let epoch = |number: usize| rows(&fixture)[number]["epoch"].as_u64().unwrap();
    let epochs = [epoch(0), epoch(15)];
    fixture.assert_filtered_output("break_shard", &["leases", "break", "shard:f"]);
    fixture.assert_filtered_output("break_again", &["leases", "break", "shard:f"]);
    fixture.assert_filtered_output("break_key_json", &["leases", "break", "shard-leases/0.json", "--json"]);
    fixture.assert_filtered_output("break_worker", &["leases", "break", "worker:ben"]);
    fixture.assert_filtered_output("break_worker_by_key", &["leases", "break", "workers/ada.lease.json"]);
    fixture.assert_filtered_output("bad_break_nobody", &["leases", "break", "worker:nobody"]);
    fixture.assert_filtered_output("bad_break_shard", &["leases", "break", "shard:00"]);
    fixture.assert_filtered_output("bad_break_key", &["leases", "break", "queue.json"]);
    fixture.assert_filtered_output("bad_break_above", &["leases", "break", "workers/../queue.json"]);
    std::fs::write(fixture.path().join("shard-leases/9.json"), "{").unwrap();
    fixture.assert_filtered_output("break_corrupt", &["leases", "break", "shard:9"]);
    let nine = rows(&fixture).swap_remove(9);
    assert_eq!(nine["state"], "free");
    assert!(nine["epoch"].as_u64() > Some(1_000_000_000), "above any count of holders: {nine}");
    assert_eq!(fixture.objects(), before, "nothing is deleted");
    let free: Vec<_> =
        rows(&fixture).into_iter().filter(|row| row["state"] == "free" && row["shards"] != "9").collect();
    let freed: Vec<_> = free.iter().map(|row| (row["shards"].as_str(), row["epoch"].as_u64())).collect();
    let higher = [(Some("0"), Some(epochs[0] + 1)), (Some("f"), Some(epochs[1] + 1))];
    assert_eq!(freed, higher, "the epoch of the next holder is higher");
}

#[test]
fn a_broken_lease_is_acquired_again() {
    let fixture = QueueFixture::with_queue_of_objects();
    let ada = sharing(&fixture, "ada");
    until(|| held(&fixture, "ada") == 16);
    let epoch = || rows(&fixture)[7]["epoch"].as_u64().unwrap();
    let before = epoch();
    fixture.run(&["leases", "break", "shard:7"]);
    // Breaking it raised the epoch, and taking it again did.
    until(|| held(&fixture, "ada") == 16 && epoch() >= before + 2);
    interrupt(ada);
    assert!(rows(&fixture).iter().all(|row| row["state"] == "free"));
}

#[test]
fn many_shards_are_leased_in_groups() {
    let fixture = QueueFixture::of_objects();
    fixture.run(&["init", "--shard-prefix-len", "3"]);
    let mut command = fixture.command(&["worker", "--id", "ada", "--exec", "greet=cat", "--shard-leasing"]);
    command.env("LEASEHOLD_SHARD_LEASING_SHARDS_PER_WORKER", "1024").stderr(Stdio::null());
    command.env("LEASEHOLD_SHARD_LEASING_TTL_SECS", "600").env("LEASEHOLD_SHARD_LEASING_RENEW_SECS", "200");
    let ada = command.stdout(Stdio::null()).spawn().unwrap();
    // A quarter of them, before it reads the leases of other workers a second time, minutes later.
    until(|| held(&fixture, "ada") == 16);
    kill(ada);
    let printed = fixture.run(&["shards"]);
    let (summary, _) = printed.split_once('\n').unwrap();
    assert_eq!(summary, "4096 shards, leased in groups of 64: 16 of 64 held by 1 worker");
    let legend: Vec<_> = printed.lines().skip(7).take(3).collect();
    assert_eq!(
        legend,
        ["   WORKER  GROUPS  SHARDS", "a  ada         16    1024", ".  (free)      48    3072"]
    );
}

#[test]
fn leasing_and_naming_shards_exclude_each_other() {
    let fixture = QueueFixture::with_queue_of_objects();
    let worker = ["worker", "--exec", "greet=cat"];
    fixture.assert_filtered_output(
        "bad_leasing_shards",
        &[&worker[..], &["--shard-leasing", "--shards", "0"]].concat(),
    );
    let mut command = fixture.command(&[&worker[..], &["--shard-range", "0-7"]].concat());
    let printed = crate::common::output_of(command.env("LEASEHOLD_SHARD_LEASING", "1"));
    fixture.compare("bad_leasing_range", &printed);
    let mut command = fixture.command(&[&worker[..], &["--shard-leasing"]].concat());
    let printed = crate::common::output_of(command.env("LEASEHOLD_SHARD_LEASING_TTL_SECS", "601"));
    fixture.compare("bad_leasing_ttl", &printed);
}

#[test]
fn a_worker_that_leases_shards_ends_when_nothing_is_left() {
    let fixture = QueueFixture::with_queue_of_objects();
    let id = fixture.run(&["submit", "-t", "greet", "-i", "1"]);
    fixture.run(&["worker", "--exec", "greet=cat", "--shard-leasing", "--drain"]);
    assert!(fixture.run(&["get", &id]).contains("completed"));
    let id = fixture.run(&["submit", "-t", "greet", "-i", "2"]);
    fixture.run(&["up", "--no-dashboard", "--exec", "greet=cat", "--shard-leasing", "--drain"]);
    assert!(fixture.run(&["get", &id]).contains("completed"));
}

#[test]
fn a_worker_whose_name_is_in_use_reports_it() {
    let fixture = QueueFixture::with_queue_of_objects();
    let ada = sharing(&fixture, "ada");
    until(|| held(&fixture, "ada") == 16);
    let worker = ["--id", "ada", "--exec", "greet=cat", "--shard-leasing"];
    let mut namesake = RunningCommand::start(fixture.command(&[&["worker"], &worker[..]].concat()));
    namesake.until("in use");
    fixture.compare("worker_namesake", &namesake.interrupt());
    let mut namesake =
        RunningCommand::start(fixture.command(&[&["up", "--no-dashboard"], &worker[..]].concat()));
    namesake.until("in use");
    namesake.until("0 pending");
    fixture.compare("up_namesake", &namesake.interrupt());
    kill(ada);
}
