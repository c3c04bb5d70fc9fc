//! Files of a queue on a node, and the keys that they would have in the bucket.
//!
//! The supervisor does not copy these files: in the bucket the tasks are those of an ordinary queue. A program that does
//! copy them uses the same relative path in both places, so that path → key → path is the identity. Names are validated before
//! they become part of a path: no separators, no names of dots alone, at most 128 bytes.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};
use crate::ids::{Name, TaskId};

/// Queue of a campaign (a group of queues in one store): determines the folder on a node and the prefix in a bucket.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueuePath {
    /// Name of the campaign.
    pub campaign: Name,
    /// Name of the queue.
    pub queue: Name,
}

impl QueuePath {
    /// Validates both names.
    pub fn new(campaign: &str, queue: &str) -> Result<Self> {
        Ok(Self { campaign: Name::checked("campaign", campaign)?, queue: Name::checked("queue", queue)? })
    }

    /// Folder below the data directory of a node.
    #[must_use]
    pub fn folder(&self) -> String {
        format!("queues/{}/{}", self.campaign, self.queue)
    }

    /// Prefix in the bucket, without a slash at the end.
    #[must_use]
    pub fn prefix(&self) -> String {
        format!("campaigns/{}/queues/{}", self.campaign, self.queue)
    }
}

impl fmt::Display for QueuePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.campaign, self.queue)
    }
}

impl FromStr for QueuePath {
    type Err = Error;

    /// Parses `campaign/queue`.
    fn from_str(text: &str) -> Result<Self> {
        let (campaign, queue) = text
            .split_once('/')
            .ok_or_else(|| Error::invalid(format!("`{text}` must be of the form `campaign/queue`")))?;
        Self::new(campaign, queue)
    }
}

/// File of a queue on a node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SpoolFile {
    /// Task that is waiting or running.
    Task(TaskId),
    /// Lease of a running task.
    Lease(TaskId),
    /// Completed task, with its result.
    Completed(TaskId),
    /// Failed task, with its error.
    Failed(TaskId),
    /// Operation that is not yet in the bucket.
    Outbox(u64),
    /// Result that the bucket no longer accepts, with its operation.
    Conflict(TaskId, Name),
}

impl SpoolFile {
    /// Path below the folder of the queue, with slashes.
    #[must_use]
    pub fn path(&self) -> String {
        match self {
            Self::Task(id) => format!("pending/{id}/task.json"),
            Self::Lease(id) => format!("pending/{id}/lease.json"),
            Self::Completed(id) => format!("completed/{id}.json"),
            Self::Failed(id) => format!("failed/{id}.json"),
            Self::Outbox(seq) => format!("outbox/{seq:020}.json"),
            Self::Conflict(id, op) => format!("conflicts/{id}.{op}.json"),
        }
    }

    /// Parses a path below the folder of the queue; none for other files.
    #[must_use]
    pub fn parse(path: &str) -> Option<Self> {
        let (folder, name) = path.split_once('/')?;
        let json = || name.strip_suffix(".json");
        let file = match folder {
            "pending" => {
                let (id, file) = name.split_once('/')?;
                let id = id.parse().ok()?;
                match file {
                    "task.json" => Self::Task(id),
                    "lease.json" => Self::Lease(id),
                    _ => return None,
                }
            }
            "completed" => Self::Completed(json()?.parse().ok()?),
            "failed" => Self::Failed(json()?.parse().ok()?),
            "outbox" => Self::Outbox(json()?.parse().ok()?),
            "conflicts" => {
                let (id, op) = json()?.split_once('.')?;
                Self::Conflict(id.parse().ok()?, Name::checked("operation", op).ok()?)
            }
            _ => return None,
        };
        // One file has one path: no signs, no missing or extra zeros.
        (file.path() == path).then_some(file)
    }

    /// Key of a copy in the bucket.
    #[must_use]
    pub fn key(&self, of: &QueuePath) -> String {
        format!("{}/{}", of.prefix(), self.path())
    }

    /// Parses a key into its queue and file.
    #[must_use]
    pub fn parse_key(key: &str) -> Option<(QueuePath, Self)> {
        let (campaign, rest) = key.strip_prefix("campaigns/")?.split_once('/')?;
        let (queue, path) = rest.strip_prefix("queues/")?.split_once('/')?;
        Some((QueuePath::new(campaign, queue).ok()?, Self::parse(path)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn file() -> impl Strategy<Value = SpoolFile> {
        let id = any::<u128>().prop_map(TaskId::from_random);
        (0..6, id, any::<u64>(), "[a-z0-9][a-z0-9.-]{0,20}").prop_map(|(which, id, seq, op)| match which {
            0 => SpoolFile::Task(id),
            1 => SpoolFile::Lease(id),
            2 => SpoolFile::Completed(id),
            3 => SpoolFile::Failed(id),
            4 => SpoolFile::Outbox(seq),
            _ => SpoolFile::Conflict(id, Name::checked("operation", &op).unwrap()),
        })
    }

    proptest! {
        #[test]
        fn from_path_to_key_to_path_is_the_identity(
            file in file(),
            campaign in "[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}",
            queue in "[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}",
        ) {
            let of = QueuePath::new(&campaign, &queue).unwrap();
            prop_assert_eq!(SpoolFile::parse(&file.path()), Some(file.clone()));
            let (parsed, there) = SpoolFile::parse_key(&file.key(&of)).unwrap();
            prop_assert_eq!((&parsed, &there), (&of, &file));
            prop_assert_eq!(there.path(), file.path());
            prop_assert_eq!(of.to_string().parse::<QueuePath>().unwrap(), of);
        }

        #[test]
        fn a_parsed_path_is_written_unchanged(path in "(pending|completed|failed|outbox|conflicts|x)/[a-f0-9./-]{0,60}") {
            if let Some(file) = SpoolFile::parse(&path) {
                prop_assert_eq!(file.path(), path);
            }
        }
    }

    #[test]
    fn names_that_would_lead_elsewhere_are_refused() {
        for wrong in ["", ".", "..", "...", "a/b", "a\\b", "ä", "a b", &"x".repeat(129)] {
            assert!(QueuePath::new(wrong, "q").is_err() && QueuePath::new("c", wrong).is_err(), "{wrong}");
        }
        assert!("only".parse::<QueuePath>().is_err() && "a/b/c".parse::<QueuePath>().is_err());
        for odd in
            ["pending/../task.json", "outbox/1.json", "outbox/+1.json", "completed/x.json", "", "pending"]
        {
            assert_eq!(SpoolFile::parse(odd), None, "{odd}");
        }
    }
}
