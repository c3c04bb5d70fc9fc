//! When a lease may be taken over: when it has run out beyond doubt, and not a moment before.

use futures::FutureExt;
use leasehold_core::lease::RELEASED_BYTES;
use leasehold_store::Purpose;
use std::time::Duration;

use super::{Check, Checked, Process, Suite, Time, failed, same};
use crate::lease::{HeldLease, Taken};

pub(super) const CHECKS: &[Check] = &[
    ("nobody takes what is trusted", |suite| trusted(suite).boxed()),
    ("the boundary at expiry", |suite| boundary(suite).boxed()),
    ("what was released can be taken at once", |suite| released(suite).boxed()),
    ("a renewed lease outlives its first expiry", |suite| renewed(suite).boxed()),
];

const MILLISECOND: Duration = Duration::from_millis(1);

/// How often one looks whether real time has passed, in parts of a ttl.
const LOOKS: u32 = 20;

/// Lets time pass until each of these processes sees beyond doubt that a lease has run out.
pub(super) async fn until_run_out(suite: &Suite, processes: &[Process], held: Option<&HeldLease>) -> Checked {
    let Some(held) = held else { return Ok(()) };
    if let Time::Moved(_) = suite.time {
        suite.pass(suite.extent.ttl + MILLISECOND).await;
    }
    for process in processes {
        while !process.now()?.is_past(held.lease().expires_at) {
            suite.pass(suite.extent.ttl / LOOKS).await;
            // Answers narrow what is known of the time.
            process.client.get(Purpose::Lease, held.key()).await.map_err(failed)?;
        }
    }
    Ok(())
}

/// The first holder does nothing more; another one tries until it gets it. Neither ever trusts while the other does.
async fn trusted(suite: &Suite) -> Checked {
    let (first, second) = (suite.brief("first").await?, suite.process("second").await?);
    let key = suite.key("trusted");
    let held = first.hold(&key).await?;
    if !first.trusts(&held)? {
        return Err(format!("a lease of {:?} is not trusted by who took it just now", suite.extent.ttl));
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
        suite.pass(suite.extent.ttl / LOOKS).await;
    }
    if refusals == 0 { Err("a lease that was just taken was taken again".into()) } else { Ok(()) }
}

async fn boundary(suite: &Suite) -> Checked {
    let Time::Moved(_) = suite.time else { return Ok(()) };
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

async fn released(suite: &Suite) -> Checked {
    let (first, second) = (suite.process("first").await?, suite.process("second").await?);
    let key = suite.key("given-back");
    let held = first.hold(&key).await?;
    is_shown_as(&second, &key, false).await?;
    let mut copy = held.clone();
    first.release(held).await?;
    is_shown_as(&second, &key, true).await?;
    same("the lease after release", &second.read(&key).await?.map(|lease| lease.epoch), &Some(1))?;
    // Whoever has released it cannot have it back by a renewal.
    first.has_lost(&mut copy).await?;
    let taken = second.hold(&key).await?;
    same("the epoch after release", &taken.lease().epoch, &2)?;
    is_shown_as(&first, &key, false).await?;
    first.is_refused(&key).await
}

/// A list shows by its size whether a lease was released.
async fn is_shown_as(process: &Process, key: &str, released: bool) -> Checked {
    let size = process.size(key).await?;
    let shown = size.map(|size| size >= RELEASED_BYTES);
    same(&format!("a lease of {size:?} bytes, as released,"), &shown, &Some(released))
}

async fn renewed(suite: &Suite) -> Checked {
    let Time::Moved(_) = suite.time else { return Ok(()) };
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
