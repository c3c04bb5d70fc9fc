//! Artifacts in the store, in the cache and in tasks.

use serde_json::Value;
use std::fs;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::common::said;
use crate::shelf::Shelf;
use crate::until_stopped::UnderWay;

const SECRET: &str = "a secret of the tests, long enough";

/// Queue in a folder, with a cache and files beside it.
struct Depot {
    shelf: Shelf,
}

impl Depot {
    fn new() -> Self {
        let shelf = Shelf::new();
        fs::create_dir(shelf.path().join(".leasehold")).unwrap();
        Self { shelf }
    }

    /// Path beside the objects.
    fn path(&self, name: &str) -> PathBuf {
        self.shelf.path().canonicalize().unwrap().join(".leasehold").join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    fn cache(&self) -> PathBuf {
        self.path("cache")
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = self.shelf.command(args);
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

    fn seen(&self, name: &str, args: &[&str]) {
        self.shelf.compare(name, &said(&mut self.command(args)));
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
    let depot = Depot::new();
    let (file, out) = (depot.file("photo.raw", 3_000_000), depot.text("out.raw"));
    depot.seen("artifact_put", &["artifact", "put", &file]);
    depot.seen("artifact_put_again_json", &["artifact", "put", &file, "--json"]);
    let hash = depot.run(&["artifact", "put", &file, "--keep", "90d", "--name", "other"]);
    depot.seen("artifact_get_json", &["artifact", "get", &hash, "-o", &out, "--json"]);
    assert_eq!(fs::read(&out).unwrap(), contents(3_000_000));
    fs::remove_file(&out).unwrap();
    depot.seen("artifact_get_cached", &["artifact", "get", &hash, "-o", &out, "-v"]);
    assert_eq!(fs::read(&out).unwrap(), contents(3_000_000));
    let elsewhere = ["--cache", &depot.text("other"), "-v"];
    let get = ["artifact", "get", &hash, "-o", &out];
    depot.seen("artifact_get_verbose", &[&get[..], &elsewhere].concat());
    let printed = depot.command(&["artifact", "get", &hash, "-o", "-"]).output().unwrap();
    assert_eq!(printed.stdout, contents(3_000_000));
    let sha = ["artifact", "put", &depot.file("small", 5), "--hash", "sha256", "--media-type", "text/csv"];
    depot.seen("artifact_put_sha256_json", &[&sha[..], &["--json"]].concat());
    depot.seen("artifact_ls", &["artifact", "ls"]);
    depot.seen("artifact_ls_json", &["artifact", "ls", "--json"]);
    depot.seen("artifact_ls_long", &["artifact", "ls", "--long"]);
    depot.seen("artifact_ls_long_json", &["artifact", "ls", "--long", "--json"]);
    depot.seen("artifact_prune", &["artifact", "prune"]);
    depot.seen("artifact_prune_json", &["artifact", "prune", "--json"]);
}

#[test]
fn a_store_without_artifacts_says_so() {
    Depot::new().seen("artifact_ls_nothing", &["artifact", "ls"]);
}

#[test]
fn a_failed_get_is_explained_and_leaves_no_file() {
    let depot = Depot::new();
    let hash = depot.put("photo.raw", 100_000);
    fs::create_dir(depot.path("here")).unwrap();
    let out = depot.text("here/out");
    let get = |name: &str, hash: &str, out: &str| {
        depot.seen(name, &["artifact", "get", hash, "-o", out]);
        assert!(depot.has_nothing_in("here"), "{name} has left something");
    };
    get("artifact_missing", &hash.replace(&hash[..4], "0000"), &out);
    get("artifact_bad_hash", "photo.raw", &out);
    get("artifact_no_folder", &hash, &depot.text("nowhere/out"));
    get("artifact_to_folder", &hash, &depot.text("here"));
    get("artifact_to_device", &hash, "/dev/null");
    depot.seen("artifact_get_both", &["artifact", "get", &hash, "-o", "-", "--json"]);
    depot.seen("artifact_put_nothing", &["artifact", "put", &depot.text("nothing")]);
    depot.seen("artifact_put_folder", &["artifact", "put", &depot.text("here")]);
    depot.seen("artifact_bad_keep", &["artifact", "put", &depot.text("photo.raw"), "--keep", "soon"]);
    let mut small = depot.command(&["artifact", "get", &hash, "-o", &out]);
    depot.shelf.compare("artifact_small_cache", &said(small.env("LEASEHOLD_PIECES_CACHE_BYTES", "99999")));
    let mut homeless = depot.shelf.command(&["artifact", "get", &hash, "-o", &out]);
    depot.shelf.compare("artifact_no_cache", &said(&mut homeless));
    assert!(depot.has_nothing_in("here"));
    let object = |name| depot.shelf.objects().into_iter().find(|path| path.ends_with(name)).unwrap();
    fs::write(object("/data"), vec![0; 100_000]).unwrap();
    get("artifact_corrupt_data", &hash, &out);
    let manifest = object("/manifest.json");
    fs::write(manifest, "{").unwrap();
    get("artifact_corrupt", &hash, &out);
    depot.seen("artifact_ls_corrupt", &["artifact", "ls", "--long"]);
}

#[test]
fn a_place_that_cannot_be_written_to_is_named() {
    let depot = Depot::new();
    let hash = depot.put("photo.raw", 10);
    // Not even root can create files there.
    let output = depot.command(&["artifact", "get", &hash, "-o", "/sys/leasehold-out"]).output().unwrap();
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert!(complaint.starts_with("error: cannot write /sys/leasehold-out: "), "{complaint}");
    assert_eq!(output.status.code(), Some(77), "{complaint}");
}

/// Command with a limit on the file size, in blocks of 512 bytes: as on a full disk, a write fails half-way.
fn cramped(command: &Command, blocks: u32) -> Command {
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$0\" \"$@\""));
    shell.arg(command.get_program()).args(command.get_args()).env_clear().current_dir("/");
    shell.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    shell
}

#[test]
fn a_disk_that_is_full_leaves_nothing_under_the_files_name() {
    let depot = Depot::new();
    let hash = depot.put("photo.raw", 3_000_000);
    fs::create_dir(depot.path("here")).unwrap();
    let get = depot.command(&["artifact", "get", &hash, "-o", &depot.text("here/out")]);
    // First the cache has no room, then the place of the file.
    depot.shelf.compare("artifact_full_cache", &said(&mut cramped(&get, 1_000)));
    assert!(depot.has_nothing_in("here"));
    depot.run(&["artifact", "get", &hash, "-o", &depot.text("elsewhere")]);
    let said = said(&mut cramped(&get, 1_000));
    depot.shelf.compare("artifact_full_place", &said);
    assert!(depot.has_nothing_in("here"));
    let mut printing = depot.command(&["artifact", "get", &hash, "-o", "-"]);
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let output = printing.stdout(full).stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap();
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert!(complaint.contains("cannot write to standard output: No space left"), "{complaint}");
    assert_eq!(output.status.code(), Some(75));
}

#[test]
fn a_task_is_given_files_and_gives_files() {
    let depot = Depot::new();
    fs::write(depot.path("words.txt"), "hello").unwrap();
    let hash = depot.run(&["artifact", "put", &depot.text("words.txt")]);
    let id = depot.run(&["submit", "-t", "loud", "--artifact", &format!("text={hash}")]);
    let loud = "loud=sh -c 'tr a-z A-Z < \"$LEASEHOLD_ARTIFACTS/text\" > \"$LEASEHOLD_RESULTS/loud.txt\"'";
    depot.run(&["worker", "--id", "w1", "--drain", "--exec", loud]);
    let task = depot.json(&["get", &id, "--json"]);
    assert_eq!((&task["status"], &task["artifacts"]["text"]), (&"completed".into(), &hash.clone().into()));
    let result = task["results"]["loud.txt"].as_str().unwrap();
    assert_eq!(depot.run(&["artifact", "get", result, "-o", "-"]), "HELLO");
    depot.seen("get_with_files", &["get", &id]);
    let listed = depot.json(&["list", "--json"]);
    assert_eq!(listed["results"]["loud.txt"], result);
    // A cached artifact costs no request.
    depot.run(&["submit", "-t", "count", "--artifact", &format!("text={hash}")]);
    let count = "count=sh -c 'wc -c < \"$LEASEHOLD_ARTIFACTS/text\"'";
    let summary = depot.json(&["worker", "--id", "w1", "--drain", "--exec", count, "--json"]);
    assert_eq!((&summary["counts"]["completed"], fetches(&summary)), (&1.into(), 0), "{summary}");
}

#[test]
fn files_of_this_machine_are_put_into_the_store_first() {
    let depot = Depot::new();
    fs::write(depot.path("words.txt"), "hello").unwrap();
    let file = format!("text={}", depot.text("words.txt"));
    let id = depot.run(&["submit", "-t", "count", "--file", &file]);
    let hash = depot.json(&["get", &id, "--json"])["artifacts"]["text"].as_str().unwrap().to_owned();
    assert_eq!(depot.run(&["artifact", "get", &hash, "-o", "-"]), "hello");
    let line = format!("{{\"task_type\": \"count\", \"artifacts\": {{\"text\": \"{hash}\"}}}}\n");
    fs::write(depot.path("tasks.ndjson"), line).unwrap();
    depot.run(&["submit-many", &depot.text("tasks.ndjson")]);
    let count = "count=sh -c 'wc -c < \"$LEASEHOLD_ARTIFACTS/text\"'";
    depot.run(&["worker", "--drain", "--exec", count]);
    let outputs = depot.run(&["list", "--status", "completed", "--json"]);
    assert_eq!(outputs.matches("\"output\":5").count(), 2, "{outputs}");
    let objects = depot.shelf.objects();
    let hash = format!("text={hash}");
    for (name, args) in [
        ("submit_bad_artifact", ["--artifact", "text=abc"].as_slice()),
        ("submit_artifact_unnamed", &["--artifact", "abc"]),
        ("submit_artifact_misnamed", &["--artifact", "a/b=abc"]),
        ("submit_no_file", &["--file", "text=/no/such/file"]),
        ("submit_files_of_one_name", &["--file", &file, "--artifact", &hash]),
    ] {
        depot.seen(name, &[&["submit", "-t", "count"], args].concat());
        assert_eq!(depot.shelf.objects(), objects, "{name} has written something");
    }
}

#[test]
fn a_task_whose_file_is_nowhere_fails_for_good() {
    let depot = Depot::new();
    let id = depot.run(&["submit", "-t", "count", "--artifact", &format!("text={}", "0".repeat(64))]);
    depot.run(&["worker", "--drain", "--exec", "count=true"]);
    let task = depot.json(&["get", &id, "--json"]);
    assert_eq!((&task["status"], &task["attempt"]), (&"failed".into(), &1.into()));
    let error = task["error"].as_str().unwrap();
    assert!(error.starts_with("artifact `text` was not fetched: there is no artifact 0000"), "{error}");
}

#[test]
fn a_result_with_an_invalid_name_fails_the_task() {
    let depot = Depot::new();
    let id = depot.run(&["submit", "-t", "odd"]);
    depot.run(&["worker", "--drain", "--exec", "odd=sh -c 'echo 1 > \"$LEASEHOLD_RESULTS/a b\"'"]);
    let task = depot.json(&["get", &id, "--json"]);
    assert_eq!((&task["status"], &task["attempt"]), (&"failed".into(), &1.into()));
    let error = task["error"].as_str().unwrap();
    assert!(error.contains("name of a result `a b`"), "{error}");
}

#[test]
fn more_results_than_a_task_can_name_are_not_sent() {
    let depot = Depot::new();
    let id = depot.run(&["submit", "-t", "many"]);
    let many = "many=sh -c 'for n in $(seq 101); do echo $n > \"$LEASEHOLD_RESULTS/$n\"; done'";
    depot.run(&["worker", "--drain", "--exec", many]);
    let task = depot.json(&["get", &id, "--json"]);
    assert_eq!((&task["status"], &task["attempt"]), (&"failed".into(), &1.into()));
    assert!(
        task["error"].as_str().unwrap().starts_with("a task can have at most 100 results, got 101"),
        "{task}"
    );
    assert_eq!(depot.run(&["artifact", "ls", "--json"]), "");
}

#[test]
fn a_pipe_is_no_file_and_is_not_waited_for() {
    let depot = Depot::new();
    let pipe = depot.text("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let output = depot.command(&["artifact", "put", &pipe]).output().unwrap();
    assert_eq!(output.status.code(), Some(64));
    assert!(String::from_utf8_lossy(&output.stderr).contains("is not a file"), "{output:?}");
}

#[test]
fn a_program_may_print_much_before_it_has_read_its_input() {
    let depot = Depot::new();
    fs::write(depot.path("input.json"), format!("\"{}\"", "x".repeat(200_000))).unwrap();
    let input = format!("@{}", depot.text("input.json"));
    let id = depot.run(&["submit", "-t", "talk", "-i", &input, "--timeout", "20", "--max-attempts", "1"]);
    let program = "talk=sh -c 'head -c 200000 /dev/zero | tr \"\\0\" a; cat > /dev/null'";
    depot.run(&["worker", "--drain", "--exec", program]);
    let task = depot.json(&["get", &id, "--json"]);
    assert_eq!(task["status"], "completed", "{}", task["error"]);
    assert_eq!(task["output"].as_str().unwrap(), "a".repeat(200_000));
}

#[test]
fn a_program_that_prints_too_much_fails_with_advice() {
    let depot = Depot::new();
    let id = depot.run(&["submit", "-t", "talk"]);
    depot.run(&["worker", "--drain", "--exec", "talk=head -c 5000000 /dev/zero"]);
    let task = depot.json(&["get", &id, "--json"]);
    assert_eq!((&task["status"], &task["attempt"]), (&"failed".into(), &1.into()));
    assert!(task["error"].as_str().unwrap().ends_with("a file in LEASEHOLD_RESULTS"), "{task}");
}

#[test]
fn programs_can_use_the_command_line_and_leave_nothing_behind() {
    let depot = Depot::new();
    let places = depot.path("places");
    fs::create_dir(&places).unwrap();
    let child = format!(
        "parent=sh -c '\"{}\" submit -t child --store \"{}\" && mkdir \"$LEASEHOLD_RESULTS/sub\"'",
        env!("CARGO_BIN_EXE_leasehold"),
        depot.shelf.path().display()
    );
    let id = depot.run(&["submit", "-t", "parent"]);
    let mut worker = depot.command(&["worker", "--drain", "--exec", &child]);
    assert!(worker.env("TMPDIR", &places).output().unwrap().status.success());
    let task = depot.json(&["get", &id, "--json"]);
    assert_eq!(task["status"], "completed", "{task}");
    assert_eq!(depot.run(&["list", "--type", "child", "--json"]).lines().count(), 1);
    assert!(depot.has_nothing_in("places"));
    assert!(!depot.cache().exists(), "a cache was made although nothing was fetched");
}

#[test]
fn the_commands_of_the_guide_can_be_typed() {
    let guide = include_str!("../../../../docs/guides/artifacts.md");
    let blocks = guide.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let script = format!("leasehold() {{ '{}' \"$@\"; }}\n", env!("CARGO_BIN_EXE_leasehold"));
    let script = script + &blocks.collect::<String>();
    assert!(script.contains("artifact prune"));
    let depot = Depot::new();
    let mut shell = Command::new("bash");
    shell.args(["-euo", "pipefail", "-c", &script]).env_clear().current_dir(depot.shelf.path());
    shell.env("PATH", std::env::var_os("PATH").unwrap()).env("HOME", depot.shelf.path());
    let output = shell.output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// Fetches an artifact into another cache, and returns the JSON of the fetch.
fn got_elsewhere(depot: &Depot, hash: &str, cache: &str) -> Value {
    let (out, cache) = (depot.text("out"), depot.text(cache));
    let mut get = depot.command(&["artifact", "get", hash, "-o", &out, "--cache", &cache, "--json"]);
    let output = get.env("LEASEHOLD_PIECES_SECRET", SECRET).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn pieces_come_from_a_peer_that_serves_them() {
    let depot = Depot::new();
    let hash = depot.put("photo.raw", 3_000_000);
    depot.run(&["artifact", "get", &hash, "-o", &depot.text("out")]);
    let mut serve = depot.command(&["serve-pieces", "--id", "shelf"]);
    serve.env("LEASEHOLD_PIECES_SECRET", SECRET);
    let mut serve = UnderWay::start(serve);
    serve.until("shelf serves ");
    assert_eq!(fs::read_to_string(depot.cache().join("serving")).unwrap(), "shelf");
    let got = got_elsewhere(&depot, &hash, "other");
    assert_eq!(fs::read(depot.path("out")).unwrap(), contents(3_000_000));
    assert_eq!(
        (&got["fetched"]["peer_bytes"], &got["fetched"]["origin_bytes"]),
        (&3_000_000.into(), &0.into())
    );
    let peer =
        got["fetched"]["peers"].as_array().unwrap().iter().find(|peer| peer["peer"] == "shelf").unwrap();
    assert_eq!((&peer["pieces"], &peer["failures"]["corrupt"]), (&3.into(), &0.into()));
    let mut second = depot.command(&["serve-pieces", "--id", "second"]);
    depot.shelf.compare("serve_pieces_twice", &said(&mut second));
    // A client without the secret gets nothing from the peer, and everything from the store.
    let mut stranger = depot.command(&[
        "artifact",
        "get",
        &hash,
        "-o",
        &depot.text("out"),
        "--cache",
        &depot.text("stranger"),
        "--json",
    ]);
    stranger.env("LEASEHOLD_PIECES_DOWNLOAD_BYTES_PER_SEC", "2000000");
    let report: Value = serde_json::from_slice(&stranger.output().unwrap().stdout).unwrap();
    assert_eq!(report["fetched"]["blamed"][0]["peer"], "shelf", "{report}");
    assert_eq!(report["fetched"]["origin_bytes"], 3_000_000, "{report}");
    let said = serve.interrupt();
    assert!(said.contains(" requests were answered, with 3") && said.ends_with("exit code 0"), "{said}");
    assert!(!depot.cache().join("serving").exists());
    assert!(!said.contains(SECRET));
}

#[test]
fn a_fetch_does_not_ask_the_server_of_its_own_cache() {
    let depot = Depot::new();
    let hash = depot.put("photo.raw", 6_000_000);
    let mut serve = UnderWay::start(depot.command(&["serve-pieces", "--id", "self"]));
    serve.until("self serves ");
    let mut get = depot.command(&["artifact", "get", &hash, "-o", &depot.text("out"), "--json"]);
    get.env("LEASEHOLD_PIECES_DOWNLOAD_BYTES_PER_SEC", "2000000");
    let report: Value = serde_json::from_slice(&get.output().unwrap().stdout).unwrap();
    assert_eq!(report["fetched"]["peers"].as_array().unwrap().len(), 1, "{report}");
    let said = serve.interrupt();
    assert!(said.contains("0 of 0 requests were answered"), "{said}");
}

#[test]
fn a_worker_can_serve_pieces() {
    let depot = Depot::new();
    let hash = depot.put("photo.raw", 3_000_000);
    depot.run(&["artifact", "get", &hash, "-o", &depot.text("out")]);
    let mut worker = depot.command(&["worker", "--id", "w1", "--exec", "a=true", "--serve-pieces"]);
    worker.env("LEASEHOLD_PIECES_SECRET", SECRET);
    let mut worker = UnderWay::start(worker);
    worker.until("serving pieces at 127.0.0.1:");
    let got = got_elsewhere(&depot, &hash, "other");
    assert_eq!(got["fetched"]["peer_bytes"], 3_000_000, "{got}");
    let mut second = depot.command(&["worker", "--exec", "a=true", "--serve-pieces", "--drain"]);
    let second = said(second.env("LEASEHOLD_PIECES_SECRET", SECRET));
    assert!(second.contains("already serves the pieces of this cache"), "{second}");
    assert!(second.contains("peer w1-"), "{second}");
    assert!(worker.interrupt().ends_with("exit code 0"));
    assert!(!depot.cache().join("serving").exists());
}

#[test]
fn pieces_are_not_served_to_the_world_without_a_secret() {
    let depot = Depot::new();
    depot.seen("serve_pieces_no_secret", &["serve-pieces", "--listen", "0.0.0.0:0"]);
    depot.seen("serve_pieces_bad_address", &["serve-pieces", "--listen", "localhost"]);
    depot.seen("serve_pieces_bad_name", &["serve-pieces", "--id", "a/b"]);
    let mut serve = depot.command(&["serve-pieces", "--listen", "0.0.0.0:0"]);
    let said_of = |serve: &mut Command| said(serve);
    let unasked = said_of(serve.env("LEASEHOLD_PIECES_SECRET", SECRET));
    assert!(unasked.contains("peers cannot connect to 0.0.0.0:"), "{unasked}");
    assert!(unasked.ends_with("exit code 64"), "{unasked}");
    depot.shelf.compare(
        "serve_pieces_short_secret",
        &said(depot.command(&["serve-pieces"]).env("LEASEHOLD_PIECES_SECRET", "short")),
    );
    let shown = said(depot.command(&["config", "show"]).env("LEASEHOLD_PIECES_SECRET", SECRET));
    assert!(shown.contains("pieces.secret") && !shown.contains(SECRET), "{shown}");
    assert!(!depot.cache().join("serving").exists());
}

#[test]
fn a_person_on_a_terminal_sees_a_bar_and_a_pipe_does_not() {
    let depot = Depot::new();
    let hash = depot.put("photo.raw", 3_000_000);
    let slowly = |cache: &str| {
        let mut get = depot.command(&["artifact", "get", &hash, "-o", &depot.text("out"), "--no-peers"]);
        get.env("LEASEHOLD_PIECES_DOWNLOAD_BYTES_PER_SEC", "2000000").env("TERM", "xterm");
        get.env("LEASEHOLD_PIECES_CACHE", depot.path(cache));
        get
    };
    let drawn = on_a_terminal(slowly("one"));
    // The rate is in bytes, MiB or GiB per second: that depends on the machine.
    for part in ["fetching", "2.86 MiB", "B/s", "\r"] {
        assert!(drawn.contains(part), "no `{part}` in {drawn:?}");
    }
    assert_eq!(said(&mut slowly("two")), "--- exit code 0");
    // A file that is sent in parts.
    let large = depot.file("large.raw", 20_000_000);
    let mut put = depot.command(&["artifact", "put", &large]);
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
