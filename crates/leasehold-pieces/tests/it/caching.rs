//! The cache: one download for concurrent fetches, eviction, and no incomplete file under its final name.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use leasehold_core::{ArtifactId, HexName, Kind, keys};
use leasehold_pieces::manifest::ManifestRecord;
use leasehold_pieces::{Algorithm, ArtifactStore, Cache, FetchEvent, Manifest, PublishOptions};
use leasehold_store::testing::FakeHost;
use leasehold_store::{Client, OpenOptions, Purpose, Store, When};

use crate::process::{Process, number_in};
use crate::support::{TestCluster, contents};

const PIECE_BYTES: u32 = 32_768;

fn small() -> PublishOptions {
    PublishOptions { piece_bytes: Some(PIECE_BYTES), ..PublishOptions::default() }
}

/// Publishes artifacts of these sizes.
async fn publish(cluster: &TestCluster, sizes: &[u64]) -> Vec<(ArtifactId, Vec<u8>)> {
    let publisher = cluster.node("publisher");
    let mut all = Vec::new();
    for size in sizes {
        let (path, bytes) = cluster.file(*size);
        let there = publisher.publish(&path, &small()).await.unwrap();
        all.push((there.manifest.artifact, bytes));
    }
    all
}

fn limited(cluster: &TestCluster, bytes_max: u64) -> ArtifactStore {
    let cache = Cache::open(cluster.directory.path().join("caches/limited"), Some(bytes_max)).unwrap();
    ArtifactStore::new(cluster.client(), cache)
}

fn directory(node: &ArtifactStore, artifact: &ArtifactId) -> PathBuf {
    node.cache().root().join(artifact.as_str())
}

#[test]
fn a_new_cache_is_for_this_user_alone() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().unwrap();
    let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let new = Cache::open(directory.path().join("above/new"), None).unwrap();
    assert_eq!(mode(new.root()), 0o700);
    let shared = directory.path().join("shared");
    fs::create_dir(&shared).unwrap();
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o770)).unwrap();
    assert_eq!(mode(Cache::open(&shared, None).unwrap().root()), 0o770, "as its owner wants it");
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_that_want_the_same_artifact_share_one_download() {
    let cluster = TestCluster::new();
    let (artifact, bytes) = publish(&cluster, &[4_000_000]).await.remove(0);
    let tasks = (0..6).map(|_| {
        let (node, artifact) = (cluster.node("shared"), artifact.clone());
        tokio::spawn(async move { node.fetch(&artifact, &|_| ()).await.unwrap() })
    });
    let mut downloaded = 0;
    for task in tasks.collect::<Vec<_>>() {
        let (cached, fetched) = task.await.unwrap();
        assert!(contents(cached.path()) == bytes);
        downloaded += fetched.origin_bytes;
    }
    assert_eq!(downloaded, 4_000_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_that_want_the_same_artifact_share_one_download() {
    let cluster = TestCluster::new();
    let store = cluster.directory.path().join("store");
    let client = Client::open(store.to_str().unwrap(), &OpenOptions::default()).unwrap();
    let cache = cluster.directory.path().join("caches/both");
    let (path, bytes) = cluster.file(4_000_000);
    let node = ArtifactStore::new(client, Cache::open(&cache, None).unwrap());
    let artifact = node.publish(&path, &small()).await.unwrap().manifest.artifact;
    let mut both: Vec<_> = (0..2)
        .map(|_| Process::start(&store, &cache, artifact.as_str(), &["wait", "rate=8000000"]))
        .collect();
    for process in &mut both {
        process.line("ready");
    }
    both.iter_mut().for_each(Process::release);
    let outcomes: Vec<String> = both.iter_mut().map(Process::outcome).collect();
    assert_eq!(
        outcomes.iter().map(|outcome| number_in(outcome, "origin")).sum::<u64>(),
        4_000_000,
        "{outcomes:?}"
    );
    assert!(contents(&cache.join(artifact.as_str()).join("data")) == bytes);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_least_recently_used_artifact_is_removed_first() {
    let cluster = TestCluster::new();
    let artifacts = publish(&cluster, &[100_001, 100_002, 100_003, 100_004, 100_005]).await;
    let node = limited(&cluster, 310_000);
    let is_here = |at: usize| directory(&node, &artifacts[at].0).join("data").exists();
    for (artifact, _) in &artifacts[..3] {
        node.fetch(artifact, &|_| ()).await.unwrap();
    }
    // The first is used again, so the second is the least recently used.
    node.fetch(&artifacts[0].0, &|_| ()).await.unwrap();
    node.fetch(&artifacts[3].0, &|_| ()).await.unwrap();
    assert_eq!([0, 1, 2, 3].map(is_here), [true, false, true, true]);
    node.fetch(&artifacts[4].0, &|_| ()).await.unwrap();
    assert_eq!([0, 1, 2, 3, 4].map(is_here), [true, false, false, true, true]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_artifact_larger_than_the_cache_and_a_cache_in_use_are_different_errors() {
    let cluster = TestCluster::new();
    let artifacts = publish(&cluster, &[100_001, 100_002, 200_000]).await;
    let node = limited(&cluster, 150_000);
    let error = node.fetch(&artifacts[2].0, &|_| ()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid);
    assert!(error.to_string().contains("raise its limit"), "{error}");
    assert!(!directory(&node, &artifacts[2].0).exists());

    let (held, _) = node.fetch(&artifacts[0].0, &|_| ()).await.unwrap();
    let error = node.fetch(&artifacts[1].0, &|_| ()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    assert!(error.to_string().contains("in use"), "{error}");
    assert!(contents(held.path()) == artifacts[0].1);
    drop(held);
    node.fetch(&artifacts[1].0, &|_| ()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_artifact_in_use_is_never_evicted() {
    let cluster = TestCluster::new();
    let sizes: Vec<u64> = (0..12).map(|at| 90_000 + at).collect();
    let artifacts = Arc::new(publish(&cluster, &sizes).await);
    let mut tasks = Vec::new();
    for task in 0..4_usize {
        let (node, artifacts) = (limited(&cluster, 500_000), artifacts.clone());
        tasks.push(tokio::spawn(async move {
            let mut fetched = 0;
            for round in 0..60_usize {
                let (artifact, bytes) = &artifacts[(round * (task + 3) + task) % 12];
                match node.fetch(artifact, &|_| ()).await {
                    Ok((cached, _)) => {
                        tokio::task::yield_now().await;
                        assert!(contents(cached.path()) == *bytes, "it was evicted while it was held");
                        fetched += 1;
                    }
                    // All cached artifacts may be in use at the moment; no other error may occur.
                    Err(error) => assert!(error.to_string().contains("in use"), "{error}"),
                }
            }
            fetched
        }));
    }
    for task in tasks {
        assert!(task.await.unwrap() > 30);
    }
    let node = limited(&cluster, 500_000);
    let held: u64 = artifacts
        .iter()
        .filter_map(|(artifact, _)| fs::metadata(directory(&node, artifact).join("data")).ok())
        .map(|found| found.len())
        .sum();
    assert!(held <= 500_000, "{held}");
}

/// Detected by the modification time, without reading the file. A process that holds the file keeps it.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_was_modified_on_the_disk_is_fetched_again() {
    let cluster = TestCluster::new();
    let (artifact, bytes) = publish(&cluster, &[1_000_000]).await.remove(0);
    let node = cluster.node("a");
    for is_held in [false, true] {
        let (cached, _) = node.fetch(&artifact, &|_| ()).await.unwrap();
        let path = cached.path().to_owned();
        let held = is_held.then_some(cached);
        let mut changed = bytes.clone();
        changed[500_000] ^= 1;
        // As root, to whom read-only does not apply.
        let mut permissions = fs::metadata(&path).unwrap().permissions();
        #[expect(
            clippy::permissions_set_readonly_false,
            reason = "a file of this test, in its own directory"
        )]
        permissions.set_readonly(false);
        fs::set_permissions(&path, permissions).unwrap();
        fs::write(&path, &changed).unwrap();
        let (cached, fetched) = node.fetch(&artifact, &|_| ()).await.unwrap();
        assert!(contents(cached.path()) == bytes);
        assert_eq!(fetched.origin_bytes, bytes.len() as u64);
        drop(held);
    }
}

/// Replaces the manifest of an artifact.
async fn forge(cluster: &TestCluster, artifact: &ArtifactId, change: impl FnOnce(&mut Manifest)) {
    let mut manifest = cluster.node("publisher").manifest(artifact).await.unwrap();
    change(&mut manifest);
    let body = ManifestRecord::Published(manifest).write(artifact, HexName::from_random(1));
    cluster.store.put(&keys::manifest(artifact), body, &When::Always).await.unwrap();
}

async fn replace_data(cluster: &TestCluster, artifact: &ArtifactId, bytes: Vec<u8>) {
    let key = keys::artifact_data(artifact);
    cluster.store.put(&key, Bytes::from(bytes), &When::Always).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manifest_whose_whole_is_another_is_corrupt_and_leaves_nothing() {
    // A tree of hashes is verified before anything is fetched.
    for (algorithm, words) in
        [(Algorithm::Blake3, "do not match the artifact id"), (Algorithm::Sha256, "the manifest is corrupt")]
    {
        let (cluster, options) = (TestCluster::new(), PublishOptions { algorithm, ..small() });
        let (path, mut bytes) = cluster.file(300_000);
        let publisher = cluster.node("publisher");
        let artifact = publisher.publish(&path, &options).await.unwrap().manifest.artifact;
        // Other data, and the hashes of its pieces: each piece matches the manifest.
        bytes[0] ^= 1;
        fs::write(&path, &bytes).unwrap();
        let pieces = publisher.publish(&path, &options).await.unwrap().manifest.pieces;
        forge(&cluster, &artifact, |manifest| manifest.pieces = pieces).await;
        replace_data(&cluster, &artifact, bytes).await;
        let (client, cache) = (cluster.client(), cluster.directory.path().join("caches/reader"));
        let node = ArtifactStore::new(client.clone(), Cache::open(cache, None).unwrap());
        let error = node.fetch(&artifact, &|_| ()).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Corrupt);
        assert!(error.to_string().contains(words), "{error}");
        assert!(!directory(&node, &artifact).exists());
        let requests: u64 = client.ledger().snapshot().lines().map(|(_, count)| count.requests).sum();
        assert_eq!(requests == 1, algorithm == Algorithm::Blake3, "{requests} requests");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn data_that_does_not_match_the_manifest_ends_the_fetch() {
    let cluster = TestCluster::new();
    let (artifact, mut bytes) = publish(&cluster, &[300_000]).await.remove(0);
    bytes[200_000] ^= 1;
    replace_data(&cluster, &artifact, bytes).await;
    let blamed = std::sync::Mutex::new(Vec::new());
    let on_event = |event| {
        if let FetchEvent::PeerFailed { peer, .. } = event {
            blamed.lock().unwrap().push(peer);
        }
    };
    let node = cluster.node("reader");
    let error = node.fetch(&artifact, &on_event).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Corrupt);
    assert!(error.to_string().contains("in the store is corrupt: piece 6"), "{error}");
    assert_eq!(*blamed.lock().unwrap(), ["(origin)", "(origin)"]);
    assert!(!directory(&node, &artifact).join("data").exists());
    // With its own request counts: one manifest, the run, and the corrupt piece once more.
    let client = cluster.client();
    let node = ArtifactStore::new(client.clone(), cluster.cache("counted"));
    node.fetch(&artifact, &|_| ()).await.unwrap_err();
    let requests: u64 = client
        .ledger()
        .snapshot()
        .lines()
        .filter(|(line, _)| line.purpose == Purpose::Fetch)
        .map(|(_, count)| count.requests)
        .sum();
    assert_eq!(requests, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_may_not_grow_is_a_clear_error_and_gets_no_name() {
    let cluster = TestCluster::new();
    let store = cluster.directory.path().join("store");
    let client = Client::open(store.to_str().unwrap(), &OpenOptions::default()).unwrap();
    let cache = cluster.directory.path().join("caches/small");
    let (path, bytes) = cluster.file(4_000_000);
    let node = ArtifactStore::new(client, Cache::open(&cache, None).unwrap());
    let artifact = node.publish(&path, &small()).await.unwrap().manifest.artifact;
    let mut process = Process::start(&store, &cache, artifact.as_str(), &["limit=1000000"]);
    let outcome = process.outcome();
    assert!(
        outcome.starts_with("failed Invalid cannot ") && outcome.contains(": file size limit exceeded"),
        "{outcome}"
    );
    assert!(!cache.join(artifact.as_str()).join("data").exists());
    // Pieces written before are reused.
    let (cached, _) = node.fetch(&artifact, &|_| ()).await.unwrap();
    assert!(contents(cached.path()) == bytes);
}

/// On a host whose time passes as soon as a task sleeps.
#[tokio::test(flavor = "multi_thread")]
async fn waiting_for_a_process_without_progress_times_out() {
    let cluster = TestCluster::new();
    let (artifact, _) = publish(&cluster, &[1_000_000]).await.remove(0);
    let cache = cluster.cache("a");
    let directory = cache.root().join(artifact.as_str());
    fs::create_dir_all(&directory).unwrap();
    let journal = fs::File::create(directory.join("journal")).unwrap();
    rustix::fs::flock(&journal, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let client = Client::new(cluster.store.clone(), Arc::new(FakeHost::new()));
    let node = ArtifactStore::new(client, cache);
    let error = node.fetch(&artifact, &|_| ()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    assert!(error.to_string().ends_with("has made no progress for 6 minutes; end it and retry"), "{error}");
    drop(journal);
    cluster.node("a").fetch(&artifact, &|_| ()).await.unwrap();
}
