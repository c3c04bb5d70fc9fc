//! Faults of a log, for a check by an operator: all parts that are missing or corrupt, not only the first.

use futures::{StreamExt, TryStreamExt, stream};
use leasehold_core::journal::{Commit, LogPosition, Seq, commit};
use leasehold_core::keys::{JOURNAL_LOG, journal_commit, parse_journal_commit};
use leasehold_core::limits::SLOTS_AT_ONCE;
use leasehold_core::{Error, Kind, Result};
use std::collections::BTreeSet;

use super::Followed;
use super::bucket::BucketLog;
use super::continuity::{HistoryEnd, mismatch};
use super::folder::FolderLog;
use crate::ledger::Purpose;
use crate::store::List;

/// Part of a log that is missing or corrupt.
#[derive(Debug)]
pub struct LogFault {
    /// Key of the commit; in a folder the prefix of the log, whose segment the error names.
    pub key: String,
    /// Description, which names the commit or the segment.
    pub error: Error,
}

/// Receiver of the commits before the first fault.
type OnCommit<'a> = &'a mut (dyn FnMut(Commit) -> Result<()> + Send);

impl FolderLog {
    /// Reads the log up to its first fault: the segments after that one cannot be told from leftovers.
    pub(super) async fn check(&self, from: LogPosition, on_commit: OnCommit<'_>) -> Result<Vec<LogFault>> {
        let outcomes = [
            self.check_epoch().await,
            match self.reader(from).read(on_commit).await {
                Ok(Followed::Mismatch(error)) | Err(error) => Err(error),
                Ok(Followed::Current) => Ok(()),
            },
        ];
        let mut faults = Vec::new();
        for error in outcomes.into_iter().filter_map(Result::err) {
            if error.kind() != Kind::Corrupt {
                return Err(error);
            }
            faults.push(LogFault { key: JOURNAL_LOG.to_owned(), error });
        }
        Ok(faults)
    }
}

impl BucketLog {
    pub(super) async fn check(&self, from: LogPosition, on_commit: OnCommit<'_>) -> Result<Vec<LogFault>> {
        // Listed before it is read: every commit that the list shows can be reached then.
        let listed = self.listed(from.seq).await?;
        let last = listed.last().copied().unwrap_or(from.seq);
        let mut checked =
            CheckedLog { end: Some(HistoryEnd::new(from)), last, faults: Vec::new(), on_commit };
        let mut expected = from.seq.next();
        let slots =
            stream::iter(listed).map(|seq| async move { Ok::<_, Error>((seq, self.body(seq).await?)) });
        let mut slots = std::pin::pin!(slots.buffered(SLOTS_AT_ONCE));
        while let Some((seq, body)) = slots.try_next().await? {
            if seq > expected {
                checked.missing(expected, seq.previous());
            }
            match body {
                Some(body) => checked.slot(seq, &body),
                None => checked.missing(seq, seq),
            }
            expected = seq.next();
        }
        Ok(checked.faults)
    }

    /// Commits after `seq` that lists show.
    async fn listed(&self, seq: Seq) -> Result<BTreeSet<Seq>> {
        let mut list = List::all(JOURNAL_LOG).after(journal_commit(seq));
        let mut listed = BTreeSet::new();
        loop {
            let page = self.client.list(Purpose::Admin, &list).await?;
            listed.extend(page.entries.iter().filter_map(|entry| parse_journal_commit(&entry.key)));
            let Some(next) = page.next else { return Ok(listed) };
            list.cursor = Some(next);
        }
    }
}

/// Log of a bucket that is being checked.
struct CheckedLog<'a> {
    /// Last commit that was read; none after one that is missing or corrupt.
    end: Option<HistoryEnd>,
    /// Last commit of the log.
    last: Seq,
    faults: Vec<LogFault>,
    on_commit: OnCommit<'a>,
}

impl CheckedLog<'_> {
    fn missing(&mut self, first: Seq, last: Seq) {
        let key = journal_commit(first);
        let what = if first == last { "is missing".into() } else { format!("to commit {last} are missing") };
        self.fault(first, Error::new(Kind::Corrupt, format!("`{key}` {what}")));
    }

    fn slot(&mut self, seq: Seq, body: &bytes::Bytes) {
        let key = format!("`{}`", journal_commit(seq));
        let commit = match commit::decode(&key, body) {
            Ok(commit) => commit,
            Err(error) => return self.fault(seq, error),
        };
        let mut end = self.end.unwrap_or_else(|| {
            let before = LogPosition { seq: commit.header.seq.previous(), hash: commit.header.previous };
            HistoryEnd::new(before)
        });
        if let Err(why) = end.advance(&commit) {
            return self.fault(seq, mismatch(key, &why));
        }
        self.end = Some(end);
        if self.faults.is_empty()
            && let Err(error) = (self.on_commit)(commit)
        {
            self.fault(seq, Error::new(Kind::Corrupt, format!("{key}: {error}")));
        }
    }

    /// Adds a fault. The first one says which commits cannot be replayed.
    fn fault(&mut self, seq: Seq, error: Error) {
        let error = match self.last {
            last if self.faults.is_empty() && last > seq => {
                let message = format!("{error}; commits {seq} to {last} cannot be replayed");
                Error::new(error.kind(), message)
            }
            _ => error,
        };
        self.end = None;
        self.faults.push(LogFault { key: journal_commit(seq), error });
    }
}
