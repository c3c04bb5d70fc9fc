//! Starting the dashboard: alone, and beside a worker.

use serde_json::Value;

use crate::common::http::{address, ask, json};
use crate::fixture::QueueFixture;
use crate::until_stopped::{RunningCommand, until};

#[test]
fn a_dashboard_prints_its_address_as_json_and_serves_until_interrupted() {
    let fixture = QueueFixture::with_queue_of_objects();
    let id = fixture.run(&["submit", "-t", "greet"]);
    let mut dashboard =
        RunningCommand::start(fixture.command(&["dashboard", "--port", "0", "--allow-actions", "--json"]));
    let first: Value = serde_json::from_str(&dashboard.next_line().unwrap()).unwrap();
    let address = address(first["url"].as_str().unwrap());
    assert!(ask(&address, "GET /", "").contains("content-type: text/html"));
    until(|| json(&ask(&address, "GET /api/overview", ""))["counts"]["due"] == 1);
    let answer = ask(&address, &format!("POST /api/tasks/{id}/cancel"), "x-leasehold: 1\r\n");
    assert_eq!(json(&answer)["task"]["status"], "cancelled");
    let end = dashboard.interrupt();
    assert!(end.ends_with("--- exit code 0"), "{end}");
    assert!(fixture.run(&["history", &id]).contains("dashboard"));
}

#[test]
fn a_dashboard_shows_the_settings_and_hides_its_token() {
    let fixture = QueueFixture::with_queue_of_objects();
    let command = ["dashboard", "--port", "0", "--json", "--token", "open-sesame"];
    let mut dashboard = RunningCommand::start(fixture.command(&command));
    let address = address(&dashboard.next_line().unwrap());
    assert!(ask(&address, "GET /api/settings", "").starts_with("HTTP/1.1 401"));
    let answer = ask(&address, "GET /api/settings", "authorization: Bearer open-sesame\r\n");
    let settings = json(&answer)["settings"].clone();
    let of = |key: &str| settings.as_array().unwrap().iter().find(|row| row["key"] == key).unwrap().clone();
    assert_eq!(
        (&of("dashboard.token")["value"], &of("dashboard.token")["from"]),
        (&"********".into(), &"--token".into())
    );
    assert!(!answer.contains("open-sesame"));
    assert!(!dashboard.interrupt().contains("open-sesame"));
}

#[test]
fn a_reachable_dashboard_needs_a_token_of_sufficient_length() {
    let fixture = QueueFixture::with_queue_of_objects();
    fixture.assert_filtered_output("dashboard_no_token", &["dashboard", "--host", "0.0.0.0", "--port", "0"]);
    fixture.assert_filtered_output("dashboard_short_token", &["dashboard", "--token", "abc"]);
    fixture.assert_filtered_output("dashboard_bad_host", &["dashboard", "--host", "queue.example.com"]);
    fixture.assert_filtered_output("dashboard_bad_provider", &["dashboard", "--provider", "asw"]);
}

#[test]
fn up_serves_the_dashboard_beside_its_worker_and_the_next_one_finds_another_port() {
    let fixture = QueueFixture::with_queue_of_objects();
    let mut first = RunningCommand::start(fixture.command(&["up", "--dashboard-port", "0"]));
    first.until("dashboard at");
    let taken = address(first.printed());
    let port = taken.rsplit_once(':').unwrap().1.to_owned();
    let mut second = RunningCommand::start(fixture.command(&["up", "--dashboard-port", &port]));
    second.until("dashboard at");
    let other = address(second.printed());
    assert_ne!(taken, other);
    for address in [&taken, &other] {
        assert!(ask(address, "GET /healthz", "").ends_with("ok\n"));
    }
    assert!(first.interrupt().ends_with("--- exit code 0"));
    assert!(second.interrupt().ends_with("--- exit code 0"));
}

#[test]
fn up_lets_viewers_change_tasks_if_asked_to() {
    let fixture = QueueFixture::of_objects();
    let id = fixture.run(&["submit", "-t", "greet"]);
    let mut up = RunningCommand::start(fixture.command(&["up", "--dashboard-port", "0", "--allow-actions"]));
    up.until("dashboard at");
    let address = address(up.printed());
    let answer = ask(&address, &format!("POST /api/tasks/{id}/cancel"), "x-leasehold: 1\r\n");
    assert_eq!(json(&answer)["task"]["status"], "cancelled");
    assert!(up.interrupt().ends_with("--- exit code 0"));
}

fn journal() -> QueueFixture {
    let fixture = QueueFixture::new();
    fixture.run(&["init", "--layout", "journal"]);
    fixture
}

fn overview(address: &str) -> Value {
    json(&ask(address, "GET /api/overview", ""))
}

#[test]
fn a_dashboard_of_a_journal_shows_its_broker_workers_and_tasks() {
    let fixture = journal();
    let listening = |args: &[&str]| {
        let mut command = fixture.command(args);
        command.env("LEASEHOLD_BROKER_LISTEN", "127.0.0.1:0");
        RunningCommand::start(command)
    };
    let mut broker = listening(&["broker"]);
    broker.until("broker since ");
    let id = fixture.run(&["submit", "-t", "greet"]);
    let args = ["dashboard", "--port", "0", "--allow-actions", "--json"];
    let mut dashboard = RunningCommand::start(fixture.command(&args));
    let address = address(&dashboard.next_line().unwrap());
    until(|| overview(&address)["counts"]["due"] == 1);
    let shown = overview(&address);
    let shown = &shown["broker"];
    assert_eq!(
        (&shown["pid"], &shown["epoch"], &shown["clients"]),
        (&broker.pid().into(), &1.into(), &1.into())
    );
    // A change from the page, and one by another process.
    let answer = ask(&address, &format!("POST /api/tasks/{id}/cancel"), "x-leasehold: 1\r\n");
    assert_eq!(json(&answer)["task"]["status"], "cancelled", "{answer}");
    assert!(fixture.run(&["history", &id]).contains("dashboard"));
    fixture.run(&["retry", &id]);
    until(|| overview(&address)["counts"]["due"] == 1);
    let worker =
        ["worker", "--id", "ada", "--exec", "slow=sleep 600", "--concurrency", "3", "--lease-secs", "3"];
    let ada = RunningCommand::start(fixture.command(&worker));
    fixture.run(&["submit", "-t", "slow"]);
    let row = || json(&ask(&address, "GET /api/workers", ""))["workers"][0].clone();
    until(|| row()["held"] == 1);
    let shown = row();
    assert_eq!((&shown["worker_id"], &shown["slots"]), (&"ada".into(), &3.into()), "{shown}");
    assert_eq!(
        (&shown["pid"], &shown["types"]),
        (&ada.pid().into(), &serde_json::json!(["slow"])),
        "{shown}"
    );
    ada.signal("-KILL");
    until(|| row()["state"] == "dead");
    // The secret of the lease, by which other hosts may read.
    let lease = std::fs::read_to_string(fixture.path().join("journal/0/lease.json")).unwrap();
    let lease: Value = serde_json::from_str(&lease).unwrap();
    let secret =
        lease["address"]["network"]["secret"].as_str().unwrap_or_else(|| panic!("{lease}")).to_owned();
    for path in ["/api/overview", "/api/workers", "/api/settings", "/metrics"] {
        assert!(!ask(&address, &format!("GET {path}"), "").contains(&secret), "{path}");
    }
    assert!(ask(&address, "GET /healthz", "").ends_with("ok\n"));
    assert!(dashboard.interrupt().ends_with("--- exit code 0"));
    broker.interrupt();
}

#[test]
fn a_dashboard_of_a_journal_shows_that_there_is_no_broker_and_finds_the_next_one() {
    let fixture = journal();
    let id = fixture.run(&["submit", "-t", "greet"]);
    let mut dashboard = RunningCommand::start(fixture.command(&["dashboard", "--port", "0", "--json"]));
    let address = address(&dashboard.next_line().unwrap());
    // The tasks are read from the log.
    until(|| overview(&address)["counts"]["due"] == 1);
    let shown = overview(&address);
    let shown = &shown["broker"];
    assert_eq!(
        (&shown["is_reached"], &shown["last"]["state"]),
        (&false.into(), &"released".into()),
        "{shown}"
    );
    let metrics = ask(&address, "GET /metrics", "");
    assert!(metrics.contains("leasehold_broker_reachable 0"), "{metrics}");
    let mut broker = RunningCommand::start(fixture.command(&["broker"]));
    broker.until("broker since ");
    until(|| overview(&address)["broker"]["pid"] == broker.pid());
    fixture.run(&["cancel", &id]);
    until(|| overview(&address)["counts"]["cancelled"] == 1);
    broker.interrupt();
    until(|| overview(&address)["broker"]["is_reached"] == false);
    assert_eq!(overview(&address)["counts"]["cancelled"], 1);
    let answer = ask(&address, &format!("POST /api/tasks/{id}/retry"), "x-leasehold: 1\r\n");
    assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
    let end = dashboard.interrupt();
    assert!(!end.contains("cannot reach"), "it is logged after a minute: {end}");
    assert!(end.ends_with("--- exit code 0"), "{end}");
}

#[test]
fn up_serves_the_dashboard_of_a_journal_beside_its_broker() {
    let fixture = journal();
    let id = fixture.run(&["submit", "-t", "greet"]);
    for more in [&[][..], &["--exec", "other=cat"]] {
        let args = [&["up", "--dashboard-port", "0", "--allow-actions"], more].concat();
        let mut up = RunningCommand::start(fixture.command(&args));
        up.until("dashboard at");
        let address = address(up.printed());
        until(|| overview(&address)["broker"]["pid"] == up.pid());
        until(|| overview(&address)["counts"]["due"] == 1);
        // The process that is the broker asks itself.
        assert_eq!(overview(&address)["broker"]["clients"], 0);
        // It has looked for artifacts.
        until(|| overview(&address)["sample"]["requests"].as_u64() > Some(0));
        let own = overview(&address)["sample"]["requests"].clone();
        for action in ["cancel", "retry"] {
            let answer = ask(&address, &format!("POST /api/tasks/{id}/{action}"), "x-leasehold: 1\r\n");
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        }
        assert_eq!(overview(&address)["sample"]["requests"], own);
        assert!(up.interrupt().ends_with("--- exit code 0"));
    }
}
