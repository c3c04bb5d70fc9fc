//! The store of one process: the bucket behind the network, with a clock that learns from dated answers.
//!
//! The world knows the store's true time, so the clock is checked whenever a request leaves or an answer
//! arrives: its interval must contain the true time.

use bytes::Bytes;
use leasehold_store::clock::Clock;
use leasehold_store::host::{Host, Instant};
use leasehold_store::store::{
    Answer, Cause, Failure, Get, List, Page, PartId, PutAnswer, Ranged, Store, UploadId, Version, When,
};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::alarm::Alarm;
use crate::bucket::SimBucket;
use crate::executor::Executor;
use crate::host::SimHost;
use crate::network::{Delivered, Network, Reply, Request};

/// Maximum latency of an answer that reveals any jump of the store's time.
const PROMPT_WITHIN: Duration = Duration::from_secs(1);

/// The store of one process.
#[derive(Debug)]
pub struct SimStore {
    host: Arc<SimHost>,
    network: Arc<Network>,
    bucket: Arc<SimBucket>,
    executor: Executor,
    clock: Clock,
    alarm: Alarm,
    /// Jump of the store's time from which the clock must have recovered.
    recovered_from: Mutex<Option<Duration>>,
}

impl SimStore {
    pub(crate) fn new(
        host: Arc<SimHost>,
        network: Arc<Network>,
        bucket: Arc<SimBucket>,
        executor: Executor,
        alarm: Alarm,
    ) -> Self {
        let clock = Clock::dated(host.clone());
        Self { host, network, bucket, executor, clock, alarm, recovered_from: Mutex::default() }
    }

    async fn send(&self, request: Request) -> Result<Reply, Failure> {
        self.check_clock("before a request");
        let (sent, sent_at) = (self.host.instant(), self.executor.now());
        let Ok(Delivered { reply, date }) = self.network.send(&self.host, request).await else {
            return Err(Failure::transient(Cause::Unanswered, "the connection was broken"));
        };
        if let Some((date_secs, dated_at)) = date {
            let received = self.host.instant();
            self.clock.observe(date_secs, sent, received);
            // If the wall clock was set meanwhile, the latency of the answer is unknown.
            let ahead = |instant: Instant| instant.wall_ns - instant.boot_ns;
            let is_timed =
                u128::from((ahead(received) - ahead(sent)).unsigned_abs()) < PROMPT_WITHIN.as_nanos();
            self.track_recovery(sent_at, dated_at, is_timed);
            self.check_clock("after an answer");
        }
        reply
    }

    /// Tracks whether the clock must be right. After a jump of the store's time the clock may be wrong until
    /// a prompt answer from after the jump arrives, and again when an answer from before the jump arrives
    /// late.
    fn track_recovery(&self, sent_at: Duration, dated_at: Duration, is_timed: bool) {
        let Some(jumped_at) = self.bucket.jumped_at() else { return };
        let mut recovered_from = self.recovered_from.lock().unwrap_or_else(PoisonError::into_inner);
        if dated_at <= jumped_at {
            *recovered_from = None;
        } else if is_timed
            && sent_at > jumped_at
            && self.executor.now().saturating_sub(sent_at) <= PROMPT_WITHIN
        {
            *recovered_from = Some(jumped_at);
        }
    }

    fn check_clock(&self, when: &str) {
        let jumped_at = self.bucket.jumped_at();
        let recovered_from = *self.recovered_from.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(now) = self.clock.now().filter(|_| jumped_at == recovered_from) else { return };
        let truth = self.bucket.time_ns().div_euclid(1_000_000);
        if !(now.earliest.as_millis()..=now.latest.as_millis()).contains(&truth) {
            let (name, off) = (self.host.name(), truth - now.earliest.as_millis());
            let width = now.width().map_or_else(|| "∞".to_owned(), |width| format!("{width:?}"));
            self.alarm.raise(format!(
                "{name}'s clock is wrong {when}: the true time is {off} ms into an interval of {width}"
            ));
        }
        if jumped_at.is_none() && !now.is_consistent {
            let name = self.host.name();
            self.alarm
                .raise(format!("{name}'s clock is contradictory {when}, but the store's time never jumped"));
        }
    }
}

impl Store for SimStore {
    fn get<'a>(&'a self, key: &'a str, unless: Option<&'a Version>) -> Answer<'a, Get> {
        let request = Request::Get(key.to_owned(), unless.cloned());
        Box::pin(async move {
            match self.send(request).await? {
                Reply::Get(get) => Ok(get),
                other => Err(unexpected_reply(&other)),
            }
        })
    }

    fn put<'a>(&'a self, key: &'a str, body: Bytes, when: &'a When) -> Answer<'a, PutAnswer> {
        let request = Request::Put(key.to_owned(), body, when.clone());
        Box::pin(async move {
            match self.send(request).await? {
                Reply::Put(put) => Ok(put),
                other => Err(unexpected_reply(&other)),
            }
        })
    }

    fn delete<'a>(&'a self, key: &'a str) -> Answer<'a, ()> {
        let request = Request::Delete(key.to_owned());
        Box::pin(async move {
            match self.send(request).await? {
                Reply::Deleted => Ok(()),
                other => Err(unexpected_reply(&other)),
            }
        })
    }

    fn list<'a>(&'a self, list: &'a List) -> Answer<'a, Page> {
        let request = Request::List(list.clone());
        Box::pin(async move {
            match self.send(request).await? {
                Reply::Page(page) => Ok(page),
                other => Err(unexpected_reply(&other)),
            }
        })
    }

    fn get_range<'a>(
        &'a self,
        key: &'a str,
        range: Range<u64>,
        unchanged: Option<&'a Version>,
    ) -> Answer<'a, Ranged> {
        let request = Request::GetRange(key.to_owned(), range, unchanged.cloned());
        Box::pin(async move {
            match self.send(request).await? {
                Reply::Ranged(ranged) => Ok(ranged),
                other => Err(unexpected_reply(&other)),
            }
        })
    }

    fn upload_begin<'a>(&'a self, key: &'a str, part_bytes: u64) -> Answer<'a, UploadId> {
        let request = Request::Begin(key.to_owned(), part_bytes);
        Box::pin(async move {
            match self.send(request).await? {
                Reply::Begun(upload) => Ok(upload),
                other => Err(unexpected_reply(&other)),
            }
        })
    }

    fn upload_part<'a>(
        &'a self,
        key: &'a str,
        upload: &'a UploadId,
        number: usize,
        body: Bytes,
    ) -> Answer<'a, PartId> {
        let request = Request::Part(key.to_owned(), upload.clone(), number, body);
        Box::pin(async move {
            match self.send(request).await? {
                Reply::Part(part) => Ok(part),
                other => Err(unexpected_reply(&other)),
            }
        })
    }

    fn upload_end<'a>(
        &'a self,
        key: &'a str,
        upload: &'a UploadId,
        parts: Vec<PartId>,
    ) -> Answer<'a, Version> {
        let request = Request::End(key.to_owned(), upload.clone(), parts);
        Box::pin(async move {
            match self.send(request).await? {
                Reply::Ended(version) => Ok(version),
                other => Err(unexpected_reply(&other)),
            }
        })
    }

    fn upload_abort<'a>(&'a self, key: &'a str, upload: &'a UploadId) -> Answer<'a, ()> {
        let request = Request::Abort(key.to_owned(), upload.clone());
        Box::pin(async move {
            match self.send(request).await? {
                Reply::Aborted => Ok(()),
                other => Err(unexpected_reply(&other)),
            }
        })
    }

    fn clock(&self) -> &Clock {
        &self.clock
    }

    fn describe(&self) -> String {
        "the simulated bucket".into()
    }
}

/// An answer of the wrong kind: a bug of the simulator itself.
fn unexpected_reply(reply: &Reply) -> Failure {
    Failure::permanent(leasehold_core::Kind::Internal, format!("the simulated bucket answered: {reply}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faults::Faults;
    use crate::world::World;
    use leasehold_core::limits::UPLOAD_PART_BYTES;
    use leasehold_store::testing::conformance::{Suite, SuiteOptions};
    use leasehold_store::{Client, Purpose};

    /// Runs without faults and without other processes: races are left to the scenarios.
    #[test]
    fn the_simulated_bucket_conforms() {
        let mut world = World::new(1, Faults::none()).with_scenario("store");
        let captured = Arc::<Mutex<Option<Arc<dyn Store>>>>::default();
        let keep = captured.clone();
        world.wrap_stores(Arc::new(move |store| {
            *keep.lock().unwrap() = Some(store.clone());
            store
        }));
        let (host, _) = world.process("suite");
        let store = captured.lock().unwrap().take().unwrap();
        let extent = SuiteOptions { races: false, listed: 1_500, ..SuiteOptions::default() };
        let suite = Suite::on(host.clone(), store, extent);
        let ended = Arc::<Mutex<Option<_>>>::default();
        let slot = ended.clone();
        world.spawn(host.process(), async move {
            *slot.lock().unwrap() = Some(suite.run().await);
        });
        let has_ended = || ended.lock().unwrap().is_some();
        world.run_until(has_ended, Duration::from_hours(1)).unwrap_or_else(|failed| panic!("{failed}"));
        ended.lock().unwrap().take().unwrap().unwrap();
    }

    /// Uploads until the upload succeeds. No process is killed here: a killed one would leave nothing visible in the
    /// bucket.
    async fn upload(client: Client, parts: [Bytes; 2]) {
        loop {
            let bytes = parts.iter().map(|part| part.len() as u64).sum();
            let Ok(upload) = client.upload(Purpose::Fetch, "artifact", bytes).await else { continue };
            let [first, last] = parts.clone();
            if upload.part(1, last).await.and(upload.part(0, first).await).is_err() {
                // Best effort, as in the real code.
                drop(upload.abort().await);
            } else if upload.finish().await.is_ok() {
                return;
            }
        }
    }

    #[test]
    fn an_upload_appears_whole_or_not_at_all_under_wild_faults() {
        let parts = [vec![1; usize::try_from(UPLOAD_PART_BYTES).unwrap()].into(), Bytes::from_static(b"2")];
        for seed in crate::seeds(0..30) {
            let faults = Faults { crash_at_write: 0, process_fault_every: None, ..Faults::wild() };
            let mut world = World::new(seed, faults).with_scenario("store");
            let whole = parts.concat();
            world.check(move |change, _| match &change.after {
                Some(stored) if stored.object.body == whole => Ok(()),
                _ => Err("the object differs from the uploaded parts".into()),
            });
            let done = Arc::<Mutex<u32>>::default();
            for name in ["one", "two"] {
                let (host, client) = world.process(name);
                let (parts, done) = (parts.clone(), done.clone());
                world.spawn(host.process(), async move {
                    upload(client, parts).await;
                    *done.lock().unwrap() += 1;
                });
            }
            let failed = |failed| panic!("{failed}");
            world.run_until(|| *done.lock().unwrap() == 2, Duration::from_hours(1)).unwrap_or_else(failed);
            assert!(
                world.objects().contains_key("artifact"),
                "seed {seed}: acknowledged, but the object is missing"
            );
            world.run_for(Duration::from_mins(22)).unwrap_or_else(failed);
            world.every_request_is_counted().unwrap();
        }
    }
}
