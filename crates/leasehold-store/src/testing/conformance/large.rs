//! Ranges, and uploads in parts.

use bytes::Bytes;
use futures::FutureExt;
use leasehold_core::Kind;
use leasehold_core::limits::UPLOAD_PART_BYTES;
use std::ops::Range;

use super::{Check, Checked, Suite, failed, same};
use crate::ledger::Purpose::Admin;
use crate::ledger::{Snapshot, Verb};
use crate::store::{Answer, Cause, List, Object, PartId, Ranged, UploadId, Version};

pub(super) const CHECKS: &[Check] = &[
    ("ranges at the edges", |suite| edges(suite).boxed()),
    ("ranges beyond the end", |suite| beyond(suite).boxed()),
    ("a range of a changed object", |suite| changed(suite).boxed()),
    ("an upload out of order", |suite| out_of_order(suite).boxed()),
    ("an upload over an object", |suite| replaced(suite).boxed()),
    ("an aborted upload", |suite| given_up(suite).boxed()),
    ("ranges and uploads are counted", |suite| counted(suite).boxed()),
];

/// Minimum part size of S3.
const PART_BYTES: usize = 5 * 1_024 * 1_024;
const LAST_BYTES: usize = 1_000;

async fn answered<T>(answer: Answer<'_, T>) -> Result<T, String> {
    answer.await.map_err(|failure| failed(failure.error))
}

async fn written(suite: &Suite, key: &str, body: Bytes) -> Checked {
    suite.client.put_always(Admin, key, body).await.map(|_| ()).map_err(failed)
}

async fn read(suite: &Suite, key: &str, range: Range<u64>) -> Result<Object, String> {
    let read = answered(suite.store.get_range(key, range.clone(), None)).await?;
    read.found().ok_or_else(|| format!("{range:?} cannot be read"))
}

/// Fails unless the request is refused with a final failure of this kind.
async fn refused<T>(what: &str, answer: Answer<'_, T>, kind: Kind) -> Checked {
    match answer.await {
        Ok(_) => Err(format!("{what} is not refused")),
        Err(failure) => same(what, &failure.cause, &Cause::Final(kind)),
    }
}

/// Creates bytes that differ by position and seed.
fn body(bytes: usize, seed: usize) -> Bytes {
    (0..bytes).map(|place| u8::try_from((place + place / 251 + seed) % 251).unwrap_or(0)).collect()
}

async fn edges(suite: &Suite) -> Checked {
    let key = suite.key("ranges");
    let whole = body(1_000, 0);
    written(suite, &key, whole.clone()).await?;
    for (range, expected) in
        [(0..1, 0..1), (999..1_000, 999..1_000), (0..1_000, 0..1_000), (400..600, 400..600)]
            .into_iter()
            .chain([(998..1_001, 998..1_000), (0..u64::from(u32::MAX), 0..1_000)])
    {
        let found = read(suite, &key, range.clone()).await?;
        same(&format!("the range {range:?}"), &found.body, &whole.slice(expected))?;
    }
    Ok(())
}

async fn beyond(suite: &Suite) -> Checked {
    let (key, empty) = (suite.key("short"), suite.key("empty"));
    written(suite, &key, body(10, 0)).await?;
    written(suite, &empty, Bytes::new()).await?;
    for (key, range) in [(&key, 10..11), (&key, 50..60), (&key, 3..3), (&empty, 0..1)] {
        let what = format!("the range {range:?}");
        refused(&what, suite.store.get_range(key, range, None), Kind::Invalid).await?;
    }
    Ok(())
}

async fn changed(suite: &Suite) -> Checked {
    let key = suite.key("changed");
    same("nothing", &answered(suite.store.get_range(&key, 0..1, None)).await?, &Ranged::Missing)?;
    written(suite, &key, body(100, 1)).await?;
    let first = read(suite, &key, 0..10).await?.version;
    let again = answered(suite.store.get_range(&key, 10..20, Some(&first))).await?;
    let expected = Object { body: body(100, 1).slice(10..20), version: first.clone() };
    same("the same version", &again, &Ranged::Found(expected))?;
    written(suite, &key, body(100, 2)).await?;
    for range in [10..20, 200..300] {
        let after = answered(suite.store.get_range(&key, range, Some(&first))).await?;
        same("another version", &after, &Ranged::Changed)?;
    }
    answered(suite.store.delete(&key)).await?;
    same("no object", &answered(suite.store.get_range(&key, 0..1, None)).await?, &Ranged::Missing)
}

/// Sends two parts of an object in the wrong order, and one of them twice.
async fn send_parts(
    suite: &Suite,
    key: &str,
    upload: &UploadId,
    whole: &Bytes,
) -> Result<Vec<PartId>, String> {
    let (first, last) = (whole.slice(..PART_BYTES), whole.slice(PART_BYTES..));
    let last = answered(suite.store.upload_part(key, upload, 1, last)).await?;
    answered(suite.store.upload_part(key, upload, 0, first.clone())).await?;
    let first = answered(suite.store.upload_part(key, upload, 0, first)).await?;
    Ok(vec![first, last])
}

async fn upload(suite: &Suite, key: &str, whole: &Bytes) -> Result<Version, String> {
    let upload = answered(suite.store.upload_begin(key, PART_BYTES as u64)).await?;
    let parts = send_parts(suite, key, &upload, whole).await?;
    answered(suite.store.upload_end(key, &upload, parts)).await
}

async fn sizes(suite: &Suite, prefix: &str) -> Result<Vec<u64>, String> {
    let page = suite.client.list(Admin, &List::all(prefix)).await.map_err(failed)?;
    Ok(page.entries.iter().map(|entry| entry.size).collect())
}

async fn out_of_order(suite: &Suite) -> Checked {
    let key = suite.key("upload/whole");
    let whole = body(PART_BYTES + LAST_BYTES, 0);
    let upload = answered(suite.store.upload_begin(&key, PART_BYTES as u64)).await?;
    let parts = send_parts(suite, &key, &upload, &whole).await?;
    same("the object before the end", &answered(suite.store.get(&key, None)).await?.found(), &None)?;
    same("the list before the end", &sizes(suite, &suite.key("upload/")).await?, &Vec::new())?;
    let version = answered(suite.store.upload_end(&key, &upload, parts)).await?;
    same("the size", &sizes(suite, &suite.key("upload/")).await?, &vec![whole.len() as u64])?;
    let border = PART_BYTES as u64;
    for range in [0..10, border - 10..border + 10, border + LAST_BYTES as u64 - 1..border * 2] {
        let place = |at: u64| usize::try_from(at).unwrap_or(usize::MAX).min(whole.len());
        let expected = whole.slice(place(range.start)..place(range.end));
        let found = answered(suite.store.get_range(&key, range.clone(), Some(&version))).await?;
        let expected = Ranged::Found(Object { body: expected, version: version.clone() });
        same(&format!("the range {range:?}"), &found, &expected)?;
    }
    is_whole(suite, &key, &whole).await
}

async fn is_whole(suite: &Suite, key: &str, whole: &Bytes) -> Checked {
    let read = answered(suite.store.get(key, None)).await?.found();
    let is_same = read.is_some_and(|object| object.body == *whole);
    if is_same { Ok(()) } else { Err("the uploaded object differs".into()) }
}

async fn replaced(suite: &Suite) -> Checked {
    let key = suite.key("replaced");
    written(suite, &key, body(10, 0)).await?;
    let before = read(suite, &key, 0..1).await?.version;
    for seed in 1..3 {
        let whole = body(PART_BYTES + LAST_BYTES, seed);
        upload(suite, &key, &whole).await?;
        is_whole(suite, &key, &whole).await?;
    }
    let after = answered(suite.store.get_range(&key, 0..1, Some(&before))).await?;
    same("the version from before", &after, &Ranged::Changed)
}

async fn given_up(suite: &Suite) -> Checked {
    let key = suite.key("given-up/x");
    let whole = body(PART_BYTES + LAST_BYTES, 0);
    let upload = answered(suite.store.upload_begin(&key, PART_BYTES as u64)).await?;
    let parts = send_parts(suite, &key, &upload, &whole).await?;
    refused("an end without parts", suite.store.upload_end(&key, &upload, Vec::new()), Kind::Invalid).await?;
    for _ in 0..2 {
        answered(suite.store.upload_abort(&key, &upload)).await?;
    }
    if suite.options.clear_uploads {
        let part = suite.store.upload_part(&key, &upload, 0, body(10, 0));
        refused("a part of an aborted upload", part, Kind::Lost).await?;
        let end = suite.store.upload_end(&key, &upload, parts);
        refused("the end of an aborted upload", end, Kind::Lost).await?;
    }
    same("the object", &answered(suite.store.get(&key, None)).await?.found(), &None)?;
    same("the list", &sizes(suite, &suite.key("given-up/")).await?, &Vec::new())
}

/// Through the client, with parts of the usual size.
async fn counted(suite: &Suite) -> Checked {
    let key = suite.key("counted");
    let whole = body(usize::try_from(UPLOAD_PART_BYTES).unwrap_or(0) + 1, 0);
    let before = suite.client.ledger().snapshot();
    let upload = suite.client.upload(Admin, &key, whole.len() as u64).await.map_err(failed)?;
    let place = |at: u64| usize::try_from(at).unwrap_or(usize::MAX);
    for (number, range) in upload.parts() {
        let part = whole.slice(place(range.start)..place(range.end));
        upload.part(number, part).await.map_err(failed)?;
    }
    upload.finish().await.map_err(failed)?;
    suite.client.get_range(Admin, &key, 5..12, None).await.map_err(failed)?;
    let given_up = suite.client.upload(Admin, &key, 1).await.map_err(failed)?;
    given_up.abort().await.map_err(failed)?;
    let since = suite.client.ledger().snapshot().since(&before);
    same("the number of puts", &since.verb(Verb::Put), &5)?;
    same("the number of removals", &since.verb(Verb::Delete), &1)?;
    same("the bytes sent and received", &bytes(&since), &(whole.len() as u64, 7))
}

fn bytes(ledger: &Snapshot) -> (u64, u64) {
    ledger.lines().fold((0, 0), |(sent, received), (_, count)| {
        (sent + count.bytes_sent, received + count.bytes_received)
    })
}
