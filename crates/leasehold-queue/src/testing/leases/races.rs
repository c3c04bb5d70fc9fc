//! Many concurrent takers: one of them wins, whether the lease is new, was released, or has expired.

use futures::FutureExt;
use tokio::task::JoinSet;

use super::{Check, Checked, LeaseSuite, Process, failed, same};
use crate::lease::{HeldLease, Taken};

pub(super) const CHECKS: &[Check] = &[
    ("one taker wins", |suite| winners(suite).boxed()),
    ("one taker wins a released lease", |suite| released(suite).boxed()),
    ("one taker wins an expired lease", |suite| expired(suite).boxed()),
];

fn keys(suite: &LeaseSuite, name: &str) -> Vec<String> {
    (0..suite.extent.contested).map(|number| suite.key(&format!("{name}/{number:03}"))).collect()
}

async fn processes(suite: &LeaseSuite) -> Result<Vec<Process>, String> {
    let mut processes = Vec::new();
    for number in 0..suite.extent.takers {
        processes.push(suite.process(&format!("w{number}")).await?);
    }
    Ok(processes)
}

/// Lets all processes try to take all keys. Each key must have one winner, with this epoch. Returns the winners.
async fn race(
    processes: &[Process],
    keys: &[String],
    epoch: u64,
) -> Result<Vec<(Process, HeldLease)>, String> {
    let mut takers = JoinSet::new();
    for process in processes {
        let (process, keys) = (process.clone(), keys.to_vec());
        takers.spawn(async move {
            let mut won = Vec::new();
            for key in keys {
                if let Taken::Ours(held) = process.take(&key).await? {
                    won.push((process.clone(), held));
                }
            }
            Ok::<_, leasehold_core::Error>(won)
        });
    }
    let mut won = Vec::new();
    while let Some(done) = takers.join_next().await {
        won.extend(done.map_err(failed)?.map_err(failed)?);
    }
    for key in keys {
        let of_key = won.iter().filter(|(_, held)| held.key() == key);
        let epochs: Vec<_> = of_key.map(|(_, held)| held.lease().epoch).collect();
        same(&format!("the list of the epochs with which `{key}` was won"), &epochs, &vec![epoch])?;
    }
    Ok(won)
}

async fn winners(suite: &LeaseSuite) -> Checked {
    race(&processes(suite).await?, &keys(suite, "new"), 1).await.map(|_| ())
}

async fn released(suite: &LeaseSuite) -> Checked {
    let (processes, keys) = (processes(suite).await?, keys(suite, "released"));
    for epoch in 1..4 {
        for (process, held) in race(&processes, &keys, epoch).await? {
            process.release(held).await?;
        }
    }
    Ok(())
}

async fn expired(suite: &LeaseSuite) -> Checked {
    let (processes, keys) = (processes(suite).await?, keys(suite, "run-out"));
    let mut first = Vec::new();
    let former = suite.brief("former").await?;
    for key in &keys {
        first.push(former.hold(key).await?);
    }
    super::expiry::until_expired(suite, &processes, first.last()).await?;
    race(&processes, &keys, 2).await?;
    for held in &mut first {
        former.has_lost(held).await?;
    }
    Ok(())
}
