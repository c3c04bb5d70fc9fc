//! Artifacts as the settings want them: for the commands about them, and for workers.

use leasehold_core::{Error, Result};
use leasehold_pieces::{Artifacts, Cache, FetchOptions, Peers, PublishOptions};
use leasehold_store::Client;
use leasehold_worker::Worker;
use std::sync::Arc;

use crate::settings::typed::Pieces;

/// The cache of this machine. It is made when something is put into it.
pub(crate) fn cache(settings: &Pieces) -> Result<Cache> {
    let Some(root) = &settings.cache else {
        return Err(Error::invalid(
            "there is no place for a cache; set pieces.cache (LEASEHOLD_PIECES_CACHE), or HOME",
        ));
    };
    Cache::at(root, Some(settings.cache_bytes))
}

/// The artifacts of a store, in the cache of this machine.
pub(crate) fn artifacts(client: &Client, settings: &Pieces) -> Result<Artifacts> {
    let fetching = FetchOptions { bytes_per_sec: settings.download_bytes_per_sec, ..FetchOptions::default() };
    let artifacts = Artifacts::new(client.clone(), cache(settings)?)
        .fetching(fetching)
        .publishing(PublishOptions { keep: settings.keep, ..PublishOptions::default() });
    Ok(if settings.peers {
        // Under which name this machine serves, if it does, is known to the cache.
        artifacts.with_peers(Peers::new(client.clone(), settings.secret.clone(), None))
    } else {
        artifacts
    })
}

/// Lets a worker deal with artifacts, if there is a place for them.
pub(crate) fn carry(worker: Worker, client: &Client, settings: &Pieces) -> Result<Worker> {
    if settings.cache.is_none() {
        return Ok(worker);
    }
    Ok(worker.carrier(Arc::new(artifacts(client, settings)?)))
}
