//! The command `artifact`: one artifact fetched into a cache, against a plain download of the same object.
//!
//! Both ask for the same ranges, as many at once, and write them into a file that is then synced. Ours also verifies
//! every piece and the whole, and notes what it has. Each fetch is a process of its own, so that its memory can be told;
//! the two sides take turns.

use anyhow::{Context, ensure};
use leasehold_core::{ArtifactId, keys};
use leasehold_pieces::{Artifacts, Cache, PublishOptions};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Instant;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use crate::args::{self, CarrySide, Place};
use crate::ground::{self, Ground};

use crate::memory;
use crate::plain_bucket::PlainBucket;
use crate::report::Report;
use crate::side::cpu_time;

const STORE: &str = "artifacts";
/// What a fetch with nobody else around asks for, and how often at once.
const RANGE_BYTES: u64 = 16 * 1_024 * 1_024;
const RANGES_AT_ONCE: u64 = 4;

/// How one fetch went, as its process tells.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Carried {
    pub(crate) bytes: u64,
    pub(crate) requests: u64,
    pub(crate) seconds: f64,
    pub(crate) cpu_seconds: f64,
    pub(crate) memory_peak: u64,
}

/// Neighbouring rounds of both sides.
pub(crate) struct Pair {
    pub(crate) ours: Carried,
    pub(crate) plain: Carried,
}

pub(crate) fn run(args: &args::Artifact) -> anyhow::Result<()> {
    let runtime = Arc::new(tokio::runtime::Builder::new_multi_thread().enable_all().build()?);
    let mut report = Report::new(args.json);
    let ground = Ground::open(Place::S3, &args.site, &runtime)?;
    let folder = tempfile::Builder::new().prefix("leasehold-bench-").to_owned();
    let folder = args.site.dir.as_ref().map_or_else(|| folder.tempdir(), |dir| folder.tempdir_in(dir))?;
    let artifact = publish(args, &ground, &folder, &runtime)?;
    let mut pairs = Vec::new();
    for round in 0..=args.rounds {
        Report::progress(Place::S3, &format!("round {round}"));
        let carry = |side| carry(side, &ground, &artifact, folder.path());
        // Whoever comes second finds a disk that is still busy with the first: they take turns.
        let (ours, plain) = if round % 2 == 0 {
            let ours = carry(CarrySide::Ours)?;
            (ours, carry(CarrySide::Plain)?)
        } else {
            let plain = carry(CarrySide::Plain)?;
            (carry(CarrySide::Ours)?, plain)
        };
        // The first one warms up.
        if round > 0 {
            pairs.push(Pair { ours, plain });
        }
    }
    report.artifact(&pairs);
    report.finish();
    Ok(())
}

fn publish(
    args: &args::Artifact,
    ground: &Ground,
    folder: &TempDir,
    runtime: &Arc<Runtime>,
) -> anyhow::Result<ArtifactId> {
    let path = folder.path().join("file");
    let mut file = BufWriter::new(File::create(&path)?);
    // Bytes that repeat nowhere.
    for block in 0..args.mib * 1_024 * 1_024 / 8 {
        file.write_all(&block.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes())?;
    }
    file.flush()?;
    let node = Artifacts::new(ground.client(STORE)?, Cache::open(folder.path().join("unused"), None)?);
    let published = runtime.block_on(node.publish(&path, &PublishOptions::default()))?;
    std::fs::remove_file(path)?;
    Ok(published.manifest.artifact)
}

/// Lets a process of its own fetch, and removes what it fetched.
fn carry(side: CarrySide, ground: &Ground, artifact: &ArtifactId, folder: &Path) -> anyhow::Result<Carried> {
    let to = folder.join("fetched");
    let mut process = Command::new(std::env::current_exe()?);
    process.args(["carry", "--address", &ground.address(STORE), "--artifact", artifact.as_str()]);
    process.arg("--to").arg(&to).args(["--side", side.name()]);
    process.args(["--endpoint", ground.endpoint().context("it is a bucket")?]);
    let ended = process.stderr(Stdio::inherit()).output()?;
    ensure!(ended.status.success(), "the fetch has failed: {}", ended.status);
    std::fs::remove_dir_all(to)?;
    serde_json::from_slice(&ended.stdout).context("the fetch does not say what it did")
}

/// The process of one fetch.
pub(crate) fn work(args: &args::Carry) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let artifact: ArtifactId = args.artifact.parse().ok().context("no hash")?;
    let client = ground::client(Place::S3, &args.address, Some(&args.endpoint))?;
    let node = Artifacts::new(client.clone(), Cache::open(&args.to, None)?);
    // Both begin with the manifest: its request opens the first connection.
    let size = runtime.block_on(node.manifest(&artifact))?.cut.size();
    let plain_side = Plain::open(args, &artifact)?;
    runtime.block_on(plain_side.s3.range(&plain_side.key, 0..1))?;
    let (begun, cpu) = (Instant::now(), cpu_time());
    let requests = match args.side {
        CarrySide::Ours => runtime.block_on(node.fetch(&artifact, &|_| ()))?.1.origin_requests,
        CarrySide::Plain => runtime.block_on(plain_side.fetch(&args.to, size))?,
    };
    Report::carried(&Carried {
        bytes: size,
        requests,
        seconds: begun.elapsed().as_secs_f64(),
        cpu_seconds: cpu_time().saturating_sub(cpu).as_secs_f64(),
        memory_peak: memory::peak()?,
    })
}

/// A plain download in ranges.
struct Plain {
    s3: Arc<PlainBucket>,
    key: String,
}

impl Plain {
    fn open(args: &args::Carry, artifact: &ArtifactId) -> anyhow::Result<Self> {
        let address = args.address.strip_prefix("s3://").context("no bucket")?;
        let (bucket, prefix) = address.split_once('/').context("no prefix")?;
        let key = format!("{prefix}/{}", keys::artifact_data(artifact));
        Ok(Self { s3: Arc::new(PlainBucket::open(&args.endpoint, bucket, "")?), key })
    }

    async fn fetch(&self, to: &Path, size: u64) -> anyhow::Result<u64> {
        let file = Arc::new(File::create(to.join("plain"))?);
        file.set_len(size)?;
        let ranges = size.div_ceil(RANGE_BYTES);
        let mut fetches = JoinSet::new();
        for number in 0..ranges {
            if number >= RANGES_AT_ONCE {
                fetches.join_next().await.context("nothing under way")???;
            }
            let (s3, file, key) = (self.s3.clone(), file.clone(), self.key.clone());
            fetches.spawn(async move {
                let start = number * RANGE_BYTES;
                let bytes = s3.range(&key, start..size.min(start + RANGE_BYTES)).await?;
                tokio::task::spawn_blocking(move || file.write_all_at(&bytes, start)).await??;
                anyhow::Ok(())
            });
        }
        while let Some(ended) = fetches.join_next().await {
            ended??;
        }
        tokio::task::spawn_blocking(move || file.sync_all()).await??;
        Ok(ranges)
    }
}
