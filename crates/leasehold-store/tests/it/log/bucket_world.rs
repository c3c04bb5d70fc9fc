//! Processes that take over from each other in one bucket, in any order of their requests, with lost answers and late
//! puts. What the model checker shows of the rules, this shows of the code.
//!
//! Each process is a future that waits once before every request, and one of them is polled at random: a seed determines
//! everything.

use bytes::Bytes;
use futures::task::noop_waker_ref;
use leasehold_core::Kind;
use leasehold_core::journal::{Commit, CommitHash, LogPosition, Seq};
use leasehold_store::store::Answer;
use leasehold_store::testing::log_conformance::{log_holder, some_fence};
use leasehold_store::testing::{FakeHost, Lane};
use leasehold_store::{
    Cause, Client, CommitOutcome, DelegatingStore, Failure, Get, Host, Log, LogWriter, MemoryStore,
    PutAnswer, Store, TakeOver, Version, When,
};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};
use std::time::Duration;

use super::random::Random;

const PROCESSES: u64 = 3;

type History = Vec<CommitHash>;

/// Store that loses answers and delays puts.
#[derive(Debug)]
struct LossyStore {
    inner: MemoryStore,
    random: Mutex<Random>,
    late: Mutex<Vec<(String, Bytes, When)>>,
}

/// Waits once.
#[derive(Default)]
struct Once(bool);

impl Future for Once {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        let is_second = std::mem::replace(&mut self.0, true);
        if is_second { Poll::Ready(()) } else { Poll::Pending }
    }
}

fn lost() -> Failure {
    Failure::transient(Cause::Unanswered, "the answer was lost")
}

impl LossyStore {
    fn random(&self) -> MutexGuard<'_, Random> {
        self.random.lock().unwrap()
    }

    /// Carries out a put that was delayed.
    async fn deliver(&self) {
        let late = {
            let (mut late, mut random) = (self.late.lock().unwrap(), self.random());
            if late.is_empty() || !random.one_in(8) {
                return;
            }
            let place = random.below(late.len());
            late.remove(place)
        };
        self.inner.put(&late.0, late.1, &late.2).await.unwrap();
    }
}

impl DelegatingStore for LossyStore {
    fn inner(&self) -> &dyn Store {
        &self.inner
    }

    fn get<'a>(&'a self, key: &'a str, unless: Option<&'a Version>) -> Answer<'a, Get> {
        Box::pin(async move {
            Once::default().await;
            self.deliver().await;
            if self.random().one_in(30) {
                return Err(lost());
            }
            self.inner.get(key, unless).await
        })
    }

    fn put<'a>(&'a self, key: &'a str, body: Bytes, when: &'a When) -> Answer<'a, PutAnswer> {
        Box::pin(async move {
            Once::default().await;
            self.deliver().await;
            let fate = self.random().below(12);
            match fate {
                0 | 1 => {
                    self.inner.put(key, body, when).await?;
                    Err(lost())
                }
                2 | 3 => {
                    self.late.lock().unwrap().push((key.to_owned(), body, when.clone()));
                    Err(lost())
                }
                4 => Err(Failure::transient(Cause::Unreached, "no way there")),
                5 => Ok(PutAnswer::Refused),
                _ => self.inner.put(key, body, when).await,
            }
        })
    }

    fn delete<'a>(&'a self, key: &'a str) -> Answer<'a, ()> {
        Box::pin(async move {
            Once::default().await;
            self.inner.delete(key).await
        })
    }
}

#[derive(Debug, Default)]
struct BucketWorld {
    random: Option<Random>,
    lease: BucketLease,
    acknowledged: History,
    commits: u32,
    takeovers: u32,
}

/// Lease with the snapshot and the floor in it (B7).
#[derive(Debug, Clone, Default)]
struct BucketLease {
    epoch: u64,
    snapshot: LogPosition,
    history: History,
    fences: BTreeSet<Seq>,
    deleted_to: Seq,
}

/// Process that takes over and commits, again and again.
async fn process(log: Log, world: &Mutex<BucketWorld>) -> Result<(), String> {
    for _ in 0..6 {
        let lease = {
            let mut world = world.lock().unwrap();
            world.lease.epoch += 1;
            world.lease.clone()
        };
        let mut broker = Broker { epoch: lease.epoch, history: lease.history, fences: lease.fences, world };
        broker.run(&log, lease.snapshot).await?;
    }
    Ok(())
}

struct Broker<'a> {
    epoch: u64,
    history: History,
    fences: BTreeSet<Seq>,
    world: &'a Mutex<BucketWorld>,
}

impl Broker<'_> {
    fn is_held(&self) -> bool {
        self.world.lock().unwrap().lease.epoch == self.epoch
    }

    async fn run(&mut self, log: &Log, from: LogPosition) -> Result<(), String> {
        let (history, kept) = (&mut self.history, &mut self.fences);
        let on_commit = |commit: Commit| {
            history.push(commit.hash);
            kept.extend(commit.header.fence.map(|_| commit.header.seq));
            Ok(())
        };
        let fenced = match log.take_over(&log_holder(self.epoch), from, || Ok(some_fence()), on_commit).await
        {
            Ok(TakeOver::Fenced(fenced)) => fenced,
            // Judged by a read of the lease that is sent after it (B12).
            Ok(TakeOver::Mismatch(error)) if self.is_held() => {
                return Err(format!("a log that is not corrupt is reported: {error}"));
            }
            Ok(_) | Err(_) => return Ok(()),
        };
        let (is_unknown, world, epoch, history) = (Cell::new(false), self.world, self.epoch, &self.history);
        let confirmed = fenced.confirm(|| async {
            Once::default().await;
            let world = world.lock().unwrap();
            let is_held = world.lease.epoch == epoch;
            is_unknown.set(is_held && !history.starts_with(&world.acknowledged));
            Ok(is_held)
        });
        let Some(mut writer) = confirmed.await.unwrap() else { return Ok(()) };
        if is_unknown.get() {
            return Err("a new broker does not know an acknowledged commit".into());
        }
        self.world.lock().unwrap().takeovers += 1;
        for _ in 0..8 {
            if !self.act(&mut writer).await? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// One action of a broker that serves; false if it has lost the log.
    async fn act(&mut self, writer: &mut LogWriter) -> Result<bool, String> {
        let choice = self.world.lock().unwrap().random.as_mut().unwrap().below(8);
        match choice {
            0 => match writer.is_current().await {
                Ok(true) if !self.history.starts_with(&self.world.lock().unwrap().acknowledged) => {
                    Err("a current read does not know an acknowledged commit".into())
                }
                Ok(is_current) => Ok(is_current),
                Err(error) if error.kind() == Kind::Corrupt && self.is_held() => Err(error.to_string()),
                Err(_) => Ok(false),
            },
            1 => self.snapshot(writer).await,
            _ => self.commit(writer).await,
        }
    }

    async fn commit(&mut self, writer: &mut LogWriter) -> Result<bool, String> {
        match writer.commit("{}\n".into(), 1).await {
            Ok(CommitOutcome::Committed(_)) => {
                self.history.push(writer.position().hash);
                let mut world = self.world.lock().unwrap();
                world.commits += 1;
                if !self.history.starts_with(&world.acknowledged)
                    && !world.acknowledged.starts_with(&self.history)
                {
                    return Err("a commit is acknowledged that is not in the history of the others".into());
                }
                if self.history.len() > world.acknowledged.len() {
                    world.acknowledged.clone_from(&self.history);
                }
                Ok(true)
            }
            Ok(CommitOutcome::Mismatch(error)) if self.is_held() => Err(error.to_string()),
            Ok(_) => Ok(false),
            // Closed, or surely not written: then the next one may succeed.
            Err(error) => Ok(error.kind() != Kind::Lost),
        }
    }

    /// Writes a snapshot and the floor into the lease, if it is still held, and deletes what is below.
    async fn snapshot(&mut self, writer: &mut LogWriter) -> Result<bool, String> {
        let (floor, deleted_to) = {
            let mut world = self.world.lock().unwrap();
            if world.lease.epoch != self.epoch {
                return Ok(true);
            }
            let deleted_to = world.lease.deleted_to;
            world.lease.snapshot = writer.position();
            world.lease.history.clone_from(&self.history);
            world.lease.fences.clone_from(&self.fences);
            world.lease.deleted_to = writer.position().seq;
            (writer.position().seq.next(), deleted_to)
        };
        let _ = writer.trimmer().delete_below(floor, deleted_to, &self.fences).await;
        Ok(true)
    }
}

/// Number of commits and takeovers of a world, or the violation that it has shown.
pub(crate) fn play(seed: u64, broken: Option<&'static str>) -> Result<(u32, u32), String> {
    #[cfg(feature = "mutants")]
    let _broken = broken.map(leasehold_store::mutant::Broken::new);
    #[cfg(not(feature = "mutants"))]
    assert!(broken.is_none());
    let host: Arc<dyn Host> = Arc::new(FakeHost::new());
    let (inner, random) = (MemoryStore::new(&host), Mutex::new(Random(seed ^ 0x10e)));
    let store = Arc::new(LossyStore { inner, random, late: Mutex::default() });
    let world = Mutex::new(BucketWorld { random: Some(Random(seed ^ 0x5eed)), ..BucketWorld::default() });
    let mut processes: Vec<_> = (0..PROCESSES)
        .map(|number| {
            // Some resolve every lost answer, others give up after the first.
            let timeout = if number == 0 { Duration::from_secs(30) } else { Duration::ZERO };
            let client = Client::new(store.clone(), host.clone()).with_timeout(timeout);
            Some(Box::pin(process(Log::in_bucket(client), &world)))
        })
        .collect();
    let (mut random, mut favourite) = (Random(seed), 0);
    while processes.iter().any(Option::is_some) {
        if random.one_in(5) || processes[favourite].is_none() {
            favourite = random.below(processes.len());
        }
        let Some(chosen) = &mut processes[favourite] else { continue };
        if let Poll::Ready(ended) = chosen.as_mut().poll(&mut Context::from_waker(noop_waker_ref())) {
            ended?;
            processes[favourite] = None;
        }
    }
    drop(processes);
    let world = world.into_inner().unwrap();
    Ok((world.commits, world.takeovers))
}

#[test]
fn processes_that_take_over_in_any_order_lose_nothing() {
    let (mut seeds, mut commits, mut takeovers) = (0, 0, 0);
    for seed in Lane::current().seeds(0..Lane::current().sized(2_000, 100_000)) {
        seeds += 1;
        let (more_commits, more_takeovers) =
            play(seed, None).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        commits += more_commits;
        takeovers += more_takeovers;
    }
    let is_busy = commits > 10 * seeds && takeovers > 4 * seeds;
    assert!(is_busy, "{commits} commits and {takeovers} takeovers in {seeds} seeds");
}

#[test]
fn a_seed_determines_everything() {
    for seed in 0..5 {
        assert_eq!(play(seed, None), play(seed, None));
    }
}
