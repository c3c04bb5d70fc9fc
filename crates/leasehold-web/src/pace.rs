//! Sampling intervals.
//!
//! A sample costs time on a folder, and money on a bucket. Counting the index takes at least four lists; a pass over the
//! tasks takes one list per thousand tasks, and one get for each that has changed. So on a bucket the interval grows with
//! the requests of the last sample: a page that is open all day costs about as much for a queue of a hundred thousand tasks
//! as for an empty one, and shows the age of its data.

use std::time::Duration;

use crate::snapshot::DOWN_AFTER;

/// Average lists per minute for passes over the tasks of a bucket: 12 cost 9 cents a day at list prices.
const LISTS_PER_MINUTE: u32 = 12;
/// Average gets of leases per minute while they are viewed: 600 cost 35 cents a day at list prices.
const LEASES_PER_MINUTE: u32 = 600;
/// Interval between samples of a journal in a bucket while no broker can be reached: 6 cents a month.
const LOG_INTERVAL: Duration = Duration::from_secs(30);
/// Lists of one count of the index up to which the interval does not grow.
const INDEX_LISTS: u32 = 8;
/// Ratio of the pause after a pass on a folder to its duration: passes take at most a fifth of the time.
const PAUSE_RATIO: u32 = 4;

/// Kind of cost of a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefreshPace {
    /// Time: a folder, or memory.
    Folder,
    /// Money: a bucket.
    Bucket,
}

/// Cost of a sample.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SampleCost {
    pub(crate) lists: u32,
    pub(crate) time: Duration,
}

impl RefreshPace {
    /// Returns the pace for the address of a store.
    #[must_use]
    pub fn of(address: &str) -> Self {
        let scheme = address.split_once("://").map(|(scheme, _)| scheme);
        if matches!(scheme, None | Some("memory" | "file")) { Self::Folder } else { Self::Bucket }
    }

    fn min_interval(self) -> Duration {
        match self {
            Self::Folder => Duration::from_secs(2),
            Self::Bucket => Duration::from_secs(5),
        }
    }

    /// Interval between counts of the index while the queue is viewed.
    pub(crate) fn index_every(self, last: SampleCost) -> Duration {
        match self {
            Self::Folder => self.min_interval().max(last.time * PAUSE_RATIO),
            Self::Bucket => self.min_interval() * last.lists.div_ceil(INDEX_LISTS).max(1),
        }
    }

    /// Interval between passes over the tasks while the queue is viewed.
    pub(crate) fn tasks_every(self, last: SampleCost) -> Duration {
        match self {
            Self::Folder => self.min_interval().max(last.time * (PAUSE_RATIO + 1)),
            Self::Bucket => self.min_interval().max(Duration::from_mins(1) * last.lists / LISTS_PER_MINUTE),
        }
    }

    /// Interval between samples of a journal while it is viewed. The broker answers from memory, and its time is limited as that of
    /// a folder. Without a broker each sample takes about five gets; one that was replaced is found soon.
    pub(crate) fn journal_every(self, last: SampleCost, absent_for: Option<Duration>) -> Duration {
        let shortest = match (self, absent_for) {
            (_, None) => Self::Folder.min_interval(),
            (Self::Bucket, Some(absent)) if absent > DOWN_AFTER => LOG_INTERVAL,
            (_, Some(_)) => Self::Bucket.min_interval(),
        };
        shortest.max(last.time * (PAUSE_RATIO + 1))
    }

    /// Interval between reads of leases while they are viewed. Shard leases last 30 s by default, worker leases as long or
    /// longer; each takes a get.
    pub(crate) fn leases_every(self, leases: usize) -> Duration {
        let leases = u32::try_from(leases).unwrap_or(u32::MAX);
        (self.min_interval() * 2).max(Duration::from_mins(1) * leases / LEASES_PER_MINUTE)
    }

    /// Interval between lists of artifacts while they are viewed.
    pub(crate) fn artifacts_every(self, last: SampleCost) -> Duration {
        (self.min_interval() * 6).max(self.tasks_every(last))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_is_sampled_less_often_the_more_there_is_to_list() {
        let cost = |lists| SampleCost { lists, time: Duration::from_secs(9) };
        let secs = |every: Duration| every.as_secs();
        assert_eq!([1, 4, 100].map(|lists| secs(RefreshPace::Bucket.tasks_every(cost(lists)))), [5, 20, 500]);
        assert_eq!([4, 8, 104].map(|lists| secs(RefreshPace::Bucket.index_every(cost(lists)))), [5, 5, 65]);
    }

    #[test]
    fn a_folder_is_idle_for_four_fifths_of_the_time() {
        let cost = |millis| SampleCost { lists: 100, time: Duration::from_millis(millis) };
        assert_eq!(RefreshPace::Folder.tasks_every(cost(10)), Duration::from_secs(2));
        assert_eq!(RefreshPace::Folder.tasks_every(cost(3_000)), Duration::from_secs(15));
    }

    #[test]
    fn a_journal_without_a_broker_is_sampled_less_often() {
        let cost = SampleCost { lists: 0, time: Duration::from_millis(10) };
        let secs = |pace: RefreshPace, absent: Option<u64>| {
            pace.journal_every(cost, absent.map(Duration::from_secs)).as_secs()
        };
        for (pace, every) in [(RefreshPace::Folder, [2, 5, 5]), (RefreshPace::Bucket, [2, 5, 30])] {
            assert_eq!([None, Some(1), Some(61)].map(|absent| secs(pace, absent)), every, "{pace:?}");
        }
    }

    #[test]
    fn the_address_selects_the_pace() {
        for address in ["./data", "/data", "memory://", "file:///data"] {
            assert_eq!(RefreshPace::of(address), RefreshPace::Folder, "{address}");
        }
        for address in ["s3://bucket/prefix", "gs://bucket", "az://container"] {
            assert_eq!(RefreshPace::of(address), RefreshPace::Bucket, "{address}");
        }
    }
}
