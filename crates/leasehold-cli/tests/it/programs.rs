//! Programs of `--exec`: their environment, their output and their end.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::fixture::QueueFixture;
use crate::until_stopped::{is_dead, until};

/// Shell program in the folder of the queue, outside its objects.
fn program(fixture: &QueueFixture, name: &str, text: &str) -> String {
    let path = fixture.path().join(".leasehold").join(name);
    std::fs::write(&path, text).unwrap();
    format!("{}", path.display())
}

fn task(fixture: &QueueFixture, id: &str) -> Value {
    serde_json::from_str(&fixture.run(&["get", id, "--json"])).unwrap()
}

#[test]
fn programs_that_cannot_be_started_are_refused_before_anything_is_claimed() {
    let fixture = QueueFixture::new();
    fixture.run(&["submit", "-t", "a", "--max-attempts", "1"]);
    let before = fixture.objects();
    let plain = format!("a={} x", program(&fixture, "plain.sh", "echo 1"));
    for (name, args) in [
        ("program_missing", ["worker", "--drain", "--exec", "a=./no-such-program"].as_slice()),
        ("program_not_in_path", &["up", "--no-dashboard", "--drain", "--exec", "a=no-such-program"]),
        ("program_not_executable", &["worker", "--drain", "--exec", "a=true", "--exec", &plain]),
    ] {
        fixture.assert_output(name, args);
        assert_eq!(fixture.objects(), before, "{name} has written something");
    }
    let empty = QueueFixture::new();
    for command in ["worker", "up"] {
        let output = empty.command(&[command, "--drain", "--exec", "a=./no-such-program"]).output().unwrap();
        assert_eq!(output.status.code(), Some(64), "{output:?}");
        assert_eq!(empty.objects(), Vec::<String>::new(), "{command} has created a queue");
    }
}

#[test]
fn standard_error_of_a_program_is_printed_with_its_task() {
    let fixture = QueueFixture::new();
    let id = fixture.run(&["submit", "-t", "greet"]);
    let script = program(&fixture, "greet.sh", r"printf 'hint\033[31m\r\n\tmore' >&2; echo 1");
    let exec = format!("greet=sh {script}");
    let output = fixture.command(&["worker", "--drain", "--exec", &exec]).output().unwrap();
    let printed = String::from_utf8(output.stderr).unwrap();
    let short = &id[..8];
    let expected = format!("[greet {short}] hint\\u{{1b}}[31m\n[greet {short}]     more\n");
    assert!(printed.ends_with(&expected), "{printed}");
    let id = fixture.run(&["submit", "-t", "greet"]);
    let output = fixture.command(&["worker", "--drain", "--json", "--exec", &exec]).output().unwrap();
    let printed = String::from_utf8(output.stderr).unwrap();
    let last: Value = serde_json::from_str(printed.lines().last().unwrap()).unwrap();
    assert_eq!(last, serde_json::json!({"task": id, "stderr": "\tmore"}));
    assert_eq!(task(&fixture, &id)["status"], "completed");
}

#[test]
fn whole_numbers_beyond_64_bits_in_an_output_fail_the_task() {
    let ran = |output: &str| {
        let fixture = QueueFixture::new();
        let id = fixture.run(&["submit", "-t", "a"]);
        let script = program(&fixture, "print.sh", &format!("cat <<'END'\n{output}\nEND"));
        fixture.run(&["worker", "--drain", "--exec", &format!("a=sh {script}")]);
        task(&fixture, &id)
    };
    let refused = ran(r#"{"id": [18446744073709551616]}"#);
    assert_eq!(refused["status"], "failed", "{refused}");
    let message =
        "the output has the number 18446744073709551616, which does not fit into 64 bits; pass it as text";
    assert_eq!(refused["error"], message, "{refused}");
    assert_eq!(refused["attempt"], 1, "no retry cures it: {refused}");
    for kept in ["18446744073709551615", "-9223372036854775808", r#""18446744073709551616""#] {
        assert_eq!(ran(kept)["output"].to_string(), kept);
    }
    // Text that is not JSON is kept as it is.
    assert_eq!(ran("order 18446744073709551616")["output"], "order 18446744073709551616");
}

#[test]
fn programs_do_not_inherit_secrets_unless_asked_to() {
    let secrets = [
        ("LEASEHOLD_PIECES_SECRET", "hush-hush-hush-hush"),
        ("LEASEHOLD_DASHBOARD_TOKEN", "hush-hush"),
        ("LEASEHOLD_QUEUE_ACCESS_KEY_ID", "hush"),
        ("LEASEHOLD_QUEUE_SECRET_ACCESS_KEY", "hush"),
        ("AWS_ACCESS_KEY_ID", "hush"),
        ("AWS_SECRET_ACCESS_KEY", "hush"),
        ("AWS_SESSION_TOKEN", "hush"),
    ];
    let environment = |flags: &[&str]| {
        let fixture = QueueFixture::new();
        let id = fixture.run(&["submit", "-t", "env"]);
        let mut worker = fixture.command(&["worker", "--drain", "--exec", "env=env"]);
        assert!(worker.args(flags).envs(secrets).output().unwrap().status.success());
        task(&fixture, &id)["output"].as_str().unwrap().to_owned()
    };
    let without = environment(&[]);
    assert!(without.contains("PATH=") && !without.contains("hush"), "{without}");
    let with = environment(&["--pass-secrets"]);
    for (name, value) in secrets {
        assert!(with.contains(&format!("{name}={value}")), "no {name} in {with}");
    }
}

/// Runs a program that starts `command` in the background, which holds its pipes, and ends. Returns the process id of the
/// background command.
fn background_pid(command: &str) -> String {
    let fixture = QueueFixture::new();
    let id = fixture.run(&["submit", "-t", "a", "--timeout", "20", "--max-attempts", "1"]);
    let mark = fixture.path().join(".leasehold/started");
    let exec = format!("a=sh -c '{command} & echo $! > {}; echo 1'", mark.display());
    fixture.run(&["worker", "--drain", "--exec", &exec]);
    let task = task(&fixture, &id);
    assert_eq!((&task["status"], &task["output"]), (&"completed".into(), &1.into()), "{task}");
    std::fs::read_to_string(&mark).unwrap().trim().to_owned()
}

#[test]
fn processes_of_a_program_end_with_its_run() {
    let pid = background_pid("sleep 600");
    until(|| is_dead(&pid));
}

#[test]
fn a_process_that_has_left_the_group_does_not_delay_the_run() {
    let pid = background_pid("setsid sleep 600");
    // It may have been killed before it has left.
    let _ = Command::new("kill").args(["-KILL", &pid]).stderr(Stdio::null()).status().unwrap();
}

#[test]
fn the_directory_of_a_run_is_private_and_does_not_outlive_a_killed_worker() {
    let fixture = QueueFixture::new();
    let id = fixture.run(&["submit", "-t", "look"]);
    let places = fixture.path().join(".leasehold/places");
    std::fs::create_dir(&places).unwrap();
    let work = |exec: &str| {
        let mut worker = fixture.command(&["worker", "--drain", "--exec", exec]);
        assert!(worker.env("TMPDIR", &places).output().unwrap().status.success());
    };
    let inside = || -> Vec<PathBuf> {
        std::fs::read_dir(&places).unwrap().map(|entry| entry.unwrap().path()).collect()
    };
    work("look=sh -c 'stat -c %a \"$LEASEHOLD_RESULTS/..\" \"$LEASEHOLD_RESULTS/../..\"'");
    assert_eq!(task(&fixture, &id)["output"], "700\n700");
    assert_eq!(inside(), Vec::<PathBuf>::new());

    fixture.run(&["submit", "-t", "slow"]);
    let mark = fixture.path().join(".leasehold/started");
    let slow = format!("slow=sh -c 'touch {}; sleep 600'", mark.display());
    let mut killed = fixture.command(&["worker", "--exec", &slow]);
    killed.env("TMPDIR", &places).stdout(Stdio::null()).stderr(Stdio::null());
    let mut killed = killed.spawn().unwrap();
    until(|| mark.exists());
    let of_killed = inside();
    assert_eq!(of_killed.len(), 1);
    work("other=true");
    assert_eq!(inside(), of_killed, "its process lives");
    killed.kill().unwrap();
    killed.wait().unwrap();
    work("other=true");
    assert_eq!(inside(), Vec::<PathBuf>::new());
}

#[test]
fn the_program_of_the_readme_can_be_typed() {
    let readme = include_str!("../../../../README.md");
    let blocks = readme.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let script = blocks.into_iter().find(|block| block.starts_with("cat > greet.sh")).expect("the script");
    let folder = tempfile::tempdir().unwrap();
    let typed = Command::new("sh").args(["-ec", script]).current_dir(folder.path()).status().unwrap();
    assert!(typed.success());
    assert!(Path::exists(&folder.path().join("greet.sh")));
    let fixture = QueueFixture::new();
    let id = fixture.run(&["submit", "-t", "greet", "-i", r#"{"name": "Ada"}"#]);
    let mut worker = fixture.command(&["worker", "--drain", "--exec", "greet=./greet.sh"]);
    assert!(worker.current_dir(folder.path()).output().unwrap().status.success());
    assert_eq!(task(&fixture, &id)["output"], serde_json::json!({"text": "Hello, Ada!"}));
}
