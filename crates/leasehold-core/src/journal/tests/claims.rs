//! Order of claims, renewals, fences and time.

use serde_json::json;

use super::broker::{LEASE, MadeClaim, TestBroker, encoded, minutes, secs};
use crate::ids::TaskTypes;
use crate::journal::{JournalContext, JournalState, RenewedClaim};
use crate::new_task::{NewTask, Start};
use crate::settlement::Settlement;
use crate::step::Event;
use crate::task::{Priority, State, Status};
use crate::time::{Now, StoreTime};

fn submit(broker: &mut TestBroker, task_type: &str, priority: u8, start: Start) -> crate::TaskId {
    let priority = Priority::new(priority).unwrap();
    let new_task = NewTask { start, priority, ..NewTask::new(task_type, json!(1)).unwrap() };
    broker.submit_task(new_task, None).unwrap().id
}

fn ids(claims: &[MadeClaim]) -> Vec<crate::TaskId> {
    claims.iter().map(|claim| claim.task).collect()
}

fn expiry(broker: &TestBroker, claim: &MadeClaim) -> StoreTime {
    match broker.state.get(&claim.task).unwrap().unwrap().state {
        State::Running(claim) => claim.expires_at,
        state => panic!("{state:?}"),
    }
}

#[test]
fn tasks_are_claimed_by_minute_then_by_priority_then_by_age() {
    let mut broker = TestBroker::new();
    // 22:13:20, so that forty seconds are left of the minute.
    let low = submit(&mut broker, "a", 1, Start::Now);
    broker.pass(secs(30));
    let late = submit(&mut broker, "b", 5, Start::Now);
    let later = submit(&mut broker, "a", 5, Start::Now);
    let high = submit(&mut broker, "c", 9, Start::Now);
    broker.pass(secs(15));
    let next_minute = submit(&mut broker, "a", 9, Start::Now);
    assert_eq!(ids(&broker.claim("w1", 2)), [high, late]);
    assert_eq!(ids(&broker.claim("w1", 9)), [later, low, next_minute]);
    broker.check();
}

#[test]
fn only_types_with_a_handler_are_claimed() {
    let mut broker = TestBroker::new();
    let (a, b) = (broker.submit("a"), broker.submit("b"));
    let types = |names: &[&str]| {
        names.iter().map(|name| crate::Name::checked("task type", name).unwrap()).collect::<TaskTypes>()
    };
    assert!(broker.claim_types("w1", 5, types(&["c"])).is_empty());
    assert_eq!(ids(&broker.claim_types("w1", 5, types(&["b", "c"]))), [b]);
    assert_eq!(ids(&broker.claim_types("w1", 5, types(&["a", "b"]))), [a]);
}

#[test]
fn a_scheduled_task_is_claimed_at_its_time_and_an_immediate_one_does_not_wait_for_a_clock() {
    let mut broker = TestBroker::new();
    broker.blur(secs(2));
    let soon = submit(&mut broker, "a", 5, Start::After(secs(10)));
    let now = submit(&mut broker, "a", 5, Start::Now);
    assert_eq!(ids(&broker.claim("w1", 5)), [now]);
    assert_eq!(broker.state.next_wake(), Some(broker.now().latest.plus(secs(10))));
    broker.pass(secs(10));
    assert!(broker.claim("w1", 5).is_empty(), "the time has perhaps not been reached");
    broker.pass(secs(2));
    assert_eq!(ids(&broker.claim("w1", 5)), [soon]);
}

#[test]
fn a_high_priority_task_of_the_same_minute_does_not_hide_the_due_ones() {
    let mut broker = TestBroker::new();
    for _ in 0..300 {
        submit(&mut broker, "a", 9, Start::After(secs(20)));
    }
    let due = submit(&mut broker, "a", 0, Start::Now);
    assert_eq!(ids(&broker.claim("w1", 5)), [due]);
}

#[test]
fn an_unknown_time_starts_and_ends_nothing() {
    let mut broker = TestBroker::new();
    broker.submit_expiring(secs(60));
    broker.submit("a");
    broker.claim("w1", 1);
    broker.submit("a");
    broker.pass(minutes(5));
    let lost = Now { latest: StoreTime::NEVER, is_consistent: false, ..broker.now() };
    let context = JournalContext { now: lost, ..broker.context() };
    let request = crate::journal::ClaimRequest {
        worker: super::broker::worker("w1"),
        types: TaskTypes::all(),
        lease: LEASE,
        lease_ids: vec![crate::HexName::from_random(77)],
    };
    assert!(broker.state.claim(&request, &context).records.is_empty());
    assert!(broker.state.tick(9, &context).records.is_empty());
}

#[test]
fn a_tick_is_bounded_and_says_if_more_is_to_be_done() {
    let mut broker = TestBroker::new();
    for _ in 0..5 {
        broker.submit_expiring(secs(30));
    }
    for _ in 0..5 {
        broker.submit("a");
    }
    assert_eq!(broker.state.counts().due, 10);
    broker.pass(secs(31));
    assert_eq!(ids(&broker.claim("w1", 9)).len(), 5, "tasks past their expiry are not claimed");
    broker.pass(LEASE + secs(1));
    let mut seen = Vec::new();
    loop {
        let decision = broker.state.tick(4, &broker.context());
        let ticked = broker.log(decision).unwrap();
        seen.push((ticked.timed_out, ticked.expired, ticked.has_more));
        if !ticked.has_more {
            break;
        }
    }
    assert_eq!(seen, [(4, 0, true), (1, 3, true), (0, 2, false)]);
}

#[test]
fn tasks_that_time_out_together_are_not_retried_together() {
    let mut broker = TestBroker::new();
    for _ in 0..20 {
        broker.submit("a");
    }
    broker.claim("w1", 20);
    broker.pass(LEASE + secs(1));
    assert_eq!(broker.tick().timed_out, 20);
    let times: std::collections::BTreeSet<_> =
        broker.state.indexes.scheduled.keys().map(|(at, _)| at.as_millis()).collect();
    assert!(times.len() > 15, "{times:?}");
}

#[test]
fn renewals_are_not_logged_and_extend_the_claim() {
    let mut broker = TestBroker::new();
    broker.submit("a");
    let claim = broker.claim("w1", 1).remove(0);
    let before = broker.log_text();
    broker.pass(secs(50));
    let renewed = broker.renew_with("w1", Some(&json!(0.5)));
    let expires_at = broker.now().earliest.plus(LEASE);
    assert_eq!(renewed, [Some(RenewedClaim { expires_at, cancel_requested: false })]);
    assert_eq!(broker.log_text(), before);
    assert_eq!(expiry(&broker, &claim), expires_at);
    broker.pass(secs(30));
    assert_eq!(broker.tick().timed_out, 0);
    assert_eq!(broker.state.get(&claim.task).unwrap().unwrap().progress, Some(json!(0.5)));
    let settled = broker.settle(&claim, Settlement::complete(json!(1))).unwrap();
    assert_eq!(settled.progress, Some(json!(0.5)), "the last progress is logged with the settlement");
    broker.check();
}

#[test]
fn a_fence_does_not_extend_the_claim_of_an_imported_task() {
    let mut source = TestBroker::new();
    source.submit("a");
    let claim = source.claim("w1", 1).remove(0);
    let exported = source.state.export(None, 10).unwrap().tasks.remove(0);
    assert!(exported.claim.is_some_and(|claim| claim.is_heard), "{exported:?}");
    let mut broker = TestBroker::new();
    let imported = broker.state.import(exported, &broker.context());
    assert!(broker.log(imported).unwrap());
    let before = expiry(&broker, &claim);
    broker.pass(secs(30));
    broker.take_over();
    assert_eq!(expiry(&broker, &claim), before);
}

#[test]
fn a_cancelled_task_is_reported_by_the_next_renewal() {
    let mut broker = TestBroker::new();
    let id = broker.submit("a");
    let claim = broker.claim("w1", 1).remove(0);
    broker.operate(id, &Event::Cancel).unwrap();
    assert!(broker.renew("w1")[0].unwrap().cancel_requested);
    let fail = Settlement::Fail { error: "oh".into(), retryable: true, after: None };
    assert_eq!(broker.settle(&claim, fail).unwrap().status(), Status::Cancelled);
    assert_eq!(broker.renew("w1"), [None]);
}

#[test]
fn progress_that_is_too_large_is_dropped_and_the_claim_is_renewed() {
    let mut broker = TestBroker::new();
    broker.submit("a");
    let claim = broker.claim("w1", 1).remove(0);
    assert!(broker.renew_with("w1", Some(&json!("x".repeat(300_000))))[0].is_some());
    assert_eq!(broker.state.get(&claim.task).unwrap().unwrap().progress, None);
}

#[test]
fn a_fence_extends_the_claims_that_were_renewed_and_no_others() {
    let mut broker = TestBroker::new();
    broker.submit("a");
    broker.submit("a");
    let mine = broker.claim("w1", 1).remove(0);
    let theirs = broker.claim("w2", 1).remove(0);
    broker.pass(secs(30));
    broker.take_over();
    // Both were claimed since the first broker began. An earlier one may have promised a renewal in the last moment in
    // which it trusted its lease, five seconds from now.
    let extended = broker.now().latest.plus(secs(5)).plus(LEASE);
    assert_eq!([expiry(&broker, &mine), expiry(&broker, &theirs)], [extended; 2]);
    broker.pass(secs(40));
    assert_eq!(broker.renew("w1").len(), 1);
    assert!(broker.log_text().contains("\"heard\""), "the first renewal with a new broker is logged");
    let before = broker.log_text();
    broker.renew("w1");
    assert_eq!(broker.log_text(), before, "the second is not");
    broker.take_over();
    assert_eq!(expiry(&broker, &mine), broker.now().latest.plus(secs(5)).plus(LEASE));
    assert_eq!(expiry(&broker, &theirs), extended, "its worker has not renewed it since");
    broker.pass(secs(30));
    assert_eq!(broker.tick().timed_out, 1);
    broker.check();
}

#[test]
fn a_fence_never_shortens_a_claim() {
    let mut broker = TestBroker::new();
    broker.submit("a");
    let claim = broker.claim("w1", 1).remove(0);
    let before = expiry(&broker, &claim);
    broker.state.fence(StoreTime::from_millis(0), StoreTime::from_millis(0));
    assert_eq!(expiry(&broker, &claim), before);
}

#[test]
fn a_snapshot_contains_the_terms_of_claims_and_the_keys() {
    let mut broker = TestBroker::new();
    let key = crate::unique::UniqueKey {
        scope: crate::unique::Scope::TaskType,
        ..crate::unique::UniqueKey::new("k")
    };
    broker.submit_task(NewTask::new("a", json!(1)).unwrap(), Some(key)).unwrap();
    broker.claim("w1", 1);
    let mut restored = JournalState::default();
    for body in encoded(&broker.state).values() {
        for part in ["key_scope", "key_expires_at", "lease_ms", "heard"] {
            assert!(body.contains(part), "{body}");
        }
        restored.insert(crate::journal::EncodedTask::read(body.as_bytes()).unwrap()).unwrap();
    }
    let at = broker.now().latest.plus(secs(10));
    let fence = |state: &mut JournalState| {
        state.fence(at, at);
        encoded(state)
    };
    assert_eq!(fence(&mut restored), fence(&mut broker.state));
}

#[test]
fn only_the_claim_that_holds_a_task_settles_it() {
    let mut broker = TestBroker::new();
    broker.submit("a");
    let lost = broker.claim("w1", 1).remove(0);
    broker.pass(LEASE + secs(1));
    broker.tick();
    broker.pass(secs(5));
    let held = broker.claim("w2", 1).remove(0);
    let complete = || Settlement::complete(json!(1));
    assert_eq!(broker.settle(&lost, complete()), None);
    assert_eq!(broker.settle(&held, complete()).unwrap().status(), Status::Completed);
    let lines = broker.lines().len();
    assert_eq!(
        broker.settle(&held, complete()).unwrap().status(),
        Status::Completed,
        "a repeated settlement"
    );
    assert_eq!(broker.settle(&lost, complete()), None);
    assert_eq!(broker.lines().len(), lines);
}
