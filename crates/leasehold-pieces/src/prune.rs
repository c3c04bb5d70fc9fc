//! Deletes artifacts whose retention is over. The states are described in [`crate::manifest`].
//!
//! Requests: 1 list for every thousand objects; 1 get for each manifest that was not written today, and 1 put when its
//! retention is over; a day later 1 get, 1 put and 2 deletes. Data without a manifest is deleted in two prunes: 1 get, 1 put
//! and 1 delete, and a day later 1 get, 1 put and 2 deletes.

use leasehold_core::{ArtifactId, Kind, Result, StoreTime, keys};
use leasehold_store::mutant::breaks;
use leasehold_store::{Client, Decision, List, Purpose, PutOutcome, update};
use std::collections::BTreeMap;
use std::time::Duration;

use crate::manifest::{Manifest, ManifestRecord};
use crate::publish::{DELETE_COMPLETES_WITHIN, time_unknown};

/// Time for which an artifact can still be read after its retention is over: a task that uses it may have just started.
pub const EXPIRED_PERIOD: Duration = Duration::from_hours(24);

/// Longest time for which a publisher may be uploading. Older data without a manifest was left by a publisher that crashed.
pub const UPLOAD_TIME_MAX: Duration = Duration::from_hours(7 * 24);

/// Time within which deletes are sent after the manifest says *deleting*; later they are not sent at all.
const DELETE_SENT_WITHIN: Duration = Duration::from_mins(1);

/// Result of a prune. The JSON has older names: `seen`, `leaving` and `removed`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Pruned {
    /// Artifacts that were listed.
    #[serde(rename = "seen")]
    pub scanned: u64,
    /// Artifacts that this prune marked as expired: a prune at least a day later deletes them.
    #[serde(rename = "leaving")]
    pub marked: u64,
    /// Artifacts that were deleted.
    #[serde(rename = "removed")]
    pub deleted: u64,
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

/// Marks artifacts whose retention is over, and deletes those that were marked at least a day ago. An artifact that
/// fails does not block the others.
pub async fn prune(client: &Client) -> Result<Pruned> {
    let mut pruned = Pruned::default();
    for (artifact, listed) in list(client, Purpose::Sweep).await? {
        pruned.scanned += 1;
        match prune_one(client, &artifact, listed).await {
            Ok(Some(PruneStep::Marked)) => pruned.marked += 1,
            Ok(Some(PruneStep::Deleted)) => pruned.deleted += 1,
            Ok(None) => {}
            Err(error) if error.kind() == Kind::Denied => return Err(error),
            Err(error) => tracing::warn!(%artifact, %error, "failed to prune artifact, skipping it"),
        }
    }
    Ok(pruned)
}

enum PruneStep {
    Marked,
    Deleted,
}

/// Next step for one artifact.
enum NextStep {
    Nothing,
    MarkExpired,
    /// Delete data and manifest. No other process touches the artifact from this moment on.
    Delete(StoreTime),
    /// Delete data that was never published. The manifest stays until another prune: a publisher that found none and is
    /// uploading the data at this moment must not find none again.
    DeleteData(StoreTime),
}

async fn prune_one(
    client: &Client,
    artifact: &ArtifactId,
    listed: ListedArtifact,
) -> Result<Option<PruneStep>> {
    let now = client.now().ok_or_else(time_unknown)?;
    // No retention is shorter than a day: a younger manifest need not be read.
    let youngest = listed.manifest.or(listed.data.map(|(at, _)| at));
    if youngest.is_some_and(|at| !now.is_past(at.plus(EXPIRED_PERIOD))) {
        return Ok(None);
    }
    let key = keys::manifest(artifact);
    let updated = update(client, Purpose::Sweep, &key, |found| {
        let now = client.now().ok_or_else(time_unknown)?;
        let record = found.map(|object| ManifestRecord::read(&key, artifact, &object.body)).transpose()?;
        let since = now.latest_known();
        let deleting = ManifestRecord::Deleting(since);
        let (record, next) = match record {
            Some(ManifestRecord::Published(manifest)) if now.is_past(retention_end(&manifest)) => {
                (ManifestRecord::Expired(manifest, since), NextStep::MarkExpired)
            }
            Some(ManifestRecord::Expired(_, expired)) if now.is_past(expired.plus(EXPIRED_PERIOD)) => {
                (deleting, NextStep::Delete(since))
            }
            // The process that began the deletion has crashed, or its deletes were lost.
            Some(ManifestRecord::Deleting(began)) if now.is_past(began.plus(DELETE_COMPLETES_WITHIN)) => {
                (deleting, NextStep::Delete(since))
            }
            None if listed.data.is_some_and(|(at, _)| now.is_past(at.plus(UPLOAD_TIME_MAX))) => {
                (deleting, NextStep::DeleteData(since))
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
        NextStep::MarkExpired if breaks("prune-deletes-at-once") => {
            client.delete(Purpose::Sweep, &key).await?;
            client.delete(Purpose::Sweep, &keys::artifact_data(artifact)).await?;
            Ok(Some(PruneStep::Deleted))
        }
        NextStep::MarkExpired => Ok(Some(PruneStep::Marked)),
        // Data first: while the manifest says *deleting*, no client relies on it. If a delete fails or comes too late, the
        // manifest stays *deleting*, and another prune retries when this one can no longer be under way.
        NextStep::Delete(since) => {
            let is_gone = delete(client, &keys::artifact_data(artifact), since).await?
                && delete(client, &key, since).await?;
            Ok(is_gone.then_some(PruneStep::Deleted))
        }
        NextStep::DeleteData(since) => {
            let is_gone = delete(client, &keys::artifact_data(artifact), since).await?;
            Ok(is_gone.then_some(PruneStep::Deleted))
        }
    }
}

/// Deletes an object, unless too much time has passed since the manifest says *deleting*: then a client may have published
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
