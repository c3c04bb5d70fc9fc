//! Shard leases of real workers: showing and breaking them.

use serde_json::Value;
use std::process::{Child, Stdio};

use crate::shelf::Shelf;
use crate::until_stopped::{UnderWay, until};

/// Worker that leases shards. It renews often, so that the test waits little; its leases are long, so that none expires on
/// a slow machine. A request may take a quarter of the interval, so it does not wait for the disk.
fn sharing(shelf: &Shelf, id: &str) -> Child {
    let mut command = shelf.command(&["worker", "--id", id, "--exec", "greet=cat", "--shard-leasing"]);
    command.env("LEASEHOLD_SHARD_LEASING_TTL_SECS", "600").env("LEASEHOLD_SHARD_LEASING_RENEW_SECS", "3");
    command.env("LEASEHOLD_QUEUE_DURABILITY", "os");
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

fn rows(shelf: &Shelf) -> Vec<Value> {
    shelf.run(&["shards", "--json"]).lines().map(|row| serde_json::from_str(row).unwrap()).collect()
}

fn held(shelf: &Shelf, id: &str) -> usize {
    rows(shelf).iter().filter(|row| row["state"] == "held" && row["worker_id"] == id).count()
}

/// Two workers; Ada has released half of the shards to Ben.
fn divided(shelf: &Shelf) -> (Child, Child) {
    let ada = sharing(shelf, "ada");
    until(|| held(shelf, "ada") == 16);
    let ben = sharing(shelf, "ben");
    until(|| held(shelf, "ada") == 8 && held(shelf, "ben") == 8);
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
    let shelf = Shelf::with_queue();
    shelf.seen("shards_free", &["shards"]);
    shelf.seen("workers_none", &["workers"]);
    let (ada, ben) = divided(&shelf);
    shelf.seen("shards", &["shards"]);
    shelf.seen("workers", &["workers"]);
    // No worker takes over from Ben within the ttl; Ada releases her leases.
    kill(ben);
    interrupt(ada);
    let lease = |shard: &str| shelf.path().join(format!("shard-leases/{shard}.json"));
    let mut expired: Value = serde_json::from_slice(&std::fs::read(lease("8")).unwrap()).unwrap();
    expired["lease_expires_at"] = "2026-01-01T00:00:00.000Z".into();
    std::fs::write(lease("8"), expired.to_string()).unwrap();
    std::fs::write(lease("9"), "{").unwrap();
    shelf.seen("shards_of_lost_workers", &["shards"]);
    shelf.seen("shards_json", &["shards", "--json"]);
    shelf.seen("workers_lost", &["workers"]);
    shelf.seen("workers_json", &["workers", "--json"]);
    shelf.seen("workers_limited", &["workers", "--limit", "1"]);
}

#[test]
fn inbox_sizes_are_shown() {
    let shelf = Shelf::with_queue();
    let mut command = shelf.command(&["worker", "--id", "ada", "--exec", "greet=cat", "--direct"]);
    command.env("LEASEHOLD_WORKER_LEASE_DURATION_SECS", "600");
    let ada = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    until(|| shelf.run(&["workers", "--json"]).contains("\"held\""));
    kill(ada);
    for number in ["1", "2", "3"] {
        shelf.run(&["submit", "--direct", "-t", "greet", "-i", number]);
    }
    shelf.seen("workers_inbox", &["workers"]);
    shelf
        .seen("worker_name_in_use", &["worker", "--id", "ada", "--exec", "greet=cat", "--direct", "--drain"]);
    shelf.seen("break_inbox", &["leases", "break", "inbox:ada"]);
    // The inbox has no holder: new tasks are shared, and those in the inbox are recovered.
    shelf.run(&["submit", "--direct", "-t", "greet", "-i", "4"]);
    let mut command = shelf.command(&["worker", "--exec", "greet=cat", "--drain", "--json"]);
    let report = command.env("LEASEHOLD_WORKER_OVERFLOW_SCAVENGE_INTERVAL_SECS", "2").output().unwrap();
    let report: Value = serde_json::from_slice(&report.stdout).unwrap();
    assert_eq!(report["counts"]["completed"], 4);
    shelf.seen("workers_inbox_empty", &["workers"]);
}

#[test]
fn a_lease_can_be_broken() {
    let shelf = Shelf::with_queue();
    let (ada, ben) = divided(&shelf);
    kill(ada);
    kill(ben);
    let before = shelf.objects();
    shelf.seen("break_shard", &["leases", "break", "shard:f"]);
    shelf.seen("break_again", &["leases", "break", "shard:f"]);
    shelf.seen("break_key_json", &["leases", "break", "shard-leases/0.json", "--json"]);
    shelf.seen("break_worker", &["leases", "break", "worker:ben"]);
    shelf.seen("break_worker_by_key", &["leases", "break", "workers/ada.lease.json"]);
    shelf.seen("bad_break_nobody", &["leases", "break", "worker:nobody"]);
    shelf.seen("bad_break_shard", &["leases", "break", "shard:00"]);
    shelf.seen("bad_break_key", &["leases", "break", "queue.json"]);
    shelf.seen("bad_break_above", &["leases", "break", "workers/../queue.json"]);
    std::fs::write(shelf.path().join("shard-leases/9.json"), "{").unwrap();
    shelf.seen("break_corrupt", &["leases", "break", "shard:9"]);
    let nine = rows(&shelf).swap_remove(9);
    assert_eq!(nine["state"], "free");
    assert!(nine["epoch"].as_u64() > Some(1_000_000_000), "above any count of holders: {nine}");
    assert_eq!(shelf.objects(), before, "nothing is deleted");
    let free: Vec<_> =
        rows(&shelf).into_iter().filter(|row| row["state"] == "free" && row["shards"] != "9").collect();
    let freed: Vec<_> = free.iter().map(|row| (row["shards"].as_str(), row["epoch"].as_u64())).collect();
    assert_eq!(freed, [(Some("0"), Some(2)), (Some("f"), Some(3))], "the epoch of the next holder is higher");
}

#[test]
fn a_broken_lease_is_acquired_again() {
    let shelf = Shelf::with_queue();
    let ada = sharing(&shelf, "ada");
    until(|| held(&shelf, "ada") == 16);
    shelf.run(&["leases", "break", "shard:7"]);
    let epoch = || rows(&shelf)[7]["epoch"].as_u64();
    until(|| held(&shelf, "ada") == 16 && epoch() == Some(3));
    interrupt(ada);
    assert!(rows(&shelf).iter().all(|row| row["state"] == "free"));
}

#[test]
fn many_shards_are_leased_in_groups() {
    let shelf = Shelf::new();
    shelf.run(&["init", "--shard-prefix-len", "3"]);
    let mut command = shelf.command(&["worker", "--id", "ada", "--exec", "greet=cat", "--shard-leasing"]);
    command.env("LEASEHOLD_SHARD_LEASING_SHARDS_PER_WORKER", "1024").stderr(Stdio::null());
    command.env("LEASEHOLD_SHARD_LEASING_TTL_SECS", "600").env("LEASEHOLD_SHARD_LEASING_RENEW_SECS", "200");
    let ada = command.stdout(Stdio::null()).spawn().unwrap();
    // A quarter of them, before it reads the leases of other workers a second time, minutes later.
    until(|| held(&shelf, "ada") == 16);
    kill(ada);
    let said = shelf.run(&["shards"]);
    let (summary, _) = said.split_once('\n').unwrap();
    assert_eq!(summary, "4096 shards, leased in groups of 64: 16 of 64 held by 1 worker");
    let legend: Vec<_> = said.lines().skip(7).take(3).collect();
    assert_eq!(
        legend,
        ["   WORKER  GROUPS  SHARDS", "a  ada         16    1024", ".  (free)      48    3072"]
    );
}

#[test]
fn leasing_and_naming_shards_exclude_each_other() {
    let shelf = Shelf::with_queue();
    let worker = ["worker", "--exec", "greet=cat"];
    shelf.seen("bad_leasing_shards", &[&worker[..], &["--shard-leasing", "--shards", "0"]].concat());
    let mut command = shelf.command(&[&worker[..], &["--shard-range", "0-7"]].concat());
    let said = crate::common::said(command.env("LEASEHOLD_SHARD_LEASING", "1"));
    shelf.compare("bad_leasing_range", &said);
    let mut command = shelf.command(&[&worker[..], &["--shard-leasing"]].concat());
    let said = crate::common::said(command.env("LEASEHOLD_SHARD_LEASING_TTL_SECS", "601"));
    shelf.compare("bad_leasing_ttl", &said);
}

#[test]
fn a_worker_that_leases_shards_ends_when_nothing_is_left() {
    let shelf = Shelf::with_queue();
    let id = shelf.run(&["submit", "-t", "greet", "-i", "1"]);
    shelf.run(&["worker", "--exec", "greet=cat", "--shard-leasing", "--drain"]);
    assert!(shelf.run(&["get", &id]).contains("completed"));
    let id = shelf.run(&["submit", "-t", "greet", "-i", "2"]);
    shelf.run(&["up", "--no-dashboard", "--exec", "greet=cat", "--shard-leasing", "--drain"]);
    assert!(shelf.run(&["get", &id]).contains("completed"));
}

#[test]
fn a_worker_whose_name_is_in_use_says_so() {
    let shelf = Shelf::with_queue();
    let ada = sharing(&shelf, "ada");
    until(|| held(&shelf, "ada") == 16);
    let worker = ["--id", "ada", "--exec", "greet=cat", "--shard-leasing"];
    let mut namesake = UnderWay::start(shelf.command(&[&["worker"], &worker[..]].concat()));
    namesake.until("in use");
    shelf.compare("worker_namesake", &namesake.interrupt());
    let mut namesake = UnderWay::start(shelf.command(&[&["up", "--no-dashboard"], &worker[..]].concat()));
    namesake.until("in use");
    namesake.until("0 pending");
    shelf.compare("up_namesake", &namesake.interrupt());
    kill(ada);
}
