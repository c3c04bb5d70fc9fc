//! Queue of one node, as plain files.
//!
//! ```text
//! outpost.json              settings shared by all processes
//! pending/<id>/task.json    a pending or running task: its record, with a note of the node
//! pending/<id>/lease.json   the lease of its holder
//! pending/<id>/change.json  a change in progress
//! pending/<id>/torn.json    time since which the lease is corrupt
//! completed/<id>.json       a completed task
//! failed/<id>.json          a task that has failed, was cancelled, or is corrupt
//! outbox/<seq>.json         an operation that was not sent to the bucket yet
//! outbox.last               the last sequence number of the outbox
//! conflicts/                operations that the bucket rejected
//! wants/                    task types that the workers of this node handle
//! tmp/                      files that are being written
//! ```
//!
//! Every change of a task is made under a lock on its directory. It is first written as a whole (`change.json`), which is
//! the moment in which it takes effect; then it is executed. A process that gets the lock and finds an unfinished change
//! finishes it first, so that a process can be killed at any system call.
//!
//! | module | contents |
//! | --- | --- |
//! | `change` | a recorded change, and its execution |
//! | `claim` | claims a task that is free or whose lease has expired; ends the claim |
//! | `copies` | copies of the bucket's tasks, for the supervisor |
//! | `folder` | a task's directory under its lock |
//! | `layout` | a spool as the layout of a queue |
//! | `outbox` | operations to send, in order |
//! | `poll` | finds tasks that are due |
//! | `record` | a record with the note of the node |
//! | `recover` | repairs after the crash of other processes; removes old completed tasks |
//! | `submit` | submit, get, cancel and retry |
//! | `subscriptions` | task types that the workers of this node handle |
//! | `status` | counts, conflicts and check-outs |

mod change;
mod claim;
mod copies;
mod folder;
mod layout;
mod outbox;
mod poll;
mod record;
mod recover;
mod status;
mod submit;
mod subscriptions;

use leasehold_core::outpost::{DiskLease, NodeNow, QueuePath, SpoolFile};
use leasehold_core::{Error, Kind, LeaseId, Now, Rejected, Result, StepContext, StoreTime, Task, TaskId};
use leasehold_store::{Host, HostExt};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use crate::clock::NodeClock;
use crate::config::{OutpostConfig, SpoolDurability};
use crate::disk::{self, Disk, Durable, FileHook};

pub use copies::Mirrored;
pub use recover::Recovered;
pub use status::SpoolCounts;
pub(crate) use subscriptions::SUBSCRIPTION_RENEWAL;

/// The outpost folder of one node, as a queue. Clones are the same queue.
#[derive(Debug, Clone)]
pub struct Spool {
    root: PathBuf,
    data: PathBuf,
    queue_path: QueuePath,
    config: Arc<OutpostConfig>,
    host: Arc<dyn Host>,
    clock: NodeClock,
    disk: Disk,
    outbox_index: Arc<Mutex<outbox::OutboxIndex>>,
    record_cache: Arc<Mutex<poll::RecordCache>>,
}

/// A task that a worker holds.
#[derive(Debug, Clone, PartialEq)]
pub struct HeldTask {
    /// Task as it was claimed: running, by this worker, with the epoch and attempt of the lease.
    pub task: Task,
    /// Lease on the task.
    pub lease: DiskLease,
}

/// Status of a lease, as read by a heartbeat or a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseStatus {
    /// True if the task was cancelled.
    pub cancelled: bool,
    /// True if the bucket has confirmed the claim.
    pub confirmed: bool,
}

/// A claim that was made in the bucket in advance, for the worker of this node that claims the task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Checkout {
    /// Id of the claim.
    pub lease_id: LeaseId,
    /// Epoch of the claim.
    pub epoch: u64,
    /// End of the claim, by the bucket's time.
    pub expires_at: StoreTime,
    /// True if it has expired once and was claimed again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_extended: bool,
}

/// A pending or running task on this node.
#[derive(Debug, Clone, PartialEq)]
pub struct LocalTask {
    /// Task, as pending, also while a worker of this node holds it.
    pub task: Task,
    /// Lease of its holder on this node.
    pub lease: Option<DiskLease>,
    /// Revision in the bucket that it is based on; 0 if it was submitted here and the bucket has not confirmed it.
    pub base_rev: u64,
    /// Claim in the bucket for the worker that claims it here.
    pub checkout: Option<Checkout>,
}

impl Spool {
    /// Creates the queue of a node, or opens it if it exists with the same settings.
    pub fn create(data: &Path, of: &QueuePath, config: OutpostConfig, host: Arc<dyn Host>) -> Result<Self> {
        let spool = Self::at(data, of, config, host)?;
        for folder in
            ["", "tmp", "pending", "completed", "failed", "outbox", "conflicts", subscriptions::FOLDER]
        {
            spool.disk.create_directory(&spool.root.join(folder))?;
        }
        let path = spool.root.join(CONFIG);
        let is_there = path.exists() || !spool.disk.create(&path, &spool.config.to_json(), Durable::Yes)?;
        if is_there {
            let there = disk::read(&path)?.unwrap_or_default();
            let there = OutpostConfig::from_json(&path, &there)?;
            if there != *spool.config {
                return Err(Error::invalid(format!(
                    "settings differ from those in {}; change them there or use another folder",
                    path.display()
                )));
            }
        }
        spool.recover()?;
        Ok(spool)
    }

    /// Opens the queue of a node, and finishes changes of processes that have crashed.
    pub fn open(data: &Path, of: &QueuePath, host: Arc<dyn Host>) -> Result<Self> {
        let path = data.join(of.folder()).join(CONFIG);
        let body = disk::read(&path)?.ok_or_else(|| {
            Error::invalid(format!(
                "there is no outpost of {of} in {}; run `leasehold outpost init`",
                data.display()
            ))
            .with_reason(leasehold_core::Reason::Missing)
        })?;
        Self::create(data, of, OutpostConfig::from_json(&path, &body)?, host)
    }

    fn at(data: &Path, of: &QueuePath, config: OutpostConfig, host: Arc<dyn Host>) -> Result<Self> {
        let root = data.join(of.folder());
        Ok(Self {
            clock: NodeClock::new(data, host.clone(), &NodeClock::boot_id()?),
            disk: Disk::new(root.join("tmp"), host.clone()),
            root,
            data: data.to_owned(),
            queue_path: of.clone(),
            config: Arc::new(config),
            host,
            outbox_index: Arc::default(),
            record_cache: Arc::default(),
        })
    }

    /// Calls `file_hook` before every change of a file.
    #[must_use]
    pub fn with_file_hook(mut self, file_hook: Arc<dyn FileHook>) -> Self {
        self.disk.file_hook = Some(file_hook);
        self
    }

    /// Sets the boot id, for tests and simulations.
    #[must_use]
    pub fn with_boot_id(mut self, boot_id: &str) -> Self {
        self.clock = NodeClock::new(&self.data, self.host.clone(), boot_id);
        self
    }

    /// Settings shared by all processes of the node.
    #[must_use]
    pub fn config(&self) -> &OutpostConfig {
        &self.config
    }

    /// Campaign and name of the queue.
    #[must_use]
    pub fn queue_path(&self) -> &QueuePath {
        &self.queue_path
    }

    /// Folder with its files.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Clock, random numbers and tasks of this machine.
    #[must_use]
    pub fn host(&self) -> &Arc<dyn Host> {
        &self.host
    }

    /// The present, by the clocks of this node.
    #[must_use]
    pub fn now(&self) -> NodeNow {
        self.clock.now()
    }

    /// Records the bucket's time, for all processes of the node.
    pub fn record_bucket_time(&self, now: Now) -> Result<()> {
        self.clock.record(now, &self.disk)
    }

    fn path(&self, file: &SpoolFile) -> PathBuf {
        self.root.join(file.path())
    }

    fn folder_of(&self, id: &TaskId) -> PathBuf {
        self.root.join("pending").join(id.to_string())
    }

    /// Actor, time and random number of a transition.
    fn step_context(&self, now: &NodeNow) -> StepContext {
        let by = self.config.node_id.to_string();
        StepContext { by, now: now.present(), write_id: self.host.random_name(), random: self.host.random() }
    }

    /// Durability of leases, which are void after a power cut.
    fn lease_durability(&self) -> Durable {
        match self.config.durability {
            SpoolDurability::Full => Durable::Yes,
            SpoolDurability::Light => Durable::No,
        }
    }
}

const CONFIG: &str = "outpost.json";

fn lost(id: &TaskId) -> Error {
    Error::new(Kind::Lost, format!("lost the lease on task {id}: it was revoked or taken by another worker"))
}

fn refused(id: &TaskId, why: &Rejected) -> Error {
    match why {
        Rejected::Lost => lost(id),
        why => Error::invalid(format!("task {id}: {why}")).with_reason(leasehold_core::Reason::Conflict),
    }
}
