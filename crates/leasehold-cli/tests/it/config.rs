use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{assert_output, leasehold};

/// A home and a project, empty at first.
struct TestDirs(tempfile::TempDir);

impl TestDirs {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("home/.config/leasehold")).unwrap();
        std::fs::create_dir_all(folder.path().join("project/below")).unwrap();
        Self(folder)
    }

    fn root(&self) -> PathBuf {
        self.0.path().canonicalize().unwrap()
    }

    fn with(self, user: &str, project: &str) -> Self {
        std::fs::write(self.root().join("home/.config/leasehold/config.toml"), user).unwrap();
        std::fs::write(self.root().join("project/leasehold.toml"), project).unwrap();
        self
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = leasehold(args);
        command.current_dir(self.root().join("project")).env("HOME", self.root().join("home"));
        command
    }

    fn assert_output(&self, name: &str, command: &mut Command) {
        assert_output(name, command, Some(&self.root()));
    }
}

const USER: &str = r#"
[queue]
region = "eu-central-1"
endpoint = "https://user.example"
access_key_id = "me"

[worker]
concurrency = 2

[profiles.fast.worker.polling]
min_interval_ms = 10
max_interval_ms = 1_000

[profiles.slow]
"#;

const PROJECT: &str = r#"
[queue]
endpoint = "https://project.example"
shard_prefix_len = 2
dispatch_mode = "direct"

[worker]
shards = ["00", "01"]
concurrency = 4
lease_secs = 90

[profiles.fast]
worker.polling.max_interval_ms = 500
worker.concurrency = 16
"#;

#[test]
fn defaults_are_shown() {
    let dirs = TestDirs::new();
    dirs.assert_output("config_defaults", &mut dirs.command(&["config", "show"]));
}

#[test]
fn each_settings_layer_overrides_the_ones_before() {
    let dirs = TestDirs::new().with(USER, PROJECT);
    let args = ["config", "show", "--store", "s3://bucket/x", "--profile", "fast"];
    let mut command = dirs.command(&args);
    command
        .env("LEASEHOLD_STORE", "./loses")
        .env("LEASEHOLD_WORKER_LEASE_SECS", "120")
        .env("LEASEHOLD_SHARD_LEASING", "1")
        .env("LEASEHOLD_QUEUE_SECRET_ACCESS_KEY", "hush")
        .env("LEASEHOLD_LOG", "warn")
        .env("LEASEHOLD_WORKER_ID", "");
    dirs.assert_output("config_layers", &mut command);
}

#[test]
fn a_profile_can_be_chosen_by_a_variable() {
    let dirs = TestDirs::new().with("profiles.quick.worker.concurrency = 32", "");
    let mut command = dirs.command(&["config", "show", "--json"]);
    dirs.assert_output("config_profile", command.env("LEASEHOLD_PROFILE", "quick"));
}

#[test]
fn secrets_are_masked() {
    let dirs = TestDirs::new().with("[queue]\naccess_key_id = 'me'\nsecret_access_key = 'hush'", "");
    for args in [["config", "show"].as_slice(), &["config", "show", "--json"]] {
        let printed = dirs.command(args).env("LEASEHOLD_LOG", "trace").output().unwrap();
        let printed = String::from_utf8([printed.stdout, printed.stderr].concat()).unwrap();
        assert!(printed.contains("********") && !printed.contains("hush"), "{printed}");
    }
    let dirs = dirs.with("", "queue.secret_access_key = 1234");
    dirs.assert_output("config_secret_of_wrong_type", &mut dirs.command(&["config", "show"]));
}

#[test]
fn mistakes_in_files_are_explained() {
    for (name, user, project) in [
        ("config_unknown_key", "", "[worker]\n# A slip.\nconcurency = 3"),
        ("config_unknown_key_of_profile", "[profiles.p.wroker]\nconcurrency = 3", ""),
        ("config_unlike_any_key", "colour = 'green'", ""),
        ("config_wrong_type", "", "[worker]\nconcurrency = \"eight\""),
        ("config_out_of_range", "[queue]\nshard_prefix_len = 5", ""),
        ("config_unknown_choice", "", "queue.type = 'ftp'"),
        ("config_broken", "", "[worker]\nconcurrency = 3\nshards = [\"00\""),
    ] {
        let dirs = TestDirs::new().with(user, project);
        dirs.assert_output(name, &mut dirs.command(&["doctor"]));
        assert!(!Path::exists(&dirs.root().join("project/leasehold-data")), "nothing was done");
    }
}

#[test]
fn mistakes_elsewhere_are_explained() {
    let dirs = TestDirs::new().with(USER, PROJECT);
    for (name, variable, value) in [
        ("config_unknown_variable", "LEASEHOLD_CONCURRENCY", "3"),
        ("config_wrong_type_in_variable", "LEASEHOLD_SHARD_LEASING", "perhaps"),
        ("config_out_of_range_in_variable", "LEASEHOLD_SHARD_PREFIX_LEN", "0"),
        ("config_unknown_choice_in_variable", "LEASEHOLD_QUEUE_TYPE", "ftp"),
        ("config_missing_profile", "LEASEHOLD_PROFILE", "fats"),
        ("config_half_a_key", "LEASEHOLD_WORKER_ID", "w-1"),
    ] {
        dirs.assert_output(name, dirs.command(&["config", "show"]).env(variable, value));
    }
    let dirs = TestDirs::new();
    dirs.assert_output(
        "config_no_profiles",
        &mut dirs.command(&["config", "show", "--profile", "x", "--json"]),
    );
    dirs.assert_output("config_wrong_flag", &mut dirs.command(&["config", "show", "--store", ""]));
}

#[test]
fn variables_that_are_not_ours_are_ignored() {
    let dirs = TestDirs::new();
    for (variable, value, is_reported) in [
        ("LEASEHOLD_FOO", "1", true),
        ("LEASEHOLD_SERVICE_HOST", "10.0.0.1", false),
        ("LEASEHOLD_PORT", "tcp://10.0.0.1:80", false),
        ("LEASEHOLD_PORT_80_TCP_ADDR", "10.0.0.1", false),
        ("LEASEHOLD_DASHBOARD_PORT", "tcp://10.0.0.1:80", false),
        ("LEASEHOLD_DASHBOARD_SERVICE_PORT_HTTP", "80", false),
    ] {
        let output = dirs.command(&["config", "show"]).env(variable, value).output().unwrap();
        let printed = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{variable}: {printed}");
        let warning = format!("warning: unknown variable `{variable}` is ignored");
        assert_eq!(printed.starts_with(&warning), is_reported, "{printed}");
        assert_eq!(printed.is_empty(), !is_reported, "{printed}");
    }
    for (variable, value) in [("LEASEHOLD_PORT", "8080"), ("LEASEHOLD_CONCURENCY", "3")] {
        let output = dirs.command(&["config", "show"]).env(variable, value).output().unwrap();
        assert_eq!(output.status.code(), Some(64), "{variable} is nearly a setting");
    }
}

#[test]
fn passwords_in_addresses_are_masked() {
    let dirs = TestDirs::new().with("queue.endpoint = 'https://me:hush@store.example'", "");
    for args in [["config", "show"].as_slice(), &["config", "show", "--json"]] {
        let mut command = dirs.command(args);
        command.args(["--store", "s3://me:hush@bucket/x"]).env("LEASEHOLD_LOG", "trace");
        let printed = command.output().unwrap();
        let printed = String::from_utf8([printed.stdout, printed.stderr].concat()).unwrap();
        for masked in ["https://********@store.example", "s3://********@bucket/x"] {
            assert!(printed.contains(masked) && !printed.contains("hush"), "{printed}");
        }
    }
    let mut wrong = dirs.command(&["config", "show"]);
    let printed = wrong.env("LEASEHOLD_QUEUE_TYPE", "https://me:hush@x").output().unwrap();
    let printed = String::from_utf8(printed.stderr).unwrap();
    assert!(printed.contains("https://********@x") && !printed.contains("hush"), "{printed}");
}

/// Values outside the printed range are refused by that range, and those at its ends are accepted.
#[test]
fn the_range_of_lease_secs_is_the_same_in_help_reference_and_error() {
    let dirs = TestDirs::new();
    let worker = |secs: &str| {
        let mut worker = dirs.command(&["worker", "--drain", "--exec", "a=true", "--lease-secs", secs]);
        let output = worker.output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    for secs in ["0", "2", "86401"] {
        let (code, printed) = worker(secs);
        let range = "worker.lease_secs must be a whole number from 3 to 86400";
        assert_eq!(printed, format!("error: {range}, not `{secs}` (--lease-secs)\n"));
        assert_eq!(code, Some(64));
    }
    for secs in ["3", "86400"] {
        let (code, printed) = worker(secs);
        assert_eq!(code, Some(0), "{secs}: {printed}");
    }
    let help = dirs.command(&["worker", "--help"]).output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(help.contains("unless it is renewed, 3–86400 [default: 60]"), "{help}");
    let reference = include_str!("../../../../docs/reference/settings.md");
    assert!(reference.contains("| `lease_secs` | a whole number from 3 to 86400 | `60` |"));
}

#[test]
fn config_paths_lists_all_searched_paths() {
    let dirs = TestDirs::new().with("", "not TOML");
    let mut command = dirs.command(&["config", "paths"]);
    dirs.assert_output("config_paths", command.current_dir(dirs.root().join("project/below")));
    let mut command = dirs.command(&["config", "paths", "--json"]);
    dirs.assert_output("config_paths_elsewhere", command.env("XDG_CONFIG_HOME", dirs.root().join("xdg")));
}

#[test]
fn the_store_of_a_project_is_found_from_a_subdirectory() {
    let dirs = TestDirs::new().with("", "queue.store = './data'");
    let done = dirs.command(&["init"]).current_dir(dirs.root().join("project/below")).output().unwrap();
    assert!(done.status.success());
    assert!(dirs.root().join("project/data").is_dir());
}
