//! Migrations under every single fault: one run for each request and each fault of that request, in both directions,
//! continued by another process, and aborted by another process. A request in flight is applied at once, after the
//! switch, or at the end. Then every task exists exactly once, with its history, covered, and nothing else exists.

use leasehold_core::{Status, StoreTime};
use leasehold_queue::Settlement;
use leasehold_store::Verb;
use serde_json::json;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::support::audit::assert_covered;
use crate::support::migrations::{Every, abort, abort_keeping_keys, assert_all_of, migrate, raw_at, switch};
use crate::support::stage::{Fate, Request};
use crate::support::{World, hours, mins};

const FATES: [Fate; 7] = [
    Fate::LoseAnswer,
    Fate::LoseRequest,
    Fate::Refuse,
    Fate::Unreached,
    Fate::Die,
    Fate::PassThenDie,
    Fate::HoldThenDie,
];

/// Time at which a request is applied that was in flight when its process crashed.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Landing {
    AtOnce,
    /// After another process has moved everything, or moved it back.
    Switched,
    /// After another process has removed the old keys, unless every store would refuse it by then.
    Swept,
}

const LANDINGS: [Landing; 3] = [Landing::AtOnce, Landing::Switched, Landing::Swept];

/// The fault.
#[derive(Debug, Clone, Copy)]
struct FaultCase {
    number: usize,
    fate: Fate,
    landing: Landing,
}

/// Every request except the many conditional reads of `queue.json`: a few of these.
fn fault_cases(asked: &[Request]) -> Vec<FaultCase> {
    let is_one_of_many = |number: usize, asked: &Request| {
        asked.key == "queue.json" && asked.verb == Verb::Get && !number.is_multiple_of(8)
    };
    let mut fault_cases = Vec::new();
    for (number, asked) in asked.iter().enumerate() {
        if is_one_of_many(number, asked) {
            continue;
        }
        for fate in FATES {
            let is_held = fate == Fate::HoldThenDie && [Verb::Put, Verb::Delete].contains(&asked.verb);
            let landings = if is_held { &LANDINGS[..] } else { &LANDINGS[..1] };
            fault_cases.extend(landings.iter().map(|landing| FaultCase { number, fate, landing: *landing }));
        }
    }
    fault_cases
}

fn is_late(world: &World, sent: StoreTime) -> bool {
    world.now().since(sent) > mins(14)
}

/// The requests of a whole migration.
async fn requests_of(from: u8, to: u8) -> Vec<Request> {
    let world = World::with_shards(from).await;
    let every = Every::new(&world).await;
    let (queue, stage) = world.staged().await;
    stage.play(|_, _| Fate::Pass);
    migrate(&queue, to).await.unwrap();
    every.assert_there(&world.store, to.into(), "undisturbed").await;
    stage.asked()
}

async fn run_with_fault(from: u8, to: u8, case: FaultCase) {
    let context = format!("{from} to {to}, {case:?}");
    let world = World::with_shards(from).await;
    let every = Every::new(&world).await;
    let (queue, stage) = world.staged().await;
    stage.play_at(case.number, case.fate);
    let _ = migrate(&queue, to).await;
    let sent = world.now();
    if case.landing == Landing::AtOnce {
        stage.apply_late().await;
    }
    let next = world.process(world.store.clone()).await;
    switch(&next, to).await.expect(&context);
    if case.landing == Landing::Switched && !is_late(&world, sent) {
        stage.apply_late().await;
    }
    migrate(&next, to).await.expect(&context);
    if case.landing == Landing::Swept && !is_late(&world, sent) {
        stage.apply_late().await;
    }
    every.assert_there(&world.store, to.into(), &context).await;
}

#[tokio::test]
async fn a_migration_survives_every_single_fault() {
    let mut runs = 0;
    for (from, to) in [(1, 2), (2, 1)] {
        for case in fault_cases(&requests_of(from, to).await) {
            run_with_fault(from, to, case).await;
            runs += 1;
        }
    }
    assert!(runs > 1_000, "only {runs} runs");
}

/// A migration dies before this request, or once it was sent, and is then aborted.
async fn abort_after(case: FaultCase) {
    let context = format!("aborted, {case:?}");
    let world = World::new().await;
    let every = Every::new(&world).await;
    let (queue, stage) = world.staged().await;
    stage.play_at(case.number, case.fate);
    let _ = switch(&queue, 2).await;
    let sent = world.now();
    if case.landing == Landing::AtOnce {
        stage.apply_late().await;
    }
    let next = world.process(world.store.clone()).await;
    match abort_keeping_keys(&next).await {
        Ok(_) => {}
        // It has finished in spite of the fault, or not even begun.
        Err(error) if error.to_string().contains("too late") => return,
        Err(error) => assert_eq!(error.to_string(), "no migration is in progress", "{context}"),
    }
    if case.landing != Landing::AtOnce && !is_late(&world, sent) {
        stage.apply_late().await;
    }
    // The applied request may be the announcement itself.
    let _ = abort(&next).await;
    every.assert_there(&world.store, 1, &context).await;
}

#[tokio::test]
async fn a_migration_can_be_aborted_after_every_single_fault() {
    let asked = requests_of(1, 2).await;
    let is_switch = |asked: &Request| asked.key == "queue.json" && asked.body_has("\"left\"");
    let before = asked.iter().position(is_switch).unwrap();
    let fault_cases = fault_cases(&asked[..before]);
    assert!(fault_cases.len() > 300, "only {} runs", fault_cases.len());
    for case in fault_cases {
        abort_after(case).await;
    }
}

/// A world in which a migration stopped when half of the tasks had moved.
async fn half_moved() -> (World, Every) {
    let world = World::new().await;
    let every = Every::new(&world).await;
    let (queue, stage) = world.staged().await;
    let landed = AtomicUsize::new(0);
    stage.play(move |_, asked| {
        let is_landing =
            asked.verb == Verb::Put && asked.key.starts_with("tasks/") && !asked.body_has("moved_to");
        let count = landed.fetch_add(usize::from(is_landing), Relaxed);
        if is_landing && count == 3 { Fate::Die } else { Fate::Pass }
    });
    migrate(&queue, 2).await.unwrap_err();
    (world, every)
}

async fn abort_with_fault(case: FaultCase) {
    let context = format!("aborting, {case:?}");
    let (world, every) = half_moved().await;
    let (queue, stage) = world.staged().await;
    stage.play_at(case.number, case.fate);
    let _ = abort(&queue).await;
    let sent = world.now();
    if case.landing == Landing::AtOnce {
        stage.apply_late().await;
    }
    let next = world.process(world.store.clone()).await;
    let _ = abort_keeping_keys(&next).await;
    if case.landing == Landing::Switched && !is_late(&world, sent) {
        stage.apply_late().await;
    }
    match abort(&next).await {
        Ok(told) => assert_eq!(told.old_keys_deleted_after, None),
        Err(error) => assert_eq!(error.to_string(), "no migration is in progress", "{context}"),
    }
    if case.landing == Landing::Swept && !is_late(&world, sent) {
        stage.apply_late().await;
    }
    every.assert_there(&world.store, 1, &context).await;
}

#[tokio::test]
async fn an_abort_survives_every_single_fault() {
    let (world, every) = half_moved().await;
    let (queue, stage) = world.staged().await;
    stage.play(|_, _| Fate::Pass);
    abort(&queue).await.unwrap();
    every.assert_there(&world.store, 1, "undisturbed").await;
    let fault_cases = fault_cases(&stage.asked());
    assert!(fault_cases.len() > 500, "only {} runs", fault_cases.len());
    for case in fault_cases {
        abort_with_fault(case).await;
    }
}

/// The holder of a task renews and settles right before each request of an abort.
#[tokio::test]
async fn holders_continue_while_a_migration_is_aborted() {
    for request in 0.. {
        let (world, every) = half_moved().await;
        let (queue, stage) = world.staged().await;
        let (holder, held, context) =
            (world.clone(), every.held.clone(), format!("before request {request}"));
        let (settled, was_settled) = (std::sync::Arc::new(AtomicUsize::new(0)), context.clone());
        let done = settled.clone();
        stage.interrupt(move |number, _| number == request, async move {
            let renewed = holder.queue.renew(&held, hours(2), None).await.unwrap();
            let Some(held) = renewed else { panic!("{was_settled}: lost") };
            let settlement = Settlement::Fail { error: "later".into(), retryable: true, after: None };
            let task = holder.queue.settle(&held, settlement).await.unwrap().expect(&was_settled);
            assert_eq!(task.status(), Status::Pending, "{was_settled}");
            done.fetch_add(1, Relaxed);
        });
        abort(&queue).await.unwrap();
        if settled.load(Relaxed) == 0 {
            assert!(request > 100, "only {request} requests");
            return;
        }
        assert_all_of(&world.store, 1, &context).await;
        assert_covered(&world.store, &context).await;
        let task = raw_at(&world.store, &every.held.task().id, 1).await.unwrap();
        assert_eq!(
            (&task["status"], task["history"].as_array().unwrap().len()),
            (&json!("pending"), 3),
            "{context}"
        );
    }
}
