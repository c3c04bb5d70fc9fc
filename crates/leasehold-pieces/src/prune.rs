//! Removing artifacts whose retention is over. What may be removed when is told in [`crate::manifest`].
//!
//! Requests: 1 list for every thousand objects; 1 get for each manifest whose stamp is not of today, and 1 put when it is
//! over; a day later 1 get, 1 put and 2 deletes. Data without a manifest goes in two prunes: 1 get, 1 put and 1 delete, and a
//! day later 1 get, 1 put and 2 deletes.

use leasehold_core::{ArtifactId, Kind, Result, StoreTime, keys};
use leasehold_store::mutant::{Rule, breaks};
use leasehold_store::{Client, Decision, List, Purpose, Standing, update};
use std::collections::BTreeMap;
use std::time::Duration;

use crate::manifest::{Manifest, Record};
use crate::publish::{DELETE_LANDS_WITHIN, no_time};

/// An artifact can still be read for so long after its retention is over: a task that was given it just before may run.
pub const LEAVING: Duration = Duration::from_hours(24);

/// Data without a manifest is what a publisher has left that died, or is still at it, for at most so long.
pub const UNFINISHED: Duration = Duration::from_hours(7 * 24);

/// Deletes are sent so soon after the manifest says *closing*, or not at all.
const DELETE_SENT_WITHIN: Duration = Duration::from_mins(1);

/// What a prune has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Pruned {
    /// Artifacts that were looked at.
    pub seen: u64,
    /// Artifacts whose retention is over: they go in a day.
    pub leaving: u64,
    /// Artifacts that are gone.
    pub removed: u64,
}

/// An artifact as a list shows it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Listed {
    /// When its manifest was written.
    pub manifest: Option<StoreTime>,
    /// When its data was written, and how much it is.
    pub data: Option<(StoreTime, u64)>,
}

/// Whether anything lies there: one list.
pub async fn are_any(client: &Client, purpose: Purpose) -> Result<bool> {
    Ok(!client.list(purpose, &List::all(keys::ARTIFACTS)).await?.entries.is_empty())
}

/// All that lies in the store of artifacts.
pub async fn list(client: &Client, purpose: Purpose) -> Result<BTreeMap<ArtifactId, Listed>> {
    let mut artifacts: BTreeMap<ArtifactId, Listed> = BTreeMap::new();
    let all = List::all(keys::ARTIFACTS);
    let mut next = Some(all.clone());
    while let Some(list) = next {
        let page = client.list(purpose, &list).await?;
        for entry in page.entries {
            if let Some(artifact) = keys::parse_manifest(&entry.key) {
                artifacts.entry(artifact).or_default().manifest = Some(entry.modified);
            } else if let Some(artifact) = keys::parse_artifact_data(&entry.key) {
                artifacts.entry(artifact).or_default().data = Some((entry.modified, entry.size));
            }
        }
        next = page.next.map(|cursor| all.clone().at(cursor));
    }
    Ok(artifacts)
}

/// Removes what is over. One artifact that cannot be dealt with does not keep the others.
pub async fn prune(client: &Client) -> Result<Pruned> {
    let mut pruned = Pruned::default();
    for (artifact, listed) in list(client, Purpose::Sweep).await? {
        pruned.seen += 1;
        match prune_one(client, &artifact, listed).await {
            Ok(Some(Done::Leaving)) => pruned.leaving += 1,
            Ok(Some(Done::Removed)) => pruned.removed += 1,
            Ok(None) => {}
            Err(error) if error.kind() == Kind::Denied => return Err(error),
            Err(error) => tracing::warn!("artifact {artifact} was left alone: {error}"),
        }
    }
    Ok(pruned)
}

enum Done {
    Leaving,
    Removed,
}

/// What to do about one artifact.
enum Next {
    Nothing,
    Leave,
    /// Since this moment nobody else touches it.
    Close(StoreTime),
    /// The same for data that nobody has published. The manifest stays until another prune: whoever has found none, and is
    /// sending the data at this moment, must not find none again.
    CloseData(StoreTime),
}

async fn prune_one(client: &Client, artifact: &ArtifactId, listed: Listed) -> Result<Option<Done>> {
    let now = client.now().ok_or_else(no_time)?;
    // No manifest asks for less than a day: a young one need not be read.
    let youngest = listed.manifest.or(listed.data.map(|(at, _)| at));
    if youngest.is_some_and(|at| !now.is_past(at.plus(LEAVING))) {
        return Ok(None);
    }
    let key = keys::manifest(artifact);
    let updated = update(client, Purpose::Sweep, &key, |found| {
        let now = client.now().ok_or_else(no_time)?;
        let record = found.map(|object| Record::read(&key, artifact, &object.body)).transpose()?;
        let since = now.latest_known();
        let closing = Record::Closing(since);
        let (record, next) = match record {
            Some(Record::Kept(manifest)) if now.is_past(over_at(&manifest)) => {
                (Record::Leaving(manifest, since), Next::Leave)
            }
            Some(Record::Leaving(_, left)) if now.is_past(left.plus(LEAVING)) => {
                (closing, Next::Close(since))
            }
            // Whoever began with it has died, or its deletes were lost.
            Some(Record::Closing(began)) if now.is_past(began.plus(DELETE_LANDS_WITHIN)) => {
                (closing, Next::Close(since))
            }
            None if listed.data.is_some_and(|(at, _)| now.is_past(at.plus(UNFINISHED))) => {
                (closing, Next::CloseData(since))
            }
            _ => return Ok(Decision::Leave(Next::Nothing)),
        };
        Ok(Decision::write(record.write(artifact, client.write_id()), next))
    });
    let updated = updated.await?;
    if !matches!(updated.now, Standing::Written(_)) {
        return Ok(None);
    }
    match updated.result {
        Next::Nothing => Ok(None),
        Next::Leave if breaks(Rule::PruneDeletesAtOnce) => {
            client.delete(Purpose::Sweep, &key).await?;
            client.delete(Purpose::Sweep, &keys::artifact_data(artifact)).await?;
            Ok(Some(Done::Removed))
        }
        Next::Leave => Ok(Some(Done::Leaving)),
        // Data first: while the manifest says closing, nobody relies on it. If one of them fails, or comes too late, it stays
        // closing, and another prune tries again when this one cannot be under way any more.
        Next::Close(since) => {
            let is_gone = delete(client, &keys::artifact_data(artifact), since).await?
                && delete(client, &key, since).await?;
            Ok(is_gone.then_some(Done::Removed))
        }
        Next::CloseData(since) => {
            let is_gone = delete(client, &keys::artifact_data(artifact), since).await?;
            Ok(is_gone.then_some(Done::Removed))
        }
    }
}

/// Deletes, unless too much time has passed since the manifest says *closing*: then others may have published again. The
/// store's time tells it, because that of a machine may have stood still with it.
async fn delete(client: &Client, key: &str, since: StoreTime) -> Result<bool> {
    let is_in_time = client.now().is_some_and(|now| now.is_before(since.plus(DELETE_SENT_WITHIN)));
    if is_in_time {
        client.delete(Purpose::Sweep, key).await?;
    }
    Ok(is_in_time)
}

/// When nobody relies on an artifact any more.
fn over_at(manifest: &Manifest) -> StoreTime {
    manifest.published_at.plus(Duration::from_secs(manifest.keep_secs))
}
