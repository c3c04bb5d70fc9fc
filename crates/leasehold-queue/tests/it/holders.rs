//! Listing leases and their holders, and the cost of it.

use futures::TryStreamExt;
use leasehold_core::lease::Take;
use leasehold_core::{HexName, Holder, Lease, Now, ShardRange, StoreTime, keys};
use leasehold_queue::LeaseState::{Corrupt, Expired, Free, Held};
use leasehold_queue::{
    HeldLease, LeaseInfo, Leases, ObjectQueue, PeerLeaseCache, QueueConfig, Taken, break_lease,
};
use leasehold_store::{Client, ListEntry, MemoryStore};
use serde_json::Map;
use std::sync::Arc;

use crate::support::{World, requests, secs, worker};

/// A queue with 256 shards, in a world of its own.
async fn large() -> World {
    let World { host, .. } = World::new().await;
    let store = Arc::new(MemoryStore::new(&(Arc::new(host.clone()) as _)));
    let client = Client::new(store.clone(), Arc::new(host.clone()));
    let config = QueueConfig { shard_prefix_len: Some(2), ..QueueConfig::default() };
    World { queue: ObjectQueue::with_config(client, config).await.unwrap(), host, store }
}

fn leases(world: &World, name: &str) -> Leases {
    let holder = Holder { worker_id: worker(name), instance: HexName::from_random(7), ttl: secs(30) };
    Leases::new(world.queue.client().clone(), holder).unwrap()
}

async fn take(leases: &Leases, key: &str) -> HeldLease {
    match leases.take(key, &Map::new(), None).await.unwrap() {
        Taken::Ours(held) => held,
        Taken::Others(lease) => panic!("{lease:?}"),
    }
}

async fn seen(world: &World) -> Vec<(ShardRange, LeaseInfo)> {
    world.queue.shard_leases().await.unwrap()
}

#[tokio::test]
async fn listing_all_shards_costs_one_list_and_at_most_64_gets() {
    let world = large().await;
    let before = world.ledger();
    assert!(seen(&world).await.iter().all(|(_, seen)| seen.state == Free && seen.lease.is_none()));
    assert_eq!(requests(&world.queue, &before), [0, 0, 1, 0]);
    let leases = leases(&world, "w1");
    for group in world.queue.shard_len().groups() {
        take(&leases, &keys::shard_lease(&group)).await;
    }
    let before = world.ledger();
    let seen = seen(&world).await;
    assert_eq!(requests(&world.queue, &before), [0, 64, 1, 0]);
    assert_eq!(seen.iter().map(|(group, _)| group.count()).sum::<usize>(), 256);
    assert!(seen.iter().all(|(_, seen)| seen.holder() == Some(&worker("w1"))));
}

#[tokio::test]
async fn a_lease_is_held_until_it_has_certainly_expired_and_free_once_it_was_released() {
    let world = World::new().await;
    let leases = leases(&world, "w1");
    let keys: Vec<_> = world.queue.shard_len().groups().iter().map(keys::shard_lease).collect();
    for key in &keys[..2] {
        take(&leases, key).await;
    }
    let released = take(&leases, &keys[2]).await;
    leases.release(released).await.unwrap();
    world.overwrite(&keys[3], "{").await;
    let states = async || seen(&world).await.iter().map(|(_, seen)| seen.state).take(4).collect::<Vec<_>>();
    assert_eq!(states().await, [Held, Held, Free, Corrupt]);
    world.advance(secs(60));
    assert_eq!(states().await, [Expired, Expired, Free, Corrupt]);
    let was = break_lease(world.queue.client(), &keys[0], &Map::new()).await.unwrap().unwrap().lease.unwrap();
    assert_eq!((was.worker_id, was.epoch), (worker("w1"), 1));
    assert_eq!(states().await, [Free, Expired, Free, Corrupt]);
    assert_eq!(take(&leases, &keys[0]).await.lease.epoch, 3, "above that of the broken one");
}

#[tokio::test]
async fn worker_ids_are_read_in_order_and_other_objects_left_out() {
    let world = World::new().await;
    for name in ["w2", "w1"] {
        take(&leases(&world, name), &keys::worker_lease(&worker(name))).await;
    }
    world.overwrite("workers/readme.txt", "hello").await;
    let before = world.ledger();
    let names: Vec<_> = world.queue.worker_leases().try_collect().await.unwrap();
    assert_eq!(requests(&world.queue, &before), [0, 2, 1, 0]);
    let names: Vec<_> = names.iter().map(|(name, _, seen)| (name.as_str(), seen.state)).collect();
    assert_eq!(names, [("w1", Held), ("w2", Held)]);
}

/// The lease is taken and released within the second of its timestamp; the cached copy says held until it
/// expires.
#[test]
fn a_lease_released_in_the_second_of_its_stamp_is_free() {
    let (now, stamp) = (Now::exactly(StoreTime::from_millis(5_500)), StoreTime::from_millis(5_000));
    let holder = Holder { worker_id: worker("w"), instance: HexName::from_random(1), ttl: secs(30) };
    let Take::Write(lease) = Lease::take(None, &Map::new(), &holder, now, HexName::from_random(2)) else {
        panic!("it was free")
    };
    let listed = |lease: &Lease| {
        let size = lease.write().len() as u64;
        ListEntry { key: "k".into(), modified: stamp, size }
    };
    let mut others = PeerLeaseCache::new(holder.ttl);
    others.insert("k", Some(stamp), Some(lease.expires_at));
    assert_eq!(others.is_held(&listed(&lease), now), Some(true));
    let released = lease.released(now, HexName::from_random(3));
    assert_eq!(others.is_held(&listed(&released), now), Some(false));
}
