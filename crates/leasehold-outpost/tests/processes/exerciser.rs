//! Process that works on a spool for tests, so that many can compete for one task, and be ended at any step.
//!
//! `spool-exerciser DATA CAMPAIGN/QUEUE race GATE`: for every line of its input, which is the id of a task, it waits until
//! the file GATE is no longer locked and then tries to claim that task. It prints `won EPOCH ATTEMPT` or `none`.
//!
//! `spool-exerciser DATA CAMPAIGN/QUEUE WORD ID STEP`: runs the operation WORD, and aborts before step number STEP.
#![expect(clippy::print_stdout, reason = "the test that started it reads what it prints")]

use leasehold_core::outpost::QueuePath;
use leasehold_core::settlement::Settlement;
use leasehold_core::{Error, HexName, Name, NewTask, Result, State, Task, TaskId};
use leasehold_outpost::{FileHook, HeldTask, Spool};
use leasehold_store::{Host, HostExt, SystemHost};
use serde_json::json;
use std::fs::File;
use std::io::{self, BufRead, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let host: Arc<dyn Host> = Arc::new(SystemHost);
    let open = |data: &str, of: &str| Spool::open(Path::new(data), &of.parse::<QueuePath>()?, host.clone());
    match arguments[..] {
        [data, of, "race", gate] => race(&open(data, of)?, Path::new(gate)),
        [data, of, word, id, step] => {
            let step = step.parse().map_err(|_| Error::invalid("STEP is a number"))?;
            let spool = open(data, of)?.with_file_hook(Arc::new(EndAt { left: AtomicU64::new(step) }));
            act(&spool, word, &id.parse()?)?;
            println!("done");
            Ok(())
        }
        _ => Err(Error::invalid("DATA CAMPAIGN/QUEUE WORD ID STEP")),
    }
}

/// Ends the process at a step.
#[derive(Debug)]
struct EndAt {
    left: AtomicU64,
}

impl FileHook for EndAt {
    fn step(&self, _: &'static str) -> io::Result<()> {
        if self.left.fetch_sub(1, Relaxed) == 1 {
            std::process::abort();
        }
        Ok(())
    }
}

fn race(spool: &Spool, gate: &Path) -> Result<()> {
    let failed = |error: io::Error| Error::invalid(error.to_string());
    let gate = File::open(gate).map_err(failed)?;
    let instance = SystemHost.random_name();
    for line in io::stdin().lock().lines() {
        let id: TaskId = line.map_err(failed)?.parse()?;
        gate.lock_shared().map_err(failed)?;
        let won = spool.claim(&id, &worker()?, &instance)?;
        gate.unlock().map_err(failed)?;
        match won {
            Some(held) => println!("won {} {}", held.lease.epoch, held.lease.attempt),
            None => println!("none"),
        }
        io::stdout().flush().map_err(failed)?;
    }
    Ok(())
}

fn act(spool: &Spool, word: &str, id: &TaskId) -> Result<()> {
    let settle = |settlement| spool.settle(&held(spool, id)?, settlement).map(|_| ());
    let fail = |retryable| Settlement::Fail { error: "it broke".into(), retryable, after: None };
    match word {
        "submit" => {
            let mut order = NewTask::new("work", json!({"n": 1}))?;
            order.idempotency_key = Some("once".into());
            spool.submit(order).map(|_| ())
        }
        "claim" => {
            let claimed = spool.claim(id, &worker()?, &HexName::from_random(7))?;
            claimed.map(|_| ()).ok_or_else(|| Error::invalid("nothing to claim"))
        }
        "heartbeat" => spool.heartbeat(&mut held(spool, id)?).map(|_| ()),
        "complete" => settle(Settlement::complete(json!("output"))),
        "fail" => settle(fail(true)),
        "fail-for-good" => settle(fail(false)),
        "release" => settle(Settlement::Release),
        "stop" => settle(Settlement::Stop),
        "cancel" => spool.cancel(id),
        "requeue" => spool.requeue(id).map(|_| ()),
        "mirror" => spool.mirror(&known(spool)?, None).map(|_| ()),
        "forget" => spool.remove_copy(id).map(|_| ()),
        "confirm" | "revoke" => {
            let held = held(spool, id)?;
            let mut remote = held.task;
            remote.rev = 12;
            remote.epoch = 6;
            remote.attempt = 3;
            if let State::Pending { .. } = remote.state {
                let by = worker()?;
                let expires_at = held.lease.expires_at;
                let claim =
                    leasehold_core::task::Claim { by, expires_at, renewed_at: None, cancel_requested: false };
                remote.state = State::Running(claim);
            }
            let is_done = match word {
                "confirm" => spool.confirm(id, &held.lease.lease_id, &remote)?,
                _ => spool.revoke(id, &held.lease.lease_id, true)?,
            };
            if is_done { Ok(()) } else { Err(Error::invalid("task has no such lease")) }
        }
        _ => Err(Error::invalid(format!("unknown operation `{word}`"))),
    }
}

/// A task of the bucket, which the test has left in a file beside the spool.
fn known(spool: &Spool) -> Result<Task> {
    let failed = |error: io::Error| Error::invalid(error.to_string());
    let body = std::fs::read(spool.root().join("../../../remote.json")).map_err(failed)?;
    leasehold_core::record::read_elsewhere("remote.json", &body)
}

/// Returns the task and its lease, to act as its holder.
fn held(spool: &Spool, id: &TaskId) -> Result<HeldTask> {
    match (spool.get(id)?, spool.lease_of(id)?) {
        (Some(task), Some(lease)) => Ok(HeldTask { task, lease }),
        found => Err(Error::invalid(format!("it is not held: {found:?}"))),
    }
}

fn worker() -> Result<Name> {
    Name::checked("worker id", "exerciser")
}
