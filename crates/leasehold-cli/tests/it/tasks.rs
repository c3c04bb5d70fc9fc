//! Tasks from the command line: output and refusals. A refused command writes nothing.

use leasehold_core::{Index, StoreTime, WorkerId};
use leasehold_queue::ObjectQueue;
use leasehold_queue::discover::KeyRange;
use leasehold_queue::source::TaskTypes;
use leasehold_store::{Client, OpenOptions, Purpose};
use serde_json::{Value, json};
use std::os::unix::fs::{PermissionsExt, chown};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use crate::common::leasehold;
use crate::fixture::{NOBODY, QueueFixture, public_program};
use crate::until_stopped::RunningCommand;

#[test]
fn a_task_lives_from_submit_to_its_output() {
    let fixture = QueueFixture::new();
    let id = fixture.run(&["submit", "-t", "greet", "-i", r#"{"name": "Ada"}"#, "--tag", "colour=red"]);
    let waiting: Value = serde_json::from_str(&fixture.run(&["get", &id, "--json"])).unwrap();
    assert_eq!((&waiting["status"], &waiting["tags"]["colour"]), (&"pending".into(), &"red".into()));
    fixture.run(&["worker", "--id", "w1", "--exec", "greet=cat", "--drain"]);
    let done: Value = serde_json::from_str(&fixture.run(&["wait", &id, "--json"])).unwrap();
    assert_eq!(done["output"], serde_json::json!({"name": "Ada"}));
    let history = fixture.run(&["history", &id, "--json"]);
    let events: Vec<Value> = history.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let events: Vec<_> = events.iter().map(|event| event["event"].as_str().unwrap()).collect();
    assert_eq!(events, ["submit", "claim", "complete"]);
    assert_eq!(fixture.run(&["list", "--status", "completed", "--json"]).lines().count(), 1);
    assert_eq!(fixture.run(&["list", "--status", "failed", "--json"]), "");
    fixture.assert_output("check_clean", &["check"]);
}

#[test]
fn exit_codes_of_programs_decide() {
    let fixture = QueueFixture::new();
    let submit = |kind: &str| fixture.run(&["submit", "-t", kind, "--max-attempts", "2"]);
    let cases = [("later", 75, 2), ("broken", 1, 2), ("odd", 3, 2), ("never", 65, 1)];
    let ids = cases.map(|(kind, _, _)| submit(kind));
    let mut worker = fixture.command(&["worker", "--id", "w1", "--drain"]);
    for (kind, code, _) in cases {
        worker.args(["--exec", &format!("{kind}=sh -c 'echo no {kind} >&2; exit {code}'")]);
    }
    assert!(worker.output().unwrap().status.success());
    for ((kind, code, attempts), id) in cases.into_iter().zip(ids) {
        let task: Value = serde_json::from_str(&fixture.run(&["get", &id, "--json"])).unwrap();
        assert_eq!(
            (&task["status"], &task["attempt"], &task["error"]),
            (&"failed".into(), &attempts.into(), &format!("no {kind}").into()),
            "exit code {code}"
        );
    }
}

#[test]
fn many_tasks_are_parsed_before_any_is_written() {
    let fixture = QueueFixture::of_objects();
    fixture.run(&["init"]);
    let before = fixture.objects();
    let file = fixture.path().join(".leasehold/tasks.ndjson");
    std::fs::write(&file, "{\"task_type\": \"a\"}\n\n{\"task_type\": \"b\", \"dely_secs\": 5}\n").unwrap();
    fixture.assert_output("many_with_a_slip", &["submit-many", file.to_str().unwrap()]);
    assert_eq!(fixture.objects(), before);
    std::fs::write(
        &file,
        "{\"task_type\": \"a\"}\n{\"task_type\": \"b\", \"delay_secs\": 5, \"key\": \"k\"}\n",
    )
    .unwrap();
    fixture.assert_output("many", &["submit-many", file.to_str().unwrap()]);
    assert_eq!(fixture.objects().len(), before.len() + 6, "two tasks, two entries, one key, the bell");
}

#[test]
fn an_error_of_the_store_stops_many_submits_and_reports_where_to_continue() {
    const LINES: usize = 1000;
    let (fixture, outside) = (QueueFixture::of_objects(), tempfile::tempdir().unwrap());
    // Permissions do not apply to the superuser: run as another user then.
    let is_superuser = chown(fixture.path(), Some(NOBODY), Some(NOBODY)).is_ok();
    let program = public_program(outside.path());
    let output = |args: &[&str]| -> Output {
        let mut command =
            if is_superuser { fixture.command_as_nobody(&program, args) } else { fixture.command(args) };
        command.output().unwrap()
    };
    let run = |args: &[&str]| {
        let output = output(args);
        assert!(output.status.success(), "{args:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    run(&["init"]);
    let file = outside.path().join("tasks.ndjson");
    std::fs::write(&file, "{\"task_type\": \"a\"}\n".repeat(LINES)).unwrap();
    // The tasks of one shard of sixteen cannot be written.
    let shard = fixture.path().join("tasks/7");
    std::fs::create_dir_all(&shard).unwrap();
    let allow = |mode| std::fs::set_permissions(&shard, std::fs::Permissions::from_mode(mode)).unwrap();
    allow(0o555);
    std::fs::set_permissions(fixture.path().join("tasks"), std::fs::Permissions::from_mode(0o777)).unwrap();
    let first = output(&["submit-many", file.to_str().unwrap()]);
    assert_eq!(first.status.code(), Some(77), "{first:?}");
    let stderr = String::from_utf8(first.stderr).unwrap();
    let number_after = |words: &str| -> usize {
        let (_, rest) = stderr.rsplit_once(words).unwrap_or_else(|| panic!("no `{words}` in {stderr}"));
        rest.split(|letter: char| !letter.is_ascii_digit()).next().unwrap().parse().unwrap()
    };
    let done = number_after("error: submitted ");
    let from = stderr.rsplit_once("continue with --from ").unwrap().1.trim();
    assert!(done < LINES / 2, "{stderr}");
    assert_eq!(stderr.matches("then stopped").count(), 1, "{stderr}");
    let count = || run(&["list", "--limit", "5000", "--json"]).lines().count();
    assert_eq!(count(), done, "{stderr}");
    // Continued while the shard still cannot be written: the lines in between are submitted already.
    let second = output(&["submit-many", file.to_str().unwrap(), "--from", from]);
    assert_eq!(second.status.code(), Some(77), "{second:?}");
    let stderr = String::from_utf8(second.stderr).unwrap();
    let from = stderr.rsplit_once("continue with --from ").unwrap().1.trim();
    let done = count();
    allow(0o777);
    let rest = ["submit-many", file.to_str().unwrap(), "--from", from];
    assert_eq!(run(&rest), format!("submitted {} tasks\n", LINES - done));
    assert_eq!(count(), LINES, "--from {from}");
}

#[test]
fn numbers_are_kept_exactly_or_refused() {
    let fixture = QueueFixture::new();
    for input in ["18446744073709551615", "-9223372036854775808", "\"18446744073709551616\"", "0.5"] {
        let id = fixture.run(&["submit", "-t", "a", &format!("--input={input}")]);
        let task = fixture.run(&["get", &id, "--json"]);
        assert!(task.contains(&format!("\"input\":{input},")), "{task}");
    }
    let file = fixture.path().join(".leasehold/tasks.ndjson");
    std::fs::write(&file, "{\"task_type\": \"a\", \"input\": 18446744073709551616}\n").unwrap();
    fixture.assert_output("many_with_a_large_number", &["submit-many", file.to_str().unwrap()]);
}

#[test]
fn durations_have_units() {
    let fixture = QueueFixture::new();
    let args = ["submit", "-t", "a", "--delay", "5m", "--timeout", "1.5s", "--expires", "2h"];
    let id = fixture.run(&args);
    let task: Value = serde_json::from_str(&fixture.run(&["get", &id, "--json"])).unwrap();
    let millis =
        |name: &str| -> i64 { task[name].as_str().unwrap().parse::<StoreTime>().unwrap().as_millis() };
    // A task is planned by the latest that the store's time may be, and created at the earliest.
    assert!((300_000..310_000).contains(&(millis("available_at") - millis("created_at"))), "{task}");
    assert_eq!(task["timeout_secs"], 2, "{task}");
    let output = fixture.command(&["wait", &id, "--timeout", "0.1s"]).output().unwrap();
    assert_eq!(output.status.code(), Some(75), "{output:?}");
}

#[tokio::test]
async fn progress_of_a_running_task_is_shown() {
    let fixture = QueueFixture::of_objects();
    let id = fixture.run(&["submit", "-t", "long"]);
    let client = Client::open(fixture.path().to_str().unwrap(), &OpenOptions::default()).unwrap();
    let queue = ObjectQueue::connect(client).await.unwrap();
    let ready = vec![KeyRange::whole(Index::Ready)];
    let found = queue.discover(Purpose::Discover, ready).await.unwrap().due.remove(0);
    let (worker, lease) = (WorkerId::checked("worker id", "w1").unwrap(), Duration::from_mins(1));
    let claimed = queue.claim(&found, &worker, lease, &TaskTypes::all(), false).await.unwrap().unwrap();
    let progress = serde_json::json!({"percent": 50, "step": "upload"});
    queue.renew(&claimed, lease, Some(progress)).await.unwrap();
    let printed = fixture.run(&["get", &id]);
    let shown = r#"progress     [##########----------] 50 %  {"percent":50,"step":"upload"}"#;
    assert!(printed.contains(shown), "{printed}");
}

#[test]
fn bad_input_is_refused_in_one_line_and_writes_nothing() {
    let fixture = QueueFixture::of_objects();
    fixture.run(&["init"]);
    let before = fixture.objects();
    let large = format!("\"{}\"", "x".repeat(300_000));
    let large_file = fixture.path().join(".leasehold/large.json");
    std::fs::write(&large_file, large).unwrap();
    let large = format!("@{}", large_file.display());
    for (name, args) in [
        ("bad_unknown_id", ["get", "3f2c9a4e-0d1b-4c6f-9a57-2e8b6f10c4d3"].as_slice()),
        ("bad_malformed_id", &["get", "3f2"]),
        ("bad_unknown_prefix", &["get", "3f2c"]),
        ("bad_sort", &["list", "--sort", "newest"]),
        ("bad_json", &["submit", "-t", "a", "-i", "{oops"]),
        ("bad_large", &["submit", "-t", "a", "-i", &large]),
        ("bad_file", &["submit", "-t", "a", "-i", "@/no/such/file"]),
        ("bad_time", &["submit", "-t", "a", "--at", "2126-01-01T00:00:00Z"]),
        ("bad_delay", &["submit", "-t", "a", "--delay=-5"]),
        ("bad_number", &["submit", "-t", "a", "-i", "[18446744073709551616]"]),
        ("bad_retry_without_key", &["submit", "-t", "a", "--key-retry-failed"]),
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
        fixture.assert_output(name, args);
        assert_eq!(fixture.objects(), before, "{name} has written something");
    }
}

#[test]
fn the_first_characters_of_an_id_name_a_task() {
    let fixture = QueueFixture::of_objects();
    let id = fixture.run(&["submit", "-t", "a", "--delay", "3600"]);
    let short = &id[..13];
    let task: Value = serde_json::from_str(&fixture.run(&["get", short, "--json"])).unwrap();
    assert_eq!(task["id"], id.as_str());
    assert!(fixture.run(&["history", short]).contains(&id));
    fixture.run(&["reschedule", short, "--at", "2027-01-01T00:00:00Z"]);
    fixture.run(&["cancel", short]);
    assert_eq!(fixture.command(&["wait", short]).output().unwrap().status.code(), Some(3));
    fixture.run(&["retry", short]);
    // Ids are random, so a second one with these first characters is made by hand, with another last character.
    let other = format!("{}{}", &id[..35], if id.ends_with('0') { '1' } else { '0' });
    let task = fixture.objects().into_iter().find(|path| path.contains("/tasks/")).unwrap();
    std::fs::write(task.replace(&id, &other), std::fs::read_to_string(&task).unwrap().replace(&id, &other))
        .unwrap();
    let output = fixture.command(&["get", short]).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(64), "{stderr}");
    assert!(stderr.contains(&format!("task id `{short}` is ambiguous")), "{stderr}");
    assert!(fixture.run(&["get", &other]).contains(&other));
}

#[test]
fn lists_are_in_order() {
    let fixture = QueueFixture::new();
    let submit = |task_type: &str, delay: &str| fixture.run(&["submit", "-t", task_type, "--delay", delay]);
    let ids = [submit("a", "3h"), submit("b", "1h"), submit("a", "2h"), submit("c", "0")];
    fixture.run(&["cancel", &ids[1]]);
    let listed = |more: &[&str]| -> Vec<usize> {
        let args: Vec<_> = ["list", "--json"].into_iter().chain(more.iter().copied()).collect();
        let printed = fixture.run(&args);
        let tasks = printed.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        tasks.map(|task| ids.iter().position(|id| task["id"] == id.as_str()).unwrap()).collect()
    };
    assert_eq!(listed(&[]), [3, 2, 1, 0], "newest first");
    assert_eq!(listed(&["--limit", "2"]), [3, 2]);
    assert_eq!(listed(&["--type", "a"]), [2, 0]);
    assert_eq!(listed(&["--sort", "updated"]), [1, 3, 2, 0]);
    assert_eq!(listed(&["--sort", "due"])[..3], [3, 2, 0]);
    let mut by_id = [0, 1, 2, 3];
    by_id.sort_by_key(|number| &ids[*number]);
    assert_eq!(listed(&["--sort", "id"]), by_id);
}

#[test]
fn tasks_are_counted_by_status_and_by_when_they_are_due() {
    let fixture = QueueFixture::new();
    fixture.run(&["submit", "-t", "a", "-i", "1"]);
    fixture.run(&["worker", "--drain", "--exec", "a=cat"]);
    let cancelled = fixture.run(&["submit", "-t", "b"]);
    fixture.run(&["cancel", &cancelled]);
    fixture.run(&["submit", "-t", "b"]);
    // Within the minute of the index, most of the time; never due as long as this test takes.
    fixture.run(&["submit", "-t", "b", "--delay", "50"]);
    let stats: Value = serde_json::from_str(&fixture.run(&["stats", "--json"])).unwrap();
    let counts = ["due", "scheduled", "running", "completed", "failed", "cancelled"].map(|name| &stats[name]);
    assert_eq!(counts, [1, 1, 0, 1, 0, 1].map(Value::from).each_ref(), "{stats}");
}

#[test]
fn operators_can_cancel_retry_and_reschedule() {
    let fixture = QueueFixture::new();
    let id = fixture.run(&["submit", "-t", "a", "--delay", "3600"]);
    let status =
        || serde_json::from_str::<Value>(&fixture.run(&["get", &id, "--json"])).unwrap()["status"].clone();
    fixture.run(&["reschedule", &id, "--at", "2027-01-01T00:00:00Z"]);
    fixture.run(&["cancel", &id]);
    assert_eq!(status(), "cancelled");
    let again = fixture.command(&["cancel", &id]).output().unwrap();
    assert_eq!(again.status.code(), Some(1));
    fixture.run(&["retry", &id]);
    assert_eq!(status(), "pending");
    fixture.run(&["cancel", "--type", "a"]);
    assert_eq!(status(), "cancelled");
}

#[test]
fn the_demo_completes_all_tasks() {
    let output = leasehold(&["demo"]).output().unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{printed}{}", String::from_utf8_lossy(&output.stderr));
    for part in [
        "alice was killed",
        "claim of worker alice expired",
        "bob is the broker now",
        "CHANGES",
        "All 200 tasks were completed",
    ] {
        assert!(printed.contains(part), "no `{part}` in {printed}");
    }
}

#[test]
fn cost_counts_every_request() {
    let report = |name, value| {
        let args =
            ["cost", "--workers", "3", "--tasks-per-day", "48000", "--days", "0.02", name, value, "--json"];
        let output = leasehold(&args).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    let count = |report: &Value, purpose: &str, verb: &str| {
        let rows = report["requests"].as_array().unwrap();
        let row = rows.iter().find(|row| row["purpose"] == purpose).unwrap();
        row[verb].as_u64().unwrap()
    };
    for (mode, claim_puts) in [("shared", 2), ("leased", 1), ("shard-leasing", 1), ("direct", 1)] {
        let report = report("--mode", mode);
        assert_eq!(report["tasks"], 960);
        assert_eq!(count(&report, "settle", "put"), 960);
        assert!(count(&report, "claim", "put") >= 960 * claim_puts);
        assert!(report["usd_per_month"].as_f64().unwrap() > 0.0);
    }
    let journal = report("--layout", "journal");
    assert_eq!((&journal["tasks"], &journal["layout"]), (&json!(960), &json!("journal")));
    assert!(count(&journal, "journal", "put") < 2 * 960, "{journal}");
    for unknown in [["--mode", "undivided"], ["--layout", "columns"]] {
        let output = leasehold(&[&["cost"], &unknown[..]].concat()).output().unwrap();
        assert_eq!(output.status.code(), Some(64));
    }
}

/// Command on a full disk: empty files can be created, and every write to one fails.
fn on_a_full_disk(command: &Command) -> Command {
    let mut limited = Command::new("sh");
    limited.args(["-c", "trap '' XFSZ; ulimit -S -f 0; exec \"$@\"", "sh"]);
    limited.arg(command.get_program()).args(command.get_args()).current_dir("/").env_clear();
    limited
}

#[test]
fn a_submit_that_the_disk_refuses_fails_at_once_and_leaves_no_entry() {
    let fixture = QueueFixture::of_objects();
    fixture.run(&["init"]);
    let (before, began) = (fixture.objects(), Instant::now());
    let mut submit = RunningCommand::start(on_a_full_disk(&fixture.command(&["submit", "-t", "a"])));
    submit.until("was not submitted");
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    let printed = submit.end();
    assert!(printed.contains("File too large") && printed.ends_with("--- exit code 75"), "{printed}");
    assert_eq!(fixture.objects(), before);
}

#[test]
fn a_long_cost_simulation_prints_an_estimate_and_its_progress() {
    // Few workers and short polls of a short day, with as many tasks as it takes.
    let args =
        ["cost", "--workers", "2", "--tasks-per-day", "120000", "--handler-secs", "0.1", "--mode", "leased"];
    let days: Vec<_> = args.into_iter().chain(["--days", "0.1"]).collect();
    let output = leasehold(&days).output().unwrap();
    let notes = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{notes}");
    assert!(notes.starts_with("about US$ "), "{notes}");
    for part in ["estimated from 30 minutes", "simulated 10 %", "simulated 100 %"] {
        assert!(notes.contains(part), "no `{part}` in {notes}");
    }
    let quick: Vec<_> = args.into_iter().chain(["--quick", "--json"]).collect();
    let output = leasehold(&quick).output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["is_estimate"], true);
    assert!(report["days"].as_f64().unwrap() < 0.05, "{report}");
}

#[test]
fn a_corrupt_clock_file_is_named_and_ends_with_65() {
    let fixture = QueueFixture::with_queue();
    let clock = fixture.path().join(".leasehold/clock");
    let mut files = std::fs::read_dir(&clock).unwrap().map(|entry| entry.unwrap().path());
    let boot = files.find(|path| path.to_str().unwrap().contains("boot-")).unwrap();
    std::fs::write(&boot, b"\xff\xfe").unwrap();
    for args in [["submit", "-t", "a"].as_slice(), &["list"], &["worker", "--drain", "--exec", "a=true"]] {
        let output = fixture.command(args).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(65), "{args:?}: {stderr}");
        assert!(stderr.contains(boot.to_str().unwrap()), "{args:?}: {stderr}");
    }
}
