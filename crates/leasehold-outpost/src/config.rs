//! Settings of a queue that all processes of a node share (`outpost.json`), and the setting that selects a bucket or an
//! outpost.

use leasehold_core::ids::parse_name;
use leasehold_core::outpost::Consistency;
use leasehold_core::{Error, Kind, Name, Result};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::Path;
use std::str::FromStr;

/// Newest format that this program writes and reads.
const FORMAT: u32 = 1;

/// Settings of a queue on a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutpostConfig {
    /// Id of the machine.
    pub node_id: Name,
    /// Policy for claims while the bucket is unreachable.
    pub consistency: Consistency,
    /// Address of the bucket; `None` on a node without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bucket: Option<String>,
    /// Policy for syncing files to the disk.
    pub durability: SpoolDurability,
    /// Time for which completed tasks are kept on the node.
    pub completed_keep_secs: u64,
    /// Most completed tasks that are kept on the node.
    #[serde(rename = "completed_keep_max")]
    pub completed_max: u64,
    /// True if a handler may finish after another worker has taken its task.
    #[serde(default, rename = "finishes")]
    pub finish_after_takeover: bool,
}

/// Policy for syncing files to the disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SpoolDurability {
    /// All files.
    Full,
    /// All files but leases, which are void after a power cut anyway: heartbeats are not synced, to spare flash storage.
    #[default]
    Light,
}

impl OutpostConfig {
    /// Default settings of a node.
    #[must_use]
    pub fn new(node_id: Name) -> Self {
        Self {
            node_id,
            consistency: Consistency::default(),
            bucket: None,
            durability: SpoolDurability::default(),
            completed_keep_secs: 7 * 24 * 3_600,
            completed_max: 10_000,
            finish_after_takeover: false,
        }
    }

    pub(crate) fn to_json(&self) -> Vec<u8> {
        let file = ConfigFile { format: FORMAT, config: self.clone() };
        serde_json::to_vec_pretty(&file).expect("names and numbers")
    }

    pub(crate) fn from_json(path: &Path, body: &[u8]) -> Result<Self> {
        let corrupt =
            |why: String| Error::new(Kind::Corrupt, format!("cannot read {}: {why}", path.display()));
        let file: ConfigFile = serde_json::from_slice(body).map_err(|error| corrupt(error.to_string()))?;
        if file.format > FORMAT {
            return Err(corrupt(format!("unknown format {}, at most {FORMAT} is supported", file.format)));
        }
        Ok(file.config)
    }
}

/// Contents of `outpost.json`.
#[derive(Serialize, Deserialize)]
struct ConfigFile {
    format: u32,
    #[serde(flatten)]
    config: OutpostConfig,
}

impl FromStr for SpoolDurability {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        parse_name("durability", text, &[("full", Self::Full), ("light", Self::Light)])
    }
}

/// Environment variable with the queue type.
pub const QUEUE_TYPE_VARIABLE: &str = "LEASEHOLD_QUEUE_TYPE";

/// Location of a program's tasks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum QueueType {
    /// In the bucket itself.
    #[default]
    Bucket,
    /// In a folder of this machine, which a supervisor syncs with a bucket.
    Filesystem,
}

impl QueueType {
    /// Reads the type from the environment; the bucket by default.
    pub fn from_env() -> Result<Self> {
        match std::env::var(QUEUE_TYPE_VARIABLE) {
            Ok(text) if !text.is_empty() => text.parse(),
            _ => Ok(Self::default()),
        }
    }
}

impl FromStr for QueueType {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        parse_name("queue type", text, &[("bucket", Self::Bucket), ("filesystem", Self::Filesystem)])
    }
}

impl fmt::Display for QueueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Bucket => "bucket",
            Self::Filesystem => "filesystem",
        })
    }
}
