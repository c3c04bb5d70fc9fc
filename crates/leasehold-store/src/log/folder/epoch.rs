//! Epoch file of a folder's log, and the kernel lock of each epoch.
//!
//! The lock excludes other processes from writing the same epoch, and shows that its holder lives. A lock file may be
//! removed once a later epoch is durable, whether or not it is locked: a process that creates and locks it again finds the
//! later epoch when it reads under the lock, and stops (F2). The file of the next epoch must stay: two processes could lock
//! two files of one name, and write one epoch (F1). The file of the current epoch must stay, too: without it the holder
//! would seem to have ended.

use leasehold_core::{Error, Result};

use super::directory::{HeldLock, LogDirectory};
use super::segment::SegmentName;
use super::{corrupt, of};
use crate::mutant::breaks;

const EPOCH: &str = "epoch";

/// Maximum size of the epoch file: a number and a line end.
const EPOCH_BYTES_MAX: u64 = 64;

/// Epoch that this process may write.
#[derive(Debug)]
pub(super) struct TakenEpoch {
    pub(super) epoch: u64,
    /// None only if rule F1 is broken.
    pub(super) lock: Option<HeldLock>,
}

/// Name of the lock file of an epoch.
pub(super) fn lock_name(epoch: u64) -> String {
    format!("{EPOCH}-{epoch}.lock")
}

/// Epoch of a lock file, or of an epoch file that is not complete.
pub(super) fn parse_name(name: &str) -> Option<u64> {
    let rest = name.strip_prefix(EPOCH)?.strip_prefix('-')?;
    rest.strip_suffix(".lock").or_else(|| rest.strip_suffix(".new"))?.parse().ok()
}

/// Reads the epoch; 0 before the first takeover.
pub(super) fn read(directory: &dyn LogDirectory) -> Result<u64> {
    let Some(body) = directory.read(EPOCH, 0, EPOCH_BYTES_MAX).map_err(of(directory))? else { return Ok(0) };
    let text = std::str::from_utf8(&body).ok().and_then(|text| text.strip_suffix('\n'));
    let epoch = text.and_then(|text| text.parse::<u64>().ok().filter(|epoch| epoch.to_string() == text));
    epoch.ok_or_else(|| {
        let body = body.escape_ascii();
        let what = "the largest number after the `-` in the names `*.log` beside it";
        corrupt(
            directory,
            EPOCH,
            &format!("`{body}` is not a number; write {what} and a line end into `epoch`"),
        )
    })
}

/// Reads the epoch, which must be there if there are segments.
pub(super) fn check(directory: &dyn LogDirectory) -> Result<u64> {
    let found = read(directory)?;
    if found == 0 {
        check_unused(directory)?;
    }
    Ok(found)
}

/// Locks the next epoch; none if another process holds that lock, or has written the epoch already.
pub(super) fn lock_next(directory: &dyn LogDirectory) -> Result<Option<TakenEpoch>> {
    directory.ensure().map_err(of(directory))?;
    let found = check(directory)?;
    let epoch = found + 1;
    let lock = directory.try_lock(&lock_name(epoch)).map_err(of(directory))?;
    if lock.is_none() && !breaks("log-epoch-unlocked") {
        tracing::info!(epoch, directory = %directory.path().display(), "another process is taking the log over");
        return Ok(None);
    }
    // The lock of an old epoch is free when its holder was killed: the epoch would go back (F2).
    let is_next = read(directory)? == found || breaks("log-epoch-not-reread");
    Ok(is_next.then_some(TakenEpoch { epoch, lock }))
}

/// Writes the epoch, of which the caller holds the lock (F1), durably (F5): the file is complete before it is renamed.
pub(super) fn write(directory: &dyn LogDirectory, epoch: u64) -> Result<()> {
    let (new, is_durable) = (format!("{EPOCH}-{epoch}.new"), !breaks("log-epoch-not-durable"));
    let written = || {
        let mut file = directory.create(&new)?;
        file.append(format!("{epoch}\n").as_bytes())?;
        if is_durable {
            file.sync()?;
        }
        directory.rename(&new, EPOCH)?;
        if is_durable { directory.sync() } else { Ok(()) }
    };
    written().map_err(of(directory))
}

/// Refuses a log whose epoch file was removed: a new one would begin with epochs that are below those of its segments.
/// Refuses one whose commits are objects, too: writers of objects and of segments do not fence each other.
fn check_unused(directory: &dyn LogDirectory) -> Result<()> {
    let names = directory.names().map_err(of(directory))?;
    let is_object = |name: &&String| name.len() == 20 && name.bytes().all(|byte| byte.is_ascii_digit());
    if let Some(object) = names.iter().find(is_object) {
        let object = directory.path().join(object);
        let message = format!(
            "{} is a commit that was written as an object, as in a bucket or on a mount; open the queue from there",
            object.display()
        );
        return Err(Error::invalid(message));
    }
    match names.iter().filter_map(|name| SegmentName::parse(name)).max() {
        None => Ok(()),
        Some(newest) => {
            let why = format!("it is missing; write {} and a line end into `epoch`", newest.epoch);
            Err(corrupt(directory, EPOCH, &why))
        }
    }
}
