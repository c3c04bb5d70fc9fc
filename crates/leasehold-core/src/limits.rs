//! Limits, each with its reason (promise P10).

use std::time::Duration;

/// Maximum length of a key. S3 allows 1,024 bytes; the rest is room for the prefix in the store's address.
pub const KEY_BYTES_MAX: usize = 768;

/// Maximum length of a key segment between two slashes: file systems allow 255 bytes for a name.
pub const SEGMENT_BYTES_MAX: usize = 255;

/// Maximum page size of a list. S3, Google and most compatible stores return at most 1,000 keys per request.
pub const PAGE_KEYS_MAX: usize = 1_000;

/// Timeout for one answer, after which it counts as lost. Well above the slowest healthy answer of a bucket
/// (hundreds of milliseconds), well below a lease of 60 s, so that a renewal can be retried.
pub const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);

/// Slowest link that timeouts allow for: 1 MB/s, as at an outpost, shared by two transfers.
pub const SLOW_LINK_BYTES_PER_SEC: u64 = 500_000;

/// Timeout for finishing an upload in parts. S3 may assemble the parts of a very large object for minutes. After the
/// timeout the object is looked up again, so that this need not cover the slowest case.
pub const UPLOAD_FINISH_TIMEOUT: Duration = Duration::from_mins(1);

/// Maximum size of a ranged read. Each range that is read concurrently is held in memory.
pub const RANGE_BYTES_MAX: u64 = 16 * 1_024 * 1_024;

/// Maximum size of an object that is read or written whole. The largest record, a task with input, output and progress
/// of 256 KiB each and 200 reasons of 4 KiB, has less than 8 MiB even if JSON escapes every byte as six; a manifest has
/// less than 5 MiB.
pub const OBJECT_BYTES_MAX: u64 = 16 * 1_024 * 1_024;

/// Maximum size of a commit of a journal: an object that is read and written whole.
pub const COMMIT_BYTES_MAX: usize = 16 * 1_024 * 1_024;

/// Maximum size of the header of a commit. Its fields have less than half of that.
pub const COMMIT_HEADER_BYTES_MAX: usize = 1_024;

/// Size from which a segment of a journal's log gets no further commit. Large enough that a new segment, which takes two
/// more syncs, is rare; small enough to be read at once.
pub const SEGMENT_BYTES: u64 = 64 * 1_024 * 1_024;

/// Maximum size of the header of a segment: room for ten thousand segments before it.
pub const SEGMENT_HEADER_BYTES_MAX: usize = 1_024 * 1_024;

/// Maximum number of slots of a log that are read or deleted at once. A takeover may have a thousand commits to replay,
/// and a bucket takes tens of milliseconds for each; each that is read is held in memory.
pub const SLOTS_AT_ONCE: usize = 16;

/// Usual part size of an upload. S3 accepts no part below 5 MiB except the last; larger parts cost memory and longer
/// retries, smaller ones more requests.
pub const UPLOAD_PART_BYTES: u64 = 8 * 1_024 * 1_024;

/// Maximum number of parts of an upload, as on S3. With parts of the usual size that is 78 GiB; larger objects have
/// larger parts ([`upload_part_bytes`]).
pub const UPLOAD_PARTS_MAX: u64 = 10_000;

/// Maximum size of an upload, as on S3. Its parts have 525 MiB.
pub const UPLOAD_BYTES_MAX: u64 = 5 * 1_024 * 1_024 * 1_024 * 1_024;

/// Timeout for one operation with all its retries, after which it returns an error.
pub const OPERATION_TIMEOUT: Duration = Duration::from_secs(30);

/// First pause before a retry; doubled each time, with full jitter.
pub const RETRY_PAUSE_MIN: Duration = Duration::from_millis(50);

/// Maximum pause before a retry: short enough that several retries fit into an operation.
pub const RETRY_PAUSE_MAX: Duration = Duration::from_secs(5);

/// Maximum number of rounds of one read-decide-write. Sixteen writers on one object need about sixteen rounds each in
/// the worst fair case; an unfair server needs several times that.
pub const UPDATE_ROUNDS_MAX: u32 = 1_000;

/// Maximum pause between two rounds of a read-decide-write that lost: about the time of a few requests.
pub const CONTENTION_PAUSE_MAX: Duration = Duration::from_millis(250);

/// Maximum length of a worker id, and of the name of a task type or queue.
pub const NAME_BYTES_MAX: usize = 128;

/// Maximum size of an input or output in a task's record; larger data belongs into an artifact. A record is read and
/// written several times in a task's life.
pub const INLINE_BYTES_MAX: usize = 256 * 1_024;

/// Maximum nesting of an input, an output or progress. JSON parsers have a limit (ours is 128 levels), and a record
/// that cannot be parsed is a lost task.
pub const JSON_DEPTH_MAX: usize = 100;

/// Maximum number of events in a task's history; the first [`HISTORY_FIRST`] and the newest are kept.
pub const HISTORY_MAX: usize = 200;

/// Number of first events that are always kept: the beginning of a task explains most of what follows.
pub const HISTORY_FIRST: usize = 20;

/// Maximum length of an error or a reason in a record; longer texts are cut.
pub const REASON_BYTES_MAX: usize = 4 * 1_024;

/// Maximum number of tags on a task: tags are for finding tasks, not for data.
pub const TAGS_MAX: usize = 32;

/// Maximum length of the key or value of a tag.
pub const TAG_BYTES_MAX: usize = 256;

/// Maximum time ahead of a start, a lease or a lifetime: ten years. A later time is a mistake in a unit, and one
/// beyond the year 9999 cannot be written.
pub const PLAN_AHEAD_MAX: Duration = Duration::from_hours(10 * 365 * 24);

/// Maximum distance between the time of a new task's id and the time of its submit, in the journal. Ids come from the store's
/// time, as far as the client knows it, and a submit is repeated for less than a minute.
pub const TASK_ID_AGE_MAX: Duration = Duration::from_mins(10);

/// Age of the cached `queue.json` from which a client reads it again before a write.
pub const QUEUE_META_REFRESH_INTERVAL: Duration = Duration::from_secs(30);

/// Age of the cached `queue.json` from which a client writes nothing: shards may have been renamed. Allows for one
/// failed read, and is half of what a migration waits.
pub const QUEUE_META_MAX_AGE: Duration = Duration::from_mins(1);

/// Lifetime of the lease on a journal without renewal: two renewals in a row may fail before another process takes over.
pub const JOURNAL_LEASE_TTL: Duration = Duration::from_secs(30);

/// Interval of renewals of the lease on a journal.
pub const JOURNAL_LEASE_RENEW_INTERVAL: Duration = Duration::from_secs(10);

/// Time for which a commit in a bucket waits for more records, if something waits for its outcome. A put takes about as
/// long, and each costs the same whatever it contains.
pub const COMMIT_LINGER: Duration = Duration::from_millis(50);

/// Interval at which the broker of a bucket writes commits in the long run, while records come and no task waits for a worker: 8.6
/// million puts a month, US$ 43. Longer than [`COMMIT_LINGER`] and a put, so that a queue with a thousand tasks a second makes a
/// fourth of the puts.
pub const COMMIT_INTERVAL: Duration = Duration::from_millis(300);

/// Commits that it may write without that interval: a minute and a half of it, saved up while it writes fewer. So a queue with less
/// than three commits a second, or with more for a moment, waits for [`COMMIT_LINGER`] only.
pub const COMMITS_SAVED: u32 = 300;

/// Time for which a commit in a bucket waits for more records, if it has only results that nothing waits for.
pub const COMMIT_LINGER_LAZY: Duration = Duration::from_secs(1);

/// Size from which a commit gets no more records. A record is below 8 MiB, so that a commit always fits into
/// [`COMMIT_BYTES_MAX`].
pub const COMMIT_BYTES_FULL: usize = 8 * 1_024 * 1_024;

/// Size from which a chunk of a snapshot gets no more tasks. Small enough that a few changed tasks rewrite little; large
/// enough that a million tasks are a hundred objects.
pub const CHUNK_BYTES: usize = 4 * 1_024 * 1_024;

/// Maximum size of the header of a chunk.
pub const CHUNK_HEADER_BYTES_MAX: usize = 1_024;

/// Number of commits after which a broker takes a snapshot. A bucket reads sixteen at a time, so that a takeover takes a
/// few seconds.
pub const SNAPSHOT_COMMITS: u64 = 1_000;

/// Bytes of commits after which a broker takes a snapshot: less than a second of replay.
pub const SNAPSHOT_LOG_BYTES: u64 = 64 * 1_024 * 1_024;

/// Bytes of encoded tasks that a process keeps in memory beside those that have changed since the newest snapshot; a chunk has
/// the others. Sixteen chunks: enough to claim and to show tasks of many ages without reading a chunk for each. With their
/// indexes, a hundred thousand tasks of 100 KiB take as much memory as those of 1 KiB.
pub const RESIDENT_BYTES: u64 = 64 * 1_024 * 1_024;

/// Bytes of encoded tasks after which a page of a list or an export of a journal ends: they are read back for it together, and
/// its reader holds them.
pub const PAGE_BYTES_MAX: u64 = 32 * 1_024 * 1_024;

/// Maximum number of chunks that a broker reads back at once.
pub const CHUNK_READS_MAX: usize = 4;

/// Time after which a broker takes a snapshot if anything has changed.
pub const SNAPSHOT_INTERVAL: Duration = Duration::from_mins(5);

/// Time for which commits in a bucket are kept after a snapshot covers them: a slow reader may still need them. It starts
/// over if it does not find them.
pub const COMMITS_KEPT: Duration = Duration::from_hours(1);

/// Time since its end after which a task of a journal is archived. Within it a worker may still repeat its result, and users
/// look at what has just ended: that takes no request then.
pub const ARCHIVE_AGE: Duration = Duration::from_mins(5);

/// Number of final tasks that stay live within [`ARCHIVE_AGE`]: about 60 MB. A fast queue ends millions in five minutes.
pub const FINAL_LIVE_MAX: usize = 100_000;

/// Maximum number of final tasks that a broker examines for one batch, so that requests are not kept waiting. Tasks with
/// idempotency keys are examined again and again until their keys have expired.
pub const ARCHIVE_EXAMINED_MAX: usize = 10_000;

/// Maximum number of archive objects that cover one id: a read of a task takes one request of the broker and as many gets.
pub const ARCHIVE_DEPTH_MAX: usize = 3;

/// Size from which an archive object is not small: a quarter of a full one.
pub const ARCHIVE_SMALL_BYTES: u64 = 1_024 * 1_024;

/// Number of small archive objects of the newest day. Every five minutes adds one; more of them would make the table
/// larger, fewer would rewrite each task more often.
pub const ARCHIVE_SMALL_MAX: usize = 16;

/// Number of small archive objects of each day but the newest: an older day seldom gets more.
pub const ARCHIVE_SMALL_OLD_MAX: usize = 2;

/// Maximum number of bytes of archive objects that a broker merges at once, because it holds them in memory. A merge of one
/// task needs up to three objects of 4 MiB and one task each.
pub const ARCHIVE_MERGE_BYTES_MAX: u64 = 32 * 1_024 * 1_024;

/// Number of archive objects from which final tasks stay live, so that the manifest of a snapshot stays below
/// [`OBJECT_BYTES_MAX`]: 80 GB of tasks.
pub const ARCHIVE_OBJECTS_MAX: usize = 20_000;

/// Time for which a removed archive object is kept: a slow reader may still need it. It starts over if it does not find it.
pub const ARCHIVE_KEPT: Duration = Duration::from_hours(1);

/// Maximum number of bytes of archive objects that one page of a list refers to; its reader holds them in memory.
pub const ARCHIVE_PAGE_BYTES: u64 = 32 * 1_024 * 1_024;

/// Maximum number of archived tasks that a broker looks up at once. Each reads one object at a time.
pub const ARCHIVE_LOOKUPS_MAX: usize = 4;

/// Minimum age of an archive object that no table refers to before a repair deletes it. A margin: the repair also proves
/// that no broker can refer to it.
pub const ARCHIVE_ORPHAN_AGE_MIN: Duration = Duration::from_hours(1);

/// Maximum number of requests that wait for a broker. More than one commit of small tasks; a request has at most 256 KiB of
/// input.
pub const BROKER_REQUESTS_MAX: usize = 1_024;

/// Maximum number of connections to a broker. Each is a process with workers or producers; more of them are more than one
/// process can serve at the rates of a journal.
pub const BROKER_CLIENTS_MAX: usize = 1_024;

/// Maximum number of open requests of one connection to a broker: those of a bulk submit, of its workers and of readers. A
/// client with more waits.
pub const CLIENT_CALLS_MAX: usize = 2_048;

/// Maximum length of one request to a broker. A submit has at most 256 KiB of input and as much of other fields; a purge or a
/// renewal of many claims is far below.
pub const BROKER_LINE_BYTES_MAX: usize = 8 * 1_024 * 1_024;

/// Maximum length of one request of a client that may only read: filters of a list are the longest.
pub const BROKER_READ_BYTES_MAX: usize = 64 * 1_024;

/// Maximum number of connections to a broker from one address: half of all, so that one host cannot lock out the others. A
/// host behind the same address as others counts with them.
pub const BROKER_CLIENTS_PER_ADDRESS_MAX: usize = BROKER_CLIENTS_MAX / 2;

/// Maximum number of expired claims and tasks that a broker handles at once, so that requests are not kept waiting.
pub const BROKER_TICK_MAX: usize = 1_000;

/// Maximum number of tasks that a broker examines for one page of a list or of a purge, for the same reason.
pub const BROKER_PAGE_MAX: usize = 1_000;

/// Default size of a piece: large enough that the overhead of a request is small, small enough that a lost piece is
/// soon fetched again.
pub const PIECE_BYTES: u32 = 1_024 * 1_024;

/// Minimum size of a piece.
pub const PIECE_BYTES_MIN: u32 = 1_024;

/// Maximum size of a piece. It is verified in memory before any of it is written, and read with one request.
pub const PIECE_BYTES_MAX: u32 = 16 * 1_024 * 1_024;

/// Maximum number of pieces of an artifact: with a hash of 64 digits each, the manifest stays below 5 MiB and a piece
/// map at 8 KiB.
pub const PIECES_MAX: u32 = 65_536;

/// Maximum number of artifacts or results of a task: each adds a name and a hash to a record that is written several
/// times.
pub const ARTIFACTS_MAX: usize = 100;

/// Maximum number of ended piece leases that are remembered, so that late data can still be used. Several times what
/// two hundred peers have in flight.
pub const ENDED_LEASES_MAX: usize = 4_096;

/// Maximum number of former peers that are remembered, so that a peer that sent corrupt data keeps its score when it
/// returns.
pub const GONE_PEERS_MAX: usize = 4_096;

/// Timeout for one answer to a request that transfers `bytes` bytes.
#[must_use]
pub const fn response_timeout(bytes: u64) -> Duration {
    RESPONSE_TIMEOUT
        .saturating_add(Duration::from_millis(bytes.saturating_mul(1_000) / SLOW_LINK_BYTES_PER_SEC))
}

/// Part size of an upload of `bytes` bytes; the last part may be smaller.
#[must_use]
pub const fn upload_part_bytes(bytes: u64) -> u64 {
    let least = bytes.div_ceil(UPLOAD_PARTS_MAX);
    if least > UPLOAD_PART_BYTES { least } else { UPLOAD_PART_BYTES }
}

/// Duration of a lease on the disk of an outpost, from the last heartbeat of its holder.
pub const DISK_LEASE: Duration = Duration::from_mins(15);

/// Interval between heartbeats of the holder of a lease on disk: ten may be lost before the lease counts as stale.
pub const DISK_HEARTBEAT: Duration = Duration::from_mins(1);

/// Time since the last heartbeat after which a holder has lost its lease on disk and its claim in the bucket.
pub const DISK_LEASE_STALE: Duration = Duration::from_mins(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_grow_with_the_object_and_are_never_too_many() {
        let usual_max = UPLOAD_PART_BYTES * UPLOAD_PARTS_MAX;
        assert_eq!(usual_max, 78 * 1_024 * 1_024 * 1_024 + 128 * 1_024 * 1_024);
        for (bytes, part_bytes) in [
            (1, UPLOAD_PART_BYTES),
            (usual_max, UPLOAD_PART_BYTES),
            (usual_max + 1, UPLOAD_PART_BYTES + 1),
            (UPLOAD_BYTES_MAX, 549_755_814),
        ] {
            assert_eq!(upload_part_bytes(bytes), part_bytes, "{bytes}");
            assert!(bytes.div_ceil(part_bytes) <= UPLOAD_PARTS_MAX, "{bytes}");
        }
    }

    #[test]
    fn more_bytes_are_waited_for_longer() {
        assert_eq!(response_timeout(0), RESPONSE_TIMEOUT);
        assert_eq!(response_timeout(1_000_000), RESPONSE_TIMEOUT + Duration::from_secs(2));
    }
}
