//! The command `raw`: every kind of request on every store, ours against plain calls of the same kind.

use anyhow::{Context, ensure};
use leasehold_store::testing::Weed;
use leasehold_store::{
    AccessKey, BucketAddress, BucketStore, Client, Durability, FolderOptions, FolderStore, Host, Store,
    SystemHost,
};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::args::{Place, Raw};
use crate::measure::Pair;
use crate::operation::Operation;
use crate::ours::Ours;
use crate::plain_bucket::PlainBucket;
use crate::plain_folder::PlainFolder;
use crate::report::Report;
use crate::side::{Side, Tasks, Threads};

pub(crate) fn run(raw: &Raw) -> anyhow::Result<()> {
    let runtime = Arc::new(tokio::runtime::Builder::new_multi_thread().enable_all().build()?);
    let mut report = Report::new(raw.json);
    let mut folders = Vec::new();
    for place in Place::ALL {
        if raw.only.is_empty() || raw.only.contains(&place) {
            match place {
                Place::Folder => folders.push(folder(raw, place, Durability::Fsync, &runtime, &mut report)?),
                Place::Os => folders.push(folder(raw, place, Durability::Os, &runtime, &mut report)?),
                Place::S3 => bucket(raw, &runtime, &mut report)?,
            }
        }
    }
    report.finish();
    Ok(())
}

/// The folder is given back, so that it is removed only when nothing is measured any more.
fn folder(
    raw: &Raw,
    place: Place,
    durability: Durability,
    runtime: &Arc<Runtime>,
    report: &mut Report,
) -> anyhow::Result<TempDir> {
    let make = tempfile::Builder::new().prefix("leasehold-bench-").to_owned();
    let root = raw.dir.as_ref().map_or_else(|| make.tempdir(), |dir| make.tempdir_in(dir))?;
    let host: Arc<dyn Host> = Arc::new(SystemHost);
    let options = FolderOptions { durability, time: None };
    let store = FolderStore::open(root.path().join("ours"), options, &host)?;
    let plain = PlainFolder::open(root.path().join("plain"), durability == Durability::Fsync)?;
    compare(raw, place, Arc::new(store), &Threads { calls: plain }, runtime, report)?;
    Ok(root)
}

fn bucket(raw: &Raw, runtime: &Arc<Runtime>, report: &mut Report) -> anyhow::Result<()> {
    const BUCKET: &str = "bench";
    let binary = raw.weed.as_ref().context("no SeaweedFS; run ./test once, or set LEASEHOLD_WEED")?;
    let weed = runtime.block_on(async {
        let weed = Weed::start(binary).await?;
        weed.create_bucket(BUCKET).await?;
        anyhow::Ok(weed)
    });
    let mut weed = weed.with_context(|| format!("{} cannot be started", binary.display()))?;
    let address = BucketAddress {
        endpoint: Some(weed.endpoint()),
        region: Some("us-east-1".into()),
        access_key: Some(AccessKey { id: "test".into(), secret: "testsecret".into() }),
        ..BucketAddress::parse(&format!("s3://{BUCKET}/ours")).context("it is an address")??
    };
    let host: Arc<dyn Host> = Arc::new(SystemHost);
    let store = BucketStore::open(address, &host)?;
    let plain = Arc::new(PlainBucket::open(&weed.endpoint(), BUCKET, "plain/")?);
    let plain = Tasks { calls: plain, runtime: runtime.clone() };
    let compared = compare(raw, Place::S3, Arc::new(store), &plain, runtime, report);
    runtime.block_on(weed.stop())?;
    compared
}

fn compare(
    raw: &Raw,
    place: Place,
    store: Arc<dyn Store>,
    plain: &dyn Side,
    runtime: &Arc<Runtime>,
    report: &mut Report,
) -> anyhow::Result<()> {
    ensure!(raw.seconds > 0.0 && raw.seconds < 3_600.0, "--seconds must be above 0 and below an hour");
    let client = Client::new(store, Arc::new(SystemHost));
    let ours = Tasks { calls: Arc::new(Ours(client.clone())), runtime: runtime.clone() };
    let pair = Pair { ours: &ours, plain, ledger: client.ledger() };
    pair.prepare()?;
    let mut measured = Vec::new();
    for operation in Operation::ALL {
        if !raw.operation.is_empty() && !raw.operation.iter().any(|name| name == operation.name()) {
            continue;
        }
        for in_flight in &raw.in_flight {
            Report::progress(place, operation, *in_flight);
            measured.push(pair.measure(operation, *in_flight, Duration::from_secs_f64(raw.seconds))?);
        }
    }
    report.store(place, &measured);
    Ok(())
}
