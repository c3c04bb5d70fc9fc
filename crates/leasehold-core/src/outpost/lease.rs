//! Lease on disk: which process of this node holds a task, and when another process may take it.
//!
//! All processes of a node share one clock, which counts from boot and cannot be set. Its readings are converted to
//! the bucket's time once that is known; until then they are used as they are, and marked as such. A lease of an
//! earlier boot is stale: none of its processes still runs.

use serde::{Deserialize, Serialize};

use crate::ids::{HexName, LeaseId, Name, WorkerId};
use crate::limits::{DISK_LEASE, DISK_LEASE_STALE};
use crate::time::{Now, StoreTime};

/// Clock of the times in a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClockSource {
    /// Time of the bucket.
    Bucket,
    /// Time since boot, because this node has not reached the bucket since then.
    Boot,
}

/// Time from which a reading is the bucket's: no machine runs for thirty years, so that a time after the year 2000
/// cannot be a time since boot.
pub const BUCKET_TIME_MIN: StoreTime = StoreTime::from_millis(946_684_800_000);

/// Current time on a node.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeNow {
    /// Boot of the machine.
    pub boot_id: String,
    /// Time since boot.
    pub boot: StoreTime,
    /// Time of the bucket, if it was read since boot.
    pub bucket: Option<Now>,
}

impl NodeNow {
    /// Clock of new timestamps.
    #[must_use]
    pub fn clock(&self) -> ClockSource {
        if self.bucket.is_some() { ClockSource::Bucket } else { ClockSource::Boot }
    }

    /// Returns the current time by the clock of new timestamps ([`Self::clock`]).
    #[must_use]
    pub fn present(&self) -> Now {
        self.bucket.unwrap_or(Now::exactly(self.boot))
    }

    /// Returns the time after `time` has passed, by all clocks.
    #[must_use]
    pub fn later(&self, time: std::time::Duration) -> Self {
        let bucket = self.bucket.map(|now| Now {
            earliest: now.earliest.plus(time),
            latest: now.latest.plus(time),
            ..now
        });
        Self { boot: self.boot.plus(time), bucket, ..self.clone() }
    }

    /// Returns the current time by the clock of a timestamp from this boot.
    #[must_use]
    pub fn by(&self, clock: ClockSource) -> Option<Now> {
        match clock {
            ClockSource::Boot => Some(Now::exactly(self.boot)),
            ClockSource::Bucket => self.bucket,
        }
    }
}

/// Content of `lease.json`: this process holds the task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DiskLease {
    /// Worker id of the holder.
    pub worker_id: WorkerId,
    /// Node of the holder.
    pub node_id: Name,
    /// Random id of the process: a worker id may be used by several processes, one after the other.
    pub instance: HexName,
    /// Fencing token: one more than that of the previous claim.
    pub epoch: u64,
    /// Number of the attempt.
    pub attempt: u32,
    /// Time of the claim.
    pub created_at: StoreTime,
    /// Time of the last heartbeat.
    pub heartbeat_at: StoreTime,
    /// Expiry, unless another heartbeat follows.
    pub expires_at: StoreTime,
    /// True until the bucket has confirmed the claim.
    pub tentative: bool,
    /// Id of the claim, on disk and in the bucket.
    pub lease_id: LeaseId,
    /// Clock of its times.
    pub clock: ClockSource,
    /// Boot in which it was written.
    pub boot_id: String,
}

impl DiskLease {
    /// Returns the lease after a heartbeat now.
    #[must_use]
    pub fn renewed(&self, now: &NodeNow) -> Self {
        let at = now.present().earliest;
        let (clock, boot_id) = (now.clock(), now.boot_id.clone());
        Self { heartbeat_at: at, expires_at: at.plus(DISK_LEASE), clock, boot_id, ..self.clone() }
    }

    /// True if another process may take the task: the machine was rebooted, there was no heartbeat for more than ten
    /// minutes, or the lease has expired.
    #[must_use]
    pub fn is_stale(&self, now: &NodeNow) -> bool {
        if self.boot_id != now.boot_id {
            return true;
        }
        let Some(now) = now.by(self.clock) else { return false };
        now.is_past(self.heartbeat_at.plus(DISK_LEASE_STALE)) || now.is_past(self.expires_at)
    }

    /// True if it is the same claim of the same process.
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
            clock: ClockSource::Boot,
            boot_id: String::new(),
        };
        lease.renewed(&now(1_000))
    }

    #[test]
    fn a_lease_is_stale_after_ten_minutes_without_a_heartbeat_and_not_before() {
        assert!(!lease().is_stale(&now(1_000)));
        assert!(!lease().is_stale(&now(1_600)), "600 s");
        assert!(lease().is_stale(&now(1_601)), "601 s");
        let short = DiskLease { expires_at: StoreTime::from_millis(1_100_000), ..lease() };
        assert!(!short.is_stale(&now(1_100)) && short.is_stale(&now(1_101)));
    }

    #[test]
    fn a_heartbeat_every_minute_keeps_the_lease() {
        let mut lease = lease();
        for minute in 1..=25 {
            let now = now(1_000 + 60 * minute);
            assert!(!lease.is_stale(&now), "minute {minute}");
            lease = lease.renewed(&now);
        }
        assert_eq!(lease.expires_at, StoreTime::from_millis((1_000 + 25 * 60 + 15 * 60) * 1_000));
    }

    #[test]
    fn leases_of_an_earlier_boot_are_stale() {
        let other = NodeNow { boot_id: "b".into(), ..now(1_001) };
        assert!(lease().is_stale(&other));
    }

    #[test]
    fn a_lease_expires_by_the_clock_of_its_times() {
        let bucket = |secs: i64| Some(Now::exactly(StoreTime::from_millis(secs * 1_000)));
        // The bucket was reached later: its time has nothing to do with these timestamps.
        let online = NodeNow { bucket: bucket(1_800_000_000), ..now(1_200) };
        assert!(!lease().is_stale(&online));
        let renewed = lease().renewed(&online);
        assert_eq!(renewed.clock, ClockSource::Bucket);
        let later = |secs: i64| NodeNow { bucket: bucket(1_800_000_000 + secs), ..now(1_200 + secs) };
        assert!(!renewed.is_stale(&later(600)) && renewed.is_stale(&later(601)));
        // The bucket's time is no longer known: the lease cannot be judged.
        assert!(!renewed.is_stale(&now(100_000)));
    }

    #[test]
    fn an_uncertain_time_expires_no_lease_early() {
        let online = NodeNow { bucket: Some(Now::exactly(StoreTime::from_millis(0))), ..now(0) };
        let lease = lease().renewed(&online);
        let earliest = StoreTime::from_millis(600_000);
        let wide = Now { earliest, latest: earliest.plus(Duration::from_secs(5)), is_consistent: true };
        assert!(!lease.is_stale(&NodeNow { bucket: Some(wide), ..now(602) }));
    }
}
