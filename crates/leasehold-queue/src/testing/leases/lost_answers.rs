//! Requests whose answer is lost, and requests that are applied late: the holder of a lease continues to hold it.

use futures::FutureExt;

use super::{Check, LeaseSuite, Process, subject};
use crate::lease::HeldLease;
use crate::testing::PutFault;

pub(super) const CHECKS: &[Check] = &[
    ("a take whose answer is lost", |suite| lost_take(suite).boxed()),
    ("a renewal whose answer is lost", |suite| lost_renewal(suite).boxed()),
    ("a renewal that lands late", |suite| late_renewal(suite).boxed()),
    ("a renewal that lands too late", |suite| overtaken_renewal(suite).boxed()),
    ("a release whose answer is lost", |suite| lost_release(suite).boxed()),
    ("a release that lands late", |suite| late_release(suite).boxed()),
    ("a take that lands late", |suite| late_take(suite).boxed()),
    ("a break whose answer is lost", |suite| lost_break(suite).boxed()),
];

/// Checks that an operation of an impatient process ended with an unknown outcome.
fn in_doubt<T>(result: &leasehold_core::Result<T>) {
    let is_unknown = result.as_ref().is_err_and(leasehold_core::Error::outcome_is_unknown);
    assert!(is_unknown, "a request without an answer returned: {:?}", result.as_ref().err());
}

/// Checks that a process holds the lease: its renewal succeeds, and another process is refused.
async fn still_holds(holder: &Process, held: &mut HeldLease, epoch: u64, other: &Process) {
    assert!(holder.trusts(held), "trust");
    holder.keeps(held).await;
    assert_eq!(held.lease.epoch, epoch, "the epoch");
    assert_eq!(other.read(&held.key).await.as_ref(), Some(&held.lease), "the lease that the holder knows");
    other.is_refused(&held.key).await;
}

async fn lost_take(suite: &LeaseSuite) {
    let (first, second, key) = suite.pair("lost-take", Process::usual).await;
    first.store.next(PutFault::AnswerLost);
    let mut held = first.hold(&key).await;
    still_holds(&first, &mut held, 1, &second).await;
    first.release(held).await;
    first.store.next(PutFault::AnswerLost);
    let mut held = first.hold(&key).await;
    still_holds(&first, &mut held, 2, &second).await;
}

async fn lost_renewal(suite: &LeaseSuite) {
    let (first, second, key) = suite.pair("lost-renewal", Process::usual).await;
    let mut held = first.hold(&key).await;
    first.store.next(PutFault::AnswerLost);
    first.keeps(&mut held).await;
    still_holds(&first, &mut held, 1, &second).await;
}

async fn late_renewal(suite: &LeaseSuite) {
    let (first, second, key) = suite.pair("late-renewal", Process::impatient).await;
    let mut held = first.hold(&key).await;
    let confirmed = held.lease.expires_at;
    suite.pass(suite.extent.ttl / 10).await;
    for _ in 0..2 {
        first.store.next(PutFault::Late);
        in_doubt(&first.renew(&mut held).await);
        assert_eq!(held.lease.expires_at, confirmed, "the expiry that is trusted");
    }
    first.store.apply_late().await.unwrap();
    still_holds(&first, &mut held, 1, &second).await;
}

async fn overtaken_renewal(suite: &LeaseSuite) {
    let (first, second, key) = suite.pair("overtaken-renewal", Process::impatient).await;
    let mut held = first.hold(&key).await;
    first.store.next(PutFault::Late);
    in_doubt(&first.renew(&mut held).await);
    first.keeps(&mut held).await;
    let before = second.bytes(&key).await;
    first.store.apply_late().await.unwrap();
    assert_eq!(second.bytes(&key).await, before, "the lease after a late renewal");
    still_holds(&first, &mut held, 1, &second).await;
    first.store.next(PutFault::Late);
    in_doubt(&first.renew(&mut held).await);
    first.release(held).await;
    first.store.apply_late().await.unwrap();
    assert_eq!(second.hold(&key).await.lease.epoch, 2, "the epoch after release");
}

async fn lost_release(suite: &LeaseSuite) {
    let (first, second, key) = suite.pair("lost-release", Process::usual).await;
    let held = first.hold(&key).await;
    first.store.next(PutFault::AnswerLost);
    first.release(held).await;
    assert_eq!(second.hold(&key).await.lease.epoch, 2, "the epoch after release");
}

/// A process with an unknown outcome does not hold the lease; when it tries again, it finds that it does.
async fn late_take(suite: &LeaseSuite) {
    let (first, second, key) = suite.pair("late-take", Process::impatient).await;
    first.store.next(PutFault::Late);
    in_doubt(&first.take(&key).await);
    first.store.apply_late().await.unwrap();
    second.is_refused(&key).await;
    let mut held = first.hold(&key).await;
    still_holds(&first, &mut held, 2, &second).await;
    // Too late: another process was faster.
    let key = suite.key("too-late-take");
    first.store.next(PutFault::Late);
    in_doubt(&first.take(&key).await);
    let mut taken = second.hold(&key).await;
    first.store.apply_late().await.unwrap();
    first.is_refused(&key).await;
    still_holds(&second, &mut taken, 1, &first).await;
}

/// A process that takes a lease again after releasing it holds it, whenever the release is applied.
async fn late_release(suite: &LeaseSuite) {
    let (first, second, key) = suite.pair("late-release", Process::impatient).await;
    let held = first.hold(&key).await;
    first.store.next(PutFault::Late);
    let released = first.protocol.release(&first.leases(), held).await;
    in_doubt(&released);
    let mut held = first.hold(&key).await;
    first.store.apply_late().await.unwrap();
    second.is_refused(&key).await;
    still_holds(&first, &mut held, 2, &second).await;
}

/// A break ends the lease that was held when it was requested, not the next one too.
async fn lost_break(suite: &LeaseSuite) {
    let (second, first, key) = suite.pair("lost-break", Process::impatient).await;
    let mut held = first.hold(&key).await;
    second.store.next(PutFault::Late);
    in_doubt(&crate::lease::break_lease(&second.client, &key, &subject()).await);
    first.keeps(&mut held).await;
    second.store.apply_late().await.unwrap();
    still_holds(&first, &mut held, 1, &second).await;
}
