//! Commit: one write to the log of a journal, with the same bytes as an object of a bucket and in a segment of a folder.
//!
//! ```text
//! {"format":1,"seq":7,"epoch":3,"instance":"…","write_id":"…","previous":"…","records":2,"bytes":180,"checksum":"…"}
//! {…first record…}
//! {…second record…}
//! ```
//!
//! The first line is the header, `bytes` is the length of what follows it. The checksum is the BLAKE3 hash of everything
//! but itself: of the header up to `,"checksum"`, and of the records. It is also the *hash* of the commit, which the next
//! commit contains as `previous`. So every commit determines all commits before it, and no changed bit stays unnoticed:
//! in the header either, where a changed epoch would fence the wrong process.
//!
//! A *fence* is a commit without records by which a new broker begins. Its header has two more fields, `trusted_until` and
//! `at`, from which every replay computes the extended claims (rule C4 of `docs/protocol/journal.md`).

use bytes::Bytes;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

use super::sealed;
use crate::error::{Error, Kind, Result};
use crate::ids::{HexName, WriteId, hex};
use crate::limits::{COMMIT_BYTES_MAX, COMMIT_HEADER_BYTES_MAX};
use crate::oversize;
use crate::time::StoreTime;

/// Newest format that this program reads and writes.
pub const FORMAT: u32 = 1;

/// Number of a commit in its log. The first commit has number 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Seq(u64);

impl Seq {
    /// Number before the first commit: nothing.
    pub const NONE: Seq = Seq(0);

    /// Creates a number.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// Returns the number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns the number of the next commit.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    /// Returns the number of the commit before; [`Seq::NONE`] stays unchanged.
    #[must_use]
    pub const fn previous(self) -> Self {
        Self(self.0.saturating_sub(1))
    }
}

impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Hash of a commit, and through `previous` of all commits before it. Written as 64 hex digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommitHash([u8; 32]);

impl CommitHash {
    /// Stands for the commit before the first one.
    pub const NONE: CommitHash = CommitHash([0; 32]);

    pub(super) const fn from_bytes(hash: [u8; 32]) -> Self {
        Self(hash)
    }

    pub(super) const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    fn parse(text: &str) -> Option<Self> {
        let digits: &[u8; 64] = text.as_bytes().try_into().ok()?;
        let mut hash = [0; 32];
        for (byte, pair) in hash.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        Some(Self(hash))
    }
}

fn digit(text: u8) -> Option<u8> {
    match text {
        b'0'..=b'9' => Some(text - b'0'),
        b'a'..=b'f' => Some(text - b'a' + 10),
        _ => None,
    }
}

impl fmt::Display for CommitHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

impl Serialize for CommitHash {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for CommitHash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        Self::parse(&text)
            .ok_or_else(|| serde::de::Error::custom(format!("`{text}` is not a hash of a commit")))
    }
}

/// Position in a log: after the commit with this number and hash. A snapshot contains the one at which replay begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LogPosition {
    /// Number of the last commit.
    pub seq: Seq,
    /// Hash of the last commit.
    pub hash: CommitHash,
}

impl LogPosition {
    /// Begin of a log.
    pub const START: LogPosition = LogPosition { seq: Seq::NONE, hash: CommitHash::NONE };
}

impl Default for LogPosition {
    fn default() -> Self {
        Self::START
    }
}

/// Times that a fence contains (rule C4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fence {
    /// Latest time until which an earlier broker may trust its lease; 1970 if there was none.
    pub trusted_until: StoreTime,
    /// Time of the fence.
    pub at: StoreTime,
}

/// Header of a commit, without what follows from the records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommitHeader {
    /// Number of the commit.
    pub seq: Seq,
    /// Epoch of the lease of the broker that wrote it.
    pub epoch: u64,
    /// Process that wrote it, random.
    pub instance: HexName,
    /// Id of this write, by which its writer recognises it.
    pub write_id: WriteId,
    /// Hash of the commit before it.
    pub previous: CommitHash,
    /// Number of records.
    pub records: u32,
    /// Times of a fence; none in a commit with records.
    pub fence: Option<Fence>,
}

/// Commit as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Commit {
    /// Header.
    pub header: CommitHeader,
    /// Records, one JSON line each. They share the memory of all bytes that were read with them: copy what is kept.
    pub records: Bytes,
    /// Hash of the commit.
    pub hash: CommitHash,
}

impl Commit {
    /// Position after this commit.
    #[must_use]
    pub fn position(&self) -> LogPosition {
        LogPosition { seq: self.header.seq, hash: self.hash }
    }
}

/// Commit as it is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EncodedCommit {
    /// Header and records.
    pub body: Bytes,
    /// Hash of the commit.
    pub hash: CommitHash,
}

/// Header line without its checksum.
#[derive(Serialize, Deserialize)]
struct HeaderLine {
    format: u32,
    seq: Seq,
    epoch: u64,
    instance: HexName,
    write_id: WriteId,
    previous: CommitHash,
    records: u32,
    bytes: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    trusted_until: Option<StoreTime>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    at: Option<StoreTime>,
}

/// Format of a header, which is all that can be read of a newer one.
#[derive(Deserialize)]
struct FormatOnly {
    format: u32,
}

/// Returns the bytes of a commit. Fails if it could not be read again: too many bytes, a wrong number of records, or a
/// fence with records.
pub fn encode(header: &CommitHeader, records: &[u8]) -> Result<EncodedCommit> {
    check_content(header, records).map_err(|why| Error::invalid(format!("commit {}: {why}", header.seq)))?;
    let CommitHeader { seq, epoch, instance, write_id, previous, records: count, fence } = header.clone();
    let line = HeaderLine {
        format: FORMAT,
        seq,
        epoch,
        instance,
        write_id,
        previous,
        records: count,
        bytes: records.len() as u64,
        trusted_until: fence.map(|fence| fence.trusted_until),
        at: fence.map(|fence| fence.at),
    };
    let (mut body, hash) = sealed::seal(&line, records);
    if body.len() > COMMIT_HEADER_BYTES_MAX {
        return Err(Error::invalid(format!(
            "header of commit {seq} must be at most {COMMIT_HEADER_BYTES_MAX} bytes, got {}",
            body.len()
        )));
    }
    body.reserve_exact(records.len());
    body.extend_from_slice(records);
    Ok(EncodedCommit { body: body.into(), hash })
}

/// Parses an object that is one commit; `name` stands for it in the error.
pub fn decode(name: impl fmt::Display, body: &Bytes) -> Result<Commit> {
    let decoded = decode_parts(body).and_then(|(commit, length)| match body.len() - length {
        0 => Ok(commit),
        more => Err(format!("{more} bytes follow its records")),
    });
    decoded.map_err(|why| corrupt(name, &why))
}

/// Parses the commit with which `body` begins, and returns its length; `name` stands for it in the error.
pub fn decode_first(name: impl fmt::Display, body: &Bytes) -> Result<(Commit, usize)> {
    decode_parts(body).map_err(|why| corrupt(name, &why))
}

/// Length of the commit with which `body` begins, as its header says, even if the records are incomplete; none if the
/// header is not complete or is corrupt.
#[must_use]
pub fn stated_length(body: &[u8]) -> Option<u64> {
    let line = header_line(body).ok()?;
    let header: HeaderLine = serde_json::from_slice(line).ok()?;
    header.bytes.checked_add(line.len() as u64 + 1)
}

/// True if `body` begins with a commit of a format that only a newer program reads.
#[must_use]
pub fn is_newer(body: &[u8]) -> bool {
    let line = header_line(body).ok();
    line.and_then(|line| serde_json::from_slice(line).ok())
        .is_some_and(|FormatOnly { format }| format > FORMAT)
}

fn corrupt(name: impl fmt::Display, why: &str) -> Error {
    Error::new(Kind::Corrupt, format!("{name} is not a commit: {why}"))
}

fn decode_parts(body: &Bytes) -> Result<(Commit, usize), String> {
    let line = header_line(body)?;
    let format =
        serde_json::from_slice::<FormatOnly>(line).map_err(|error| format!("header: {error}"))?.format;
    if format > FORMAT {
        return Err(format!(
            "format {format} is newer than the supported format {FORMAT}; upgrade leasehold"
        ));
    }
    let header: HeaderLine = serde_json::from_slice(line).map_err(|error| format!("header: {error}"))?;
    let begin = line.len() + 1;
    let end = usize::try_from(header.bytes).ok().and_then(|bytes| begin.checked_add(bytes));
    let end = end
        .filter(|end| *end <= body.len())
        .ok_or_else(|| format!("it has {} of {} bytes of records", body.len() - begin, header.bytes))?;
    let records = body.slice(begin..end);
    let hash = sealed::check(line, &records)?;
    let header = header.parsed()?;
    check_content(&header, &records)?;
    Ok((Commit { header, records, hash }, end))
}

impl HeaderLine {
    fn parsed(self) -> Result<CommitHeader, String> {
        let Self { seq, epoch, instance, write_id, previous, records, .. } = self;
        let fence = match (self.trusted_until, self.at) {
            (Some(trusted_until), Some(at)) => Some(Fence { trusted_until, at }),
            (None, None) => None,
            _ => return Err("a fence needs `trusted_until` and `at`".into()),
        };
        Ok(CommitHeader { seq, epoch, instance, write_id, previous, records, fence })
    }
}

/// First line without its end.
fn header_line(body: &[u8]) -> Result<&[u8], String> {
    let unread = || oversize::reason(body).unwrap_or("it has no complete header").to_owned();
    sealed::first_line(body, COMMIT_HEADER_BYTES_MAX).ok_or_else(unread)
}

/// Number of line ends in a few bytes. One byte counts them, so that the compiler can use vectors.
fn line_ends(bytes: &[u8]) -> usize {
    bytes.iter().map(|byte| u8::from(*byte == b'\n')).sum::<u8>().into()
}

/// Checks what must hold of header and records together.
fn check_content(header: &CommitHeader, records: &[u8]) -> Result<(), String> {
    let CommitHeader { seq, records: count, fence, .. } = header;
    if *seq == Seq::NONE {
        return Err("commits are numbered from 1".into());
    }
    let lines: usize = records.chunks(128).map(line_ends).sum();
    if lines != *count as usize || records.last().is_some_and(|last| *last != b'\n') {
        return Err(format!("its records must be {count} lines, got {lines}"));
    }
    match fence {
        Some(_) if *count > 0 => return Err(format!("a fence must have no records, got {count}")),
        None if *count == 0 => return Err("a commit that is not a fence must have records".into()),
        Some(Fence { trusted_until, at }) => {
            // A time that cannot be written would be a log that cannot be read.
            if let Some(odd) =
                [trusted_until, at].into_iter().find(|time| time.to_string().parse().ok() != Some(**time))
            {
                return Err(format!("time {} of a fence cannot be written", odd.as_millis()));
            }
        }
        None => {}
    }
    let most = COMMIT_BYTES_MAX - COMMIT_HEADER_BYTES_MAX;
    if records.len() > most {
        return Err(format!("records must be at most {most} bytes, got {}", records.len()));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
