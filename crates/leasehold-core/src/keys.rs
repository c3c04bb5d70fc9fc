//! Every path in the store is built here and nowhere else.
//!
//! `{shard}` is the first digits of the task's id, `{bucket}` a UTC minute of the store's time, `{rev}` the task's
//! revision, padded so that it sorts.
//!
//! | key | holds | written by | goes when |
//! | --- | --- | --- | --- |
//! | `queue.json` | what all clients agree on (promise P8) | the first connection, on condition *absent* and only where no key of a queue exists; `leasehold init --restore` (*absent*); a migration (*unchanged*) | never |
//! | `tasks/{shard}/{id}.json` | a task, its whole state and history, for life; or the mark of one that has moved to a shard of another length | its producer (*absent*), then whoever moves it on (*unchanged*) | retention; a mark at the end of the migration |
//! | `ready/{shard}/{bucket}/{9-priority}{id}.{rev}` | nothing: a pointer, due in that minute | producer, retry, recovery | the task moved on |
//! | `leases/{shard}/{bucket}/{id}.{rev}` | nothing: a pointer, due when the lease runs out | claimer, recovery | the task moved on |
//! | `inbox/{worker}/{bucket}/{9-priority}{id}.{rev}` | nothing: a pointer for one worker | producer | its task was settled, or went elsewhere; whoever finds the worker dead moves it to the overflow |
//! | `overflow/{bucket}/{9-priority}{id}.{rev}` | nothing: a pointer from the inbox of a dead worker, for everyone | whoever finds the worker dead | the task moved on |
//! | `unique/{hash}.json` | an idempotency record | producer (*absent*) | its expiry |
//! | `index/bell` | that something was made pending (a ring) | everyone who makes a task pending | overwritten |
//! | `index/bells/{worker}` | that something was put into an inbox (a ring) | producers | overwritten |
//! | `shard-leases/{first}.json` | the lease on a group of shards | workers | never: released or taken over |
//! | `duty-leases/{duty}.json` | the lease on a duty that one worker does for all | workers | never: released or taken over |
//! | `workers/{id}.lease.json` | the lease on the name of a worker that divides the shards with others | the worker | a week after it ran out |
//! | `workers/{id}.inbox.json` | the lease on a worker's inbox, and so on its name | the worker | a week after it ran out |
//! | `artifacts/{hash}/manifest.json` | how an artifact is cut, with the hash of every piece; later the mark that it is leaving | its publisher (*absent*), publishers who find it old, retention (*unchanged*) | a day after its retention, with its data |
//! | `artifacts/{hash}/data` | the bytes of an artifact, which are named by their hash | its publisher, before the manifest | before its manifest |
//! | `peers/{id}.json` | the lease on a peer's name, with the address at which it serves pieces | the peer | a week after it ran out |
//! | `probe/{name}/…` | throw-away objects | `leasehold doctor`, the first connection | at the end of the probe; what a killed one left, at `leasehold check --repair` a day later |
//! | `quarantine/{write_id}/{key}` | the bytes of a corrupt object | `leasehold quarantine` (*absent*) | never: an operator deletes it |
//!
//! No key is a path prefix of another: folders cannot hold both, and some S3-compatibles refuse it.

use std::fmt;

use crate::error::{Error, Result};
use crate::ids::{ArtifactId, Name, TaskId, TaskIdPrefix, WorkerId, WriteId};
use crate::limits::{KEY_BYTES_MAX, SEGMENT_BYTES_MAX};
use crate::shard::{Shard, ShardLen, ShardRange};
use crate::task::Priority;
use crate::time::Minute;

/// What all clients of a queue agree on.
pub const QUEUE: &str = "queue.json";

/// Beginnings of keys that only a queue has. Files and peers are not among them: a store may have them before it has a
/// queue.
pub const QUEUE_PREFIXES: [&str; 10] =
    [TASKS, "ready/", "leases/", INBOXES, OVERFLOW, UNIQUE, "index/", SHARD_LEASES, "duty-leases/", WORKERS];

/// The first part of keys that stores keep for themselves (locks and temporary files of a folder).
pub const RESERVED: &str = ".leasehold";

/// A throw-away key of the probe called `name`.
#[must_use]
pub fn probe(name: &str, object: &str) -> String {
    format!("{PROBES}{name}/{object}")
}

/// Prefix of all throw-away keys.
pub const PROBES: &str = "probe/";

/// Prefix of all copies of corrupt objects.
pub const QUARANTINE: &str = "quarantine/";

/// The copy of the corrupt object at `key`.
#[must_use]
pub fn quarantine(write_id: &WriteId, key: &str) -> String {
    format!("{QUARANTINE}{write_id}/{key}")
}

/// Prefixes of all objects that are neither tasks nor index entries.
pub const OTHERS: [&str; 9] =
    [UNIQUE, INDEX, SHARD_LEASES, DUTY_LEASES, WORKERS, PEERS, ARTIFACTS, PROBES, QUARANTINE];

/// The task with this id.
#[must_use]
pub fn task(shard: &Shard, id: &TaskId) -> String {
    format!("{}{id}.json", tasks(shard))
}

/// What the keys of all tasks of a shard begin with.
#[must_use]
pub fn tasks(shard: &Shard) -> String {
    format!("{TASKS}{shard}/")
}

/// What the keys of the tasks of a shard begin with whose ids begin with these characters.
#[must_use]
pub fn tasks_with_prefix(shard: &Shard, prefix: &TaskIdPrefix) -> String {
    format!("{}{}", tasks(shard), prefix.as_str())
}

/// What the keys of all tasks begin with.
pub const TASKS: &str = "tasks/";

/// How many digits name the shard in the key of a task, and the task; nothing if no task can lie there.
#[must_use]
pub fn task_place(key: &str) -> Option<(ShardLen, TaskId)> {
    let (shard, id) = parse_task(key)?;
    Some((Shard::of(&id, &shard)?.len(), id))
}

/// The task id in a key below [`tasks`]; nothing if it is not the key of a task.
#[must_use]
pub fn parse_task(key: &str) -> Option<(String, TaskId)> {
    let (shard, name) = key.strip_prefix(TASKS)?.split_once('/')?;
    Some((shard.to_owned(), name.strip_suffix(".json")?.parse().ok()?))
}

/// The idempotency record with this hash.
#[must_use]
pub fn unique(hash: &str) -> String {
    format!("{UNIQUE}{hash}.json")
}

/// What the keys of all idempotency records begin with.
pub const UNIQUE: &str = "unique/";

/// True for the keys that [`unique`] gives for a hash.
#[must_use]
pub fn is_unique(key: &str) -> bool {
    let hash = key.strip_prefix(UNIQUE).and_then(|name| name.strip_suffix(".json"));
    hash.is_some_and(|hash| hash.len() == 64 && hash.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')))
}

/// Prefix of all notification objects (bells).
pub const INDEX: &str = "index/";

/// Changes when something was made pending.
pub const BELL: &str = "index/bell";

/// Changes when something was put into the inbox of this worker.
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

/// What the keys of all leases on shards begin with.
pub const SHARD_LEASES: &str = "shard-leases/";

/// The lease on a group of shards.
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

/// The lease on looking for lost claims, among workers that do not divide the shards.
pub const RECOVERY_LEASE: &str = "duty-leases/recover.json";

/// The lease on looking for inboxes of dead workers.
pub const RESCUE_LEASE: &str = "duty-leases/rescue.json";

/// What the keys of all inboxes begin with.
pub const INBOXES: &str = "inbox/";

/// What the keys of an inbox begin with.
#[must_use]
pub fn inbox(worker: &WorkerId) -> String {
    format!("{INBOXES}{worker}/")
}

/// The worker whose inbox begins so.
#[must_use]
pub fn parse_inbox(prefix: &str) -> Option<WorkerId> {
    let name = prefix.strip_prefix(INBOXES)?.strip_suffix('/')?;
    WorkerId::checked("worker id", name).ok()
}

/// What the keys of all pointers from the inboxes of dead workers begin with.
pub const OVERFLOW: &str = "overflow/";

/// What the keys of all workers' own objects begin with.
pub const WORKERS: &str = "workers/";

/// The lease on a worker's name.
#[must_use]
pub fn worker_lease(worker: &WorkerId) -> String {
    format!("{WORKERS}{worker}{WORKER_LEASE}")
}

const WORKER_LEASE: &str = ".lease.json";

/// The worker whose name a key is the lease on.
#[must_use]
pub fn parse_worker_lease(key: &str) -> Option<WorkerId> {
    let name = key.strip_prefix(WORKERS)?.strip_suffix(WORKER_LEASE)?;
    WorkerId::checked("worker id", name).ok()
}

/// The lease on a worker's inbox.
#[must_use]
pub fn inbox_lease(worker: &WorkerId) -> String {
    format!("{WORKERS}{worker}{INBOX_LEASE}")
}

const INBOX_LEASE: &str = ".inbox.json";

/// The worker whose inbox a key is the lease on.
#[must_use]
pub fn parse_inbox_lease(key: &str) -> Option<WorkerId> {
    let name = key.strip_prefix(WORKERS)?.strip_suffix(INBOX_LEASE)?;
    WorkerId::checked("worker id", name).ok()
}

/// What the keys of all artifacts begin with.
pub const ARTIFACTS: &str = "artifacts/";

/// How an artifact is cut.
#[must_use]
pub fn manifest(artifact: &ArtifactId) -> String {
    format!("{ARTIFACTS}{artifact}{MANIFEST}")
}

const MANIFEST: &str = "/manifest.json";

/// The artifact that a key is the manifest of.
#[must_use]
pub fn parse_manifest(key: &str) -> Option<ArtifactId> {
    key.strip_prefix(ARTIFACTS)?.strip_suffix(MANIFEST)?.parse().ok()
}

/// The bytes of an artifact.
#[must_use]
pub fn artifact_data(artifact: &ArtifactId) -> String {
    format!("{ARTIFACTS}{artifact}{DATA}")
}

const DATA: &str = "/data";

/// The artifact that a key holds the bytes of.
#[must_use]
pub fn parse_artifact_data(key: &str) -> Option<ArtifactId> {
    key.strip_prefix(ARTIFACTS)?.strip_suffix(DATA)?.parse().ok()
}

/// What the keys of all peers begin with.
pub const PEERS: &str = "peers/";

/// The lease on a peer's name, with its address.
#[must_use]
pub fn peer(peer: &Name) -> String {
    format!("{PEERS}{peer}.json")
}

/// The peer whose name a key is the lease on.
#[must_use]
pub fn parse_peer(key: &str) -> Option<Name> {
    Name::checked("peer id", key.strip_prefix(PEERS)?.strip_suffix(".json")?).ok()
}

/// What the keys of all entries begin with.
pub const ENTRIES: [&str; 4] = ["ready/", "leases/", INBOXES, OVERFLOW];

/// An index that is divided into shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Index {
    /// Tasks that wait for a worker.
    Ready,
    /// Tasks that a worker holds.
    Lease,
}

impl Index {
    /// What the keys of this index begin with in a shard.
    #[must_use]
    pub fn prefix(self, shard: &Shard) -> String {
        format!("{}{shard}/", self.root())
    }

    /// What the keys of this index begin with.
    #[must_use]
    pub fn root(self) -> &'static str {
        match self {
            Index::Ready => "ready/",
            Index::Lease => "leases/",
        }
    }
}

/// Where an entry lies.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Where {
    /// Among the tasks of a shard that wait for any worker.
    Ready(Shard),
    /// Among the tasks of a shard that a worker holds.
    Lease(Shard),
    /// In the inbox of one worker.
    Inbox(WorkerId),
    /// Among what was found in the inboxes of dead workers: for everyone.
    Overflow,
}

impl Where {
    /// What the keys of entries begin with there.
    #[must_use]
    pub fn prefix(&self) -> String {
        match self {
            Where::Ready(shard) => Index::Ready.prefix(shard),
            Where::Lease(shard) => Index::Lease.prefix(shard),
            Where::Inbox(worker) => inbox(worker),
            Where::Overflow => OVERFLOW.to_owned(),
        }
    }

    /// The shard, if what lies there is divided into shards.
    #[must_use]
    pub fn shard(&self) -> Option<&Shard> {
        match self {
            Where::Ready(shard) | Where::Lease(shard) => Some(shard),
            Where::Inbox(_) | Where::Overflow => None,
        }
    }
}

/// An index entry: an empty object whose key says all. It is a hint (promise P9) to look at a task in a certain
/// minute; because it carries the revision, removing it late can never hit a newer one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Entry {
    /// Where it lies.
    pub place: Where,
    /// The minute in which to look.
    pub bucket: Minute,
    /// The task's priority, which sorts entries of waiting tasks inside their minute.
    pub priority: Priority,
    /// The task.
    pub id: TaskId,
    /// The task's revision that calls for this entry.
    pub rev: u64,
}

impl Entry {
    /// Its key.
    #[must_use]
    pub fn key(&self) -> String {
        self.to_string()
    }

    /// The same entry somewhere else.
    #[must_use]
    pub fn moved(&self, place: Where) -> Self {
        Self { place, ..self.clone() }
    }

    /// The shard in which it lies, if it lies in one.
    #[must_use]
    pub fn shard(&self) -> Option<&Shard> {
        self.place.shard()
    }

    /// Whether the length of its shard's name is this one.
    #[must_use]
    pub fn has_shard_of(&self, len: ShardLen) -> bool {
        self.shard().is_some_and(|shard| shard.len() == len)
    }

    /// Reads a key; nothing if it is not that of an entry.
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
            "ready" => Where::Ready(Shard::of(&id, part)?),
            "leases" => Where::Lease(Shard::of(&id, part)?),
            "inbox" => Where::Inbox(WorkerId::checked("worker id", part).ok()?),
            "overflow" => Where::Overflow,
            _ => return None,
        };
        let entry = Self { place, bucket: Minute::parse(bucket)?, priority, id, rev: rev.parse().ok()? };
        // Only the one form in which entries are written: whoever covers an entry must get the very same key.
        (entry.key() == key).then_some(entry)
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Entry { place, bucket, priority, id, rev } = self;
        write!(f, "{}{bucket}/", place.prefix())?;
        match place {
            Where::Lease(_) => write!(f, "{id}.{rev:010}"),
            _ => write!(f, "{}{id}.{rev:010}", priority.inverted()),
        }
    }
}

/// Refuses a key that could leave a folder, or that some store could not hold.
pub fn check_key(key: &str) -> Result<()> {
    let fault = if key.len() > KEY_BYTES_MAX {
        Some("is longer than 768 bytes")
    } else if key.starts_with(RESERVED) {
        Some("begins with `.leasehold`, which is kept for the store itself")
    } else {
        key.split('/').find_map(segment_fault)
    };
    match fault {
        Some(fault) => Err(Error::invalid(format!("key `{}` {fault}", key.escape_debug()))),
        None => Ok(()),
    }
}

/// Refuses a prefix below which no key of ours can lie. It may end in the middle of a part.
pub fn check_prefix(prefix: &str) -> Result<()> {
    // Any accepted prefix is the beginning of an accepted key.
    check_key(&format!("{prefix}x"))
}

fn segment_fault(segment: &str) -> Option<&'static str> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.=+@~".contains(&byte);
    match segment {
        "" => Some("has an empty part"),
        "." | ".." => Some("has a part that is `.` or `..`"),
        _ if segment.len() > SEGMENT_BYTES_MAX => Some("has a part longer than 255 bytes"),
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
        assert_eq!(error.to_string(), "key `a/../b` has a part that is `.` or `..`");
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
            0 => Where::Ready(shard),
            1 => Where::Lease(shard),
            2 => Where::Inbox(WorkerId::checked("worker id", "host-1.x").unwrap()),
            _ => Where::Overflow,
        };
        let is_lease = matches!(place, Where::Lease(_));
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
        fn an_entrys_key_gives_it_back(
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
