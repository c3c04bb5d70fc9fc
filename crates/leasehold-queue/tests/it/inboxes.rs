//! Direct dispatch without workers: the choice of a worker, its cost, and the recovery of an inbox without a holder.

use leasehold_core::{HexName, Holder, IndexLocation, Status, TaskId, keys};
use leasehold_queue::discover::KeyRange;
use leasehold_queue::lease::worker_subject;
use leasehold_queue::{
    DirectDispatch, HeldLease, IndexHit, Leases, ObjectQueue, QueueConfig, QueueLayout, Selection,
    Settlement, Taken,
};
use leasehold_store::{Client, Purpose};
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::support::stage::Fate;
use crate::support::{LEASE, World, any_type, audit, mins, order, requests, secs, worker};

/// A producer with this selection.
async fn producer(world: &World, selection: Selection) -> ObjectQueue {
    let client = Client::new(world.store.clone(), Arc::new(world.host.clone()));
    let direct = DirectDispatch { selection, ..DirectDispatch::default() };
    ObjectQueue::with_config(client, QueueConfig { direct: Some(direct), ..QueueConfig::default() })
        .await
        .unwrap()
}

/// A worker takes its id for a minute.
async fn named(world: &World, name: &str) -> (Leases, HeldLease) {
    let id = worker(name);
    let holder = Holder { worker_id: id.clone(), instance: HexName::from_random(7), ttl: mins(1) };
    let leases = Leases::new(world.queue.client().clone(), holder).unwrap();
    match leases.take(&keys::inbox_lease(&id), &worker_subject(&id), None).await.unwrap() {
        Taken::Ours(held) => (leases, held),
        Taken::Others(lease) => panic!("{lease:?}"),
    }
}

async fn found(world: &World, place: &IndexLocation) -> Vec<IndexHit> {
    world.queue.discover(Purpose::Discover, vec![KeyRange::at(place)]).await.unwrap().due
}

fn inbox(name: &str) -> IndexLocation {
    IndexLocation::Inbox(worker(name))
}

async fn submit(queue: &ObjectQueue) -> TaskId {
    queue.submit_task(order()).await.unwrap().id
}

/// Number of entries in each inbox.
async fn sizes(world: &World) -> BTreeMap<String, u64> {
    let sizes = world.queue.inbox_sizes().await.unwrap();
    sizes.into_iter().map(|(worker, size)| (worker.to_string(), size)).collect()
}

#[tokio::test]
async fn the_list_of_workers_is_cached_for_half_a_minute() {
    let world = World::new().await;
    let producer = producer(&world, Selection::RoundRobin).await;
    let (leases, mut kept) = named(&world, "kept").await;
    named(&world, "lost").await;
    let before = producer.client().ledger().snapshot();
    for _ in 0..4 {
        submit(&producer).await;
    }
    // Entry and task, and a ring per inbox within this second; one list shows the live workers.
    assert_eq!(requests(&producer, &before), [4 * 2 + 2, 0, 1, 0]);
    assert_eq!(sizes(&world).await, BTreeMap::from([("kept".into(), 2), ("lost".into(), 2)]));
    world.advance(secs(29));
    submit(&producer).await;
    assert_eq!(requests(&producer, &before)[2], 1);
    leases.renew(&mut kept).await.unwrap();
    world.advance(mins(1));
    leases.renew(&mut kept).await.unwrap();
    let before = producer.client().ledger().snapshot();
    for _ in 0..4 {
        submit(&producer).await;
    }
    // A lease that is older than usual is read, once.
    let [_, gets, lists, _] = requests(&producer, &before);
    assert_eq!((gets, lists), (1 + 1, 1), "the lease of the lost one, and `queue.json`");
    assert_eq!(sizes(&world).await["kept"], 2 + 4 + u64::from(sizes(&world).await["lost"] == 2));
}

#[tokio::test]
async fn one_key_goes_to_one_worker_as_long_as_it_lives() {
    let world = World::new().await;
    for name in ["a", "b", "c", "d"] {
        named(&world, name).await;
    }
    let before = world.queue.inbox_sizes().await.unwrap();
    assert!(before.is_empty());
    let mut owners = Vec::new();
    for _ in 0..2 {
        // Another process chooses the same.
        let producer = producer(&world, Selection::Hash).await;
        for number in 0..40 {
            let key = leasehold_queue::UniqueKey::new(format!("key {number}"));
            let id = producer.submit_task(order()).key(key).await.unwrap().id;
            let keys = audit::keys(&world.store, keys::INBOXES).await;
            let key = keys.into_iter().find(|key| key.contains(&id.to_string())).unwrap();
            owners.push(key.split('/').nth(1).unwrap().to_owned());
        }
    }
    let (first, second) = owners.split_at(40);
    assert_eq!(first, second);
    assert_eq!(sizes(&world).await.len(), 4, "all have some");
}

#[tokio::test]
async fn an_inbox_without_a_holder_is_emptied_once() {
    let world = World::new().await;
    let producer = producer(&world, Selection::Random).await;
    named(&world, "dead").await;
    let [waits, runs, ended] = [submit(&producer).await, submit(&producer).await, submit(&producer).await];
    let in_inbox = found(&world, &inbox("dead")).await;
    let of = |id: &TaskId| in_inbox.iter().find(|found| found.entry.id == *id).unwrap();
    let claim = |id: TaskId| {
        let found = of(&id).clone();
        let queue = world.queue.clone();
        async move {
            match queue.claim(&found, &worker("dead"), LEASE * 3, &any_type(), true).await.unwrap() {
                Ok(claimed) => claimed,
                outcome => panic!("{outcome:?}"),
            }
        }
    };
    claim(runs).await;
    world.queue.cancel(&ended).await.unwrap();
    assert_eq!(world.queue.rescue_inboxes().await.unwrap(), 0, "it lives");
    world.advance(secs(62));
    let rescued = world.queue.rescue_inboxes().await.unwrap();
    assert_eq!(rescued, 3, "one is moved, and the running one is covered by a lease entry");
    assert_eq!(world.queue.rescue_inboxes().await.unwrap(), 0);
    let [left] = &found(&world, &IndexLocation::Overflow).await[..] else { panic!("one is left") };
    assert_eq!(left.entry.id, waits);
    let checked = world.queue.check(false).await.unwrap();
    assert_eq!((checked.uncovered.len(), checked.unneeded.len()), (0, 0), "{checked:?}");
    let Ok(claimed) = world.queue.claim(left, &worker("other"), LEASE, &any_type(), false).await.unwrap()
    else {
        panic!("it waits for anyone")
    };
    assert!(found(&world, &IndexLocation::Overflow).await.is_empty());
    world.queue.settle(&claimed, Settlement::complete(1.into())).await.unwrap();
    assert_eq!(world.get(&waits).await.status(), Status::Completed);
}

/// The producer is between its two writes: the entry moves to the overflow, and is claimed when the task exists.
#[tokio::test]
async fn an_entry_without_its_task_is_moved_too() {
    let world = World::new().await;
    let id = world.submit().await;
    let ready = world.get(&id).await.entry().unwrap();
    let key = keys::task(ready.shard().unwrap(), &id);
    let task = world.queue.client().get(Purpose::Admin, &key).await.unwrap().unwrap();
    world.queue.client().delete(Purpose::Admin, &key).await.unwrap();
    world.queue.client().delete(Purpose::Admin, &ready.key()).await.unwrap();
    world.overwrite(&ready.at_location(inbox("gone")).key(), "").await;
    assert_eq!(world.queue.rescue_inboxes().await.unwrap(), 1);
    world.overwrite(&key, task.body).await;
    let [left] = &found(&world, &IndexLocation::Overflow).await[..] else { panic!("it was moved") };
    assert!(world.queue.claim(left, &worker("w"), LEASE, &any_type(), false).await.unwrap().is_ok());
}

/// The first of two inboxes has an entry whose task gets no answer.
#[tokio::test]
async fn one_task_without_an_answer_does_not_block_other_inboxes() {
    let world = World::new().await;
    let [stuck, free] = [world.submit().await, world.submit().await];
    for (id, name) in [(stuck, "a"), (free, "b")] {
        let ready = world.get(&id).await.entry().unwrap();
        world.overwrite(&ready.at_location(inbox(name)).key(), "").await;
        world.queue.client().delete(Purpose::Admin, &ready.key()).await.unwrap();
    }
    let (queue, stage) = world.staged().await;
    let key = keys::task(&queue.shard_len().shard_of(&stuck), &stuck);
    stage.play(move |_, asked| if asked.key == key { Fate::Refuse } else { Fate::Pass });
    queue.rescue_inboxes().await.unwrap_err();
    assert_eq!(sizes(&world).await, BTreeMap::from([("a".into(), 1)]));
    assert_eq!(found(&world, &IndexLocation::Overflow).await.len(), 1);
}

#[tokio::test]
async fn a_task_that_its_owner_runs_is_no_finding_of_a_check() {
    let world = World::new().await;
    let producer = producer(&world, Selection::Random).await;
    named(&world, "a").await;
    submit(&producer).await;
    let [entry] = &found(&world, &inbox("a")).await[..] else { panic!("it is in the inbox") };
    let outcome = world.queue.claim(entry, &worker("a"), LEASE, &any_type(), true).await.unwrap();
    assert!(outcome.is_ok());
    let checked = world.queue.check(false).await.unwrap();
    assert_eq!((checked.uncovered.len(), checked.unneeded.len()), (0, 0), "{checked:?}");
}
