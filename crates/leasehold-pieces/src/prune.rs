//! Removes artifacts whose retention is over. The states are described in [`crate::manifest`].
//!
//! Requests: 1 list for every thousand objects; 1 get for each manifest that was not written today, and 1 put when its
//! retention is over; a day later 1 get, 1 put and 2 deletes. Data without a manifest is removed in two prunes: 1 get, 1 put
//! and 1 delete, and a day later 1 get, 1 put and 2 deletes.

use leasehold_core::{ArtifactId, Kind, Result, StoreTime, keys};
use leasehold_store::mutant::breaks;
use leasehold_store::{Client, Decision, List, Purpose, PutOutcome, update};
use std::collections::BTreeMap;
use std::time::Duration;

use crate::manifest::{Manifest, ManifestRecord};
use crate::publish::{DELETE_COMPLETES_WITHIN, time_unknown};

/// Time for which an artifact can still be read after its retention is over: a task that uses it may have just started.
pub const LEAVING_PERIOD: Duration = Duration::from_hours(24);

/// Longest time for which a publisher may be uploading. Older data without a manifest was left by a publisher that crashed.
pub const UPLOAD_TIME_MAX: Duration = Duration::from_hours(7 * 24);

/// Time within which deletes are sent after the manifest says *closing*; later they are not sent at all.
const DELETE_SENT_WITHIN: Duration = Duration::from_mins(1);

/// Result of a prune.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Pruned {
    /// Artifacts that were listed.
    pub seen: u64,
    /// Artifacts whose retention is over: they are removed a day later.
    pub leaving: u64,
    /// Artifacts that were removed.
    pub removed: u64,
}

/// An artifact in a listing.
#[derive(Debug, Clone, Copy, Default)]
pub struct ListedArtifact {
    /// Time at which its manifest was written.
    pub manifest: Option<StoreTime>,
    /// Time at which its data was written, and its size in bytes.
    pub data: Option<(StoreTime, u64)>,
}

/// Returns whether the store holds any artifact. Requests: 1 list.
pub async fn has_artifacts(client: &Client, purpose: Purpose) -> Result<bool> {
    Ok(!client.list(purpose, &List::all(keys::ARTIFACTS)).await?.entries.is_empty())
}

/// Lists all artifacts of the store.
pub async fn list(client: &Client, purpose: Purpose) -> Result<BTreeMap<ArtifactId, ListedArtifact>> {
    let mut artifacts: BTreeMap<ArtifactId, ListedArtifact> = BTreeMap::new();
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

/// Removes artifacts whose retention is over. An artifact that fails does not block the others.
pub async fn prune(client: &Client) -> Result<Pruned> {
    let mut pruned = Pruned::default();
    for (artifact, listed) in list(client, Purpose::Sweep).await? {
        pruned.seen += 1;
        match prune_one(client, &artifact, listed).await {
            Ok(Some(PruneStep::Leaving)) => pruned.leaving += 1,
            Ok(Some(PruneStep::Removed)) => pruned.removed += 1,
            Ok(None) => {}
            Err(error) if error.kind() == Kind::Denied => return Err(error),
            Err(error) => tracing::warn!(%artifact, %error, "failed to prune artifact, skipping it"),
        }
    }
    Ok(pruned)
}

enum PruneStep {
    Leaving,
    Removed,
}

/// Next step for one artifact.
enum NextStep {
    Nothing,
    Leave,
    /// Delete data and manifest. No other process touches the artifact from this moment on.
    Close(StoreTime),
    /// Delete data that was never published. The manifest stays until another prune: a publisher that found none and is
    /// uploading the data at this moment must not find none again.
    CloseData(StoreTime),
}

async fn prune_one(
    client: &Client,
    artifact: &ArtifactId,
    listed: ListedArtifact,
) -> Result<Option<PruneStep>> {
    let now = client.now().ok_or_else(time_unknown)?;
    // No retention is shorter than a day: a younger manifest need not be read.
    let youngest = listed.manifest.or(listed.data.map(|(at, _)| at));
    if youngest.is_some_and(|at| !now.is_past(at.plus(LEAVING_PERIOD))) {
        return Ok(None);
    }
    let key = keys::manifest(artifact);
    let updated = update(client, Purpose::Sweep, &key, |found| {
        let now = client.now().ok_or_else(time_unknown)?;
        let record = found.map(|object| ManifestRecord::read(&key, artifact, &object.body)).transpose()?;
        let since = now.latest_known();
        let closing = ManifestRecord::Closing(since);
        let (record, next) = match record {
            Some(ManifestRecord::Kept(manifest)) if now.is_past(retention_end(&manifest)) => {
                (ManifestRecord::Leaving(manifest, since), NextStep::Leave)
            }
            Some(ManifestRecord::Leaving(_, left)) if now.is_past(left.plus(LEAVING_PERIOD)) => {
                (closing, NextStep::Close(since))
            }
            // The process that began the removal has crashed, or its deletes were lost.
            Some(ManifestRecord::Closing(began)) if now.is_past(began.plus(DELETE_COMPLETES_WITHIN)) => {
                (closing, NextStep::Close(since))
            }
            None if listed.data.is_some_and(|(at, _)| now.is_past(at.plus(UPLOAD_TIME_MAX))) => {
                (closing, NextStep::CloseData(since))
            }
            _ => return Ok(Decision::Leave(NextStep::Nothing)),
        };
        Ok(Decision::write(record.write(artifact, client.write_id()), next))
    });
    let updated = updated.await?;
    if !matches!(updated.put, Some(PutOutcome::Written(_))) {
        return Ok(None);
    }
    match updated.result {
        NextStep::Nothing => Ok(None),
        NextStep::Leave if breaks("prune-deletes-at-once") => {
            client.delete(Purpose::Sweep, &key).await?;
            client.delete(Purpose::Sweep, &keys::artifact_data(artifact)).await?;
            Ok(Some(PruneStep::Removed))
        }
        NextStep::Leave => Ok(Some(PruneStep::Leaving)),
        // Data first: while the manifest says closing, no client relies on it. If a delete fails or comes too late, the
        // manifest stays closing, and another prune retries when this one can no longer be under way.
        NextStep::Close(since) => {
            let is_gone = delete(client, &keys::artifact_data(artifact), since).await?
                && delete(client, &key, since).await?;
            Ok(is_gone.then_some(PruneStep::Removed))
        }
        NextStep::CloseData(since) => {
            let is_gone = delete(client, &keys::artifact_data(artifact), since).await?;
            Ok(is_gone.then_some(PruneStep::Removed))
        }
    }
}

/// Deletes an object, unless too much time has passed since the manifest says *closing*: then a client may have published
/// the artifact again. Measured by the store's time, because a machine's own clock may have stood still with it.
async fn delete(client: &Client, key: &str, since: StoreTime) -> Result<bool> {
    let is_in_time = client.now().is_some_and(|now| now.is_before(since.plus(DELETE_SENT_WITHIN)));
    if is_in_time {
        client.delete(Purpose::Sweep, key).await?;
    }
    Ok(is_in_time)
}

/// End of an artifact's retention.
fn retention_end(manifest: &Manifest) -> StoreTime {
    manifest.published_at.plus(Duration::from_secs(manifest.keep_secs))
}
