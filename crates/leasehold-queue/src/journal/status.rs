//! The state of a broker, for people and dashboards: who it is, what it has done, and which workers have reported themselves.
//!
//! It is asked for over a connection, and costs no request to the store beside those that find the broker. It is kept in
//! memory only: a new broker begins anew.

use leasehold_core::ids::TaskTypes;
use leasehold_core::{HexName, Lease, Now, Result, StoreTime, WorkerId};
use serde::{Deserialize, Serialize};

use super::JournalQueue;
use super::handle::BrokerHandle;
use super::lease::{self, JournalFields};
use super::request::BrokerRequest;
use crate::holders::LeaseState;

/// Holder of the lease on a journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BrokerHolder {
    /// Name of its machine.
    pub host: String,
    /// Process id.
    pub pid: u32,
    /// Random id of the process as a holder.
    pub instance: HexName,
    /// Number of the lease, which grows with every holder.
    pub epoch: u64,
    /// Addresses at which it can be reached.
    pub addresses: Vec<String>,
    /// Time of the last write of the lease.
    pub renewed_at: StoreTime,
    /// Expiry of the lease.
    pub lease_expires_at: StoreTime,
    /// True if it has released the lease.
    pub is_released: bool,
}

impl BrokerHolder {
    pub(super) fn of(lease: &Lease) -> Result<Self> {
        let JournalFields { host, pid, address, .. } = JournalFields::read(lease)?;
        let sockets = address.and_then(|address| address.socket).into_iter();
        Ok(Self {
            host,
            pid,
            instance: lease.instance.clone(),
            epoch: lease.epoch,
            addresses: sockets.map(|path| format!("unix:{path}")).collect(),
            renewed_at: lease.updated_at,
            lease_expires_at: lease.expires_at,
            is_released: lease.is_released(),
        })
    }

    /// State of its lease.
    #[must_use]
    pub fn lease_state(&self, now: Now) -> LeaseState {
        if self.is_released {
            LeaseState::Free
        } else if now.is_past(self.lease_expires_at) {
            LeaseState::Expired
        } else {
            LeaseState::Held
        }
    }
}

/// State of a broker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BrokerStatus {
    /// The process.
    pub holder: BrokerHolder,
    /// Time from which on it has served.
    pub since: StoreTime,
    /// Commits that were confirmed.
    pub commits: CommitFigures,
    /// Commits since the newest snapshot, which the next broker has to replay.
    pub snapshot_lag: u64,
    /// Tasks in memory.
    pub live_tasks: u64,
    /// Tasks in the archive.
    pub archived_tasks: u64,
    /// Connections of other processes, with the one that asks.
    pub clients: u64,
    /// Claims of workers that wait for a task.
    pub parked_claims: u64,
    /// Bytes of the encoded tasks in memory. Running tasks are not encoded, and not counted.
    pub body_bytes: u64,
    /// Memory of the process; none if the kernel does not tell.
    pub resident_bytes: Option<u64>,
}

/// Figures of the commits of a broker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CommitFigures {
    /// Number of commits since it began.
    pub commits: u64,
    /// Number of their records.
    pub records: u64,
    /// Bytes of their records.
    pub bytes: u64,
    /// Length of the window of the figures below: up to a minute.
    pub window_ms: u64,
    /// Number of commits in that window.
    pub recent_commits: u64,
    /// Number of their records.
    pub recent_records: u64,
    /// Median time of a commit in microseconds, at most a quarter too high; none if there was none.
    pub p50_us: Option<u64>,
    /// Time that 99 of 100 commits do not exceed.
    pub p99_us: Option<u64>,
}

#[expect(clippy::cast_precision_loss, reason = "counts below 2^52 are exact")]
impl CommitFigures {
    /// Commits per second.
    #[must_use]
    pub fn per_second(&self) -> f64 {
        if self.window_ms == 0 { 0.0 } else { self.recent_commits as f64 * 1_000.0 / self.window_ms as f64 }
    }

    /// Records per commit since the broker began.
    #[must_use]
    pub fn records_per_commit(&self) -> f64 {
        if self.commits == 0 { 0.0 } else { self.records as f64 / self.commits as f64 }
    }
}

/// Result of the search for the broker of a queue.
#[derive(Debug, Clone, PartialEq)]
pub enum FoundBroker {
    /// It has answered.
    Reached(Box<BrokerStatus>),
    /// None can be reached. The last holder of the lease; none if there has never been a broker.
    Unreached(Option<BrokerHolder>),
}

/// A worker, as the broker knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalWorker {
    /// Worker id.
    pub worker_id: WorkerId,
    /// Name of its machine, and its process id; none if it holds tasks and has not reported itself to this broker.
    pub host: Option<String>,
    /// Process id.
    pub pid: Option<u32>,
    /// Task types that it has handlers for.
    pub types: TaskTypes,
    /// Number of its slots.
    pub slots: Option<u64>,
    /// Number of tasks that it holds.
    pub running: u64,
    /// Time of its last report or renewal; none if this broker has had none.
    pub last_seen_at: Option<StoreTime>,
    /// Its state.
    pub state: JournalWorkerState,
}

/// State of a worker, as the broker knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JournalWorkerState {
    /// It has reported itself, or has renewed a claim, within the lifetime of its claims.
    Alive,
    /// It claims no more tasks, and waits for those that run.
    Stopping,
    /// It has been silent for longer than the lifetime of its claims: 60 s by default.
    Dead,
    /// It holds tasks, and has not reported itself to this broker yet.
    Unknown,
}

impl JournalWorkerState {
    /// Name for output.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Alive => "alive",
            Self::Stopping => "stopping",
            Self::Dead => "dead",
            Self::Unknown => "unknown",
        }
    }
}

/// Time during which a process is the broker, or is connected to it.
#[derive(Debug)]
pub struct BrokerTerm {
    line: BrokerHandle,
}

impl BrokerTerm {
    /// True if this process is the broker.
    #[must_use]
    pub fn is_broker(&self) -> bool {
        self.line.is_broker()
    }

    /// Waits until this process is no longer the broker, or has lost its connection to the broker.
    pub async fn ended(&self) {
        self.line.ended().await;
    }
}

impl JournalQueue {
    /// Becomes the broker, or connects to it if there is one. A broker that cannot be reached is an error of kind unavailable that
    /// names it.
    pub async fn join_broker(&self) -> Result<BrokerTerm> {
        Ok(BrokerTerm { line: self.broker.serving().await? })
    }

    /// Finds the broker and asks for its state, without becoming the broker. Requests: 1 get, none if this process is the broker or
    /// connected to it; 1 get more if none can be reached.
    pub async fn find_broker(&self) -> Result<FoundBroker> {
        if let Some(status) =
            self.broker.ask_serving(&self.client, |answer| BrokerRequest::Status { answer }).await
        {
            return Ok(FoundBroker::Reached(Box::new(status?)));
        }
        let lease = lease::read(&self.client).await?;
        Ok(FoundBroker::Unreached(lease.as_ref().map(BrokerHolder::of).transpose()?))
    }

    /// Workers that have reported themselves to the broker, or that hold tasks, by id; none if no broker can be reached. Requests: those that find the
    /// broker.
    pub async fn workers(&self) -> Result<Option<Vec<JournalWorker>>> {
        let request = |answer| BrokerRequest::Workers { answer };
        self.broker.ask_serving(&self.client, request).await.transpose()
    }
}
