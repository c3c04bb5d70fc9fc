//! Real worker processes that lease shards, on any store; checked by the raw leases.

use futures::{StreamExt, TryStreamExt, stream};
use leasehold_core::{StoreTime, keys};
use leasehold_queue::{ObjectQueue, Queue};
use leasehold_store::{List, Purpose};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use super::crashes::{self, TestStore};
use super::direct;
use super::stalls::StallMeter;

const TTL: Duration = Duration::from_secs(6);
const RENEW_EVERY: Duration = Duration::from_secs(2);
/// Additional time for a busy machine: two dozen processes start at once on two cores.
const ALLOWANCE: Duration = Duration::from_secs(10);
/// Number of times that the division is observed for two renewals before it counts as unstable.
const SETTLES_WITHIN: usize = 4;
/// 256 shards are leased in groups of four.
const GROUPS: usize = 64;

/// Workers by id; killed on drop.
struct Workers<'a> {
    test_store: &'a TestStore,
    running: BTreeMap<String, Child>,
    started: usize,
}

impl<'a> Workers<'a> {
    fn none(test_store: &'a TestStore) -> Self {
        Self { test_store, running: BTreeMap::new(), started: 0 }
    }

    fn start(&mut self, count: usize) {
        for _ in 0..count {
            let id = format!("w{:02}", self.started);
            let mut command =
                self.test_store.command(&["worker", "--id", &id, "--exec", "noop=true", "--shard-leasing"]);
            command.env("LEASEHOLD_SHARD_LEASING_TTL_SECS", TTL.as_secs().to_string());
            command.env("LEASEHOLD_SHARD_LEASING_RENEW_SECS", RENEW_EVERY.as_secs().to_string());
            let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            self.running.insert(id, child);
            self.started += 1;
        }
    }

    fn kill(&mut self, count: usize) {
        for _ in 0..count {
            let (_, mut killed) = self.running.pop_first().unwrap();
            killed.kill().unwrap();
            killed.wait().unwrap();
        }
    }

    /// Waits until every group is held by one of the running workers, all alike: the ttl and two renewals at most.
    async fn until_even(&self, queue: &ObjectQueue) {
        let (began, meter) = (Instant::now(), StallMeter::start());
        loop {
            let held = held(queue).await;
            if self.is_even(&held) {
                return;
            }
            let bound = TTL + 2 * RENEW_EVERY + ALLOWANCE + meter.stalled();
            assert!(began.elapsed() < bound, "not even after {bound:?}: {held:?}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    fn is_even(&self, held: &BTreeMap<String, (String, u64)>) -> bool {
        let holders: BTreeSet<_> = held.values().map(|(worker, _)| worker).collect();
        let shares = holders.iter().map(|worker| held.values().filter(|(held, _)| held == *worker).count());
        let (most, least) = (shares.clone().max(), shares.min());
        held.len() == GROUPS
            && holders.into_iter().eq(self.running.keys())
            && most.unwrap_or(0) - least.unwrap_or(0) <= 1
    }
}

impl Drop for Workers<'_> {
    fn drop(&mut self) {
        self.kill(self.running.len());
    }
}

/// Holder and epoch of each unexpired lease, by key.
async fn held(queue: &ObjectQueue) -> BTreeMap<String, (String, u64)> {
    let client = queue.client();
    let page = client.list(Purpose::Admin, &List::all(keys::SHARD_LEASES)).await.unwrap();
    assert!(page.next.is_none());
    let reads = page.entries.into_iter().map(|entry| async move {
        let object = client.get(Purpose::Admin, &entry.key).await?.unwrap();
        let lease: Value = serde_json::from_slice(&object.body).unwrap();
        let until: StoreTime = lease["lease_expires_at"].as_str().unwrap().parse()?;
        let holder = (lease["worker_id"].as_str().unwrap().to_owned(), lease["epoch"].as_u64().unwrap());
        Ok::<_, leasehold_core::Error>((until > queue.now()?.latest_known()).then_some((entry.key, holder)))
    });
    let leases: Vec<_> = stream::iter(reads).buffered(16).try_collect().await.unwrap();
    leases.into_iter().flatten().collect()
}

/// Waits until every lease has been renewed.
async fn until_renewed(queue: &ObjectQueue) {
    let client = queue.client();
    let bodies = || async {
        let page = client.list(Purpose::Admin, &List::all(keys::SHARD_LEASES)).await.unwrap();
        let reads = page
            .entries
            .into_iter()
            .map(|entry| async move { client.get(Purpose::Admin, &entry.key).await.unwrap().unwrap().body });
        stream::iter(reads).buffered(16).collect::<Vec<_>>().await
    };
    let before = bodies().await;
    let (began, meter) = (Instant::now(), StallMeter::start());
    while bodies().await.iter().zip(&before).any(|(now, before)| now == before) {
        let bound = 2 * RENEW_EVERY + ALLOWANCE + meter.stalled();
        assert!(began.elapsed() < bound, "leases are not renewed within {bound:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Sixteen workers, of which four are killed, and then eight more: each time the shards are divided evenly within the ttl
/// and two renewals, and then nothing moves.
pub(crate) async fn divided_evenly(test_store: &TestStore) {
    let _slot = crashes::process_slot().await;
    assert!(test_store.command(&["init", "--shard-prefix-len", "2"]).output().unwrap().status.success());
    let queue = test_store.queue().await;
    let mut workers = Workers::none(test_store);
    workers.start(16);
    workers.until_even(&queue).await;
    workers.kill(4);
    workers.until_even(&queue).await;
    workers.start(8);
    workers.until_even(&queue).await;
    // If a busy machine delays a worker for longer than the ttl, its shards move once; an unstable division moves some every
    // time.
    for _ in 0..SETTLES_WITHIN {
        workers.until_even(&queue).await;
        let before = held(&queue).await;
        for _ in 0..2 {
            until_renewed(&queue).await;
        }
        if held(&queue).await == before {
            return;
        }
    }
    panic!("shards move although no worker has changed");
}

/// Runs workers that lease shards beside workers that scan all and workers with inboxes: every task completes, and none
/// twice. Half of the tasks are put into inboxes.
pub(crate) async fn side_by_side(test_store: &TestStore, tasks: usize) {
    let _slot = crashes::process_slot().await;
    let (queue, direct) = (test_store.queue().await, direct::producer_with_cached_workers(test_store).await);
    let kinds = [("leased", &["--shard-leasing"][..]), ("plain", &[]), ("direct", &["--direct"])];
    let workers =
        [1, 2].into_iter().flat_map(|number| kinds.map(|(id, more)| (format!("{id}-{number}"), more)));
    let workers: Vec<_> = workers.map(|(id, more)| test_store.worker(&id, "noop=true", more)).collect();
    direct::until_inbox_leased(&queue, "direct-1").await;
    direct::until_inbox_leased(&queue, "direct-2").await;
    for queue in [&queue, &direct] {
        let submits =
            (0..tasks / 2).map(|number| queue.submit("noop", number).max_attempts(crashes::ATTEMPTS));
        let submitted: Vec<_> = Queue::from(queue.clone()).submit_many(submits).collect().await;
        assert!(submitted.iter().all(Result::is_ok));
    }
    crashes::until_empty(&queue).await;
    let done: Vec<_> = workers.into_iter().map(crashes::summary).collect();
    let completed: Vec<_> =
        done.iter().map(|report| report["counts"]["completed"].as_u64().unwrap()).collect();
    assert_eq!(completed.iter().sum::<u64>(), tasks as u64, "{completed:?}");
    // The second of a kind may come too late: shares change with the next renewal.
    let of_kind = |first: usize| completed[first] + completed[first + 3];
    assert!((0..3).all(|kind| of_kind(kind) > 0), "one kind had nothing to do: {completed:?}");
    assert_eq!(crashes::audit(&queue).await.tasks, tasks, "a task was lost");
    crashes::assert_clean(test_store);
}
