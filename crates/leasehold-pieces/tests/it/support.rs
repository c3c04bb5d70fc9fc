//! A store in memory, nodes with caches of their own, and servers on loopback.

use leasehold_core::Name;
use leasehold_pieces::serve::PieceSource;
use leasehold_pieces::{Announcement, ArtifactStore, Cache, Peers, PieceServer, ServeOptions};
use leasehold_store::host::Running;
use leasehold_store::{Client, Host, MemoryStore, SystemHost};
use leasehold_worker::Shutdown;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;

/// A store and the machines around it.
pub(crate) struct TestCluster {
    pub(crate) directory: TempDir,
    pub(crate) store: Arc<MemoryStore>,
}

impl TestCluster {
    pub(crate) fn new() -> Self {
        let host: Arc<dyn Host> = Arc::new(SystemHost);
        Self { directory: TempDir::new().unwrap(), store: Arc::new(MemoryStore::new(&host)) }
    }

    /// A client with its own request counts.
    pub(crate) fn client(&self) -> Client {
        Client::new(self.store.clone(), Arc::new(SystemHost))
    }

    pub(crate) fn cache(&self, name: &str) -> Cache {
        Cache::open(self.directory.path().join("caches").join(name), None).unwrap()
    }

    pub(crate) fn node(&self, name: &str) -> ArtifactStore {
        ArtifactStore::new(self.client(), self.cache(name))
    }

    pub(crate) fn node_with_peers(&self, name: &str) -> ArtifactStore {
        let client = self.client();
        let peers = Peers::new(client.clone(), None, None);
        ArtifactStore::new(client, self.cache(name)).with_peers(peers)
    }

    /// Writes a file of this size without repeating bytes.
    pub(crate) fn file(&self, size: u64) -> (PathBuf, Vec<u8>) {
        let path = self.directory.path().join(format!("file-{size}"));
        let mut bytes = Vec::new();
        let mut block: u64 = 0;
        while (bytes.len() as u64) < size {
            bytes.extend_from_slice(&(block ^ size).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
            block += 1;
        }
        bytes.truncate(usize::try_from(size).unwrap());
        fs::write(&path, &bytes).unwrap();
        (path, bytes)
    }

    /// Serves the cache of a node, and announces it in the store.
    pub(crate) async fn serve(&self, name: &str) -> Serving {
        self.serve_source(name, Arc::new(self.cache(name))).await
    }

    pub(crate) async fn serve_source(&self, name: &str, source: Arc<dyn PieceSource>) -> Serving {
        let client = self.client();
        let present = {
            let client = client.clone();
            Arc::new(move || client.now())
        };
        let server =
            PieceServer::bind(source, ServeOptions::default(), Arc::new(SystemHost), present).await.unwrap();
        let name = Name::checked("peer id", name).unwrap();
        let announcement = Announcement::claim(&client, &name, server.addr()).await.unwrap();
        let shutdown = Shutdown::default();
        let (serve, announce) = (shutdown.clone(), shutdown.clone());
        let running = SystemHost.spawn(Box::pin(async move {
            server.run(serve).await.unwrap();
        }));
        let announcing = SystemHost.spawn(Box::pin(async move {
            announcement.run(announce).await.unwrap();
        }));
        Serving { shutdown, running, announcing }
    }
}

/// A node that serves.
pub(crate) struct Serving {
    shutdown: Shutdown,
    running: Running,
    announcing: Running,
}

impl Serving {
    pub(crate) async fn stop(self) {
        self.shutdown.drain();
        self.running.await;
        self.announcing.await;
    }
}

pub(crate) fn contents(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap()
}
