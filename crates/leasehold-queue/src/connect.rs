//! Opening a queue, and its configuration.
//!
//! A client whose settings disagree with [`queue.json`](crate::meta) is refused with an error that names both values, so it
//! never writes to the wrong keys (promise P8).
//!
//! Requests: 1 get for an existing queue; see [`Queue::restore`](crate::Queue::restore) and `create` for a new
//! one.

use leasehold_broker::{BrokerTransport, UnixSockets};
use leasehold_core::limits::{QUEUE_META_MAX_AGE, QUEUE_META_REFRESH_INTERVAL};
use leasehold_core::{Error, Now, Result, ShardLen, StepContext, TaskId, keys};
use leasehold_store::{Client, FolderOptions, FolderStore, Host, OpenMode, OpenOptions, SystemHost};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

use crate::bell::RecentRings;
use crate::inbox::{DirectDispatch, Inboxes};
use crate::inspect::EntryChecks;
use crate::journal::SnapshotLimits;
use crate::meta::{LayoutName, QueueMeta, open_meta};
use crate::meta_cache::{MetaCache, MetaSnapshot};

/// A task queue in the object layout: every task is an object. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ObjectQueue {
    pub(crate) client: Client,
    /// `queue.json` as it was when this client connected.
    pub(crate) meta: Arc<QueueMeta>,
    /// `queue.json` as last read.
    pub(crate) meta_cache: Arc<MetaCache>,
    pub(crate) config: Arc<QueueConfig>,
    /// Counter of tasks that became pending in this process; wakes its workers.
    pub(crate) pending_signal: Arc<watch::Sender<u64>>,
    /// Recent notifications of workers in other processes.
    pub(crate) recent_rings: Arc<RecentRings>,
    /// Live workers and their inboxes, for direct dispatch.
    pub(crate) inboxes: Arc<Inboxes>,
    /// Results of earlier entry checks, for counting.
    pub(crate) entry_checks: Arc<EntryChecks>,
}

/// Configuration of one client.
#[derive(Debug, Clone)]
pub struct QueueConfig {
    /// Number of hex digits that name a shard, 1 to 4: the value for a new queue, and the value that an existing queue
    /// must have. None accepts that of an existing queue; a new one gets 1.
    pub shard_prefix_len: Option<u8>,
    /// Layout: that of a new queue, and the one that an existing queue must have. None, the default, accepts any; a new
    /// queue gets [`LayoutName::Journal`] in a folder of this host, and [`LayoutName::Objects`] in a bucket, in memory, on a
    /// mount of several hosts, and with a setting that only this layout has (`shard_prefix_len`, `direct`,
    /// `needs_objects`).
    pub layout: Option<LayoutName>,
    /// True if this client needs the layout `objects`, for example because its workers name shards: then a new queue gets it,
    /// unless `layout` names another. An existing queue is not changed.
    pub needs_objects: bool,
    /// Mode in which the store is opened. [`OpenMode::Create`], the default, creates a missing queue; with
    /// [`OpenMode::Write`] and [`OpenMode::Read`] a missing queue is an error.
    pub mode: OpenMode,
    /// Name of this client in the history of tasks.
    pub by: String,
    /// Direct dispatch of new tasks to the inboxes of live workers; none if any worker may take them.
    pub direct: Option<DirectDispatch>,
    /// Time for which an entry ahead of its task is not touched. Longer than any store accepts a signed request, so
    /// that by then its writer has written the task, or never will.
    pub ahead_grace: Duration,
    /// Time for which an outdated entry is left to the client that changed the task and is about to remove it.
    pub outdated_grace: Duration,
    /// Time for which a submit with unknown outcome is retried before it puts a tombstone at its own id.
    pub submit_wait: Duration,
    /// Age of `queue.json` after which it is read again before a write.
    pub meta_refresh_interval: Duration,
    /// Age of `queue.json` after which nothing is written. A migration waits for twice the default: a shorter time is
    /// safe, a longer one is not.
    pub meta_max_age: Duration,
    /// Snapshots of a broker, in the journal layout.
    pub snapshots: SnapshotLimits,
    /// Role of this process in the layout `journal`.
    pub broker_role: BrokerRole,
    /// Transport between the processes of a queue in the journal layout: by default Unix sockets, for processes of one host.
    /// Without one, a process can only read while another process is the broker.
    pub transport: Option<Arc<dyn BrokerTransport>>,
}

impl Default for QueueConfig {
    fn default() -> Self {
        Self {
            shard_prefix_len: None,
            layout: None,
            needs_objects: false,
            mode: OpenMode::Create,
            by: "client".into(),
            direct: None,
            ahead_grace: Duration::from_mins(30),
            outdated_grace: Duration::from_mins(1),
            submit_wait: Duration::from_mins(15),
            meta_refresh_interval: QUEUE_META_REFRESH_INTERVAL,
            meta_max_age: QUEUE_META_MAX_AGE,
            snapshots: SnapshotLimits::default(),
            broker_role: BrokerRole::Auto,
            transport: Some(Arc::new(UnixSockets::default())),
        }
    }
}

/// Role of a process in the layout `journal`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum BrokerRole {
    /// It becomes the broker if there is none.
    #[default]
    Auto,
    /// It never becomes the broker. Without one it only reads; everything else is an error of kind unavailable.
    Never,
    /// It becomes the broker if there is none, and refuses to run handlers.
    Only,
}

impl BrokerRole {
    /// Name of the role in settings.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Never => "never",
            Self::Only => "only",
        }
    }
}

impl FromStr for BrokerRole {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        [Self::Auto, Self::Never, Self::Only].into_iter().find(|role| role.name() == text).ok_or_else(|| {
            Error::invalid(format!("unknown role `{text}` of a broker; use auto, never or only"))
        })
    }
}

/// Location of a queue. Text is an address (`s3://bucket/prefix`, `file:///path`, `memory://`, …) or a plain path; a
/// [`Client`] is for programs that open the store themselves.
#[derive(Debug, Clone)]
pub enum QueueLocation {
    /// A store's address.
    Address(String),
    /// A folder; its path is never read as an address.
    Folder(PathBuf),
    /// An open store.
    Client(Client),
}

impl QueueLocation {
    pub(crate) fn client(self, mode: OpenMode) -> Result<Client> {
        let folder = FolderOptions { mode, ..FolderOptions::default() };
        match self {
            QueueLocation::Address(address) => {
                Client::open(&address, &OpenOptions { folder, ..OpenOptions::default() })
            }
            QueueLocation::Folder(path) => {
                let host: Arc<dyn Host> = Arc::new(SystemHost);
                let store = FolderStore::open(path, folder, &host)?;
                Ok(Client::new(Arc::new(store), host))
            }
            QueueLocation::Client(client) => Ok(client),
        }
    }
}

impl From<&str> for QueueLocation {
    fn from(address: &str) -> Self {
        QueueLocation::Address(address.to_owned())
    }
}

impl From<String> for QueueLocation {
    fn from(address: String) -> Self {
        QueueLocation::Address(address)
    }
}

impl From<&Path> for QueueLocation {
    fn from(path: &Path) -> Self {
        QueueLocation::Folder(path.to_owned())
    }
}

impl From<Client> for QueueLocation {
    fn from(client: Client) -> Self {
        QueueLocation::Client(client)
    }
}

impl ObjectQueue {
    /// Opens a queue of objects, or creates it; see [`Queue::connect`](crate::Queue::connect).
    pub async fn connect(place: impl Into<QueueLocation>) -> Result<Self> {
        Self::with_config(place, QueueConfig::default()).await
    }

    /// Opens a queue of objects with explicit configuration. A queue with another layout is refused.
    pub async fn with_config(place: impl Into<QueueLocation>, config: QueueConfig) -> Result<Self> {
        let config = QueueConfig { layout: Some(LayoutName::Objects), ..config };
        let (client, known) = open_meta(place.into(), &config).await?;
        Ok(Self::new(client, known, config))
    }

    pub(crate) fn new(client: Client, known: MetaSnapshot, config: QueueConfig) -> Self {
        // No random number is drawn where none is used, so that a simulation by seed stays the same.
        let first = config.direct.as_ref().map_or(0, |_| client.host().random());
        Self {
            client,
            meta: known.meta.clone(),
            meta_cache: Arc::new(MetaCache::new(known)),
            config: Arc::new(config),
            pending_signal: Arc::new(watch::Sender::new(0)),
            recent_rings: Arc::default(),
            inboxes: Arc::new(Inboxes::new(first)),
            entry_checks: Arc::default(),
        }
    }

    /// Returns a handle to this queue for use on another runtime.
    #[must_use]
    pub fn detached(&self) -> Self {
        let meta_cache = Arc::new(self.meta_cache.detached());
        Self { client: self.client.detached(), meta_cache, ..self.clone() }
    }

    /// Returns a handle to this queue with request counts of its own, to measure the cost of one part of a program.
    #[must_use]
    pub fn with_own_ledger(&self) -> Self {
        Self { client: self.client.with_own_ledger(), ..self.clone() }
    }

    /// Returns a handle to this queue with the latest known number of shards, to continue after a migration.
    #[must_use]
    pub fn refreshed(&self) -> Self {
        Self { meta: self.meta_cache.known().meta, ..self.clone() }
    }

    /// Returns a handle to this queue that is recorded as `by` in the history of tasks.
    #[must_use]
    pub fn acting_as(self, by: &str) -> Self {
        let config = QueueConfig { by: by.to_owned(), ..(*self.config).clone() };
        Self { config: Arc::new(config), ..self }
    }

    /// Client of the store, with its request counts.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// `queue.json` as it was when this client connected.
    #[must_use]
    pub fn meta(&self) -> &QueueMeta {
        &self.meta
    }

    /// Configuration of this client.
    #[must_use]
    pub fn config(&self) -> &QueueConfig {
        &self.config
    }

    /// Number of hex digits that name a shard.
    #[must_use]
    pub fn shard_len(&self) -> ShardLen {
        self.meta.shard_prefix_len
    }

    /// Current time of the store.
    pub fn now(&self) -> Result<Now> {
        self.client.known_now()
    }

    /// Subscribes to tasks that become pending in this process from now on. Nothing is missed between two waits.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.pending_signal.subscribe()
    }

    pub(crate) fn step_context(&self) -> Result<StepContext> {
        let (by, random) = (self.config.by.clone(), self.client.host().random());
        Ok(StepContext { by, now: self.now()?, write_id: self.client.write_id(), random })
    }

    pub(crate) fn task_key(&self, id: &TaskId) -> String {
        keys::task(&self.shard_len().shard_of(id), id)
    }
}
