//! Submits that producers are to make.

use leasehold_core::NewTask;
use leasehold_core::new_task::Start;
use leasehold_queue::UniqueKey;
use serde_json::json;
use std::time::Duration;

use crate::random::SimRandom;

/// Number of shared idempotency keys.
pub(crate) const KEYS: u64 = 4;
pub(crate) const KEY_LIFETIME: Duration = Duration::from_hours(1);
/// Offset of the numbers of repeated submits.
pub(crate) const REPEAT_OFFSET: u64 = 1_000;
const KINDS: [&str; 6] = ["quick", "long", "retries", "fatal", "snoozes", "panics"];

/// One submit to make.
#[derive(Debug, Clone)]
pub(crate) struct PlannedSubmit {
    pub(crate) number: u64,
    pub(crate) key: Option<u64>,
    pub(crate) kind: &'static str,
    pub(crate) start: Start,
    pub(crate) expires_in: Option<Duration>,
    pub(crate) timeout_secs: Option<u64>,
}

impl PlannedSubmit {
    pub(crate) fn new(number: u64, rng: &mut SimRandom) -> Self {
        let key = rng.happens(3_000).then(|| rng.below(KEYS));
        // Submits that share a key ask for the same task.
        let kind = key.map_or_else(|| rng.index(KINDS.len()), |key| usize::try_from(key).unwrap_or(0));
        let start = match rng.below(3) {
            0 => Start::After(rng.between(Duration::ZERO, Duration::from_secs(90))),
            _ => Start::Now,
        };
        let expires_in =
            rng.happens(2_000).then(|| rng.between(Duration::from_secs(100), Duration::from_mins(4)));
        let timeout_secs = rng.happens(1_500).then(|| 1 + rng.below(20));
        Self { number, key, kind: KINDS[kind], start, expires_in, timeout_secs }
    }

    /// Submits that share a key ask for the same task.
    pub(crate) fn with_key(self, key: u64) -> Self {
        Self { key: Some(key), kind: KINDS[usize::try_from(key).unwrap_or(0)], ..self }
    }

    pub(crate) fn task(&self) -> NewTask {
        let input = self.key.map_or_else(|| json!({ "submit": self.number }), |key| json!({ "key": key }));
        let mut task = NewTask::new(self.kind, input).expect("the kinds are valid names");
        (task.start, task.expires_in, task.timeout_secs) = (self.start, self.expires_in, self.timeout_secs);
        task
    }
}

/// Idempotency key with this number.
pub(crate) fn planned_key(key: u64) -> UniqueKey {
    UniqueKey { lifetime: KEY_LIFETIME, ..UniqueKey::new(format!("key {key}")) }
}
