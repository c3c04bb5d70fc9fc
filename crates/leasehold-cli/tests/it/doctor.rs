use std::os::unix::process::CommandExt;

use crate::common::{leasehold, shown};

#[test]
fn a_folder_is_good_enough() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().canonicalize().unwrap();
    shown("folder", &mut leasehold(&["doctor", "--store", root.to_str().unwrap()]), Some(&root));
}

#[test]
fn machines_get_one_object() {
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
    ] {
        shown(name, &mut leasehold(args), None);
    }
}

#[test]
fn an_endpoint_without_a_scheme_is_refused() {
    let mut command = leasehold(&["doctor", "--store", "s3://tasks/q"]);
    command.envs([("AWS_REGION", "here"), ("AWS_ACCESS_KEY_ID", "me"), ("AWS_SECRET_ACCESS_KEY", "hush")]);
    shown("bare_endpoint", command.env("AWS_ENDPOINT_URL", "127.0.0.1:1"), None);
}

#[test]
fn a_folder_that_cannot_be_written_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = leasehold(&["doctor", "--store", folder.path().to_str().unwrap()]);
    let mut permissions = std::fs::metadata(folder.path()).unwrap().permissions();
    std::os::unix::fs::PermissionsExt::set_mode(&mut permissions, 0o555);
    std::fs::set_permissions(folder.path(), permissions).unwrap();
    if std::fs::write(folder.path().join("x"), "").is_ok() {
        // Permissions do not bind the superuser: try as somebody else.
        std::fs::remove_file(folder.path().join("x")).unwrap();
        command.uid(65_534).gid(65_534);
    }
    shown("read_only", &mut command, Some(&folder.path().canonicalize().unwrap()));
}
