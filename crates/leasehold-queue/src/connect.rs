//! Opening a queue, and its configuration.
//!
//! The settings that all clients must share — the format and the number of digits that name a shard — are stored in the
//! queue itself, in `queue.json`. A client whose settings disagree is refused with an error that names both values, so
//! it never writes to the wrong keys (promise P8).
//!
//! Requests: 1 get for an existing queue; see [`Queue::restore`] and `create` for a new one.

use bytes::Bytes;
use leasehold_core::limits::{LAYOUT_ASKED_EVERY, LAYOUT_TRUSTED};
use leasehold_core::unread::why_corrupt;
use leasehold_core::{
    Error, HexName, Kind, Now, Result, Shard, ShardLen, StepContext, StoreTime, TaskId, WriteId, keys,
};
use leasehold_store::{Client, HostExt, OpenMode, Purpose};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

use crate::bell::Ringer;
use crate::create::{create, no_queue};
use crate::inbox::{DirectDispatch, Inboxes};
use crate::inspect::EntryChecks;
use crate::layout::{Layout, Left, Migrating};
use crate::place::Place;

/// Newest format of the layout that this program supports.
pub(crate) const FORMAT: u32 = 1;

/// A task queue in a store. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Queue {
    pub(crate) client: Client,
    /// `queue.json` as it was when this client connected.
    pub(crate) agreement: Arc<QueueMeta>,
    /// `queue.json` as last read.
    pub(crate) layout: Arc<Layout>,
    pub(crate) config: Arc<QueueConfig>,
    /// Notifies the workers of this process whenever a task becomes pending in this process.
    pub(crate) news: Arc<watch::Sender<u64>>,
    /// Notifies workers in other processes.
    pub(crate) ringer: Arc<Ringer>,
    /// Live workers and their inboxes, for direct dispatch.
    pub(crate) inboxes: Arc<Inboxes>,
    /// Results of earlier entry checks, for counting.
    pub(crate) entry_checks: Arc<EntryChecks>,
}

/// Content of `queue.json`: the settings that all clients of a queue share.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct QueueMeta {
    /// Format of the layout.
    pub format: u32,
    /// Permanent id of the queue.
    pub queue_id: HexName,
    /// Number of hex digits that name a shard.
    pub shard_prefix_len: ShardLen,
    /// Time at which the queue was created.
    pub created_at: StoreTime,
    /// Id of the last write of `queue.json`.
    pub write_id: WriteId,
    /// The migration in progress, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub migrating: Option<Migrating>,
    /// The previous number of digits, after a migration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left: Option<Left>,
    /// Fields written by a newer program, preserved unchanged.
    #[serde(flatten)]
    pub unknown: Map<String, Value>,
}

/// Configuration of one client.
#[derive(Debug, Clone)]
pub struct QueueConfig {
    /// Number of hex digits that name a shard, 1 to 4: the value for a new queue, and the value that an existing queue
    /// must have. The default, [`Self::AS_FOUND`], accepts any.
    pub shard_prefix_len: u8,
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
    /// Time for which a stale entry is left to the client that moved the task and is about to remove it.
    pub stale_grace: Duration,
    /// Time for which a submit with unknown outcome is retried before it puts a tombstone at its own id.
    pub submit_wait: Duration,
    /// Age of `queue.json` after which it is read again before a write.
    pub layout_asked_every: Duration,
    /// Age of `queue.json` after which nothing is written. A migration waits for twice the default: a shorter time is
    /// safe, a longer one is not.
    pub layout_trusted: Duration,
}

impl QueueConfig {
    /// Accepts the number of digits of an existing queue; a new one gets 1.
    pub const AS_FOUND: u8 = u8::MAX;

    pub(crate) fn wanted(&self) -> Result<Option<ShardLen>> {
        match self.shard_prefix_len {
            Self::AS_FOUND => Ok(None),
            digits => ShardLen::new(digits).map(Some),
        }
    }
}

impl Default for QueueConfig {
    fn default() -> Self {
        Self {
            shard_prefix_len: Self::AS_FOUND,
            mode: OpenMode::Create,
            by: "client".into(),
            direct: None,
            ahead_grace: Duration::from_mins(30),
            stale_grace: Duration::from_mins(1),
            submit_wait: Duration::from_mins(15),
            layout_asked_every: LAYOUT_ASKED_EVERY,
            layout_trusted: LAYOUT_TRUSTED,
        }
    }
}

/// Receiver of notifications about tasks that become pending in this process.
#[derive(Debug)]
pub struct PendingSignal {
    rung: watch::Receiver<u64>,
}

impl PendingSignal {
    /// Waits until a task has become pending since the last time this returned.
    ///
    /// # Cancel safety
    ///
    /// No notification is lost when the future is dropped.
    pub async fn heard(&mut self) {
        if self.rung.changed().await.is_err() {
            // The queue was dropped, and with it every sender.
            std::future::pending::<()>().await;
        }
    }
}

impl Queue {
    /// Opens the queue at an address, in a folder or in an open store, and creates it if it does not exist. A store
    /// without a queue is probed first: one that ignores conditions is refused, and so is one that has keys of a
    /// queue but no `queue.json` (see [`Queue::restore`]).
    ///
    /// Buckets are configured by the usual environment variables and files (`AWS_ACCESS_KEY_ID`, `AWS_REGION`,
    /// `AWS_ENDPOINT_URL`, …), as for the command line.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold_core::Result<()> {
    /// use leasehold_queue::Queue;
    ///
    /// let queue = Queue::connect("memory://").await?;
    /// assert_eq!(queue.stats().await?.due, 0);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn connect(place: impl Into<Place>) -> Result<Self> {
        Self::with_config(place, QueueConfig::default()).await
    }

    /// Opens a queue with explicit configuration.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold_core::Result<()> {
    /// use leasehold_queue::{Queue, QueueConfig};
    ///
    /// let config = QueueConfig { shard_prefix_len: 2, ..Default::default() };
    /// let queue = Queue::with_config("memory://", config).await?;
    /// assert_eq!(queue.shards(&[])?, Queue::all_shards(2)?);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn with_config(place: impl Into<Place>, config: QueueConfig) -> Result<Self> {
        let client = place.into().client(config.mode)?;
        let wanted = config.wanted()?;
        let asked = client.host().instant();
        let (agreement, version) = match client.get(Purpose::Admin, keys::QUEUE).await? {
            Some(object) => (read(&object.body)?, object.version),
            None if config.mode == OpenMode::Create => {
                create(&client, wanted.unwrap_or(ShardLen::DEFAULT)).await?
            }
            None => return Err(no_queue(&client).await),
        };
        agree(&agreement, wanted)?;
        let agreement = Arc::new(agreement);
        // No random number is drawn where none is used, so that a simulation by seed stays the same.
        let first = config.direct.as_ref().map_or(0, |_| client.host().random());
        Ok(Self {
            client,
            layout: Arc::new(Layout::new(agreement.clone(), version, asked)),
            agreement,
            config: Arc::new(config),
            news: Arc::new(watch::Sender::new(0)),
            ringer: Arc::default(),
            inboxes: Arc::new(Inboxes::new(first)),
            entry_checks: Arc::default(),
        })
    }

    /// Returns a handle to this queue for use on another runtime.
    #[must_use]
    pub fn detached(&self) -> Self {
        let layout = Arc::new(self.layout.detached());
        Self { client: self.client.detached(), layout, ..self.clone() }
    }

    /// Returns a handle to this queue with request counts of its own, to measure the cost of one part of a program.
    #[must_use]
    pub fn counted_apart(&self) -> Self {
        Self { client: self.client.counted_apart(), ..self.clone() }
    }

    /// Returns a handle to this queue with the latest known layout, to continue after a change of the number of shards.
    #[must_use]
    pub fn refreshed(&self) -> Self {
        Self { agreement: self.layout.known().agreement, ..self.clone() }
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
    pub fn agreement(&self) -> &QueueMeta {
        &self.agreement
    }

    /// Configuration of this client.
    #[must_use]
    pub fn config(&self) -> &QueueConfig {
        &self.config
    }

    /// Number of hex digits that name a shard.
    #[must_use]
    pub fn shard_len(&self) -> ShardLen {
        self.agreement.shard_prefix_len
    }

    /// All shards of a queue whose shards have this number of digits.
    pub fn all_shards(digits: u8) -> Result<Vec<Shard>> {
        Ok(ShardLen::new(digits)?.all())
    }

    /// Current time of the store.
    pub fn now(&self) -> Result<Now> {
        self.client.now().ok_or_else(|| {
            let store = self.client.describe();
            Error::new(Kind::Unavailable, format!("the time of {store} is not known yet; retry"))
        })
    }

    /// Waits until a task becomes pending in this process, counted from this call on: a worker that calls this before
    /// it scans and awaits it afterwards misses nothing.
    pub fn news(&self) -> impl Future<Output = ()> + Send + '_ {
        let mut listener = self.listen();
        async move { listener.heard().await }
    }

    /// Subscribes to tasks that become pending in this process from now on. Nothing is missed between two waits.
    #[must_use]
    pub fn listen(&self) -> PendingSignal {
        PendingSignal { rung: self.news.subscribe() }
    }

    pub(crate) fn act(&self) -> Result<StepContext> {
        self.act_as(&self.config.by)
    }

    pub(crate) fn act_as(&self, by: &str) -> Result<StepContext> {
        let chance = self.client.host().random();
        Ok(StepContext { by: by.to_owned(), now: self.now()?, write_id: self.client.write_id(), chance })
    }

    pub(crate) fn task_key(&self, id: &TaskId) -> String {
        keys::task(&self.shard_len().shard_of(id), id)
    }

    pub(crate) fn random_name(&self) -> HexName {
        HexName::from_random(self.client.host().random_bits())
    }
}

impl QueueMeta {
    pub(crate) fn written(&self) -> Result<Bytes> {
        serde_json::to_vec_pretty(self)
            .map(Bytes::from)
            .map_err(|error| Error::new(Kind::Internal, "failed to serialize queue.json").because(error))
    }
}

/// The field that every format has.
#[derive(Deserialize)]
struct Format {
    format: u32,
}

pub(crate) fn read(body: &[u8]) -> Result<QueueMeta> {
    let corrupt = |why: String| Error::new(Kind::Corrupt, format!("failed to read queue.json: {why}"));
    let Format { format } =
        serde_json::from_slice(body).map_err(|error| corrupt(why_corrupt(body, &error)))?;
    if format > FORMAT {
        return Err(corrupt(format!(
            "format {format} is not supported, only up to {FORMAT}; use a newer version of this program"
        )));
    }
    serde_json::from_slice(body).map_err(|error| corrupt(error.to_string()))
}

fn agree(agreement: &QueueMeta, wanted: Option<ShardLen>) -> Result<()> {
    let has = agreement.shard_prefix_len;
    match wanted {
        Some(wanted) if wanted != has => Err(Error::invalid(format!(
            "shard_prefix_len is {} here, but this queue has {}; remove the setting, or correct it",
            wanted.digits(),
            has.digits()
        ))),
        _ => Ok(()),
    }
}
