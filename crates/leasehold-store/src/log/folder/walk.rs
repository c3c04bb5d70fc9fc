//! Reads the segments of a log in order: those of the chain of the newest segment, and that segment itself.

use bytes::Bytes;
use leasehold_core::journal::{Commit, LogPosition};
use leasehold_core::{Error, Kind, Result};

use super::segment::{ChainLink, Frame, FramePlace, Frames, Segment, SegmentName};
use super::{FolderLog, corrupt, of};
use crate::log::continuity::{HistoryEnd, mismatch};
use crate::mutant::breaks;

/// Number of attempts to read the newest segment. Between the list and the read a newer one may have been created, and the
/// other deleted.
const NEWEST_READS_MAX: u32 = 10;

/// Reason to stop reading.
#[derive(Debug)]
pub(super) enum WalkStop {
    /// A newer broker has written.
    Newer,
    /// The log does not continue the history.
    Mismatch(Error),
    /// A system call, or the caller, failed.
    Failed(Error),
}

impl From<Error> for WalkStop {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// Commits that are read, and their recipient.
pub(super) struct Walk<'a> {
    from: LogPosition,
    /// Epoch of our lease: a commit of it, or of a later one, is not ours.
    below_epoch: Option<u64>,
    on_commit: &'a mut (dyn FnMut(Commit) -> Result<()> + Send),
    /// Last commit that was read, which may be before `from`; none before the first one.
    end: Option<HistoryEnd>,
    /// Last commit that was passed on, or `from`.
    passed: LogPosition,
}

/// End of a log.
#[derive(Debug)]
pub(super) struct LogEnd {
    /// Position after the last commit.
    pub(super) position: LogPosition,
    /// Newest segment; none if there are no segments.
    pub(super) newest: Option<SegmentName>,
    /// Offset after the last commit of the newest segment.
    pub(super) offset: u64,
    /// Chain for the next segment: up to, and without, the last commit.
    pub(super) chain: Vec<ChainLink>,
    /// That last commit.
    pub(super) copied: Bytes,
}

impl<'a> Walk<'a> {
    pub(super) fn new(
        from: LogPosition,
        below_epoch: Option<u64>,
        on_commit: &'a mut (dyn FnMut(Commit) -> Result<()> + Send),
    ) -> Self {
        Self { from, below_epoch, on_commit, end: None, passed: from }
    }

    /// Position after the last commit that was passed on.
    pub(super) fn passed(&self) -> LogPosition {
        self.passed
    }

    /// Passes a commit on that follows what was read.
    pub(super) fn pass_on(&mut self, commit: Commit) -> Result<()> {
        self.passed = commit.position();
        (self.on_commit)(commit)
    }

    /// Reads a segment up to `end`, and returns the places before and after its last commit behind the copied one.
    fn segment(&mut self, segment: &Segment, end: Option<u64>) -> Result<Option<(usize, usize)>, WalkStop> {
        if let Some(copied) = segment.copied_commit().map_err(WalkStop::Mismatch)? {
            let before = LogPosition { seq: copied.header.seq.previous(), hash: copied.header.previous };
            self.begin_at(segment, before)?;
            self.commit(copied, &segment.frames.place(0))?;
        }
        self.begin_at(segment, segment.position())?;
        self.frames(&segment.frames, segment.frames_at, end)
    }

    /// Reads commits from a place on, and returns the places before and after the last one.
    pub(super) fn frames(
        &mut self,
        frames: &Frames,
        mut at: usize,
        end: Option<u64>,
    ) -> Result<Option<(usize, usize)>, WalkStop> {
        let mut last = None;
        while let Some(Frame { commit, end: next }) = frames.read(at, end).map_err(WalkStop::Mismatch)? {
            self.commit(commit, &frames.place(at))?;
            last = Some((at, next));
            at = next;
        }
        Ok(last)
    }

    /// Checks that a segment begins where the last one has ended.
    fn begin_at(&mut self, segment: &Segment, before: LogPosition) -> Result<(), WalkStop> {
        let (at, from) = (before.seq, self.from.seq);
        match self.end {
            Some(end) if end.position != before => {
                Err(format!("it continues commit {at}, and the log before it ends with {}", end.position.seq))
            }
            None if at > from => {
                Err(format!("it begins after commit {at}, and those after {from} are missing"))
            }
            None if at == from && before.hash != self.from.hash => {
                Err(format!("commit {at} is not the one of the snapshot: the hash differs"))
            }
            None => {
                self.end = Some(HistoryEnd::new(before));
                Ok(())
            }
            Some(_) => Ok(()),
        }
        .map_err(|why| WalkStop::Mismatch(segment.frames.damaged(&why)))
    }

    fn commit(&mut self, commit: Commit, place: &FramePlace<'_>) -> Result<(), WalkStop> {
        let is_newer = self.below_epoch.is_some_and(|epoch| commit.header.epoch >= epoch);
        if is_newer && !breaks("log-newer-epoch-replayed") {
            return Err(WalkStop::Newer);
        }
        let end = self.end.get_or_insert(HistoryEnd::new(self.from));
        let stopped = |why: String| WalkStop::Mismatch(mismatch(place, &why));
        end.advance(&commit).map_err(stopped)?;
        let (seq, from) = (commit.header.seq, self.from);
        if seq == from.seq && commit.hash != from.hash {
            return Err(stopped(format!("commit {seq} is not the one of the snapshot: the hash differs")));
        }
        if seq > from.seq { self.pass_on(commit).map_err(WalkStop::Failed) } else { Ok(()) }
    }
}

impl FolderLog {
    /// Reads all commits after `from`. With the epoch of a takeover in progress a segment of a later epoch stops it.
    pub(super) async fn walk_all(&self, walk: &mut Walk<'_>, taken: Option<u64>) -> Result<LogEnd, WalkStop> {
        let Some(newest) = self.read_newest().await? else { return self.empty_end(walk) };
        if let Some(taken) = taken.filter(|taken| newest.name.epoch >= *taken) {
            return Err(self.later_segment(newest.name, taken).await?);
        }
        for link in &newest.header.chain {
            // Segments that the snapshot covers may be deleted.
            if link.last <= walk.from.seq {
                continue;
            }
            let segment = self.read_link(link).await?;
            walk.segment(&segment, Some(link.end))?;
            if walk.end.is_some_and(|end| end.position.seq != link.last) {
                let why = format!("its last commit is not {}, as a later segment says", link.last);
                return Err(WalkStop::Mismatch(segment.frames.damaged(&why)));
            }
        }
        let last = walk.segment(&newest, None)?;
        if taken.is_some() {
            report_torn(&newest, last);
        }
        end_of(walk, &newest, last)
    }

    fn empty_end(&self, walk: &Walk<'_>) -> Result<LogEnd, WalkStop> {
        if walk.from != LogPosition::START {
            let why = format!("it has no segments, and the snapshot covers commit {}", walk.from.seq);
            return Err(WalkStop::Mismatch(corrupt(&*self.directory, "", &why)));
        }
        let position = LogPosition::START;
        Ok(LogEnd { position, newest: None, offset: 0, chain: Vec::new(), copied: Bytes::new() })
    }

    /// Reads the newest segment; none if there is none.
    async fn read_newest(&self) -> Result<Option<Segment>, WalkStop> {
        for _ in 0..NEWEST_READS_MAX {
            let Some(name) = self.blocking(|directory| Ok(newest(&names(directory)?))).await? else {
                return Ok(None);
            };
            if let Some(segment) = self.read_segment(name).await? {
                return Ok(Some(segment));
            }
        }
        let path = self.directory.path().display();
        let message = format!(
            "the newest segment in {path} was replaced during each of {NEWEST_READS_MAX} reads; try again"
        );
        Err(WalkStop::Failed(Error::new(Kind::Unavailable, message)))
    }

    async fn read_link(&self, link: &ChainLink) -> Result<Segment, WalkStop> {
        let missing = || WalkStop::Mismatch(corrupt(&*self.directory, &link.segment, "it is missing"));
        let name = SegmentName::parse(&link.segment).ok_or_else(missing)?;
        self.read_segment(name).await?.ok_or_else(missing)
    }

    async fn read_segment(&self, name: SegmentName) -> Result<Option<Segment>, WalkStop> {
        let read = self.blocking(move |directory| {
            let body = directory.read(&name.to_string(), 0, u64::MAX).map_err(of(directory))?;
            Ok(body.map(|body| Segment::parse(directory, name, body.into())))
        });
        read.await?.transpose().map_err(WalkStop::Mismatch)
    }

    /// Judges a segment that is newer than the epoch that we have written.
    async fn later_segment(&self, name: SegmentName, taken: u64) -> Result<WalkStop> {
        if !self.is_epoch(taken).await? {
            return Ok(WalkStop::Newer);
        }
        let why = format!(
            "it has epoch {0}, but by the file `epoch` beside it the last epoch was {1}; write {0} into `epoch`",
            name.epoch,
            taken.saturating_sub(1)
        );
        Ok(WalkStop::Mismatch(corrupt(&*self.directory, &name.to_string(), &why)))
    }
}

/// End of the log, for the header of the next segment.
fn end_of(walk: &Walk<'_>, newest: &Segment, last: Option<(usize, usize)>) -> Result<LogEnd, WalkStop> {
    let position = walk.end.map_or(newest.position(), |end| end.position);
    if position.seq < walk.from.seq {
        let why = format!("it ends with commit {}, before {}", position.seq, walk.from.seq);
        return Err(WalkStop::Mismatch(newest.frames.damaged(&why)));
    }
    let mut chain = newest.header.chain.clone();
    let link = |end: usize, last| ChainLink { segment: newest.name.to_string(), end: end as u64, last };
    let (copied, offset) = match last {
        // A segment without commits is skipped, and its header carried over.
        None => (newest.copied(), newest.frames_at),
        Some((_, after)) if breaks("log-frame-not-copied") => {
            chain.push(link(after, position.seq));
            (Bytes::new(), after)
        }
        Some((before, after)) => {
            let has_others = before > newest.frames_at || !newest.copied().is_empty();
            if has_others {
                chain.push(link(before, position.seq.previous()));
            }
            (newest.frames.bytes(before, after), after)
        }
    };
    Ok(LogEnd { position, newest: Some(newest.name), offset: offset as u64, chain, copied })
}

fn report_torn(newest: &Segment, last: Option<(usize, usize)>) {
    let end = last.map_or(newest.frames_at, |(_, after)| after);
    let (place, bytes) = (newest.frames.place(end), newest.frames.bytes_after(end));
    if bytes > 0 {
        tracing::warn!(%place, bytes, "ignored an incomplete commit at the end of the log");
    }
}

/// Names in the directory of a log.
pub(super) fn names(directory: &dyn super::LogDirectory) -> Result<Vec<String>> {
    directory.names().map_err(of(directory))
}

/// Newest of the segments among these names (F9).
pub(super) fn newest(names: &[String]) -> Option<SegmentName> {
    let segments = names.iter().filter_map(|name| SegmentName::parse(name));
    if breaks("log-newest-by-first") {
        return segments.max_by_key(|name| (name.first, name.epoch));
    }
    segments.max()
}
