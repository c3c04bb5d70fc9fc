//! What was done on a node and is not yet in the bucket.
//!
//! An operation has a name that follows from what it is, so that it can be written down again after a crash, and sent
//! again after a lost answer, without being done twice.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::time::Duration;

use super::lease::ClockMark;
use crate::ids::{Artifacts, LeaseId, Name, TaskId, WriteId};
use crate::time::StoreTime;

/// One thing that was done here.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Op {
    /// To which task.
    pub task: TaskId,
    /// In which generation of it.
    pub generation: u64,
    /// Under which claim; that of the claim before for what needs none.
    pub epoch: u64,
    /// The revision of the task that this node knew.
    pub base_rev: u64,
    /// When.
    pub at: StoreTime,
    /// By which clock.
    pub clock: ClockMark,
    /// What.
    #[serde(flatten)]
    pub deed: Deed,
}

/// What can be done to a task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Deed {
    /// It was submitted.
    Submit {
        /// The write that creates it, by which it is known again.
        write_id: WriteId,
        /// The record.
        record: Value,
    },
    /// A process has taken it; it runs, or waits for the bucket's word.
    Claim {
        /// The claim.
        lease_id: LeaseId,
        /// The claim of this node that it replaces.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        from: Option<LeaseId>,
        /// Nobody has begun under that.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        is_unused: bool,
    },
    /// It was completed.
    Complete {
        /// The claim.
        lease_id: LeaseId,
        /// What the handler gave.
        output: Value,
        /// Files that it gave.
        #[serde(default, skip_serializing_if = "Artifacts::is_empty")]
        results: Artifacts,
    },
    /// An attempt has failed.
    Fail {
        /// The claim.
        lease_id: LeaseId,
        /// What went wrong.
        error: String,
        /// Whether another attempt could help.
        retryable: bool,
        /// When it follows, if not by the task's retry policy.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        after: Option<Duration>,
        /// How many attempts the handler allows, if it allows no more.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        max_attempts: Option<u32>,
    },
    /// It was given back unused.
    Release {
        /// The claim.
        lease_id: LeaseId,
        /// Not to be started before, by the bucket's time.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        until: Option<StoreTime>,
    },
    /// Its handler was stopped because it was called off.
    Stop {
        /// The claim.
        lease_id: LeaseId,
    },
    /// Somebody wants it to run again.
    Requeue,
    /// Somebody calls it off.
    Cancel {
        /// The claim of this node that ends with it, because nobody runs under it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        lease_id: Option<LeaseId>,
    },
}

impl Deed {
    /// The word for it.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Deed::Submit { .. } => "submit",
            Deed::Claim { .. } => "claim",
            Deed::Complete { .. } => "complete",
            Deed::Fail { .. } => "fail",
            Deed::Release { .. } => "release",
            Deed::Stop { .. } => "stop",
            Deed::Requeue => "requeue",
            Deed::Cancel { .. } => "cancel",
        }
    }

    /// The claim under which it was done, or that ends with it.
    #[must_use]
    pub fn lease_id(&self) -> Option<&LeaseId> {
        match self {
            Deed::Claim { lease_id, .. }
            | Deed::Complete { lease_id, .. }
            | Deed::Fail { lease_id, .. }
            | Deed::Release { lease_id, .. }
            | Deed::Stop { lease_id } => Some(lease_id),
            Deed::Cancel { lease_id } => lease_id.as_ref(),
            Deed::Submit { .. } | Deed::Requeue => None,
        }
    }

    /// Whether it is how a run has ended.
    #[must_use]
    pub fn is_end(&self) -> bool {
        match self {
            Deed::Complete { .. } | Deed::Fail { .. } | Deed::Release { .. } | Deed::Stop { .. } => true,
            Deed::Submit { .. } | Deed::Claim { .. } | Deed::Requeue | Deed::Cancel { .. } => false,
        }
    }
}

impl Op {
    /// Its name among the operations on its task.
    #[must_use]
    pub fn name(&self) -> Name {
        let text = format!("{}-{}-{}", self.generation, self.epoch, self.deed.name());
        Name::checked("operation", &text).expect("numbers and a word")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::HexName;

    #[test]
    fn an_operation_is_read_as_it_was_written() {
        let lease_id = HexName::from_random(3);
        let deeds = [
            Deed::Submit { write_id: HexName::from_random(1), record: serde_json::json!({"id": 1}) },
            Deed::Claim { lease_id: lease_id.clone(), from: Some(HexName::from_random(9)), is_unused: true },
            Deed::Complete { lease_id: lease_id.clone(), output: Value::Null, results: Artifacts::new() },
            Deed::Fail {
                lease_id: lease_id.clone(),
                error: "no".into(),
                retryable: true,
                after: Some(Duration::from_secs(10)),
                max_attempts: Some(3),
            },
            Deed::Release { lease_id: lease_id.clone(), until: Some(StoreTime::from_millis(7)) },
            Deed::Stop { lease_id: lease_id.clone() },
            Deed::Requeue,
            Deed::Cancel { lease_id: None },
            Deed::Cancel { lease_id: Some(lease_id) },
        ];
        for deed in deeds {
            let op = Op {
                task: TaskId::from_random(5),
                generation: 2,
                epoch: 3,
                base_rev: 4,
                at: StoreTime::from_millis(1_000),
                clock: ClockMark::Bucket,
                deed,
            };
            let text = serde_json::to_string(&op).unwrap();
            assert_eq!(serde_json::from_str::<Op>(&text).unwrap(), op, "{text}");
            assert_eq!(op.name().as_str(), format!("2-3-{}", op.deed.name()));
        }
    }
}
