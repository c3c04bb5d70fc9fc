//! Paths of all objects in the store. No other module builds them.
//!
//! `{shard}` is the first digits of the task's id, `{minute}` a UTC minute in store time, `{rev}` the task's
//! revision, padded so that it sorts. *Absent* and *unchanged* are the conditions of the writes.
//!
//! | key | content | written by | removed |
//! | --- | --- | --- | --- |
//! | `queue.json` | configuration shared by all clients (promise P8) | the first connection (*absent*), only where no key of a queue exists; `leasehold init --restore` (*absent*); a migration (*unchanged*) | never |
//! | `tasks/{shard}/{id}.json` | a task with its state and history, for its whole life; or the forwarding marker of a task that moved to a shard of another length | its producer (*absent*), then each process that changes it (*unchanged*) | by retention; a forwarding marker at the end of the migration |
//! | `ready/{shard}/{minute}/{9-priority}{id}.{rev}` | empty: the index entry of a pending task, due in that minute | producer, retry, recovery | once the task has a later revision |
//! | `leases/{shard}/{minute}/{id}.{rev}` | empty: the index entry of a running task, due when its claim expires | claiming worker, recovery | once the task has a later revision |
//! | `inbox/{worker}/{minute}/{9-priority}{id}.{rev}` | empty: the index entry of a task for one worker | producer | once its task is settled, or has an entry elsewhere; another worker moves it to the overflow after the worker has crashed |
//! | `overflow/{minute}/{9-priority}{id}.{rev}` | empty: an index entry from the inbox of a crashed worker, for all workers | the worker that empties the inbox | once the task has a later revision |
//! | `unique/{hash}.json` | an idempotency record | producer (*absent*) | at its expiry |
//! | `index/bell` | notification object ("bell"): changes when a task becomes pending | every process that makes a task pending | never: overwritten |
//! | `index/bells/{worker}` | bell of an inbox: changes when an entry is put into it | producers | never: overwritten |
//! | `shard-leases/{first}.json` | lease on a group of shards | workers | never: released or taken over |
//! | `duty-leases/{duty}.json` | lease on a maintenance duty that one worker does for all | workers | never: released or taken over |
//! | `workers/{id}.lease.json` | worker lease: on the id of a worker that leases shards | the worker | a week after its expiry |
//! | `workers/{id}.inbox.json` | lease on a worker's inbox, and so on its id | the worker | a week after its expiry |
//! | `artifacts/{hash}/manifest.json` | pieces of an artifact with their hashes; later the marker that it is being removed | its publisher (*absent*); later publishers and retention (*unchanged*) | a day after its retention, with its data |
//! | `artifacts/{hash}/data` | bytes of an artifact, named by their hash | its publisher, before the manifest | before its manifest |
//! | `peers/{id}.json` | lease on a peer id, with the address at which it serves pieces | the peer | a week after its expiry |
//! | `journal/0/lease.json` | lease on the journal, with `snapshot`, `floor` and `trusted_until` | the broker | never: released or taken over |
//! | `journal/0/log/{seq}` | a commit of the journal | its broker (*absent*) | once a snapshot covers it; a fence never |
//! | `journal/0/state/{seq}-{n}` | chunk of live tasks, written with the snapshot at that commit | the broker (*absent*) | when neither of the last two snapshots refers to it |
//! | `journal/0/snapshot/{seq}` | list of the chunks of a snapshot | the broker (*absent*) | when two newer ones exist |
//! | `journal/0/archive/{day}/{first}-{last}-{id}` | archived tasks of a UTC day (or of `undated` ids) with ids of one range; the id is random | the broker (*absent*), before the record that refers to it | an hour after the record that removes it, when a snapshot covers that; one that no record refers to by `leasehold check --repair` |
//! | `journal/0/clients/{fingerprint}` | empty: a process on another host that has this public key may write to the bucket | the process, while it connects to the broker | by the broker, once it has read it; one of a connection that failed before by a later broker, a day later |
//! | `probe/{name}/…` | temporary objects | `leasehold doctor`, the first connection | at the end of the probe; those of a killed process by `leasehold check --repair` a day later |
//! | `quarantine/{write_id}/{key}` | bytes of a corrupt object | `leasehold quarantine` (*absent*) | never: an operator deletes it |
//!
//! In `journal/0`, `0` is the number of the journal; a queue has one.
//!
//! No key is a path prefix of another: folders cannot store both, and some S3-compatible stores refuse it.

mod check;
mod entry;

pub use check::{check_key, check_prefix};
pub use entry::{Entry, Index, IndexLocation};

use crate::ids::{ArtifactId, Name, TaskId, TaskIdPrefix, WorkerId, WriteId};
use crate::journal::{ArchiveName, ChunkName, Seq};
use crate::shard::{Shard, ShardLen, ShardRange};

/// Configuration shared by all clients of a queue.
pub const QUEUE: &str = "queue.json";

/// Prefixes of keys that only a queue has. Artifacts and peers are not among them: a store may have them before it has
/// a queue.
pub const QUEUE_PREFIXES: [&str; 11] = [
    TASKS,
    "ready/",
    "leases/",
    INBOXES,
    OVERFLOW,
    UNIQUE,
    "index/",
    SHARD_LEASES,
    "duty-leases/",
    WORKERS,
    JOURNAL,
];

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
pub const OTHER_PREFIXES: [&str; 9] =
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
pub fn parse_task_shard(key: &str) -> Option<(ShardLen, TaskId)> {
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

/// Lease on emptying the inboxes of crashed workers.
pub const RESCUE_LEASE: &str = "duty-leases/rescue.json";

/// Prefix of all inboxes.
pub const INBOXES: &str = "inbox/";

/// Prefix of the inbox of a worker.
#[must_use]
pub fn inbox(worker: &WorkerId) -> String {
    format!("{INBOXES}{worker}/")
}

/// Prefix of the overflow: entries from the inboxes of crashed workers.
pub const OVERFLOW: &str = "overflow/";

/// Prefix of the objects of all workers.
pub const WORKERS: &str = "workers/";

/// Key of the lease on a worker id.
#[must_use]
pub fn worker_lease(worker: &WorkerId) -> String {
    format!("{WORKERS}{worker}{WORKER_LEASE}")
}

const WORKER_LEASE: &str = ".lease.json";

/// Parses the key of a lease on a worker id.
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

/// Key of the lease on a peer id, with its address.
#[must_use]
pub fn peer(peer: &Name) -> String {
    format!("{PEERS}{peer}.json")
}

/// Parses the key of a lease on a peer id.
#[must_use]
pub fn parse_peer(key: &str) -> Option<Name> {
    Name::checked("peer id", key.strip_prefix(PEERS)?.strip_suffix(".json")?).ok()
}

/// Prefix of everything that the journal layout stores.
pub const JOURNAL: &str = "journal/";

/// Lease on the journal, whose holder is the broker of the queue.
pub const JOURNAL_LEASE: &str = "journal/0/lease.json";

/// Prefix of the log of the journal: commits as objects or, in a folder of one host, segments.
pub const JOURNAL_LOG: &str = "journal/0/log/";

/// Prefix of the snapshots of the journal.
pub const JOURNAL_SNAPSHOTS: &str = "journal/0/snapshot/";

/// Key of the snapshot of the journal at a commit.
#[must_use]
pub fn journal_snapshot(seq: Seq) -> String {
    format!("{JOURNAL_SNAPSHOTS}{:020}", seq.get())
}

/// Prefix of the chunks of snapshots.
pub const JOURNAL_CHUNKS: &str = "journal/0/state/";

/// Key of a chunk of a snapshot.
#[must_use]
pub fn journal_chunk(name: ChunkName) -> String {
    format!("{JOURNAL_CHUNKS}{:020}-{}", name.seq.get(), name.number)
}

/// Key of a commit of the journal.
#[must_use]
pub fn journal_commit(seq: Seq) -> String {
    format!("{JOURNAL_LOG}{:020}", seq.get())
}

/// Parses the key of a commit of the journal.
#[must_use]
pub fn parse_journal_commit(key: &str) -> Option<Seq> {
    let seq = Seq::new(key.strip_prefix(JOURNAL_LOG)?.parse().ok()?);
    (journal_commit(seq) == key).then_some(seq)
}

/// Prefix of the archive of the journal.
pub const JOURNAL_ARCHIVE: &str = "journal/0/archive/";

/// Key of an object of the archive.
#[must_use]
pub fn journal_archive(name: &ArchiveName) -> String {
    format!("{JOURNAL_ARCHIVE}{name}")
}

/// Parses the key of an object of the archive.
#[must_use]
pub fn parse_journal_archive(key: &str) -> Option<ArchiveName> {
    key.strip_prefix(JOURNAL_ARCHIVE)?.parse().ok()
}

/// Prefix of the public keys of processes that connect to the broker from other hosts.
pub const JOURNAL_CLIENTS: &str = "journal/0/clients/";

/// Key of the object that shows that the holder of a public key may write to the bucket.
#[must_use]
pub fn journal_client(fingerprint: &str) -> String {
    format!("{JOURNAL_CLIENTS}{fingerprint}")
}

/// Prefixes of all index entries.
pub const ENTRY_PREFIXES: [&str; 4] = ["ready/", "leases/", INBOXES, OVERFLOW];

#[cfg(test)]
mod tests {
    use super::*;

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
        for key in [
            &probe("x", "y"),
            &journal_commit(Seq::new(u64::MAX)),
            "queue.json",
            "tasks/0f/a-b.json",
            "ready/0/20260101-0000/a.0000000001",
        ] {
            check_key(key).unwrap();
        }
    }
}
