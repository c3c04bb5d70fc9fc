//! Artifacts configured by the settings: for the `artifact` commands, and for workers.

use leasehold_core::{Error, Result};
use leasehold_pieces::{ArtifactStore, Cache, FetchOptions, Peers, PublishOptions};
use leasehold_store::Client;
use leasehold_worker::Worker;
use std::sync::Arc;

use crate::settings::typed::PiecesSettings;

/// Cache of this machine. Created with the first artifact in it.
pub(crate) fn cache(settings: &PiecesSettings) -> Result<Cache> {
    let Some(root) = &settings.cache else {
        return Err(Error::invalid(
            "no directory for the artifact cache; set pieces.cache (LEASEHOLD_PIECES_CACHE), or HOME",
        ));
    };
    Cache::at(root, Some(settings.cache_bytes))
}

/// Artifacts of a store, with the cache of this machine.
pub(crate) fn artifacts(client: &Client, settings: &PiecesSettings) -> Result<ArtifactStore> {
    let fetching = FetchOptions { bytes_per_sec: settings.download_bytes_per_sec, ..FetchOptions::default() };
    let artifacts = ArtifactStore::new(client.clone(), cache(settings)?)
        .with_fetch_options(fetching)
        .with_publish_options(PublishOptions { keep: settings.keep, ..PublishOptions::default() });
    Ok(if settings.peers {
        // The cache knows the peer id under which this machine serves it, if it does.
        artifacts.with_peers(Peers::new(client.clone(), settings.secret.clone(), None))
    } else {
        artifacts
    })
}

/// Lets a worker fetch and publish artifacts, if there is a directory for the cache.
pub(crate) fn with_artifacts(worker: Worker, client: &Client, settings: &PiecesSettings) -> Result<Worker> {
    if settings.cache.is_none() {
        return Ok(worker);
    }
    Ok(worker.artifact_io(Arc::new(artifacts(client, settings)?)))
}
