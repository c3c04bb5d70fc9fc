//! Every request in every state, as a table.

use serde_json::json;
use std::fmt::Write;
use std::time::Duration;

use super::broker::{MadeClaim, TestBroker, minutes, secs};
use crate::error::Result;
use crate::ids::{HexName, TaskId};
use crate::journal::decide::ClaimToRenew;
use crate::journal::{JournalDecision, JournalRecord, Operated, RenewRequest, SettleRequest, SubmitRequest};
use crate::new_task::{NewTask, Start, Submitted};
use crate::settlement::Settlement;
use crate::step::Event;
use crate::task::{Status, Task};
use crate::unique::UniqueKey;

/// A broker with one task, which was claimed at some time by claim `held`, and the id of that task.
struct Case {
    name: &'static str,
    broker: TestBroker,
    id: TaskId,
    held: MadeClaim,
}

/// Events after the claim of a task, with a settlement that fails and one that fails permanently.
type Story = fn(&mut TestBroker, &MadeClaim, Settlement, Settlement);

/// One broker for each state with different decisions. Every task has the idempotency key `k`.
fn cases() -> Vec<Case> {
    let fail = |retryable| Settlement::Fail { error: "oh".into(), retryable, after: None };
    let stories: [(&str, Story); 9] = [
        ("waiting, never claimed", |_, _, _, _| {}),
        ("running", |_, _, _, _| {}),
        ("running, to be cancelled", |broker, claim, _, _| drop(broker.operate(claim.task, &Event::Cancel))),
        ("waiting again", |broker, claim, retryable, _| drop(broker.settle(claim, retryable))),
        ("waiting after a time-out", |broker, _, _, _| {
            broker.pass(minutes(2));
            broker.tick();
        }),
        ("completed", |broker, claim, _, _| drop(broker.settle(claim, Settlement::complete(json!(7))))),
        ("failed", |broker, claim, _, permanent| drop(broker.settle(claim, permanent))),
        ("cancelled", |broker, claim, _, _| {
            drop(broker.settle(claim, Settlement::Release));
            drop(broker.operate(claim.task, &Event::Cancel));
        }),
        ("expired", |broker, claim, _, _| {
            drop(broker.settle(claim, Settlement::Release));
            broker.pass(minutes(6));
            broker.tick();
        }),
    ];
    let mut cases = Vec::new();
    for (name, story) in stories {
        let mut broker = TestBroker::new();
        let new_task = NewTask { expires_in: Some(minutes(5)), ..new_task() };
        let id = broker.submit_task(new_task, Some(UniqueKey::new("k"))).unwrap().id;
        let lease_id = HexName::from_random(99);
        let mut held = MadeClaim {
            worker: super::broker::worker("w1"),
            task: id,
            lease_id,
            promised: broker.now().latest,
        };
        if name != "waiting, never claimed" {
            held = broker.claim("w1", 1).remove(0);
        }
        story(&mut broker, &held, fail(true), fail(false));
        broker.check();
        cases.push(Case { name, broker, id, held });
    }
    cases
}

fn new_task() -> NewTask {
    NewTask::new("resize", json!({"url": "x", "size": 3})).unwrap()
}

fn table<T>(
    requests: &[&str],
    decide: impl Fn(&mut Case, &str) -> JournalDecision<T>,
    describe: impl Fn(&T) -> String,
) -> String {
    let mut table = String::new();
    for mut case in cases() {
        writeln!(table, "{}:", case.name).unwrap();
        for request in requests {
            let decision = decide(&mut case, request);
            writeln!(table, "    {request:<24} {}", row(&decision, &describe)).unwrap();
        }
    }
    table
}

fn row<T>(decision: &JournalDecision<T>, describe: impl Fn(&T) -> String) -> String {
    let answer = match &decision.answer {
        Ok(answer) => describe(answer),
        Err(error) => format!("error: {error}"),
    };
    let records: Vec<_> = decision.records.iter().map(kind).collect();
    let records = if records.is_empty() { "nothing".to_owned() } else { records.join(", ") };
    format!("{answer}; logs {records}{}", if decision.is_refusal { "; needs a proof" } else { "" })
}

fn kind(record: &JournalRecord) -> String {
    match record {
        JournalRecord::Submit(_) => "submit".into(),
        JournalRecord::Change { kind, .. } => format!("{kind:?}").to_lowercase(),
        JournalRecord::Heard { tasks, .. } => format!("heard ({})", tasks.len()),
        JournalRecord::Archive(_) => "archive".into(),
    }
}

fn describe_task(task: &Task) -> String {
    format!("{} after {} of {} attempts", task.status(), task.attempt, task.max_attempts)
}

#[test]
fn settlements() {
    let names =
        ["complete", "fail", "fail permanently", "exhaust", "snooze", "release", "stop", "another claim"];
    let decide = |case: &mut Case, name: &str| {
        let error = || "oh".to_owned();
        let settlement = match name {
            "complete" | "another claim" => Settlement::complete(json!("done")),
            "fail" => Settlement::Fail { error: error(), retryable: true, after: None },
            "fail permanently" => Settlement::Fail { error: error(), retryable: false, after: None },
            "exhaust" => Settlement::Exhaust { error: error(), max_attempts: 1 },
            "snooze" => Settlement::Snooze(minutes(1)),
            "release" => Settlement::Release,
            _ => Settlement::Stop,
        };
        let other = HexName::from_random(98);
        let lease_id = if name == "another claim" { other } else { case.held.lease_id.clone() };
        let request = SettleRequest { task: case.id, lease_id, settlement };
        case.broker.state.settle(request, &case.broker.context())
    };
    let describe = |task: &Option<Task>| task.as_ref().map_or("lost".to_owned(), describe_task);
    insta::assert_snapshot!(table(&names, decide, describe));
}

#[test]
fn operations() {
    let names = ["cancel", "retry", "reschedule"];
    let decide = |case: &mut Case, name: &str| {
        let event = match name {
            "cancel" => Event::Cancel,
            "retry" => Event::Retry,
            _ => Event::Reschedule { at: case.broker.now().earliest.plus(minutes(1)) },
        };
        case.broker.state.operate(&case.id, &event, &case.broker.context())
    };
    insta::assert_snapshot!(table(&names, decide, describe_operated));
}

fn describe_operated(operated: &Operated) -> String {
    match operated {
        Operated::Done(task) => describe_task(task),
        Operated::Rejected(why, _) => format!("✗ {why}"),
    }
}

#[test]
fn invalid_operations() {
    let mut broker = TestBroker::new();
    let (id, unknown) = (broker.submit("resize"), TaskId::from_random(5));
    let at = broker.now().earliest.plus(Duration::from_hours(200_000));
    let rows = [(unknown, Event::Cancel), (id, Event::Reschedule { at }), (id, Event::Purge)]
        .map(|(id, event)| row(&broker.state.operate(&id, &event, &broker.context()), describe_operated));
    insta::assert_snapshot!(rows.join("\n"));
}

#[test]
fn renewals() {
    let names = ["renew", "another claim", "unknown task", "after a takeover"];
    let decide = |case: &mut Case, name: &str| {
        let (mut task, mut lease_id) = (case.id, case.held.lease_id.clone());
        match name {
            "another claim" => lease_id = HexName::from_random(98),
            "unknown task" => task = TaskId::from_random(5),
            "after a takeover" => case.broker.take_over(),
            _ => {}
        }
        let claims = vec![ClaimToRenew { task, lease_id, progress: None }];
        let request = RenewRequest { worker: case.held.worker.clone(), claims };
        case.broker.state.renew(request, &case.broker.context())
    };
    let describe = |answers: &Vec<Option<crate::journal::RenewedClaim>>| match answers[0] {
        None => "lost".to_owned(),
        Some(renewed) if renewed.cancel_requested => "renewed, to be cancelled".to_owned(),
        Some(_) => "renewed".to_owned(),
    };
    insta::assert_snapshot!(table(&names, decide, describe));
}

#[test]
fn submits() {
    let names = [
        "without a key",
        "key",
        "key, retry failed",
        "key, other input",
        "key, other type",
        "other key",
        "key, a day later",
        "the id again",
        "the id, other input",
    ];
    let decide = |case: &mut Case, name: &str| {
        let mut request = SubmitRequest {
            id: case.broker.fresh_id(),
            new_task: new_task(),
            key: Some(UniqueKey::new("k")),
        };
        let mut context = case.broker.context();
        match name {
            "key, retry failed" => {
                request.key = Some(UniqueKey { retry_failed: true, ..UniqueKey::new("k") });
            }
            "key, other input" => request.new_task.input = json!({"url": "y", "size": 3}),
            "key, other type" => request.new_task.task_type = crate::Name::checked("task type", "x").unwrap(),
            "other key" => request.key = Some(UniqueKey::new("l")),
            "key, a day later" => {
                let at = context.now.earliest.plus(Duration::from_hours(25));
                context.now = crate::Now::exactly(at);
                request.id = TaskId::from_time(at, 1);
            }
            "the id again" | "the id, other input" => request.id = case.id,
            _ => {}
        }
        if name == "the id, other input" {
            request.new_task.input = json!(2);
        }
        if name == "without a key" {
            request.key = None;
        }
        case.broker.state.submit(request, &context)
    };
    insta::with_settings!({filters => vec![(r"[0-9a-f]{8}-[0-9a-f-]{27}", "[id]")]}, {
        insta::assert_snapshot!(table(&names, decide, describe_submitted));
    });
}

fn describe_submitted(submitted: &Submitted) -> String {
    match submitted {
        Submitted { is_new: true, .. } => "submitted".to_owned(),
        Submitted { existing, is_retried: true, .. } => format!("exists, was {}, retried", existing.unwrap()),
        Submitted { existing, .. } => format!("exists, is {}", existing.map_or("?", Status::name)),
    }
}

#[test]
fn invalid_submits() {
    let broker = TestBroker::new();
    let now = broker.now().earliest;
    let good = || SubmitRequest { id: TaskId::from_time(now, 1), new_task: new_task(), key: None };
    let rows = [
        SubmitRequest { id: TaskId::from_time(now.minus(minutes(11)), 1), ..good() },
        SubmitRequest { id: TaskId::from_time(now.plus(minutes(11)), 1), ..good() },
        SubmitRequest { id: TaskId::from_random(1), ..good() },
        SubmitRequest { key: Some(UniqueKey { lifetime: secs(60), ..UniqueKey::new("k") }), ..good() },
        SubmitRequest { new_task: NewTask { max_attempts: Some(0), ..new_task() }, ..good() },
    ]
    .map(|request| row(&broker.state.submit(request, &broker.context()), describe_submitted));
    insta::assert_snapshot!(rows.join("\n"));
}

/// JSON objects are unordered: another language, or another run, may serialize them differently.
#[test]
fn an_equal_input_in_another_order_is_the_input_of_the_key() -> Result<()> {
    let mut broker = TestBroker::new();
    let key = || Some(UniqueKey::new("k"));
    let first = broker.submit_task(new_task(), key())?;
    let input = serde_json::from_str(r#"{"size": 3, "url": "x"}"#).unwrap();
    assert_eq!(broker.submit_task(NewTask { input, ..new_task() }, key())?.id, first.id);
    Ok(())
}

#[test]
fn a_key_that_has_expired_belongs_to_the_next_task() -> Result<()> {
    let mut broker = TestBroker::new();
    let hour = Duration::from_hours(1);
    let key = |hours| Some(UniqueKey { lifetime: hour * hours, ..UniqueKey::new("k") });
    let first = broker.submit_task(new_task(), key(1))?.id;
    broker.pass(hour);
    assert!(!broker.submit_task(new_task(), key(100))?.is_new);
    broker.pass(secs(1));
    let second = broker.submit_task(new_task(), key(100))?;
    assert!(second.is_new && second.id != first);
    assert_eq!(broker.submit_task(new_task(), key(1))?.id, second.id);
    broker.check();
    // The first task ends and is removed, and the key stays with the second.
    let claim = broker.claim("w1", 1).remove(0);
    broker.settle(&claim, Settlement::complete(json!(1)));
    broker.pass(hour * 24);
    assert_eq!((claim.task, broker.purge(secs(0))), (first, 1));
    assert_eq!(broker.submit_task(new_task(), key(1))?.id, second.id);
    broker.check();
    Ok(())
}

#[test]
fn a_task_does_not_get_its_key_back() -> Result<()> {
    let mut broker = TestBroker::new();
    let hour = Duration::from_hours(1);
    let key = || Some(UniqueKey { lifetime: hour, ..UniqueKey::new("k") });
    let waiting = NewTask { start: Start::After(hour * 1_000), ..new_task() };
    let first = broker.submit_task(waiting, key())?.id;
    broker.pass(hour + secs(1));
    let second = broker.submit_task(new_task(), key())?.id;
    let claim = broker.claim("w1", 1).remove(0);
    broker.settle(&claim, Settlement::complete(json!(1)));
    broker.pass(hour * 26);
    assert_eq!((claim.task, broker.purge(secs(0))), (second, 1));
    broker.take_over();
    assert!(broker.state.get(&first)?.is_some());
    assert!(broker.submit_task(new_task(), key())?.is_new);
    broker.check();
    Ok(())
}
