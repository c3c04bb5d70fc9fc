//! Queue in a folder that two users of a group share.

use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;

use crate::common::leasehold_at;
use crate::fixture::public_program;

/// Ids that no real user of the machine has.
const GROUP: u32 = 64_200;
const FIRST: u32 = 64_201;
const SECOND: u32 = 64_202;

#[test]
fn two_users_of_a_group_submit_to_and_work_one_queue() {
    let outside = tempfile::tempdir().unwrap();
    if chown(outside.path(), Some(FIRST), Some(GROUP)).is_err() {
        println!("skipped: only the superuser can act as two users");
        return;
    }
    let program = public_program(outside.path());
    let queue = outside.path().join("queue");
    let run = |user: u32, args: &[&str]| {
        let mut command = leasehold_at(&program, args);
        command.arg("--store").arg(&queue).env("LEASEHOLD_QUEUE_FOLDER_ACCESS", "group");
        let output = command.uid(user).gid(GROUP).output().unwrap();
        assert!(output.status.success(), "{user}: {args:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    run(FIRST, &["init"]);
    let mut tasks = Vec::new();
    for user in [FIRST, SECOND, FIRST] {
        tasks.push(run(FIRST, &["submit", "-t", "a", "--key", &tasks.len().to_string()]));
        tasks.push(run(SECOND, &["submit", "-t", "a"]));
        run(user, &["worker", "--drain", "--exec", "a=true"]);
        for task in &tasks {
            let found: serde_json::Value =
                serde_json::from_str(&run(user, &["get", task, "--json"])).unwrap();
            assert_eq!(found["status"], "completed", "{found}");
        }
        run(user, &["check", "--repair"]);
    }
}
