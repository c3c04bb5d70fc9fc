//! `leasehold leases break`: breaks a lease with a conditional write. Nothing is deleted: the next holder's epoch is higher.

use clap::Args;
use leasehold_core::{Error, Lease, Result, ShardLen, ShardRange, WorkerId, keys};
use leasehold_queue::lease::{shards_subject, worker_subject};
use leasehold_queue::{ObjectQueue, break_lease};
use serde_json::{Map, Value, json};
use std::fmt;

use crate::printer::{Printer, line};
use crate::table::moment;

#[derive(Debug, Args)]
pub(crate) struct BreakLeaseArgs {
    /// Lease to break: `worker:ID` for a worker lease, `inbox:ID` for the inbox of a worker, `shard:SHARD` for the group of
    /// shards with this shard, or the key of a lease
    #[arg(value_name = "worker:ID|inbox:ID|shard:SHARD|KEY")]
    lease: String,
}

/// Subject of a lease: a worker id, an inbox or a group of shards.
struct Subject {
    key: String,
    name: String,
    /// Fields of the lease record that name its subject.
    fields: Map<String, Value>,
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl Subject {
    fn parse(text: &str, len: ShardLen) -> Result<Self> {
        if let Some(name) = text.strip_prefix("worker:") {
            return Ok(Self::worker(&WorkerId::checked("worker id", name)?));
        }
        if let Some(name) = text.strip_prefix("inbox:") {
            return Ok(Self::inbox(&WorkerId::checked("worker id", name)?));
        }
        if let Some(shard) = text.strip_prefix("shard:") {
            let shard = len.parse(shard)?;
            let group = len.groups().into_iter().find(|group| group.contains(&shard));
            let group = group.expect("the groups hold every shard");
            return Ok(Self::group(&group));
        }
        let group = len.groups().into_iter().find(|group| keys::shard_lease(group) == text);
        match (group, keys::parse_worker_lease(text), keys::parse_inbox_lease(text)) {
            (Some(group), _, _) => Ok(Self::group(&group)),
            (None, Some(worker), _) => Ok(Self::worker(&worker)),
            (None, None, Some(worker)) => Ok(Self::inbox(&worker)),
            (None, None, None) => Err(Error::invalid(format!(
                "`{text}` is not a lease of this queue; use worker:ID, inbox:ID, shard:SHARD, or a key below {} or {}",
                keys::SHARD_LEASES,
                keys::WORKERS,
            ))),
        }
    }

    fn group(group: &ShardRange) -> Self {
        let shards = if group.count() == 1 { "shard" } else { "shards" };
        Self {
            key: keys::shard_lease(group),
            name: format!("{shards} {group}"),
            fields: shards_subject(group),
        }
    }

    fn inbox(worker: &WorkerId) -> Self {
        Self {
            key: keys::inbox_lease(worker),
            name: format!("inbox of {worker}"),
            fields: worker_subject(worker),
        }
    }

    fn worker(worker: &WorkerId) -> Self {
        Self {
            key: keys::worker_lease(worker),
            name: format!("worker {worker}"),
            fields: worker_subject(worker),
        }
    }
}

pub(crate) async fn run_break(
    queue: &ObjectQueue,
    args: &BreakLeaseArgs,
    printer: &Printer,
) -> anyhow::Result<()> {
    let subject = Subject::parse(&args.lease, queue.shard_len())?;
    let Some(found) = break_lease(queue.client(), &subject.key, &subject.fields).await? else {
        let place = queue.client().describe();
        return Err(Error::invalid(format!("no lease for {subject} in {place}")).into());
    };
    // The holder of a corrupt lease is unknown.
    let Some(was) = found.lease else {
        if printer.is_json() {
            line(json!({"key": subject.key, "broken": true, "was": null}));
        } else {
            line(format_args!("lease on {subject} broken: it was corrupt"));
        }
        return Ok(());
    };
    if printer.is_json() {
        let until = Some(was.expires_at).filter(|_| !was.is_released());
        line(json!({"key": subject.key, "broken": !was.is_released(), "was": {
            "worker_id": was.worker_id, "instance": was.instance, "epoch": was.epoch, "until": until,
        }}));
    } else {
        line(describe_break(&subject, &was, queue)?);
    }
    Ok(())
}

fn describe_break(subject: &Subject, was: &Lease, queue: &ObjectQueue) -> Result<String> {
    let now = queue.now()?;
    let Lease { worker_id, epoch, .. } = was;
    let until = moment(was.expires_at, now.earliest);
    Ok(if was.is_released() {
        format!("lease on {subject} was already free: released by {worker_id}, or broken (epoch {epoch})")
    } else if was.is_free(now) {
        format!("lease on {subject} broken: that of {worker_id} (epoch {epoch}) had expired at {until}")
    } else {
        format!(
            "lease on {subject} broken: {worker_id} held it (epoch {epoch}, until {until}) and loses it at its next \
             renewal"
        )
    })
}
