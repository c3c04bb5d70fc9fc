//! The setting that selects a queue in a bucket or an outpost in a folder, `LEASEHOLD_QUEUE_TYPE`.

use leasehold_core::{Error, Result};
use std::fmt;
use std::str::FromStr;

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
        match text {
            "bucket" => Ok(Self::Bucket),
            "filesystem" => Ok(Self::Filesystem),
            _ => Err(Error::invalid(format!("unknown queue type `{text}`; use bucket or filesystem"))),
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_for_an_unknown_type_names_the_known_ones() {
        for kind in [QueueType::Bucket, QueueType::Filesystem] {
            assert_eq!(kind.to_string().parse::<QueueType>().unwrap(), kind);
        }
        let error = "folder".parse::<QueueType>().unwrap_err();
        assert_eq!(error.to_string(), "unknown queue type `folder`; use bucket or filesystem");
    }
}
