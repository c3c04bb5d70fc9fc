//! `leasehold quarantine`: quarantines corrupt objects.

use clap::Args;
use leasehold_core::{Error, Result, keys};
use leasehold_pieces::manifest::ManifestRecord;
use leasehold_queue::quarantine::QuarantineOutcome;
use leasehold_queue::{Keep, ObjectQueue, Quarantined};
use leasehold_store::Purpose;
use serde_json::json;

use crate::printer::{Printer, line};

#[derive(Debug, Args)]
pub(crate) struct QuarantineArgs {
    /// Keys of corrupt objects, as `leasehold check` prints them
    #[arg(value_name = "KEY", required = true)]
    keys: Vec<String>,
    /// Do not keep a copy below `quarantine/`
    #[arg(long)]
    delete: bool,
}

pub(crate) async fn run(queue: &ObjectQueue, args: &QuarantineArgs, printer: &Printer) -> anyhow::Result<()> {
    let keep = if args.delete { Keep::Nothing } else { Keep::Copy };
    for key in &args.keys {
        let quarantined = match quarantine_manifest(queue, key, keep).await? {
            Some(quarantined) => quarantined,
            None => queue.quarantine(key, keep).await?,
        };
        if printer.is_json() {
            line(json!(quarantined));
        } else {
            print(&quarantined);
        }
    }
    Ok(())
}

fn print(quarantined: &Quarantined) {
    let Quarantined { key, copy, outcome } = quarantined;
    let done = match outcome {
        QuarantineOutcome::TaskCancelled => "task cancelled",
        QuarantineOutcome::KeyFreed => "idempotency key freed",
        QuarantineOutcome::LeaseReleased => "lease released",
        QuarantineOutcome::Rewritten => "rewritten",
        QuarantineOutcome::Deleted => "deleted",
    };
    match copy {
        Some(copy) => line(format_args!("{key}: {done}; copy at {copy}")),
        None => line(format_args!("{key}: {done}; no copy kept")),
    }
}

/// Marks an artifact whose manifest is corrupt for removal, as a prune does. Returns `None` if this is not the key of a
/// manifest. The file can be published again once no delete of its data can be under way.
async fn quarantine_manifest(queue: &ObjectQueue, key: &str, keep: Keep) -> Result<Option<Quarantined>> {
    let Some(artifact) = keys::parse_manifest(key) else { return Ok(None) };
    let client = queue.client();
    let found = client.get(Purpose::Admin, key).await?;
    let object = found.ok_or_else(|| Error::invalid(format!("no object at `{key}`")))?;
    if ManifestRecord::read(key, &artifact, &object.body).is_ok() {
        return Err(Error::invalid(format!("`{key}` is not corrupt")));
    }
    let deleting = ManifestRecord::Deleting(queue.now()?.latest_known()).write(&artifact, client.write_id());
    let copy = queue.replace_corrupt(key, &object, deleting, keep).await?;
    Ok(Some(Quarantined { key: key.to_owned(), copy, outcome: QuarantineOutcome::Rewritten }))
}
