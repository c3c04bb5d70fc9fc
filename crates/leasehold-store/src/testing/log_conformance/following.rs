//! Reads without the lease.

use leasehold_core::journal::{Commit, CommitHash, LogPosition};

use super::{Checked, LogCheck, commit, failed, serve, texts};
use crate::log::{Followed, Log, LogReader};
use crate::testing::conformance::same;

pub(super) const CHECKS: &[LogCheck] = &[
    ("a reader follows", |log| Box::pin(follows(log))),
    ("a reader begins at a position", |log| Box::pin(begins_at_position(log))),
    ("a reader of another history starts over", |log| Box::pin(another_history(log))),
];

async fn read(reader: &mut LogReader) -> Result<Vec<Commit>, String> {
    let mut found = Vec::new();
    let followed = reader.read(|commit| {
        found.push(commit);
        Ok(())
    });
    match followed.await.map_err(failed)? {
        Followed::Current => Ok(found),
        Followed::Mismatch(error) => Err(error.to_string()),
    }
}

async fn follows(log: Log) -> Checked {
    let log = log.with_segment_bytes(1_500);
    let mut reader = log.reader(LogPosition::START);
    same("an empty log", &read(&mut reader).await?.len(), &0)?;
    for number in 1..=3 {
        let mut serving = serve(&log, number, LogPosition::START).await?;
        same("the fence", &read(&mut reader).await?.len(), &1)?;
        for more in 0..10 {
            let records = format!("\"{number}-{more}\"\n");
            commit(&mut serving.writer, &records).await?;
            same("the commit", &texts(&read(&mut reader).await?), &vec![records])?;
            same("the position", &reader.position(), &serving.writer.position())?;
        }
        same("the end", &read(&mut reader).await?.len(), &0)?;
    }
    let all = read(&mut log.reader(LogPosition::START)).await?;
    same("all commits", &all.len(), &33)
}

async fn begins_at_position(log: Log) -> Checked {
    let mut serving = serve(&log, 1, LogPosition::START).await?;
    commit(&mut serving.writer, "1\n").await?;
    let middle = serving.writer.position();
    commit(&mut serving.writer, "2\n").await?;
    let mut reader = log.reader(middle);
    same("the records", &texts(&read(&mut reader).await?), &vec!["2\n".to_owned()])
}

async fn another_history(log: Log) -> Checked {
    let mut serving = serve(&log, 1, LogPosition::START).await?;
    commit(&mut serving.writer, "1\n").await?;
    let middle = LogPosition { hash: CommitHash::NONE, ..serving.writer.position() };
    commit(&mut serving.writer, "2\n").await?;
    let mut reader = log.reader(middle);
    same("a mismatch", &read(&mut reader).await.is_err(), &true)?;
    same("the position", &reader.position(), &middle)
}
