//! Checks on the raw objects of artifacts, and on the promises about them.
//!
//! * A manifest in state *published* or *expired* has its data, complete.
//! * Data is deleted only while the manifest is *deleting*, and so is the manifest.
//! * A task is completed only when its results exist. These, and every artifact that a publisher was
//!   promised, stay for half of the requested retention (a younger manifest is not written again), and for
//!   the day in state *expired*.

use leasehold_core::{ArtifactId, Artifacts, StoreTime, keys};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::disk::SimDisk;
use crate::bucket::{BucketChange, BucketObjects, SimBucket};
use crate::queue::raw::{Raw, task_id};
use crate::world::World;

/// Time in which an artifact can still be read after its retention.
const EXPIRED_PERIOD: Duration = Duration::from_hours(24);

/// Maximum time between the publication of a result and the completion of its task: a few renewals.
const SLACK: Duration = Duration::from_mins(30);

/// Errors of a task whose input is missing.
const MISSING: [&str; 2] = ["there is no artifact", "data of the artifact is missing"];

/// Promises about artifacts. Clones share them.
#[derive(Clone)]
pub(super) struct ArtifactChecker {
    bucket: Arc<SimBucket>,
    disk: SimDisk,
    observed: Arc<Mutex<Observed>>,
}

#[derive(Default)]
struct Observed {
    /// Store's time until which each artifact is promised.
    promised: BTreeMap<ArtifactId, StoreTime>,
    /// Retention of the results of tasks.
    keep: Duration,
    completed: u64,
    results: BTreeSet<ArtifactId>,
    counts: EventCounts,
}

/// Counts of what has happened, to verify that it does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct EventCounts {
    pub(super) expired: u64,
    pub(super) deleting: u64,
    pub(super) removed: u64,
    /// Artifacts that were expired or being deleted, and were published again.
    pub(super) published_again: u64,
    pub(super) staged: u64,
    pub(super) fetched: u64,
    pub(super) torn: u64,
}

impl ArtifactChecker {
    pub(super) fn new(world: &World, disk: &SimDisk) -> Self {
        Self { bucket: world.bucket_handle(), disk: disk.clone(), observed: Arc::default() }
    }

    /// Sets the retention of the results of tasks.
    pub(super) fn keep_results(&self, keep: Duration) {
        self.observed().keep = keep;
    }

    /// Records the retention that a publisher was promised.
    pub(super) fn published(&self, artifact: &ArtifactId, keep: Duration) -> Result<(), String> {
        self.promise(artifact, keep);
        self.bucket.with_objects(|objects| self.check_artifact(artifact, objects))
    }

    fn promise(&self, artifact: &ArtifactId, keep: Duration) {
        let until = self.now().plus((keep / 2 + EXPIRED_PERIOD).saturating_sub(SLACK));
        let mut observed = self.observed();
        let known = observed.promised.entry(artifact.clone()).or_insert(until);
        *known = until.max(*known);
    }

    /// Returns whether an artifact is promised for a while.
    pub(super) fn is_promised(&self, artifact: &ArtifactId) -> bool {
        self.is_time_reliable()
            && self.observed().promised.get(artifact).is_some_and(|until| self.now() < *until)
    }

    /// Returns the promised results of all tasks.
    pub(super) fn results(&self) -> Vec<ArtifactId> {
        let results = self.observed().results.clone();
        results.into_iter().filter(|artifact| self.is_promised(artifact)).collect()
    }

    pub(super) fn count(&self, what: impl FnOnce(&mut EventCounts)) {
        what(&mut self.observed().counts);
    }

    pub(super) fn summary(&self) -> String {
        let observed = self.observed();
        format!("{} completed with results, {:?}", observed.completed, observed.counts)
    }

    /// Checks a change of the bucket.
    pub(super) fn changed(&self, change: &BucketChange, objects: &BucketObjects) -> Result<(), String> {
        if task_id(&change.key).is_some() {
            return self.task_changed(change, objects);
        }
        let manifest = keys::parse_manifest(&change.key);
        let data = keys::parse_artifact_data(&change.key);
        if let Some(artifact) = &manifest {
            self.manifest_changed(artifact, change)?;
        }
        let Some(artifact) = manifest.or(data.clone()) else { return Ok(()) };
        let before = state(&artifact, objects);
        if data.is_some() && change.after.is_none() && before != "deleting" && self.is_time_reliable() {
            return Err(format!("files: the data of {artifact} was deleted while it was {before}"));
        }
        self.check_artifact(&artifact, objects)
    }

    fn manifest_changed(&self, artifact: &ArtifactId, change: &BucketChange) -> Result<(), String> {
        let read = |stored: &Option<_>| {
            stored
                .as_ref()
                .map(Raw::read)
                .transpose()
                .map(|raw| raw.map_or("nothing", |raw| state_name(&raw)))
        };
        let (before, after) = (read(&change.before)?, read(&change.after)?);
        let is_allowed = match (before, after) {
            (_, "published")
            | ("published", "expired")
            | ("expired" | "deleting" | "nothing", "deleting") => true,
            (before, "nothing") => before == "deleting",
            _ => false,
        };
        if !is_allowed && self.is_time_reliable() {
            return Err(format!("files: the manifest of {artifact} went from {before} to {after}"));
        }
        self.count(|counts| {
            counts.expired += u64::from(after == "expired");
            counts.deleting += u64::from(after == "deleting");
            counts.removed += u64::from(after == "nothing");
            counts.published_again +=
                u64::from(after == "published" && matches!(before, "expired" | "deleting"));
        });
        Ok(())
    }

    /// Checks that an artifact agrees with its manifest, and exists if it was promised.
    fn check_artifact(&self, artifact: &ArtifactId, objects: &BucketObjects) -> Result<(), String> {
        if !self.is_time_reliable() {
            return Ok(());
        }
        let state = state(artifact, objects);
        let data = objects.get(&keys::artifact_data(artifact)).map(|stored| &stored.object.body);
        let is_whole = data.is_some_and(|data| self.disk.bytes_of(artifact) == Some(data));
        if data.is_some() && !is_whole {
            return Err(format!("files: the data of {artifact} does not match its hash"));
        }
        let is_readable = matches!(state, "published" | "expired");
        if is_readable && !is_whole {
            return Err(format!("files: {artifact} is {state} but has no data"));
        }
        if !is_readable && self.is_promised(artifact) {
            return Err(format!("files: {artifact} was promised but is {state}"));
        }
        Ok(())
    }

    fn task_changed(&self, change: &BucketChange, objects: &BucketObjects) -> Result<(), String> {
        let Some(after) = change.after.as_ref().map(Raw::read).transpose()? else { return Ok(()) };
        self.check_error(&after)?;
        let before = change.before.as_ref().map(Raw::read).transpose()?;
        if after.status() != "completed" || before.is_some_and(|before| before.status() == "completed") {
            return Ok(());
        }
        let results: Artifacts =
            serde_json::from_value(after.0.get("results").cloned().unwrap_or(Value::Null))
                .map_err(|error| format!("files: {} has no results: {error}", after.text("id")))?;
        let keep = {
            let mut observed = self.observed();
            observed.completed += 1;
            observed.results.extend(results.values().cloned());
            observed.keep
        };
        for artifact in results.values() {
            self.promise(artifact, keep);
            self.check_artifact(artifact, objects)?;
        }
        Ok(())
    }

    /// Checks that no input of a task was missing or wrong: all inputs were published before, and are kept.
    fn check_error(&self, task: &Raw) -> Result<(), String> {
        let error = task.text("error");
        if self.is_time_reliable() && MISSING.iter().any(|missing| error.contains(missing)) {
            return Err(format!("files: a task failed with: {error}"));
        }
        if error.contains("the manifest is corrupt") {
            return Err(format!("files: correct bytes were rejected: {error}"));
        }
        Ok(())
    }

    /// Returns whether the store's time never jumped; after a jump any process may be mistaken about
    /// retentions.
    fn is_time_reliable(&self) -> bool {
        self.bucket.jumped_at().is_none()
    }

    fn now(&self) -> StoreTime {
        StoreTime::from_millis(self.bucket.time_ns().div_euclid(1_000_000))
    }

    fn observed(&self) -> MutexGuard<'_, Observed> {
        self.observed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the state in an artifact's manifest, by the raw object.
fn state(artifact: &ArtifactId, objects: &BucketObjects) -> &'static str {
    let manifest = objects.get(&keys::manifest(artifact)).and_then(|stored| Raw::read(stored).ok());
    manifest.map_or("gone", |manifest| state_name(&manifest))
}

/// Returns the documented name of the state in a manifest; the record has older words.
fn state_name(manifest: &Raw) -> &'static str {
    match manifest.text("state") {
        "kept" => "published",
        "leaving" => "expired",
        "closing" => "deleting",
        _ => "unknown",
    }
}
