//! Operations of a node that are not yet in the bucket.
//!
//! The name of an operation is derived from its content, so that it can be written again after a crash, and sent again
//! after a lost answer, without being applied twice.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::time::Duration;

use super::lease::ClockSource;
use crate::error::{Error, Kind, Result};
use crate::ids::{Artifacts, LeaseId, Name, TaskId, WriteId};
use crate::step::Event;
use crate::time::StoreTime;

/// Operation of this node on a task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Op {
    /// Id of the task.
    pub task: TaskId,
    /// Generation of the task.
    pub generation: u64,
    /// Epoch of the claim; that of the previous claim for operations that need none.
    pub epoch: u64,
    /// Revision of the task on this node.
    pub base_rev: u64,
    /// Time of the operation.
    pub at: StoreTime,
    /// Clock of that time.
    pub clock: ClockSource,
    /// Kind, with its data.
    #[serde(flatten)]
    pub kind: OpKind,
}

/// Kind of operation on a task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum OpKind {
    /// The task was submitted.
    Submit {
        /// Write that creates it, by which it is recognised in the bucket.
        write_id: WriteId,
        /// Record of the task.
        record: Value,
    },
    /// A process claimed it; the handler runs, or waits until the bucket confirms the claim.
    Claim {
        /// Id of the claim.
        lease_id: LeaseId,
        /// Claim of this node that it replaces.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        from: Option<LeaseId>,
        /// True if no handler started under that claim.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        is_unused: bool,
    },
    /// The task was completed.
    Complete {
        /// Id of the claim.
        lease_id: LeaseId,
        /// Output of the handler.
        output: Value,
        /// Result files of the handler.
        #[serde(default, skip_serializing_if = "Artifacts::is_empty")]
        results: Artifacts,
    },
    /// An attempt failed.
    Fail {
        /// Id of the claim.
        lease_id: LeaseId,
        /// Error of the attempt.
        error: String,
        /// True if another attempt may succeed.
        retryable: bool,
        /// Pause before the next attempt; none for the task's retry policy.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        after: Option<Duration>,
        /// Maximum number of attempts of the handler, if this attempt has reached it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        max_attempts: Option<u32>,
    },
    /// The task was released or snoozed: it is pending again, and the claim does not count as an attempt.
    Release {
        /// Id of the claim.
        lease_id: LeaseId,
        /// Earliest start, in the bucket's time.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        until: Option<StoreTime>,
    },
    /// The handler was stopped because the task was cancelled.
    Stop {
        /// Id of the claim.
        lease_id: LeaseId,
    },
    /// The task is retried manually.
    Requeue,
    /// The task is cancelled.
    Cancel {
        /// Claim of this node that ends with it, because no handler runs under it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        lease_id: Option<LeaseId>,
    },
}

impl OpKind {
    /// The operation for an event that ends a claim.
    pub fn ending(event: Event) -> Result<Self> {
        Ok(match event {
            Event::Complete { lease_id, output, results } => Self::Complete { lease_id, output, results },
            Event::Fail { lease_id, error, retryable, after } => {
                Self::Fail { lease_id, error, retryable, after, max_attempts: None }
            }
            Event::Exhaust { lease_id, error, max_attempts } => {
                let max_attempts = Some(max_attempts);
                Self::Fail { lease_id, error, retryable: false, after: None, max_attempts }
            }
            Event::Snooze { lease_id, until } => Self::Release { lease_id, until: Some(until) },
            Event::Release { lease_id } => Self::Release { lease_id, until: None },
            Event::Stop { lease_id } => Self::Stop { lease_id },
            event => {
                let message = format!("`{}` does not end a claim", event.name());
                return Err(Error::new(Kind::Internal, message));
            }
        })
    }

    /// Name of the operation.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            OpKind::Submit { .. } => "submit",
            OpKind::Claim { .. } => "claim",
            OpKind::Complete { .. } => "complete",
            OpKind::Fail { .. } => "fail",
            OpKind::Release { .. } => "release",
            OpKind::Stop { .. } => "stop",
            OpKind::Requeue => "requeue",
            OpKind::Cancel { .. } => "cancel",
        }
    }

    /// Claim under which it was made, or that ends with it.
    #[must_use]
    pub fn lease_id(&self) -> Option<&LeaseId> {
        match self {
            OpKind::Claim { lease_id, .. }
            | OpKind::Complete { lease_id, .. }
            | OpKind::Fail { lease_id, .. }
            | OpKind::Release { lease_id, .. }
            | OpKind::Stop { lease_id } => Some(lease_id),
            OpKind::Cancel { lease_id } => lease_id.as_ref(),
            OpKind::Submit { .. } | OpKind::Requeue => None,
        }
    }

    /// True if it ends a run.
    #[must_use]
    pub fn is_end(&self) -> bool {
        match self {
            OpKind::Complete { .. } | OpKind::Fail { .. } | OpKind::Release { .. } | OpKind::Stop { .. } => {
                true
            }
            OpKind::Submit { .. } | OpKind::Claim { .. } | OpKind::Requeue | OpKind::Cancel { .. } => false,
        }
    }
}

impl Op {
    /// Name, unique among the operations on its task.
    #[must_use]
    pub fn name(&self) -> Name {
        let text = format!("{}-{}-{}", self.generation, self.epoch, self.kind.name());
        Name::checked("operation", &text).expect("numbers and a name are valid")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::HexName;

    #[test]
    fn an_operation_is_read_as_it_was_written() {
        let lease_id = HexName::from_random(3);
        let kinds = [
            OpKind::Submit { write_id: HexName::from_random(1), record: serde_json::json!({"id": 1}) },
            OpKind::Claim {
                lease_id: lease_id.clone(),
                from: Some(HexName::from_random(9)),
                is_unused: true,
            },
            OpKind::Complete { lease_id: lease_id.clone(), output: Value::Null, results: Artifacts::new() },
            OpKind::Fail {
                lease_id: lease_id.clone(),
                error: "no".into(),
                retryable: true,
                after: Some(Duration::from_secs(10)),
                max_attempts: Some(3),
            },
            OpKind::Release { lease_id: lease_id.clone(), until: Some(StoreTime::from_millis(7)) },
            OpKind::Stop { lease_id: lease_id.clone() },
            OpKind::Requeue,
            OpKind::Cancel { lease_id: None },
            OpKind::Cancel { lease_id: Some(lease_id) },
        ];
        for kind in kinds {
            let op = Op {
                task: TaskId::from_random(5),
                generation: 2,
                epoch: 3,
                base_rev: 4,
                at: StoreTime::from_millis(1_000),
                clock: ClockSource::Bucket,
                kind,
            };
            let text = serde_json::to_string(&op).unwrap();
            assert_eq!(serde_json::from_str::<Op>(&text).unwrap(), op, "{text}");
            assert_eq!(op.name().as_str(), format!("2-3-{}", op.kind.name()));
        }
    }
}
