//! Many concurrent takers: one of them wins, whether the lease is new, was released, or has expired.

use futures::FutureExt;
use tokio::task::JoinSet;

use super::{Check, LeaseSuite, Process};
use crate::lease::{HeldLease, Taken};

pub(super) const CHECKS: &[Check] = &[
    ("one taker wins", |suite| winners(suite).boxed()),
    ("one taker wins a released lease", |suite| released(suite).boxed()),
    ("one taker wins an expired lease", |suite| expired(suite).boxed()),
];

fn keys(suite: &LeaseSuite, name: &str) -> Vec<String> {
    (0..suite.extent.contested).map(|number| suite.key(&format!("{name}/{number:03}"))).collect()
}

async fn processes(suite: &LeaseSuite) -> Vec<Process> {
    let mut processes = Vec::new();
    for number in 0..suite.extent.takers {
        processes.push(suite.process(&format!("w{number}")).await);
    }
    processes
}

/// Lets all processes try to take all keys. Each key must have one winner, with this epoch. Returns the winners.
async fn race(processes: &[Process], keys: &[String], epoch: u64) -> Vec<(Process, HeldLease)> {
    let mut takers = JoinSet::new();
    for process in processes {
        let (process, keys) = (process.clone(), keys.to_vec());
        takers.spawn(async move {
            let mut won = Vec::new();
            for key in keys {
                if let Taken::Ours(held) = process.take(&key).await.unwrap() {
                    won.push((process.clone(), held));
                }
            }
            won
        });
    }
    let mut won = Vec::new();
    while let Some(done) = takers.join_next().await {
        won.extend(done.unwrap());
    }
    for key in keys {
        let of_key = won.iter().filter(|(_, held)| held.key == *key);
        let epochs: Vec<_> = of_key.map(|(_, held)| held.lease.epoch).collect();
        assert_eq!(epochs, vec![epoch], "the list of the epochs with which `{key}` was won");
    }
    won
}

async fn winners(suite: &LeaseSuite) {
    race(&processes(suite).await, &keys(suite, "new"), 1).await;
}

async fn released(suite: &LeaseSuite) {
    let (processes, keys) = (processes(suite).await, keys(suite, "released"));
    for epoch in 1..4 {
        for (process, held) in race(&processes, &keys, epoch).await {
            process.release(held).await;
        }
    }
}

async fn expired(suite: &LeaseSuite) {
    let (processes, keys) = (processes(suite).await, keys(suite, "run-out"));
    let mut first = Vec::new();
    let former = suite.process("former").await.brief();
    for key in &keys {
        first.push(former.hold(key).await);
    }
    super::expiry::until_expired(suite, &processes, first.last()).await;
    race(&processes, &keys, 2).await;
    for held in &mut first {
        former.has_lost(held).await;
    }
}
