//! Objects that are not leases: corrupt, empty, deleted.

use bytes::Bytes;
use futures::FutureExt;
use leasehold_core::Kind;
use leasehold_store::{Purpose, Store};
use std::time::Duration;

use super::{Check, LEASE_TTL_MAX, LeaseSuite, Process, Time};

pub(super) const CHECKS: &[Check] = &[
    ("a young corrupt lease is not touched", |suite| young(suite).boxed()),
    ("an old corrupt lease is replaced", |suite| old(suite).boxed()),
    ("a lease that becomes corrupt", |suite| corrupted(suite).boxed()),
    ("a lease that was deleted", |suite| deleted(suite).boxed()),
];

/// An empty body, no JSON, JSON that is no lease, a lease without its expiry.
const CORRUPT_BODIES: [&str; 4] = ["", "\u{0}\u{1}", "[]", r#"{"epoch": 41, "worker_id": "w"}"#];

/// More than the resolution of timestamps.
const MORE: Duration = Duration::from_secs(5);

async fn young(suite: &LeaseSuite) {
    let process = suite.process("first").await;
    for (number, body) in CORRUPT_BODIES.into_iter().enumerate() {
        let key = suite.key(&format!("young/{number}"));
        process.overwrite(&key, body).await;
        let taken = process.take(&key).await.map_err(|error| error.kind());
        assert_eq!(taken, Err(Kind::Corrupt), "taking a corrupt lease");
        assert_eq!(process.bytes(&key).await, Some(Bytes::from_static(body.as_bytes())), "the corrupt lease");
    }
}

async fn old(suite: &LeaseSuite) {
    let Time::Manual(_) = suite.time else { return };
    let (first, second) = (suite.process("first").await, suite.process("second").await);
    let keys: Vec<_> = (0..CORRUPT_BODIES.len()).map(|number| suite.key(&format!("old/{number}"))).collect();
    for (key, body) in keys.iter().zip(CORRUPT_BODIES) {
        first.overwrite(key, body).await;
    }
    // Exactly as long as the longest lease: it may not have expired.
    suite.pass(LEASE_TTL_MAX).await;
    for key in &keys {
        let taken = first.take(key).await.map_err(|error| error.kind());
        assert_eq!(taken, Err(Kind::Corrupt), "taking a corrupt lease that may be held");
    }
    suite.pass(MORE).await;
    for (key, body) in keys.iter().zip(CORRUPT_BODIES) {
        let mut held = first.hold(key).await;
        let above = if body.contains("41") { 41 } else { 1_000_000 };
        assert!(held.lease.epoch > above, "`{body}` is replaced with epoch {}", held.lease.epoch);
        first.keeps(&mut held).await;
        second.is_refused(key).await;
    }
}

/// The holder notices that its lease is corrupt; the next holder has a higher epoch.
async fn corrupted(suite: &LeaseSuite) {
    let Time::Manual(_) = suite.time else { return };
    let (first, second, key) = suite.pair("corrupted", Process::usual).await;
    let mut held = first.hold(&key).await;
    first.overwrite(&key, "{").await;
    first.has_lost(&mut held).await;
    assert_eq!(first.bytes(&key).await, Some(Bytes::from_static(b"{")), "the corrupt lease");
    suite.pass(LEASE_TTL_MAX + MORE).await;
    let mut taken = second.hold(&key).await;
    let (former, next) = (held.lease.epoch, taken.lease.epoch);
    assert!(next > former, "epoch {next} follows epoch {former}");
    first.release(held).await;
    second.keeps(&mut taken).await;
}

/// No client deletes held leases; if one is deleted all the same, the former holder stops and cannot recreate it.
async fn deleted(suite: &LeaseSuite) {
    let (first, second, key) = suite.pair("deleted", Process::usual).await;
    let mut held = first.hold(&key).await;
    first.store.delete(&key).await.unwrap();
    first.has_lost(&mut held).await;
    first.release(held).await;
    assert_eq!(first.client.get(Purpose::Lease, &key).await.unwrap(), None, "the deleted lease");
    let mut taken = second.hold(&key).await;
    first.is_refused(&key).await;
    second.keeps(&mut taken).await;
}
