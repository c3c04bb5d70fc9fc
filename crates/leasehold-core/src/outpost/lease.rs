//! A lease on disk: whose a task is on this node, and when it may be taken from them.
//!
//! All processes of a node share one clock, the one that counts from its start and cannot be set. What it says is carried
//! over to the bucket's time once that is known; until then its readings are used as they are, and marked as such. A
//! lease of another start of the machine is dead: nothing that ran then runs now.

use serde::{Deserialize, Serialize};

use crate::ids::{HexName, LeaseId, Name, WorkerId};
use crate::limits::{DISK_LEASE, DISK_LEASE_STALE};
use crate::time::{Now, StoreTime};

/// What the times of a lease are readings of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClockMark {
    /// The bucket's time.
    Bucket,
    /// The time since the machine started, because this node has not seen the bucket since.
    Boot,
}

/// No machine runs for thirty years: a time after the year 2000 is not one since its start, but the bucket's.
pub const SURELY_BUCKET: StoreTime = StoreTime::from_millis(946_684_800_000);

/// The present, as a node knows it.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeNow {
    /// Which start of the machine this is.
    pub boot_id: String,
    /// How long ago that was.
    pub boot: StoreTime,
    /// The bucket's time, if it was heard of since then.
    pub bucket: Option<Now>,
}

impl NodeNow {
    /// By which clock new stamps are made.
    #[must_use]
    pub fn mark(&self) -> ClockMark {
        if self.bucket.is_some() { ClockMark::Bucket } else { ClockMark::Boot }
    }

    /// The present by that clock.
    #[must_use]
    pub fn present(&self) -> Now {
        self.bucket.unwrap_or(Now::exactly(self.boot))
    }

    /// A while later, by all clocks.
    #[must_use]
    pub fn later(&self, time: std::time::Duration) -> Self {
        let bucket = self.bucket.map(|now| Now {
            earliest: now.earliest.plus(time),
            latest: now.latest.plus(time),
            ..now
        });
        Self { boot: self.boot.plus(time), bucket, ..self.clone() }
    }

    /// The present by the clock of a stamp that was made since the machine started.
    #[must_use]
    pub fn by(&self, mark: ClockMark) -> Option<Now> {
        match mark {
            ClockMark::Boot => Some(Now::exactly(self.boot)),
            ClockMark::Bucket => self.bucket,
        }
    }
}

/// What `lease.json` says: this process has the task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DiskLease {
    /// The worker.
    pub worker_id: WorkerId,
    /// The machine.
    pub node_id: Name,
    /// The process: two workers of one name are two.
    pub instance: HexName,
    /// The fencing token: one more than that of the claim before.
    pub epoch: u64,
    /// Which attempt it is.
    pub attempt: u32,
    /// When it was made.
    pub created_at: StoreTime,
    /// When its holder was last heard of.
    pub heartbeat_at: StoreTime,
    /// Until when it lasts, if its holder is not heard of again.
    pub expires_at: StoreTime,
    /// The bucket has not confirmed it.
    pub tentative: bool,
    /// The name of the claim, here and in the bucket.
    pub lease_id: LeaseId,
    /// By which clock its times are.
    pub clock: ClockMark,
    /// In which run of the machine.
    pub boot_id: String,
}

impl DiskLease {
    /// Its holder was heard of just now.
    #[must_use]
    pub fn renewed(&self, now: &NodeNow) -> Self {
        let at = now.present().earliest;
        let (clock, boot_id) = (now.mark(), now.boot_id.clone());
        Self { heartbeat_at: at, expires_at: at.plus(DISK_LEASE), clock, boot_id, ..self.clone() }
    }

    /// Whether anybody may take the task from its holder: the machine has started anew, nothing was heard for more than
    /// ten minutes, or the lease has run out.
    #[must_use]
    pub fn is_stale(&self, now: &NodeNow) -> bool {
        if self.boot_id != now.boot_id {
            return true;
        }
        let Some(now) = now.by(self.clock) else { return false };
        now.is_past(self.heartbeat_at.plus(DISK_LEASE_STALE)) || now.is_past(self.expires_at)
    }

    /// Whether it is the same claim, by the same process.
    #[must_use]
    pub fn is_same_claim(&self, other: &Self) -> bool {
        (self.epoch, &self.instance, &self.lease_id) == (other.epoch, &other.instance, &other.lease_id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn now(secs: i64) -> NodeNow {
        let at = StoreTime::from_millis(secs * 1_000);
        NodeNow { boot_id: "a".into(), boot: at, bucket: None }
    }

    fn lease() -> DiskLease {
        let nothing = StoreTime::from_millis(0);
        let lease = DiskLease {
            worker_id: Name::checked("worker id", "w").unwrap(),
            node_id: Name::checked("node", "n").unwrap(),
            instance: HexName::from_random(1),
            epoch: 1,
            attempt: 1,
            created_at: nothing,
            heartbeat_at: nothing,
            expires_at: nothing,
            tentative: false,
            lease_id: HexName::from_random(2),
            clock: ClockMark::Boot,
            boot_id: String::new(),
        };
        lease.renewed(&now(1_000))
    }

    #[test]
    fn after_ten_minutes_without_a_sign_it_may_be_taken_and_not_before() {
        assert!(!lease().is_stale(&now(1_000)));
        assert!(!lease().is_stale(&now(1_600)), "600 s");
        assert!(lease().is_stale(&now(1_601)), "601 s");
        let short = DiskLease { expires_at: StoreTime::from_millis(1_100_000), ..lease() };
        assert!(!short.is_stale(&now(1_100)) && short.is_stale(&now(1_101)));
    }

    #[test]
    fn a_sign_every_minute_keeps_it_for_ever() {
        let mut lease = lease();
        for minute in 1..=25 {
            let now = now(1_000 + 60 * minute);
            assert!(!lease.is_stale(&now), "minute {minute}");
            lease = lease.renewed(&now);
        }
        assert_eq!(lease.expires_at, StoreTime::from_millis((1_000 + 25 * 60 + 15 * 60) * 1_000));
    }

    #[test]
    fn a_machine_that_has_started_anew_keeps_nothing() {
        let other = NodeNow { boot_id: "b".into(), ..now(1_001) };
        assert!(lease().is_stale(&other));
    }

    #[test]
    fn a_lease_is_judged_by_the_clock_it_was_made_by() {
        let bucket = |secs: i64| Some(Now::exactly(StoreTime::from_millis(secs * 1_000)));
        // The bucket was heard of afterwards: its time has nothing to do with these stamps.
        let met = NodeNow { bucket: bucket(1_800_000_000), ..now(1_200) };
        assert!(!lease().is_stale(&met));
        let renewed = lease().renewed(&met);
        assert_eq!(renewed.clock, ClockMark::Bucket);
        let later = |secs: i64| NodeNow { bucket: bucket(1_800_000_000 + secs), ..now(1_200 + secs) };
        assert!(!renewed.is_stale(&later(600)) && renewed.is_stale(&later(601)));
        // What was known of it is lost: then nobody can tell.
        assert!(!renewed.is_stale(&now(100_000)));
    }

    #[test]
    fn an_uncertain_present_takes_nothing_early() {
        let met = NodeNow { bucket: Some(Now::exactly(StoreTime::from_millis(0))), ..now(0) };
        let lease = lease().renewed(&met);
        let earliest = StoreTime::from_millis(600_000);
        let wide = Now { earliest, latest: earliest.plus(Duration::from_secs(5)), steady: true };
        assert!(!lease.is_stale(&NodeNow { bucket: Some(wide), ..now(602) }));
    }
}
