//! Idempotency keys: a task that is submitted only once.

use serde::{Deserialize, Serialize};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::ids::TaskType;
use crate::limits::PLAN_AHEAD_MAX;

/// Minimum lifetime of a key: below an hour a slow producer could outlive it.
pub const LIFETIME_MIN: Duration = Duration::from_hours(1);
/// Default lifetime of a key.
pub const LIFETIME: Duration = Duration::from_hours(24);

/// A key under which a task is submitted only once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UniqueKey {
    /// The key itself.
    pub key: String,
    /// Tasks among which it is unique.
    pub scope: Scope,
    /// Time for which it is unique.
    pub lifetime: Duration,
    /// Retries the existing task if it has failed or expired. A cancelled task stays cancelled.
    pub retry_failed: bool,
}

/// Scope in which a key is unique.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// All tasks of the queue.
    #[default]
    Queue,
    /// The tasks of one type.
    TaskType,
}

impl Scope {
    /// Hash of a key in this scope, for a task of this type.
    #[must_use]
    pub fn hash(self, key: &str, task_type: &TaskType) -> blake3::Hash {
        let scope = match self {
            Scope::Queue => "",
            Scope::TaskType => task_type.as_str(),
        };
        blake3::hash(format!("{scope}\n{key}").as_bytes())
    }
}

impl UniqueKey {
    /// A key that is unique in the whole queue for a day.
    pub fn new(key: impl Into<String>) -> Self {
        Self { key: key.into(), scope: Scope::Queue, lifetime: LIFETIME, retry_failed: false }
    }

    /// Rejects a lifetime out of range.
    pub fn check(&self) -> Result<()> {
        let fault = if self.lifetime < LIFETIME_MIN {
            "at least 1 hour"
        } else if self.lifetime > PLAN_AHEAD_MAX {
            "at most 10 years"
        } else {
            return Ok(());
        };
        Err(Error::invalid(format!("key lifetime must be {fault}, got {:?}", self.lifetime)))
    }

    /// Hash of the key in its scope, for a task of this type.
    #[must_use]
    pub fn hash(&self, task_type: &TaskType) -> blake3::Hash {
        self.scope.hash(&self.key, task_type)
    }
}

impl<T: Into<String>> From<T> for UniqueKey {
    fn from(key: T) -> Self {
        Self::new(key)
    }
}
