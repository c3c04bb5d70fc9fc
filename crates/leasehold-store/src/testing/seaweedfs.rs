//! Real S3 server for tests: `weed mini` of `SeaweedFS` on free loopback ports, with its data in a temporary folder.
//!
//! The server must not outlive the test process, even if that is killed with SIGKILL and can run no destructor. A
//! signal from the kernel at the parent's death needs `unsafe`, so a small shell script is used: it starts a watcher
//! and then replaces itself by weed, which so has the process id that we started. The watcher reads from a pipe whose
//! other end only the test process holds. A line on the pipe is a command; the end of the pipe means that the test
//! process is gone.

#![expect(clippy::disallowed_methods, reason = "a real process starts and ends in real time")]

use std::fs::{self, File};
use std::io::{self, Write};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tempfile::TempDir;
use tokio::sync::OnceCell;

use super::ports::{Ports, ReservedPorts};
use crate::{AccessKey, HostExt, OpenOptions, SystemHost};

/// Timeout for a start, which takes about one second; a minute allows for a machine that is busy compiling.
const START_MAX: Duration = Duration::from_mins(1);
/// Timeout for a request: one to a starting server may hang, and is then repeated.
const REQUEST_MAX: Duration = Duration::from_secs(10);
/// Interval at which the server is polled: there is no event for its start or end.
const POLL_EVERY: Duration = Duration::from_millis(20);
/// Time to stop after SIGTERM: an idle weed needs a little over two seconds, a busy one much longer.
const GRACE: Duration = Duration::from_secs(3);

/// Script of the watcher. Fd 3 keeps the pipe, because a shell gives its background jobs `/dev/null` as input. `$$` is
/// the shell's own id also within the background job, and `exec` passes that id to weed. After `gone` the id may belong
/// to another process, so the watcher exits without a signal. A signal to the whole group, as from a terminal or a CI,
/// must not end the watcher first. The watcher cleans up only if the test process is gone.
const WATCHER_SCRIPT: &str = r#"
exec 3<&0
folder=$1 sockets=$2
shift 2
(
    trap '' HUP INT TERM
    while read -r order <&3; do
        case $order in
            term) kill -TERM $$ ;;
            gone) exit 0 ;;
        esac
    done
    kill -KILL $$
    rm -rf -- "$folder" $sockets
) &
exec "$@" 3<&- </dev/null
"#;

/// Path of the program that `./test` has installed.
///
/// # Panics
///
/// If `LEASEHOLD_WEED` is not set.
#[must_use]
pub fn weed_binary() -> PathBuf {
    std::env::var_os("LEASEHOLD_WEED").expect("LEASEHOLD_WEED is not set: run ./test").into()
}

/// Running `SeaweedFS` of one test, killed when dropped. Tests that neither stop nor restart it use [`S3::shared`].
#[derive(Debug)]
pub struct SeaweedFs {
    binary: PathBuf,
    running: Option<Running>,
    ports: ReservedPorts,
    folder: TempDir,
    s3: S3,
}

impl Deref for SeaweedFs {
    type Target = S3;

    fn deref(&self) -> &S3 {
        &self.s3
    }
}

#[derive(Debug)]
struct Running {
    child: Child,
    watcher: ChildStdin,
}

impl SeaweedFs {
    /// Starts the given `weed` and waits until it serves S3 and can store.
    ///
    /// An error has the end of weed's log in its message.
    pub async fn start(binary: &Path) -> io::Result<Self> {
        let ports = ReservedPorts::new()?;
        let mut weed = Self {
            binary: fs::canonicalize(binary)?,
            running: None,
            s3: S3 { ports: *ports },
            ports,
            folder: tempfile::Builder::new().prefix("leasehold-weed-").tempdir()?,
        };
        fs::create_dir(weed.data())?;
        weed.restart().await?;
        Ok(weed)
    }

    /// Process id of weed while it runs.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.running.as_ref().map(|running| running.child.id())
    }

    /// Stops weed with SIGTERM, and kills it after three seconds.
    pub async fn stop(&mut self) -> io::Result<()> {
        if let Some(running) = &mut self.running {
            // A failed command does not matter: the kill below does not depend on the watcher.
            let _ = running.watcher.write_all(b"term\n");
            let begun = Instant::now();
            while running.child.try_wait()?.is_none() && begun.elapsed() < GRACE {
                tokio::time::sleep(POLL_EVERY).await;
            }
        }
        self.kill();
        Ok(())
    }

    /// Kills weed with SIGKILL and returns when it is gone; ports and data stay reserved.
    pub fn kill(&mut self) {
        if let Some(mut running) = self.running.take() {
            // Until `wait` the id stays ours, so the watcher is ended before that. The results do not matter: they only
            // report that child or watcher had already ended.
            let _ = running.child.kill();
            let _ = running.watcher.write_all(b"gone\n");
            let _ = running.child.wait();
            for socket in self.sockets() {
                let _ = fs::remove_file(socket);
            }
        }
    }

    /// Starts weed again on the same ports and data and waits until it answers.
    pub async fn restart(&mut self) -> io::Result<()> {
        self.kill();
        self.running = Some(self.launch()?);
        let begun = Instant::now();
        while !self.is_ready().await {
            if let Some(status) = self.exited()? {
                return Err(self.failure(&format!("weed ended with {status}")));
            }
            if begun.elapsed() > START_MAX {
                return Err(self.failure("weed is not ready after a minute"));
            }
            tokio::time::sleep(POLL_EVERY).await;
        }
        Ok(())
    }

    /// Kills weed as a power cut would and starts it again on the same ports and data.
    pub async fn kill_and_restart(&mut self) -> io::Result<()> {
        self.kill();
        self.restart().await
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn log(&self) -> PathBuf {
        self.folder.path().join("weed.log")
    }

    fn launch(&self) -> io::Result<Running> {
        let log = File::options().create(true).append(true).open(self.log())?;
        let mut child = Command::new("/bin/sh")
            .args(["-c", WATCHER_SCRIPT, "weed-watcher"])
            .arg(self.folder.path())
            .arg(self.sockets().join(" "))
            .arg(&self.binary)
            .args(self.arguments())
            .env("AWS_ACCESS_KEY_ID", "test")
            .env("AWS_SECRET_ACCESS_KEY", "testsecret")
            .current_dir(self.folder.path())
            .stdin(Stdio::piped())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        let watcher = child.stdin.take().expect("input was set to a pipe");
        Ok(Running { child, watcher })
    }

    fn arguments(&self) -> Vec<String> {
        let folder = self.folder.path().display();
        let mut arguments: Vec<String> = [
            "-logtostderr=true",
            "mini",
            "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1",
            "-master.telemetry=false",
            "-webdav=false",
            "-admin.ui=false",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            // As on AWS; by default an upload creates its bucket.
            "-s3.autoCreateBucket=false",
            // Every bucket needs a volume. By default there is one per free gigabyte on the disk, and writes to a
            // bucket without a volume get 500.
            "-volume.max=1000",
            "-master.volumeSizeLimitMB=64",
        ]
        .map(String::from)
        .into();
        arguments.push(format!("-dir={}", self.data().display()));
        arguments.push(format!("-filer.localSocket={folder}/filer.sock"));
        arguments.push(format!("-s3.localSocket={folder}/s3.sock"));
        arguments.extend(self.ports.named().map(|(flag, port)| format!("-{flag}={port}")));
        arguments
    }

    fn exited(&mut self) -> io::Result<Option<std::process::ExitStatus>> {
        self.running.as_mut().map_or(Ok(None), |running| running.child.try_wait())
    }

    fn failure(&self, what: &str) -> io::Error {
        let log = fs::read(self.log()).unwrap_or_default();
        let tail = String::from_utf8_lossy(&log[log.len().saturating_sub(4_000)..]);
        io::Error::other(format!("{what}; its log ends with:\n{tail}"))
    }

    /// Sockets that weed creates in `/tmp`, regardless of flags and `TMPDIR`, and never removes.
    fn sockets(&self) -> Vec<String> {
        let grpc = self.ports.named().into_iter().filter_map(|(flag, port)| {
            Some(format!("/tmp/seaweedfs-{}-grpc-{port}.sock", flag.strip_suffix(".port.grpc")?))
        });
        grpc.collect()
    }
}

impl Drop for SeaweedFs {
    fn drop(&mut self) {
        self.kill();
    }
}

/// S3 interface of a running `SeaweedFS`.
///
/// Its key id is `test`, its secret `testsecret`; buckets are addressed by path.
#[derive(Debug, Clone, Copy)]
pub struct S3 {
    ports: Ports,
}

impl S3 {
    /// Server that all tests of a run share, each in a bucket of its own ([`fresh_bucket`](Self::fresh_bucket)).
    ///
    /// `./test` starts it and names the first of its ports in `TEST_S3_PORTS`. Without that, the test process starts one
    /// and keeps it to its end.
    ///
    /// # Panics
    ///
    /// If there is none and none can be started.
    pub async fn shared() -> Self {
        static OWN: OnceCell<SeaweedFs> = OnceCell::const_new();
        if let Ok(base) = std::env::var("TEST_S3_PORTS") {
            return Self { ports: Ports::at(base.parse().expect("TEST_S3_PORTS is a port")) };
        }
        **OWN.get_or_init(|| async { SeaweedFs::start(&weed_binary()).await.expect("weed starts") }).await
    }

    /// Creates a bucket with a random name, for one test, and returns its name.
    ///
    /// # Panics
    ///
    /// If the server does not create it.
    pub async fn fresh_bucket(&self) -> String {
        let name = format!("test-{:016x}", SystemHost.random_bits() >> 64);
        self.create_bucket(&name).await.expect("a bucket can be created");
        name
    }

    /// Port for `TEST_S3_PORTS`, as used by [`shared`](Self::shared).
    #[must_use]
    pub fn base_port(&self) -> u16 {
        self.ports.base()
    }

    /// Address of the S3 interface, as `http://127.0.0.1:PORT`.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.ports.s3())
    }

    /// Options to open a bucket: `open("s3://BUCKET/PREFIX", &weed.options(), …)`.
    #[must_use]
    pub fn options(&self) -> OpenOptions {
        OpenOptions {
            endpoint: Some(self.endpoint()),
            region: Some("us-east-1".into()),
            access_key: Some(AccessKey { id: "test".into(), secret: "testsecret".into() }),
            ..OpenOptions::default()
        }
    }

    /// Creates a bucket, or leaves an existing one unchanged.
    ///
    /// Uses the filer: a folder under `/buckets` is a bucket, and the filer needs no signature.
    /// One object is written and removed again, because the first write to a bucket allocates a
    /// volume, which takes 200 ms that would distort a test's timing.
    pub async fn create_bucket(&self, name: &str) -> io::Result<()> {
        let first = format!("/buckets/{name}/.first-write");
        self.filer(Method::POST, &format!("/buckets/{name}/"), "").await?;
        self.filer(Method::PUT, &first, "first").await?;
        self.filer(Method::DELETE, &first, "").await
    }

    /// Bytes that weed reports to have sent to clients of a bucket since its start, only bodies of answers.
    pub async fn sent_bytes(&self, bucket: &str) -> io::Result<u64> {
        let url = format!("http://127.0.0.1:{}/metrics", self.ports.metrics());
        let (_, metrics) = exchange(Method::GET, url, "").await?;
        let metrics = String::from_utf8_lossy(&metrics).into_owned();
        let counter = format!("SeaweedFS_s3_bucket_traffic_sent_bytes_total{{bucket=\"{bucket}\"}} ");
        let Some(count) = metrics.lines().find_map(|line| line.strip_prefix(&counter)) else {
            let is_counting = metrics.contains("SeaweedFS_");
            return if is_counting { Ok(0) } else { Err(io::Error::other("weed reports no metrics")) };
        };
        // Prometheus writes large numbers like 2.68e+08.
        let count: f64 = count.trim().parse().map_err(io::Error::other)?;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a count, far below 2^52"
        )]
        Ok(count as u64)
    }

    /// True if S3 answers and the filer can store a few bytes, which needs the master and a volume too.
    async fn is_ready(&self) -> bool {
        let s3 = send(Method::GET, format!("{}/", self.endpoint()), "").await;
        s3.is_ok() && self.filer(Method::PUT, "/leasehold-ready", "ready").await.is_ok()
    }

    async fn filer(&self, method: Method, path: &str, body: &'static str) -> io::Result<()> {
        let url = format!("http://127.0.0.1:{}{path}", self.ports.filer());
        let status = send(method, url, body).await?;
        if status.is_success() {
            return Ok(());
        }
        Err(io::Error::other(format!("weed's filer answers {status} for `{path}`")))
    }
}

async fn send(method: Method, url: String, body: &'static str) -> io::Result<StatusCode> {
    exchange(method, url, body).await.map(|(status, _)| status)
}

async fn exchange(method: Method, url: String, body: &'static str) -> io::Result<(StatusCode, Bytes)> {
    let request = Request::builder()
        .method(method)
        .uri(url)
        .body(Full::new(Bytes::from_static(body.as_bytes())))
        .map_err(io::Error::other)?;
    let client = Client::builder(TokioExecutor::new()).build_http();
    let answer =
        tokio::time::timeout(REQUEST_MAX, client.request(request)).await?.map_err(io::Error::other)?;
    let status = answer.status();
    let read = tokio::time::timeout(REQUEST_MAX, answer.into_body().collect()).await?;
    Ok((status, read.map_err(io::Error::other)?.to_bytes()))
}
