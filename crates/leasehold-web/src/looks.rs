//! Who has looked at what lately: what the sampler's pace depends on.
//!
//! A viewer is nothing that comes and goes; whoever asks for a view has looked at it, and counts for a while. Ten viewers
//! are therefore the same as one.

use leasehold_store::Host;
use leasehold_store::host::Instant;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;

/// So long someone counts as looking. Pages ask every two seconds, and browsers slow them down when they are hidden.
const LOOKS_FOR: Duration = Duration::from_secs(15);

/// What can be looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Topic {
    /// The queue: its index and its tasks.
    Queue,
    /// Names of workers.
    Workers,
    /// Leases on shards.
    Shards,
    /// Large files.
    Artifacts,
}

const TOPICS: usize = 4;

/// When each was last looked at.
#[derive(Debug)]
pub(crate) struct Looks {
    host: Arc<dyn Host>,
    at: Mutex<[Option<Instant>; TOPICS]>,
    /// Changes when someone looks at what nobody was looking at.
    began: watch::Sender<u64>,
}

impl Looks {
    pub(crate) fn new(host: Arc<dyn Host>) -> Self {
        Self { host, at: Mutex::new([None; TOPICS]), began: watch::Sender::new(0) }
    }

    /// Someone looks.
    pub(crate) fn at(&self, topic: Topic) {
        let was_looked_at = self.is_at(topic);
        let now = self.host.instant();
        self.at.lock().unwrap_or_else(PoisonError::into_inner)[topic as usize] = Some(now);
        if !was_looked_at {
            self.began.send_modify(|times| *times += 1);
        }
    }

    /// Whether someone is looking.
    pub(crate) fn is_at(&self, topic: Topic) -> bool {
        let at = self.at.lock().unwrap_or_else(PoisonError::into_inner)[topic as usize];
        at.is_some_and(|at| self.host.instant().since(at) < LOOKS_FOR)
    }

    /// Tells when someone begins to look.
    pub(crate) fn began(&self) -> watch::Receiver<u64> {
        self.began.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_store::testing::FakeHost;

    #[test]
    fn a_look_counts_for_fifteen_seconds_and_wakes_whoever_waits_for_the_first() {
        let host = FakeHost::new();
        let looks = Looks::new(Arc::new(host.clone()));
        let mut began = looks.began();
        assert!(!looks.is_at(Topic::Queue));
        looks.at(Topic::Queue);
        assert!(looks.is_at(Topic::Queue) && !looks.is_at(Topic::Shards));
        assert!(began.has_changed().unwrap());
        began.mark_unchanged();
        host.advance(Duration::from_secs(14));
        looks.at(Topic::Queue);
        assert!(!began.has_changed().unwrap(), "the second of several");
        host.advance(Duration::from_secs(15));
        assert!(!looks.is_at(Topic::Queue));
    }
}
