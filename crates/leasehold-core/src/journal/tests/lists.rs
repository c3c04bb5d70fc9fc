//! Reads: lists, ids, counts.

use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};

use super::broker::{TestBroker, minutes, secs, worker};
use crate::filter::Filter;
use crate::ids::TaskIdPrefix;
use crate::new_task::{NewTask, Start};
use crate::retention::{Purged, Retention};
use crate::settlement::Settlement;
use crate::task::Status;
use crate::unique::UniqueKey;

#[test]
fn a_list_has_pages_in_the_order_of_the_ids() {
    let mut broker = TestBroker::new();
    let all: Vec<_> = (0..10).map(|n| broker.submit(["a", "b"][n % 2])).collect();
    let tagged =
        NewTask { tags: [("customer".into(), "7".into())].into(), ..NewTask::new("b", json!(1)).unwrap() };
    let tagged = broker.submit_task(tagged, None).unwrap().id;
    broker.claim("w1", 3);
    let list = |filter: &Filter| {
        let (mut ids, mut pages, mut after) = (Vec::new(), 0, None);
        loop {
            let page = broker.state.list(filter, after, 4).unwrap();
            ids.extend(page.tasks.iter().map(|task| task.id));
            pages += 1;
            after = page.next;
            if after.is_none() {
                return (ids, pages);
            }
        }
    };
    let everything = Filter::default();
    assert_eq!(list(&everything), ([all.clone(), vec![tagged]].concat(), 3));
    let of_type = Filter { task_type: Some("a".into()), ..Filter::default() };
    assert_eq!(list(&of_type).0, all.iter().copied().step_by(2).collect::<Vec<_>>());
    let running = Filter { status: Some(Status::Running), ..Filter::default() };
    assert_eq!(list(&running), (all[..3].to_vec(), 3));
    let with_tag = Filter { tags: [("customer".into(), "7".into())].into(), ..Filter::default() };
    assert_eq!(list(&with_tag).0, [tagged]);
}

#[test]
fn an_id_is_found_by_its_first_characters() {
    let mut broker = TestBroker::new();
    let first = broker.submit("a");
    broker.pass(minutes(10_000));
    let second = broker.submit("a");
    let find = |text: &str| broker.state.find(&text.parse::<TaskIdPrefix>().unwrap()).0;
    assert_eq!(find(&first.to_string()[..9]), BTreeSet::from([first]));
    assert_eq!(find(&second.to_string()[..12]), BTreeSet::from([second]));
    assert_eq!(find(&first.to_string()[..4]), BTreeSet::from([first, second]));
    assert_eq!(find("ffff"), BTreeSet::new());
}

#[test]
fn counts_are_by_type_and_status() {
    let mut broker = TestBroker::new();
    for _ in 0..3 {
        broker.submit("a");
    }
    broker.submit("b");
    let later = NewTask { start: Start::After(minutes(5)), ..NewTask::new("b", json!(1)).unwrap() };
    broker.submit_task(later, None).unwrap();
    let claims = broker.claim("w1", 2);
    broker.settle(&claims[0], Settlement::complete(json!(1)));
    broker.pass(secs(90));
    let counts = broker.state.counts();
    assert_eq!((counts.due, counts.scheduled), (2, 1));
    assert_eq!(counts.oldest_due.unwrap().to_string(), "20231114-2213");
    let a = BTreeMap::from([(Status::Pending, 1), (Status::Running, 1), (Status::Completed, 1)]);
    let b = BTreeMap::from([(Status::Pending, 2)]);
    let name = |name| crate::Name::checked("task type", name).unwrap();
    assert_eq!(counts.types, BTreeMap::from([(name("a"), a), (name("b"), b)]));
    let held: Vec<_> = broker.state.workers().map(|(worker, tasks)| (worker.clone(), tasks.len())).collect();
    assert_eq!(held, [(worker("w1"), 1)]);
}

#[test]
fn a_type_without_tasks_is_forgotten() {
    let mut broker = TestBroker::new();
    let day = minutes(24 * 60);
    for round in 0..50 {
        broker.submit(&format!("type-{round}"));
        let claim = broker.claim("w1", 1).remove(0);
        broker.settle(&claim, Settlement::complete(json!(1)));
        broker.pass(day + secs(1));
        assert_eq!(broker.purge(secs(0)), 1);
    }
    assert!(broker.state.is_empty());
    assert_eq!(broker.state.counts().types, BTreeMap::new());
    let types = format!("{:?}", broker.state.indexes.types);
    assert!(types.len() < 400, "{types}");
}

#[test]
fn a_purge_keeps_new_tasks_and_those_whose_key_can_be_used() {
    let mut broker = TestBroker::new();
    let (hour, day) = (minutes(60), minutes(24 * 60));
    let plain = broker.submit("a");
    let keyed = NewTask::new("a", json!(1)).unwrap();
    let keyed =
        broker.submit_task(keyed, Some(UniqueKey { lifetime: day, ..UniqueKey::new("k") })).unwrap().id;
    let waiting = NewTask { start: Start::After(day * 9), ..NewTask::new("a", json!(1)).unwrap() };
    let waiting = broker.submit_task(waiting, None).unwrap().id;
    for claim in broker.claim("w1", 9) {
        broker.settle(&claim, Settlement::complete(json!(1)));
    }
    let purge = |broker: &TestBroker, id, statuses: &[Status], older_than| {
        let retention = Retention { statuses: statuses.to_vec(), older_than };
        broker.state.purge_task(&id, &retention, &broker.context()).answer.unwrap()
    };
    broker.pass(hour);
    assert_eq!(purge(&broker, plain, &[], secs(0)), Purged::TooNew);
    assert_eq!(purge(&broker, plain, &[], hour * 2), Purged::Kept);
    broker.pass(day);
    assert_eq!(purge(&broker, plain, &[Status::Failed], secs(0)), Purged::Kept);
    assert_eq!(purge(&broker, plain, &[Status::Completed], secs(0)), Purged::Deleted);
    assert_eq!(purge(&broker, keyed, &[], secs(0)), Purged::Kept);
    assert_eq!(purge(&broker, waiting, &[], secs(0)), Purged::Kept);
    assert_eq!(broker.purge(secs(0)), 1);
    assert_eq!(broker.state.get(&plain).unwrap(), None);
    broker.pass(day);
    assert_eq!(broker.purge(secs(0)), 1, "the key has expired a day ago");
    assert_eq!(broker.state.len(), 1);
    broker.check();
}
