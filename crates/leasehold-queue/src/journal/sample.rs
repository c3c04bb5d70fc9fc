//! Counts and changes of a queue, for a reader that shows it as it changes. Everything in it is confirmed, and nothing needs a
//! proof by a request to the store: it may be a moment old.

use leasehold_core::Result;

use super::JournalQueue;
use super::changes::{ChangePage, ChangePosition};
use super::layout::stats;
use super::query::{StateAnswer, StateQuery};
use super::replay::Replayed;
use super::request::{BrokerRequest, Freshness};
use crate::front::QueueLayout;
use crate::inspect::Stats;

/// Counts and changes of a queue.
#[derive(Debug, Clone)]
pub struct JournalSample {
    /// Number of tasks by status, with those of the archive.
    pub stats: Stats,
    /// Tasks that have changed.
    pub changes: ChangePage,
}

impl JournalQueue {
    /// Counts the tasks, and reads those that have changed after a position; without one, only the current position. Requests: none while
    /// the broker can be reached, otherwise those of one read without a connection.
    pub async fn sample(&self, since: Option<&ChangePosition>) -> Result<JournalSample> {
        let asked = since.cloned();
        let changes = |answer| BrokerRequest::Changes { since: asked, answer };
        let (query, freshness) = (StateQuery::Count, Freshness::Confirmed);
        let counts = |answer| BrokerRequest::Read { query, freshness, answer };
        if let Some(changes) = self.broker.ask_serving(&self.client, changes).await
            && let Some(counts) = self.broker.ask_serving(&self.client, counts).await
        {
            let StateAnswer::Count(counts) = counts? else { return Err(StateAnswer::unexpected()) };
            return Ok(JournalSample { stats: stats(&counts, self.now()?), changes: changes? });
        }
        let needs = |replayed: &Replayed| replayed.changes.needs(since, &replayed.state);
        let read = |replayed: &Replayed| {
            Ok((replayed.changes.page(since, &replayed.state)?, replayed.state.counts()))
        };
        let (changes, counts) = self.follow(needs, read).await?;
        Ok(JournalSample { stats: stats(&counts, self.now()?), changes })
    }
}
