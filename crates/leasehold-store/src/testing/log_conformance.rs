//! Conformance suite for the log of a journal, in either home.
//!
//! ```no_run
//! # use leasehold_store::{Log, LogDirectory, SystemHost, testing::FakeDisk, testing::log_conformance::LogSuite};
//! # use std::sync::Arc;
//! # async fn example() {
//! let open = |_: &str| Log::in_directory(FakeDisk::new().sound(1), Arc::new(SystemHost));
//! LogSuite::new(open).run().await.unwrap();
//! # }
//! ```

mod checks;
mod following;

use bytes::Bytes;
use futures::future::BoxFuture;
use leasehold_core::journal::{Commit, Fence, LogPosition};
use leasehold_core::{HexName, Result, StoreTime};
use std::sync::Arc;

use super::conformance::Violation;
use crate::log::{CommitOutcome, Log, LogHolder, LogWriter, TakeOver};

/// Suite for logs under test.
#[derive(Clone)]
pub struct LogSuite {
    open: Arc<dyn Fn(&str) -> Log + Send + Sync>,
}

type Checked = Result<(), String>;
type LogCheck = (&'static str, fn(Log) -> BoxFuture<'static, Checked>);

impl LogSuite {
    /// Creates a suite; `open` returns an empty log for each name.
    pub fn new(open: impl Fn(&str) -> Log + Send + Sync + 'static) -> Self {
        Self { open: Arc::new(open) }
    }

    /// Runs every check, each on a log of its own, and returns the first violation.
    pub async fn run(&self) -> Result<(), Violation> {
        for (check, run) in checks::CHECKS.iter().chain(following::CHECKS) {
            let log = (self.open)(&check.replace(' ', "-"));
            run(log).await.map_err(|message| Violation { check, message })?;
        }
        Ok(())
    }
}

/// Process with this number, which is also the epoch of its lease.
#[must_use]
pub fn log_holder(number: u64) -> LogHolder {
    LogHolder { epoch: number, instance: HexName::from_random(number.into()) }
}

/// Times of a fence that a test does not look at.
#[must_use]
pub fn some_fence() -> Fence {
    Fence { trusted_until: StoreTime::from_millis(1_000), at: StoreTime::from_millis(2_000) }
}

/// Writer of a process, and the commits that it has replayed, its own fence included.
#[derive(Debug)]
pub struct ServingLog {
    /// The writer.
    pub writer: LogWriter,
    /// Commits after the position at which it began.
    pub replayed: Vec<Commit>,
}

/// Takes a log over and confirms, as one that meets no other process.
pub async fn serve(log: &Log, number: u64, from: LogPosition) -> Result<ServingLog, String> {
    let mut replayed = Vec::new();
    let on_commit = |commit| {
        replayed.push(commit);
        Ok(())
    };
    let taken = log.take_over(&log_holder(number), from, || Ok(some_fence()), on_commit).await;
    let TakeOver::Fenced(fenced) = taken.map_err(failed)? else {
        return Err(format!("process {number} could not take the log over"));
    };
    let writer = fenced.confirm(|| async { Ok(true) }).await.map_err(failed)?;
    Ok(ServingLog { writer: writer.ok_or("the lease is held, and there is no writer")?, replayed })
}

/// Commits records, and fails unless they are committed.
pub async fn commit(writer: &mut LogWriter, records: &str) -> Checked {
    let lines = u32::try_from(records.lines().count()).map_err(failed)?;
    match writer.commit(Bytes::copy_from_slice(records.as_bytes()), lines).await {
        Ok(CommitOutcome::Committed(_)) => Ok(()),
        other => Err(format!("a commit is not committed: {other:?}")),
    }
}

/// Records of all commits that are not fences.
#[must_use]
pub fn texts(commits: &[Commit]) -> Vec<String> {
    let records = commits.iter().filter(|commit| commit.header.fence.is_none());
    records.map(|commit| String::from_utf8_lossy(&commit.records).into_owned()).collect()
}

fn failed(error: impl std::fmt::Display) -> String {
    error.to_string()
}
