//! Paths of all objects in the store. No other module builds them.
//!
//! `{shard}` is the first digits of the task's id, `{bucket}` a UTC minute in store time, `{rev}` the task's
//! revision, padded so that it sorts. *Absent* and *unchanged* are the conditions of the writes.
//!
//! | key | content | written by | removed |
//! | --- | --- | --- | --- |
//! | `queue.json` | configuration shared by all clients (promise P8) | the first connection (*absent*), only where no key of a queue exists; `leasehold init --restore` (*absent*); a migration (*unchanged*) | never |
//! | `tasks/{shard}/{id}.json` | a task with its state and history, for its whole life; or the forwarding marker of a task that moved to a shard of another length | its producer (*absent*), then each process that changes it (*unchanged*) | by retention; a forwarding marker at the end of the migration |
//! | `ready/{shard}/{bucket}/{9-priority}{id}.{rev}` | empty: a pointer, due in that minute | producer, retry, recovery | once the task has moved on |
//! | `leases/{shard}/{bucket}/{id}.{rev}` | empty: a pointer, due when the lease expires | claiming worker, recovery | once the task has moved on |
//! | `inbox/{worker}/{bucket}/{9-priority}{id}.{rev}` | empty: a pointer for one worker | producer | once its task is settled or elsewhere; a worker that detects that the owner is dead moves it to the overflow |
//! | `overflow/{bucket}/{9-priority}{id}.{rev}` | empty: a pointer from the inbox of a dead worker, for all workers | the worker that detects the death | once the task has moved on |
//! | `unique/{hash}.json` | an idempotency record | producer (*absent*) | at its expiry |
//! | `index/bell` | notification object ("bell"): changes when a task becomes pending | every process that makes a task pending | never: overwritten |
//! | `index/bells/{worker}` | bell of an inbox: changes when an entry is put into it | producers | never: overwritten |
//! | `shard-leases/{first}.json` | lease on a group of shards | workers | never: released or taken over |
//! | `duty-leases/{duty}.json` | lease on a maintenance duty that one worker does for all | workers | never: released or taken over |
//! | `workers/{id}.lease.json` | lease on the name of a worker that shares the shards with other workers | the worker | a week after its expiry |
//! | `workers/{id}.inbox.json` | lease on a worker's inbox, and so on its name | the worker | a week after its expiry |
//! | `artifacts/{hash}/manifest.json` | pieces of an artifact with their hashes; later the marker that it is being removed | its publisher (*absent*); later publishers and retention (*unchanged*) | a day after its retention, with its data |
//! | `artifacts/{hash}/data` | bytes of an artifact, named by their hash | its publisher, before the manifest | before its manifest |
//! | `peers/{id}.json` | lease on a peer's name, with the address at which it serves pieces | the peer | a week after its expiry |
//! | `probe/{name}/…` | temporary objects | `leasehold doctor`, the first connection | at the end of the probe; those of a killed probe by `leasehold check --repair` a day later |
//! | `quarantine/{write_id}/{key}` | bytes of a corrupt object | `leasehold quarantine` (*absent*) | never: an operator deletes it |
//!
//! No key is a path prefix of another: folders cannot store both, and some S3-compatible stores refuse it.

use std::fmt;

use crate::error::{Error, Result};
use crate::ids::{ArtifactId, Name, TaskId, TaskIdPrefix, WorkerId, WriteId};
use crate::limits::{KEY_BYTES_MAX, SEGMENT_BYTES_MAX};
use crate::shard::{Shard, ShardLen, ShardRange};
use crate::task::Priority;
use crate::time::Minute;

/// Configuration shared by all clients of a queue.
pub const QUEUE: &str = "queue.json";

/// Prefixes of keys that only a queue has. Artifacts and peers are not among them: a store may have them before it has
/// a queue.
pub const QUEUE_PREFIXES: [&str; 10] =
    [TASKS, "ready/", "leases/", INBOXES, OVERFLOW, UNIQUE, "index/", SHARD_LEASES, "duty-leases/", WORKERS];

/// First segment of keys that are reserved for stores (locks and temporary files of a folder).
pub const RESERVED: &str = ".leasehold";

/// Key of a temporary object of the probe called `name`.
#[must_use]
pub fn probe(name: &str, object: &str) -> String {
    format!("{PROBES}{name}/{object}")
}

/// Prefix of all probes.
pub const PROBES: &str = "probe/";

/// Prefix of all copies of corrupt objects.
pub const QUARANTINE: &str = "quarantine/";

/// Key of the copy of the corrupt object at `key`.
#[must_use]
pub fn quarantine(write_id: &WriteId, key: &str) -> String {
    format!("{QUARANTINE}{write_id}/{key}")
}

/// Prefixes of all objects that are neither tasks nor index entries.
pub const OTHERS: [&str; 9] =
    [UNIQUE, INDEX, SHARD_LEASES, DUTY_LEASES, WORKERS, PEERS, ARTIFACTS, PROBES, QUARANTINE];

/// Key of a task.
#[must_use]
pub fn task(shard: &Shard, id: &TaskId) -> String {
    format!("{}{id}.json", tasks(shard))
}

/// Prefix of all tasks of a shard.
#[must_use]
pub fn tasks(shard: &Shard) -> String {
    format!("{TASKS}{shard}/")
}

/// Prefix of all tasks of a shard whose ids begin with `prefix`.
#[must_use]
pub fn tasks_with_prefix(shard: &Shard, prefix: &TaskIdPrefix) -> String {
    format!("{}{}", tasks(shard), prefix.as_str())
}

/// Prefix of all tasks.
pub const TASKS: &str = "tasks/";

/// Returns the length of the shard name in the key of a task, and the task's id; none if it is not the key of a task.
#[must_use]
pub fn task_place(key: &str) -> Option<(ShardLen, TaskId)> {
    let (shard, id) = parse_task(key)?;
    Some((Shard::of(&id, &shard)?.len(), id))
}

/// Parses the key of a task into the shard name and the task's id; none if it is not the key of a task.
#[must_use]
pub fn parse_task(key: &str) -> Option<(String, TaskId)> {
    let (shard, name) = key.strip_prefix(TASKS)?.split_once('/')?;
    Some((shard.to_owned(), name.strip_suffix(".json")?.parse().ok()?))
}

/// Key of the idempotency record with this hash.
#[must_use]
pub fn unique(hash: &str) -> String {
    format!("{UNIQUE}{hash}.json")
}

/// Prefix of all idempotency records.
pub const UNIQUE: &str = "unique/";

/// True for the keys that [`unique`] gives for a hash.
#[must_use]
pub fn is_unique(key: &str) -> bool {
    let hash = key.strip_prefix(UNIQUE).and_then(|name| name.strip_suffix(".json"));
    hash.is_some_and(|hash| hash.len() == 64 && hash.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')))
}

/// Prefix of all notification objects (bells).
pub const INDEX: &str = "index/";

/// Notification object ("bell") that changes when a task becomes pending.
pub const BELL: &str = "index/bell";

/// Bell that changes when an entry is put into the inbox of this worker.
#[must_use]
pub fn inbox_bell(worker: &WorkerId) -> String {
    format!("{INBOX_BELLS}{worker}")
}

const INBOX_BELLS: &str = "index/bells/";

/// True for [`BELL`] and the keys that [`inbox_bell`] gives.
#[must_use]
pub fn is_bell(key: &str) -> bool {
    let worker = key.strip_prefix(INBOX_BELLS);
    key == BELL || worker.is_some_and(|worker| WorkerId::checked("worker id", worker).is_ok())
}

/// Prefix of all leases on shards.
pub const SHARD_LEASES: &str = "shard-leases/";

/// Key of the lease on a group of shards.
#[must_use]
pub fn shard_lease(group: &ShardRange) -> String {
    format!("{SHARD_LEASES}{}.json", group.first)
}

/// Prefix of all leases on duties.
pub const DUTY_LEASES: &str = "duty-leases/";

/// True for the keys of leases: on shards of any number of digits, duties, workers, inboxes and peers.
#[must_use]
pub fn is_lease(key: &str) -> bool {
    let name = |prefix| key.strip_prefix(prefix).and_then(|name: &str| name.strip_suffix(".json"));
    let is_shard = |name: &str| {
        let digits = u8::try_from(name.len()).ok();
        digits.is_some_and(|digits| ShardLen::new(digits).is_ok_and(|len| len.parse(name).is_ok()))
    };
    name(SHARD_LEASES).is_some_and(is_shard)
        || name(DUTY_LEASES).is_some_and(|duty| Name::checked("duty", duty).is_ok())
        || parse_worker_lease(key).is_some()
        || parse_inbox_lease(key).is_some()
        || parse_peer(key).is_some()
}

/// Lease on the recovery of expired claims, among workers that do not lease shards.
pub const RECOVERY_LEASE: &str = "duty-leases/recover.json";

/// Lease on the recovery of inboxes of dead workers.
pub const RESCUE_LEASE: &str = "duty-leases/rescue.json";

/// Prefix of all inboxes.
pub const INBOXES: &str = "inbox/";

/// Prefix of the inbox of a worker.
#[must_use]
pub fn inbox(worker: &WorkerId) -> String {
    format!("{INBOXES}{worker}/")
}

/// Parses the prefix of an inbox into its worker.
#[must_use]
pub fn parse_inbox(prefix: &str) -> Option<WorkerId> {
    let name = prefix.strip_prefix(INBOXES)?.strip_suffix('/')?;
    WorkerId::checked("worker id", name).ok()
}

/// Prefix of the overflow: entries from the inboxes of dead workers.
pub const OVERFLOW: &str = "overflow/";

/// Prefix of the objects of all workers.
pub const WORKERS: &str = "workers/";

/// Key of the lease on a worker's name.
#[must_use]
pub fn worker_lease(worker: &WorkerId) -> String {
    format!("{WORKERS}{worker}{WORKER_LEASE}")
}

const WORKER_LEASE: &str = ".lease.json";

/// Parses the key of a lease on a worker's name.
#[must_use]
pub fn parse_worker_lease(key: &str) -> Option<WorkerId> {
    let name = key.strip_prefix(WORKERS)?.strip_suffix(WORKER_LEASE)?;
    WorkerId::checked("worker id", name).ok()
}

/// Key of the lease on a worker's inbox.
#[must_use]
pub fn inbox_lease(worker: &WorkerId) -> String {
    format!("{WORKERS}{worker}{INBOX_LEASE}")
}

const INBOX_LEASE: &str = ".inbox.json";

/// Parses the key of a lease on a worker's inbox.
#[must_use]
pub fn parse_inbox_lease(key: &str) -> Option<WorkerId> {
    let name = key.strip_prefix(WORKERS)?.strip_suffix(INBOX_LEASE)?;
    WorkerId::checked("worker id", name).ok()
}

/// Prefix of all artifacts.
pub const ARTIFACTS: &str = "artifacts/";

/// Key of the manifest of an artifact.
#[must_use]
pub fn manifest(artifact: &ArtifactId) -> String {
    format!("{ARTIFACTS}{artifact}{MANIFEST}")
}

const MANIFEST: &str = "/manifest.json";

/// Parses the key of a manifest.
#[must_use]
pub fn parse_manifest(key: &str) -> Option<ArtifactId> {
    key.strip_prefix(ARTIFACTS)?.strip_suffix(MANIFEST)?.parse().ok()
}

/// Key of the bytes of an artifact.
#[must_use]
pub fn artifact_data(artifact: &ArtifactId) -> String {
    format!("{ARTIFACTS}{artifact}{DATA}")
}

const DATA: &str = "/data";

/// Parses the key of the bytes of an artifact.
#[must_use]
pub fn parse_artifact_data(key: &str) -> Option<ArtifactId> {
    key.strip_prefix(ARTIFACTS)?.strip_suffix(DATA)?.parse().ok()
}

/// Prefix of all peers.
pub const PEERS: &str = "peers/";

/// Key of the lease on a peer's name, with its address.
#[must_use]
pub fn peer(peer: &Name) -> String {
    format!("{PEERS}{peer}.json")
}

/// Parses the key of a lease on a peer's name.
#[must_use]
pub fn parse_peer(key: &str) -> Option<Name> {
    Name::checked("peer id", key.strip_prefix(PEERS)?.strip_suffix(".json")?).ok()
}

/// Prefixes of all index entries.
pub const ENTRIES: [&str; 4] = ["ready/", "leases/", INBOXES, OVERFLOW];

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
    /// Entries from the inboxes of dead workers, for all workers.
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
    pub place: IndexLocation,
    /// Minute in which the task is due.
    pub bucket: Minute,
    /// Priority of the task, which sorts entries of waiting tasks within their minute.
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
    pub fn moved(&self, place: IndexLocation) -> Self {
        Self { place, ..self.clone() }
    }

    /// Shard of the entry, if its location has shards.
    #[must_use]
    pub fn shard(&self) -> Option<&Shard> {
        self.place.shard()
    }

    /// True if the entry is in a shard with a name of this length.
    #[must_use]
    pub fn has_shard_of(&self, len: ShardLen) -> bool {
        self.shard().is_some_and(|shard| shard.len() == len)
    }

    /// Parses the key of an entry; none if it is not one.
    #[must_use]
    pub fn parse(key: &str) -> Option<Self> {
        let (root, rest) = key.split_once('/')?;
        let (part, rest) = if root == "overflow" { ("", rest) } else { rest.split_once('/')? };
        let (bucket, name) = rest.split_once('/')?;
        let (name, rev) = name.split_once('.')?;
        let (priority, id) = match root {
            "leases" => (Priority::default(), name),
            _ => (Priority::from_inverted(name.get(..1)?)?, name.get(1..)?),
        };
        let id: TaskId = id.parse().ok()?;
        let place = match root {
            "ready" => IndexLocation::Ready(Shard::of(&id, part)?),
            "leases" => IndexLocation::Lease(Shard::of(&id, part)?),
            "inbox" => IndexLocation::Inbox(WorkerId::checked("worker id", part).ok()?),
            "overflow" => IndexLocation::Overflow,
            _ => return None,
        };
        let entry = Self { place, bucket: Minute::parse(bucket)?, priority, id, rev: rev.parse().ok()? };
        // Accepts only the canonical form: every process must compute the same key for an entry.
        (entry.key() == key).then_some(entry)
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Entry { place, bucket, priority, id, rev } = self;
        write!(f, "{}{bucket}/", place.prefix())?;
        match place {
            IndexLocation::Lease(_) => write!(f, "{id}.{rev:010}"),
            _ => write!(f, "{}{id}.{rev:010}", priority.inverted()),
        }
    }
}

/// Rejects a key that could leave a folder, or that some stores do not accept.
pub fn check_key(key: &str) -> Result<()> {
    let fault = if key.len() > KEY_BYTES_MAX {
        Some("is longer than 768 bytes")
    } else if key.starts_with(RESERVED) {
        Some("begins with `.leasehold`, which is reserved for the store")
    } else {
        key.split('/').find_map(segment_fault)
    };
    match fault {
        Some(fault) => Err(Error::invalid(format!("key `{}` {fault}", key.escape_debug()))),
        None => Ok(()),
    }
}

/// Rejects a prefix that no valid key has. It may end in the middle of a segment.
pub fn check_prefix(prefix: &str) -> Result<()> {
    // Any accepted prefix is the beginning of an accepted key.
    check_key(&format!("{prefix}x"))
}

fn segment_fault(segment: &str) -> Option<&'static str> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.=+@~".contains(&byte);
    match segment {
        "" => Some("has an empty segment"),
        "." | ".." => Some("has a segment that is `.` or `..`"),
        _ if segment.len() > SEGMENT_BYTES_MAX => Some("has a segment longer than 255 bytes"),
        _ if !segment.bytes().all(plain) => Some("has a character other than letters, digits and `-_.=+@~`"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn keys_that_could_leave_the_root_are_refused() {
        for key in
            ["", "/", "/etc/passwd", "a//b", "a/", "..", "a/../b", "./a", "a/.", "a\0b", "a\\b", "a b", "ä"]
        {
            assert!(check_key(key).is_err(), "{key:?} was accepted");
        }
        assert!(check_key(".leasehold/locks/00").is_err());
        assert!(check_key(&"x".repeat(256)).is_err());
        assert!(check_key(&["x"; 400].join("/")).is_err());
        let error = check_key("a/../b").unwrap_err();
        assert_eq!(error.to_string(), "key `a/../b` has a segment that is `.` or `..`");
    }

    #[test]
    fn prefixes_that_could_leave_the_root_are_refused() {
        for prefix in ["/", "../", "/etc/", "a//", ".leasehold/", "a/../"] {
            assert!(check_prefix(prefix).is_err(), "{prefix:?} was accepted");
        }
        for prefix in ["", "a", "a/", "ready/0/2026"] {
            check_prefix(prefix).unwrap();
        }
    }

    #[test]
    fn leases_bells_and_idempotency_records_are_known_by_their_keys() {
        let hash = "0f".repeat(32);
        assert!(is_unique(&unique(&hash)) && !is_unique("unique/x.json") && !is_unique(&hash));
        let worker = WorkerId::checked("worker id", "a.b").unwrap();
        assert!(is_bell(BELL) && is_bell(&inbox_bell(&worker)) && !is_bell("index/bells/"));
        let leases = [worker_lease(&worker), inbox_lease(&worker), peer(&worker), RECOVERY_LEASE.into()];
        for lease in
            leases.iter().map(String::as_str).chain(["shard-leases/0.json", "shard-leases/00ff.json"])
        {
            assert!(is_lease(lease), "{lease}");
        }
        for other in ["shard-leases/x.json", "shard-leases/00000.json", "workers/a", "peers/a", "peers/"] {
            assert!(!is_lease(other), "{other}");
        }
    }

    #[test]
    fn our_own_keys_are_accepted() {
        for key in [&probe("x", "y"), "queue.json", "tasks/0f/a-b.json", "ready/0/20260101-0000/a.0000000001"]
        {
            check_key(key).unwrap();
        }
    }

    /// Four places, by number.
    fn entry(place: u8, minute: i64, priority: u8, bits: u128, rev: u64) -> Entry {
        let id = TaskId::from_random(bits);
        let shard = ShardLen::DEFAULT.shard_of(&id);
        let place = match place {
            0 => IndexLocation::Ready(shard),
            1 => IndexLocation::Lease(shard),
            2 => IndexLocation::Inbox(WorkerId::checked("worker id", "host-1.x").unwrap()),
            _ => IndexLocation::Overflow,
        };
        let is_lease = matches!(place, IndexLocation::Lease(_));
        let priority = if is_lease { Priority::default() } else { Priority::new(priority).unwrap() };
        let bucket = Minute::of(crate::StoreTime::from_millis(minute * 60_000));
        Entry { place, bucket, priority, id, rev }
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
            place in 0u8..4, minute in 0i64..100_000_000, priority in 0u8..10, bits: u128, rev in 0u64..9_999_999_999,
        ) {
            let entry = entry(place, minute, priority, bits, rev);
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

        #[test]
        fn an_accepted_key_stays_below_the_root(key in "[a-z./\\\\\0-]{0,12}") {
            if check_key(&key).is_ok() {
                let path = std::path::Path::new(&key);
                let all_normal = path.components().all(|c| matches!(c, std::path::Component::Normal(_)));
                prop_assert!(path.is_relative() && all_normal);
            }
        }
    }
}
