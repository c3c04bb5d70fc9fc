//! Check-outs: tasks claimed in advance, for a time without a connection to the bucket.

use leasehold_core::limits::PLAN_AHEAD_MAX;
use leasehold_core::outpost::{ClockSource, Op, OpKind};
use leasehold_core::{Error, Event, Index, Now, Result, Shard, ShardRange, StoreTime};
use leasehold_queue::TaskSnapshot;
use leasehold_queue::discover::KeyRange;
use leasehold_store::{HostExt, Purpose};

use super::{BucketLink, Supervisor};

impl Supervisor {
    /// Claims up to `most` free tasks for this node until `until`: of all shards, or only of some.
    pub async fn check_out(
        &mut self,
        most: usize,
        shards: Option<&[String]>,
        until: StoreTime,
    ) -> Result<u64> {
        let link = self.link().await?;
        let _lock = self.lock().await?;
        let shards = shards.map(|names| link.queue.shards(names)).transpose()?;
        let now = link.queue.now()?;
        if !now.is_before(until) {
            return Err(Error::invalid(format!("check-out must end in the future, got {until}")));
        }
        if until > now.earliest.plus(PLAN_AHEAD_MAX) {
            let latest = now.earliest.plus(PLAN_AHEAD_MAX);
            return Err(Error::invalid(format!("check-out must end before {latest}, got {until}")));
        }
        // Operations of this node are sent first.
        link.push().await?;
        let ranges = match shards {
            None => vec![KeyRange::whole(Index::Ready)],
            Some(shards) => {
                let range = |shard: &Shard| ShardRange { first: shard.clone(), last: shard.clone() };
                shards.iter().map(|shard| KeyRange::of(Index::Ready, &range(shard))).collect()
            }
        };
        let (mut taken, most) = (0, u64::try_from(most).unwrap_or(u64::MAX));
        let page = link.queue.discover(Purpose::Sync, ranges).await?;
        for hit in page.due {
            if taken >= most {
                break;
            }
            let Some(snapshot) = link.load_valid(&hit.entry.id).await? else { continue };
            taken += u64::from(link.check_out_one(&snapshot, until).await?);
        }
        link.record_bucket_time().await?;
        Ok(taken)
    }

    /// The bucket's time.
    pub async fn now(&mut self) -> Result<Now> {
        self.link().await?.queue.now()
    }
}

impl BucketLink {
    /// Claims one task. The intent is recorded first: if this process dies before it has recorded the check-out, the next one
    /// finds a claim without a worker, and ends it.
    async fn check_out_one(&self, snapshot: &TaskSnapshot, until: StoreTime) -> Result<bool> {
        let (now, task) = (self.queue.now()?.earliest, snapshot.task());
        let (worker, lease_id) = (self.spool.config().node_id.clone(), self.random_name());
        let kind = OpKind::Claim { lease_id: lease_id.clone(), from: None, is_unused: false };
        let (epoch, clock) = (task.epoch.saturating_add(1), ClockSource::Bucket);
        let (generation, base_rev) = (task.generation, task.rev);
        let intent = Op { task: task.id, generation, epoch, base_rev, at: now, clock, kind };
        let seq = self.spool.on_disk(move |spool| spool.append(&intent)).await?;
        let claim = Event::Claim { worker, lease_id: lease_id.clone(), lease: until.since(now) };
        let claimed = self.queue.update_if(snapshot, &claim).await?.done();
        // Another worker may have changed the task since.
        let is_ours = |now: &TaskSnapshot| now.task().lease_id.as_ref() == Some(&lease_id);
        let is_kept = if let Some(snapshot) = claimed.filter(is_ours) {
            self.cache_snapshot(&snapshot);
            self.record_checkout(&snapshot, false).await?
        } else {
            false
        };
        self.spool.on_disk(move |spool| spool.remove_op(seq)).await?;
        Ok(is_kept)
    }

    pub(super) fn random_name(&self) -> leasehold_core::HexName {
        leasehold_core::HexName::from_random(self.host().random_bits())
    }
}
