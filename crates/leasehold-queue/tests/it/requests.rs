//! The requests of each operation, as in the table of `docs/protocol/queue.md`.

use futures::StreamExt;
use leasehold_core::Index;
use leasehold_queue::purge::PURGE_GRACE;
use leasehold_queue::quarantine::Keep;
use leasehold_queue::{Filter, ObjectQueue, Settlement};
use serde_json::json;

use crate::support::operations::retention;
use crate::support::{LEASE, World, mins, order, requests, secs};

fn fail(retryable: bool) -> Settlement {
    Settlement::Fail { error: "no".into(), retryable, after: None }
}

#[tokio::test]
async fn measure() {
    let world = World::new().await;
    let queue = &world.queue;
    macro_rules! m { ($what:expr, $e:expr) => {{ let b = world.ledger(); let r = $e; println!("{:45} {:?}", $what, requests(queue, &b)); r }} }
    world.submit().await;
    let id = m!("submit", world.submit().await);
    let hit = world.due(Index::Ready).await.into_iter().find(|h| h.entry.id == id).unwrap();
    let claim = async |id: &leasehold_core::TaskId| { let due = world.due(Index::Ready).await; let hit = due.into_iter().find(|h| h.entry.id == *id).unwrap(); hit };
    let _ = hit;
    for (name, s) in [("complete", Settlement::complete(json!(1))), ("fail permanent", fail(false)), ("fail retry", fail(true)), ("snooze", Settlement::Snooze(world.now().plus(mins(9)))), ("release", Settlement::Release), ("stop", Settlement::Stop)] {
        let id = world.submit().await;
        let hit = claim(&id).await;
        let b = world.ledger();
        let leasehold_queue::ClaimOutcome::Claimed(claimed) = queue.claim(&hit, &crate::support::worker("w"), LEASE, &crate::support::any_type).await.unwrap() else { panic!() };
        println!("{:45} {:?}", "claim", requests(queue, &b));
        m!(name, queue.settle(&claimed, s).await.unwrap());
    }
    let id = world.submit().await;
    let claimed = world.claim(&id).await;
    let renewed = m!("renew", queue.renew(&claimed, LEASE * 3, None).await.unwrap().unwrap());
    m!("complete after renewal", queue.settle(&renewed, Settlement::complete(json!(1))).await.unwrap());
    let id = world.submit().await;
    m!("cancel pending", queue.cancel(&id).await.unwrap());
    m!("retry cancelled", queue.retry(&id).await.unwrap());
    m!("reschedule later", queue.reschedule(&id, world.now().plus(mins(30))).await.unwrap());
    m!("reschedule same minute", queue.reschedule(&id, world.now().plus(mins(30)).plus(secs(1))).await.unwrap());
    let id = world.submit().await;
    let claimed = world.claim(&id).await;
    m!("cancel running", queue.cancel(&id).await.unwrap());
    m!("settle cancelled", queue.settle(&claimed, Settlement::Stop).await.unwrap());
    let id = world.submit().await;
    let _claimed = world.claim(&id).await;
    world.advance(LEASE + secs(2));
    world.submit().await;
    let hit = world.due(Index::Lease).await.into_iter().find(|h| h.entry.id == id).unwrap();
    m!("time out (sweep)", queue.sweep(&hit).await.unwrap());
    let mut task = order();
    task.expires_in = Some(secs(60));
    let id = world.submit_this(task).await;
    world.advance(secs(62));
    world.submit().await;
    let hit = world.due(Index::Ready).await.into_iter().find(|h| h.entry.id == id).unwrap();
    m!("expire (sweep)", queue.sweep(&hit).await.unwrap());
    m!("list", queue.list(Filter::default()).collect::<Vec<_>>().await.len());
    m!("stats", queue.stats().await.unwrap());
    m!("check", println!("{:?}", queue.check(false).await.unwrap()));
    let id = world.submit().await;
    m!("get", queue.get(&id).await.unwrap());
    let key = format!("tasks/{}/{id}.json", world.get(&id).await.shard);
    world.overwrite(&key, "{").await;
    m!("quarantine task, copy", queue.quarantine(&key, Keep::Copy).await.unwrap());
    world.overwrite(&key, "{").await;
    m!("quarantine task, no copy", queue.quarantine(&key, Keep::Nothing).await.unwrap());
    world.overwrite("ready/strange", "{").await;
    m!("quarantine unknown key", queue.quarantine("ready/strange", Keep::Copy).await.unwrap());
    world.overwrite("index/bell", "{").await;
    m!("quarantine bell", queue.quarantine("index/bell", Keep::Nothing).await.map(|_| ()));
    let id = world.submit().await;
    queue.cancel(&id).await.unwrap();
    world.advance(PURGE_GRACE + secs(2));
    let task = world.get(&id).await;
    m!("purge: mark", queue.purge(&task, &retention()).await.unwrap());
    world.advance(PURGE_GRACE + secs(2));
    let task = world.get(&id).await;
    m!("purge: delete", queue.purge(&task, &retention()).await.unwrap());
    let fresh = World::new().await;
    let b = fresh.ledger();
    println!("empty check {:?} {:?}", fresh.queue.check(false).await.unwrap(), requests(&fresh.queue, &b));
    let other: ObjectQueue = fresh.process(fresh.store.clone()).await;
    println!("connect {:?}", requests(&other, &leasehold_store::Snapshot::default()));
}
