//! Files published and fetched, from the store alone and with peers.

use leasehold_pieces::PublishOptions;

use crate::support::{Ground, contents};

const SIZES: [u64; 9] = [0, 1, 32_767, 32_768, 32_769, 1_048_575, 1_048_576, 1_048_577, 2_097_153];

#[tokio::test(flavor = "multi_thread")]
async fn files_of_every_odd_size_come_from_the_store() {
    let ground = Ground::new();
    let node = ground.node("alone");
    for size in SIZES {
        let (path, bytes) = ground.file(size);
        let published = node.publish(&path, &PublishOptions::default()).await.unwrap();
        assert!(!published.was_there);
        let (cached, fetched) = node.fetch(&published.manifest.artifact, &|_| ()).await.unwrap();
        assert_eq!(contents(cached.path()), bytes, "{size}");
        assert_eq!(fetched.origin_bytes, size);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn files_of_every_odd_size_come_from_five_peers_without_the_store() {
    let ground = Ground::new();
    let mut artifacts = Vec::new();
    let publisher = ground.node("publisher");
    for size in SIZES {
        let (path, bytes) = ground.file(size);
        let options = PublishOptions { piece_bytes: Some(32_768), ..PublishOptions::default() };
        let there = publisher.publish(&path, &options).await.unwrap();
        artifacts.push((there.manifest.artifact, bytes));
    }
    let mut serving = Vec::new();
    for name in ["a", "b", "c", "d", "e"] {
        let node = ground.node(name);
        for (artifact, _) in &artifacts {
            node.fetch(artifact, &|_| ()).await.unwrap();
        }
        serving.push(ground.serve(name).await);
    }
    let node = ground.node_with_peers("reader");
    for (artifact, bytes) in &artifacts {
        let (cached, fetched) = node.fetch(artifact, &|_| ()).await.unwrap();
        assert_eq!(contents(cached.path()), *bytes, "{}", bytes.len());
        assert_eq!((fetched.origin_bytes, fetched.peer_bytes), (0, bytes.len() as u64));
    }
    for server in serving {
        server.stop().await;
    }
}
