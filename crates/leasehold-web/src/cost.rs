//! Cost of a queue's work: the requests derived from the histories of its tasks.
//!
//! The ledger (request counts) of this process has only its own requests. The histories record the changes by all
//! processes, and every change takes a known number of requests: those that [`step`](leasehold_core::step()) orders, and
//! the read before it where there is one. Polling, renewals and bells (notification objects) are not included; nor are lost
//! races. Workers that lease their shards save two requests on each claim, which the history does not record: for them the
//! result is an upper bound.

use leasehold_core::Status;
use leasehold_core::task::Change;
use leasehold_store::{Prices, Verb};
use std::ops::AddAssign;

/// Number of requests, by price class.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Requests {
    pub(crate) put: u32,
    pub(crate) get: u32,
    pub(crate) delete: u32,
}

impl Requests {
    const fn new(put: u32, get: u32, delete: u32) -> Self {
        Self { put, get, delete }
    }
}

/// Number of requests for many tasks, by price class.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct CostEstimate {
    put: u64,
    get: u64,
    delete: u64,
}

impl AddAssign<Requests> for CostEstimate {
    fn add_assign(&mut self, more: Requests) {
        self.put += u64::from(more.put);
        self.get += u64::from(more.get);
        self.delete += u64::from(more.delete);
    }
}

impl CostEstimate {
    pub(crate) fn requests(self) -> u64 {
        self.put + self.get + self.delete
    }

    pub(crate) fn usd(self, prices: &Prices) -> f64 {
        let parts = [(Verb::Put, self.put), (Verb::Get, self.get), (Verb::Delete, self.delete)];
        parts.into_iter().map(|(verb, requests)| prices.cost(verb, requests)).sum()
    }
}

/// Returns the requests that these changes took.
pub(crate) fn of_history<'a>(changes: impl Iterator<Item = &'a Change>) -> Requests {
    changes.map(of_change).fold(Requests::default(), |all, one| Requests {
        put: all.put + one.put,
        get: all.get + one.get,
        delete: all.delete + one.delete,
    })
}

/// Returns the requests of one change: the task is always written; an index entry is written for the new status, and
/// deleted for the old one.
fn of_change(change: &Change) -> Requests {
    let entry = |status: Status| u32::from(!status.is_final());
    let (writes, removes) = (entry(change.to), change.from.map_or(0, entry));
    match change.event.as_str() {
        // The marker of an abandoned submit: counts the requests sent before.
        "abandon" => Requests::new(1, 0, 0),
        // Cancelling a running task only records the request: no index entry changes.
        "cancel" if change.to == Status::Running => Requests::new(1, 1, 0),
        // The writer already has the task, and does not read it first.
        "submit" | "complete" | "fail" | "snooze" | "release" | "stop" => {
            Requests::new(1 + writes, 0, removes)
        }
        _ => Requests::new(1 + writes, 1, removes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{DashboardFixture, claim};
    use leasehold_core::{Result, Task};
    use leasehold_queue::{QueueLayout, Settlement, Transition};
    use std::time::Duration;

    /// Compares the requests sent for one change with those derived from the history.
    async fn assert_requests_match(
        fixture: &DashboardFixture,
        change: impl Future<Output = Result<Task>>,
    ) -> Task {
        let before = fixture.queue.client().ledger().snapshot();
        let task = Box::pin(change).await.unwrap();
        let spent = fixture.queue.client().ledger().snapshot().since(&before);
        let change = task.history.events().last().unwrap();
        let count = |verb| {
            let count =
                spent.count(|line| line.verb == verb && line.purpose != leasehold_store::Purpose::Discover);
            u32::try_from(count).unwrap()
        };
        let spent = Requests::new(count(Verb::Put), count(Verb::Get), count(Verb::Delete));
        assert_eq!(of_change(change), spent, "{} to {}", change.event, change.to);
        task
    }

    fn done(operated: Transition<Task>) -> Task {
        operated.done().expect("it is allowed")
    }

    #[tokio::test]
    async fn requests_derived_from_a_history_match_those_sent() {
        let fixture = DashboardFixture::new().await;
        let queue = &fixture.queue;
        // The bell is written at most once a second: after this it is not part of the sums.
        fixture.submit("first").await;
        let id = assert_requests_match(&fixture, fixture.submitted("a")).await.id;
        assert_requests_match(&fixture, async { Ok(Box::pin(claim(queue, id)).await?.task().clone()) }).await;
        assert_requests_match(&fixture, async { Ok(done(queue.cancel(&id).await?)) }).await;
        let id = assert_requests_match(&fixture, fixture.submitted("b")).await.id;
        let claimed = claim(queue, id).await.unwrap();
        assert_requests_match(&fixture, async {
            Ok(queue.settle(&claimed, Settlement::Release).await?.unwrap())
        })
        .await;
        let at = queue.now().unwrap().earliest.plus(Duration::from_hours(1));
        assert_requests_match(&fixture, async { Ok(done(queue.reschedule(&id, at).await?)) }).await;
        assert_requests_match(&fixture, async { Ok(done(queue.cancel(&id).await?)) }).await;
        assert_requests_match(&fixture, async { Ok(done(queue.retry(&id).await?)) }).await;
        let claimed = claim(queue, id).await.unwrap();
        let fail =
            |retryable| Settlement::Fail { error: "no".into(), retryable, after: Some(Duration::ZERO) };
        assert_requests_match(&fixture, async { Ok(queue.settle(&claimed, fail(true)).await?.unwrap()) })
            .await;
        let claimed = claim(queue, id).await.unwrap();
        assert_requests_match(&fixture, async { Ok(queue.settle(&claimed, fail(false)).await?.unwrap()) })
            .await;
        let id = assert_requests_match(&fixture, fixture.submitted("c")).await.id;
        let claimed = claim(queue, id).await.unwrap();
        let complete = Settlement::complete(serde_json::Value::Null);
        assert_requests_match(&fixture, async { Ok(queue.settle(&claimed, complete).await?.unwrap()) }).await;
    }

    #[test]
    fn a_million_tasks_of_five_puts_a_get_and_two_deletes_cost_25_dollars_40() {
        let mut cost = CostEstimate::default();
        cost += Requests::new(5, 1, 2);
        assert_eq!(cost.requests(), 8);
        assert!((cost.usd(&Prices::of("aws").unwrap()) * 1e6 - 25.40).abs() < 1e-6);
    }
}
