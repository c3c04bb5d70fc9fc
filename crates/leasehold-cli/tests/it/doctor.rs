use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;

use crate::common::http::{address, ask, json};
use crate::common::{assert_output, leasehold, leasehold_at};
use crate::fixture::{NOBODY, QueueFixture, public_program};
use crate::until_stopped::{RunningCommand, until};

#[test]
fn a_folder_meets_the_requirements() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().canonicalize().unwrap();
    assert_output("folder", &mut leasehold(&["doctor", "--store", root.to_str().unwrap()]), Some(&root));
}

#[test]
fn json_output_is_one_object() {
    let folder = tempfile::tempdir().unwrap();
    let output =
        leasehold(&["--json", "--store", folder.path().to_str().unwrap(), "doctor"]).output().unwrap();
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["good"], true);
    assert_eq!(report["findings"].as_array().unwrap().len(), 9);
    assert!(report["time"]["earliest"].as_str().unwrap().ends_with('Z'));
}

#[test]
fn wrong_calls_are_explained() {
    for (name, args) in [
        ("unknown_command", ["docter", "--store", "x"].as_slice()),
        ("unknown_store", &["doctor", "--store", "redis://x"]),
        ("no_bucket_named", &["doctor", "--store", "s3:///x", "--json"]),
        ("file_as_store", &["doctor", "--store", "/etc/passwd"]),
        ("half_an_address", &["list", "--store", "s3:/foo"]),
        ("no_queue", &["list", "--store", "/nonexistent/deep/path"]),
        ("no_folder", &["artifact", "ls", "--store", "/nonexistent/deep/path"]),
    ] {
        assert_output(name, &mut leasehold(args), None);
    }
    assert!(!Path::new("/nonexistent").exists() && !Path::new("/s3:").exists());
}

/// Sets the modes of a folder and of everything below it.
fn set_modes(path: &Path, directories: u32, files: u32) {
    let is_directory = path.is_dir();
    if is_directory {
        for entry in std::fs::read_dir(path).unwrap() {
            set_modes(&entry.unwrap().path(), directories, files);
        }
    }
    let mode = if is_directory { directories } else { files };
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn reading_a_folder_needs_read_permission_only() {
    let fixture = QueueFixture::of_objects();
    let id = fixture.run(&["submit", "-t", "greet"]);
    set_modes(fixture.path(), 0o555, 0o444);
    let is_superuser = std::fs::write(fixture.path().join("x"), "").is_ok();
    let outside = tempfile::tempdir().unwrap();
    let program = public_program(outside.path());
    let run = |args: &[&str]| {
        let mut command =
            if is_superuser { fixture.command_as_nobody(&program, args) } else { fixture.command(args) };
        command.output().unwrap()
    };
    for args in [
        ["list"].as_slice(),
        &["get", &id],
        &["history", &id],
        &["stats"],
        &["check"],
        &["shards"],
        &["workers"],
    ] {
        let output = run(args);
        assert!(output.status.success(), "{args:?}: {output:?}");
    }
    let args = ["dashboard", "--port", "0", "--json"];
    let command =
        if is_superuser { fixture.command_as_nobody(&program, &args) } else { fixture.command(&args) };
    let mut dashboard = RunningCommand::start(command);
    let address = address(&dashboard.next_line().unwrap());
    until(|| json(&ask(&address, "GET /api/overview", ""))["counts"]["due"] == 1);
    assert!(dashboard.interrupt().ends_with("--- exit code 0"));
    assert_eq!(run(&["submit", "-t", "greet"]).status.code(), Some(77));
    set_modes(fixture.path(), 0o755, 0o644);
}

#[test]
fn a_queue_that_lost_its_description_is_restored_only_when_asked_for() {
    let fixture = QueueFixture::new();
    fixture.run(&["init", "--shard-prefix-len", "2"]);
    let id = fixture.run(&["submit", "-t", "greet"]);
    std::fs::remove_file(fixture.path().join("queue.json")).unwrap();
    let before = fixture.objects();
    for args in [["list"].as_slice(), &["submit", "-t", "greet"], &["init"], &["check", "--repair"]] {
        let output = fixture.command(args).output().unwrap();
        assert_eq!(output.status.code(), Some(65), "{args:?}: {output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("leasehold init --restore"));
    }
    assert_eq!(fixture.objects(), before);
    fixture.run(&["init", "--restore"]);
    assert!(fixture.run(&["list", "--json"]).contains(&id));
}

#[test]
fn no_queue_is_created_where_any_key_of_a_queue_exists() {
    for prefix in [
        "duty-leases",
        "inbox",
        "index",
        "leases",
        "overflow",
        "ready",
        "shard-leases",
        "tasks",
        "unique",
        "workers",
    ] {
        let fixture = QueueFixture::new();
        std::fs::create_dir(fixture.path().join(prefix)).unwrap();
        std::fs::write(fixture.path().join(prefix).join("x"), "").unwrap();
        let output = fixture.command(&["init"]).output().unwrap();
        assert_eq!(output.status.code(), Some(65), "{prefix}: {output:?}");
        assert!(!fixture.path().join("queue.json").exists(), "{prefix}");
    }
}

#[test]
fn an_endpoint_without_a_scheme_is_refused() {
    let mut command = leasehold(&["doctor", "--store", "s3://tasks/q"]);
    command.envs([("AWS_REGION", "here"), ("AWS_ACCESS_KEY_ID", "me"), ("AWS_SECRET_ACCESS_KEY", "hush")]);
    assert_output("bare_endpoint", command.env("AWS_ENDPOINT_URL", "127.0.0.1:1"), None);
}

#[test]
fn a_folder_that_cannot_be_written_is_refused() {
    let (folder, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let program = public_program(outside.path());
    let mut command = leasehold_at(&program, &["doctor", "--store", folder.path().to_str().unwrap()]);
    let mut permissions = std::fs::metadata(folder.path()).unwrap().permissions();
    std::os::unix::fs::PermissionsExt::set_mode(&mut permissions, 0o555);
    std::fs::set_permissions(folder.path(), permissions).unwrap();
    if std::fs::write(folder.path().join("x"), "").is_ok() {
        // Permissions do not apply to the superuser: run as another user.
        std::fs::remove_file(folder.path().join("x")).unwrap();
        command.uid(NOBODY).gid(NOBODY);
    }
    assert_output("read_only", &mut command, Some(&folder.path().canonicalize().unwrap()));
}
