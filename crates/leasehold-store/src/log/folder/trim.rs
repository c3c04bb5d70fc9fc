//! Deletes segments that a snapshot covers, and files that earlier takeovers have left behind.
//!
//! The caller is, or was, a broker that served. So its own epoch was unchanged after its first segment was created (F12) and
//! its fence appended (F4), and every later broker has found that segment, or a newer one of this epoch: its chain continues
//! the one that is read here.
//! From this follows what may be deleted, even by a process that has lost the log since:
//!
//! * A segment of the chain whose last commit is below the floor. The floor is in the lease, so later brokers replay from
//!   there on, and skip the segment.
//! * A segment of an earlier epoch that is not in the chain. It was created late, by a process that had lost the log, or has
//!   no commit but one that was copied. No later chain names it, because all of them continue ours. Its process may still append to it, and finds
//!   another epoch after the sync.
//! * Lock files and incomplete files of earlier epochs: see `epoch`.
//!
//! Segments of this epoch and of later ones stay unless the chain names them. Nothing is synced: a power loss brings back a
//! file that may be deleted again.

use leasehold_core::Result;
use leasehold_core::journal::Seq;
use leasehold_core::limits::{COMMIT_BYTES_MAX, SEGMENT_HEADER_BYTES_MAX};

use super::directory::LogDirectory;
use super::segment::{ChainLink, Segment, SegmentName};
use super::walk::{names, newest};
use super::{FolderLog, epoch, of};

#[derive(Debug, Clone)]
pub(in crate::log) struct FolderTrimmer {
    log: FolderLog,
    epoch: u64,
}

impl FolderTrimmer {
    pub(super) fn new(log: FolderLog, epoch: u64) -> Self {
        Self { log, epoch }
    }

    pub(in crate::log) async fn delete_below(&self, floor: Seq) -> Result<u64> {
        let epoch = self.epoch;
        self.log.blocking(move |directory| delete_below(directory, epoch, floor)).await
    }
}

/// Returns the number of deleted segments.
fn delete_below(directory: &dyn LogDirectory, epoch: u64, floor: Seq) -> Result<u64> {
    let names = names(directory)?;
    let of_epoch = |name: &&String| SegmentName::parse(name).is_some_and(|name| name.epoch == epoch);
    let own: Vec<_> = names.iter().filter(of_epoch).cloned().collect();
    // None if a later broker has deleted them.
    let Some(newest) = newest(&own) else { return Ok(0) };
    let Some(chain) = read_chain(directory, newest)? else { return Ok(0) };
    let mut deleted = 0;
    for name in &names {
        let is_segment = SegmentName::parse(name).is_some();
        if is_segment && is_unused_segment(name, &chain, epoch, floor) || is_left_behind(name, epoch) {
            directory.remove(name).map_err(of(directory))?;
            deleted += u64::from(is_segment);
        }
    }
    Ok(deleted)
}

fn read_chain(directory: &dyn LogDirectory, name: SegmentName) -> Result<Option<Vec<ChainLink>>> {
    let bytes_max = SEGMENT_HEADER_BYTES_MAX + COMMIT_BYTES_MAX;
    let body = directory.read(&name.to_string(), 0, bytes_max as u64).map_err(of(directory))?;
    body.map(|body| Ok(Segment::parse(directory, name, body.into())?.header.chain)).transpose()
}

fn is_unused_segment(name: &str, chain: &[ChainLink], epoch: u64, floor: Seq) -> bool {
    match chain.iter().find(|link| link.segment == name) {
        Some(link) => link.last < floor,
        None => SegmentName::parse(name).is_some_and(|name| name.epoch < epoch),
    }
}

/// True for files of earlier takeovers that are not segments.
fn is_left_behind(name: &str, epoch: u64) -> bool {
    let is_new_lock = name.starts_with("lock-") && name.strip_suffix(".new").is_some();
    let of_epoch = epoch::parse_name(name).or_else(|| SegmentName::parse_new(name).map(|name| name.epoch));
    is_new_lock || of_epoch.is_some_and(|of_epoch| of_epoch < epoch)
}
