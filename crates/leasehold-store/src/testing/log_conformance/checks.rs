//! Takeovers and commits.

use bytes::Bytes;
use leasehold_core::journal::{CommitHash, LogPosition, Seq};
use leasehold_core::{Error, Kind};
use std::collections::BTreeSet;
use std::sync::Mutex;

use super::{Checked, LogCheck, commit, failed, log_holder, serve, some_fence, texts};
use crate::host::lock;
use crate::log::{CommitOutcome, Log, TakeOver};
use crate::testing::conformance::same;

pub(super) const CHECKS: &[LogCheck] = &[
    ("an empty log begins with a fence", |log| Box::pin(begins_with_a_fence(log))),
    ("commits are replayed in order", |log| Box::pin(are_replayed(log))),
    ("an earlier writer is superseded", |log| Box::pin(earlier_is_superseded(log))),
    ("an earlier writer is not current", |log| Box::pin(earlier_is_not_current(log))),
    ("an earlier lease does not take over", |log| Box::pin(earlier_lease(log))),
    ("a lost lease makes no writer", |log| Box::pin(lost_lease(log))),
    ("invalid records are refused", |log| Box::pin(invalid_records(log))),
    ("an error of the caller ends a takeover", |log| Box::pin(error_of_caller(log))),
    ("a takeover begins at a position", |log| Box::pin(begins_at_position(log))),
    ("many small segments", |log| Box::pin(many_segments(log))),
    ("old commits are deleted", |log| Box::pin(are_deleted(log))),
    ("processes that race lose nothing", |log| Box::pin(race(log))),
];

async fn begins_with_a_fence(log: Log) -> Checked {
    let first = serve(&log, 1, LogPosition::START).await?;
    let [fence] = &first.replayed[..] else { return Err(format!("it replays {:?}", first.replayed)) };
    same("the number", &fence.header.seq, &Seq::new(1))?;
    same("the times", &fence.header.fence, &Some(some_fence()))?;
    same("its process", &fence.header.instance, &log_holder(1).instance)?;
    same("its epoch", &fence.header.epoch, &1)?;
    same("the hash before it", &fence.header.previous, &CommitHash::NONE)?;
    same("the position", &first.writer.position(), &fence.position())
}

async fn are_replayed(log: Log) -> Checked {
    let large = format!("\"{}\"\n", "x".repeat(3 << 20));
    let many = "{\"n\":1}\n".repeat(1_000);
    let written = ["{}\n", "{\"ä\":1}\n{}\n", &large, &many, "[]\n"];
    let mut first = serve(&log, 1, LogPosition::START).await?;
    for records in written {
        commit(&mut first.writer, records).await?;
    }
    let position = first.writer.position();
    same("the position", &position.seq, &Seq::new(6))?;
    drop(first);
    let mut second = serve(&log, 2, LogPosition::START).await?;
    same("the records", &texts(&second.replayed), &written.map(str::to_owned).to_vec())?;
    same("the position before the fence", &second.replayed[5].position(), &position)?;
    commit(&mut second.writer, "\"second\"\n").await?;
    drop(second);
    let third = serve(&log, 3, LogPosition::START).await?;
    let fences: Vec<_> = third
        .replayed
        .iter()
        .filter(|one| one.header.fence.is_some())
        .map(|one| one.header.seq.get())
        .collect();
    same("the fences", &fences, &vec![1, 7, 9])?;
    same("the number of commits", &texts(&third.replayed).len(), &6)
}

async fn earlier_is_superseded(log: Log) -> Checked {
    let mut first = serve(&log, 1, LogPosition::START).await?;
    commit(&mut first.writer, "1\n").await?;
    let mut second = serve(&log, 2, LogPosition::START).await?;
    commit(&mut second.writer, "2\n").await?;
    match first.writer.commit("lost\n".into(), 1).await {
        Ok(CommitOutcome::Superseded) => {}
        other => return Err(format!("the earlier writer gets {other:?}")),
    }
    // It is closed from now on.
    for error in [first.writer.commit("lost\n".into(), 1).await.err(), first.writer.is_current().await.err()]
    {
        same("the kind", &error.map(|error| error.kind()), &Some(Kind::Lost))?;
    }
    commit(&mut second.writer, "3\n").await?;
    let third = serve(&log, 3, LogPosition::START).await?;
    same("the records", &texts(&third.replayed), &["1\n", "2\n", "3\n"].map(str::to_owned).to_vec())
}

async fn earlier_is_not_current(log: Log) -> Checked {
    let mut first = serve(&log, 1, LogPosition::START).await?;
    same("alone", &first.writer.is_current().await.map_err(failed)?, &true)?;
    commit(&mut first.writer, "1\n").await?;
    same("after a commit", &first.writer.is_current().await.map_err(failed)?, &true)?;
    let mut second = serve(&log, 2, LogPosition::START).await?;
    same("the earlier one", &first.writer.is_current().await.map_err(failed)?, &false)?;
    same("the later one", &second.writer.is_current().await.map_err(failed)?, &true)
}

async fn earlier_lease(log: Log) -> Checked {
    let mut second = serve(&log, 2, LogPosition::START).await?;
    commit(&mut second.writer, "2\n").await?;
    drop(second);
    for number in [1, 2] {
        let taken =
            log.take_over(&log_holder(number), LogPosition::START, || Ok(some_fence()), |_| Ok(())).await;
        match taken {
            Ok(TakeOver::Superseded) => {}
            other => return Err(format!("epoch {number} gets {other:?}")),
        }
    }
    let third = serve(&log, 3, LogPosition::START).await?;
    same("the records", &texts(&third.replayed), &vec!["2\n".to_owned()])
}

async fn lost_lease(log: Log) -> Checked {
    let taken = log.take_over(&log_holder(1), LogPosition::START, || Ok(some_fence()), |_| Ok(())).await;
    let Ok(TakeOver::Fenced(fenced)) = taken else { return Err(format!("{taken:?}")) };
    let writer = fenced.confirm(|| async { Ok(false) }).await.map_err(failed)?;
    same("a writer", &writer.is_some(), &false)?;
    let taken = log.take_over(&log_holder(2), LogPosition::START, || Ok(some_fence()), |_| Ok(())).await;
    let Ok(TakeOver::Fenced(fenced)) = taken else { return Err(format!("{taken:?}")) };
    let unknown = fenced.confirm(|| async { Err(Error::new(Kind::Unavailable, "no answer")) }).await;
    same("a confirmation without an answer", &unknown.is_err(), &true)?;
    serve(&log, 3, LogPosition::START).await.map(|_| ())
}

async fn invalid_records(log: Log) -> Checked {
    let mut first = serve(&log, 1, LogPosition::START).await?;
    let large = Bytes::from(vec![b'\n'; 17 << 20]);
    for (records, count) in [("".into(), 0), ("{}".into(), 1), ("{}\n".into(), 2), (large, 17 << 20)] {
        let error = first.writer.commit(records, count).await.err();
        same("the kind", &error.map(|error| error.kind()), &Some(Kind::Invalid))?;
    }
    commit(&mut first.writer, "{}\n").await
}

async fn error_of_caller(log: Log) -> Checked {
    let mut first = serve(&log, 1, LogPosition::START).await?;
    commit(&mut first.writer, "1\n").await?;
    let refuse = || Error::new(Kind::Invalid, "unknown record");
    let taken =
        log.take_over(&log_holder(2), LogPosition::START, || Ok(some_fence()), |_| Err(refuse())).await;
    same("the error", &taken.err().map(|error| error.to_string()), &Some("unknown record".into()))?;
    let taken = log.take_over(&log_holder(3), LogPosition::START, || Err(refuse()), |_| Ok(())).await;
    same("the error", &taken.err().map(|error| error.to_string()), &Some("unknown record".into()))?;
    let fourth = serve(&log, 4, LogPosition::START).await?;
    same("the records", &texts(&fourth.replayed), &vec!["1\n".to_owned()])
}

async fn begins_at_position(log: Log) -> Checked {
    let mut first = serve(&log, 1, LogPosition::START).await?;
    let mut positions = vec![LogPosition::START, first.writer.position()];
    for number in 0..5 {
        commit(&mut first.writer, &format!("{number}\n")).await?;
        positions.push(first.writer.position());
    }
    drop(first);
    for (number, position) in (2..).zip(positions.clone()) {
        let next = serve(&log, number, position).await?;
        same("the first number", &next.replayed[0].header.seq, &position.seq.next())?;
        let expected: Vec<_> = (0..5).map(|number| format!("{number}\n")).collect();
        let covered = usize::try_from(position.seq.get().saturating_sub(1)).map_err(failed)?;
        same("the records", &texts(&next.replayed), &expected[covered.min(5)..].to_vec())?;
    }
    let (other, holder) = (LogPosition { hash: CommitHash::NONE, ..positions[3] }, log_holder(20));
    match log.take_over(&holder, other, || Ok(some_fence()), |_| Ok(())).await {
        Ok(TakeOver::Mismatch(error)) => same("the kind", &error.kind(), &Kind::Corrupt)?,
        other => return Err(format!("a position of another history gets {other:?}")),
    }
    serve(&log, 21, positions[3]).await.map(|_| ())
}

async fn many_segments(log: Log) -> Checked {
    let log = log.with_segment_bytes(1_500);
    let mut written = Vec::new();
    for number in 1..=5 {
        let mut serving = serve(&log, number, LogPosition::START).await?;
        same("the records", &texts(&serving.replayed), &written)?;
        for more in 0..10 * number {
            let records = format!("\"{number}-{more}\"\n");
            commit(&mut serving.writer, &records).await?;
            written.push(records);
        }
    }
    let last = serve(&log, 9, LogPosition::START).await?;
    same("the records", &texts(&last.replayed), &written)
}

async fn are_deleted(log: Log) -> Checked {
    let log = log.with_segment_bytes(1_500);
    let (mut position, mut deleted_to, mut fences) = (LogPosition::START, Seq::NONE, BTreeSet::new());
    for number in 1..=4 {
        let mut serving = serve(&log, number, position).await?;
        same("the first number", &serving.replayed[0].header.seq, &position.seq.next())?;
        fences.insert(serving.writer.position().seq);
        let mut middle = position;
        for more in 0..20 {
            commit(&mut serving.writer, &format!("\"{number}-{more}\"\n")).await?;
            if more == 10 {
                middle = serving.writer.position();
            }
        }
        // A snapshot covers what is up to the middle.
        let floor = middle.seq.next();
        let deleted =
            serving.writer.trimmer().delete_below(floor, deleted_to, &fences).await.map_err(failed)?;
        same("something was deleted", &(deleted > 0), &true)?;
        commit(&mut serving.writer, "\"after\"\n").await?;
        (position, deleted_to) = (middle, middle.seq);
    }
    let last = serve(&log, 9, position).await?;
    same("the records", &texts(&last.replayed).len(), &10)
}

/// Several processes take over from each other, at any moment, and commit until they lose the log.
async fn race(log: Log) -> Checked {
    let (acknowledged, epoch) = (Mutex::new(Vec::new()), Mutex::new(0));
    let process = |number: u64| {
        let (log, acknowledged, epoch) = (&log, &acknowledged, &epoch);
        async move {
            for turn in 0..6 {
                let holder = {
                    let mut epoch = lock(epoch);
                    *epoch += 1;
                    log_holder(*epoch)
                };
                let taken = log.take_over(&holder, LogPosition::START, || Ok(some_fence()), |_| Ok(())).await;
                let TakeOver::Fenced(fenced) = taken.map_err(failed)? else { continue };
                let is_held = || async { Ok(*lock(epoch) == holder.epoch) };
                let Some(mut writer) = fenced.confirm(is_held).await.map_err(failed)? else { continue };
                for more in 0..5 {
                    let records = format!("\"{number}-{turn}-{more}\"\n");
                    match writer.commit(Bytes::from(records.clone()), 1).await.map_err(failed)? {
                        CommitOutcome::Committed(_) => lock(acknowledged).push(records),
                        CommitOutcome::Superseded => break,
                        CommitOutcome::Mismatch(error) => return Err(error.to_string()),
                    }
                }
            }
            Ok(())
        }
    };
    futures::future::try_join_all((0..4).map(process)).await?;
    let last = serve(&log, 1_000, LogPosition::START).await?;
    let (replayed, acknowledged) = (texts(&last.replayed), lock(&acknowledged).clone());
    let mut left = replayed.iter();
    match acknowledged.iter().find(|records| !left.any(|found| found == *records)) {
        None if acknowledged.is_empty() => Err("nothing was acknowledged".into()),
        None => Ok(()),
        Some(records) => Err(format!("{records} was acknowledged, and is not replayed in order")),
    }
}
