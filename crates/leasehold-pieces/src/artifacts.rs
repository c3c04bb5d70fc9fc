//! Artifacts of a store on one machine: publish, fetch into the cache, list, remove.

use futures::future::BoxFuture;
use leasehold_core::{ArtifactId, Error, Name, Reason, Result, keys};
use leasehold_store::mutant::breaks;
use leasehold_store::{Client, Host, HostExt, Purpose};
use leasehold_worker::{ArtifactIo, ProgressFn, StagedFile};
use std::path::Path;
use std::sync::Arc;

use crate::cache::{Cache, CacheEntry, Cached};
use crate::fetch::{FetchEvent, FetchOptions, Fetched, Origin, Sources, fetch};
use crate::manifest::{Manifest, ManifestRecord};
use crate::peers::Peers;
use crate::publish::{PublishOptions, Published, artifact_id_of, publish, publish_with_progress};

/// Artifacts of a store on a machine with a cache. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ArtifactStore {
    client: Client,
    cache: Cache,
    peers: Option<Peers>,
    fetch_options: FetchOptions,
    publish_options: PublishOptions,
}

/// Callback for the events of a fetch.
pub type FetchObserver<'a> = &'a (dyn Fn(FetchEvent) + Send + Sync);

impl ArtifactStore {
    /// Creates a handle that fetches from the store alone into this cache.
    #[must_use]
    pub fn new(client: Client, cache: Cache) -> Self {
        let (fetch_options, publish_options) = (FetchOptions::default(), PublishOptions::default());
        Self { client, cache, peers: None, fetch_options, publish_options }
    }

    /// Fetches from peers, too.
    #[must_use]
    pub fn with_peers(mut self, peers: Peers) -> Self {
        self.peers = Some(peers);
        self
    }

    /// Sets the options of fetches.
    #[must_use]
    pub fn with_fetch_options(mut self, options: FetchOptions) -> Self {
        self.fetch_options = options;
        self
    }

    /// Sets the options for publishing results of tasks.
    #[must_use]
    pub fn with_publish_options(mut self, options: PublishOptions) -> Self {
        self.publish_options = options;
        self
    }

    /// Options for publishing results of tasks.
    #[must_use]
    pub fn publish_options(&self) -> &PublishOptions {
        &self.publish_options
    }

    /// Cache of this machine.
    #[must_use]
    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    /// Uploads a file to the store, unless it is already there.
    pub async fn publish(&self, path: &Path, options: &PublishOptions) -> Result<Published> {
        publish(&self.client, path, options).await
    }

    /// Reads the manifest of an artifact. Requests: 1 get.
    pub async fn manifest(&self, artifact: &ArtifactId) -> Result<Manifest> {
        let key = keys::manifest(artifact);
        let found = self.client.get(Purpose::Fetch, &key).await?;
        let record = found.map(|object| ManifestRecord::read(&key, artifact, &object.body)).transpose()?;
        record.and_then(ManifestRecord::readable).ok_or_else(|| {
            Error::invalid(format!("there is no artifact {artifact}; publish it to this store first"))
                .with_reason(Reason::Missing)
        })
    }

    /// Fetches an artifact into the cache. Requests: none if it is cached, else 1 get for the manifest, those of the peers
    /// ([`crate::peers`]), and 1 get for each run of pieces that no peer has.
    pub async fn fetch(
        &self,
        artifact: &ArtifactId,
        on_event: FetchObserver<'_>,
    ) -> Result<(Cached, Fetched)> {
        let host = self.client.host().clone();
        let (cache, wanted) = (self.cache.clone(), artifact.clone());
        if let Some(cached) = host.blocking(move || cache.find(&wanted)).await? {
            return Ok((cached, Fetched::nothing()));
        }
        let manifest = self.manifest(artifact).await?;
        let assembly = match self.cache.begin(&manifest, &host).await? {
            CacheEntry::Complete(cached) => return Ok((cached, Fetched::nothing())),
            CacheEntry::Incomplete(assembly) => assembly,
        };
        let origin = Some(Origin::new(self.client.clone(), artifact));
        let peers = self.current_peers(&host).await?;
        let sources = Sources { host: host.clone(), origin, peers: peers.as_ref() };
        let fetched = fetch(&assembly, sources, &self.fetch_options, on_event).await?;
        let cache = self.cache.clone();
        let cached = host.blocking(move || cache.finish(&assembly)).await?;
        Ok((cached, fetched))
    }

    /// Peers, with the peer id of this node read again: another process may have started or stopped serving this cache.
    async fn current_peers(&self, host: &Arc<dyn Host>) -> Result<Option<Peers>> {
        let peers = match &self.peers {
            Some(peers) if peers.me().is_none() => peers,
            peers => return Ok(peers.clone()),
        };
        let cache = self.cache.clone();
        let me = host.blocking(move || Ok(cache.served_as())).await?;
        Ok(Some(peers.with_own_id(me.as_ref())))
    }
}

impl ArtifactIo for ArtifactStore {
    fn fetch<'a>(
        &'a self,
        artifact: &'a ArtifactId,
        report: ProgressFn<'a>,
    ) -> BoxFuture<'a, Result<StagedFile>> {
        Box::pin(async move {
            let on_event = |event: FetchEvent| {
                if let FetchEvent::Progress { bytes, bytes_total, .. } = event {
                    report(bytes, bytes_total);
                }
            };
            let (cached, _) = self.fetch(artifact, &on_event).await?;
            Ok(StagedFile { path: cached.path().to_owned(), guard: Box::new(cached) })
        })
    }

    fn publish<'a>(
        &'a self,
        name: &'a Name,
        path: &'a Path,
        stopped: BoxFuture<'a, ()>,
    ) -> BoxFuture<'a, Result<ArtifactId>> {
        Box::pin(async move {
            let options = PublishOptions { name: Some(name.to_string()), ..self.publish_options.clone() };
            if breaks("result-not-published") {
                return artifact_id_of(&self.client, path, &options).await;
            }
            let published = publish_with_progress(&self.client, path, &options, &|_, _| (), stopped).await?;
            Ok(published.manifest.artifact)
        })
    }
}
