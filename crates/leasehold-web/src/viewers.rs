//! Recently viewed topics, on which the sampler's pace depends.
//!
//! Viewers have no session; a request for a view counts as viewing it for a while. Ten viewers therefore cost the same as
//! one.

use leasehold_store::Host;
use leasehold_store::host::Instant;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;

/// Time for which a request counts as viewing. Pages poll every two seconds, and browsers slow them down when hidden.
const LOOKS_FOR: Duration = Duration::from_secs(15);

/// A topic that can be viewed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Topic {
    /// The queue: its index and its tasks.
    Queue,
    /// Leases and inboxes of workers.
    Workers,
    /// Leases on shards.
    Shards,
    /// Artifacts.
    Artifacts,
}

const TOPICS: usize = 4;

/// Time of the last view of each topic.
#[derive(Debug)]
pub(crate) struct Looks {
    host: Arc<dyn Host>,
    at: Mutex<[Option<Instant>; TOPICS]>,
    /// Changes when a topic without viewers is viewed.
    began: watch::Sender<u64>,
}

impl Looks {
    pub(crate) fn new(host: Arc<dyn Host>) -> Self {
        Self { host, at: Mutex::new([None; TOPICS]), began: watch::Sender::new(0) }
    }

    /// Records a view of a topic.
    pub(crate) fn at(&self, topic: Topic) {
        let was_looked_at = self.is_at(topic);
        let now = self.host.instant();
        self.at.lock().unwrap_or_else(PoisonError::into_inner)[topic as usize] = Some(now);
        if !was_looked_at {
            self.began.send_modify(|times| *times += 1);
        }
    }

    /// True if the topic was viewed recently.
    pub(crate) fn is_at(&self, topic: Topic) -> bool {
        let at = self.at.lock().unwrap_or_else(PoisonError::into_inner)[topic as usize];
        at.is_some_and(|at| self.host.instant().since(at) < LOOKS_FOR)
    }

    /// Returns a receiver that changes when a topic without viewers is viewed.
    pub(crate) fn began(&self) -> watch::Receiver<u64> {
        self.began.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_store::testing::FakeHost;

    #[test]
    fn a_view_counts_for_fifteen_seconds_and_the_first_one_wakes_the_sampler() {
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
