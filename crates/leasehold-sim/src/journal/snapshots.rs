//! Snapshots: with the commits after it, the one that the lease names gives what all commits give.

use leasehold_core::StoreTime;
use leasehold_core::journal::snapshot::decode_chunk;
use leasehold_core::journal::{JournalState, LiveBody, SnapshotManifest};
use leasehold_core::keys::{JOURNAL_SNAPSHOTS, journal_chunk};

use super::raw_log::RawCommit;
use crate::bucket::BucketObjects;
use crate::queue::raw::Raw;

/// Loads the snapshot that the lease names, applies the commits after it, and compares the result with `expected`.
pub(super) fn check(
    seq: u64,
    objects: &BucketObjects,
    commits: &[RawCommit],
    expected: &JournalState,
) -> Result<(), String> {
    let mut state = load(seq, objects)?;
    for commit in commits.iter().filter(|commit| commit.seq > seq) {
        match commit.fence {
            Some(fence) => {
                let [at, trusted] = [fence.at, fence.trusted_until].map(StoreTime::from_millis);
                state.fence(at, trusted);
            }
            None => state
                .replay(&commit.lines)
                .map_err(|error| format!("snapshot: commit {}: {error}", commit.seq))?,
        }
    }
    if state.archive() != expected.archive() {
        let (found, wanted) = (state.archive(), expected.archive());
        return Err(format!(
            "snapshot: with the commits after {seq} it has the archive {found:?}, not {wanted:?}"
        ));
    }
    let (mut found, mut wanted) = (state.bodies_from(None), expected.bodies_from(None));
    loop {
        match (found.next(), wanted.next()) {
            (None, None) => return Ok(()),
            (found, wanted) if found == wanted => {}
            (found, wanted) => {
                let [found, wanted] = [found, wanted].map(|task| task.map(|(_, body)| text(&body)));
                return Err(format!(
                    "snapshot: with the commits after {seq} it gives {found:?}, all commits give {wanted:?}"
                ));
            }
        }
    }
}

fn text(body: &LiveBody<'_>) -> String {
    match body {
        LiveBody::Resident(body) => String::from_utf8_lossy(body).into_owned(),
        LiveBody::Evicted { .. } => "evicted".to_owned(),
    }
}

fn load(seq: u64, objects: &BucketObjects) -> Result<JournalState, String> {
    let wrong = |error: leasehold_core::Error| format!("snapshot: {error}");
    let object = |key: &str| {
        objects
            .get(key)
            .map(|stored| &stored.object.body)
            .ok_or_else(|| format!("snapshot: `{key}` is missing"))
    };
    let lease: Raw = serde_json::from_slice(object("journal/0/lease.json")?)
        .map(Raw)
        .map_err(|error| error.to_string())?;
    let position = serde_json::from_value(lease.0["snapshot"].clone()).map_err(|error| error.to_string())?;
    let manifest = object(&format!("{JOURNAL_SNAPSHOTS}{seq:020}"))?;
    let manifest = SnapshotManifest::decode("the snapshot", manifest, position).map_err(wrong)?;
    let mut state = JournalState::default();
    state.set_archive(manifest.archive_table());
    for chunk in &manifest.chunks {
        let tasks = decode_chunk("a chunk", object(&journal_chunk(chunk.name))?, chunk).map_err(wrong)?;
        tasks.into_iter().try_for_each(|task| state.insert(task)).map_err(wrong)?;
    }
    Ok(state)
}
