//! Every bound, with its reason (promise P10).

use std::time::Duration;

/// Longest key. S3 allows 1,024 bytes; the rest is room for the prefix in the store's address.
pub const KEY_BYTES_MAX: usize = 768;

/// Longest part of a key between two slashes: file systems allow 255 bytes for a name.
pub const SEGMENT_BYTES_MAX: usize = 255;

/// Largest page of a list. S3, Google and most compatibles give at most 1,000 keys for one request.
pub const PAGE_KEYS_MAX: usize = 1_000;

/// Longest wait for one answer before it counts as lost. Well above the slowest healthy answer of a bucket
/// (hundreds of milliseconds), well below a lease of 60 s, so that a renewal can be tried more than once.
pub const ANSWER_WAIT: Duration = Duration::from_secs(10);

/// A link slower than this is not waited for: 1 MB/s, as an outpost may have it, shared by two transfers.
pub const SLOW_LINK_BYTES_PER_SEC: u64 = 500_000;

/// Longest wait for the end of an upload in parts. S3 may put the parts of a very large object together for minutes;
/// one that was not waited for is looked for afterwards, so that this need not be the longest it has ever taken.
pub const UPLOAD_END_WAIT: Duration = Duration::from_mins(1);

/// Largest range that is read by one request: it is held in memory, and whoever reads several at once holds several.
pub const RANGE_BYTES_MAX: u64 = 16 * 1_024 * 1_024;

/// Largest object that is read or written whole. The largest of ours, a task with input, output and progress of 256 KiB each
/// and 200 reasons of 4 KiB, has less than 8 MiB even if JSON writes every byte as six; a manifest has less than 5 MiB.
pub const OBJECT_BYTES_MAX: u64 = 16 * 1_024 * 1_024;

/// Usual size of a part of an upload. S3 takes no part below 5 MiB but the last; larger ones cost memory and more to
/// send again, smaller ones more requests.
pub const UPLOAD_PART_BYTES: u64 = 8 * 1_024 * 1_024;

/// Most parts of an upload: what S3 takes. With parts of the usual size that is 78 GiB; larger objects have larger parts
/// ([`upload_part_bytes`]).
pub const UPLOAD_PARTS_MAX: u64 = 10_000;

/// Largest object that is uploaded, as on S3. Its parts are of 525 MiB.
pub const UPLOAD_BYTES_MAX: u64 = 5 * 1_024 * 1_024 * 1_024 * 1_024;

/// Longest time for one operation with all its retries, after which the caller is told.
pub const OPERATION_WAIT: Duration = Duration::from_secs(30);

/// First pause before a retry; doubled each time, with full jitter.
pub const RETRY_PAUSE_MIN: Duration = Duration::from_millis(50);

/// Longest pause before a retry: short enough that several fit into an operation.
pub const RETRY_PAUSE_MAX: Duration = Duration::from_secs(5);

/// Most rounds of one read-decide-write before it gives up. Sixteen writers on one object need about
/// sixteen rounds each in the worst fair case; an unfair server needs several times that.
pub const UPDATE_ROUNDS_MAX: u32 = 1_000;

/// Longest pause between two rounds of a read-decide-write that lost: about the time of a few requests.
pub const CONTENTION_PAUSE_MAX: Duration = Duration::from_millis(250);

/// Longest name of a worker, task type or queue.
pub const NAME_BYTES_MAX: usize = 128;

/// Largest input or output inside a task's own record; more belongs into an artifact. A record is read and
/// written several times in a task's life.
pub const INLINE_BYTES_MAX: usize = 256 * 1_024;

/// Deepest nesting of an input, an output or progress. Readers of JSON give up somewhere (ours at 128 levels), and a
/// record that cannot be read again is a lost task.
pub const JSON_DEPTH_MAX: usize = 100;

/// Most events kept in a task's history; the first [`HISTORY_FIRST`] and the newest stay.
pub const HISTORY_MAX: usize = 200;

/// So many of the first events are never folded: how a task began explains most of what follows.
pub const HISTORY_FIRST: usize = 20;

/// Longest text of an error or a reason that is kept.
pub const REASON_BYTES_MAX: usize = 4 * 1_024;

/// Most tags on a task, and longest key or value of one: tags are for finding tasks, not for data.
pub const TAGS_MAX: usize = 32;

/// See [`TAGS_MAX`].
pub const TAG_BYTES_MAX: usize = 256;

/// How far ahead anything may be planned, a lease and a lifetime too: ten years. A later time is a mistake in a unit, and
/// one beyond the year 9999 could not even be written down.
pub const PLAN_AHEAD_MAX: Duration = Duration::from_hours(10 * 365 * 24);

/// A client asks for `queue.json` again before it writes when it last did so longer ago than this.
pub const LAYOUT_ASKED_EVERY: Duration = Duration::from_secs(30);

/// A client that last asked for `queue.json` longer ago than this writes nothing: shards may have other names by then.
/// Room for a try that fails, and half of what a migration waits.
pub const LAYOUT_TRUSTED: Duration = Duration::from_mins(1);

/// Size of a piece unless its publisher says otherwise: large enough that a request costs little beside it, small enough
/// that a lost one is soon fetched again.
pub const PIECE_BYTES: u32 = 1_024 * 1_024;

/// Smallest and largest piece. A piece is verified in memory before any of it is written.
pub const PIECE_BYTES_MIN: u32 = 1_024;

/// See [`PIECE_BYTES_MIN`]; also no larger than what one request may ask of a store.
pub const PIECE_BYTES_MAX: u32 = 16 * 1_024 * 1_024;

/// Most pieces of one artifact: with a hash of 64 digits each the manifest stays below 5 MiB, and a map below 8 KiB.
pub const PIECES_MAX: u32 = 65_536;

/// Most files that a task is given, or gives: each of them is a name and a hash in a record that is written several times.
pub const ARTIFACTS_MAX: usize = 100;

/// Most leases on pieces that are remembered after they ended, so that data which comes late is still of use. All that
/// two hundred peers have under way, several times over.
pub const ENDED_LEASES_MAX: usize = 4_096;

/// Most peers that are remembered after they left, so that one which sent corrupt data does not come back innocent.
pub const GONE_PEERS_MAX: usize = 4_096;

/// How long to wait for one answer that carries, or answers, so many bytes.
#[must_use]
pub const fn answer_wait(bytes: u64) -> Duration {
    ANSWER_WAIT.saturating_add(Duration::from_millis(bytes.saturating_mul(1_000) / SLOW_LINK_BYTES_PER_SEC))
}

/// How large the parts of an upload of so many bytes are; the last one may be smaller.
#[must_use]
pub const fn upload_part_bytes(bytes: u64) -> u64 {
    let least = bytes.div_ceil(UPLOAD_PARTS_MAX);
    if least > UPLOAD_PART_BYTES { least } else { UPLOAD_PART_BYTES }
}

/// How long a lease on the disk of an outpost lasts after its holder was last heard of.
pub const DISK_LEASE: Duration = Duration::from_mins(15);

/// The holder of such a lease is heard of so often: ten signs may be lost before it counts as stale.
pub const DISK_HEARTBEAT: Duration = Duration::from_mins(1);

/// Whoever was not heard of for more than this has lost its lease on disk, and its claim in the bucket.
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
        assert_eq!(answer_wait(0), ANSWER_WAIT);
        assert_eq!(answer_wait(1_000_000), ANSWER_WAIT + Duration::from_secs(2));
    }
}
