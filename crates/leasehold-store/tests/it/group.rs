//! Folder that two users of one group share. The users are real, so these tests need the superuser.

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// User ids that no real user of the machine has.
const USERS: [u32; 2] = [64_201, 64_202];
const GROUP: u32 = 64_200;

/// Folder of the first user, below a directory that other users may traverse but not list; none without the superuser.
#[expect(clippy::print_stdout, reason = "a test that is skipped says so")]
fn shared_folder() -> Option<tempfile::TempDir> {
    let outside = tempfile::tempdir().unwrap();
    if chown(outside.path(), Some(0), Some(0)).is_err() {
        println!("skipped: only the superuser can act as two users");
        return None;
    }
    std::fs::set_permissions(outside.path(), std::fs::Permissions::from_mode(0o711)).unwrap();
    // The project's folder may be private. Copied by another process: a child that another test forks at this moment would
    // have the file open for writing, and such a file cannot be run.
    let program = outside.path().join("exerciser");
    assert!(
        Command::new("cp")
            .arg(env!("CARGO_BIN_EXE_store-exerciser"))
            .arg(program)
            .status()
            .unwrap()
            .success()
    );
    let root = outside.path().join("root");
    std::fs::create_dir(&root).unwrap();
    chown(&root, Some(USERS[0]), Some(GROUP)).unwrap();
    std::fs::set_permissions(&root, std::fs::Permissions::from_mode(0o2770)).unwrap();
    Some(outside)
}

/// Process of one of the users, with the most restrictive umask.
fn exerciser(user: u32, action: &str, root: &Path, key: &str, number: usize) -> Child {
    Command::new("sh")
        .args(["-c", "umask 077; exec \"$@\"", "sh"])
        .arg(root.with_file_name("exerciser"))
        .args([action, root.to_str().unwrap(), key, &number.to_string()])
        .current_dir("/")
        .uid(user)
        .gid(GROUP)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn succeeds(child: Child) {
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn users_of_a_group_replace_each_others_objects_entries_and_clock_files() {
    let Some(outside) = shared_folder() else { return };
    let root = outside.path().join("root");
    for user in [USERS[0], USERS[1], USERS[0]] {
        succeeds(exerciser(user, "group-increment", &root, "counter", 3));
        succeeds(exerciser(user, "group-entries", &root, "e/", 3));
        // The modification times are the last writer's.
        let mark = std::fs::metadata(root.join(".leasehold/clock/high")).unwrap();
        let entry = std::fs::metadata(root.join("e/0/entry")).unwrap();
        assert_eq!((mark.uid(), entry.uid()), (user, user));
    }
}

/// As after a command of the owner without the setting for a group.
#[test]
fn the_owner_of_a_private_lock_file_opens_it_to_the_group() {
    let Some(outside) = shared_folder() else { return };
    let root = outside.path().join("root");
    succeeds(exerciser(USERS[0], "group-increment", &root, "counter", 1));
    for lock in std::fs::read_dir(root.join(".leasehold/locks")).unwrap() {
        let private = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(lock.unwrap().path(), private).unwrap();
    }
    succeeds(exerciser(USERS[0], "group-increment", &root, "counter", 1));
    succeeds(exerciser(USERS[1], "group-increment", &root, "counter", 1));
}

#[test]
fn users_of_a_group_create_locks_and_directories_at_the_same_moment() {
    let Some(outside) = shared_folder() else { return };
    let root = outside.path().join("root");
    succeeds(exerciser(USERS[0], "group-entries", &root, "first/", 1));
    for round in 0..3 {
        let key = format!("{round}/");
        let writers: Vec<_> = [USERS[0], USERS[1], USERS[0], USERS[1]]
            .into_iter()
            .map(|user| exerciser(user, "group-entries", &root, &key, 60))
            .collect();
        writers.into_iter().for_each(succeeds);
    }
}

#[test]
fn what_a_killed_user_of_a_group_leaves_can_be_used_by_the_other() {
    let Some(outside) = shared_folder() else { return };
    let root = outside.path().join("root");
    succeeds(exerciser(USERS[0], "group-entries", &root, "e/", 1));
    for delay_us in (0..15).map(|round| round * 700) {
        let mut first = exerciser(USERS[0], "group-entries", &root, &format!("{delay_us}/"), 1_000);
        std::thread::sleep(std::time::Duration::from_micros(delay_us));
        first.kill().unwrap();
        first.wait().unwrap();
        succeeds(exerciser(USERS[1], "group-entries", &root, &format!("{delay_us}/"), 5));
    }
}
