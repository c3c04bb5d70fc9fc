//! Bytes of a segment.
//!
//! ```text
//! {"format":1,"epoch":3,"first":41,"previous":"…","chain":[{"segment":"…","end":9120,"last":39}],"copied":310,"checksum":"…"}
//! commit 40     copy of the last commit before this segment, `copied` bytes, part of what the checksum covers
//! commit 41
//! commit 42
//! ```
//!
//! The *chain* names the segments before this one, and where the log ends in each: bytes behind that end were written by a
//! process that had lost the log. The last commit before this segment was visible when the log was taken over, but may never
//! have been synced, so it is copied (F6); every earlier one was synced before the next was written (F7).
//!
//! Behind the last commit of a segment there may be zeros: space that is reserved for the next commits, so that a sync need
//! not change the size of the file. They are dropped when a segment is read.
//!
//! A segment gets its name after its header is durable. So a name with a corrupt header cannot come from a crash or a power
//! loss, and is reported: to ignore it would drop every commit in it.

use bytes::Bytes;
use leasehold_core::journal::{Commit, CommitHash, LogPosition, Seq, commit, sealed};
use leasehold_core::limits::{COMMIT_BYTES_MAX, SEGMENT_HEADER_BYTES_MAX};
use leasehold_core::{Error, Result};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::{Path, PathBuf};

use super::corrupt;
use super::directory::LogDirectory;
use crate::log::continuity::mismatch;

/// Newest format that this program reads and writes.
const FORMAT: u32 = 1;

/// Name of a segment. The one with the highest epoch is the newest, not the one with the highest first commit (F9): a
/// process that lost its epoch may create its segment late, and then it begins further on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SegmentName {
    pub(super) epoch: u64,
    pub(super) first: Seq,
}

impl SegmentName {
    pub(super) fn parse(name: &str) -> Option<Self> {
        Self::parse_stem(name.strip_suffix(".log")?)
    }

    /// Parses the name of a segment that is not complete.
    pub(super) fn parse_new(name: &str) -> Option<Self> {
        Self::parse_stem(name.strip_suffix(".new")?)
    }

    fn parse_stem(stem: &str) -> Option<Self> {
        let (first, epoch) = stem.split_once('-')?;
        let name = Self { epoch: epoch.parse().ok()?, first: Seq::new(first.parse().ok()?) };
        (name.stem() == stem).then_some(name)
    }

    fn stem(self) -> String {
        format!("{:020}-{}", self.first.get(), self.epoch)
    }

    /// Name while its header is not durable.
    pub(super) fn new_name(self) -> String {
        self.stem() + ".new"
    }
}

impl fmt::Display for SegmentName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.log", self.stem())
    }
}

/// Segment of the chain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ChainLink {
    /// Name of the segment.
    pub(super) segment: String,
    /// Offset at which the log ends in it.
    pub(super) end: u64,
    /// Last commit before that offset.
    pub(super) last: Seq,
}

/// Header of a segment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SegmentHeader {
    format: u32,
    epoch: u64,
    /// Number of the first commit after the copied one.
    first: Seq,
    /// Hash of the commit before it.
    previous: CommitHash,
    pub(super) chain: Vec<ChainLink>,
    /// Length of the copied commit; 0 if there is none.
    copied: u64,
}

/// Format of a header, which is all that can be read of a newer one.
#[derive(Deserialize)]
struct FormatOnly {
    format: u32,
}

/// Returns the bytes with which a segment begins.
pub(super) fn encode(
    name: SegmentName,
    before: LogPosition,
    chain: Vec<ChainLink>,
    copied: &[u8],
) -> Vec<u8> {
    let header = SegmentHeader {
        format: FORMAT,
        epoch: name.epoch,
        first: name.first,
        previous: before.hash,
        chain,
        copied: copied.len() as u64,
    };
    let (mut bytes, _) = sealed::seal(&header, copied);
    bytes.extend_from_slice(copied);
    bytes
}

/// Segment that was read.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) name: SegmentName,
    pub(super) header: SegmentHeader,
    pub(super) frames: Frames,
    copied_at: usize,
    /// Offset of the first commit after the copied one.
    pub(super) frames_at: usize,
}

/// Bytes of a file, from an offset on.
#[derive(Debug)]
pub(super) struct Frames {
    /// Place of the file, for messages.
    path: PathBuf,
    /// Offset of the bytes, for messages.
    offset: u64,
    body: Bytes,
}

/// Commit in a segment.
#[derive(Debug)]
pub(super) struct Frame {
    pub(super) commit: Commit,
    /// Place after it.
    pub(super) end: usize,
}

impl Segment {
    /// Parses a file, or its begin up to the first commit.
    pub(super) fn parse(directory: &dyn LogDirectory, name: SegmentName, body: Bytes) -> Result<Self> {
        let body = without_reserve(body);
        let parsed = parse_header(name, &body).map_err(|why| corrupt(directory, &name.to_string(), &why));
        let (header, copied_at, frames_at) = parsed?;
        let frames = Frames::new(directory.path().join(name.to_string()), 0, body);
        Ok(Self { name, header, frames, copied_at, frames_at })
    }

    /// Position before its first commit after the copied one.
    pub(super) fn position(&self) -> LogPosition {
        LogPosition { seq: self.header.first.previous(), hash: self.header.previous }
    }

    /// Bytes of the copied commit; none if there is none.
    pub(super) fn copied(&self) -> Bytes {
        self.frames.body.slice(self.copied_at..self.frames_at)
    }

    /// Commit that the header contains.
    pub(super) fn copied_commit(&self) -> Result<Option<Commit>> {
        let (copied, place) = (self.copied(), self.frames.place(self.copied_at));
        if copied.is_empty() { Ok(None) } else { commit::decode(place, &copied).map(Some) }
    }
}

impl Frames {
    pub(super) fn new(path: PathBuf, offset: u64, body: Bytes) -> Self {
        Self { path, offset, body: without_reserve(body) }
    }

    /// Reads the commit at a place; none at the end. A segment of the chain has its end in the header of a later one; in
    /// the newest segment a torn commit is the end.
    pub(super) fn read(&self, at: usize, end: Option<u64>) -> Result<Option<Frame>> {
        let whole = self.body.len();
        let to = end.map_or(whole, |end| usize::try_from(end).unwrap_or(usize::MAX));
        if to > whole {
            return Err(
                self.damaged(&format!("it is truncated: {whole} bytes, but a later segment expects {to}"))
            );
        }
        if at >= to {
            return Ok(None);
        }
        let rest = self.body.slice(at..to);
        match commit::decode_first(self.place(at), &rest) {
            Ok((commit, length)) => Ok(Some(Frame { commit, end: at + length })),
            Err(_) if end.is_none() && is_torn(&rest) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(super) fn bytes(&self, from: usize, to: usize) -> Bytes {
        self.body.slice(from..to)
    }

    /// Number of bytes from a place on.
    pub(super) fn bytes_after(&self, at: usize) -> usize {
        self.body.len() - at
    }

    /// Error of a file that does not continue the log.
    pub(super) fn damaged(&self, why: &str) -> Error {
        mismatch(self.path.display(), why)
    }

    /// Place of a commit, for messages.
    pub(super) fn place(&self, at: usize) -> FramePlace<'_> {
        FramePlace { path: &self.path, offset: self.offset + at as u64 }
    }
}

/// Place in a file.
pub(super) struct FramePlace<'a> {
    path: &'a Path,
    offset: u64,
}

impl fmt::Display for FramePlace<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at byte {}", self.path.display(), self.offset)
    }
}

fn parse_header(name: SegmentName, body: &Bytes) -> Result<(SegmentHeader, usize, usize), String> {
    let line = sealed::first_line(body, SEGMENT_HEADER_BYTES_MAX).ok_or("it has no complete header")?;
    let unread = |error: serde_json::Error| format!("header: {error}");
    let FormatOnly { format } = serde_json::from_slice(line).map_err(unread)?;
    if format > FORMAT {
        return Err(format!(
            "format {format} is newer than the supported format {FORMAT}; upgrade leasehold"
        ));
    }
    let header: SegmentHeader = serde_json::from_slice(line).map_err(unread)?;
    let copied_at = line.len() + 1;
    let frames_at = usize::try_from(header.copied).ok().and_then(|copied| copied_at.checked_add(copied));
    let frames_at = frames_at.filter(|end| *end <= body.len()).ok_or("its copied commit is not complete")?;
    sealed::check(line, &body[copied_at..frames_at])?;
    if (SegmentName { epoch: header.epoch, first: header.first }) != name {
        return Err(format!("its header names epoch {} and commit {}", header.epoch, header.first));
    }
    Ok((header, copied_at, frames_at))
}

/// Drops the zeros of space that is reserved for later commits. A commit ends with a line end.
fn without_reserve(mut body: Bytes) -> Bytes {
    let length = body.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    body.truncate(length);
    body
}

/// True if the bytes behind the last complete commit of the newest segment may be the rest of one commit.
///
/// One commit is in flight at a time, and a process that fails to append or sync it writes no other. So nothing follows a
/// torn commit. If anything does, the commit was synced before that was written, and is corrupt. A corrupt bit in the very
/// last commit cannot be told from a torn one.
fn is_torn(rest: &Bytes) -> bool {
    let has_more = commit::stated_length(rest).is_some_and(|length| (rest.len() as u64) > length);
    // At any place, because the end of the torn commit may be missing, and with it the line end.
    let mut others = (1..rest.len()).filter(|at| rest[*at..].starts_with(b"{\"format\":"));
    !commit::is_newer(rest)
        && rest.len() <= COMMIT_BYTES_MAX
        && !has_more
        && !others.any(|at| commit::decode_first("", &rest.slice(at..)).is_ok())
}
