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
