//! Artifacts in the store, in the cache and in tasks.

use serde_json::Value;
use std::fs;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::common::output_of;
use crate::fixture::QueueFixture;
use crate::until_stopped::RunningCommand;

const SECRET: &str = "a secret of the tests, long enough";

/// Queue in a folder, with a cache and files beside it.
struct ArtifactFixture {
    fixture: QueueFixture,
}

impl ArtifactFixture {
    fn new() -> Self {
        Self::of(QueueFixture::new())
    }

    fn of(fixture: QueueFixture) -> Self {
        fs::create_dir(fixture.path().join(".leasehold")).unwrap();
        Self { fixture }
    }

    /// Path beside the objects.
    fn path(&self, name: &str) -> PathBuf {
        self.fixture.path().canonicalize().unwrap().join(".leasehold").join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    fn cache(&self) -> PathBuf {
        self.path("cache")
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = self.fixture.command(args);
        command.env("LEASEHOLD_PIECES_CACHE", self.cache());
        command
    }

    fn run(&self, args: &[&str]) -> String {
        let output = self.command(args).output().unwrap();
        assert!(output.status.success(), "{args:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.run(args)).unwrap()
    }

    fn assert_filtered_output(&self, name: &str, args: &[&str]) {
        self.fixture.compare(name, &output_of(&mut self.command(args)));
    }

    /// Creates a file of this many bytes with varying content.
    fn file(&self, name: &str, bytes: u32) -> String {
        let path = self.path(name);
        fs::write(&path, contents(bytes)).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// Puts such a file into the store.
    fn put(&self, name: &str, bytes: u32) -> String {
        self.run(&["artifact", "put", &self.file(name, bytes)])
    }

    /// True if a folder is empty: no part of a file was left, under any name.
    fn has_nothing_in(&self, folder: &str) -> bool {
        fs::read_dir(self.path(folder)).unwrap().next().is_none()
    }
}

fn contents(bytes: u32) -> Vec<u8> {
    (0..bytes).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

/// Requests that a worker has made about artifacts.
fn fetches(summary: &Value) -> u64 {
    let rows = summary["requests"].as_array().unwrap();
    rows.iter().filter(|row| row["purpose"] == "fetch").map(|row| row["requests"].as_u64().unwrap()).sum()
}

#[test]
fn a_file_is_put_listed_and_got_again() {
    let artifacts = ArtifactFixture::new();
    let (file, out) = (artifacts.file("photo.raw", 3_000_000), artifacts.text("out.raw"));
    artifacts.assert_filtered_output("artifact_put", &["artifact", "put", &file]);
    artifacts.assert_filtered_output("artifact_put_again_json", &["artifact", "put", &file, "--json"]);
    let hash = artifacts.run(&["artifact", "put", &file, "--keep", "90d", "--name", "other"]);
    artifacts.assert_filtered_output("artifact_get_json", &["artifact", "get", &hash, "-o", &out, "--json"]);
    assert_eq!(fs::read(&out).unwrap(), contents(3_000_000));
    fs::remove_file(&out).unwrap();
    artifacts.assert_filtered_output("artifact_get_cached", &["artifact", "get", &hash, "-o", &out, "-v"]);
    assert_eq!(fs::read(&out).unwrap(), contents(3_000_000));
    let elsewhere = ["--cache", &artifacts.text("other"), "-v"];
    let get = ["artifact", "get", &hash, "-o", &out];
    artifacts.assert_filtered_output("artifact_get_verbose", &[&get[..], &elsewhere].concat());
    let printed = artifacts.command(&["artifact", "get", &hash, "-o", "-"]).output().unwrap();
    assert_eq!(printed.stdout, contents(3_000_000));
    let sha =
        ["artifact", "put", &artifacts.file("small", 5), "--hash", "sha256", "--media-type", "text/csv"];
    artifacts.assert_filtered_output("artifact_put_sha256_json", &[&sha[..], &["--json"]].concat());
    artifacts.assert_filtered_output("artifact_ls", &["artifact", "ls"]);
    artifacts.assert_filtered_output("artifact_ls_json", &["artifact", "ls", "--json"]);
    artifacts.assert_filtered_output("artifact_ls_long", &["artifact", "ls", "--long"]);
    artifacts.assert_filtered_output("artifact_ls_long_json", &["artifact", "ls", "--long", "--json"]);
    artifacts.assert_filtered_output("artifact_prune", &["artifact", "prune"]);
    artifacts.assert_filtered_output("artifact_prune_json", &["artifact", "prune", "--json"]);
}

#[test]
fn a_store_without_artifacts_reports_it() {
    ArtifactFixture::new().assert_filtered_output("artifact_ls_nothing", &["artifact", "ls"]);
}

#[test]
fn a_failed_get_is_explained_and_leaves_no_file() {
    let artifacts = ArtifactFixture::new();
    let hash = artifacts.put("photo.raw", 100_000);
    fs::create_dir(artifacts.path("here")).unwrap();
    let out = artifacts.text("here/out");
    let get = |name: &str, hash: &str, out: &str| {
        artifacts.assert_filtered_output(name, &["artifact", "get", hash, "-o", out]);
        assert!(artifacts.has_nothing_in("here"), "{name} has left something");
    };
    get("artifact_missing", &hash.replace(&hash[..4], "0000"), &out);
    get("artifact_bad_hash", "photo.raw", &out);
    get("artifact_no_folder", &hash, &artifacts.text("nowhere/out"));
    get("artifact_to_folder", &hash, &artifacts.text("here"));
    get("artifact_to_device", &hash, "/dev/null");
    artifacts.assert_filtered_output("artifact_get_both", &["artifact", "get", &hash, "-o", "-", "--json"]);
    artifacts
        .assert_filtered_output("artifact_put_nothing", &["artifact", "put", &artifacts.text("nothing")]);
    artifacts.assert_filtered_output("artifact_put_folder", &["artifact", "put", &artifacts.text("here")]);
    artifacts.assert_filtered_output(
        "artifact_bad_keep",
        &["artifact", "put", &artifacts.text("photo.raw"), "--keep", "soon"],
    );
    let mut small = artifacts.command(&["artifact", "get", &hash, "-o", &out]);
    artifacts
        .fixture
        .compare("artifact_small_cache", &output_of(small.env("LEASEHOLD_PIECES_CACHE_BYTES", "99999")));
    let mut homeless = artifacts.fixture.command(&["artifact", "get", &hash, "-o", &out]);
    artifacts.fixture.compare("artifact_no_cache", &output_of(&mut homeless));
    assert!(artifacts.has_nothing_in("here"));
    let object = |name| artifacts.fixture.objects().into_iter().find(|path| path.ends_with(name)).unwrap();
    fs::write(object("/data"), vec![0; 100_000]).unwrap();
    get("artifact_corrupt_data", &hash, &out);
    let manifest = object("/manifest.json");
    fs::write(manifest, "{").unwrap();
    get("artifact_corrupt", &hash, &out);
    artifacts.assert_filtered_output("artifact_ls_corrupt", &["artifact", "ls", "--long"]);
}

#[test]
fn an_artifact_with_a_corrupt_manifest_is_quarantined() {
    let artifacts = ArtifactFixture::of(QueueFixture::of_objects());
    artifacts.run(&["init"]);
    artifacts.put("photo.raw", 10);
    let root = artifacts.fixture.path().display().to_string();
    let manifests =
        || artifacts.fixture.objects().into_iter().filter(|path| path.ends_with("/manifest.json"));
    let manifest = manifests().next().unwrap();
    let key = manifest[root.len() + 1..].to_owned();
    let quarantine = |key: &str| output_of(&mut artifacts.command(&["quarantine", key]));
    assert!(quarantine(&key).contains(&format!("`{key}` is not corrupt\n--- exit code 64")));
    fs::write(&manifest, "{").unwrap();
    let checked = output_of(&mut artifacts.command(&["check"]));
    assert!(checked.contains(&format!("leasehold quarantine {key}")), "{checked}");
    artifacts.fixture.compare("quarantine_manifest", &quarantine(&key));
    let copy = manifests().find(|path| path.contains("/quarantine/")).unwrap();
    assert_eq!((fs::read_to_string(&copy).unwrap().as_str(), copy.ends_with(&key)), ("{", true));
    let checked = output_of(&mut artifacts.command(&["check"]));
    assert!(checked.ends_with("no inconsistencies\n--- exit code 0"), "{checked}");
    // A delete of its data may be under way.
    let again = output_of(&mut artifacts.command(&["artifact", "put", &artifacts.text("photo.raw")]));
    assert!(again.contains("exit code 75"), "{again}");
}

#[test]
fn a_path_that_cannot_be_written_is_named() {
    let artifacts = ArtifactFixture::new();
    let hash = artifacts.put("photo.raw", 10);
    // Not even root can create files there.
    let output = artifacts.command(&["artifact", "get", &hash, "-o", "/sys/leasehold-out"]).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.starts_with("error: cannot write /sys/leasehold-out: "), "{stderr}");
    assert_eq!(output.status.code(), Some(77), "{stderr}");
}

/// Command with a limit on the file size, in blocks of 512 bytes: as on a full disk, a write fails half-way.
fn with_file_size_limit(command: &Command, blocks: u32) -> Command {
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$0\" \"$@\""));
    shell.arg(command.get_program()).args(command.get_args()).env_clear().current_dir("/");
    shell.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    shell
}

#[test]
fn a_full_disk_leaves_no_partial_file() {
    let artifacts = ArtifactFixture::new();
    let hash = artifacts.put("photo.raw", 3_000_000);
    fs::create_dir(artifacts.path("here")).unwrap();
    let get = artifacts.command(&["artifact", "get", &hash, "-o", &artifacts.text("here/out")]);
    // First the cache has no room, then the destination.
    artifacts.fixture.compare("artifact_full_cache", &output_of(&mut with_file_size_limit(&get, 1_000)));
    assert!(artifacts.has_nothing_in("here"));
    artifacts.run(&["artifact", "get", &hash, "-o", &artifacts.text("elsewhere")]);
    let printed = output_of(&mut with_file_size_limit(&get, 1_000));
    artifacts.fixture.compare("artifact_full_place", &printed);
    assert!(artifacts.has_nothing_in("here"));
    let mut printing = artifacts.command(&["artifact", "get", &hash, "-o", "-"]);
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let output = printing.stdout(full).stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("cannot write to standard output: No space left"), "{stderr}");
    assert_eq!(output.status.code(), Some(75));
}

#[test]
fn a_task_gets_input_files_and_publishes_results() {
    let artifacts = ArtifactFixture::new();
    fs::write(artifacts.path("words.txt"), "hello").unwrap();
    let hash = artifacts.run(&["artifact", "put", &artifacts.text("words.txt")]);
    let id = artifacts.run(&["submit", "-t", "loud", "--artifact", &format!("text={hash}")]);
    let loud = "loud=sh -c 'tr a-z A-Z < \"$LEASEHOLD_ARTIFACTS/text\" > \"$LEASEHOLD_RESULTS/loud.txt\"'";
    artifacts.run(&["worker", "--id", "w1", "--drain", "--exec", loud]);
    let task = artifacts.json(&["get", &id, "--json"]);
    assert_eq!((&task["status"], &task["artifacts"]["text"]), (&"completed".into(), &hash.clone().into()));
    let result = task["results"]["loud.txt"].as_str().unwrap();
    assert_eq!(artifacts.run(&["artifact", "get", result, "-o", "-"]), "HELLO");
    artifacts.assert_filtered_output("get_with_files", &["get", &id]);
    let listed = artifacts.json(&["list", "--json"]);
    assert_eq!(listed["results"]["loud.txt"], result);
    // A cached artifact costs no request.
    artifacts.run(&["submit", "-t", "count", "--artifact", &format!("text={hash}")]);
    let count = "count=sh -c 'wc -c < \"$LEASEHOLD_ARTIFACTS/text\"'";
    let summary = artifacts.json(&["worker", "--id", "w1", "--drain", "--exec", count, "--json"]);
    assert_eq!((&summary["counts"]["completed"], fetches(&summary)), (&1.into(), 0), "{summary}");
}

#[test]
fn local_files_are_published_first() {
    let artifacts = ArtifactFixture::new();
    fs::write(artifacts.path("words.txt"), "hello").unwrap();
    let file = format!("text={}", artifacts.text("words.txt"));
    let id = artifacts.run(&["submit", "-t", "count", "--file", &file]);
    let hash = artifacts.json(&["get", &id, "--json"])["artifacts"]["text"].as_str().unwrap().to_owned();
    assert_eq!(artifacts.run(&["artifact", "get", &hash, "-o", "-"]), "hello");
    let line = format!("{{\"task_type\": \"count\", \"artifacts\": {{\"text\": \"{hash}\"}}}}\n");
    fs::write(artifacts.path("tasks.ndjson"), line).unwrap();
    artifacts.run(&["submit-many", &artifacts.text("tasks.ndjson")]);
    let count = "count=sh -c 'wc -c < \"$LEASEHOLD_ARTIFACTS/text\"'";
    artifacts.run(&["worker", "--drain", "--exec", count]);
    let outputs = artifacts.run(&["list", "--status", "completed", "--json"]);
    assert_eq!(outputs.matches("\"output\":5").count(), 2, "{outputs}");
    let objects = artifacts.fixture.objects();
    let hash = format!("text={hash}");
    for (name, args) in [
        ("submit_bad_artifact", ["--artifact", "text=abc"].as_slice()),
        ("submit_artifact_unnamed", &["--artifact", "abc"]),
        ("submit_artifact_misnamed", &["--artifact", "a/b=abc"]),
        ("submit_no_file", &["--file", "text=/no/such/file"]),
        ("submit_files_of_one_name", &["--file", &file, "--artifact", &hash]),
    ] {
        artifacts.assert_filtered_output(name, &[&["submit", "-t", "count"], args].concat());
        assert_eq!(artifacts.fixture.objects(), objects, "{name} has written something");
    }
}

#[test]
fn a_task_with_a_missing_artifact_fails_permanently() {
    let artifacts = ArtifactFixture::new();
    let id = artifacts.run(&["submit", "-t", "count", "--artifact", &format!("text={}", "0".repeat(64))]);
    artifacts.run(&["worker", "--drain", "--exec", "count=true"]);
    let task = artifacts.json(&["get", &id, "--json"]);
    assert_eq!((&task["status"], &task["attempt"]), (&"failed".into(), &1.into()));
    let error = task["error"].as_str().unwrap();
    assert!(error.starts_with("artifact `text` was not fetched: there is no artifact 0000"), "{error}");
}

#[test]
fn a_result_with_an_invalid_name_fails_the_task() {
    let artifacts = ArtifactFixture::new();
    let id = artifacts.run(&["submit", "-t", "odd"]);
    artifacts.run(&["worker", "--drain", "--exec", "odd=sh -c 'echo 1 > \"$LEASEHOLD_RESULTS/a b\"'"]);
    let task = artifacts.json(&["get", &id, "--json"]);
    assert_eq!((&task["status"], &task["attempt"]), (&"failed".into(), &1.into()));
    let error = task["error"].as_str().unwrap();
    assert!(error.contains("name of a result `a b`"), "{error}");
}

#[test]
fn more_results_than_a_task_can_name_are_not_sent() {
    let artifacts = ArtifactFixture::new();
    let id = artifacts.run(&["submit", "-t", "many"]);
    let many = "many=sh -c 'for n in $(seq 101); do echo $n > \"$LEASEHOLD_RESULTS/$n\"; done'";
    artifacts.run(&["worker", "--drain", "--exec", many]);
    let task = artifacts.json(&["get", &id, "--json"]);
    assert_eq!((&task["status"], &task["attempt"]), (&"failed".into(), &1.into()));
    assert!(
        task["error"].as_str().unwrap().starts_with("a task can have at most 100 results, got 101"),
        "{task}"
    );
    assert_eq!(artifacts.run(&["artifact", "ls", "--json"]), "");
}

#[test]
fn a_pipe_is_no_file_and_is_not_waited_for() {
    let artifacts = ArtifactFixture::new();
    let pipe = artifacts.text("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let output = artifacts.command(&["artifact", "put", &pipe]).output().unwrap();
    assert_eq!(output.status.code(), Some(64));
    assert!(String::from_utf8_lossy(&output.stderr).contains("is not a file"), "{output:?}");
}

#[test]
fn a_program_may_print_much_before_it_has_read_its_input() {
    let artifacts = ArtifactFixture::new();
    fs::write(artifacts.path("input.json"), format!("\"{}\"", "x".repeat(200_000))).unwrap();
    let input = format!("@{}", artifacts.text("input.json"));
    let id = artifacts.run(&["submit", "-t", "talk", "-i", &input, "--timeout", "20", "--max-attempts", "1"]);
    let program = "talk=sh -c 'head -c 200000 /dev/zero | tr \"\\0\" a; cat > /dev/null'";
    artifacts.run(&["worker", "--drain", "--exec", program]);
    let task = artifacts.json(&["get", &id, "--json"]);
    assert_eq!(task["status"], "completed", "{}", task["error"]);
    assert_eq!(task["output"].as_str().unwrap(), "a".repeat(200_000));
}

#[test]
fn a_program_that_prints_too_much_fails_with_advice() {
    let artifacts = ArtifactFixture::new();
    let id = artifacts.run(&["submit", "-t", "talk"]);
    artifacts.run(&["worker", "--drain", "--exec", "talk=head -c 5000000 /dev/zero"]);
    let task = artifacts.json(&["get", &id, "--json"]);
    assert_eq!((&task["status"], &task["attempt"]), (&"failed".into(), &1.into()));
    assert!(task["error"].as_str().unwrap().ends_with("a file in LEASEHOLD_RESULTS"), "{task}");
}

#[test]
fn programs_can_use_the_command_line_and_leave_nothing_behind() {
    let artifacts = ArtifactFixture::new();
    let places = artifacts.path("places");
    fs::create_dir(&places).unwrap();
    let child = format!(
        "parent=sh -c '\"{}\" submit -t child --store \"{}\" && mkdir \"$LEASEHOLD_RESULTS/sub\"'",
        env!("CARGO_BIN_EXE_leasehold"),
        artifacts.fixture.path().display()
    );
    let id = artifacts.run(&["submit", "-t", "parent"]);
    let mut worker = artifacts.command(&["worker", "--drain", "--exec", &child]);
    assert!(worker.env("TMPDIR", &places).output().unwrap().status.success());
    let task = artifacts.json(&["get", &id, "--json"]);
    assert_eq!(task["status"], "completed", "{task}");
    assert_eq!(artifacts.run(&["list", "--type", "child", "--json"]).lines().count(), 1);
    assert!(artifacts.has_nothing_in("places"));
    assert!(!artifacts.cache().exists(), "a cache was made although nothing was fetched");
}

#[test]
fn the_commands_of_the_guide_can_be_typed() {
    let guide = include_str!("../../../../docs/guides/artifacts.md");
    let blocks = guide.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let script = format!("leasehold() {{ '{}' \"$@\"; }}\n", env!("CARGO_BIN_EXE_leasehold"));
    let script = script + &blocks.collect::<String>();
    assert!(script.contains("artifact prune"));
    let artifacts = ArtifactFixture::new();
    let mut shell = Command::new("bash");
    shell.args(["-euo", "pipefail", "-c", &script]).env_clear().current_dir(artifacts.fixture.path());
    shell.env("PATH", std::env::var_os("PATH").unwrap()).env("HOME", artifacts.fixture.path());
    let output = shell.output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// Fetches an artifact into another cache, and returns the JSON of the fetch.
fn fetch_into_other_cache(artifacts: &ArtifactFixture, hash: &str, cache: &str) -> Value {
    let (out, cache) = (artifacts.text("out"), artifacts.text(cache));
    let mut get = artifacts.command(&["artifact", "get", hash, "-o", &out, "--cache", &cache, "--json"]);
    let output = get.env("LEASEHOLD_PIECES_SECRET", SECRET).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn pieces_come_from_a_peer_that_serves_them() {
    let artifacts = ArtifactFixture::new();
    let hash = artifacts.put("photo.raw", 3_000_000);
    artifacts.run(&["artifact", "get", &hash, "-o", &artifacts.text("out")]);
    let mut serve = artifacts.command(&["serve-pieces", "--id", "shelf"]);
    serve.env("LEASEHOLD_PIECES_SECRET", SECRET);
    let mut serve = RunningCommand::start(serve);
    serve.until("shelf serves ");
    assert_eq!(fs::read_to_string(artifacts.cache().join("serving")).unwrap(), "shelf");
    let got = fetch_into_other_cache(&artifacts, &hash, "other");
    assert_eq!(fs::read(artifacts.path("out")).unwrap(), contents(3_000_000));
    assert_eq!(
        (&got["fetched"]["peer_bytes"], &got["fetched"]["origin_bytes"]),
        (&3_000_000.into(), &0.into())
    );
    let peer =
        got["fetched"]["peers"].as_array().unwrap().iter().find(|peer| peer["peer"] == "shelf").unwrap();
    assert_eq!((&peer["pieces"], &peer["failures"]["corrupt"]), (&3.into(), &0.into()));
    let mut second = artifacts.command(&["serve-pieces", "--id", "second"]);
    artifacts.fixture.compare("serve_pieces_twice", &output_of(&mut second));
    // A client without the secret gets nothing from the peer, and everything from the store.
    let mut stranger = artifacts.command(&[
        "artifact",
        "get",
        &hash,
        "-o",
        &artifacts.text("out"),
        "--cache",
        &artifacts.text("stranger"),
        "--json",
    ]);
    stranger.env("LEASEHOLD_PIECES_DOWNLOAD_BYTES_PER_SEC", "2000000");
    let report: Value = serde_json::from_slice(&stranger.output().unwrap().stdout).unwrap();
    assert_eq!(report["fetched"]["blamed"][0]["peer"], "shelf", "{report}");
    assert_eq!(report["fetched"]["origin_bytes"], 3_000_000, "{report}");
    let printed = serve.interrupt();
    assert!(
        printed.contains(" requests were answered, with 3") && printed.ends_with("exit code 0"),
        "{printed}"
    );
    assert!(!artifacts.cache().join("serving").exists());
    assert!(!printed.contains(SECRET));
}

#[test]
fn a_fetch_does_not_ask_the_server_of_its_own_cache() {
    let artifacts = ArtifactFixture::new();
    let hash = artifacts.put("photo.raw", 6_000_000);
    let mut serve = RunningCommand::start(artifacts.command(&["serve-pieces", "--id", "self"]));
    serve.until("self serves ");
    let mut get = artifacts.command(&["artifact", "get", &hash, "-o", &artifacts.text("out"), "--json"]);
    get.env("LEASEHOLD_PIECES_DOWNLOAD_BYTES_PER_SEC", "2000000");
    let report: Value = serde_json::from_slice(&get.output().unwrap().stdout).unwrap();
    assert_eq!(report["fetched"]["peers"].as_array().unwrap().len(), 1, "{report}");
    let printed = serve.interrupt();
    assert!(printed.contains("0 of 0 requests were answered"), "{printed}");
}

#[test]
fn a_worker_can_serve_pieces() {
    let artifacts = ArtifactFixture::new();
    let hash = artifacts.put("photo.raw", 3_000_000);
    artifacts.run(&["artifact", "get", &hash, "-o", &artifacts.text("out")]);
    let mut worker = artifacts.command(&["worker", "--id", "w1", "--exec", "a=true", "--serve-pieces"]);
    worker.env("LEASEHOLD_PIECES_SECRET", SECRET);
    let mut worker = RunningCommand::start(worker);
    worker.until("serving pieces at 127.0.0.1:");
    let got = fetch_into_other_cache(&artifacts, &hash, "other");
    assert_eq!(got["fetched"]["peer_bytes"], 3_000_000, "{got}");
    let mut second = artifacts.command(&["worker", "--exec", "a=true", "--serve-pieces", "--drain"]);
    let second = output_of(second.env("LEASEHOLD_PIECES_SECRET", SECRET));
    assert!(second.contains("already serves the pieces of this cache"), "{second}");
    assert!(second.contains("peer w1-"), "{second}");
    assert!(worker.interrupt().ends_with("exit code 0"));
    assert!(!artifacts.cache().join("serving").exists());
}

#[test]
fn pieces_are_not_served_to_other_machines_without_a_secret() {
    let artifacts = ArtifactFixture::new();
    artifacts.assert_filtered_output("serve_pieces_no_secret", &["serve-pieces", "--listen", "0.0.0.0:0"]);
    artifacts.assert_filtered_output("serve_pieces_bad_address", &["serve-pieces", "--listen", "localhost"]);
    artifacts.assert_filtered_output("serve_pieces_bad_name", &["serve-pieces", "--id", "a/b"]);
    let mut serve = artifacts.command(&["serve-pieces", "--listen", "0.0.0.0:0"]);
    let output_of_serve = |serve: &mut Command| output_of(serve);
    let unasked = output_of_serve(serve.env("LEASEHOLD_PIECES_SECRET", SECRET));
    assert!(unasked.contains("peers cannot connect to 0.0.0.0:"), "{unasked}");
    assert!(unasked.ends_with("exit code 64"), "{unasked}");
    artifacts.fixture.compare(
        "serve_pieces_short_secret",
        &output_of(artifacts.command(&["serve-pieces"]).env("LEASEHOLD_PIECES_SECRET", "short")),
    );
    let shown = output_of(artifacts.command(&["config", "show"]).env("LEASEHOLD_PIECES_SECRET", SECRET));
    assert!(shown.contains("pieces.secret") && !shown.contains(SECRET), "{shown}");
    assert!(!artifacts.cache().join("serving").exists());
}

#[test]
fn a_progress_bar_is_shown_only_on_a_terminal() {
    let artifacts = ArtifactFixture::new();
    let hash = artifacts.put("photo.raw", 3_000_000);
    let slowly = |cache: &str| {
        let mut get =
            artifacts.command(&["artifact", "get", &hash, "-o", &artifacts.text("out"), "--no-peers"]);
        get.env("LEASEHOLD_PIECES_DOWNLOAD_BYTES_PER_SEC", "2000000").env("TERM", "xterm");
        get.env("LEASEHOLD_PIECES_CACHE", artifacts.path(cache));
        get
    };
    let drawn = on_a_terminal(slowly("one"));
    // The rate is in bytes, MiB or GiB per second: that depends on the machine.
    for part in ["fetching", "2.86 MiB", "B/s", "\r"] {
        assert!(drawn.contains(part), "no `{part}` in {drawn:?}");
    }
    assert_eq!(output_of(&mut slowly("two")), "--- exit code 0");
    // A file that is sent in parts.
    let large = artifacts.file("large.raw", 20_000_000);
    let mut put = artifacts.command(&["artifact", "put", &large]);
    put.env("TERM", "xterm");
    let drawn = on_a_terminal(put);
    assert!(drawn.contains("publishing") && drawn.contains("/19.07 MiB"), "{drawn:?}");
}

/// Output of a command on its own terminal.
fn on_a_terminal(mut command: Command) -> String {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&ours).unwrap();
    unlockpt(&ours).unwrap();
    let name = ptsname(&ours, Vec::new()).unwrap();
    let theirs = fs::File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
    command.stdin(Stdio::null()).stdout(theirs.try_clone().unwrap()).stderr(theirs);
    let mut child = command.spawn().unwrap();
    // The command also holds its ends of the terminal: reading ends when the last one is closed.
    drop(command);
    let mut shown = Vec::new();
    let mut ours = fs::File::from(ours);
    let mut buffer = [0; 4_096];
    while let Ok(read @ 1..) = ours.read(&mut buffer) {
        shown.extend_from_slice(&buffer[..read]);
    }
    assert!(child.wait().unwrap().success());
    String::from_utf8_lossy(&shown).into_owned()
}
