//! Pauses of processes right before they put a fence.
//!
//! A process that takes over lists the log and then puts its fence. What happens to the log between the two is what rules B2
//! and B3 are for, and a pause at a random time rarely falls into it.

use bytes::Bytes;
use leasehold_core::keys;
use leasehold_store::store::{Answer, PutAnswer, Store, When};
use leasehold_store::{DelegatingStore, HostExt};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use super::checker::JournalChecker;
use crate::executor::Executor;
use crate::host::SimHost;
use crate::world::World;

/// Shortest pause: the lease on the journal expires meanwhile, and the next broker takes a snapshot.
const PAUSE_MIN: Duration = Duration::from_secs(55);
/// Maximum that is added to the shortest pause.
const PAUSE_MORE: Duration = Duration::from_mins(1);

/// Store of a process that is paused before some of its fences.
struct PausingStore {
    store: Arc<dyn Store>,
    host: Arc<SimHost>,
    executor: Executor,
    checker: JournalChecker,
    /// True if a process of this world was paused, except for the first broker.
    has_paused: Arc<AtomicBool>,
}

/// Pauses the second broker of a world before its fence, unless faults have stopped.
pub(super) fn pause_before_fences(world: &World, checker: &JournalChecker) {
    let (executor, checker, has_paused) = (world.executor().clone(), checker.clone(), Arc::default());
    world.wrap_on_hosts(Arc::new(move |store, host| {
        let (host, executor, checker) = (host.clone(), executor.clone(), checker.clone());
        Arc::new(PausingStore { store, host, executor, checker, has_paused: Arc::clone(&has_paused) })
    }));
}

impl DelegatingStore for PausingStore {
    fn inner(&self) -> &dyn Store {
        &*self.store
    }

    fn put<'a>(&'a self, key: &'a str, body: Bytes, when: &'a When) -> Answer<'a, PutAnswer> {
        Box::pin(async move {
            if is_takeover(key, &body) && !self.checker.is_calm() && !self.has_paused.swap(true, Relaxed) {
                let pause = PAUSE_MIN + self.host.random_below(PAUSE_MORE);
                self.executor.pause(self.host.process(), pause);
                // The process is polled again when it continues.
                self.executor.sleep(Duration::from_nanos(1)).await;
            }
            self.store.put(key, body, when).await
        })
    }
}

impl fmt::Debug for PausingStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PausingStore").field("store", &self.store).finish_non_exhaustive()
    }
}

/// True if this is a fence after other commits: a commit without records.
fn is_takeover(key: &str, body: &Bytes) -> bool {
    keys::parse_journal_commit(key).is_some_and(|seq| seq.get() > 1)
        && body.iter().position(|byte| *byte == b'\n') == body.len().checked_sub(1)
}
