//! The command `artifact`: one artifact fetched into a cache, against a plain download of the same object.
//!
//! Both sides request the same ranges, with the same concurrency, and write them into a file that is then
//! synced. Our side also verifies every piece and the whole file, and records the verified pieces. Each fetch
//! is a process of its own, so that its memory can be measured; the two sides alternate.

use anyhow::{Context, ensure};
use leasehold_core::{ArtifactId, keys};
use leasehold_pieces::{ArtifactStore, Cache, PublishOptions};
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

use crate::args::{self, BenchStore, FetchSide};
use crate::store_under_test::{self, StoreUnderTest};

use crate::memory;
use crate::plain_bucket::PlainBucket;
use crate::report::BenchReport;
use crate::round::cpu_time;

const STORE: &str = "artifacts";
/// Range size and concurrency of a fetch without peers.
const RANGE_BYTES: u64 = 16 * 1_024 * 1_024;
const RANGES_AT_ONCE: u64 = 4;

/// Measurement of one fetch, reported by its process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct FetchMeasurement {
    pub(crate) bytes: u64,
    pub(crate) requests: u64,
    pub(crate) seconds: f64,
    pub(crate) cpu_seconds: f64,
    pub(crate) memory_peak: u64,
}

/// Neighbouring rounds of both sides.
pub(crate) struct ArtifactPair {
    pub(crate) ours: FetchMeasurement,
    pub(crate) plain: FetchMeasurement,
}

pub(crate) fn run(args: &args::ArtifactArgs) -> anyhow::Result<()> {
    let runtime = Arc::new(tokio::runtime::Builder::new_multi_thread().enable_all().build()?);
    let mut report = BenchReport::new(args.json);
    let store = StoreUnderTest::open(BenchStore::S3, &args.site, &runtime)?;
    let folder = tempfile::Builder::new().prefix("leasehold-bench-").to_owned();
    let folder = args.site.dir.as_ref().map_or_else(|| folder.tempdir(), |dir| folder.tempdir_in(dir))?;
    let artifact = publish(args, &store, &folder, &runtime)?;
    let mut pairs = Vec::new();
    for round in 0..=args.rounds {
        BenchReport::progress(BenchStore::S3, &format!("round {round}"));
        let fetch = |side| fetch_in_process(side, &store, &artifact, folder.path());
        // The second side finds the disk still busy with the first, so they alternate.
        let (ours, plain) = if round % 2 == 0 {
            let ours = fetch(FetchSide::Ours)?;
            (ours, fetch(FetchSide::Plain)?)
        } else {
            let plain = fetch(FetchSide::Plain)?;
            (fetch(FetchSide::Ours)?, plain)
        };
        // The first round warms up.
        if round > 0 {
            pairs.push(ArtifactPair { ours, plain });
        }
    }
    report.artifact(&pairs);
    report.finish();
    Ok(())
}

fn publish(
    args: &args::ArtifactArgs,
    store: &StoreUnderTest,
    folder: &TempDir,
    runtime: &Arc<Runtime>,
) -> anyhow::Result<ArtifactId> {
    let path = folder.path().join("file");
    let mut file = BufWriter::new(File::create(&path)?);
    // Content without repetitions.
    for block in 0..args.mib * 1_024 * 1_024 / 8 {
        file.write_all(&block.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes())?;
    }
    file.flush()?;
    let node = ArtifactStore::new(store.client(STORE)?, Cache::open(folder.path().join("unused"), None)?);
    let published = runtime.block_on(node.publish(&path, &PublishOptions::default()))?;
    std::fs::remove_file(path)?;
    Ok(published.manifest.artifact)
}

/// Fetches in a process of its own, and removes the fetched file.
fn fetch_in_process(
    side: FetchSide,
    store: &StoreUnderTest,
    artifact: &ArtifactId,
    folder: &Path,
) -> anyhow::Result<FetchMeasurement> {
    let to = folder.join("fetched");
    let mut process = Command::new(std::env::current_exe()?);
    process.args(["fetch", "--address", &store.address(STORE), "--artifact", artifact.as_str()]);
    process.arg("--to").arg(&to).args(["--side", side.name()]);
    process.args(["--endpoint", store.endpoint().context("the store is a bucket")?]);
    let ended = process.stderr(Stdio::inherit()).output()?;
    ensure!(ended.status.success(), "the fetch failed: {}", ended.status);
    std::fs::remove_dir_all(to)?;
    serde_json::from_slice(&ended.stdout).context("failed to parse the output of the fetch")
}

/// Process of one fetch.
pub(crate) fn work(args: &args::BenchFetchArgs) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let artifact: ArtifactId =
        args.artifact.parse().ok().context("--artifact must be the hash of an artifact")?;
    let client = store_under_test::client(BenchStore::S3, &args.address, Some(&args.endpoint))?;
    let node = ArtifactStore::new(client.clone(), Cache::open(&args.to, None)?);
    // Both sides begin with the manifest: its request opens the first connection.
    let size = runtime.block_on(node.manifest(&artifact))?.cut.size();
    let plain_side = Plain::open(args, &artifact)?;
    runtime.block_on(plain_side.s3.range(&plain_side.key, 0..1))?;
    let (begun, cpu) = (Instant::now(), cpu_time());
    let requests = match args.side {
        FetchSide::Ours => runtime.block_on(node.fetch(&artifact, &|_| ()))?.1.origin_requests,
        FetchSide::Plain => runtime.block_on(plain_side.fetch(&args.to, size))?,
    };
    BenchReport::fetch_measurement(&FetchMeasurement {
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
    fn open(args: &args::BenchFetchArgs, artifact: &ArtifactId) -> anyhow::Result<Self> {
        let address = args.address.strip_prefix("s3://").context("the address must begin with s3://")?;
        let (bucket, prefix) = address.split_once('/').context("the address has no prefix")?;
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
                fetches.join_next().await.context("no fetch is in flight")???;
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
