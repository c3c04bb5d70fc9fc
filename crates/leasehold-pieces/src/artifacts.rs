//! Artifacts of a store on one machine: publish, fetch into the cache, list, remove.

use futures::future::BoxFuture;
use leasehold_core::{ArtifactId, Error, Name, Reason, Result, keys};
use leasehold_store::mutant::{Rule, breaks};
use leasehold_store::{Client, Host, HostExt, Purpose};
use leasehold_worker::{ArtifactIo, ProgressFn, StagedFile};
use std::path::Path;
use std::sync::Arc;

use crate::cache::{Begun, Cache, Cached};
use crate::fetch::{FetchEvent, FetchOptions, Fetched, Origin, Sources, fetch};
use crate::manifest::{Manifest, ManifestRecord};
use crate::peers::Peers;
use crate::publish::{PublishOptions, Published, name_of, publish, publish_telling};

/// Artifacts of a store on a machine with a cache. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ArtifactStore {
    client: Client,
    cache: Cache,
    peers: Option<Peers>,
    fetching: FetchOptions,
    publishing: PublishOptions,
}

/// Callback for the events of a fetch.
pub type FetchObserver<'a> = &'a (dyn Fn(FetchEvent) + Send + Sync);

impl ArtifactStore {
    /// Creates a handle that fetches from the store alone into this cache.
    #[must_use]
    pub fn new(client: Client, cache: Cache) -> Self {
        let (fetching, publishing) = (FetchOptions::default(), PublishOptions::default());
        Self { client, cache, peers: None, fetching, publishing }
    }

    /// Fetches from peers, too.
    #[must_use]
    pub fn with_peers(mut self, peers: Peers) -> Self {
        self.peers = Some(peers);
        self
    }

    /// Sets the options of fetches.
    #[must_use]
    pub fn fetching(mut self, options: FetchOptions) -> Self {
        self.fetching = options;
        self
    }

    /// Sets the options for publishing results of tasks.
    #[must_use]
    pub fn publishing(mut self, options: PublishOptions) -> Self {
        self.publishing = options;
        self
    }

    /// Options for publishing results of tasks.
    #[must_use]
    pub fn usual_publishing(&self) -> &PublishOptions {
        &self.publishing
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
                .about(Reason::Missing)
        })
    }

    /// Fetches an artifact into the cache. Requests: none if it is cached, else 1 get for the manifest, those of the peers
    /// ([`crate::peers`]), and 1 get for each run of pieces that no peer has.
    pub async fn fetch(&self, artifact: &ArtifactId, tell: FetchObserver<'_>) -> Result<(Cached, Fetched)> {
        let host = self.client.host().clone();
        let (cache, wanted) = (self.cache.clone(), artifact.clone());
        if let Some(cached) = host.blocking(move || cache.find(&wanted)).await? {
            return Ok((cached, Fetched::nothing()));
        }
        let manifest = self.manifest(artifact).await?;
        let assembly = match self.cache.begin(&manifest, &host).await? {
            Begun::There(cached) => return Ok((cached, Fetched::nothing())),
            Begun::Ours(assembly) => assembly,
        };
        let origin = Some(Origin::new(self.client.clone(), artifact));
        let peers = self.peers_of_today(&host).await?;
        let sources = Sources { host: host.clone(), origin, peers: peers.as_ref() };
        let fetched = fetch(&assembly, sources, &self.fetching, tell).await?;
        let cache = self.cache.clone();
        let cached = host.blocking(move || cache.finish(&assembly)).await?;
        Ok((cached, fetched))
    }

    /// Peers, with the name under which this node serves read again: another process may have started or stopped serving
    /// this cache.
    async fn peers_of_today(&self, host: &Arc<dyn Host>) -> Result<Option<Peers>> {
        let peers = match &self.peers {
            Some(peers) if peers.me().is_none() => peers,
            known => return Ok(known.clone()),
        };
        let cache = self.cache.clone();
        let me = host.blocking(move || Ok(cache.served_as())).await?;
        Ok(Some(peers.seen_by(me.as_ref())))
    }
}

impl ArtifactIo for ArtifactStore {
    fn fetch<'a>(
        &'a self,
        artifact: &'a ArtifactId,
        tell: ProgressFn<'a>,
    ) -> BoxFuture<'a, Result<StagedFile>> {
        Box::pin(async move {
            let hear = |event: FetchEvent| {
                if let FetchEvent::Progress { bytes, bytes_total, .. } = event {
                    tell(bytes, bytes_total);
                }
            };
            let (cached, _) = self.fetch(artifact, &hear).await?;
            Ok(StagedFile { path: cached.path().to_owned(), hold: Box::new(cached) })
        })
    }

    fn publish<'a>(
        &'a self,
        name: &'a Name,
        path: &'a Path,
        stopped: BoxFuture<'a, ()>,
    ) -> BoxFuture<'a, Result<ArtifactId>> {
        Box::pin(async move {
            let options = PublishOptions { name: Some(name.to_string()), ..self.publishing.clone() };
            if breaks(Rule::ResultNotPublished) {
                return name_of(&self.client, path, &options).await;
            }
            let published = publish_telling(&self.client, path, &options, &|_, _| (), stopped).await?;
            Ok(published.manifest.artifact)
        })
    }
}
