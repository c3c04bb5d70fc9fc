//! A store from an address: `s3://bucket/prefix`, `gs://…`, `az://…`, `file:///path`, a plain path, `memory://`.

use leasehold_core::{Error, Result};
use std::sync::Arc;

use crate::client::Client;
use crate::folder::{FolderOptions, FolderStore};
use crate::host::{Host, SystemHost};
use crate::memory::MemoryStore;
use crate::object::{AccessKey, BucketAddress, BucketStore};
use crate::seam::Store;

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

/// Opens the store at `address`. A folder is made if need be; to a bucket nothing is sent yet.
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
    let path = match address.split_once("://") {
        None => address,
        Some(("file", path)) if path.starts_with('/') => path,
        Some(("file", _)) => {
            return Err(Error::invalid(format!(
                "`{address}` is not a path; write file:///path, or the path alone"
            )));
        }
        Some((scheme, _)) => {
            return Err(Error::invalid(format!(
                "`{scheme}://` is not a kind of store; there are s3://, gs://, az://, file://, memory:// and plain paths"
            )));
        }
    };
    if path.is_empty() {
        return Err(Error::invalid("the store's address is empty"));
    }
    Ok(Arc::new(FolderStore::open(path, options.folder, host)?))
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
                "redis://x",
                "`redis://` is not a kind of store; there are s3://, gs://, az://, file://, memory:// and plain paths",
            ),
        ] {
            assert_eq!(opened(address).unwrap_err().to_string(), message);
        }
    }
}
