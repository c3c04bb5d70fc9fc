//! Queues over one folder, each with a connection of its own, as processes have.
#![expect(clippy::unwrap_used, reason = "in a test a panic is the report, in its helpers too")]

mod bucket;
mod hostile;
mod hosts;
mod intruders;
mod operating;
mod sharing;

use leasehold_broker::BrokerConnections;
use leasehold_queue::{BrokerRole, LayoutName, Queue, QueueConfig, QueueLocation, SnapshotLimits};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;

/// A queue in a folder that is removed at the end.
struct SharedFolder {
    directory: TempDir,
}

impl SharedFolder {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    /// A queue with a connection of its own.
    async fn process(&self, by: &str) -> Queue {
        self.process_as(by, BrokerRole::Auto).await
    }

    async fn process_as(&self, by: &str, broker_role: BrokerRole) -> Queue {
        self.process_with(QueueConfig { by: by.to_owned(), broker_role, ..QueueConfig::default() }).await
    }

    async fn process_with_snapshots(&self, by: &str, snapshots: SnapshotLimits) -> Queue {
        self.process_with(QueueConfig { by: by.to_owned(), snapshots, ..QueueConfig::default() }).await
    }

    async fn process_with(&self, config: QueueConfig) -> Queue {
        let transport = Some(Arc::new(BrokerConnections::new(self.path().join("of-user"), None)) as _);
        let layout = Some(LayoutName::Journal);
        let config = QueueConfig { layout, transport, ..config };
        let place = QueueLocation::Folder(self.path().join("queue"));
        Queue::with_config(place, config).await.unwrap()
    }

    /// Path of the socket of the broker.
    fn socket(&self) -> PathBuf {
        let entries = std::fs::read_dir(self.path().join("queue/.leasehold/broker")).unwrap();
        let mut paths = entries.map(|entry| entry.unwrap().path());
        let socket = paths.next().expect("the broker has a socket");
        assert!(paths.next().is_none(), "there is one socket");
        socket
    }
}
