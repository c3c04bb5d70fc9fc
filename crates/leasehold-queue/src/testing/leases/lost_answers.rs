//! Requests whose answer is lost, and requests that are applied late: the holder of a lease continues to hold it.

use futures::FutureExt;

use super::{Check, Checked, LeaseSuite, Process, failed, same, subject};
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
fn in_doubt<T>(result: leasehold_core::Result<T>) -> Checked {
    match result {
        Err(error) if error.outcome_is_unknown() => Ok(()),
        Err(error) => Err(format!("a request without an answer returned: {error}")),
        Ok(_) => Err("a request without an answer was treated as answered".into()),
    }
}

/// Checks that a process holds the lease: its renewal succeeds, and another process is refused.
async fn still_holds(holder: &Process, held: &mut HeldLease, epoch: u64, other: &Process) -> Checked {
    same("trust", &holder.trusts(held)?, &true)?;
    holder.keeps(held).await?;
    same("the epoch", &held.lease().epoch, &epoch)?;
    same("the lease that the holder knows", &other.read(held.key()).await?.as_ref(), &Some(held.lease()))?;
    other.is_refused(held.key()).await
}

async fn lost_take(suite: &LeaseSuite) -> Checked {
    let (first, second) = (suite.process("first").await?, suite.process("second").await?);
    let key = suite.key("lost-take");
    first.store.next(PutFault::AnswerLost);
    let mut held = first.hold(&key).await?;
    still_holds(&first, &mut held, 1, &second).await?;
    first.release(held).await?;
    first.store.next(PutFault::AnswerLost);
    let mut held = first.hold(&key).await?;
    still_holds(&first, &mut held, 2, &second).await
}

async fn lost_renewal(suite: &LeaseSuite) -> Checked {
    let (first, second) = (suite.process("first").await?, suite.process("second").await?);
    let key = suite.key("lost-renewal");
    let mut held = first.hold(&key).await?;
    first.store.next(PutFault::AnswerLost);
    first.keeps(&mut held).await?;
    still_holds(&first, &mut held, 1, &second).await
}

async fn late_renewal(suite: &LeaseSuite) -> Checked {
    let (first, second) = (suite.impatient("first").await?, suite.process("second").await?);
    let key = suite.key("late-renewal");
    let mut held = first.hold(&key).await?;
    let confirmed = held.lease().expires_at;
    suite.pass(suite.extent.ttl / 10).await;
    for _ in 0..2 {
        first.store.next(PutFault::Late);
        in_doubt(first.renew(&mut held).await)?;
        same("the expiry that is trusted", &held.lease().expires_at, &confirmed)?;
    }
    first.store.apply_late().await.map_err(|failure| failed(failure.error))?;
    still_holds(&first, &mut held, 1, &second).await
}

async fn overtaken_renewal(suite: &LeaseSuite) -> Checked {
    let (first, second) = (suite.impatient("first").await?, suite.process("second").await?);
    let key = suite.key("overtaken-renewal");
    let mut held = first.hold(&key).await?;
    first.store.next(PutFault::Late);
    in_doubt(first.renew(&mut held).await)?;
    first.keeps(&mut held).await?;
    let before = second.bytes(&key).await?;
    first.store.apply_late().await.map_err(|failure| failed(failure.error))?;
    same("the lease after a late renewal", &second.bytes(&key).await?, &before)?;
    still_holds(&first, &mut held, 1, &second).await?;
    first.store.next(PutFault::Late);
    in_doubt(first.renew(&mut held).await)?;
    first.release(held).await?;
    first.store.apply_late().await.map_err(|failure| failed(failure.error))?;
    same("the epoch after release", &second.hold(&key).await?.lease().epoch, &2)
}

async fn lost_release(suite: &LeaseSuite) -> Checked {
    let (first, second) = (suite.process("first").await?, suite.process("second").await?);
    let key = suite.key("lost-release");
    let held = first.hold(&key).await?;
    first.store.next(PutFault::AnswerLost);
    first.release(held).await?;
    same("the epoch after release", &second.hold(&key).await?.lease().epoch, &2)
}

/// A process with an unknown outcome does not hold the lease; when it tries again, it finds that it does.
async fn late_take(suite: &LeaseSuite) -> Checked {
    let (first, second) = (suite.impatient("first").await?, suite.process("second").await?);
    let key = suite.key("late-take");
    first.store.next(PutFault::Late);
    in_doubt(first.take(&key).await)?;
    first.store.apply_late().await.map_err(|failure| failed(failure.error))?;
    second.is_refused(&key).await?;
    let mut held = first.hold(&key).await?;
    still_holds(&first, &mut held, 2, &second).await?;
    // Too late: another process was faster.
    let key = suite.key("too-late-take");
    first.store.next(PutFault::Late);
    in_doubt(first.take(&key).await)?;
    let mut taken = second.hold(&key).await?;
    first.store.apply_late().await.map_err(|failure| failed(failure.error))?;
    first.is_refused(&key).await?;
    still_holds(&second, &mut taken, 1, &first).await
}

/// A process that takes a lease again after releasing it holds it, whenever the release is applied.
async fn late_release(suite: &LeaseSuite) -> Checked {
    let (first, second) = (suite.impatient("first").await?, suite.process("second").await?);
    let key = suite.key("late-release");
    let held = first.hold(&key).await?;
    first.store.next(PutFault::Late);
    let released = first.protocol.release(&first.client, &first.holder, held).await;
    in_doubt(released)?;
    let mut held = first.hold(&key).await?;
    first.store.apply_late().await.map_err(|failure| failed(failure.error))?;
    second.is_refused(&key).await?;
    still_holds(&first, &mut held, 2, &second).await
}

/// A break ends the lease that was held when it was requested, not the next one too.
async fn lost_break(suite: &LeaseSuite) -> Checked {
    let (first, second) = (suite.process("first").await?, suite.impatient("second").await?);
    let key = suite.key("lost-break");
    let mut held = first.hold(&key).await?;
    second.store.next(PutFault::Late);
    in_doubt(crate::lease::break_lease(&second.client, &key, &subject()).await)?;
    first.keeps(&mut held).await?;
    second.store.apply_late().await.map_err(|failure| failed(failure.error))?;
    still_holds(&first, &mut held, 1, &second).await
}
