//! Outposts from the command line: the commands of the guide on three machines; one setting for both kinds of queue.

use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::{leasehold, output_of};

fn shell(script: &str, home: &Path) -> String {
    let mut shell = Command::new("bash");
    shell.args(["-euo", "pipefail", "-c", script]).env_clear().current_dir(home).env("HOME", home);
    shell.env("PATH", std::env::var_os("PATH").unwrap());
    let output = shell.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_commands_of_the_guide_can_be_typed_on_three_machines() {
    let guide = include_str!("../../../../docs/guides/outpost.md");
    let blocks = guide.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let field = tempfile::tempdir().unwrap();
    let bucket = field.path().join("bucket");
    // A folder replaces the bucket, and the supervisor runs in the background.
    let guide = blocks.collect::<String>();
    assert!(guide.contains("s3://field-data/river") && guide.contains("leasehold outpost run\n"));
    let guide = guide
        .replace("s3://field-data/river ", &format!("{} ", bucket.display()))
        .replace("leasehold outpost run\n", "\"$LEASEHOLD\" outpost run > /dev/null 2>&1 & RUN=$!\n");
    for node in ["pi-1", "pi-2", "pi-3"] {
        let home = field.path().join(node);
        fs::create_dir(&home).unwrap();
        let program = "#!/bin/sh\ncat > /dev/null\necho 42\n";
        fs::write(home.join("measure.sh"), program).unwrap();
        fs::set_permissions(home.join("measure.sh"), std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .unwrap();
        let script = format!(
            "LEASEHOLD='{}'\nleasehold() {{ \"$LEASEHOLD\" \"$@\"; }}\n{}\nkill $RUN\nwait $RUN\n",
            env!("CARGO_BIN_EXE_leasehold"),
            guide.replace("--node pi-1", &format!("--node {node}"))
        );
        let printed = shell(&script, &home);
        assert!(printed.contains("2 completed") || printed.matches("1 completed").count() == 2, "{printed}");
    }
    let mut list = leasehold(&["list", "--json"]);
    list.env("LEASEHOLD_STORE", &bucket).env("LEASEHOLD_QUEUE_CAMPAIGN", "spring/pictures");
    let listed = String::from_utf8(list.output().unwrap().stdout).unwrap();
    let tasks: Vec<Value> = listed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(tasks.len(), 6, "{listed}");
    for task in tasks {
        assert_eq!((&task["status"], &task["output"]), (&"completed".into(), &42.into()), "{task}");
    }
}

#[test]
fn init_can_be_repeated() {
    let root = tempfile::tempdir().unwrap();
    let (data, store) = (root.path().join("data"), root.path().join("bucket"));
    let run = |args: &[&str]| {
        let mut command = leasehold(args);
        command.env("LEASEHOLD_STORE", &store).env("LEASEHOLD_OUTPOST_DATA", &data);
        command.env("LEASEHOLD_QUEUE_CAMPAIGN", "survey/photos").output().unwrap()
    };
    let node = || -> Value { serde_json::from_slice(&run(&["outpost", "init", "--json"]).stdout).unwrap() };
    let first = node();
    assert!(first["node"].as_str().is_some_and(|name| name.starts_with("node-")), "{first}");
    assert_eq!(node(), first, "the node that is there");
    let other = run(&["outpost", "init", "--node", "pi-9"]);
    assert_eq!(other.status.code(), Some(64));
    let missing = run(&["outpost", "requeue", "3f2c9a4e-0d1b-4c6f-9a57-2e8b6f10c4d3"]);
    assert!(String::from_utf8_lossy(&missing.stderr).contains("no task"), "{missing:?}");
}

#[test]
fn one_setting_decides_where_a_program_works() {
    let root = tempfile::tempdir().unwrap();
    let run = |kind: &str, args: &[&str]| {
        let mut command = leasehold(args);
        command
            .env("LEASEHOLD_STORE", root.path().join("bucket"))
            .env("LEASEHOLD_QUEUE_CAMPAIGN", "spring/pictures")
            .env("LEASEHOLD_OUTPOST_DATA", root.path().join("data"))
            .env("LEASEHOLD_QUEUE_TYPE", kind);
        command
    };
    let text = |mut command: Command| {
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    text(run("bucket", &["outpost", "init", "--node", "pi-1", "--consistency", "relaxed"]));
    for kind in ["bucket", "filesystem"] {
        let id = text(run(kind, &["submit", "-t", "measure", "-i", "\"picture\""]));
        text(run(kind, &["worker", "--exec", "measure=cat", "--drain"]));
        let task: Value = serde_json::from_str(&text(run(kind, &["get", &id, "--json"]))).unwrap();
        assert_eq!((&task["status"], &task["output"]), (&"completed".into(), &"picture".into()), "{kind}");
    }
    text(run("filesystem", &["outpost", "sync"]));
    assert_eq!(text(run("bucket", &["list", "--json"])).lines().count(), 2, "both are in the bucket");
    let refused = output_of(&mut run("folder", &["submit", "-t", "measure"]));
    assert!(refused.contains("queue.type must be `bucket` or `filesystem`, not `folder`"), "{refused}");
    assert!(refused.ends_with("exit code 64"), "{refused}");
    let refused = output_of(&mut run("filesystem", &["list"]));
    let expected =
        "`leasehold list` does not work on an outpost (`queue.type` is `filesystem`); set `queue.type`";
    assert!(refused.contains(expected) && refused.ends_with("exit code 64"), "{refused}");
    let refused = output_of(&mut run("filesystem", &["cancel", "--type", "measure"]));
    assert!(refused.contains("`leasehold cancel --type` does not work on an outpost"), "{refused}");
}

#[test]
fn mistakes_are_explained() {
    let root = tempfile::tempdir().unwrap();
    let run = |args: &[&str]| {
        let mut command = leasehold(args);
        command.env("LEASEHOLD_STORE", root.path().join("bucket"));
        command.env("LEASEHOLD_OUTPOST_DATA", root.path().join("data"));
        output_of(&mut command)
    };
    for (args, words) in [
        (&["outpost", "status"][..], "set queue.campaign, like `survey/photos`"),
        (&["outpost", "status", "--campaign", "spring"], "`spring` must be of the form `campaign/queue`"),
        (&["outpost", "status", "--campaign", "../x"], "must not start with a dot"),
        (&["outpost", "status", "--campaign", "spring/pictures"], "leasehold outpost init"),
        (&["outpost", "init", "--campaign", "a/b", "--consistency", "loose"], "use strict or relaxed"),
        (&["outpost", "init", "--campaign", "a/b", "--node", "a/b"], "must have only letters"),
    ] {
        let printed = run(args);
        assert!(printed.contains(words), "{args:?}: {printed}");
    }
}

#[test]
fn the_given_number_of_attempts_is_used_on_an_outpost() {
    let root = tempfile::tempdir().unwrap();
    let run = |args: &[&str]| {
        let mut command = leasehold(args);
        command.env("LEASEHOLD_STORE", root.path().join("bucket"));
        command.env("LEASEHOLD_OUTPOST_DATA", root.path().join("data"));
        command.env("LEASEHOLD_QUEUE_CAMPAIGN", "survey/photos").env("LEASEHOLD_QUEUE_TYPE", "filesystem");
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    run(&["outpost", "init"]);
    let attempts = |args: &[&str]| {
        let id = run(args);
        let task: Value = serde_json::from_str(&run(&["get", &id, "--json"])).unwrap();
        task["max_attempts"].as_u64().unwrap()
    };
    assert_eq!(attempts(&["outpost", "submit", "-t", "measure"]), 5, "the default of an outpost");
    for number in [4, 5] {
        let text = number.to_string();
        assert_eq!(attempts(&["outpost", "submit", "-t", "measure", "--max-attempts", &text]), number);
        assert_eq!(attempts(&["submit", "-t", "measure", "--max-attempts", &text]), number);
    }
    assert!(run(&["outpost", "submit", "--help"]).contains("Maximum number of attempts [default: 5]"));
}

#[test]
fn options_without_effect_on_an_outpost_are_refused() {
    let root = tempfile::tempdir().unwrap();
    let run = |args: &[&str]| {
        let mut command = leasehold(args);
        command.env("LEASEHOLD_STORE", root.path().join("bucket"));
        command.env("LEASEHOLD_OUTPOST_DATA", root.path().join("data"));
        command.env("LEASEHOLD_QUEUE_CAMPAIGN", "survey/photos").env("LEASEHOLD_QUEUE_TYPE", "filesystem");
        output_of(&mut command)
    };
    assert!(run(&["outpost", "init"]).ends_with("exit code 0"));
    let of_worker = [
        &["--shards", "1,2"][..],
        &["--shard-range", "0-3"],
        &["--shard-leasing"],
        &["--direct"],
        &["--lease-secs", "30"],
        &["--serve-pieces"],
    ];
    let of_submit = [&["--wait"][..], &["--direct"], &["--file", "a=b"], &["--key=k", "--key-retry-failed"]];
    let work = (["worker", "work"], &["--exec", "measure=cat", "--drain"][..], &of_worker[..]);
    let submit = (["submit", "submit"], &["-t", "measure"][..], &of_submit[..]);
    for ([on_both, on_outpost], args, options) in [work, submit] {
        let help = run(&["outpost", on_outpost, "--help"]);
        for option in options {
            let flag = option.last().filter(|flag| flag.starts_with("--")).unwrap_or(&option[0]);
            let printed = run(&[&[on_both], args, option].concat());
            let words = format!("{flag} needs the bucket; it cannot be used on an outpost");
            assert!(printed.contains(&words) && printed.ends_with("exit code 64"), "{option:?}: {printed}");
            assert!(!help.contains(flag), "{flag}: {help}");
            let printed = run(&[&["outpost", on_outpost], args, option].concat());
            let words = format!("unexpected argument '{flag}'");
            assert!(printed.contains(&words) && printed.ends_with("exit code 64"), "{option:?}: {printed}");
        }
    }
}

#[test]
fn artifacts_on_an_outpost_are_refused_with_the_reason() {
    let root = tempfile::tempdir().unwrap();
    let run = |args: &[&str]| {
        let mut command = leasehold(args);
        command.env("LEASEHOLD_STORE", root.path().join("bucket"));
        command.env("LEASEHOLD_OUTPOST_DATA", root.path().join("data"));
        command.env("LEASEHOLD_QUEUE_CAMPAIGN", "survey/photos").env("LEASEHOLD_QUEUE_TYPE", "filesystem");
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    run(&["outpost", "init", "--consistency", "relaxed"]);
    let id = run(&["outpost", "submit", "-t", "measure"]);
    let program = root.path().join("measure.sh");
    std::fs::write(&program, "#!/bin/sh\necho 7 > \"$LEASEHOLD_RESULTS/size\"\n").unwrap();
    std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    run(&["outpost", "work", "--drain", "--exec", &format!("measure={}", program.display())]);
    let task: Value = serde_json::from_str(&run(&["get", &id, "--json"])).unwrap();
    assert_eq!(task["status"], "failed");
    let error = task["error"].as_str().unwrap();
    assert!(error.contains("artifacts are not supported on an outpost"), "{error}");
    for (command, refuted) in [("work", "LEASEHOLD_RESULTS"), ("submit", "within a day")] {
        let help = run(&["outpost", command, "--help"]);
        assert!(!help.contains(refuted), "{help}");
    }
}
