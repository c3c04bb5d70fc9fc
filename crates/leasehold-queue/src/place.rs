//! Location of a queue.

use leasehold_core::Result;
use leasehold_store::{Client, FolderOptions, FolderStore, Host, OpenMode, OpenOptions, SystemHost};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Location of a queue. Text is an address (`s3://bucket/prefix`, `file:///path`, `memory://`, …) or a plain path; a
/// [`Client`] is for programs that open the store themselves.
#[derive(Debug, Clone)]
pub enum Place {
    /// A store's address.
    Address(String),
    /// A folder; its path is never read as an address.
    Folder(PathBuf),
    /// An open store.
    Client(Client),
}

impl Place {
    pub(crate) fn client(self, mode: OpenMode) -> Result<Client> {
        let folder = FolderOptions { mode, ..FolderOptions::default() };
        match self {
            Place::Address(address) => {
                Client::open(&address, &OpenOptions { folder, ..OpenOptions::default() })
            }
            Place::Folder(path) => {
                let host: Arc<dyn Host> = Arc::new(SystemHost);
                let store = FolderStore::open(path, folder, &host)?;
                Ok(Client::new(Arc::new(store), host))
            }
            Place::Client(client) => Ok(client),
        }
    }
}

impl From<&str> for Place {
    fn from(address: &str) -> Self {
        Place::Address(address.to_owned())
    }
}

impl From<String> for Place {
    fn from(address: String) -> Self {
        Place::Address(address)
    }
}

impl From<&Path> for Place {
    fn from(path: &Path) -> Self {
        Place::Folder(path.to_owned())
    }
}

impl From<Client> for Place {
    fn from(client: Client) -> Self {
        Place::Client(client)
    }
}
