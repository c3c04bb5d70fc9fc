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

/// See [`PIECE_BYTES_MIN`].
pub const PIECE_BYTES_MAX: u32 = 64 * 1_024 * 1_024;

/// Most pieces of one artifact: with a hash of 64 digits each the manifest stays below 5 MiB, and a map below 8 KiB.
pub const PIECES_MAX: u32 = 65_536;

/// Most bytes of one request to the origin: neighbouring pieces are fetched together, because a bucket bills by request.
pub const RUN_BYTES_MAX: u64 = 16 * 1_024 * 1_024;

/// Most leases on pieces that are remembered after they ended, so that data which comes late is still of use. All that
/// two hundred peers have under way, several times over.
pub const ENDED_LEASES_MAX: usize = 4_096;

/// Most peers that are remembered after they left, so that one which sent corrupt data does not come back innocent.
pub const GONE_PEERS_MAX: usize = 4_096;
