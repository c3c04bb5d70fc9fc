//! A check finds violations of the rules, and classifies what heals, what it repairs and what needs an operator.

use leasehold_core::new_task::Start;
use leasehold_core::{Index, Kind, NewTask, Status};
use leasehold_queue::check::{CorruptObject, Remedy, TransientObject};
use leasehold_queue::{Keep, QueueLayout, read_lease};
use leasehold_store::{Store, Verb, When};

use crate::support::audit::{self, assert_covered};
use crate::support::operations::{ALL, Operation, Ready};
use crate::support::recovery::{LONG, recover};
use crate::support::stage::Fate;
use crate::support::{World, hours, mins, order, secs};

#[tokio::test]
async fn a_healthy_queue_has_nothing_to_repair() {
    for op in ALL {
        let world = World::new().await;
        Ready::prepare(&world, op).await;
        let checked = world.queue.check(false).await.unwrap();
        assert!(checked.uncovered.is_empty() && checked.corrupt.is_empty(), "{op:?}: {checked:?}");
    }
}

#[tokio::test]
async fn a_task_that_lost_its_entry_is_found_and_covered() {
    let world = World::new().await;
    let waiting = world.submit().await;
    let running = world.submit().await;
    world.claim(&running).await;
    for key in
        [audit::keys(&world.store, "ready/").await, audit::keys(&world.store, "leases/").await].concat()
    {
        world.store.delete(&key).await.unwrap();
    }
    let checked = world.queue.check(false).await.unwrap();
    assert_eq!((checked.uncovered.len(), checked.repaired), (2, 0));
    let checked = world.queue.check(true).await.unwrap();
    assert_eq!((checked.uncovered.len(), checked.repaired), (2, 2));
    assert_covered(&world.store, "repaired").await;
    assert_eq!(world.queue.check(true).await.unwrap().uncovered.len(), 0);
    recover(&world, 4, "repaired").await;
    for id in [waiting, running] {
        assert_eq!(world.raw(&id).await.unwrap()["status"], "completed");
    }
}

#[tokio::test]
async fn tasks_whose_entries_were_deleted_by_hand_wait_until_they_are_repaired() {
    let world = World::new().await;
    let mut ids = Vec::new();
    for _ in 0..40 {
        ids.push(world.submit().await);
    }
    for key in audit::keys(&world.store, "ready/").await {
        world.store.delete(&key).await.unwrap();
    }
    assert_eq!(world.queue.stats().await.unwrap().due, 0);
    assert_eq!(world.queue.check(true).await.unwrap().repaired, 40);
    recover(&world, 40, "repaired").await;
    for id in ids {
        assert_eq!(world.raw(&id).await.unwrap()["status"], "completed");
    }
}

/// An entry that workers ignore, or scan only much later, covers nothing.
#[tokio::test]
async fn an_entry_that_is_ahead_or_too_late_does_not_cover() {
    let world = World::new().await;
    let id = world.submit().await;
    let entry = world.entries_of(&id, Index::Ready).await.pop().unwrap();
    world.store.delete(&entry).await.unwrap();
    let ahead = entry.replace(".0000000001", ".0000000002");
    let late = entry.replace("/20231114-2213/", "/20991231-2359/");
    for other in [ahead, late] {
        world.store.put(&other, bytes::Bytes::new(), &When::Always).await.unwrap();
        let checked = world.queue.check(false).await.unwrap();
        assert_eq!(checked.uncovered.len(), 1, "{other} covers nothing");
        world.store.delete(&other).await.unwrap();
    }
}

#[tokio::test]
async fn an_entry_without_a_task_heals_in_time_and_is_repaired_by_the_rules() {
    let world = World::new().await;
    let (queue, stage) = world.staged().await;
    stage.play_at(1, Fate::Die);
    let written = world.now();
    queue.submit_task(order()).await.unwrap_err();
    for repair in [false, true] {
        let checked = world.queue.check(repair).await.unwrap();
        assert_eq!((checked.unneeded.len(), checked.repaired), (0, 0), "the producer may just be slow");
        let [TransientObject { by, reason, .. }] = &checked.transient[..] else { panic!("{checked:?}") };
        assert!(*by > written.plus(mins(30)) && *by <= written.plus(mins(36)), "{by}");
        assert_eq!(*reason, "its task does not exist yet");
    }
    world.advance(mins(30) + secs(1));
    let checked = world.queue.check(false).await.unwrap();
    assert_eq!((checked.unneeded.len(), checked.transient.len()), (0, 1), "workers have some minutes for it");
    world.advance(mins(6));
    let checked = world.queue.check(false).await.unwrap();
    assert_eq!((checked.unneeded.len(), checked.transient.len()), (1, 0), "no worker was there");
    let checked = world.queue.check(true).await.unwrap();
    assert_eq!((checked.unneeded.len(), checked.repaired), (1, 1));
    let checked = world.queue.check(true).await.unwrap();
    assert_eq!((checked.unneeded.len(), checked.entries), (0, 0));
}

/// A repair does not wait for the workers: the grace period of the rules is enough.
#[tokio::test]
async fn a_repair_removes_an_entry_as_soon_as_its_grace_is_over() {
    let world = World::new().await;
    Ready::prepare(&world, Operation::Bury).await;
    let checked = world.queue.check(true).await.unwrap();
    assert_eq!((checked.unneeded.len(), checked.repaired, checked.transient.len()), (1, 1, 0));
}

/// The entry of an unfinished change stays as long as its task waits: it is no fault, and needs no repair.
#[tokio::test]
async fn an_entry_ahead_of_a_pending_task_is_no_fault() {
    let world = World::new().await;
    let id = world.submit().await;
    let entry = world.entries_of(&id, Index::Ready).await.pop().unwrap();
    world.overwrite(&entry.replace(".0000000001", ".0000000002"), "").await;
    world.advance(hours(2));
    let checked = world.queue.check(true).await.unwrap();
    assert_eq!(
        (checked.repairable(), checked.corrupt.len(), checked.transient.len()),
        (0, 0, 0),
        "{checked:?}"
    );
}

fn keys_of(corrupt: &[CorruptObject]) -> Vec<&str> {
    corrupt.iter().map(|corrupt| corrupt.key.as_str()).collect()
}

#[tokio::test]
async fn garbage_below_every_prefix_is_reported() {
    let world = World::new().await;
    let hash = "0f".repeat(32);
    let record = format!("unique/{hash}.json");
    let heals = [
        "duty-leases/recover.json",
        "index/bell",
        "peers/a.json",
        "shard-leases/9.json",
        "workers/a.lease.json",
    ];
    let strange =
        ["artifacts/zz/x", "index/x", "peers/a", "shard-leases/zz.json", "unique/x.json", "workers/a"];
    for key in heals.iter().chain(&strange).copied().chain([record.as_str()]) {
        world.overwrite(key, "{").await;
    }
    world.overwrite("probe/p/x", "").await;
    world.overwrite("quarantine/w/tasks/0/x.json", "{").await;

    let checked = world.queue.check(true).await.unwrap();
    let mut expected = [&strange[..], &[record.as_str()]].concat();
    expected.sort_unstable();
    let mut corrupt = keys_of(&checked.corrupt);
    corrupt.sort_unstable();
    assert_eq!(corrupt, expected);
    let mut transient: Vec<_> = checked.transient.iter().map(|object| object.key.as_str()).collect();
    transient.sort_unstable();
    assert_eq!(transient, heals, "its next holder or writer replaces it");
    assert_eq!((checked.repairable(), checked.others), (0, 14), "{checked:?}");

    world.advance(hours(25));
    let checked = world.queue.check(true).await.unwrap();
    assert_eq!((checked.corrupt.len(), checked.transient.len()), (expected.len() + heals.len(), 0));
    assert_eq!((checked.leftover, checked.repaired), (vec!["probe/p/x".to_owned()], 1));

    for corrupt in checked.corrupt {
        assert_eq!(corrupt.remedy, Remedy::Quarantine);
        world.queue.quarantine(&corrupt.key, Keep::Copy).await.unwrap();
    }
    let checked = world.queue.check(false).await.unwrap();
    assert_eq!((checked.repairable(), checked.corrupt, checked.transient), (0, vec![], vec![]));
}

#[tokio::test]
async fn an_object_that_is_too_large_to_read_is_not_quarantined_without_its_bytes() {
    let world = World::new().await;
    let id = world.submit().await;
    let key = leasehold_core::keys::task(&world.queue.shard_len().shard_of(&id), &id);
    // The client returns this in place of the bytes.
    world.overwrite(&key, leasehold_core::oversize::placeholder(1 << 31)).await;
    let error = world.queue.quarantine(&key, Keep::Copy).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid, "{error}");
    assert!(error.to_string().contains("--delete"), "{error}");
    assert_eq!(world.queue.quarantine(&key, Keep::Nothing).await.unwrap().copy, None);
}

#[tokio::test]
async fn a_corrupt_task_can_be_quarantined() {
    let world = World::new().await;
    let (id, healthy) = (world.submit().await, world.submit().await);
    world.claim(&id).await;
    let key_of = |id| leasehold_core::keys::task(&world.queue.shard_len().shard_of(id), id);
    let key = key_of(&id);
    world.overwrite(&key, "{ \u{0}").await;
    let checked = world.queue.check(true).await.unwrap();
    assert_eq!((keys_of(&checked.corrupt), checked.repairable()), (vec![key.as_str()], 0));

    let quarantined = world.queue.quarantine(&key, Keep::Copy).await.unwrap();
    let copy = world.store.get(&quarantined.copy.unwrap(), None).await.unwrap().found().unwrap();
    assert_eq!(copy.body, "{ \u{0}");
    let task = world.get(&id).await;
    assert!(task.is_tombstone() && task.status() == Status::Cancelled, "{task:?}");
    assert_eq!(world.queue.check(false).await.unwrap().corrupt, vec![]);
    recover(&world, LONG, "quarantined").await;
    let checked = world.queue.check(false).await.unwrap();
    assert_eq!((checked.repairable(), checked.entries, checked.transient), (0, 0, vec![]));

    for refused in [key, key_of(&healthy), "queue.json".into(), "tasks/no/such".into()] {
        let error = world.queue.quarantine(&refused, Keep::Copy).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid, "{refused}: {error}");
    }
}

/// It is data that a newer program can read.
#[tokio::test]
async fn what_a_newer_program_has_written_is_not_quarantined() {
    let world = World::new().await;
    let id = world.submit().await;
    let key = leasehold_core::keys::task(&world.queue.shard_len().shard_of(&id), &id);
    let mut record = world.raw(&id).await.unwrap();
    record["format"] = serde_json::json!(2);
    world.overwrite(&key, record.to_string()).await;
    let checked = world.queue.check(false).await.unwrap();
    assert_eq!(checked.corrupt[0].remedy, Remedy::Update);
    let error = world.queue.quarantine(&key, Keep::Nothing).await.unwrap_err();
    assert!(error.to_string().contains("newer version"), "{error}");
    assert_eq!(world.raw(&id).await.unwrap(), record);
}

/// A worker may rely on the lease that was overwritten for as long as any lease lasts.
#[tokio::test]
async fn a_corrupt_lease_is_released_only_when_no_worker_can_hold_it() {
    let world = World::new().await;
    let key = "shard-leases/9.json";
    world.overwrite(key, "{\"epoch\": 7}").await;
    let error = world.queue.quarantine(key, Keep::Nothing).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    world.advance(mins(11));
    assert_eq!(world.queue.quarantine(key, Keep::Nothing).await.unwrap().copy, None);
    let lease = read_lease(world.queue.client(), key).await.unwrap().unwrap();
    assert!(lease.is_released() && lease.epoch == 8, "{lease:?}");
}

/// The client that changed it meanwhile may have repaired it.
#[tokio::test]
async fn an_object_that_changes_meanwhile_is_not_quarantined() {
    let world = World::new().await;
    let id = world.submit().await;
    let good = world.raw(&id).await.unwrap().to_string();
    let key = leasehold_core::keys::task(&world.queue.shard_len().shard_of(&id), &id);
    world.overwrite(&key, "{").await;
    let (queue, stage) = world.staged().await;
    let (others, mended) = (world.clone(), key.clone());
    stage.interrupt(|_, asked| asked.verb == Verb::Put && asked.key.starts_with("tasks/"), async move {
        others.overwrite(&mended, good).await;
    });
    let error = queue.quarantine(&key, Keep::Copy).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable, "{error}");
    assert_eq!(world.get(&id).await.status(), Status::Pending);
}

/// The next submit with its key goes through.
#[tokio::test]
async fn a_corrupt_idempotency_record_can_be_quarantined() {
    let world = World::new().await;
    world.queue.submit_task(order()).key("once").await.unwrap();
    let key = audit::keys(&world.store, "unique/").await.pop().unwrap();
    world.overwrite(&key, "{").await;
    let error = world.queue.submit_task(order()).key("once").await.unwrap_err();
    assert_eq!(error.kind(), Kind::Corrupt);
    world.queue.quarantine(&key, Keep::Copy).await.unwrap();
    // Not deleted: a late conditional write of another producer would create it again.
    assert_eq!(audit::keys(&world.store, "unique/").await, [key]);
    assert!(world.queue.submit_task(order()).key("once").await.unwrap().is_new);
    assert!(!world.queue.submit_task(order()).key("once").await.unwrap().is_new);
}

/// Changes by another process between the lists of entries and tasks are not reported as inconsistencies.
#[tokio::test]
async fn a_change_in_progress_is_not_a_fault() {
    for op in ALL {
        let world = World::new().await;
        let ready = Ready::prepare(&world, op).await;
        let (queue, stage) = world.staged().await;
        let others = world.clone();
        stage.interrupt(|_, asked| asked.key == "tasks/", async move {
            ready.run(&others, &others.queue).await.unwrap();
        });
        let checked = queue.check(false).await.unwrap();
        let none = Vec::<String>::new();
        assert_eq!((&checked.uncovered, &checked.unneeded), (&none, &none), "{op:?}: {checked:?}");
    }
}

/// A task that changes during the audit must not be reported as uncovered.
#[tokio::test]
async fn a_task_that_changes_during_the_audit_is_not_reported() {
    let world = World::new().await;
    let id = world.submit_this(NewTask { start: Start::After(mins(60)), ..order() }).await;
    let (queue, stage) = world.staged().await;
    let others = world.clone();
    stage.interrupt(|_, asked| asked.key == "tasks/", async move {
        others.queue.reschedule(&id, others.now()).await.unwrap();
    });
    let checked = queue.check(false).await.unwrap();
    assert_eq!(checked.uncovered, Vec::<String>::new());
}
