//! The artifacts of a store, as one machine sees them: published, fetched into its cache, listed, removed.

use futures::future::BoxFuture;
use leasehold_core::{ArtifactId, Error, Matter, Name, Result, keys};
use leasehold_store::mutant::{Rule, breaks};
use leasehold_store::{Client, Host, HostExt, Purpose};
use leasehold_worker::{Brought, Carrier, Tell};
use std::path::Path;
use std::sync::Arc;

use crate::cache::{Begun, Cache, Cached};
use crate::fetch::{FetchEvent, FetchOptions, Fetched, Origin, Sources, fetch};
use crate::manifest::{Manifest, Record};
use crate::peers::Peers;
use crate::publish::{PublishOptions, Published, name_of, publish, publish_telling};

/// The artifacts of a store, on a machine with a cache. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Artifacts {
    client: Client,
    cache: Cache,
    peers: Option<Peers>,
    fetching: FetchOptions,
    publishing: PublishOptions,
}

/// Hears what happens during a fetch.
pub type Listener<'a> = &'a (dyn Fn(FetchEvent) + Send + Sync);

impl Artifacts {
    /// Artifacts of this store in this cache, fetched from the store alone.
    #[must_use]
    pub fn new(client: Client, cache: Cache) -> Self {
        let (fetching, publishing) = (FetchOptions::default(), PublishOptions::default());
        Self { client, cache, peers: None, fetching, publishing }
    }

    /// Also from peers.
    #[must_use]
    pub fn with_peers(mut self, peers: Peers) -> Self {
        self.peers = Some(peers);
        self
    }

    /// Changes how they are fetched.
    #[must_use]
    pub fn fetching(mut self, options: FetchOptions) -> Self {
        self.fetching = options;
        self
    }

    /// Changes how results of tasks are published.
    #[must_use]
    pub fn publishing(mut self, options: PublishOptions) -> Self {
        self.publishing = options;
        self
    }

    /// How results of tasks are published.
    #[must_use]
    pub fn usual_publishing(&self) -> &PublishOptions {
        &self.publishing
    }

    /// The cache.
    #[must_use]
    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    /// Puts a file into the store, unless it is there.
    pub async fn publish(&self, path: &Path, options: &PublishOptions) -> Result<Published> {
        publish(&self.client, path, options).await
    }

    /// What an artifact is. Requests: 1 get.
    pub async fn manifest(&self, artifact: &ArtifactId) -> Result<Manifest> {
        let key = keys::manifest(artifact);
        let found = self.client.get(Purpose::Fetch, &key).await?;
        let record = found.map(|object| Record::read(&key, artifact, &object.body)).transpose()?;
        record.and_then(Record::readable).ok_or_else(|| {
            Error::invalid(format!("there is no artifact {artifact}; was it published here?"))
                .about(Matter::Missing)
        })
    }

    /// Brings an artifact into the cache. Requests: none if it is there, else 1 get for the manifest, those of the peers
    /// ([`crate::peers`]), and 1 get for each run of pieces that no peer gives.
    pub async fn fetch(&self, artifact: &ArtifactId, tell: Listener<'_>) -> Result<(Cached, Fetched)> {
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

    /// The peers, and which of them this node is: another process may have begun to serve this cache, or ended.
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

impl Carrier for Artifacts {
    fn fetch<'a>(&'a self, artifact: &'a ArtifactId, tell: Tell<'a>) -> BoxFuture<'a, Result<Brought>> {
        Box::pin(async move {
            let hear = |event: FetchEvent| {
                if let FetchEvent::Progress { bytes, bytes_total, .. } = event {
                    tell(bytes, bytes_total);
                }
            };
            let (cached, _) = self.fetch(artifact, &hear).await?;
            Ok(Brought { path: cached.path().to_owned(), hold: Box::new(cached) })
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
