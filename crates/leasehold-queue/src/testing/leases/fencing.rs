//! Fencing: a process that has lost a lease can no longer change it, even under the same worker id.

use futures::FutureExt;

use super::expiry::until_expired;
use super::{Check, LeaseSuite, Process, subject};
use crate::lease::{HeldLease, break_lease};

pub(super) const CHECKS: &[Check] = &[
    ("a former holder changes nothing", |suite| former(suite).boxed()),
    ("a name is not an identity", |suite| namesakes(suite).boxed()),
    ("a former holder can take it again", |suite| again(suite).boxed()),
    ("a broken lease", |suite| broken(suite).boxed()),
    ("unknown fields survive", |suite| unknown_fields(suite).boxed()),
];

/// Renewal and release by a former holder leave every byte unchanged.
async fn is_fenced(former: &Process, held: HeldLease, key: &str) {
    let before = former.bytes(key).await;
    former.release(held.clone()).await;
    assert_eq!(former.bytes(key).await, before, "the lease after a release by a former holder");
    let mut held = held;
    former.has_lost(&mut held).await;
    former.has_lost(&mut held).await;
    former.release(held).await;
    assert_eq!(former.bytes(key).await, before, "the lease after all that a former holder tried");
}

async fn former(suite: &LeaseSuite) {
    let (first, second, key) = suite.pair("former", Process::brief).await;
    let held = first.hold(&key).await;
    until_expired(suite, std::slice::from_ref(&second), Some(&held)).await;
    let mut taken = second.hold(&key).await;
    is_fenced(&first, held, &key).await;
    second.keeps(&mut taken).await;
}

async fn namesakes(suite: &LeaseSuite) {
    let (first, second) = (suite.process("same").await, suite.process("same").await);
    let key = suite.key("namesakes");
    let held = first.hold(&key).await;
    second.is_refused(&key).await;
    first.release(held.clone()).await;
    let mut taken = second.hold(&key).await;
    assert_eq!(taken.lease.epoch, 2, "the epoch of the second");
    is_fenced(&first, held, &key).await;
    second.keeps(&mut taken).await;
}

/// A process whose lease was released or has expired does not mistake its old claim for the new one.
async fn again(suite: &LeaseSuite) {
    let (first, second, key) = suite.pair("again", Process::usual).await;
    let held = first.hold(&key).await;
    first.release(held).await;
    let held = first.hold(&key).await;
    assert_eq!(held.lease.epoch, 2, "the epoch after release");
    second.is_refused(&key).await;
    let (key, first) = (suite.key("again-run-out"), first.brief());
    let held = first.hold(&key).await;
    until_expired(suite, std::slice::from_ref(&first), Some(&held)).await;
    let mut held = first.hold(&key).await;
    assert_eq!(held.lease.epoch, 2, "the epoch after expiry");
    assert!(first.trusts(&held), "trust");
    second.is_refused(&key).await;
    first.keeps(&mut held).await;
}

async fn broken(suite: &LeaseSuite) {
    let (first, second, key) = suite.pair("broken", Process::usual).await;
    assert_eq!(breaks(&second, &key).await, None, "breaking what is not there");
    let mut held = first.hold(&key).await;
    assert_eq!(breaks(&second, &key).await, Some(1), "the epoch that was broken");
    let before = first.bytes(&key).await;
    assert_eq!(breaks(&second, &key).await, Some(2), "breaking it again");
    assert_eq!(first.bytes(&key).await, before, "the lease that was broken twice");
    first.has_lost(&mut held).await;
    let mut taken = second.hold(&key).await;
    assert_eq!(taken.lease.epoch, 3, "the epoch after a break");
    is_fenced(&first, held, &key).await;
    second.keeps(&mut taken).await;
}

/// Breaks the lease at a key, and returns its epoch.
async fn breaks(process: &Process, key: &str) -> Option<u64> {
    let broken = break_lease(&process.client, key, &subject()).await.unwrap();
    broken.and_then(|found| found.lease).map(|lease| lease.epoch)
}

/// A field added by a newer program survives renewal, release, break and take-over.
async fn unknown_fields(suite: &LeaseSuite) {
    let (first, second, key) = suite.pair("unknown", Process::usual).await;
    let mut lease = first.hold(&key).await.lease.clone();
    lease.subject.insert("newer".into(), "kept".into());
    first.overwrite(&key, lease.write()).await;
    let mut held = first.hold(&key).await;
    has_field(&first, &key, "held").await;
    first.keeps(&mut held).await;
    has_field(&first, &key, "renewed").await;
    first.release(held).await;
    has_field(&first, &key, "released").await;
    second.hold(&key).await;
    has_field(&first, &key, "taken").await;
    breaks(&first, &key).await;
    has_field(&first, &key, "broken").await;
}

async fn has_field(process: &Process, key: &str, what: &str) {
    let lease = process.read(key).await;
    let fields = lease.as_ref().map(|lease| (lease.subject.get("newer"), lease.subject.get("shard")));
    let expected = Some((Some(&"kept".into()), Some(&"07".into())));
    assert_eq!(fields, expected, "the fields of a lease that was {what}");
}
