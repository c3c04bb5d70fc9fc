use super::*;
use crate::ids::Artifacts;
use crate::testing::{claim, context_at, lease, now, pending, running};
use proptest::prelude::*;
use serde_json::json;
use std::fmt::Write;

pub(crate) fn later(secs: u64) -> StepContext {
    context_at(Now::exactly(now().earliest.plus(Duration::from_secs(secs))))
}

fn done(task: &Task, event: &Event, context: &StepContext) -> Step {
    step(task, event, context).unwrap_or_else(|rejected| panic!("{} was rejected: {rejected}", event.name()))
}

fn take_over(number: u128, from: Option<LeaseId>) -> Event {
    let worker = crate::Name::checked("worker id", "w2").unwrap();
    Event::TakeOver { worker, lease_id: lease(number), lease: Duration::from_mins(1), from, is_unused: false }
}

fn complete_offline(number: u128) -> Event {
    Event::CompleteOffline { lease_id: lease(number), output: json!("done"), results: Artifacts::new() }
}

fn fail_offline(number: u128, retryable: bool) -> Event {
    Event::FailOffline {
        lease_id: lease(number),
        error: "oh".into(),
        retryable,
        after: None,
        max_attempts: None,
    }
}

/// Every event, by the holder of claim 1, by claim 2, which is not in the store, or by any actor.
pub(crate) fn events() -> Vec<Event> {
    let lease_id = lease(1);
    let at = now().earliest.plus(Duration::from_mins(90));
    vec![
        claim(2),
        Event::Renew { lease_id: lease_id.clone(), lease: Duration::from_mins(1), progress: None },
        Event::Complete { lease_id: lease_id.clone(), output: json!("done"), results: Artifacts::new() },
        Event::Fail { lease_id: lease_id.clone(), error: "oh".into(), retryable: true, after: None },
        Event::Fail { lease_id: lease_id.clone(), error: "oh".into(), retryable: false, after: None },
        Event::Snooze { lease_id: lease_id.clone(), until: at },
        Event::Release { lease_id: lease_id.clone() },
        Event::Stop { lease_id },
        Event::TimeOut,
        Event::Cancel,
        Event::Expire,
        Event::Reschedule { at },
        Event::Retry,
        Event::Purge,
        Event::Fence,
        take_over(2, None),
        complete_offline(2),
        fail_offline(2, true),
        Event::Move { shard: crate::ShardLen::DEFAULT.shard_of(&pending().id) },
        exhaust(2),
    ]
}

fn exhaust(max_attempts: u32) -> Event {
    Event::Exhaust { lease_id: lease(1), error: "oh".into(), max_attempts }
}

#[test]
fn a_task_keeps_the_bound_of_attempts_that_applied() {
    for (own, of_handler, kept) in [(4, 2, 2), (2, 4, 2), (4, 0, 1), (4, 4, 4)] {
        let task = Task { max_attempts: own, ..running() };
        let failed = done(&task, &exhaust(of_handler), &context_at(now())).task;
        assert_eq!((failed.status(), failed.attempt, failed.max_attempts), (Status::Failed, 1, kept));
        let Event::FailOffline { lease_id, error, retryable, after, .. } = fail_offline(1, true) else {
            panic!("unexpected event")
        };
        let offline =
            Event::FailOffline { lease_id, error, retryable, after, max_attempts: Some(of_handler) };
        let failed = done(&Task { max_attempts: own, ..pending() }, &offline, &context_at(now())).task;
        assert_eq!((failed.status(), failed.attempt, failed.max_attempts), (Status::Failed, 1, kept));
    }
}

/// One task for each state with different decisions.
pub(crate) fn tasks() -> Vec<(&'static str, Task)> {
    let soon = now().earliest.plus(Duration::from_secs(30));
    let context = context_at(now());
    let fail = |retryable| Event::Fail { lease_id: lease(1), error: "oh".into(), retryable, after: None };
    let planned =
        done(&pending(), &Event::Reschedule { at: now().earliest.plus(Duration::from_hours(1)) }, &context)
            .task;
    let expiring = Task { expires_at: Some(soon), ..pending() };
    let cancelling = done(&running(), &Event::Cancel, &context).task;
    let last = done(&Task { max_attempts: 1, ..pending() }, &claim(1), &context).task;
    let completed = done(
        &running(),
        &Event::Complete { lease_id: lease(1), output: json!(1), results: Artifacts::new() },
        &context,
    )
    .task;
    let cancelled = done(&pending(), &Event::Cancel, &context).task;
    let expired = done(&expiring, &Event::Expire, &later(60)).task;
    let purged = done(&completed, &Event::Purge, &context).task;
    let id = crate::TaskId::from_random(8);
    let tombstone = Task::tombstone(id, crate::ShardLen::DEFAULT.shard_of(&id), "submit abandoned", &context);
    vec![
        ("pending", pending()),
        ("pending, in an hour", planned),
        ("pending, past its expiry", expiring),
        ("running", running()),
        ("running, last attempt", last),
        ("running, to be cancelled", cancelling),
        ("completed", completed),
        ("failed", done(&running(), &fail(false), &context).task),
        ("cancelled", cancelled),
        ("expired", expired),
        ("purged", purged),
        ("tombstone", tombstone),
    ]
}

fn describe(task: &Task, event: &Event, context: &StepContext) -> String {
    match step(task, event, context) {
        Err(rejected) => format!("✗ {rejected}"),
        Ok(step) => {
            let order = match &step.order {
                WriteOrder::TaskOnly => "task".into(),
                WriteOrder::TaskFirst { write, remove } => {
                    let (write, remove) =
                        (describe_entry("+", write.as_ref()), describe_entry("−", remove.as_ref()));
                    format!("task{write}{remove}")
                }
                WriteOrder::EntryFirst { write, remove } => {
                    format!(
                        "{}, task{}",
                        &describe_entry("+", Some(write))[2..],
                        describe_entry("−", remove.as_ref())
                    )
                }
            };
            format!("→ {}; {order}", step.task.status())
        }
    }
}

fn describe_entry(sign: &str, entry: Option<&Entry>) -> String {
    entry.map_or(String::new(), |entry| format!(", {sign}{}", entry.key().split('/').next().unwrap()))
}

/// Generates the table in the documentation: every state, every event, two hours after the task was made.
#[test]
fn every_status_and_every_event() {
    let context = later(7_200);
    let mut table = String::from(
        "# Every status × every event\n\n**Summary.** For each status of a task, one table lists every event with the resulting \
         status and the order of writes, or with the reason why the event is rejected. [queue.md](queue.md) has the diagram \
         of the states and the requests of each operation. Generated by the tests of `step.rs`. The holder's events carry \
         the claim that \
         holds the task, or held it last. Every event is applied two hours after the task was made; *pending, in an hour* \
         is due by then, and every claim has expired. `+` writes an index entry, `−` removes one, in the order of the writes. An event has the name that it has \
         in a task's history. `fence` only adds a revision, so that a late write is refused (rule 4 of \
         [queue.md](queue.md)); `move` changes the shard ([migrate.md](migrate.md)); `take over`, `completed_offline` and \
         `failed_offline` come from [outposts](outpost.md).\n",
    );
    for (name, task) in tasks() {
        write!(table, "\n## {name}\n\n| event | result |\n| --- | --- |\n").unwrap();
        for event in events() {
            let kind = match &event {
                Event::Fail { retryable: false, .. } => " (permanent)",
                Event::Exhaust { .. } => " (no more attempts)",
                _ => "",
            };
            writeln!(table, "| {}{kind} | {} |", event.name(), describe(&task, &event, &context)).unwrap();
        }
    }
    let documented = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/protocol/states.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&documented, &table).unwrap();
    }
    assert_eq!(std::fs::read_to_string(&documented).unwrap(), table, "run the test with UPDATE_DOCS=1");
}

#[test]
fn a_fenced_worker_cannot_change_the_task() {
    let lost = done(&running(), &Event::TimeOut, &later(3_600)).task;
    let taken = done(&lost, &claim(2), &later(7_200)).task;
    assert_eq!(taken.epoch, 2);
    for event in &events()[1..8] {
        assert_eq!(step(&taken, event, &later(7_201)), Err(Rejected::Lost), "{}", event.name());
    }
}

#[test]
fn a_lease_ends_only_once_surely_expired() {
    let expiry = now().earliest.plus(Duration::from_mins(1));
    let at = |earliest: StoreTime, is_consistent| {
        context_at(Now { earliest, latest: earliest.plus(Duration::from_secs(2)), is_consistent })
    };
    assert_eq!(step(&running(), &Event::TimeOut, &at(expiry, true)), Err(Rejected::NotBefore(expiry)));
    let after = StoreTime::from_millis(expiry.as_millis() + 1);
    assert_eq!(step(&running(), &Event::TimeOut, &at(after, false)), Err(Rejected::NotBefore(expiry)));
    assert!(step(&running(), &Event::TimeOut, &at(after, true)).is_ok());
}

#[test]
fn a_repeated_settlement_is_already_so() {
    for event in &events()[2..8] {
        let settled = done(&running(), event, &later(1)).task;
        assert_eq!(step(&settled, event, &later(2)), Err(Rejected::AlreadyApplied), "{}", event.name());
    }
}

#[test]
fn a_release_costs_no_attempt_and_a_failure_does() {
    let snooze = Event::Snooze { lease_id: lease(1), until: now().earliest };
    assert_eq!(running().attempt, 1);
    assert_eq!(done(&running(), &snooze, &later(1)).task.attempt, 0);
    assert_eq!(done(&running(), &Event::Release { lease_id: lease(1) }, &later(1)).task.attempt, 0);
    let failed = done(
        &running(),
        &Event::Fail { lease_id: lease(1), error: "oh".into(), retryable: true, after: None },
        &later(1),
    );
    assert_eq!(failed.task.attempt, 1);
    assert_eq!(
        failed.task.state,
        State::Pending { available_at: now().earliest.plus(Duration::from_secs(2)) }
    );
}

#[test]
fn a_failure_may_set_the_time_of_the_next_attempt() {
    let pause = Duration::from_secs(45);
    let fail = |task: &Task, retryable| {
        let event = Event::Fail { lease_id: lease(1), error: "busy".into(), retryable, after: Some(pause) };
        done(task, &event, &later(1)).task
    };
    let failed = fail(&running(), true);
    assert_eq!(failed.state, State::Pending { available_at: later(1).now.earliest.plus(pause) });
    assert_eq!(failed.attempt, 1, "the attempt counts");
    assert_eq!(fail(&running(), false).status(), Status::Failed);
    let last = Task { max_attempts: 1, ..running() };
    assert_eq!(fail(&last, true).status(), Status::Failed, "no attempts left");
}

#[test]
fn a_cancelled_task_runs_again_only_after_a_retry() {
    let cancelling = done(&running(), &Event::Cancel, &later(1)).task;
    for event in &events()[3..9] {
        let settled = done(&cancelling, event, &later(3_600)).task;
        assert_eq!(settled.status(), Status::Cancelled, "{}", event.name());
    }
    let completed = done(&cancelling, &events()[2], &later(2)).task;
    assert_eq!(completed.status(), Status::Completed, "a completion counts despite the cancel");
}

#[test]
fn a_second_cancel_of_a_running_task_says_that_the_first_was_recorded() {
    let cancelling = done(&running(), &Event::Cancel, &later(1)).task;
    let rejected = step(&cancelling, &Event::Cancel, &later(2)).unwrap_err();
    assert_eq!(rejected, Rejected::CancelRequested);
    assert_eq!(rejected.to_string(), "cancellation was already requested");
}

fn last(task: &Task) -> &Change {
    task.history.events().next_back().unwrap()
}

/// Task in this state, from the table above.
fn task(name: &str) -> Task {
    let mut tasks = tasks().into_iter();
    tasks.find(|(other, _)| *other == name).unwrap_or_else(|| panic!("no task is {name}")).1
}

#[test]
fn an_expired_claim_is_taken_over_with_a_new_epoch_and_another_attempt() {
    let before = running();
    let taken = done(&before, &take_over(2, None), &later(61));
    assert_eq!((taken.task.epoch, taken.task.attempt), (before.epoch + 1, before.attempt + 1));
    assert_eq!(taken.task.lease_id, Some(lease(2)));
    let State::Running(claim) = &taken.task.state else { panic!("expected a running task") };
    assert_eq!((claim.by.as_str(), claim.cancel_requested), ("w2", false));
    let change = last(&taken.task);
    assert_eq!((change.event.as_str(), change.why.as_deref()), ("take over", Some("from w1")));
    assert_eq!((change.epoch, change.attempt), (2, 2));
    let order = WriteOrder::TaskFirst { write: taken.task.entry(), remove: before.entry() };
    assert_eq!(taken.order, order, "the task is found by the old entry until the new one exists");
    let renew = Event::Renew { lease_id: lease(1), lease: Duration::from_mins(1), progress: None };
    assert_eq!(
        step(&taken.task, &renew, &later(62)),
        Err(Rejected::Lost),
        "the previous claim is fenced off"
    );
}

#[test]
fn a_claim_is_taken_over_before_its_expiry_only_by_its_own_worker() {
    let expiry = now().earliest.plus(Duration::from_mins(1));
    assert_eq!(step(&running(), &take_over(2, None), &later(60)), Err(Rejected::NotBefore(expiry)));
    assert_eq!(step(&running(), &take_over(2, Some(lease(3))), &later(60)), Err(Rejected::NotBefore(expiry)));
    let doubtful = Now { latest: expiry.plus(Duration::from_secs(9)), ..Now::exactly(expiry) };
    let in_doubt = step(&running(), &take_over(2, None), &context_at(doubtful));
    assert_eq!(in_doubt, Err(Rejected::NotBefore(expiry)));
    assert_eq!(done(&running(), &take_over(2, Some(lease(1))), &later(1)).task.epoch, 2);
    let timed_out = Task { lease_id: None, ..running() };
    assert_eq!(step(&timed_out, &take_over(2, None), &later(60)), Err(Rejected::NotBefore(expiry)));
}

#[test]
fn a_task_without_attempts_left_or_cancelled_is_not_taken_over() {
    for name in ["running, last attempt", "running, to be cancelled"] {
        for from in [None, Some(lease(1))] {
            let rejected = step(&task(name), &take_over(2, from), &later(3_600));
            assert_eq!(rejected, Err(Rejected::Status(Status::Running)), "{name}");
        }
    }
    for (name, task) in tasks() {
        if task.status() != Status::Running {
            let rejected = step(&task, &take_over(2, Some(lease(1))), &later(3_600));
            assert_eq!(rejected, Err(Rejected::Status(task.status())), "{name}");
        }
    }
}

#[test]
fn an_offline_completion_counts_for_any_holder_but_only_once() {
    for (name, before) in tasks() {
        let event = complete_offline(2);
        if !matches!(before.status(), Status::Pending | Status::Running | Status::Failed) {
            let rejected = step(&before, &event, &later(1));
            assert_eq!(rejected, Err(Rejected::Status(before.status())), "{name}");
            continue;
        }
        let after = done(&before, &event, &later(1)).task;
        let attempt = (before.attempt + 1).min(before.max_attempts);
        assert_eq!((after.epoch, after.attempt), (before.epoch + 1, attempt), "{name}");
        assert_eq!((after.status(), after.output()), (Status::Completed, Some(&json!("done"))), "{name}");
        assert_eq!(
            (last(&after).event.as_str(), last(&after).from),
            ("completed_offline", Some(before.status()))
        );
        assert_eq!(step(&after, &event, &later(2)), Err(Rejected::AlreadyApplied), "{name}");
        let other = step(&after, &complete_offline(3), &later(2));
        assert_eq!(other, Err(Rejected::Status(Status::Completed)), "{name}");
        let holder = Event::Complete { lease_id: lease(1), output: json!(1), results: Artifacts::new() };
        assert_eq!(step(&after, &holder, &later(2)), Err(Rejected::Lost), "{name}");
    }
}

#[test]
fn an_offline_failure_counts_as_an_attempt_unless_another_worker_holds_the_task() {
    let before = pending();
    let after = done(&before, &fail_offline(2, true), &later(1)).task;
    assert_eq!((after.epoch, after.attempt), (before.epoch + 1, before.attempt + 1));
    assert_eq!((after.status(), after.error.as_deref()), (Status::Pending, Some("oh")));
    assert_eq!(
        after.state,
        State::Pending { available_at: later(1).now.earliest.plus(Duration::from_secs(1)) }
    );
    let change = last(&after);
    assert_eq!((change.event.as_str(), change.why.as_deref()), ("failed_offline", Some("oh")));
    assert_eq!(step(&after, &fail_offline(2, true), &later(2)), Err(Rejected::AlreadyApplied));
    let again = done(&after, &fail_offline(3, true), &later(9)).task;
    assert_eq!((again.epoch, again.attempt), (2, 2));

    let for_good = done(&before, &fail_offline(2, false), &later(1)).task;
    assert_eq!(for_good.status(), Status::Failed);
    assert_eq!(step(&for_good, &fail_offline(2, false), &later(2)), Err(Rejected::AlreadyApplied));
    let only = Task { max_attempts: 1, ..pending() };
    assert_eq!(
        done(&only, &fail_offline(2, true), &later(1)).task.status(),
        Status::Failed,
        "no attempts left"
    );

    for (name, task) in tasks() {
        if task.status() != Status::Pending {
            let rejected = step(&task, &fail_offline(2, true), &later(3_600));
            assert_eq!(rejected, Err(Rejected::Status(task.status())), "{name}");
        }
    }
}

#[test]
fn only_a_retry_begins_a_new_generation() {
    let mut task = pending();
    assert_eq!(task.generation, 0);
    for generation in 1..=3 {
        task = done(&task, &fail_offline(u128::from(generation), false), &later(generation)).task;
        assert_eq!(task.generation, generation - 1);
        task = done(&task, &Event::Retry, &later(generation)).task;
        assert_eq!((task.generation, task.attempt), (generation, 0));
    }
    let key = crate::keys::task(&task.shard, &task.id);
    let body = crate::record::write(&task);
    assert_eq!(crate::record::read(&key, &body).unwrap().generation, 3);
    let first = String::from_utf8(crate::record::write(&pending())).unwrap();
    assert!(!first.contains("generation"), "older records are read and written unchanged");
}

#[test]
fn a_renewal_never_shortens_the_lease() {
    let long =
        Event::Renew { lease_id: lease(1), lease: Duration::from_hours(1), progress: Some(json!(0.5)) };
    let short = Event::Renew { lease_id: lease(1), lease: Duration::from_secs(1), progress: None };
    let renewed = done(&running(), &long, &later(1)).task;
    let again = done(&renewed, &short, &later(2)).task;
    let State::Running(claim) = again.state else { panic!("expected a running task") };
    assert_eq!(claim.expires_at, now().earliest.plus(Duration::from_secs(3_601)));
    assert_eq!(again.progress, Some(json!(0.5)));
}

#[test]
fn long_histories_keep_their_beginning_and_their_end() {
    let mut task = running();
    for number in 1..=400u32 {
        let lease_id = task.lease_id.clone().unwrap();
        task = done(&task, &Event::Release { lease_id }, &later(u64::from(number))).task;
        task = done(&task, &claim(u128::from(number) + 1), &later(u64::from(number))).task;
    }
    assert_eq!(task.history.events().count(), 200);
    assert_eq!(task.history.folded(), 802 - 200);
    let epochs: Vec<_> = task.history.events().map(|change| change.epoch).collect();
    assert_eq!((epochs[0], epochs[19], epochs[199]), (0, 10, 401));
    assert!(epochs.is_sorted());
}

proptest! {
    /// Any events in any order at any times: revisions have no gaps, epochs never decrease, and exactly the tasks that
    /// are not final require an entry, of their own revision.
    #[test]
    fn any_sequence_of_events_keeps_the_record_consistent(
        choices in prop::collection::vec((0usize..20, 0u64..100_000, 1u128..4), 0..60),
    ) {
        let mut task = pending();
        let mut secs = 0;
        for (choice, passed, who) in choices {
            secs += passed;
            let mut event = events().swap_remove(choice);
            match &mut event {
                Event::Claim { lease_id, .. } | Event::Renew { lease_id, .. } | Event::Complete { lease_id, .. }
                | Event::Fail { lease_id, .. } | Event::Exhaust { lease_id, .. } | Event::Snooze { lease_id, .. }
                | Event::Release { lease_id }
                | Event::Stop { lease_id } | Event::TakeOver { lease_id, .. }
                | Event::CompleteOffline { lease_id, .. } | Event::FailOffline { lease_id, .. } => {
                    *lease_id = lease(who);
                }
                _ => {}
            }
            let Ok(next) = step(&task, &event, &later(secs)) else { continue };
            prop_assert_eq!(next.task.rev, task.rev + 1);
            let claimed = matches!(
                event,
                Event::Claim { .. } | Event::TakeOver { .. } | Event::CompleteOffline { .. } | Event::FailOffline { .. }
            );
            prop_assert_eq!(next.task.epoch, task.epoch + u64::from(claimed));
            let retried = matches!(event, Event::Retry);
            prop_assert_eq!(next.task.generation, task.generation + u64::from(retried));
            prop_assert!(next.task.attempt <= next.task.max_attempts);
            prop_assert_eq!(next.task.entry().is_none(), next.task.status().is_final());
            prop_assert!(next.task.entry().is_none_or(|entry| entry.rev == next.task.rev));
            if let WriteOrder::TaskFirst { write, .. } = &next.order {
                prop_assert_eq!(write, &next.task.entry());
            }
            if let WriteOrder::EntryFirst { write, .. } = &next.order {
                prop_assert_eq!(Some(write.clone()), next.task.entry());
            }
            let body = crate::record::write(&next.task);
            let key = crate::keys::task(&next.task.shard, &next.task.id);
            prop_assert_eq!(&crate::record::read(&key, &body).unwrap(), &next.task);
            task = next.task;
        }
    }
}

#[test]
fn a_claim_that_replaces_an_unused_one_is_the_same_attempt() {
    let held = Task { max_attempts: 1, ..running() };
    let (lease_id, worker) = (lease(2), crate::Name::checked("worker id", "w2").unwrap());
    let again = |from: Option<LeaseId>, is_unused| {
        let (lease_id, worker) = (lease_id.clone(), worker.clone());
        let event = Event::TakeOver { worker, lease_id, lease: Duration::from_mins(1), from, is_unused };
        step(&held, &event, &later(7_200)).map(|step| (step.task.attempt, step.task.epoch))
    };
    assert_eq!(again(held.lease_id.clone(), true), Ok((held.attempt, held.epoch + 1)));
    assert_eq!(again(held.lease_id.clone(), false), Err(Rejected::Status(Status::Running)));
    assert_eq!(
        again(Some(lease(7)), true),
        Err(Rejected::Status(Status::Running)),
        "it is another worker's claim"
    );
}

#[test]
fn a_result_counts_although_its_claim_was_released() {
    let release = Event::Release { lease_id: lease(1) };
    let free = done(&running(), &release, &later(1)).task;
    let completed = done(&free, &complete_offline(1), &later(2)).task;
    assert_eq!(completed.status(), Status::Completed);
    assert_eq!(step(&completed, &complete_offline(1), &later(3)).err(), Some(Rejected::AlreadyApplied));
    // A failed attempt was already counted.
    assert_eq!(step(&free, &fail_offline(1, true), &later(3)).err(), Some(Rejected::AlreadyApplied));
}
