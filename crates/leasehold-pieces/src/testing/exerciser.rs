//! Process that fetches and serves pieces for tests, so that several can run at once and be killed.
//!
//! `piece-exerciser ADDRESS CACHE ARTIFACT [WORD | NAME=VALUE]...`
//!
//! | word | effect |
//! | --- | --- |
//! | `endpoint=URL` | server of the bucket, used with the test credentials |
//! | `peers` | fetch from peers, too |
//! | `name=NODE` | serve the cache under this name, and fetch from peers |
//! | `corrupt` | serve every piece with one flipped bit |
//! | `rate=BYTES` | most bytes requested per second |
//! | `limit=BYTES` | largest file that may be written, from the first progress on |
//! | `cache=BYTES` | limit of the cache |
//! | `wait` | start after one byte of input |
//! | `hold` | keep the artifact, and serve it, until the input ends |
//!
//! It prints `ready`, `progress BYTES`, `blamed WHO WHY`, and `fetched …` or `failed KIND WORDS`.
#![expect(clippy::print_stdout, reason = "the test that started it reads what it prints")]

use bytes::Bytes;
use leasehold_core::piece::{PieceCut, PieceMap};
use leasehold_core::{ArtifactId, Error, Name, Result};
use leasehold_pieces::serve::PieceSource;
use leasehold_pieces::{
    Announcement, ArtifactStore, Cache, FetchEvent, FetchOptions, Peers, PieceServer, ServeOptions,
};
use leasehold_store::{AccessKey, Client, Host, HostExt, OpenOptions, SystemHost, open};
use leasehold_worker::Shutdown;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::collections::BTreeMap;
use std::io::{self, Read};
use std::ops::Range;
use std::sync::Arc;

#[tokio::main]
async fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let mut next = || arguments.next().ok_or_else(|| Error::invalid("ADDRESS CACHE ARTIFACT"));
    let (address, cache, artifact) = (next()?, next()?, next()?);
    let words: BTreeMap<String, String> = arguments
        .map(|word| word.split_once('=').map_or((word.clone(), String::new()), |(a, b)| (a.into(), b.into())))
        .collect();
    let artifact: ArtifactId = artifact.parse().map_err(|_| Error::invalid("ARTIFACT is a hash"))?;
    let host: Arc<dyn Host> = Arc::new(SystemHost);
    let client = Client::new(open(&address, &options(&words), &host)?, host);
    let cache = Cache::open(cache, number(&words, "cache")?)?;
    run(&Node { client, cache, words }, &artifact).await
}

struct Node {
    client: Client,
    cache: Cache,
    words: BTreeMap<String, String>,
}

async fn run(node: &Node, artifact: &ArtifactId) -> Result<()> {
    let mut artifacts = ArtifactStore::new(node.client.clone(), node.cache.clone());
    let name = node.words.get("name").map(|name| Name::checked("peer id", name)).transpose()?;
    if name.is_some() || node.words.contains_key("peers") {
        artifacts = artifacts.with_peers(Peers::new(node.client.clone(), None, name.as_ref()));
    }
    let bytes_per_sec = number(&node.words, "rate")?;
    artifacts = artifacts.with_fetch_options(FetchOptions { bytes_per_sec, ..FetchOptions::default() });
    let limit = number(&node.words, "limit")?;
    let on_event = move |event| match event {
        FetchEvent::Progress { bytes, .. } => {
            if let Some(limit) = limit {
                let before = getrlimit(Resource::Fsize);
                let _ = setrlimit(Resource::Fsize, Rlimit { current: Some(limit), ..before });
            }
            println!("progress {bytes}");
        }
        FetchEvent::PeerFailed { peer, reason } => println!("blamed {peer} {reason}"),
    };
    let fetching = async {
        println!("ready");
        if node.words.contains_key("wait") {
            input(1).await;
        }
        let held = match artifacts.fetch(artifact, &on_event).await {
            Ok((cached, fetched)) => {
                println!(
                    "fetched origin={} peers={} twice={} resumed={} requests={}",
                    fetched.origin_bytes,
                    fetched.peer_bytes,
                    fetched.duplicate_bytes,
                    fetched.resumed_bytes,
                    fetched.origin_requests
                );
                Some(cached)
            }
            Err(error) => {
                println!("failed {:?} {error}", error.kind());
                None
            }
        };
        if node.words.contains_key("hold") {
            input(u64::MAX).await;
        }
        drop(held);
    };
    let Some(name) = name else {
        fetching.await;
        return Ok(());
    };
    let (server, announcement) = serve(node, &name).await?;
    let shutdown = Shutdown::default();
    let serving =
        async { tokio::try_join!(server.run(shutdown.clone()), announcement.run(shutdown.clone())) };
    let ended = async {
        fetching.await;
        shutdown.drain();
        Ok(())
    };
    tokio::try_join!(serving, ended).map(|_| ())
}

async fn serve(node: &Node, name: &Name) -> Result<(PieceServer, Announcement)> {
    let is_corrupt = node.words.contains_key("corrupt");
    let source: Arc<dyn PieceSource> =
        if is_corrupt { Arc::new(Corrupt(node.cache.clone())) } else { Arc::new(node.cache.clone()) };
    let clock = node.client.clone();
    let host: Arc<dyn Host> = Arc::new(SystemHost);
    let server =
        PieceServer::bind(source, ServeOptions::default(), host, Arc::new(move || clock.now())).await?;
    let announcement = Announcement::claim(&node.client, name, server.addr()).await?;
    Ok((server, announcement))
}

/// Serves the pieces of a cache with one flipped bit.
struct Corrupt(Cache);

impl PieceSource for Corrupt {
    fn have(&self, artifact: &ArtifactId) -> Option<(PieceCut, PieceMap)> {
        self.0.have(artifact)
    }

    fn read(&self, artifact: &ArtifactId, pieces: Range<u32>) -> Result<Option<Bytes>> {
        let read = self.0.read(artifact, pieces)?;
        Ok(read.map(|bytes| {
            let mut bytes = bytes.to_vec();
            if let Some(last) = bytes.last_mut() {
                *last ^= 1;
            }
            bytes.into()
        }))
    }
}

/// Waits for `most` bytes of input, or its end.
async fn input(most: u64) {
    let read = move || {
        // An input that cannot be read has ended.
        let _ = io::copy(&mut io::stdin().take(most), &mut io::sink());
        Ok(())
    };
    let _ = SystemHost.blocking(read).await;
}

fn number(words: &BTreeMap<String, String>, name: &str) -> Result<Option<u64>> {
    let read = |text: &String| text.parse().map_err(|_| Error::invalid(format!("{name}=NUMBER")));
    words.get(name).map(read).transpose()
}

fn options(words: &BTreeMap<String, String>) -> OpenOptions {
    let Some(endpoint) = words.get("endpoint") else { return OpenOptions::default() };
    OpenOptions {
        endpoint: Some(endpoint.clone()),
        region: Some("us-east-1".into()),
        access_key: Some(AccessKey { id: "test".into(), secret: "testsecret".into() }),
        ..OpenOptions::default()
    }
}
