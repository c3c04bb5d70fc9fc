//! Index entries: empty objects whose keys contain all their data.

use std::fmt;

use super::{OVERFLOW, inbox};
use crate::ids::{TaskId, WorkerId};
use crate::shard::{Shard, ShardLen};
use crate::task::Priority;
use crate::time::Minute;

/// Index that is divided into shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Index {
    /// Tasks that are waiting for a worker.
    Ready,
    /// Tasks that are held by a worker.
    Lease,
}

impl Index {
    /// Prefix of this index in a shard.
    #[must_use]
    pub fn prefix(self, shard: &Shard) -> String {
        format!("{}{shard}/", self.root())
    }

    /// Prefix of this index.
    #[must_use]
    pub fn root(self) -> &'static str {
        match self {
            Index::Ready => "ready/",
            Index::Lease => "leases/",
        }
    }
}

/// Location of an index entry.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IndexLocation {
    /// Tasks of a shard that are waiting for any worker.
    Ready(Shard),
    /// Tasks of a shard that are held by a worker.
    Lease(Shard),
    /// Inbox of one worker.
    Inbox(WorkerId),
    /// Entries from the inboxes of crashed workers, for all workers.
    Overflow,
}

impl IndexLocation {
    /// Prefix of the entries at this location.
    #[must_use]
    pub fn prefix(&self) -> String {
        match self {
            IndexLocation::Ready(shard) => Index::Ready.prefix(shard),
            IndexLocation::Lease(shard) => Index::Lease.prefix(shard),
            IndexLocation::Inbox(worker) => inbox(worker),
            IndexLocation::Overflow => OVERFLOW.to_owned(),
        }
    }

    /// Shard, if the location is divided into shards.
    #[must_use]
    pub fn shard(&self) -> Option<&Shard> {
        match self {
            IndexLocation::Ready(shard) | IndexLocation::Lease(shard) => Some(shard),
            IndexLocation::Inbox(_) | IndexLocation::Overflow => None,
        }
    }
}

/// Index entry: an empty object whose key contains all its data. It is a hint (promise P9) to read a task in a certain
/// minute. Because the key includes the revision, a late removal never removes a newer entry.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Entry {
    /// Location of the entry.
    pub location: IndexLocation,
    /// Minute in which the task is due.
    pub minute: Minute,
    /// Priority of the task, which sorts entries of pending tasks within their minute.
    pub priority: Priority,
    /// Id of the task.
    pub id: TaskId,
    /// Revision of the task that requires this entry.
    pub rev: u64,
}

impl Entry {
    /// Returns the key.
    #[must_use]
    pub fn key(&self) -> String {
        self.to_string()
    }

    /// Returns a copy of the entry at another location.
    #[must_use]
    pub fn at_location(&self, location: IndexLocation) -> Self {
        Self { location, ..self.clone() }
    }

    /// Shard of the entry, if its location has shards.
    #[must_use]
    pub fn shard(&self) -> Option<&Shard> {
        self.location.shard()
    }

    /// True if the entry is in a shard with a name of this length.
    #[must_use]
    pub fn has_shard_len(&self, len: ShardLen) -> bool {
        self.shard().is_some_and(|shard| shard.len() == len)
    }

    /// True if a task that requires another entry is found by this one. Workers ignore an entry that is ahead of its
    /// task, list none before its minute, and some of them scan only its shard. An entry in an inbox or in the overflow is
    /// scanned by some worker.
    #[must_use]
    pub fn covers(&self, required: &Entry) -> bool {
        let is_scanned = self.shard().is_none() || self.shard() == required.shard();
        is_scanned && self.rev <= required.rev && self.minute <= required.minute
    }

    /// Parses the key of an entry; none if it is not one.
    #[must_use]
    pub fn parse(key: &str) -> Option<Self> {
        let (root, rest) = key.split_once('/')?;
        let (part, rest) = if root == "overflow" { ("", rest) } else { rest.split_once('/')? };
        let (minute, name) = rest.split_once('/')?;
        let (name, rev) = name.split_once('.')?;
        let (priority, id) = match root {
            "leases" => (Priority::default(), name),
            _ => (Priority::from_inverted(name.get(..1)?)?, name.get(1..)?),
        };
        let id: TaskId = id.parse().ok()?;
        let location = match root {
            "ready" => IndexLocation::Ready(Shard::of(&id, part)?),
            "leases" => IndexLocation::Lease(Shard::of(&id, part)?),
            "inbox" => IndexLocation::Inbox(WorkerId::checked("worker id", part).ok()?),
            "overflow" => IndexLocation::Overflow,
            _ => return None,
        };
        let entry = Self { location, minute: Minute::parse(minute)?, priority, id, rev: rev.parse().ok()? };
        // Accepts only the canonical form: every process must compute the same key for an entry.
        (entry.key() == key).then_some(entry)
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Entry { location, minute, priority, id, rev } = self;
        write!(f, "{}{minute}/", location.prefix())?;
        match location {
            IndexLocation::Lease(_) => write!(f, "{id}.{rev:010}"),
            _ => write!(f, "{}{id}.{rev:010}", priority.inverted()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::check_key;
    use super::*;
    use proptest::prelude::*;

    /// Entry at one of the four locations, by number.
    fn entry(location: u8, minute: i64, priority: u8, bits: u128, rev: u64) -> Entry {
        let id = TaskId::from_random(bits);
        let shard = ShardLen::DEFAULT.shard_of(&id);
        let location = match location {
            0 => IndexLocation::Ready(shard),
            1 => IndexLocation::Lease(shard),
            2 => IndexLocation::Inbox(WorkerId::checked("worker id", "host-1.x").unwrap()),
            _ => IndexLocation::Overflow,
        };
        let is_lease = matches!(location, IndexLocation::Lease(_));
        let priority = if is_lease { Priority::default() } else { Priority::new(priority).unwrap() };
        let minute = Minute::of(crate::StoreTime::from_millis(minute * 60_000));
        Entry { location, minute, priority, id, rev }
    }

    #[test]
    fn entries_look_as_documented() {
        let ready = entry(0, 29_912_000, 9, 1, 7).key();
        assert_eq!(ready, "ready/0/20261115-0520/000000000-0000-4000-8000-000000000001.0000000007");
        let lease = entry(1, 29_912_000, 9, 1, 7).key();
        assert_eq!(lease, "leases/0/20261115-0520/00000000-0000-4000-8000-000000000001.0000000007");
        let inbox = entry(2, 29_912_000, 5, 1, 1).key();
        assert_eq!(inbox, "inbox/host-1.x/20261115-0520/400000000-0000-4000-8000-000000000001.0000000001");
        let overflow = entry(3, 29_912_000, 5, 1, 1).key();
        assert_eq!(overflow, "overflow/20261115-0520/400000000-0000-4000-8000-000000000001.0000000001");
        for wrong in [
            "",
            "ready/",
            "ready/0/20261115-0520/x.1",
            &ready.replace(".0000000007", ".7"),
            &ready.replace("ready/0", "ready/1"),
            &ready.replace("-0520", "-0560"),
            &ready.replace("ready", "reedy"),
        ] {
            assert_eq!(Entry::parse(wrong), None, "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn the_key_of_an_entry_parses_to_the_entry(
            location in 0u8..4, minute in 0i64..100_000_000, priority in 0u8..10, bits: u128, rev in 0u64..9_999_999_999,
        ) {
            let entry = entry(location, minute, priority, bits, rev);
            check_key(&entry.key()).unwrap();
            prop_assert_eq!(Entry::parse(&entry.key()), Some(entry));
        }

        #[test]
        fn entries_sort_by_minute_then_priority(
            a in (0i64..100_000_000, 0u8..10), b in (0i64..100_000_000, 0u8..10), bits: u128,
        ) {
            let key = |(minute, priority)| entry(0, minute, priority, bits, 1).key();
            let order = (a.0, 9 - a.1).cmp(&(b.0, 9 - b.1));
            prop_assert_eq!(key(a).cmp(&key(b)), order);
        }
    }
}
