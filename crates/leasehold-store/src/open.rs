//! Opens a store by its address: `s3://bucket/prefix`, `gs://…`, `az://…`, `file:///path`, a plain path, `memory://`.

use leasehold_core::{Error, Result};
use std::path::Path;
use std::sync::Arc;

use crate::client::Client;
use crate::folder::{FolderOptions, FolderStore};
use crate::host::{Host, SystemHost};
use crate::memory::MemoryStore;
use crate::object::{AccessKey, BucketAddress, BucketStore};
use crate::store::Store;

/// Schemes of addresses. A path that begins with one of them and a colon is a mistyped address.
const SCHEMES: [&str; 7] = ["s3", "gs", "az", "file", "memory", "http", "https"];

/// Purpose for which a store is opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OpenMode {
    /// To create what is missing: the folder, and the queue in it.
    #[default]
    Create,
    /// To change what exists. A folder without a store stays unchanged and reads as empty.
    Write,
    /// To read. Read permission is enough.
    Read,
}

/// Options that are not part of an address.
#[derive(Debug, Clone, Default)]
pub struct OpenOptions {
    /// Options of a folder.
    pub folder: FolderOptions,
    /// Endpoint of a bucket; none for the provider's own.
    pub endpoint: Option<String>,
    /// Region of a bucket; none for the provider's environment variables and files.
    pub region: Option<String>,
    /// Access key of a bucket; none for the provider's environment variables and files.
    pub access_key: Option<AccessKey>,
}

/// Opens the store at `address`. A folder is created in [`OpenMode::Create`]; no request is sent to a bucket.
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
            Err(Error::invalid(format!("`{address}` is not a folder; use file:///path, or the path alone")))
        }
        Some((scheme, _)) => Err(Error::invalid(format!(
            "unknown store `{scheme}://`; use s3://, gs://, az://, file://, memory:// or a plain path"
        ))),
        None if address.is_empty() => Err(Error::invalid("store address must not be empty")),
        None => match scheme(address) {
            Some(scheme) => Err(Error::invalid(format!(
                "`{address}` is not a store address; use {scheme}://…, or ./{address} for a folder of that name"
            ))),
            None => Ok(address),
        },
    }
}

impl Client {
    /// Opens a client of the store at `address`, on the real machine.
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
    fn invalid_addresses_are_explained() {
        for (address, message) in [
            ("", "store address must not be empty"),
            ("file://tmp", "`file://tmp` is not a folder; use file:///path, or the path alone"),
            (
                "s3:/foo",
                "`s3:/foo` is not a store address; use s3://…, or ./s3:/foo for a folder of that name",
            ),
            (
                "redis://x",
                "unknown store `redis://`; use s3://, gs://, az://, file://, memory:// or a plain path",
            ),
        ] {
            assert_eq!(opened(address).unwrap_err().to_string(), message);
        }
    }
}
