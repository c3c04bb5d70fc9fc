//! The kinds of objects in a queue, identified by their keys, and the verification of each.

use leasehold_core::{Entry, Error, Kind, Lease, Result, ShardLen, TaskId, keys, record};
use leasehold_store::Object;
use serde_json::Value;

use crate::check::Remedy;
use crate::tasks::TaskObject;
use crate::{bell, unique};

/// The kind of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ObjectKind {
    /// `queue.json`.
    Queue,
    Task(ShardLen, TaskId),
    Entry,
    Unique,
    Lease,
    Bell,
    Manifest,
    ArtifactData,
    Probe,
    /// The copy of a corrupt object.
    Copy,
    /// An object at a key that nothing reads or writes.
    Unknown,
}

impl ObjectKind {
    /// The kind of the object at `key`, in a queue whose tasks are in shards of these lengths.
    pub(crate) fn of(key: &str, lengths: &[ShardLen]) -> Self {
        match keys::parse_task_shard(key) {
            Some((len, id)) if lengths.contains(&len) => Self::Task(len, id),
            _ if key == keys::QUEUE => Self::Queue,
            _ if Entry::parse(key).is_some() => Self::Entry,
            _ if keys::is_unique(key) => Self::Unique,
            _ if keys::is_lease(key) => Self::Lease,
            _ if keys::is_bell(key) => Self::Bell,
            _ if keys::parse_manifest(key).is_some() => Self::Manifest,
            _ if keys::parse_artifact_data(key).is_some() => Self::ArtifactData,
            _ if key.starts_with(keys::PROBES) => Self::Probe,
            _ if key.starts_with(keys::QUARANTINE) => Self::Copy,
            _ => Self::Unknown,
        }
    }

    /// True if the body has to be read to determine whether the object is corrupt. The content of a manifest is
    /// verified by the crate that writes it; other kinds have no content that matters.
    pub(crate) fn has_record(self) -> bool {
        matches!(self, Self::Task(..) | Self::Unique | Self::Lease | Self::Bell)
    }

    /// Returns an error if the object is corrupt.
    pub(crate) fn verify(self, key: &str, object: &Object) -> Result<()> {
        match self {
            Self::Task(..) => TaskObject::read(key, object.clone()).map(drop),
            Self::Unique => unique::parsed(key, &object.body).map(drop),
            Self::Lease => Lease::read(key, &object.body).map(drop),
            Self::Bell => bell::verify(key, &object.body),
            Self::Unknown => Err(unknown(key)),
            Self::Queue | Self::Entry | Self::Manifest | Self::ArtifactData | Self::Probe | Self::Copy => {
                Ok(())
            }
        }
    }
}

/// The error for an object at a key that nothing reads or writes.
pub(crate) fn unknown(key: &str) -> Error {
    let what = match key.split_once('/') {
        Some(("tasks", _)) => "the key of a task",
        Some(("ready" | "leases" | "inbox" | "overflow", _)) => "an index entry",
        _ => "a key of this queue",
    };
    Error::new(Kind::Corrupt, format!("`{key}` is not {what}"))
}

/// True if the record has a format newer than this program supports.
pub(crate) fn is_newer(body: &[u8]) -> bool {
    let format = serde_json::from_slice::<Value>(body).ok().and_then(|value| value.get("format")?.as_u64());
    format.is_some_and(|format| format > u64::from(record::FORMAT))
}

/// The remedy for a corrupt object that can be read.
pub(crate) fn remedy(key: &str, body: &[u8]) -> Remedy {
    match () {
        () if keys::check_key(key).is_err() => Remedy::StoreTools,
        () if is_newer(body) => Remedy::Update,
        () => Remedy::Quarantine,
    }
}
