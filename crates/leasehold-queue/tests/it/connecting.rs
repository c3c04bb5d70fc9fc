//! Opening a queue, and being refused (promise P8).

use leasehold_core::Kind;
use leasehold_queue::{Queue, QueueConfig};
use leasehold_store::Client;
use serde_json::json;
use std::sync::Arc;

use crate::support::{World, audit};

async fn connect(world: &World, shard_prefix_len: u8) -> leasehold_core::Result<Queue> {
    let client = Client::new(world.store.clone(), Arc::new(world.host.clone()));
    Queue::with_config(client, QueueConfig { shard_prefix_len, ..QueueConfig::default() }).await
}

#[tokio::test]
async fn a_client_that_disagrees_is_refused_with_both_values() {
    let world = World::new().await;
    connect(&world, QueueConfig::AS_FOUND).await.unwrap();
    connect(&world, 1).await.unwrap();
    let before = audit::keys(&world.store, "").await;
    let error = connect(&world, 2).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid);
    let message = "shard_prefix_len is 2 here, but this queue has 1; remove the setting, or correct it";
    assert_eq!(error.to_string(), message);
    for digits in [0, 5, 254] {
        assert_eq!(connect(&world, digits).await.unwrap_err().kind(), Kind::Invalid);
    }
    assert_eq!(audit::keys(&world.store, "").await, before);
}

#[tokio::test]
async fn a_queue_is_founded_once_and_found_by_all() {
    let world = World::new().await;
    let again = connect(&world, QueueConfig::AS_FOUND).await.unwrap();
    assert_eq!(again.agreement(), world.queue.agreement());
    assert_eq!(audit::keys(&world.store, "").await, ["queue.json"], "nothing is left of the probe");
}

#[tokio::test]
async fn a_description_that_cannot_be_used_is_refused_and_kept() {
    let world = World::new().await;
    let good = audit::value(&world.store, "queue.json").await.unwrap();
    let mut newer = good.clone();
    newer["format"] = json!(2);
    newer["shard_prefix_len"] = json!("many");
    let mut wide = good.clone();
    wide["shard_prefix_len"] = json!(9);
    for (body, word) in [
        ("{".to_owned(), "cannot be used"),
        ("null".to_owned(), "cannot be used"),
        (newer.to_string(), "it has format 2, and this program knows 1: use a newer one"),
        (wide.to_string(), "cannot be used"),
    ] {
        world.scribble("queue.json", body.clone()).await;
        let error = connect(&world, QueueConfig::AS_FOUND).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Corrupt);
        assert!(error.to_string().contains(word), "{error}");
        let kept =
            leasehold_store::Store::get(&*world.store, "queue.json", None).await.unwrap().found().unwrap();
        assert_eq!(kept.body, body);
    }
}

#[tokio::test]
async fn a_place_is_an_address_or_a_path_or_an_open_store() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().to_str().unwrap();
    let queue = Queue::connect(folder.path()).await.unwrap();
    for again in [
        Queue::connect(text).await.unwrap(),
        Queue::connect(format!("file://{text}")).await.unwrap(),
        Queue::connect(queue.client().clone()).await.unwrap(),
    ] {
        assert_eq!(again.agreement(), queue.agreement());
    }
    assert_eq!(Queue::connect("redis://x").await.unwrap_err().kind(), Kind::Invalid);
}
