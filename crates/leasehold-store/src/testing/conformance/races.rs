//! Concurrent writers: no lost updates, no two winners.

use bytes::Bytes;
use futures::FutureExt;
use tokio::task::JoinSet;

use super::{Check, Checked, Suite, failed, same};
use crate::client::{Client, PutOutcome};
use crate::ledger::Purpose::Admin;
use crate::store::When;
use crate::update::{Decision, update};

pub(super) const CHECKS: &[Check] = &[
    ("no increment is lost", |suite| increments(suite).boxed()),
    ("one creator wins", |suite| creators(suite).boxed()),
];

/// Increments the number in an object, which is followed by the newest write id of every writer. With them a writer
/// whose answer was lost can distinguish its own write, overwritten since, from a lost race, however many writes
/// followed. One writer makes one increment after another.
pub async fn increment(client: &Client, key: &str, writer: &str) -> leasehold_core::Result<u64> {
    let updated = update(client, Admin, key, |found| {
        let text = found.map(|object| String::from_utf8_lossy(&object.body).into_owned()).unwrap_or_default();
        let count = number(text.as_bytes()) + 1;
        let mine = format!("{writer}={}", client.write_id());
        let others = text.split(' ').skip(1).filter(|entry| entry.split('=').next() != Some(writer));
        let entries: Vec<_> = std::iter::once(mine.as_str()).chain(others).collect();
        let body = format!("{count} {}", entries.join(" ")).into();
        let ours = Box::new(move |found: &[u8]| String::from_utf8_lossy(found).contains(&mine));
        Ok(Decision::Write { body, ours, first: None, result: count })
    });
    Ok(updated.await?.result)
}

/// Returns the number in an object written by [`increment`].
#[must_use]
pub fn number(body: &[u8]) -> u64 {
    let text = String::from_utf8_lossy(body);
    text.split(' ').next().and_then(|count| count.parse().ok()).unwrap_or(0)
}

/// Tries to create `count` keys, and returns the number that succeeded.
pub async fn create_all(client: &Client, root: &str, count: usize) -> leasehold_core::Result<usize> {
    let mut won = 0;
    for number in 0..count {
        let body = Bytes::from(client.write_id().to_string());
        let put = client.put(Admin, &format!("{root}{number:04}"), body, &When::Absent).await?;
        won += usize::from(matches!(put, PutOutcome::Written(_)));
    }
    Ok(won)
}

async fn increments(suite: &Suite) -> Checked {
    let key = suite.key("counter");
    let mut updaters = JoinSet::new();
    for updater in 0..suite.options.updaters {
        let (client, key, times) = (suite.client.clone(), key.clone(), suite.options.increments);
        updaters.spawn(async move {
            for _ in 0..times {
                increment(&client, &key, &updater.to_string()).await?;
            }
            Ok::<_, leasehold_core::Error>(())
        });
    }
    while let Some(done) = updaters.join_next().await {
        done.map_err(failed)?.map_err(failed)?;
    }
    let counter = suite.client.get(Admin, &key).await.map_err(failed)?;
    let expected = (suite.options.updaters * suite.options.increments) as u64;
    same("the counter", &counter.map(|object| number(&object.body)), &Some(expected))
}

async fn creators(suite: &Suite) -> Checked {
    let root = suite.key("contested/");
    let mut creators = JoinSet::new();
    for _ in 0..suite.options.creators {
        let (client, root, count) = (suite.client.clone(), root.clone(), suite.options.contested);
        creators.spawn(async move { create_all(&client, &root, count).await });
    }
    let mut won = 0;
    while let Some(done) = creators.join_next().await {
        won += done.map_err(failed)?.map_err(failed)?;
    }
    same("the number of winners", &won, &suite.options.contested)
}
