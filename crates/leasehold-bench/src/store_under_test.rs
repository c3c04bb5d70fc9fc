//! Store under measurement: a temporary folder or bucket, with room for our stores and for plain calls.

use anyhow::Context;
use leasehold_store::testing::SeaweedFs;
use leasehold_store::{AccessKey, Client, Durability, FolderOptions, Host, OpenOptions, SystemHost};
use std::sync::Arc;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::args::{BenchStore, StoreArgs};
use crate::plain_bucket::PlainBucket;
use crate::plain_folder::PlainFolder;
use crate::round::{AsyncSide, Side, ThreadSide};

const BUCKET: &str = "bench";

pub(crate) struct StoreUnderTest {
    pub(crate) place: BenchStore,
    /// Plain calls: the same requests without Leasehold.
    pub(crate) plain: Box<dyn Side>,
    root: String,
    endpoint: Option<String>,
    folder: Option<TempDir>,
    /// Killed on drop.
    _weed: Option<SeaweedFs>,
}

impl StoreUnderTest {
    pub(crate) fn open(place: BenchStore, site: &StoreArgs, runtime: &Arc<Runtime>) -> anyhow::Result<Self> {
        match place {
            BenchStore::Folder | BenchStore::Os => Self::folder(place, site),
            BenchStore::S3 => Self::bucket(site, runtime),
        }
    }

    fn folder(place: BenchStore, site: &StoreArgs) -> anyhow::Result<Self> {
        let make = tempfile::Builder::new().prefix("leasehold-bench-").to_owned();
        let folder = site.dir.as_ref().map_or_else(|| make.tempdir(), |dir| make.tempdir_in(dir))?;
        let calls = PlainFolder::open(folder.path().join("plain"), place == BenchStore::Folder)?;
        let root = folder.path().to_str().context("the folder's path is not UTF-8")?.to_owned();
        let plain = Box::new(ThreadSide { calls });
        Ok(Self { place, plain, root, endpoint: None, folder: Some(folder), _weed: None })
    }

    fn bucket(site: &StoreArgs, runtime: &Arc<Runtime>) -> anyhow::Result<Self> {
        let binary =
            site.weed.as_ref().context("SeaweedFS is missing; run ./test once, or set LEASEHOLD_WEED")?;
        let weed = runtime.block_on(async {
            let weed = SeaweedFs::start(binary).await?;
            weed.create_bucket(BUCKET).await?;
            anyhow::Ok(weed)
        });
        let weed = weed.with_context(|| format!("failed to start {}", binary.display()))?;
        let calls = Arc::new(PlainBucket::open(&weed.endpoint(), BUCKET, "plain/")?);
        let plain = Box::new(AsyncSide { calls, runtime: runtime.clone() });
        let (root, endpoint) = (format!("s3://{BUCKET}"), Some(weed.endpoint()));
        Ok(Self { place: BenchStore::S3, plain, root, endpoint, folder: None, _weed: Some(weed) })
    }

    /// Address of one of our stores in it.
    pub(crate) fn address(&self, name: &str) -> String {
        format!("{}/{name}", self.root)
    }

    /// Endpoint of the bucket.
    pub(crate) fn endpoint(&self) -> Option<&str> {
        self.endpoint.as_deref()
    }

    pub(crate) fn client(&self, name: &str) -> anyhow::Result<Client> {
        client(self.place, &self.address(name), self.endpoint())
    }

    /// Stops the server. Returns the folder, so that it is removed only after all measurements.
    pub(crate) fn into_folder(self) -> Option<TempDir> {
        self.folder
    }
}

/// Opens a client of one of our stores, also from another process than the one that created it.
pub(crate) fn client(place: BenchStore, address: &str, endpoint: Option<&str>) -> anyhow::Result<Client> {
    let durability = if place == BenchStore::Os { Durability::Os } else { Durability::Fsync };
    let options = OpenOptions {
        folder: FolderOptions { durability, ..FolderOptions::default() },
        endpoint: endpoint.map(str::to_owned),
        region: Some("us-east-1".into()),
        access_key: Some(AccessKey { id: "test".into(), secret: "testsecret".into() }),
    };
    let host: Arc<dyn Host> = Arc::new(SystemHost);
    let store = leasehold_store::open(address, &options, &host)?;
    Ok(Client::new(store, host))
}
