//! Take-over of a lease: once it has certainly expired, and not before.

use futures::FutureExt;
use leasehold_core::lease::RELEASED_BYTES;
use leasehold_store::Purpose;
use std::time::Duration;

use super::{Check, Checked, LeaseSuite, Process, Time, failed, same};
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
pub(super) async fn until_expired(
    suite: &LeaseSuite,
    processes: &[Process],
    held: Option<&HeldLease>,
) -> Checked {
    let Some(held) = held else { return Ok(()) };
    if let Time::Manual(_) = suite.time {
        suite.pass(suite.extent.ttl + MILLISECOND).await;
    }
    for process in processes {
        while !process.now()?.is_past(held.lease().expires_at) {
            suite.pass(suite.extent.ttl / POLLS).await;
            // Each answer narrows the estimate of the store's time.
            process.client.get(Purpose::Lease, held.key()).await.map_err(failed)?;
        }
    }
    Ok(())
}

/// The first holder stops renewing; another process tries until it gets the lease. At no time do both trust it.
async fn trusted(suite: &LeaseSuite) -> Checked {
    let (first, second) = (suite.brief("first").await?, suite.process("second").await?);
    let key = suite.key("trusted");
    let held = first.hold(&key).await?;
    if !first.trusts(&held)? {
        return Err(format!("a lease of {:?} is not trusted by its new holder", suite.extent.ttl));
    }
    let mut refusals = 0;
    loop {
        match second.take(&key).await.map_err(failed)? {
            Taken::Others(_) => refusals += 1,
            Taken::Ours(_) if first.trusts(&held)? => {
                return Err("a lease was taken over while its holder trusted it".into());
            }
            Taken::Ours(taken) => {
                same("the epoch", &taken.lease().epoch, &2)?;
                break;
            }
        }
        suite.pass(suite.extent.ttl / POLLS).await;
    }
    if refusals == 0 { Err("a lease that was just taken was taken again".into()) } else { Ok(()) }
}

async fn boundary(suite: &LeaseSuite) -> Checked {
    let Time::Manual(_) = suite.time else { return Ok(()) };
    let (first, second) = (suite.process("first").await?, suite.process("second").await?);
    let key = suite.key("boundary");
    let mut held = first.hold(&key).await?;
    suite.pass(suite.extent.ttl.saturating_sub(MILLISECOND)).await;
    same("trust a moment before expiry", &first.trusts(&held)?, &true)?;
    second.is_refused(&key).await?;
    suite.pass(MILLISECOND).await;
    same("trust at expiry", &first.trusts(&held)?, &false)?;
    second.is_refused(&key).await?;
    suite.pass(MILLISECOND).await;
    same("the epoch after a take-over", &second.hold(&key).await?.lease().epoch, &2)?;
    first.has_lost(&mut held).await
}

async fn released(suite: &LeaseSuite) -> Checked {
    let (first, second) = (suite.process("first").await?, suite.process("second").await?);
    let key = suite.key("given-back");
    let held = first.hold(&key).await?;
    is_shown_as(&second, &key, false).await?;
    let mut copy = held.clone();
    first.release(held).await?;
    is_shown_as(&second, &key, true).await?;
    same("the lease after release", &second.read(&key).await?.map(|lease| lease.epoch), &Some(1))?;
    // A holder that has released it cannot get it back by a renewal.
    first.has_lost(&mut copy).await?;
    let taken = second.hold(&key).await?;
    same("the epoch after release", &taken.lease().epoch, &2)?;
    is_shown_as(&first, &key, false).await?;
    first.is_refused(&key).await
}

/// Checks that a list shows by the size whether a lease was released.
async fn is_shown_as(process: &Process, key: &str, released: bool) -> Checked {
    let size = process.size(key).await?;
    let shown = size.map(|size| size >= RELEASED_BYTES);
    same(&format!("a lease of {size:?} bytes, as released,"), &shown, &Some(released))
}

async fn renewed(suite: &LeaseSuite) -> Checked {
    let Time::Manual(_) = suite.time else { return Ok(()) };
    let (first, second) = (suite.process("first").await?, suite.process("second").await?);
    let key = suite.key("renewed");
    let mut held = first.hold(&key).await?;
    for _ in 0..6 {
        suite.pass(suite.extent.ttl * 2 / 3).await;
        same("trust before a renewal", &first.trusts(&held)?, &true)?;
        first.keeps(&mut held).await?;
        second.is_refused(&key).await?;
    }
    same("the epoch after renewals", &held.lease().epoch, &1)?;
    suite.pass(suite.extent.ttl + MILLISECOND).await;
    same("the epoch after a take-over", &second.hold(&key).await?.lease().epoch, &2)
}
