//! Changing the number of shards while other clients work, produce and hold tasks.

use futures::FutureExt;
use leasehold_core::{Index, Kind, Status};
use leasehold_queue::meta_cache::MigrationPhase;
use leasehold_queue::migrate::MigrationWait;
use leasehold_queue::purge::Purged;
use leasehold_queue::{
    Filter, MigrateOptions, ObjectQueue, Progress, QueueConfig, QueueLayout, Settlement, UniqueKey,
};
use leasehold_store::{Client, Store, Verb, When};
use serde_json::json;
use std::sync::Arc;

use crate::support::migrations::{Every, abort, assert_all_of, key_at, migrate, options, raw_at, switch};
use crate::support::operations::retention;
use crate::support::recovery::{LONG, recover};
use crate::support::stage::{Fate, Request};
use crate::support::{LEASE, World, any_type, audit, hours, mins, order, secs, worker};

/// The world of a client that connects now.
async fn reconnected(world: &World) -> World {
    World { queue: world.process(world.store.clone()).await, ..world.clone() }
}

/// A migration that stops in this phase.
async fn stopped_in(world: &World, to: u8, phase: MigrationPhase) {
    let (queue, stage) = world.staged().await;
    let name = match phase {
        MigrationPhase::Announced => "announced",
        MigrationPhase::Moving => "moving",
        MigrationPhase::Aborting => "aborting",
    };
    stage.play(move |_, asked| {
        let is_reached = asked.verb == Verb::Put && asked.body_has(&format!("\"{name}\""));
        if is_reached { Fate::PassThenDie } else { Fate::Pass }
    });
    match phase {
        MigrationPhase::Aborting => abort(&queue).await.unwrap_err(),
        _ => migrate(&queue, to).await.unwrap_err(),
    };
    let phase_now = audit::value(&world.store, "queue.json").await.unwrap()["migrating"]["phase"].clone();
    assert_eq!(phase_now, name);
}

#[tokio::test]
async fn every_task_moves_with_its_history_and_back_again() {
    let world = World::new().await;
    let every = Every::new(&world).await;
    for len in [2, 4, 1] {
        let told = migrate(&reconnected(&world).await.queue, len).await.unwrap();
        assert_eq!((told.moved, told.old_keys_deleted_after, told.corrupt), (6, None, vec![]));
        every.assert_there(&world.store, len.into(), &format!("to {len}")).await;
        let meta = audit::value(&world.store, "queue.json").await.unwrap();
        assert_eq!((&meta["shard_prefix_len"], &meta["migrating"]), (&json!(len), &json!(null)));
        assert!(meta["left"]["swept_at"].is_string());
    }
    recover(&reconnected(&world).await, 90, "afterwards").await;
    for (status, count) in [("completed", 4), ("failed", 1), ("cancelled", 1)] {
        let mut found = 0;
        for key in audit::keys(&world.store, "tasks/").await {
            found += u64::from(audit::value(&world.store, &key).await.unwrap()["status"] == status);
        }
        assert_eq!(found, count, "{status}");
    }
}

#[tokio::test]
async fn clients_of_the_old_length_are_refused_at_their_next_write() {
    let world = World::new().await;
    let id = world.submit().await;
    migrate(&reconnected(&world).await.queue, 2).await.unwrap();
    let refused =
        "shard_prefix_len was 1 when this client connected, but this queue has 2 now; connect again";
    for error in [
        world.queue.submit_task(order()).await.unwrap_err(),
        world.queue.submit_task(order()).key(UniqueKey::new("k")).await.unwrap_err(),
        world.queue.cancel(&id).await.unwrap_err(),
        world.queue.check(true).await.unwrap_err(),
        world.queue.ensure_writable().await.unwrap_err(),
    ] {
        assert_eq!((error.kind(), error.to_string().as_str()), (Kind::Invalid, refused));
    }
    let client = Client::new(world.store.clone(), Arc::new(world.host.clone()));
    let wrong = QueueConfig { shard_prefix_len: Some(1), ..QueueConfig::default() };
    let error = ObjectQueue::with_config(client, wrong).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "shard_prefix_len is set to 1, but this queue has 2; remove the setting, or correct it"
    );
    assert_eq!(world.get(&id).await.status(), Status::Pending, "reading finds it where it is now");
    assert_all_of(&world.store, 2, "nothing was written in the old place").await;
}

#[tokio::test]
async fn nothing_is_submitted_or_claimed_during_a_migration() {
    let world = World::new().await;
    let id = world.submit().await;
    let due = world.due(Index::Ready).await;
    for phase in [MigrationPhase::Announced, MigrationPhase::Moving, MigrationPhase::Aborting] {
        stopped_in(&world, 2, phase).await;
        world.advance(secs(31));
        for error in [
            world.queue.submit_task(order()).await.unwrap_err(),
            world.queue.cancel(&id).await.unwrap_err(),
            world.queue.claim(&due[0], &worker("w1"), LEASE, &any_type(), false).await.unwrap_err(),
            world.queue.sweep(&due[0]).await.unwrap_err(),
            world.queue.ensure_writable().await.unwrap_err(),
        ] {
            assert_eq!(error.kind(), Kind::Unavailable);
            assert!(error.to_string().contains("shard_prefix_len 2"), "{error}");
        }
    }
    abort(&world.queue).await.unwrap();
    assert!(world.queue.cancel(&id).await.unwrap().is_done());
}

/// A client reads of a migration within the time that the migration waits, and no more often than it is configured
/// to.
#[tokio::test]
async fn the_layout_is_read_once_in_thirty_seconds_of_writing() {
    let world = World::new().await;
    let (queue, stage) = world.staged().await;
    for _ in 0..120 {
        world.advance(secs(1));
        queue.submit_task(order()).await.unwrap();
    }
    let asked = stage.asked().iter().filter(|asked| asked.key == "queue.json").count();
    assert_eq!(asked, 1 + 3, "when it connected, and after 31, 62 and 93 s");
    world.advance(hours(1));
    stage.play(|_, _| Fate::Pass);
    let id = world.submit().await;
    queue.get(&id).await.unwrap();
    assert_eq!(stage.asked().len(), 1, "who only reads asks nothing");
}

#[tokio::test]
async fn without_an_answer_about_the_layout_nothing_is_written() {
    let world = World::new().await;
    let id = world.submit().await;
    let claimed = world.claim(&id).await;
    let (queue, stage) = world.staged().await;
    let unread = |_, asked: &Request| {
        if asked.key == "queue.json" { Fate::Unreached } else { Fate::Pass }
    };
    stage.play(unread);
    world.advance(secs(40));
    let Some(claimed) = queue.renew(&claimed, LEASE, None).await.unwrap() else { panic!("it is ours") };
    world.advance(secs(15));
    stage.play(unread);
    let errors = [
        queue.renew(&claimed, LEASE, None).await.unwrap_err(),
        queue.settle(&claimed, Settlement::Release).await.unwrap_err(),
        queue.submit_task(order()).await.unwrap_err(),
    ];
    assert!(errors.iter().all(|error| error.kind() == Kind::Unavailable), "{errors:?}");
    assert!(stage.asked().iter().all(|asked| asked.key == "queue.json"));
    stage.play(|_, _| Fate::Pass);
    assert!(queue.renew(&claimed, LEASE, None).await.unwrap().is_some(), "like any outage");
}

/// A process was suspended during a submit: its put is applied long after the migration.
#[tokio::test]
async fn a_submit_that_outlives_the_layout_is_not_acknowledged() {
    let world = World::new().await;
    let (queue, stage) = world.staged().await;
    let others = world.clone();
    stage.interrupt(|_, asked| asked.verb == Verb::Put && asked.key.starts_with("tasks/"), async move {
        stopped_in(&others, 2, MigrationPhase::Announced).await;
        others.advance(secs(61));
    });
    let error = queue.submit_task(order()).await.unwrap_err();
    assert!(error.outcome_is_unknown(), "{error}");
    let new = reconnected(&world).await;
    migrate(&new.queue, 2).await.unwrap();
    assert_all_of(&world.store, 2, "what landed late was moved").await;
    recover(&reconnected(&world).await, LONG, "landed late").await;
    let key = audit::keys(&world.store, "tasks/").await.pop().unwrap();
    assert_eq!(audit::value(&world.store, &key).await.unwrap()["status"], "completed");
}

/// With a key: another producer has completed the submit under the new shard length by then.
#[tokio::test]
async fn a_task_that_arrived_late_and_was_submitted_again_exists_once() {
    let world = World::new().await;
    let (queue, stage) = world.staged().await;
    stage.play(|_, asked| {
        let is_task = asked.verb == Verb::Put && asked.key.starts_with("tasks/");
        if is_task { Fate::HoldThenDie } else { Fate::Pass }
    });
    queue.submit_task(order()).key(UniqueKey::new("k")).await.unwrap_err();
    switch(&world.queue, 2).await.unwrap();
    let new = reconnected(&world).await;
    let submitted = new.queue.submit_task(order()).key(UniqueKey::new("k")).await.unwrap();
    let claimed = new.claim(&submitted.id).await;
    stage.apply_late().await;
    assert!(raw_at(&world.store, &submitted.id, 1).await.is_some(), "it is there twice for now");
    new.queue.settle(&claimed, Settlement::complete(json!(1))).await.unwrap().unwrap();
    migrate(&new.queue, 2).await.unwrap();
    assert_all_of(&world.store, 2, "once").await;
    let task = new.get(&submitted.id).await;
    assert_eq!((task.status(), task.epoch), (Status::Completed, 1));
    assert!(!new.queue.submit_task(order()).key(UniqueKey::new("k")).await.unwrap().is_new);
}

/// An entry at an old key whose task may still be applied there is not fenced under the new shard length.
#[tokio::test]
async fn entries_of_the_old_length_are_left_to_the_migration() {
    let world = World::new().await;
    let (queue, stage) = world.staged().await;
    stage.play(|_, asked| {
        let is_task = asked.verb == Verb::Put && asked.key.starts_with("tasks/");
        if is_task { Fate::HoldThenDie } else { Fate::Pass }
    });
    queue.submit_task(order()).await.unwrap_err();
    switch(&world.queue, 2).await.unwrap();
    stage.apply_late().await;
    let new = reconnected(&world).await;
    for _ in 0..LONG {
        world.advance(mins(1));
        for found in new.due(Index::Ready).await {
            new.queue.sweep(&found).await.unwrap();
        }
    }
    migrate(&new.queue, 2).await.unwrap();
    recover(&new, 2, "moved late").await;
    let key = audit::keys(&world.store, "tasks/").await.pop().unwrap();
    assert_eq!(audit::value(&world.store, &key).await.unwrap()["status"], "completed");
}

#[tokio::test]
async fn holders_renew_and_settle_before_during_and_after_their_task_moves() {
    // Stops right before this request about the task, by the key that it goes to.
    let stops = ["tasks/", "ready/", "leases/", "queue.json"];
    for (number, stop) in (0..40).flat_map(|number| stops.map(|stop| (number, stop))) {
        let world = World::new().await;
        let every = Every::new(&world).await;
        let id = every.held.task().id;
        let (queue, stage) = world.staged().await;
        let count = std::sync::atomic::AtomicUsize::new(0);
        let (holder, held) = (world.clone(), every.held.clone());
        stage.interrupt(
            move |_, asked| {
                let fits = asked.key.starts_with(stop) && asked.verb != Verb::Get;
                fits && count.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == number
            },
            async move {
                let context = format!("before {number} of {stop}");
                let renewed = holder.queue.renew(&held, hours(2), None).await.unwrap();
                let Some(held) = renewed else { panic!("{context}: lost") };
                let settlement = Settlement::Fail { error: "later".into(), retryable: true, after: None };
                let settled = holder.queue.settle(&held, settlement).await.unwrap();
                assert_eq!(settled.expect(&context).status(), Status::Pending, "{context}");
            },
        );
        migrate(&queue, 2).await.unwrap();
        let context = format!("{number} of {stop}");
        assert_all_of(&world.store, 2, &context).await;
        audit::assert_covered(&world.store, &context).await;
        let task = raw_at(&world.store, &id, 2).await.unwrap();
        if stage.asked().len() > number && task["status"] != "running" {
            assert_eq!(task["history"].as_array().unwrap().len(), 3, "{context}: {task}");
        }
    }
}

/// The lease is so long that the holder writes nothing before the old keys are removed.
#[tokio::test]
async fn a_holder_that_is_idle_during_the_migration_still_settles() {
    let world = World::new().await;
    let id = world.submit().await;
    let claimed = world.claim(&id).await;
    let Some(claimed) = world.queue.renew(&claimed, hours(9), None).await.unwrap() else {
        panic!("it is ours")
    };
    migrate(&reconnected(&world).await.queue, 2).await.unwrap();
    let settled = world.queue.settle(&claimed, Settlement::Release).await.unwrap().unwrap();
    assert_eq!((settled.status(), settled.shard.to_string().len()), (Status::Pending, 2));
    assert_all_of(&world.store, 2, "no entry in the old place").await;
}

#[tokio::test]
async fn a_migration_can_be_aborted_before_the_switch_only() {
    for phase in [MigrationPhase::Announced, MigrationPhase::Moving] {
        let world = World::new().await;
        let every = Every::new(&world).await;
        stopped_in(&world, 2, phase).await;
        abort(&world.queue).await.unwrap();
        every.assert_there(&world.store, 1, &format!("{phase:?}")).await;
        world.queue.submit_task(order()).await.unwrap();
        assert_eq!(abort(&world.queue).await.unwrap_err().to_string(), "no migration is in progress");
    }
    let world = World::new().await;
    switch(&world.queue, 2).await.unwrap();
    let error = abort(&world.queue).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid);
    assert!(error.to_string().ends_with("too late to abort; migrate back with --to 1"), "{error}");
}

#[tokio::test]
async fn a_migration_to_another_length_must_be_finished_first() {
    let world = World::new().await;
    stopped_in(&world, 2, MigrationPhase::Moving).await;
    let error = migrate(&world.queue, 3).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid);
    assert!(error.to_string().contains("to shard_prefix_len 2 is in progress, not to 3"), "{error}");
    stopped_in(&world, 2, MigrationPhase::Aborting).await;
    let error = migrate(&world.queue, 2).await.unwrap_err();
    assert!(error.to_string().contains("is being aborted"), "{error}");
    for wrong in [0, 5] {
        assert_eq!(migrate(&world.queue, wrong).await.unwrap_err().kind(), Kind::Invalid);
    }
}

/// The migrating process finds that another has aborted the migration, and does not start again.
#[tokio::test]
async fn a_migrating_process_stops_when_another_aborts_it() {
    let world = World::new().await;
    Every::new(&world).await;
    let (queue, stage) = world.staged().await;
    let others = world.clone();
    stage.interrupt(|_, asked| asked.body_has("\"moving\""), async move {
        abort(&others.queue).await.unwrap();
    });
    assert_eq!(migrate(&queue, 2).await.unwrap_err().kind(), Kind::Lost);
    let meta = audit::value(&world.store, "queue.json").await.unwrap();
    assert_eq!((&meta["shard_prefix_len"], &meta["migrating"]), (&json!(1), &json!(null)));
}

#[tokio::test]
async fn the_next_migration_waits_until_no_removal_can_come_late() {
    let world = World::new().await;
    Every::new(&world).await;
    migrate(&world.queue, 2).await.unwrap();
    let swept = world.now();
    let waits = std::sync::Mutex::new(Vec::new());
    let new = reconnected(&world).await;
    let note = |progress| waits.lock().unwrap().push(progress);
    new.queue.migrate(1, &MigrateOptions { removes_old_keys: false, ..options() }, &note).await.unwrap();
    assert!(world.now().since(swept) > mins(30) + mins(2));
    let waits = waits.into_inner().unwrap();
    assert!(matches!(waits[0], Progress::Waiting(MigrationWait::Removed, _)));
}

#[tokio::test]
async fn purged_tasks_are_deleted_only_when_nothing_is_left_to_sweep() {
    let world = World::new().await;
    let id = world.submit().await;
    world.queue.cancel(&id).await.unwrap();
    world.advance(hours(25));
    let task = world.get(&id).await;
    world.queue.purge(&task, &retention()).await.unwrap();
    world.advance(hours(25));
    switch(&world.queue, 2).await.unwrap();
    let new = reconnected(&world).await;
    let task = new.get(&id).await;
    assert_eq!(new.queue.purge(&task, &retention()).await.unwrap(), Purged::Kept);
    migrate(&new.queue, 2).await.unwrap();
    let new = reconnected(&world).await;
    assert_eq!(new.queue.purge(&task, &retention()).await.unwrap(), Purged::Deleted);
}

#[tokio::test]
async fn corrupt_objects_are_reported_and_not_moved() {
    let world = World::new().await;
    let id = world.submit().await;
    let other = world.submit().await;
    world.overwrite(&key_at(&id, 1), "{ nonsense").await;
    let told = migrate(&world.queue, 2).await.unwrap();
    assert_eq!((told.moved, told.corrupt.len()), (1, 1));
    assert!(told.corrupt[0].contains(&key_at(&id, 1)), "{:?}", told.corrupt);
    assert!(world.store.get(&key_at(&id, 1), None).await.unwrap().found().is_some());
    assert!(raw_at(&world.store, &other, 2).await.is_some());
}

/// A client that reads during a migration finds every task once.
#[tokio::test]
async fn tasks_can_be_read_listed_and_checked_during_a_migration() {
    for request in 0..80 {
        let world = World::new().await;
        let every = Every::new(&world).await;
        let id = every.held.task().id;
        let (queue, stage) = world.staged().await;
        let reader = world.clone();
        stage.interrupt(move |number, _| number == request, async move {
            reader.advance(secs(31));
            for queue in [reader.process(reader.store.clone()).await, reader.queue.clone()] {
                assert_eq!(queue.get(&id).await.unwrap().status(), Status::Running);
                let listed: Vec<_> = futures::StreamExt::collect(queue.list(Filter::default())).await;
                let listed: Vec<_> = listed.into_iter().map(Result::unwrap).collect();
                assert_eq!(listed.len(), 6, "{request}");
                let checked = queue.check(false).await.unwrap();
                assert_eq!((checked.tasks, checked.corrupt), (6, vec![]), "{request}");
            }
        });
        migrate(&queue, 2).await.unwrap();
    }
}

#[tokio::test]
async fn a_dry_run_reports_the_plan_and_writes_nothing() {
    let world = World::new().await;
    Every::new(&world).await;
    let before = audit::keys(&world.store, "").await;
    let (queue, stage) = world.staged().await;
    let plan = queue.plan_migration(2).await.unwrap();
    assert_eq!((plan.tasks, plan.already_moved, plan.entries, plan.in_progress), (6, 0, 3, None));
    assert!(stage.asked().iter().all(|asked| [Verb::Get, Verb::List].contains(&asked.verb)));
    assert_eq!(audit::keys(&world.store, "").await, before);
    switch(&world.queue, 2).await.unwrap();
    let plan = queue.plan_migration(2).await.unwrap();
    assert!(
        plan.in_progress.unwrap().starts_with("the keys of shard_prefix_len 1, in use until"),
        "to be removed"
    );
}

/// The numbers of requests in the documentation.
#[tokio::test]
async fn a_migration_makes_the_requests_of_the_table_in_the_protocol() {
    const TASKS: u64 = 50;
    for (is_final, per_task) in [(false, [3, 5, 2]), (true, [2, 5, 1])] {
        let world = World::new().await;
        for _ in 0..TASKS {
            let id = world.submit().await;
            if is_final {
                world.queue.cancel(&id).await.unwrap();
            }
        }
        let queue = world.process(world.store.clone()).await;
        migrate(&queue, 2).await.unwrap();
        let spent = queue.client().ledger().snapshot();
        let of = |verb| spent.verb(verb);
        let [puts, gets, deletes] = per_task.map(|count| count * TASKS);
        // Announced, moving, switched, swept.
        assert_eq!((of(Verb::Put), of(Verb::Delete)), (puts + 4, deletes));
        let layout = of(Verb::Get) - gets;
        assert!(layout < 32 * 60 / 30 + 10, "{layout} gets for queue.json in 32 minutes");
    }
}

#[tokio::test]
async fn the_new_record_is_written_only_where_no_object_exists() {
    let world = World::new().await;
    let id = world.submit().await;
    let (queue, stage) = world.staged().await;
    stage.play(|_, _| Fate::Pass);
    migrate(&queue, 2).await.unwrap();
    let puts: Vec<_> = stage.asked().into_iter().filter(|asked| asked.verb == Verb::Put).collect();
    let written: Vec<_> =
        puts.iter().map(|asked| asked.key.as_str()).filter(|key| *key != "queue.json").collect();
    let entry = world.process(world.store.clone()).await.get(&id).await.unwrap().entry().unwrap().key();
    assert_eq!(written, [&key_at(&id, 1), &entry, &key_at(&id, 2)]);
    let conditions: Vec<_> = puts.iter().map(|asked| asked.when.clone().unwrap()).collect();
    assert!(matches!(conditions[2], When::Unchanged(_)), "the mark");
    assert_eq!(conditions[4], When::Absent, "the record");
}

/// The purpose of the verification before the switch: a write was applied after the move, or got lost.
#[tokio::test]
async fn faults_before_the_switch_are_corrected() {
    let world = World::new().await;
    let every = Every::new(&world).await;
    let late = world.submit().await;
    let raw = raw_at(&world.store, &late, 1).await.unwrap();
    world.store.delete(&key_at(&late, 1)).await.unwrap();
    let (queue, stage) = world.staged().await;
    let others = world.clone();
    stage.interrupt(|_, asked| asked.verb == Verb::List && asked.key == "ready/", async move {
        others.overwrite(&key_at(&late, 1), raw.to_string()).await;
        for root in ["ready/", "leases/"] {
            let entry = audit::keys(&others.store, root).await.pop().unwrap();
            others.store.delete(&entry).await.unwrap();
        }
    });
    switch(&queue, 2).await.unwrap();
    assert!(raw_at(&world.store, &late, 2).await.unwrap()["status"].is_string());
    audit::assert_covered(&world.store, "put right").await;
    let new = reconnected(&world).await;
    assert_eq!(new.queue.check(false).await.unwrap().uncovered, Vec::<String>::new());
    assert_eq!(new.get(&every.held.task().id).await.status(), Status::Running);
}

/// A client that cannot read `queue.json` continues for a minute. Every submit that it acknowledges is moved in time.
#[tokio::test]
async fn a_task_acknowledged_after_the_announcement_exists_after_the_switch() {
    let world = World::new().await;
    let (producer, stage) = world.staged().await;
    stage.play(|_, asked| if asked.key == "queue.json" { Fate::Refuse } else { Fate::Pass });
    let told = std::sync::Mutex::new(Vec::new());
    let produce = |progress| {
        if let Progress::Waiting(MigrationWait::Known, left) = progress {
            let submitted =
                producer.submit_task(order()).into_future().now_or_never().expect("nothing waits in memory");
            told.lock().unwrap().push((left, submitted));
        }
    };
    world.queue.migrate(2, &MigrateOptions { removes_old_keys: false, ..options() }, &produce).await.unwrap();
    let (mut acknowledged, mut latest) = (0, mins(2));
    for (left, told) in told.into_inner().unwrap() {
        if let Ok(submitted) = told {
            assert!(raw_at(&world.store, &submitted.id, 2).await.is_some());
            (acknowledged, latest) = (acknowledged + 1, left);
        }
    }
    assert_eq!((acknowledged, latest), (61, mins(1)), "one each second for a minute");
}

/// A client removed an entry, and was suspended before its tombstone was written: the task has been submitted since.
#[tokio::test]
async fn a_late_tombstone_cancels_nothing_under_the_new_shard_length() {
    let world = World::new().await;
    let is_task_put = |asked: &Request| asked.verb == Verb::Put && asked.key.starts_with("tasks/");
    let (producer, stage) = world.staged().await;
    stage.play(move |_, asked| if is_task_put(asked) { Fate::Die } else { Fate::Pass });
    producer.submit_task(order()).key(UniqueKey::new("k")).await.unwrap_err();
    world.advance(mins(31));
    let (sweeper, stage) = world.staged().await;
    stage.play(move |_, asked| if is_task_put(asked) { Fate::HoldThenDie } else { Fate::Pass });
    let due = world.due(Index::Ready).await;
    sweeper.sweep(&due[0]).await.unwrap_err();
    switch(&world.queue, 2).await.unwrap();
    let new = reconnected(&world).await;
    let submitted = new.queue.submit_task(order()).key(UniqueKey::new("k")).await.unwrap();
    assert!(submitted.is_new);
    stage.apply_late().await;
    let tombstone = raw_at(&world.store, &submitted.id, 1).await.unwrap();
    assert!(audit::is_tombstone(&tombstone));
    migrate(&new.queue, 2).await.unwrap();
    assert_all_of(&world.store, 2, "the tombstone is gone").await;
    let task = new.get(&submitted.id).await;
    assert_eq!((task.status(), task.is_tombstone()), (Status::Pending, false));
}
