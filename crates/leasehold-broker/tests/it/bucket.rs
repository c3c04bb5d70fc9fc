//! A bucket in memory, and processes on hosts that share nothing else.

use bytes::Bytes;
use leasehold_broker::{BrokerConnections, NetworkListen};
use leasehold_core::{Kind, keys};
use leasehold_queue::{BrokerAddress, LayoutName, NetworkAddress, Queue, QueueConfig};
use leasehold_store::store::Answer;
use leasehold_store::{
    Client, DelegatingStore, Failure, Host, List, MemoryStore, Purpose, PutAnswer, Store, SystemHost, When,
};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use tempfile::TempDir;

/// A bucket that is removed at the end.
pub(crate) struct SharedBucket {
    store: Arc<MemoryStore>,
    host: Arc<dyn Host>,
    directories: TempDir,
    hosts: AtomicUsize,
}

impl SharedBucket {
    pub(crate) fn new() -> Self {
        let host: Arc<dyn Host> = Arc::new(SystemHost);
        let store = Arc::new(MemoryStore::new(&host));
        Self { store, host, directories: tempfile::tempdir().unwrap(), hosts: AtomicUsize::new(0) }
    }

    /// A client with connections of its own.
    pub(crate) fn client(&self) -> Client {
        Client::new(self.store.clone(), self.host.clone())
    }

    fn read_only_client(&self) -> Client {
        Client::new(Arc::new(ReadOnlyBucket(self.store.clone())), self.host.clone())
    }

    /// Directory of the sockets of one more host.
    pub(crate) fn directory(&self) -> PathBuf {
        self.directories.path().join(self.hosts.fetch_add(1, Relaxed).to_string())
    }

    /// A process on a host of its own, that listens for the others if it is the broker.
    pub(crate) async fn host(&self, by: &str, listen: NetworkListen) -> Queue {
        self.queue(by, self.client(), Some(listen)).await
    }

    /// A process on a host of its own, that other hosts cannot reach.
    pub(crate) async fn closed_host(&self, by: &str) -> Queue {
        self.queue(by, self.client(), None).await
    }

    /// A process that can read the bucket only.
    pub(crate) async fn reading_host(&self, by: &str) -> Queue {
        self.queue(by, self.read_only_client(), None).await
    }

    /// The broker of a new queue, on a host of its own. Its socket is removed: a path of another host names nothing.
    pub(crate) async fn broker(&self, listen: NetworkListen) -> Queue {
        let queue = self.host("broker", listen).await;
        queue.submit("first", serde_json::Value::Null).await.unwrap();
        self.hide_socket().await;
        queue
    }

    /// Removes the broker's socket from its directory.
    pub(crate) async fn hide_socket(&self) {
        std::fs::remove_file(self.address().await.socket.unwrap()).unwrap();
    }

    /// A process that no other process can reach.
    pub(crate) async fn alone(&self, by: &str) -> Queue {
        let config = QueueConfig {
            layout: Some(LayoutName::Journal),
            by: by.to_owned(),
            transport: None,
            ..QueueConfig::default()
        };
        Queue::with_config(self.client(), config).await.unwrap()
    }

    async fn queue(&self, by: &str, client: Client, listen: Option<NetworkListen>) -> Queue {
        let transport = Some(Arc::new(BrokerConnections::new(self.directory(), listen)) as _);
        let layout = Some(LayoutName::Journal);
        let config = QueueConfig { layout, by: by.to_owned(), transport, ..QueueConfig::default() };
        Queue::with_config(client, config).await.unwrap()
    }

    /// Text of the lease.
    pub(crate) async fn lease(&self) -> String {
        let object = self.client().get(Purpose::Admin, keys::JOURNAL_LEASE).await.unwrap().unwrap();
        String::from_utf8(object.body.to_vec()).unwrap()
    }

    /// Address of the broker.
    pub(crate) async fn address(&self) -> BrokerAddress {
        self.address_if_any().await.unwrap()
    }

    pub(crate) async fn address_if_any(&self) -> Option<BrokerAddress> {
        let lease: serde_json::Value = serde_json::from_str(&self.lease().await).unwrap();
        serde_json::from_value(lease["address"].clone()).unwrap()
    }

    /// Keys of clients that have registered.
    pub(crate) async fn registered(&self) -> usize {
        let list = List::all(keys::JOURNAL_CLIENTS);
        self.client().list(Purpose::Admin, &list).await.unwrap().entries.len()
    }
}

/// Address of the network, parsed.
pub(crate) fn addr(network: &NetworkAddress) -> SocketAddr {
    network.addresses[0].parse().unwrap()
}

/// Listens on a free port of the loopback address.
pub(crate) fn loopback() -> NetworkListen {
    NetworkListen::new(([127, 0, 0, 1], 0).into(), None).unwrap()
}

/// Bucket without permission to write.
#[derive(Debug)]
struct ReadOnlyBucket(Arc<MemoryStore>);

impl DelegatingStore for ReadOnlyBucket {
    fn inner(&self) -> &dyn Store {
        &*self.0
    }

    fn put<'a>(&'a self, key: &'a str, _: Bytes, _: &'a When) -> Answer<'a, PutAnswer> {
        Box::pin(async move { Err(Failure::permanent(Kind::Denied, format!("`{key}`: access denied"))) })
    }
}
