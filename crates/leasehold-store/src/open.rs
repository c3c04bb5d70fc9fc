//! A store from an address: `s3://bucket/prefix`, `gs://…`, `az://…`, `file:///path`, a plain path, `memory://`.

use leasehold_core::{Error, Result};
use std::path::Path;
use std::sync::Arc;

use crate::client::Client;
use crate::folder::{FolderOptions, FolderStore};
use crate::host::{Host, SystemHost};
use crate::memory::MemoryStore;
use crate::object::{AccessKey, BucketAddress, BucketStore};
use crate::seam::Store;

/// Schemes of addresses. A path that begins with one of them and a colon is a mistyped address.
const SCHEMES: [&str; 7] = ["s3", "gs", "az", "file", "memory", "http", "https"];

/// Purpose for which a store is opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OpenMode {
    /// To create what is missing: the folder, and the queue in it.
    #[default]
    Create,
    /// To change what exists. A folder that holds nothing of ours stays as it is and reads as empty.
    Write,
    /// To read. Read permission is enough.
    Read,
}

/// What an address leaves open.
#[derive(Debug, Clone, Default)]
pub struct OpenOptions {
    /// How to open a folder.
    pub folder: FolderOptions,
    /// The server of a bucket, if it is not the provider's own.
    pub endpoint: Option<String>,
    /// The region of a bucket, if not from the usual variables and files.
    pub region: Option<String>,
    /// The access key of a bucket, if not from the usual variables and files.
    pub access_key: Option<AccessKey>,
}

/// Opens the store at `address`. A folder is created if it was opened for that; to a bucket nothing is sent yet.
pub fn open(address: &str, options: &OpenOptions, host: &Arc<dyn Host>) -> Result<Arc<dyn Store>> {
    if let Some(bucket) = BucketAddress::parse(address) {
        let bucket = BucketAddress {
            endpoint: options.endpoint.clone(),
            region: options.region.clone(),
            access_key: options.access_key.clone(),
            ..bucket?
        };
        return Ok(Arc::new(BucketStore::open(bucket, host)?));
    }
    if address == "memory://" {
        return Ok(Arc::new(MemoryStore::new(host)));
    }
    Ok(Arc::new(FolderStore::open(path(address)?, options.folder, host)?))
}

/// Path of the folder that an address names; none if it names a bucket or memory.
pub fn folder(address: &str) -> Result<Option<&Path>> {
    if BucketAddress::parse(address).is_some() || address == "memory://" {
        return Ok(None);
    }
    path(address).map(|path| Some(Path::new(path)))
}

/// Scheme of an address, complete or not; none for a path.
#[must_use]
pub fn scheme(address: &str) -> Option<&str> {
    let (scheme, rest) = address.split_once(':')?;
    (rest.starts_with("//") || SCHEMES.contains(&scheme)).then_some(scheme)
}

fn path(address: &str) -> Result<&str> {
    match address.split_once("://") {
        Some(("file", path)) if path.starts_with('/') => Ok(path),
        Some(("file", _)) => {
            Err(Error::invalid(format!("`{address}` is not a path; write file:///path, or the path alone")))
        }
        Some((scheme, _)) => Err(Error::invalid(format!(
            "`{scheme}://` is not a kind of store; there are s3://, gs://, az://, file://, memory:// and plain paths"
        ))),
        None if address.is_empty() => Err(Error::invalid("the store's address is empty")),
        None => match scheme(address) {
            Some(scheme) => Err(Error::invalid(format!(
                "`{address}` is not an address; write {scheme}://… for a store, or ./{address} for a folder of that name"
            ))),
            None => Ok(address),
        },
    }
}

impl Client {
    /// A client of the store at `address`, on the machine this process really runs on.
    pub fn open(address: &str, options: &OpenOptions) -> Result<Self> {
        let host: Arc<dyn Host> = Arc::new(SystemHost);
        Ok(Client::new(open(address, options, &host)?, host))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened(address: &str) -> Result<String> {
        let host: Arc<dyn Host> = Arc::new(SystemHost);
        open(address, &OpenOptions::default(), &host).map(|store| store.describe())
    }

    #[test]
    fn every_kind_of_address_opens_its_store() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().canonicalize().unwrap();
        let plain = path.to_str().unwrap();
        assert_eq!(opened(plain).unwrap(), format!("folder {plain}"));
        assert_eq!(opened(&format!("file://{plain}")).unwrap(), format!("folder {plain}"));
        assert_eq!(opened("memory://").unwrap(), "memory");
        assert_eq!(opened("s3://bucket/some/prefix").unwrap(), "s3://bucket/some/prefix");
    }

    #[test]
    fn wrong_addresses_say_what_there_is() {
        for (address, message) in [
            ("", "the store's address is empty"),
            ("file://tmp", "`file://tmp` is not a path; write file:///path, or the path alone"),
            (
                "s3:/foo",
                "`s3:/foo` is not an address; write s3://… for a store, or ./s3:/foo for a folder of that name",
            ),
            (
                "redis://x",
                "`redis://` is not a kind of store; there are s3://, gs://, az://, file://, memory:// and plain paths",
            ),
        ] {
            assert_eq!(opened(address).unwrap_err().to_string(), message);
        }
    }
}
