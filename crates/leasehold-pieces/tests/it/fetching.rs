//! Files published and fetched, from the store alone and with peers.

use leasehold_core::ArtifactId;
use leasehold_pieces::{ArtifactStore, Cache, PublishOptions};
use std::fs;

use crate::support::{TestCluster, contents};

const SIZES: [u64; 9] = [0, 1, 32_767, 32_768, 32_769, 1_048_575, 1_048_576, 1_048_577, 2_097_153];

#[tokio::test(flavor = "multi_thread")]
async fn files_of_every_odd_size_come_from_the_store() {
    let cluster = TestCluster::new();
    let node = cluster.node("alone");
    for size in SIZES {
        let (path, bytes) = cluster.file(size);
        let published = node.publish(&path, &PublishOptions::default()).await.unwrap();
        assert!(!published.was_there);
        let (cached, fetched) = node.fetch(&published.manifest.artifact, &|_| ()).await.unwrap();
        assert_eq!(contents(cached.path()), bytes, "{size}");
        assert_eq!(fetched.origin_bytes, size);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn files_of_every_odd_size_come_from_one_peer_without_the_store() {
    come_from(&["a"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn files_of_every_odd_size_come_from_five_peers_without_the_store() {
    come_from(&["a", "b", "c", "d", "e"]).await;
}

async fn come_from(peers: &[&str]) {
    let cluster = TestCluster::new();
    let mut artifacts = Vec::new();
    let publisher = cluster.node("publisher");
    for size in SIZES {
        let (path, bytes) = cluster.file(size);
        let options = PublishOptions { piece_bytes: Some(32_768), ..PublishOptions::default() };
        let there = publisher.publish(&path, &options).await.unwrap();
        artifacts.push((there.manifest.artifact, bytes));
    }
    let mut serving = Vec::new();
    for name in peers {
        let node = cluster.node(name);
        for (artifact, _) in &artifacts {
            node.fetch(artifact, &|_| ()).await.unwrap();
        }
        serving.push(cluster.serve(name).await);
    }
    let node = cluster.node_with_peers("reader");
    for (artifact, bytes) in &artifacts {
        let (cached, fetched) = node.fetch(artifact, &|_| ()).await.unwrap();
        assert_eq!(contents(cached.path()), *bytes, "{}", bytes.len());
        assert_eq!((fetched.origin_bytes, fetched.peer_bytes), (0, bytes.len() as u64));
    }
    for server in serving {
        server.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_least_recently_used_artifacts_are_removed_and_only_as_many_as_needed() {
    let cluster = TestCluster::new();
    let cache = Cache::open(cluster.directory.path().join("small"), Some(250_000)).unwrap();
    let node = ArtifactStore::new(cluster.client(), cache.clone());
    let mut known = Vec::new();
    for size in 100_000..100_005 {
        let (path, _) = cluster.file(size);
        known.push(node.publish(&path, &PublishOptions::default()).await.unwrap().manifest.artifact);
    }
    let here = || known.iter().map(|known| cache.find(known).unwrap().is_some()).collect::<Vec<_>>();
    for artifact in &known[..3] {
        node.fetch(artifact, &|_| ()).await.unwrap();
    }
    assert_eq!(here(), [false, true, true, false, false]);
    // Files removed by hand count until the whole cache is counted again.
    fs::remove_dir_all(cache.root().join(known[1].as_str())).unwrap();
    node.fetch(&known[3], &|_| ()).await.unwrap();
    assert_eq!(here(), [false, false, true, true, false]);
    // A lock file without a count causes a new count.
    fs::write(cache.root().join("lock"), "").unwrap();
    node.fetch(&known[4], &|_| ()).await.unwrap();
    assert_eq!(here(), [false, false, false, true, true]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cache_of_many_files_is_not_counted_for_each_of_them() {
    let cluster = TestCluster::new();
    let root = cluster.directory.path().join("many");
    let cache = Cache::open(&root, Some(1_100_000)).unwrap();
    for number in 0..1_100_u16 {
        let mut hash = [0; 32];
        hash[..2].copy_from_slice(&number.to_le_bytes());
        let directory = root.join(ArtifactId::blake3(hash).as_str());
        fs::create_dir(&directory).unwrap();
        fs::write(directory.join("data"), [0; 1_000]).unwrap();
    }
    let node = ArtifactStore::new(cluster.client(), cache);
    for size in [500, 501] {
        let (path, _) = cluster.file(size);
        let artifact = node.publish(&path, &PublishOptions::default()).await.unwrap().manifest.artifact;
        node.fetch(&artifact, &|_| ()).await.unwrap();
    }
    let left = fs::read_dir(&root).unwrap().count();
    assert!((985..=995).contains(&left), "{left}");
    let noted = fs::read_to_string(root.join("lock")).unwrap();
    assert_eq!(noted.trim().parse::<u64>().unwrap(), 989_000 + 1_001);
}
