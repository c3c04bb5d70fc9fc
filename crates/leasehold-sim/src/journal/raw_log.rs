//! The log as raw objects: one chain of commits. Parsed without the code of the log, except for the checksum.

use bytes::Bytes;
use leasehold_core::StoreTime;
use leasehold_core::journal::commit;
use serde_json::Value;
use std::collections::BTreeMap;

use crate::bucket::{BucketChange, StoredObject};
use crate::queue::raw::Raw;

const LEASE: &str = "journal/0/lease.json";
const LOG: &str = "journal/0/log/";

/// The chain of commits, and the lease.
#[derive(Debug, Default)]
pub(super) struct RawLog {
    /// Every commit that was ever put at the end of the chain, by its number.
    chain: BTreeMap<u64, ChainLink>,
    /// Holder of each epoch, by the lease.
    holders: BTreeMap<u64, String>,
    lease: Option<Raw>,
}

#[derive(Debug, Clone, PartialEq)]
struct ChainLink {
    checksum: String,
    epoch: u64,
    instance: String,
    is_fence: bool,
}

/// A commit that continues the chain.
#[derive(Debug)]
pub(super) struct RawCommit {
    pub(super) seq: u64,
    /// Times of a fence.
    pub(super) fence: Option<RawFence>,
    /// Lines with the records.
    pub(super) lines: Bytes,
}

/// Times of a fence, in milliseconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct RawFence {
    pub(super) trusted_until: i64,
    pub(super) at: i64,
}

impl RawLog {
    /// Checks a change of an object. Returns a commit that continues the chain.
    pub(super) fn change(&mut self, change: &BucketChange) -> Result<Option<RawCommit>, String> {
        if change.key == LEASE {
            return self.lease_changed(change.after.as_ref()).map(|()| None);
        }
        let Some(seq) = change.key.strip_prefix(LOG) else { return Ok(None) };
        let seq: u64 = seq.parse().map_err(|_| format!("log: `{}` is not a slot", change.key))?;
        match (&change.before, &change.after) {
            (None, Some(after)) => self.put(seq, &after.object.body),
            (Some(_), None) => self.deleted(seq).map(|()| None),
            _ => Err(format!("P1: commit {seq} was overwritten")),
        }
    }

    /// Snapshot that the lease names: the number of its last commit.
    pub(super) fn snapshot(&self) -> u64 {
        self.lease.as_ref().and_then(|lease| lease.0["snapshot"]["seq"].as_u64()).unwrap_or(0)
    }

    /// Number of commits.
    pub(super) fn len(&self) -> u64 {
        self.chain.len() as u64
    }

    /// Number of fences: takeovers that succeeded.
    pub(super) fn fences(&self) -> usize {
        self.chain.values().filter(|link| link.is_fence).count()
    }

    fn lease_changed(&mut self, after: Option<&StoredObject>) -> Result<(), String> {
        let lease = Raw::read(after.ok_or("P3: the lease on the journal was deleted")?)?;
        if let Some(before) = &self.lease
            && lease.number("floor") < before.number("floor")
        {
            return Err(format!("P1: the floor of the log goes back to {}", lease.number("floor")));
        }
        self.holders.insert(lease.number("epoch"), lease.text("instance").to_owned());
        self.lease = Some(lease);
        Ok(())
    }

    /// Only commits that the lease allows to delete may be deleted, and fences never.
    fn deleted(&self, seq: u64) -> Result<(), String> {
        let floor = self.lease.as_ref().map_or(0, |lease| lease.number("floor"));
        match self.chain.get(&seq) {
            Some(link) if link.is_fence => Err(format!("P1: fence {seq} was deleted")),
            _ if seq >= floor => Err(format!("P1: commit {seq} was deleted, the floor is {floor}")),
            _ => Ok(()),
        }
    }

    fn put(&mut self, seq: u64, body: &Bytes) -> Result<Option<RawCommit>, String> {
        let (link, previous, commit) = read(seq, body)?;
        let end = self.len();
        if let Some(known) = self.chain.get(&seq) {
            // Its slot was empty, so it was deleted before. A late request may fill it again: nothing reads it.
            return if *known == link || link.is_fence {
                Ok(None)
            } else {
                Err(format!("P1: commit {seq} was replaced after it was deleted"))
            };
        }
        if seq != end + 1 {
            return Err(format!("P1: commit {seq} is put after a gap, the log ends at {end}"));
        }
        if let Some(last) = self.chain.get(&end)
            && last.checksum != previous
        {
            return Err(format!("P1: commit {seq} does not continue the one before it"));
        }
        self.check_writer(seq, &link)?;
        self.chain.insert(seq, link);
        Ok(Some(commit))
    }

    /// An epoch begins with a fence of its holder, and ends with the next one.
    fn check_writer(&self, seq: u64, link: &ChainLink) -> Result<(), String> {
        let ChainLink { epoch, instance, .. } = link;
        if self.holders.get(epoch) != Some(instance) {
            return Err(format!("P3: commit {seq} is of {instance}, which never held epoch {epoch}"));
        }
        let last = self.chain.get(&(seq - 1));
        let last_epoch = last.map_or(0, |last| last.epoch);
        if *epoch < last_epoch {
            return Err(format!("P3: commit {seq} has epoch {epoch}, behind a fence of epoch {last_epoch}"));
        }
        let continues = last.is_some_and(|last| (last.epoch, &last.instance) == (*epoch, instance));
        if link.is_fence == continues {
            return Err(format!("P3: commit {seq} of epoch {epoch} is a fence too many, or lacks one"));
        }
        Ok(())
    }
}

/// Parses a commit: its link, the checksum of the commit before it, and its content.
fn read(seq: u64, body: &Bytes) -> Result<(ChainLink, String, RawCommit), String> {
    let wrong = |why: &str| format!("P1: commit {seq} is corrupt: {why}");
    commit::decode(format!("commit {seq}"), body).map_err(|error| wrong(&error.to_string()))?;
    let end = body.iter().position(|byte| *byte == b'\n').ok_or_else(|| wrong("no header"))?;
    let header = serde_json::from_slice(&body[..end]).map(Raw).map_err(|error| wrong(&error.to_string()))?;
    let lines = body.slice(end + 1..);
    let records = lines.split(|byte| *byte == b'\n').count() as u64 - 1;
    if (header.number("seq"), header.number("records")) != (seq, records) {
        return Err(wrong(&header.0.to_string()));
    }
    let fence = header.time("trusted_until").zip(header.time("at"));
    let fence = fence.map(|(trusted_until, at)| RawFence { trusted_until, at });
    if fence.is_some() != (records == 0) {
        return Err(wrong("a fence has no records, and every other commit has some"));
    }
    let link = ChainLink {
        checksum: header.text("checksum").to_owned(),
        epoch: header.number("epoch"),
        instance: header.text("instance").to_owned(),
        is_fence: fence.is_some(),
    };
    Ok((link, header.text("previous").to_owned(), RawCommit { seq, fence, lines }))
}

/// Parses a line of a commit.
pub(super) fn record(line: &[u8]) -> Result<Raw, String> {
    serde_json::from_slice(line).map(Raw).map_err(|error| format!("a record is not JSON: {error}"))
}

/// Parses a time.
pub(super) fn millis(time: &Value) -> Option<i64> {
    time.as_str()?.parse::<StoreTime>().ok().map(StoreTime::as_millis)
}
