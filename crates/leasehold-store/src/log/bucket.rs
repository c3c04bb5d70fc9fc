//! Log in a bucket: one object per commit, `journal/0/log/{seq}`, put if absent.
//!
//! A put that is not answered, or refused, is resolved by [`Client::put`]: the slot contains our bytes → written; it is
//! absent → the same bytes again (B4, B5); it contains other bytes → lost. A timeout never leads to a wrong answer: it is an error whose outcome is unknown, and the writer is poisoned.
//!
//! A slot that is absent although a later one is not is a *gap*: no process of ours leaves one above the floor. A takeover
//! lists the log once before it puts its fence, so that the fence never fills a gap, which a backup could close; so does
//! the first read of a reader.

use bytes::Bytes;
use futures::{StreamExt, stream};
use leasehold_core::journal::{Commit, CommitHeader, LogPosition, Seq, commit};
use leasehold_core::keys::{JOURNAL_LOG, journal_commit, parse_journal_commit};
use leasehold_core::limits::SLOTS_AT_ONCE;
use leasehold_core::{Error, Kind, Result};
use std::collections::BTreeSet;

use super::continuity::{HistoryEnd, mismatch};
use super::{CommitOutcome, FencedLog, Followed, LogHolder, Replay, Storage, TakeOver, poisoned};
use crate::client::{Client, PutOutcome};
use crate::ledger::Purpose;
use crate::mutant::breaks;
use crate::store::{List, When};

#[derive(Debug, Clone)]
pub(super) struct BucketLog {
    pub(super) client: Client,
}

/// Content of a slot, judged by a process that reads on.
enum Slot {
    Continues(Commit),
    /// Written by the holder of our epoch or of a later one.
    Newer,
    Mismatch(Error),
}

/// Slot that was absent, judged by a list.
enum AbsentSlot {
    /// It is the end of the log.
    End,
    /// It was filled since.
    Filled,
    /// There are commits after it.
    Gap(Error),
}

/// End of a read.
enum ReadEnd {
    /// The slot after the last commit is absent.
    Absent,
    Newer,
    Mismatch(Error),
}

impl BucketLog {
    pub(super) fn new(client: Client) -> Self {
        Self { client }
    }

    pub(super) fn reader(&self, from: LogPosition) -> BucketReader {
        BucketReader { log: self.clone(), end: HistoryEnd::new(from), is_listed: false }
    }

    /// Replays, and puts the fence in the first slot that is absent. One that was filled meanwhile is replayed.
    pub(super) async fn take_over(&self, replay: Replay<'_>) -> Result<TakeOver> {
        let Replay { holder, from, fence, on_commit } = replay;
        let mut end = HistoryEnd::new(from);
        loop {
            match self.read(&mut end, Some(holder.epoch), on_commit).await? {
                ReadEnd::Absent => {}
                ReadEnd::Newer => return Ok(TakeOver::Superseded),
                ReadEnd::Mismatch(error) => return Ok(TakeOver::Mismatch(error)),
            }
            match self.judge_absent(end.position.seq.next()).await? {
                AbsentSlot::End => {}
                AbsentSlot::Filled => continue,
                AbsentSlot::Gap(error) => return Ok(TakeOver::Mismatch(error)),
            }
            let header = CommitHeader { fence: Some(fence()?), ..self.header(holder, end.position, 0) };
            let encoded = commit::encode(&header, &[])?;
            if self.put(header.seq, encoded.body).await?.is_none() {
                let put = Commit { header, records: Bytes::new(), hash: encoded.hash };
                end.position = put.position();
                on_commit(put)?;
                let writer = BucketWriter {
                    log: self.clone(),
                    holder: holder.clone(),
                    end: end.position,
                    is_poisoned: false,
                };
                return Ok(TakeOver::Fenced(FencedLog::new(Storage::Bucket(writer))));
            }
        }
    }

    /// Puts a commit. Returns the content of its slot if that is another.
    async fn put(&self, seq: Seq, body: Bytes) -> Result<Option<Bytes>> {
        let put = self.client.put(Purpose::Journal, &journal_commit(seq), body, &When::Absent).await?;
        Ok(match put {
            PutOutcome::Written(_) => None,
            PutOutcome::Superseded(found) | PutOutcome::Lost(Some(found)) => Some(found.body),
            // Impossible: a put into an absent slot is sent again. No commit has these bytes.
            PutOutcome::Lost(None) => Some(Bytes::new()),
        })
    }

    /// Reads commits in order until a slot is absent.
    ///
    /// Several slots are read at once. That is safe: the content of a slot never changes, and an absent one only ends the
    /// read. Its put decides.
    async fn read(
        &self,
        end: &mut HistoryEnd,
        below_epoch: Option<u64>,
        on_commit: &mut (dyn FnMut(Commit) -> Result<()> + Send),
    ) -> Result<ReadEnd> {
        let mut at_once = 1;
        loop {
            let first = end.position.seq.next();
            let slots = (0..at_once as u64).map(|more| self.body(Seq::new(first.get().saturating_add(more))));
            let mut bodies = futures::future::join_all(slots).await.into_iter();
            // Not the first error, but the first slot that is not there, ends the read.
            while let Some(body) = bodies.next() {
                let Some(body) = body? else {
                    let absent = end.position.seq.next();
                    let later = bodies.position(|later| matches!(later, Ok(Some(_))));
                    let Some(later) = later else { return Ok(ReadEnd::Absent) };
                    // Both may have been written since the first one was read.
                    if self.body(absent).await?.is_some() {
                        break;
                    }
                    let later = Seq::new(absent.get() + 1 + later as u64);
                    return Ok(ReadEnd::Mismatch(missing(absent, later)));
                };
                match judge(end, below_epoch, &body) {
                    Slot::Continues(commit) => on_commit(commit)?,
                    Slot::Newer => return Ok(ReadEnd::Newer),
                    Slot::Mismatch(error) => return Ok(ReadEnd::Mismatch(error)),
                }
            }
            at_once = (at_once * 2).min(SLOTS_AT_ONCE);
        }
    }

    /// Judges a slot that was absent by a list of the slots after it. Requests: 1 list; 1 get if there are any.
    async fn judge_absent(&self, seq: Seq) -> Result<AbsentSlot> {
        let listed = self.first_listed(seq.previous()).await?;
        Ok(match listed {
            None => AbsentSlot::End,
            Some(listed) if listed == seq => AbsentSlot::Filled,
            // The list may have passed the slot just before it was filled.
            Some(_) if self.body(seq).await?.is_some() => AbsentSlot::Filled,
            Some(later) => AbsentSlot::Gap(missing(seq, later)),
        })
    }

    /// First commit after `seq` that a list shows. Requests: 1 list.
    async fn first_listed(&self, seq: Seq) -> Result<Option<Seq>> {
        let list = List { limit: 1, ..List::all(JOURNAL_LOG).after(journal_commit(seq)) };
        let page = self.client.list(Purpose::Journal, &list).await?;
        let Some(listed) = page.entries.first() else { return Ok(None) };
        // Writers of objects and of segments do not fence each other, and neither would find the commits of the other.
        let seq = parse_journal_commit(&listed.key).ok_or_else(|| {
            Error::invalid(format!(
                "`{}` belongs to a log that was written as files, by a host on which this folder is not a mount; open the \
                 queue on that host",
                listed.key
            ))
        })?;
        Ok(Some(seq))
    }

    /// True if there is no commit. Requests: 1 list.
    pub(super) async fn is_empty(&self) -> Result<bool> {
        Ok(self.first_listed(Seq::NONE).await?.is_none())
    }

    pub(super) async fn body(&self, seq: Seq) -> Result<Option<Bytes>> {
        let found = self.client.get(Purpose::Journal, &journal_commit(seq)).await?;
        Ok(found.map(|object| object.body))
    }

    fn header(&self, holder: &LogHolder, end: LogPosition, records: u32) -> CommitHeader {
        CommitHeader {
            seq: end.seq.next(),
            epoch: holder.epoch,
            instance: holder.instance.clone(),
            write_id: self.client.write_id(),
            previous: end.hash,
            records,
            fence: None,
        }
    }
}

/// Error of a gap in the log.
fn missing(seq: Seq, later: Seq) -> Error {
    let message = format!("`{}` is missing, although commit {later} exists", journal_commit(seq));
    Error::new(Kind::Corrupt, message)
}

/// Judges the slot after `end`, and moves behind it if it continues the history.
fn judge(end: &mut HistoryEnd, below_epoch: Option<u64>, body: &Bytes) -> Slot {
    let key = format!("`{}`", journal_commit(end.position.seq.next()));
    let commit = match commit::decode(&key, body) {
        Ok(commit) => commit,
        Err(error) => return Slot::Mismatch(error),
    };
    if below_epoch.is_some_and(|epoch| commit.header.epoch >= epoch) && !breaks("log-newer-epoch-replayed") {
        return Slot::Newer;
    }
    match end.advance(&commit) {
        Ok(()) => Slot::Continues(commit),
        Err(why) => Slot::Mismatch(mismatch(key, &why)),
    }
}

#[derive(Debug)]
pub(super) struct BucketWriter {
    log: BucketLog,
    holder: LogHolder,
    /// Position after the last confirmed commit.
    end: LogPosition,
    is_poisoned: bool,
}

impl BucketWriter {
    pub(super) fn position(&self) -> LogPosition {
        self.end
    }

    pub(super) fn trimmer(&self) -> BucketTrimmer {
        BucketTrimmer { log: self.log.clone() }
    }

    pub(super) async fn commit(&mut self, records: &[u8], count: u32) -> Result<CommitOutcome> {
        if self.is_poisoned {
            return Err(poisoned());
        }
        let header = self.log.header(&self.holder, self.end, count);
        let encoded = commit::encode(&header, records)?;
        // Until the outcome is certain: the caller may drop this call.
        self.is_poisoned = true;
        match self.log.put(header.seq, encoded.body).await {
            Ok(None) => {}
            Ok(Some(found)) => return Ok(self.judge_other(header.seq, &found)),
            Err(error) if error.outcome_is_unknown() && breaks("log-unanswered-is-committed") => {}
            Err(error) => {
                self.is_poisoned = error.outcome_is_unknown() && !breaks("log-not-poisoned");
                return Err(error);
            }
        }
        self.end = LogPosition { seq: header.seq, hash: encoded.hash };
        self.is_poisoned = false;
        Ok(CommitOutcome::Committed(header.seq))
    }

    pub(super) async fn is_current(&mut self) -> Result<bool> {
        if self.is_poisoned {
            return Err(poisoned());
        }
        let next = self.end.seq.next();
        let Some(found) = self.log.body(next).await? else { return Ok(true) };
        self.is_poisoned = true;
        match self.judge_other(next, &found) {
            CommitOutcome::Mismatch(error) => Err(error),
            CommitOutcome::Superseded | CommitOutcome::Committed(_) => Ok(false),
        }
    }

    /// Judges a slot that has content which is not ours. It has a later epoch, unless the log is corrupt: the last slot
    /// that an earlier broker can fill is the one of our fence.
    fn judge_other(&self, seq: Seq, body: &Bytes) -> CommitOutcome {
        let key = format!("`{}`", journal_commit(seq));
        match commit::decode(&key, body) {
            Ok(found) if found.header.epoch > self.holder.epoch => CommitOutcome::Superseded,
            Ok(found) => {
                let (theirs, ours) = (found.header.epoch, self.holder.epoch);
                let why = format!("it has epoch {theirs}, but a fence of epoch {ours} precedes it");
                CommitOutcome::Mismatch(mismatch(key, &why))
            }
            Err(error) => CommitOutcome::Mismatch(error),
        }
    }
}

#[derive(Debug, Clone)]
pub(super) struct BucketTrimmer {
    log: BucketLog,
}

impl BucketTrimmer {
    pub(super) async fn delete_below(
        &self,
        floor: Seq,
        deleted_to: Seq,
        fences: &BTreeSet<Seq>,
    ) -> Result<u64> {
        let numbers = (deleted_to.next().get()..floor.get()).map(Seq::new);
        let numbers = numbers.filter(|seq| !fences.contains(seq) || breaks("log-fence-deleted"));
        let client = &self.log.client;
        let mut deletions = stream::iter(numbers)
            .map(|seq| async move { client.delete(Purpose::Journal, &journal_commit(seq)).await })
            .buffer_unordered(SLOTS_AT_ONCE);
        let mut deleted = 0;
        while let Some(done) = deletions.next().await {
            done?;
            deleted += 1;
        }
        Ok(deleted)
    }
}

#[derive(Debug)]
pub(super) struct BucketReader {
    log: BucketLog,
    end: HistoryEnd,
    /// True if a list has shown no gap at the end of the first read.
    is_listed: bool,
}

impl BucketReader {
    pub(super) fn position(&self) -> LogPosition {
        self.end.position
    }

    pub(super) async fn read(
        &mut self,
        on_commit: &mut (dyn FnMut(Commit) -> Result<()> + Send),
    ) -> Result<Followed> {
        loop {
            if let ReadEnd::Mismatch(error) = self.log.read(&mut self.end, None, on_commit).await? {
                return Ok(Followed::Mismatch(error));
            }
            // Without an epoch of its own a reader knows no newer one: the slot is absent.
            if self.is_listed {
                return Ok(Followed::Current);
            }
            match self.log.judge_absent(self.end.position.seq.next()).await? {
                AbsentSlot::End => self.is_listed = true,
                AbsentSlot::Filled => {}
                AbsentSlot::Gap(error) => return Ok(Followed::Mismatch(error)),
            }
        }
    }
}
