//! How often the store is asked.
//!
//! On a folder a look costs time, on a bucket money. The index is counted by lists, four at least; a pass over the tasks
//! takes one list per thousand of them, and one get for each that has changed. So on a bucket the pause grows with what the
//! last look took: a page that is open all day costs about as much for a queue of a hundred thousand tasks as for an empty
//! one, and says how old its figures are.

use std::time::Duration;

/// Lists per minute, in the long run, for passes over the tasks of a bucket: 12 are 9 cents a day at list prices.
const LISTS_PER_MINUTE: u32 = 12;
/// Gets per minute, in the long run, of leases: 600 are 35 cents a day at list prices, while someone looks at them.
const LEASES_PER_MINUTE: u32 = 600;
/// Lists of one count of the index that are not worth a longer pause.
const INDEX_LISTS: u32 = 8;
/// A pass on a folder is followed by a pause so many times as long: a fifth of the time at most is spent on it.
const PAUSES: u32 = 4;

/// What asking costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// Time: a folder, or memory.
    Folder,
    /// Money: a bucket.
    Bucket,
}

/// What a look at the store took.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Took {
    pub(crate) lists: u32,
    pub(crate) time: Duration,
}

impl Pace {
    /// What asking costs at this address of a store.
    #[must_use]
    pub fn of(address: &str) -> Self {
        let scheme = address.split_once("://").map(|(scheme, _)| scheme);
        if matches!(scheme, None | Some("memory" | "file")) { Self::Folder } else { Self::Bucket }
    }

    fn least(self) -> Duration {
        match self {
            Self::Folder => Duration::from_secs(2),
            Self::Bucket => Duration::from_secs(5),
        }
    }

    /// From one count of the index to the next, while someone looks.
    pub(crate) fn index_every(self, last: Took) -> Duration {
        match self {
            Self::Folder => self.least().max(last.time * PAUSES),
            Self::Bucket => self.least() * last.lists.div_ceil(INDEX_LISTS).max(1),
        }
    }

    /// From one pass over the tasks to the next, while someone looks.
    pub(crate) fn tasks_every(self, last: Took) -> Duration {
        match self {
            Self::Folder => self.least().max(last.time * (PAUSES + 1)),
            Self::Bucket => self.least().max(Duration::from_mins(1) * last.lists / LISTS_PER_MINUTE),
        }
    }

    /// From one look at leases to the next, while someone looks at them. They last a minute and more, and each is a get.
    pub(crate) fn leases_every(self, leases: usize) -> Duration {
        let leases = u32::try_from(leases).unwrap_or(u32::MAX);
        (self.least() * 2).max(Duration::from_mins(1) * leases / LEASES_PER_MINUTE)
    }

    /// The same for the list of artifacts.
    pub(crate) fn artifacts_every(self, last: Took) -> Duration {
        (self.least() * 6).max(self.tasks_every(last))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_is_asked_less_often_the_more_there_is_to_list() {
        let took = |lists| Took { lists, time: Duration::from_secs(9) };
        let secs = |every: Duration| every.as_secs();
        assert_eq!([1, 4, 100].map(|lists| secs(Pace::Bucket.tasks_every(took(lists)))), [5, 20, 500]);
        assert_eq!([4, 8, 104].map(|lists| secs(Pace::Bucket.index_every(took(lists)))), [5, 5, 65]);
    }

    #[test]
    fn a_folder_is_left_alone_for_four_fifths_of_the_time() {
        let took = |millis| Took { lists: 100, time: Duration::from_millis(millis) };
        assert_eq!(Pace::Folder.tasks_every(took(10)), Duration::from_secs(2));
        assert_eq!(Pace::Folder.tasks_every(took(3_000)), Duration::from_secs(15));
    }

    #[test]
    fn the_address_tells_what_asking_costs() {
        for address in ["./data", "/data", "memory://", "file:///data"] {
            assert_eq!(Pace::of(address), Pace::Folder, "{address}");
        }
        for address in ["s3://bucket/prefix", "gs://bucket", "az://container"] {
            assert_eq!(Pace::of(address), Pace::Bucket, "{address}");
        }
    }
}
