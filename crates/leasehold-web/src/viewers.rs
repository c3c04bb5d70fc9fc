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
const VIEW_LASTS: Duration = Duration::from_secs(15);

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
pub(crate) struct Viewers {
    host: Arc<dyn Host>,
    viewed_at: Mutex<[Option<Instant>; TOPICS]>,
    /// Changes when a topic without viewers is viewed.
    first_views: watch::Sender<u64>,
}

impl Viewers {
    pub(crate) fn new(host: Arc<dyn Host>) -> Self {
        Self { host, viewed_at: Mutex::new([None; TOPICS]), first_views: watch::Sender::new(0) }
    }

    /// Records a view of a topic.
    pub(crate) fn record(&self, topic: Topic) {
        let was_viewed = self.is_viewed(topic);
        let now = self.host.instant();
        self.viewed_at.lock().unwrap_or_else(PoisonError::into_inner)[topic as usize] = Some(now);
        if !was_viewed {
            self.first_views.send_modify(|times| *times += 1);
        }
    }

    /// True if the topic was viewed recently.
    pub(crate) fn is_viewed(&self, topic: Topic) -> bool {
        let at = self.viewed_at.lock().unwrap_or_else(PoisonError::into_inner)[topic as usize];
        at.is_some_and(|at| self.host.instant().since(at) < VIEW_LASTS)
    }

    /// Returns a receiver that changes when a topic without viewers is viewed.
    pub(crate) fn first_views(&self) -> watch::Receiver<u64> {
        self.first_views.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_store::testing::FakeHost;

    #[test]
    fn a_view_counts_for_fifteen_seconds_and_the_first_one_wakes_the_sampler() {
        let host = FakeHost::new();
        let viewers = Viewers::new(Arc::new(host.clone()));
        let mut began = viewers.first_views();
        assert!(!viewers.is_viewed(Topic::Queue));
        viewers.record(Topic::Queue);
        assert!(viewers.is_viewed(Topic::Queue) && !viewers.is_viewed(Topic::Shards));
        assert!(began.has_changed().unwrap());
        began.mark_unchanged();
        host.advance(Duration::from_secs(14));
        viewers.record(Topic::Queue);
        assert!(!began.has_changed().unwrap(), "the second of several");
        host.advance(Duration::from_secs(15));
        assert!(!viewers.is_viewed(Topic::Queue));
    }
}
