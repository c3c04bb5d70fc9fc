//! Take-over of a lease: once it has certainly expired, and not before.

use futures::FutureExt;
use leasehold_core::lease::RELEASED_BYTES;
use leasehold_store::Purpose;
use std::time::Duration;

use super::{Check, LeaseSuite, Process, Time};
use crate::lease::{HeldLease, Taken};

pub(super) const CHECKS: &[Check] = &[
    ("a trusted lease cannot be taken", |suite| trusted(suite).boxed()),
    ("the boundary at expiry", |suite| boundary(suite).boxed()),
    ("a released lease can be taken at once", |suite| released(suite).boxed()),
    ("a renewed lease outlives its first expiry", |suite| renewed(suite).boxed()),
];

const MILLISECOND: Duration = Duration::from_millis(1);

/// Number of polls per ttl while real time passes.
const POLLS: u32 = 20;

/// Lets time pass until a lease has certainly expired for each of these processes.
pub(super) async fn until_expired(suite: &LeaseSuite, processes: &[Process], held: Option<&HeldLease>) {
    let Some(held) = held else { return };
    if let Time::Manual(_) = suite.time {
        suite.pass(suite.extent.ttl + MILLISECOND).await;
    }
    for process in processes {
        while !process.client.known_now().unwrap().is_past(held.lease.expires_at) {
            suite.pass(suite.extent.ttl / POLLS).await;
            // Each answer narrows the estimate of the store's time.
            process.client.get(Purpose::Lease, &held.key).await.unwrap();
        }
    }
}

/// The first holder stops renewing; another process tries until it gets the lease. At no time do both trust it.
async fn trusted(suite: &LeaseSuite) {
    let (first, second, key) = suite.pair("trusted", Process::brief).await;
    let held = first.hold(&key).await;
    assert!(first.trusts(&held), "a lease of {:?} is not trusted by its new holder", suite.extent.ttl);
    let mut refusals = 0;
    loop {
        match second.take(&key).await.unwrap() {
            Taken::Others(_) => refusals += 1,
            Taken::Ours(taken) => {
                assert!(!first.trusts(&held), "a lease was taken over while its holder trusted it");
                assert_eq!(taken.lease.epoch, 2, "the epoch");
                break;
            }
        }
        suite.pass(suite.extent.ttl / POLLS).await;
    }
    assert!(refusals > 0, "a lease that was just taken was taken again");
}

async fn boundary(suite: &LeaseSuite) {
    let Time::Manual(_) = suite.time else { return };
    let (first, second, key) = suite.pair("boundary", Process::usual).await;
    let mut held = first.hold(&key).await;
    suite.pass(suite.extent.ttl.saturating_sub(MILLISECOND)).await;
    assert!(first.trusts(&held), "trust a moment before expiry");
    second.is_refused(&key).await;
    suite.pass(MILLISECOND).await;
    assert!(!first.trusts(&held), "trust at expiry");
    second.is_refused(&key).await;
    suite.pass(MILLISECOND).await;
    assert_eq!(second.hold(&key).await.lease.epoch, 2, "the epoch after a take-over");
    first.has_lost(&mut held).await;
}

async fn released(suite: &LeaseSuite) {
    let (first, second, key) = suite.pair("given-back", Process::usual).await;
    let held = first.hold(&key).await;
    is_shown_as(&second, &key, false).await;
    let mut copy = held.clone();
    first.release(held).await;
    is_shown_as(&second, &key, true).await;
    assert_eq!(second.read(&key).await.map(|lease| lease.epoch), Some(1), "the lease after release");
    // A holder that has released it cannot get it back by a renewal.
    first.has_lost(&mut copy).await;
    let taken = second.hold(&key).await;
    assert_eq!(taken.lease.epoch, 2, "the epoch after release");
    is_shown_as(&first, &key, false).await;
    first.is_refused(&key).await;
}

/// Checks that a list shows by the size whether a lease was released.
async fn is_shown_as(process: &Process, key: &str, released: bool) {
    let size = process.size(key).await;
    let shown = size.map(|size| size >= RELEASED_BYTES);
    assert_eq!(shown, Some(released), "a lease of {size:?} bytes, as released,");
}

async fn renewed(suite: &LeaseSuite) {
    let Time::Manual(_) = suite.time else { return };
    let (first, second, key) = suite.pair("renewed", Process::usual).await;
    let mut held = first.hold(&key).await;
    for _ in 0..6 {
        suite.pass(suite.extent.ttl * 2 / 3).await;
        assert!(first.trusts(&held), "trust before a renewal");
        first.keeps(&mut held).await;
        second.is_refused(&key).await;
    }
    assert_eq!(held.lease.epoch, 1, "the epoch after renewals");
    suite.pass(suite.extent.ttl + MILLISECOND).await;
    assert_eq!(second.hold(&key).await.lease.epoch, 2, "the epoch after a take-over");
}
