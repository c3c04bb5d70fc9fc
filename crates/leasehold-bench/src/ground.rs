//! Where something is measured: a folder or a bucket made for it, with room for stores of ours and for plain calls.

use anyhow::Context;
use leasehold_store::testing::Weed;
use leasehold_store::{AccessKey, Client, Durability, FolderOptions, Host, OpenOptions, SystemHost};
use std::sync::Arc;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::args::{Place, Site};
use crate::plain_bucket::PlainBucket;
use crate::plain_folder::PlainFolder;
use crate::side::{Side, Tasks, Threads};

const BUCKET: &str = "bench";

pub(crate) struct Ground {
    pub(crate) place: Place,
    /// The same requests without us.
    pub(crate) plain: Box<dyn Side>,
    root: String,
    endpoint: Option<String>,
    folder: Option<TempDir>,
    /// Killed when this goes.
    _weed: Option<Weed>,
}

impl Ground {
    pub(crate) fn open(place: Place, site: &Site, runtime: &Arc<Runtime>) -> anyhow::Result<Self> {
        match place {
            Place::Folder | Place::Os => Self::folder(place, site),
            Place::S3 => Self::bucket(site, runtime),
        }
    }

    fn folder(place: Place, site: &Site) -> anyhow::Result<Self> {
        let make = tempfile::Builder::new().prefix("leasehold-bench-").to_owned();
        let folder = site.dir.as_ref().map_or_else(|| make.tempdir(), |dir| make.tempdir_in(dir))?;
        let calls = PlainFolder::open(folder.path().join("plain"), place == Place::Folder)?;
        let root = folder.path().to_str().context("the folder's path is not text")?.to_owned();
        let plain = Box::new(Threads { calls });
        Ok(Self { place, plain, root, endpoint: None, folder: Some(folder), _weed: None })
    }

    fn bucket(site: &Site, runtime: &Arc<Runtime>) -> anyhow::Result<Self> {
        let binary = site.weed.as_ref().context("no SeaweedFS; run ./test once, or set LEASEHOLD_WEED")?;
        let weed = runtime.block_on(async {
            let weed = Weed::start(binary).await?;
            weed.create_bucket(BUCKET).await?;
            anyhow::Ok(weed)
        });
        let weed = weed.with_context(|| format!("{} cannot be started", binary.display()))?;
        let calls = Arc::new(PlainBucket::open(&weed.endpoint(), BUCKET, "plain/")?);
        let plain = Box::new(Tasks { calls, runtime: runtime.clone() });
        let (root, endpoint) = (format!("s3://{BUCKET}"), Some(weed.endpoint()));
        Ok(Self { place: Place::S3, plain, root, endpoint, folder: None, _weed: Some(weed) })
    }

    /// The address of a store of ours in it.
    pub(crate) fn address(&self, name: &str) -> String {
        format!("{}/{name}", self.root)
    }

    /// The server of a bucket.
    pub(crate) fn endpoint(&self) -> Option<&str> {
        self.endpoint.as_deref()
    }

    pub(crate) fn client(&self, name: &str) -> anyhow::Result<Client> {
        client(self.place, &self.address(name), self.endpoint())
    }

    /// Ends the server. The folder is given back, so that it is removed only when nothing is measured any more.
    pub(crate) fn leave(self) -> Option<TempDir> {
        self.folder
    }
}

/// A client of a store of ours, also from another process than the one that made the ground.
pub(crate) fn client(place: Place, address: &str, endpoint: Option<&str>) -> anyhow::Result<Client> {
    let durability = if place == Place::Os { Durability::Os } else { Durability::Fsync };
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
