//! Changes that time makes: claims time out, and pending tasks expire.

use super::{JournalContext, JournalDecision, decide};
use crate::ids::TaskId;
use crate::journal::state::JournalState;
use crate::step::Event;
use crate::time::StoreTime;

/// Result of a tick.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ticked {
    /// Number of claims that timed out.
    pub timed_out: usize,
    /// Number of tasks that expired.
    pub expired: usize,
    /// True if more is to be done now.
    pub has_more: bool,
    /// First of the tasks that are to expire, and do not because they are [evicted](crate::journal::evicted).
    pub evicted: Option<TaskId>,
}

impl JournalState {
    /// Decides what has surely expired: at most `max` claims and tasks.
    pub fn tick(&self, max: usize, context: &JournalContext) -> JournalDecision<Ticked> {
        let is_past = |(at, _): &&(StoreTime, TaskId)| context.now.is_past(*at);
        let claims = self.indexes.claims.iter().take_while(is_past).map(|(_, id)| (id, Event::TimeOut));
        let expiries = self.indexes.expiries.iter().take_while(is_past).map(|(_, id)| (id, Event::Expire));
        let (mut records, mut ticked) = (Vec::new(), Ticked::default());
        let mut due = claims.chain(expiries);
        for (id, event) in due.by_ref().take(max) {
            if self.is_evicted(id) {
                ticked.evicted.get_or_insert(*id);
                continue;
            }
            // A corrupt task is left in place; reading it by its id shows the error.
            let Ok(Some(task)) = self.load(id) else { continue };
            let Ok((record, _)) = decide(&task, &event, &context.by, context) else { continue };
            records.push(record);
            let count = if event == Event::TimeOut { &mut ticked.timed_out } else { &mut ticked.expired };
            *count += 1;
        }
        ticked.has_more = !records.is_empty() && due.next().is_some();
        JournalDecision::done(records, ticked)
    }

    /// Time at which something becomes due or expires: when the broker is to [advance](Self::advance) and to tick again, if
    /// no request comes before. It may have passed, while the time is uncertain.
    #[must_use]
    pub fn next_wake(&self) -> Option<StoreTime> {
        let scheduled = self.indexes.scheduled.first_key_value().map(|((at, _), _)| *at);
        // A time has surely passed one millisecond later.
        let after = |at: StoreTime| StoreTime::from_millis(at.as_millis().saturating_add(1));
        let claim = self.indexes.claims.first().map(|(at, _)| after(*at));
        let expiry = self.indexes.expiries.first().map(|(at, _)| after(*at));
        scheduled.into_iter().chain(claim).chain(expiry).min()
    }
}
