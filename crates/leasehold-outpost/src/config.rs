//! What all processes of a node agree on about a queue: `outpost.json`.

use leasehold_core::outpost::Consistency;
use leasehold_core::{Error, Kind, Name, Result};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

/// The newest format that this program writes and reads.
const FORMAT: u32 = 1;

/// The settings of a queue on a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutpostConfig {
    /// The machine.
    pub node_id: Name,
    /// Which claims count while the bucket is out of reach.
    pub consistency: Consistency,
    /// The address of the bucket; none on a node that keeps to itself.
    pub bucket: Option<String>,
    /// What outlasts a power cut.
    pub durability: Durability,
    /// So long completed tasks are kept on the node.
    pub completed_keep: Duration,
    /// So many completed tasks are kept on the node.
    pub completed_max: u64,
    /// A handler whose task others have taken may come to its end.
    pub finishes: bool,
}

/// What outlasts a power cut.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// Everything.
    Full,
    /// Everything but leases, which are void after a power cut anyway: heartbeats wear out no card.
    #[default]
    Light,
}

impl OutpostConfig {
    /// The usual settings of a node.
    #[must_use]
    pub fn new(node_id: Name) -> Self {
        Self {
            node_id,
            consistency: Consistency::default(),
            bucket: None,
            durability: Durability::default(),
            completed_keep: Duration::from_hours(7 * 24),
            completed_max: 10_000,
            finishes: false,
        }
    }

    pub(crate) fn to_json(&self) -> Vec<u8> {
        let flat = Flat {
            format: FORMAT,
            node_id: self.node_id.clone(),
            consistency: self.consistency,
            bucket: self.bucket.clone(),
            durability: self.durability,
            completed_keep_secs: self.completed_keep.as_secs(),
            completed_keep_max: self.completed_max,
            finishes: self.finishes,
        };
        serde_json::to_vec_pretty(&flat).expect("names and numbers")
    }

    pub(crate) fn from_json(path: &Path, body: &[u8]) -> Result<Self> {
        let corrupt =
            |why: String| Error::new(Kind::Corrupt, format!("cannot read {}: {why}", path.display()));
        let flat: Flat = serde_json::from_slice(body).map_err(|error| corrupt(error.to_string()))?;
        if flat.format > FORMAT {
            return Err(corrupt(format!("it has format {}, and this program knows {FORMAT}", flat.format)));
        }
        Ok(Self {
            node_id: flat.node_id,
            consistency: flat.consistency,
            bucket: flat.bucket,
            durability: flat.durability,
            completed_keep: Duration::from_secs(flat.completed_keep_secs),
            completed_max: flat.completed_keep_max,
            finishes: flat.finishes,
        })
    }
}

#[derive(Serialize, Deserialize)]
struct Flat {
    format: u32,
    node_id: Name,
    consistency: Consistency,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    bucket: Option<String>,
    durability: Durability,
    completed_keep_secs: u64,
    completed_keep_max: u64,
    #[serde(default)]
    finishes: bool,
}

impl FromStr for Durability {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "full" => Ok(Self::Full),
            "light" => Ok(Self::Light),
            _ => Err(Error::invalid(format!("durability `{text}` is not known; there are full, light"))),
        }
    }
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Full => "full",
            Self::Light => "light",
        })
    }
}
