//! Follows a folder's log without the lease.

use leasehold_core::Result;
use leasehold_core::journal::{Commit, LogPosition};

use super::segment::{Frames, SegmentName};
use super::walk::{Walk, WalkStop, names, newest};
use super::{FolderLog, of};
use crate::log::Followed;

#[derive(Debug)]
pub(in crate::log) struct FolderReader {
    log: FolderLog,
    /// Position after the last commit that was read.
    position: LogPosition,
    /// Newest segment, and the offset up to which it was read; none if the next read begins with the chain.
    place: Option<(SegmentName, u64)>,
}

impl FolderReader {
    pub(super) fn new(log: FolderLog, from: LogPosition) -> Self {
        Self { log, position: from, place: None }
    }

    pub(in crate::log) fn position(&self) -> LogPosition {
        self.position
    }

    pub(in crate::log) async fn read(
        &mut self,
        on_commit: &mut (dyn FnMut(Commit) -> Result<()> + Send),
    ) -> Result<Followed> {
        let place = self.place.take();
        let mut walk = Walk::new(self.position, None, on_commit);
        let read = self.log.read_on(&mut walk, place).await;
        self.position = walk.passed();
        match read {
            Ok(place) => {
                self.place = place;
                Ok(Followed::Current)
            }
            Err(WalkStop::Mismatch(error)) => Ok(Followed::Mismatch(error)),
            Err(WalkStop::Failed(error)) => Err(error),
            // Without an epoch of its own a reader knows no newer one.
            Err(WalkStop::Newer) => Ok(Followed::Current),
        }
    }
}

impl FolderLog {
    /// Reads on at a place of the newest segment, or the whole log if there is a newer segment now. Returns the place of
    /// the end.
    async fn read_on(
        &self,
        walk: &mut Walk<'_>,
        place: Option<(SegmentName, u64)>,
    ) -> Result<Option<(SegmentName, u64)>, WalkStop> {
        if let Some((segment, offset)) = place
            && let Some(frames) = self.read_rest(segment, offset).await?
        {
            let last = walk.frames(&frames, 0, None)?;
            return Ok(Some((segment, offset + last.map_or(0, |(_, end)| end as u64))));
        }
        let end = self.walk_all(walk, None).await?;
        Ok(end.newest.map(|newest| (newest, end.offset)))
    }

    /// Reads a segment from an offset on; none if it is no longer the newest one.
    async fn read_rest(&self, segment: SegmentName, offset: u64) -> Result<Option<Frames>> {
        self.blocking(move |directory| {
            if newest(&names(directory)?) != Some(segment) {
                return Ok(None);
            }
            let name = segment.to_string();
            let body = directory.read(&name, offset, u64::MAX).map_err(of(directory))?;
            Ok(body.map(|body| Frames::new(directory.path().join(name), offset, body.into())))
        })
        .await
    }
}
