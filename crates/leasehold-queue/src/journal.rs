//! The journal layout: one process at a time, the *broker*, keeps the live tasks in memory and writes the decisions for many
//! tasks in one commit of a log. The rules are `docs/protocol/journal.md`.
//!
//! ```text
//!   JournalQueue ──▶ BrokerSlot ──▶ Broker ──▶ JournalState: decides          in the process that is the broker
//!        │                            └──────▶ LogWriter: commits, then the answers are sent
//!        └──▶ Follower ──▶ LogReader                                          in a process that only reads
//! ```
//!
//! A process becomes the broker with its first request that changes something, or with its worker, if there is no broker and its role
//! allows it ([`BrokerRole`](crate::BrokerRole)). While it is the broker, other processes send it their requests
//! ([`BrokerTransport`]); a process without a connection can only read.
//!
//! | module | contents |
//! | --- | --- |
//! | `layout` | the operations of a queue |
//! | `reads` | reads of live and archived tasks |
//! | `archive` | objects with archived tasks |
//! | `handle` | the broker of this process: start, requests, end |
//! | `open`, `lease`, `home` | becoming the broker: lease, replay, fence, confirmation |
//! | `broker` | the loop that decides, commits and answers |
//! | `commit` | the commit that is being filled, and the answers that wait for it |
//! | `request` | requests to a broker, and its answers |
//! | `source` | source of tasks for workers |
//! | `stage`, `status` | stages in the life of a broker; its state, for people |
//! | `wire` | the lines on connections to other processes, which `leasehold-broker` has |
//! | `service`, `remote` | clients of a broker, and a broker in another process |
//! | `query` | reads of the state |
//! | `changes` | tasks that have changed lately |
//! | `sample` | counts and changes, for a dashboard |
//! | `follow` | reading without the lease |
//! | `snapshot`, `chunks` | the live tasks in chunks, so that a replay is short; which have changed, or are not in memory |
//! | `replay` | the snapshot and the commits after it |
//! | `check`, `damage` | missing and corrupt parts: all of them, and what to do |

mod archive;
mod broker;
mod changes;
mod check;
mod chunks;
mod commit;
mod damage;
mod follow;
mod handle;
mod home;
mod layout;
pub(crate) mod lease;
mod open;
mod query;
mod reads;
mod remote;
mod replay;
mod request;
mod sample;
mod service;
mod snapshot;
mod source;
mod stage;
mod status;
mod wire;

pub use self::broker::maintenance::SnapshotLimits;
pub use self::changes::{ChangePage, ChangePosition};
pub use self::sample::JournalSample;
pub use self::status::{
    BrokerHolder, BrokerStatus, BrokerTerm, CommitFigures, FoundBroker, JournalWorker, JournalWorkerState,
};
pub use leasehold_broker::{
    AcceptedClient, BrokerAddress, BrokerListener, BrokerTransport, ClientAccess, LeaseSecret, LineChannel,
    NetworkAddress, PreparedListener,
};
pub use leasehold_core::journal::ArchiveLimits;
use leasehold_core::{Kind, Result, TaskId};
use leasehold_store::Client;
use std::sync::Arc;
use tokio::sync::Mutex;

use self::damage::with_way_out;
use self::follow::Follower;
use self::handle::BrokerSlot;
use self::home::LogHome;
use self::query::{StateAnswer, StateQuery};
use self::replay::Replayed;
use self::request::{BrokerRequest, Freshness};
use crate::connect::{QueueConfig, QueueLocation};
use crate::meta::{LayoutName, QueueMeta, open_meta};

/// Maximum number of times that a read without the lease starts over because its snapshot is replaced.
const FOLLOW_STARTS_MAX: u32 = 3;

/// A task queue in the journal layout. Cheap to clone; clones share the broker of this process.
#[derive(Debug, Clone)]
pub struct JournalQueue {
    client: Client,
    meta: Arc<QueueMeta>,
    /// Name of this client in the history of tasks.
    by: Arc<str>,
    pub(crate) broker: Arc<BrokerSlot>,
    /// Log that a process without a connection reads, by the client.
    home: LogHome,
    /// State of a process that only reads.
    follower: Arc<Mutex<Option<Follower>>>,
}

impl JournalQueue {
    /// Opens a queue with this layout, or creates it. A queue with another layout is refused.
    pub async fn with_config(place: impl Into<QueueLocation>, config: QueueConfig) -> Result<Self> {
        let config = QueueConfig { layout: Some(LayoutName::Journal), ..config };
        let (client, known) = open_meta(place.into(), &config).await?;
        Ok(Self::new(client, known.meta, &config))
    }

    pub(crate) fn new(client: Client, meta: Arc<QueueMeta>, config: &QueueConfig) -> Self {
        let broker = Arc::new(BrokerSlot::new(client.clone(), config));
        let home = broker.home().clone();
        Self { meta, by: config.by.as_str().into(), broker, home, follower: Arc::default(), client }
    }

    /// Returns a handle to this queue with request counts of its own, for what it reads from the store and to find the broker. It
    /// shares the broker of this process, or the connection to one.
    #[must_use]
    pub fn with_own_ledger(&self) -> Self {
        let client = self.client.with_own_ledger();
        let home = LogHome::of(&client, self.home.snapshots);
        Self { client, home, follower: Arc::default(), ..self.clone() }
    }

    /// Returns a handle to this queue that is recorded as `by` in the history of tasks.
    #[must_use]
    pub fn acting_as(self, by: &str) -> Self {
        Self { by: by.into(), ..self }
    }

    /// Reads the state: of the broker if one can be reached, otherwise by following the log.
    async fn read(&self, query: StateQuery, freshness: Freshness) -> Result<StateAnswer> {
        let asked = query.clone();
        let request = move |answer| BrokerRequest::Read { query: asked, freshness, answer };
        if let Some(answer) = self.broker.ask_serving(&self.client, request).await {
            return answer;
        }
        self.follow(|replayed| query.needs(&replayed.state), |replayed| query.answer(&replayed.state)).await
    }

    /// Reads the state without the lease. `needs` gives an evicted task without which it cannot be read.
    async fn follow<T>(
        &self,
        needs: impl Fn(&Replayed) -> Option<TaskId>,
        read: impl FnOnce(&Replayed) -> Result<T>,
    ) -> Result<T> {
        let mut following = self.follower.lock().await;
        let mut starts = 1;
        loop {
            let follower = Follower::follow(following.take(), &self.client, &self.home).await?;
            let Follower { replayed, .. } = following.insert(follower);
            replayed.state.advance(self.client.known_now()?);
            replayed.evict();
            let has_all = loop {
                match needs(replayed) {
                    None => break Ok(()),
                    Some(id) => match replayed.read_back(&self.client, &id).await {
                        Ok(()) => {}
                        Err(error) => break Err(error),
                    },
                }
            };
            match has_all {
                Ok(()) => return read(replayed),
                Err(error) => {
                    *following = None;
                    // Newer snapshots have replaced its chunk, unless that of the current one is missing, too.
                    if error.kind() != Kind::Corrupt || starts == FOLLOW_STARTS_MAX {
                        return Err(with_way_out(error));
                    }
                    starts += 1;
                }
            }
        }
    }
}
