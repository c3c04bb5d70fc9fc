//! Outposts of a real server: each node has its folder, a supervisor and a worker process.

use leasehold_store::testing::{Lane, S3, SeaweedFs, weed_binary};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::crashes::signal;
use crate::common::leasehold;

/// Interval at which the progress of the queue is read.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Tasks of the relaxed node while the server is stopped, in two batches.
const OFFLINE_TASKS: usize = 60;

struct OutpostFixture {
    endpoint: String,
    bucket: String,
    root: tempfile::TempDir,
    campaign: &'static str,
}

/// Processes of a node, killed on drop.
struct Node {
    supervisor: Child,
    worker: Child,
}

impl Node {
    /// Lets the worker finish what it runs. The supervisor goes on.
    fn drain_worker(&mut self) {
        signal(&self.worker, "-TERM");
        assert!(self.worker.wait().unwrap().success());
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        for process in [&mut self.supervisor, &mut self.worker] {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

impl OutpostFixture {
    async fn new(s3: S3, campaign: &'static str) -> Self {
        let bucket = s3.fresh_bucket().await;
        Self { endpoint: s3.endpoint(), bucket, root: tempfile::tempdir().unwrap(), campaign }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = leasehold(args);
        command
            .env("LEASEHOLD_STORE", format!("s3://{}/river", self.bucket))
            .env("LEASEHOLD_QUEUE_CAMPAIGN", self.campaign)
            .env("LEASEHOLD_OUTPOST_CYCLE_SECS", "2")
            .env("AWS_ENDPOINT_URL", &self.endpoint)
            .env("AWS_ACCESS_KEY_ID", "test")
            .env("AWS_SECRET_ACCESS_KEY", "testsecret")
            .env("AWS_REGION", "us-east-1");
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

    fn data(&self, node: &str) -> PathBuf {
        self.root.path().join(node)
    }

    fn log(&self) -> PathBuf {
        self.root.path().join("log")
    }

    /// File with the standard error of all processes.
    fn stderr_path(&self) -> PathBuf {
        self.root.path().join("stderr")
    }

    fn init(&self, node: &str, consistency: &str) {
        let data = self.data(node);
        self.run(&["outpost", "init", "--node", node, "--consistency", consistency, "--data", text(&data)]);
    }

    /// Starts a supervisor and a worker. The worker has no credentials.
    fn start(&self, node: &str) -> Node {
        let data = self.data(node);
        let log = fs::File::options().create(true).append(true).open(self.stderr_path()).unwrap();
        let quiet = |mut command: Command| {
            let log = log.try_clone().unwrap();
            command.env("LEASEHOLD_LOG", "warn").stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
            command.spawn().unwrap()
        };
        let mut worker = leasehold(&["outpost", "work", "--exec", &self.program(), "--concurrency", "4"]);
        worker.args(["--data", text(&data), "--campaign", self.campaign]);
        let supervisor = self.command(&["outpost", "run", "--data", text(&data)]);
        Node { supervisor: quiet(supervisor), worker: quiet(worker) }
    }

    /// Program that records every run of every task.
    fn program(&self) -> String {
        format!("note=sh -c 'echo $LEASEHOLD_TASK_ID >> {}'", text(&self.log()))
    }

    fn submit(&self, tasks: usize) {
        let lines = self.root.path().join("tasks");
        fs::write(&lines, "{\"task_type\": \"note\"}\n".repeat(tasks)).unwrap();
        self.run(&["submit-many", text(&lines)]);
    }

    /// Waits until this many tasks are completed.
    fn wait(&self, tasks: usize, timeout: Duration) {
        let began = Instant::now();
        loop {
            // A list loads the server as much as the tasks do: wait until all tasks have run once.
            let mut done = self.runs().len();
            if done >= tasks {
                let listed = self.run(&["list", "--status", "completed", "--limit", "100000", "--json"]);
                done = listed.lines().count();
                if done >= tasks {
                    return;
                }
            }
            let stderr = || fs::read_to_string(self.stderr_path()).unwrap_or_default();
            assert!(began.elapsed() < timeout, "{done} of {tasks} after {timeout:?}:\n{}", stderr());
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Number of runs of each task.
    fn runs(&self) -> BTreeMap<String, usize> {
        let mut runs = BTreeMap::new();
        for id in fs::read_to_string(self.log()).unwrap_or_default().lines() {
            *runs.entry(id.to_owned()).or_default() += 1;
        }
        runs
    }

    /// Checks that every task is completed, with one completion in its history.
    fn check_completions(&self, tasks: usize) {
        let all = self.run(&["list", "--limit", "100000", "--json"]);
        assert_eq!(all.lines().count(), tasks);
        for line in all.lines() {
            let task: Value = serde_json::from_str(line).unwrap();
            let history = task["history"].as_array().unwrap();
            let completions = history.iter().filter(|change| change["to"] == "completed").count();
            assert_eq!((&task["status"], completions), (&"completed".into(), 1), "{task}");
        }
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn two_and_eight_nodes_complete_every_task_once() {
    let (s3, tasks) = (S3::shared().await, Lane::current().sized(300, 2_000));
    for (campaign, consistency, nodes) in [
        ("strict/two", "strict", 2),
        ("strict/eight", "strict", 8),
        ("relaxed/two", "relaxed", 2),
        ("relaxed/eight", "relaxed", 8),
    ] {
        let fixture = OutpostFixture::new(s3, campaign).await;
        let names: Vec<_> = (0..nodes).map(|number| format!("pi-{number}")).collect();
        for name in &names {
            fixture.init(name, consistency);
        }
        fixture.submit(tasks);
        let began = Instant::now();
        let mut started: Vec<_> = names.iter().map(|name| fixture.start(name)).collect();
        fixture.wait(tasks, Duration::from_mins(5));
        let seconds = began.elapsed().as_secs_f64();
        // From now on no task is run again.
        started.iter_mut().for_each(Node::drain_worker);
        let status = |name: &String| {
            fixture.json(&["outpost", "status", "--data", text(&fixture.data(name)), "--json"])
        };
        let reported =
            || names.iter().map(|name| status(name)["counts"]["duplicates"].as_u64().unwrap()).sum::<u64>();
        let twice = || fixture.runs().values().sum::<usize>() - tasks;
        // A duplicate run is counted by the node that detects it at its next sync.
        while reported() < twice() as u64 {
            assert!(began.elapsed() < Duration::from_mins(6), "{} reported of {}", reported(), twice());
            std::thread::sleep(POLL_INTERVAL);
        }
        drop(started);
        fixture.check_completions(tasks);
        let (runs, reported, twice) = (fixture.runs(), reported(), twice());
        assert_eq!(runs.len(), tasks);
        println!("{nodes} nodes, {consistency}: {seconds:.0} s, {twice} duplicate runs, {reported} reported");
        if consistency == "strict" {
            assert_eq!(twice, 0, "{runs:?}");
        }
        // A run that was stopped before its program has recorded anything is counted as well.
        assert!(reported >= twice as u64, "{reported} reported of {twice}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn work_goes_on_while_the_server_is_stopped_and_all_of_it_arrives() {
    let mut weed = SeaweedFs::start(&weed_binary()).await.unwrap();
    let relaxed = OutpostFixture::new(*weed, "cut/relaxed").await;
    let strict = OutpostFixture::new(*weed, "cut/strict").await;
    relaxed.init("pi-1", "relaxed");
    strict.init("pi-1", "strict");
    strict.submit(20);
    let data = strict.data("pi-1");
    let checkout = ["outpost", "checkout", "5", "--for", "1h", "--data", text(&data), "--json"];
    assert_eq!(strict.json(&checkout)["checked_out"], 5);
    strict.run(&["outpost", "sync", "--data", text(&data)]);
    weed.stop().await.unwrap();
    let nodes = [relaxed.start("pi-1"), strict.start("pi-1")];
    let data = relaxed.data("pi-1");
    for _ in 0..20 {
        relaxed.run(&["outpost", "submit", "-t", "note", "--data", text(&data)]);
    }
    let began = Instant::now();
    while relaxed.runs().len() < 20 || strict.runs().len() < 5 {
        assert!(
            began.elapsed() < Duration::from_mins(1),
            "{} and {}",
            relaxed.runs().len(),
            strict.runs().len()
        );
        std::thread::sleep(POLL_INTERVAL);
    }
    // Meanwhile the relaxed node starts more tasks: the strict one would have had time for them too.
    for _ in 20..OFFLINE_TASKS {
        relaxed.run(&["outpost", "submit", "-t", "note", "--data", text(&data)]);
    }
    while relaxed.runs().len() < OFFLINE_TASKS {
        assert!(began.elapsed() < Duration::from_mins(2), "{}", relaxed.runs().len());
        std::thread::sleep(POLL_INTERVAL);
    }
    assert_eq!(strict.runs().len(), 5, "strict starts nothing else");
    weed.restart().await.unwrap();
    relaxed.wait(OFFLINE_TASKS, Duration::from_mins(2));
    strict.wait(20, Duration::from_mins(2));
    drop(nodes);
    for (fixture, tasks) in [(&relaxed, OFFLINE_TASKS), (&strict, 20)] {
        fixture.check_completions(tasks);
        assert!(fixture.runs().values().all(|runs| *runs == 1), "{:?}", fixture.runs());
    }
}
