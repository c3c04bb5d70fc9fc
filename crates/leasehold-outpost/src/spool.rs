//! The queue of one node, as plain files.
//!
//! ```text
//! outpost.json              what all processes agree on
//! pending/<id>/task.json    a task that waits or runs, as records are written, with a note of our own
//! pending/<id>/lease.json   whose it is, while somebody has it
//! pending/<id>/change.json  a change that is under way
//! pending/<id>/torn.json    since when the lease cannot be read
//! completed/<id>.json       a task that was completed
//! failed/<id>.json          a task that has failed, was called off, or cannot be read
//! outbox/<seq>.json         what was done here and is not yet in the bucket
//! outbox.last               the last number that was given there
//! conflicts/                what was made here and has no place in the bucket any more
//! wants/                    what the workers of this node handle
//! tmp/                      files in the making
//! ```
//!
//! Every change of a task is made under a lock on its directory. It is written down whole first (`change.json`), and that
//! is the moment in which it happens; then it is carried out. Whoever gets the lock next and finds a change that was
//! not carried out to its end does that first, so that it does not matter at which system call a process is killed.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `change` | a change that is written down, and how it is carried out |
//! | `claim` | taking a task, and taking it from those who are not heard of any more |
//! | `copies` | what the supervisor does with tasks of the bucket |
//! | `folder` | a task's directory under its lock |
//! | `kept` | a record with the note of the node |
//! | `outbox` | what was done here, in order |
//! | `poll` | what there is to do |
//! | `recover` | order, after others have died |
//! | `settle` | what becomes of a task that was claimed |
//! | `submit` | what producers and people do |
//! | `trim` | completed tasks go, after a while |
//! | `wants` | what the workers of this node handle |

mod change;
mod claim;
mod copies;
mod folder;
mod kept;
mod outbox;
mod poll;
mod recover;
mod settle;
mod submit;
mod trim;
mod wants;
mod watch;

use leasehold_core::outpost::{Campaign, DiskLease, NodeNow, SpoolFile};
use leasehold_core::{Act, Error, HexName, Kind, LeaseId, Now, Rejected, Result, StoreTime, Task, TaskId};
use leasehold_store::{Host, HostExt};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use crate::clock::NodeClock;
use crate::config::{Durability, OutpostConfig};
use crate::disk::{self, Disk, Lasting, Steps};

pub use copies::Mirrored;
pub use recover::Recovered;
pub use submit::{Place, Whereabouts};
pub(crate) use wants::SAID_EVERY;
pub use wants::Wants;
pub use watch::{News, SpoolCounts};

/// The queue of one node. Clones are the same queue.
#[derive(Debug, Clone)]
pub struct Spool {
    root: PathBuf,
    data: PathBuf,
    campaign: Campaign,
    config: Arc<OutpostConfig>,
    host: Arc<dyn Host>,
    clock: NodeClock,
    disk: Disk,
    outbox_index: Arc<Mutex<outbox::Index>>,
    seen: Arc<Mutex<poll::Seen>>,
}

/// A task in the hands of a process.
#[derive(Debug, Clone, PartialEq)]
pub struct Held {
    /// The task as it was claimed: running, by this worker, with the epoch and attempt of the lease.
    pub task: Task,
    /// The lease on it.
    pub lease: DiskLease,
}

/// What the holder of a task learns when it is heard of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Beat {
    /// Somebody has called the task off.
    pub cancelled: bool,
    /// The bucket has confirmed the claim.
    pub confirmed: bool,
}

/// A claim that was made in the bucket beforehand, for whoever takes the task here.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Checkout {
    /// The claim.
    pub lease_id: LeaseId,
    /// Its epoch.
    pub epoch: u64,
    /// Until when it counts, by the bucket's time.
    pub expires_at: StoreTime,
    /// It has run out once, and was claimed again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_extended: bool,
}

/// A task that lies on this node.
#[derive(Debug, Clone, PartialEq)]
pub struct Copy {
    /// The task: pending, also while somebody here has it.
    pub task: Task,
    /// Who has it here.
    pub lease: Option<DiskLease>,
    /// The revision in the bucket that it follows; 0 if it was submitted here and the bucket was not heard about it.
    pub base_rev: u64,
    /// The claim in the bucket for whoever takes it.
    pub checkout: Option<Checkout>,
    /// Somebody here has called it off.
    pub cancelled: bool,
}

impl Spool {
    /// Makes the queue of a node, or opens it if it is there with the same settings.
    pub fn create(data: &Path, of: &Campaign, config: OutpostConfig, host: Arc<dyn Host>) -> Result<Self> {
        let spool = Self::at(data, of, config, host)?;
        for folder in ["", "tmp", "pending", "completed", "failed", "outbox", "conflicts", wants::WANTS] {
            spool.disk.make(&spool.root.join(folder))?;
        }
        let path = spool.root.join(CONFIG);
        let is_there = path.exists() || !spool.disk.add(&path, &spool.config.to_json(), Lasting::Yes)?;
        if is_there {
            let there = disk::read(&path)?.unwrap_or_default();
            let there = OutpostConfig::from_json(&path, &there)?;
            if there != *spool.config {
                return Err(Error::invalid(format!(
                    "{} has other settings: change them there, or use another folder",
                    path.display()
                )));
            }
        }
        spool.recover()?;
        Ok(spool)
    }

    /// Opens the queue of a node, and puts it in order if others have died.
    pub fn open(data: &Path, of: &Campaign, host: Arc<dyn Host>) -> Result<Self> {
        let path = data.join(of.folder()).join(CONFIG);
        let body = disk::read(&path)?.ok_or_else(|| {
            Error::invalid(format!(
                "there is no outpost of {of} in {}: `leasehold outpost init`",
                data.display()
            ))
            .about(leasehold_core::Matter::Missing)
        })?;
        Self::create(data, of, OutpostConfig::from_json(&path, &body)?, host)
    }

    fn at(data: &Path, of: &Campaign, config: OutpostConfig, host: Arc<dyn Host>) -> Result<Self> {
        let root = data.join(of.folder());
        Ok(Self {
            clock: NodeClock::new(data, host.clone(), &NodeClock::boot_id()?),
            disk: Disk::new(root.join("tmp"), host.clone()),
            root,
            data: data.to_owned(),
            campaign: of.clone(),
            config: Arc::new(config),
            host,
            outbox_index: Arc::default(),
            seen: Arc::default(),
        })
    }

    /// With somebody who is told of every change of a file before it happens.
    #[must_use]
    pub fn with_steps(mut self, steps: Arc<dyn Steps>) -> Self {
        self.disk.steps = steps;
        self
    }

    /// As in another run of the machine, or on a machine that is only played.
    #[must_use]
    pub fn with_boot_id(mut self, boot_id: &str) -> Self {
        self.clock = NodeClock::new(&self.data, self.host.clone(), boot_id);
        self
    }

    /// What all processes of the node agree on.
    #[must_use]
    pub fn config(&self) -> &OutpostConfig {
        &self.config
    }

    /// Which queue it is.
    #[must_use]
    pub fn campaign(&self) -> &Campaign {
        &self.campaign
    }

    /// The folder with its files.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The machine.
    #[must_use]
    pub fn host(&self) -> &Arc<dyn Host> {
        &self.host
    }

    /// The present, as this node knows it.
    #[must_use]
    pub fn now(&self) -> NodeNow {
        self.clock.now()
    }

    /// The bucket has told its time, for all processes of the node.
    pub fn learn_time(&self, now: Now) -> Result<()> {
        self.clock.learn(now, &self.disk)
    }

    fn path(&self, file: &SpoolFile) -> PathBuf {
        self.root.join(file.path())
    }

    fn folder_of(&self, id: &TaskId) -> PathBuf {
        self.root.join("pending").join(id.to_string())
    }

    /// Who acts, when, with which luck.
    fn act(&self, now: &NodeNow) -> Act {
        let by = self.config.node_id.to_string();
        Act { by, now: now.present(), write_id: self.random_name(), chance: self.host.random() }
    }

    fn random_name(&self) -> HexName {
        HexName::from_random(self.host.random_bits())
    }

    /// Leases are void after a power cut.
    fn lease_lasting(&self) -> Lasting {
        match self.config.durability {
            Durability::Full => Lasting::Yes,
            Durability::Light => Lasting::No,
        }
    }
}

const CONFIG: &str = "outpost.json";

fn lost(id: &TaskId) -> Error {
    Error::new(
        Kind::Lost,
        format!("the lease on task {id} is lost: it belongs to someone else, or to nobody"),
    )
}

fn refused(id: &TaskId, why: &Rejected) -> Error {
    match why {
        Rejected::Lost => lost(id),
        why => Error::invalid(format!("task {id}: {why}")).about(leasehold_core::Matter::Conflict),
    }
}
