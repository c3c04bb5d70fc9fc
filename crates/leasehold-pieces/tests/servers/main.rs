//! Eight nodes fetch one artifact from a real S3 server at once; one of them is killed, one serves corrupt data. `./test`
//! installs the server.
//!
//! The assertions are on the bytes that the server has sent, by its own count.
#![expect(clippy::unwrap_used, reason = "in a test a panic is the report, in its helpers too")]
#![expect(clippy::disallowed_methods, reason = "tests own what they start")]

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use leasehold_core::ArtifactId;
use leasehold_pieces::{ArtifactStore, Cache, PublishOptions};
use leasehold_store::Client;
use leasehold_store::testing::S3;
use tempfile::TempDir;

const SIZE: u64 = 256 * 1_024 * 1_024;
const NODES: usize = 8;
/// Killed in the middle.
const KILLED: usize = 2;
/// Serves corrupt data.
const CORRUPT: usize = 5;
/// Long enough for a busy machine; nothing is asserted about time.
const WAIT_MAX: Duration = Duration::from_secs(170);

/// A node in its own process, killed when dropped.
struct Node {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    cache: PathBuf,
}

impl Node {
    fn start(s3: S3, bucket: &str, cache: PathBuf, artifact: &ArtifactId, words: &[String]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_piece-exerciser"))
            .arg(format!("s3://{bucket}/pieces"))
            .arg(&cache)
            .arg(artifact.as_str())
            .arg(format!("endpoint={}", s3.endpoint()))
            .args(["wait", "hold"])
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || out.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        let mut node = Self { input: child.stdin.take(), child, lines, cache };
        node.line("ready");
        node
    }

    fn begin(&mut self) {
        self.input.as_mut().unwrap().write_all(b"\n").unwrap();
    }

    /// Waits for the next line with this beginning.
    fn line(&mut self, beginning: &str) -> String {
        let begun = Instant::now();
        loop {
            let left = WAIT_MAX.saturating_sub(begun.elapsed());
            let line = self.lines.recv_timeout(left).unwrap_or_else(|_| panic!("no `{beginning}`"));
            assert!(!line.starts_with("failed"), "{line}");
            if line.starts_with(beginning) {
                return line;
            }
        }
    }

    fn reaches(&mut self, bytes: u64) {
        while self.line("progress ")["progress ".len()..].parse::<u64>().unwrap() < bytes {}
    }

    fn is_right(&self, artifact: &ArtifactId) -> bool {
        let mut hasher = blake3::Hasher::new();
        let mut file = std::fs::File::open(self.cache.join(artifact.as_str()).join("data")).unwrap();
        std::io::copy(&mut file, &mut hasher).unwrap();
        hasher.finalize().to_hex().as_str() == artifact.as_str()
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads a number from an outcome.
fn number_in(outcome: &str, name: &str) -> u64 {
    let word = outcome.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    word.unwrap().parse().unwrap()
}

struct Scene {
    s3: S3,
    bucket: String,
    directory: TempDir,
    artifact: ArtifactId,
}

/// Result of a round.
#[derive(Default)]
struct Round {
    sent: u64,
    origin: u64,
    peers: u64,
    twice: u64,
    requests: u64,
    took: Duration,
}

impl Scene {
    async fn new() -> Self {
        let s3 = S3::shared().await;
        let bucket = s3.fresh_bucket().await;
        let directory = TempDir::new().unwrap();
        let file = directory.path().join("file");
        write_file(&file);
        let client = Client::open(&format!("s3://{bucket}/pieces"), &s3.options()).unwrap();
        let node = ArtifactStore::new(client, Cache::open(directory.path().join("publisher"), None).unwrap());
        let published = node.publish(&file, &PublishOptions::default()).await.unwrap();
        std::fs::remove_file(file).unwrap();
        Self { s3, bucket, directory, artifact: published.manifest.artifact }
    }

    async fn round(&self, name: &str, words: impl Fn(usize) -> Vec<String>, killed: Option<usize>) -> Round {
        let start = |at| {
            let cache = self.directory.path().join(format!("{name}-{at}"));
            Node::start(self.s3, &self.bucket, cache, &self.artifact, &words(at))
        };
        let mut nodes: Vec<Node> = (0..NODES).map(start).collect();
        let before = self.s3.sent_bytes(&self.bucket).await.unwrap();
        let begun = Instant::now();
        nodes.iter_mut().for_each(Node::begin);
        if let Some(killed) = killed {
            nodes[killed].reaches(SIZE / 10);
            nodes[killed].kill();
        }
        let mut round = Round::default();
        for (at, node) in nodes.iter_mut().enumerate().filter(|(at, _)| Some(*at) != killed) {
            let outcome = node.line("fetched ");
            print(&format!("  node {at}: {outcome}"));
            round.origin += number_in(&outcome, "origin");
            round.peers += number_in(&outcome, "peers");
            round.twice += number_in(&outcome, "twice");
            round.requests += number_in(&outcome, "requests");
        }
        round.took = begun.elapsed();
        round.sent = self.s3.sent_bytes(&self.bucket).await.unwrap() - before;
        for (at, node) in nodes.iter().enumerate().filter(|(at, _)| Some(*at) != killed) {
            assert!(node.is_right(&self.artifact), "the file of node {at} is wrong");
            std::fs::remove_dir_all(&node.cache).unwrap();
        }
        round
    }
}

/// Writes a file without repeating bytes.
fn write_file(path: &Path) {
    let mut file = std::io::BufWriter::new(std::fs::File::create(path).unwrap());
    for block in 0..SIZE / 8 {
        file.write_all(&block.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()).unwrap();
    }
    file.flush().unwrap();
}

/// Prints to standard error, shown with `--nocapture`.
#[expect(clippy::print_stderr, reason = "figures for information, beside what is asserted")]
fn print(words: &str) {
    eprintln!("{words}");
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
fn table(name: &str, round: &Round) -> String {
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    format!(
        "{name:<14} {:>16.1} {:>11.2} {:>17.1} {:>10.1} {:>9.1} {:>9} {:>8.1}",
        mib(round.sent),
        round.sent as f64 / SIZE as f64,
        mib(round.origin),
        mib(round.peers),
        mib(round.twice),
        round.requests,
        round.took.as_secs_f64()
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn eight_nodes_read_little_more_than_one_copy_from_the_store_though_one_dies_and_one_is_corrupt() {
    let scene = Scene::new().await;
    let with_peers = |at: usize| {
        let mut words = vec![format!("name=node-{at}")];
        words.extend((at == CORRUPT).then(|| "corrupt".to_owned()));
        words
    };
    let together = scene.round("together", with_peers, Some(KILLED)).await;
    let apart = scene.round("apart", |_| Vec::new(), None).await;
    print(
        "               server sent MiB  × the size  nodes count, MiB  peers MiB   dup. MiB  requests  seconds",
    );
    print(&table("with peers", &together));
    print(&table("without peers", &apart));
    assert!(apart.sent >= NODES as u64 * SIZE, "the server counts too little: {}", apart.sent);
    assert!(together.sent >= SIZE);
    assert!(together.sent * 5 <= SIZE * 6, "{} bytes for an artifact of {SIZE}", together.sent);
}
