//! Requests whose answer is lost, and requests that land late: whoever still holds a lease goes on holding it.

use futures::FutureExt;

use super::{Check, Checked, Process, Suite, failed, same};
use crate::lease::HeldLease;
use crate::testing::Luck;

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

/// An operation of an impatient process that did not learn how it ended.
fn in_doubt<T>(result: leasehold_core::Result<T>) -> Checked {
    match result {
        Err(error) if error.outcome_is_unknown() => Ok(()),
        Err(error) => Err(format!("a request without an answer gave: {error}")),
        Ok(_) => Err("a request without an answer was taken for answered".into()),
    }
}

/// It holds the lease: a renewal says so, and nobody else gets it.
async fn goes_on(holder: &Process, held: &mut HeldLease, epoch: u64, other: &Process) -> Checked {
    same("trust", &holder.trusts(held)?, &true)?;
    holder.keeps(held).await?;
    same("the epoch", &held.lease().epoch, &epoch)?;
    same("the lease that the holder knows", &other.read(held.key()).await?.as_ref(), &Some(held.lease()))?;
    other.is_refused(held.key()).await
}

async fn lost_take(suite: &Suite) -> Checked {
    let (first, second) = (suite.process("first").await?, suite.process("second").await?);
    let key = suite.key("lost-take");
    first.store.next(Luck::AnswerLost);
    let mut held = first.hold(&key).await?;
    goes_on(&first, &mut held, 1, &second).await?;
    first.release(held).await?;
    first.store.next(Luck::AnswerLost);
    let mut held = first.hold(&key).await?;
    goes_on(&first, &mut held, 2, &second).await
}

async fn lost_renewal(suite: &Suite) -> Checked {
    let (first, second) = (suite.process("first").await?, suite.process("second").await?);
    let key = suite.key("lost-renewal");
    let mut held = first.hold(&key).await?;
    first.store.next(Luck::AnswerLost);
    first.keeps(&mut held).await?;
    goes_on(&first, &mut held, 1, &second).await
}

async fn late_renewal(suite: &Suite) -> Checked {
    let (first, second) = (suite.impatient("first").await?, suite.process("second").await?);
    let key = suite.key("late-renewal");
    let mut held = first.hold(&key).await?;
    let confirmed = held.lease().expires_at;
    suite.pass(suite.extent.ttl / 10).await;
    for _ in 0..2 {
        first.store.next(Luck::Late);
        in_doubt(first.renew(&mut held).await)?;
        same("the expiry that is trusted", &held.lease().expires_at, &confirmed)?;
    }
    first.store.land().await.map_err(|failure| failed(failure.error))?;
    goes_on(&first, &mut held, 1, &second).await
}

async fn overtaken_renewal(suite: &Suite) -> Checked {
    let (first, second) = (suite.impatient("first").await?, suite.process("second").await?);
    let key = suite.key("overtaken-renewal");
    let mut held = first.hold(&key).await?;
    first.store.next(Luck::Late);
    in_doubt(first.renew(&mut held).await)?;
    first.keeps(&mut held).await?;
    let before = second.bytes(&key).await?;
    first.store.land().await.map_err(|failure| failed(failure.error))?;
    same("the lease after a late renewal", &second.bytes(&key).await?, &before)?;
    goes_on(&first, &mut held, 1, &second).await?;
    first.store.next(Luck::Late);
    in_doubt(first.renew(&mut held).await)?;
    first.release(held).await?;
    first.store.land().await.map_err(|failure| failed(failure.error))?;
    same("the epoch after release", &second.hold(&key).await?.lease().epoch, &2)
}

async fn lost_release(suite: &Suite) -> Checked {
    let (first, second) = (suite.process("first").await?, suite.process("second").await?);
    let key = suite.key("lost-release");
    let held = first.hold(&key).await?;
    first.store.next(Luck::AnswerLost);
    first.release(held).await?;
    same("the epoch after release", &second.hold(&key).await?.lease().epoch, &2)
}

/// Whoever does not know whether it has a lease does not have it; when it asks again, it learns that it has.
async fn late_take(suite: &Suite) -> Checked {
    let (first, second) = (suite.impatient("first").await?, suite.process("second").await?);
    let key = suite.key("late-take");
    first.store.next(Luck::Late);
    in_doubt(first.take(&key).await)?;
    first.store.land().await.map_err(|failure| failed(failure.error))?;
    second.is_refused(&key).await?;
    let mut held = first.hold(&key).await?;
    goes_on(&first, &mut held, 2, &second).await?;
    // Too late: someone else was faster.
    let key = suite.key("too-late-take");
    first.store.next(Luck::Late);
    in_doubt(first.take(&key).await)?;
    let mut taken = second.hold(&key).await?;
    first.store.land().await.map_err(|failure| failed(failure.error))?;
    first.is_refused(&key).await?;
    goes_on(&second, &mut taken, 1, &first).await
}

/// Whoever takes again what it has released holds it, whenever that release lands.
async fn late_release(suite: &Suite) -> Checked {
    let (first, second) = (suite.impatient("first").await?, suite.process("second").await?);
    let key = suite.key("late-release");
    let held = first.hold(&key).await?;
    first.store.next(Luck::Late);
    let released = first.protocol.release(&first.client, &first.holder, held).await;
    in_doubt(released)?;
    let mut held = first.hold(&key).await?;
    first.store.land().await.map_err(|failure| failed(failure.error))?;
    second.is_refused(&key).await?;
    goes_on(&first, &mut held, 2, &second).await
}

/// A break ends the lease that was there when it was asked for, not the next one too.
async fn lost_break(suite: &Suite) -> Checked {
    let (first, second) = (suite.process("first").await?, suite.impatient("second").await?);
    let key = suite.key("lost-break");
    let mut held = first.hold(&key).await?;
    second.store.next(Luck::Late);
    in_doubt(crate::lease::break_lease(&second.client, &key).await)?;
    first.keeps(&mut held).await?;
    second.store.land().await.map_err(|failure| failed(failure.error))?;
    goes_on(&first, &mut held, 1, &second).await
}
