//! Opening a queue.
//!
//! What all clients must agree on — the format and how many digits name a shard — is in the store itself, in
//! `queue.json`. A client whose settings disagree is refused with both values; it never writes to the wrong place.

use bytes::Bytes;
use leasehold_core::limits::{LAYOUT_ASKED_EVERY, LAYOUT_TRUSTED};
use leasehold_core::unread::why_corrupt;
use leasehold_core::{
    Act, Error, HexName, Kind, Now, Result, Shard, ShardLen, StoreTime, TaskId, WriteId, keys,
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

/// The format of the layout that this program knows.
pub(crate) const FORMAT: u32 = 1;

/// A queue: tasks over a store. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Queue {
    pub(crate) client: Client,
    /// What it was when this client connected.
    pub(crate) agreement: Arc<Agreement>,
    /// What it is by the last answer.
    pub(crate) layout: Arc<Layout>,
    pub(crate) config: Arc<QueueConfig>,
    /// Rung by everyone in this process who makes a task pending, heard by the workers of this process.
    pub(crate) news: Arc<watch::Sender<u64>>,
    /// The same for everyone else.
    pub(crate) ringer: Arc<Ringer>,
    /// Whose inboxes new tasks go to, if they are dispatched directly.
    pub(crate) inboxes: Arc<Inboxes>,
    /// What counts have found out about entries.
    pub(crate) entry_checks: Arc<EntryChecks>,
}

/// What all clients of a queue agree on: `queue.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Agreement {
    /// The format of the layout.
    pub format: u32,
    /// The queue's own name, for good.
    pub queue_id: HexName,
    /// How many hex digits name a shard.
    pub shard_prefix_len: ShardLen,
    /// When it was created.
    pub created_at: StoreTime,
    /// The write that created it, or that has changed it last.
    pub write_id: WriteId,
    /// The number of digits is being changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub migrating: Option<Migrating>,
    /// The number of digits that was left last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left: Option<Left>,
    /// Fields of a newer program: kept as they are.
    #[serde(flatten)]
    pub unknown: Map<String, Value>,
}

/// What a client can choose for itself.
#[derive(Debug, Clone)]
pub struct QueueConfig {
    /// How many hex digits name a shard, 1 to 4: asked of an existing queue, given to a new one. The default,
    /// [`Self::AS_FOUND`], asks for nothing.
    pub shard_prefix_len: u8,
    /// Whether a queue that is missing is created: by default it is. With [`OpenMode::Write`] and [`OpenMode::Read`] it
    /// is an error about something missing.
    pub mode: OpenMode,
    /// Who acts, for the history of tasks.
    pub by: String,
    /// Puts new tasks into the inboxes of live workers; none means that any worker takes them.
    pub direct: Option<DirectDispatch>,
    /// How long an entry ahead of its task is left alone. Longer than any store accepts a signed request, so that
    /// whoever wrote it has surely written its task by then, or never will.
    pub ahead_grace: Duration,
    /// How long an entry that a task has left is left to whoever moved the task.
    pub stale_grace: Duration,
    /// How long a submit whose outcome is unknown is tried before it fences itself off.
    pub submit_wait: Duration,
    /// `queue.json` is asked for again before a write when that was longer ago than this.
    pub layout_asked_every: Duration,
    /// Nothing is written when it was last asked for longer ago than this. A migration waits for twice as long: shorter
    /// is safe, longer is not.
    pub layout_trusted: Duration,
}

impl QueueConfig {
    /// A queue that is there keeps the number of digits that it has, a new one gets 1.
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

/// Hears what is made pending in this process.
#[derive(Debug)]
pub struct News {
    rung: watch::Receiver<u64>,
}

impl News {
    /// Waits until something was made pending since the last time this returned.
    ///
    /// # Cancel safety
    ///
    /// Nothing is missed when the future is dropped.
    pub async fn heard(&mut self) {
        if self.rung.changed().await.is_err() {
            // The queue is gone, and with it everyone who could ring.
            std::future::pending::<()>().await;
        }
    }
}

impl Queue {
    /// Opens the queue at an address, in a folder or in an open store, or creates it there. A store that has never held
    /// a queue is probed first: one that ignores conditions is refused, and so is one that has keys of a queue but no
    /// `queue.json` (see [`Queue::restore`]).
    ///
    /// For buckets the usual variables and files say how to sign and where to send (`AWS_ACCESS_KEY_ID`,
    /// `AWS_REGION`, `AWS_ENDPOINT_URL`, …), as they do for the command line.
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

    /// The same, with choices of one's own.
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
        // Chance is not asked where it decides nothing.
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

    /// The same queue for use on another runtime.
    #[must_use]
    pub fn apart(&self) -> Self {
        let layout = Arc::new(self.layout.apart());
        Self { client: self.client.apart(), layout, ..self.clone() }
    }

    /// The same queue with a ledger of its own, for whoever wants to know what it costs by itself.
    #[must_use]
    pub fn counted_apart(&self) -> Self {
        Self { client: self.client.counted_apart(), ..self.clone() }
    }

    /// The same queue as its layout is by the last answer: for whoever goes on when the number of shards has changed.
    #[must_use]
    pub fn as_it_is(&self) -> Self {
        Self { agreement: self.layout.known().agreement, ..self.clone() }
    }

    /// The same queue in the name of someone else, for the history of tasks.
    #[must_use]
    pub fn acting_as(self, by: &str) -> Self {
        let config = QueueConfig { by: by.to_owned(), ..(*self.config).clone() };
        Self { config: Arc::new(config), ..self }
    }

    /// The store's client, with its ledger.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// What all clients of this queue agreed on when this one connected.
    #[must_use]
    pub fn agreement(&self) -> &Agreement {
        &self.agreement
    }

    /// What this client has chosen for itself.
    #[must_use]
    pub fn config(&self) -> &QueueConfig {
        &self.config
    }

    /// How many hex digits name a shard.
    #[must_use]
    pub fn shard_len(&self) -> ShardLen {
        self.agreement.shard_prefix_len
    }

    /// All shards of a queue with so many digits.
    pub fn all_shards(digits: u8) -> Result<Vec<Shard>> {
        Ok(ShardLen::new(digits)?.all())
    }

    /// The present in the store's time.
    pub fn now(&self) -> Result<Now> {
        self.client.now().ok_or_else(|| {
            let store = self.client.describe();
            Error::new(Kind::Unavailable, format!("{store} has not told its time yet"))
        })
    }

    /// Waits until something was made pending in this process, from this call on: whoever takes it before looking for
    /// work and waits for it afterwards misses nothing.
    pub fn news(&self) -> impl Future<Output = ()> + Send + '_ {
        let mut listener = self.listen();
        async move { listener.heard().await }
    }

    /// Listens for what is made pending in this process from now on, and misses nothing between two waits.
    #[must_use]
    pub fn listen(&self) -> News {
        News { rung: self.news.subscribe() }
    }

    pub(crate) fn act(&self) -> Result<Act> {
        self.act_as(&self.config.by)
    }

    pub(crate) fn act_as(&self, by: &str) -> Result<Act> {
        let chance = self.client.host().random();
        Ok(Act { by: by.to_owned(), now: self.now()?, write_id: self.client.write_id(), chance })
    }

    pub(crate) fn task_key(&self, id: &TaskId) -> String {
        keys::task(&self.shard_len().shard_of(id), id)
    }

    pub(crate) fn random_name(&self) -> HexName {
        HexName::from_random(self.client.host().random_bits())
    }
}

impl Agreement {
    pub(crate) fn written(&self) -> Result<Bytes> {
        serde_json::to_vec_pretty(self)
            .map(Bytes::from)
            .map_err(|error| Error::new(Kind::Internal, "queue.json cannot be written").because(error))
    }
}

/// What every format has in common.
#[derive(Deserialize)]
struct Format {
    format: u32,
}

pub(crate) fn read(body: &[u8]) -> Result<Agreement> {
    let corrupt = |why: String| Error::new(Kind::Corrupt, format!("`queue.json` cannot be used: {why}"));
    let Format { format } =
        serde_json::from_slice(body).map_err(|error| corrupt(why_corrupt(body, &error)))?;
    if format > FORMAT {
        return Err(corrupt(format!(
            "it has format {format}, and this program knows {FORMAT}: use a newer one"
        )));
    }
    serde_json::from_slice(body).map_err(|error| corrupt(error.to_string()))
}

fn agree(agreement: &Agreement, wanted: Option<ShardLen>) -> Result<()> {
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
