//! Corrupt objects, and objects of other programs: reported, left in place, and no obstacle.

use futures::StreamExt;
use leasehold_core::{Index, Kind, Status, limits};
use leasehold_queue::discover::KeyRange;
use leasehold_queue::sweep::Swept;
use leasehold_queue::{Filter, Queue, QueueLayout, Settlement, Unclaimed};
use leasehold_store::{Purpose, Store};
use serde_json::json;

use crate::support::audit;
use crate::support::recovery::recover;
use crate::support::{World, mins};

/// Writes keys and bodies of every kind of garbage, more than a page of each, sorted before and after the valid ones.
async fn put_garbage(world: &World) -> usize {
    let mut count = 0;
    for number in 0..1_100 {
        for root in ["tasks/", "ready/", "leases/"] {
            let shard = format!("{:x}", number % 16);
            let key = match number % 5 {
                0 => format!("{root}{shard}/!{number}"),
                1 => format!("{root}{shard}/ä {number}.json"),
                2 => format!("{root}{shard}/20230101-0000/{number}.0000000001"),
                3 => format!("{root}{shard}/00000000-0000-4000-8000-{number:012x}.txt"),
                _ => format!("{root}zz-{number}/x"),
            };
            world.overwrite(&key, format!("{{ {number}")).await;
            count += 1;
        }
    }
    // All in one shard, so that a whole page of it is garbage, oldest first.
    for number in 0..1_100 {
        for root in ["ready/", "leases/"] {
            for shard in 0..16 {
                world.overwrite(&format!("{root}{shard:x}/!{number}"), "").await;
            }
        }
    }
    count
}

#[tokio::test]
async fn thousands_of_corrupt_objects_are_no_obstacle_and_are_reported() {
    let world = World::new().await;
    put_garbage(&world).await;
    let id = world.submit().await;
    let timed_out = world.submit().await;

    let claimed = world.claim(&id).await;
    world.queue.settle(&claimed, Settlement::complete(json!(1))).await.unwrap().unwrap();
    world.claim(&timed_out).await;
    recover(&world, 4, "among strangers").await;
    assert_eq!(world.get(&timed_out).await.status(), Status::Completed);

    let listed: Vec<_> = world.queue.list(Filter::default()).collect().await;
    let (good, bad): (Vec<_>, Vec<_>) = listed.into_iter().partition(Result::is_ok);
    assert_eq!((good.len(), bad.len()), (2, 1_100));
    assert!(bad.into_iter().all(|error| error.unwrap_err().kind() == Kind::Corrupt));

    let before = audit::keys(&world.store, "").await;
    let checked = world.queue.check(true).await.unwrap();
    assert_eq!((checked.tasks, checked.uncovered.len(), checked.unneeded.len()), (2, 0, 0));
    // Valid: the other task, `queue.json`, the bell.
    let strange = before.iter().filter(|key| !key.contains(&id.to_string())).count() - 3;
    assert_eq!(checked.corrupt.len(), strange);
    assert_eq!(audit::keys(&world.store, "").await, before, "they are left for a person");
    assert_eq!(world.queue.stats().await.unwrap().due, 0);
}

#[tokio::test]
async fn due_entries_behind_a_page_of_garbage_are_found() {
    let world = World::new().await;
    let id = world.submit().await;
    let shard = world.queue.shard_len().shard_of(&id);
    for number in 0..2_500 {
        world.overwrite(&format!("ready/{shard}/!{number}"), "").await;
    }
    assert!(world.try_claim(&id).await.is_ok());
    let range = leasehold_core::ShardRange { first: shard.clone(), last: shard };
    let stretches = vec![KeyRange::of(Index::Ready, &range)];
    let look = world.queue.discover(Purpose::Discover, stretches).await.unwrap();
    assert_eq!((look.due.len(), look.invalid_keys.len()), (0, 2_500));
}

#[tokio::test]
async fn a_corrupt_task_is_left_for_an_operator() {
    let world = World::new().await;
    let id = world.submit().await;
    let key = leasehold_core::keys::task(&world.queue.shard_len().shard_of(&id), &id);
    let good = world.raw(&id).await.unwrap();
    let mut bodies = vec!["{".to_owned(), String::new(), "null".into(), "\u{0}".into()];
    for (field, wrong) in [
        ("id", json!("00000000-0000-4000-8000-000000000000")),
        ("shard", json!("0f")),
        ("format", json!(2)),
        ("rev", json!(0)),
        ("rev", json!(u64::MAX)),
        ("available_at", json!("never")),
        ("status", json!("on holiday")),
    ] {
        let mut record = good.clone();
        record[field] = wrong;
        bodies.push(record.to_string());
    }
    for body in bodies {
        world.overwrite(&key, body.clone()).await;
        assert!(matches!(world.try_claim(&id).await, Err(Unclaimed::Corrupt(_))), "{body}");
        world.advance(mins(60));
        let found = world.due(Index::Ready).await.pop().unwrap();
        assert!(matches!(world.queue.sweep(&found).await.unwrap(), Swept::Corrupt(_)), "{body}");
        for error in [
            world.queue.get(&id).await.unwrap_err(),
            world.queue.cancel(&id).await.unwrap_err(),
            Queue::from(world.queue.clone()).wait(&id, None).await.unwrap_err(),
        ] {
            assert_eq!(error.kind(), Kind::Corrupt);
        }
        let checked = world.queue.check(true).await.unwrap();
        assert_eq!(checked.corrupt.len(), 1, "{body}");
        let object = world.store.get(&key, None).await.unwrap().found().unwrap();
        assert_eq!(object.body, body, "it was touched");
    }
}

/// A copy in the wrong shard could never be read, claimed or covered.
#[tokio::test]
async fn a_task_in_the_wrong_shard_is_corrupt() {
    let world = World::new().await;
    let id = world.submit().await;
    let mut record = world.raw(&id).await.unwrap();
    let own = record["shard"].as_str().unwrap().to_owned();
    let other = if own == "0" { "1" } else { "0" };
    record["shard"] = json!(other);
    world.overwrite(&format!("tasks/{other}/{id}.json"), record.to_string()).await;
    let long = &id.to_string()[..2];
    record["shard"] = json!(long);
    world.overwrite(&format!("tasks/{long}/{id}.json"), record.to_string()).await;

    let listed: Vec<_> = world.queue.list(Filter::default()).collect().await;
    assert_eq!(listed.iter().filter(|task| task.is_ok()).count(), 1);
    let before = audit::keys(&world.store, "").await;
    let checked = world.queue.check(true).await.unwrap();
    assert_eq!((checked.tasks, checked.corrupt.len(), checked.uncovered.len()), (1, 2, 0));
    assert_eq!(audit::keys(&world.store, "").await, before);
}

#[tokio::test]
async fn fields_of_a_newer_program_are_never_dropped() {
    let world = World::new().await;
    let id = world.submit().await;
    let key = leasehold_core::keys::task(&world.queue.shard_len().shard_of(&id), &id);
    let mut record = world.raw(&id).await.unwrap();
    record["colour"] = json!("blue");
    record["history"][0]["reason_code"] = json!(7);
    world.overwrite(&key, record.to_string()).await;
    let claimed = world.claim(&id).await;
    world.queue.settle(&claimed, Settlement::complete(json!(1))).await.unwrap().unwrap();
    let raw = world.raw(&id).await.unwrap();
    assert_eq!(raw["colour"], "blue");
    assert_eq!(raw["history"][0]["reason_code"], 7);
}

#[tokio::test]
async fn an_object_that_is_too_large_is_corrupt_and_its_size_is_reported() {
    let world = World::new().await;
    let id = world.submit().await;
    let key = leasehold_core::keys::task(&world.queue.shard_len().shard_of(&id), &id);
    let bytes = limits::OBJECT_BYTES_MAX + 1;
    world.overwrite(&key, " ".repeat(usize::try_from(bytes).unwrap())).await;
    let error = world.queue.get(&id).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Corrupt, "{error}");
    assert_eq!(
        error.to_string(),
        format!("`{key}` is not a task: it has {bytes} bytes; the limit is {}", limits::OBJECT_BYTES_MAX)
    );
    assert_eq!(world.queue.check(false).await.unwrap().corrupt.len(), 1);
}
