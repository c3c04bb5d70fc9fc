//! Evicted tasks: a state with them answers as one without, and tells what it needs.

use serde_json::json;
use std::ops::Bound;
use std::time::Duration;

use super::archive::EAGER;
use super::broker::{TestBroker, encoded, minutes, secs};
use crate::error::Kind;
use crate::filter::Filter;
use crate::ids::TaskId;
use crate::journal::{EncodedTask, JournalState, LiveBody};
use crate::new_task::NewTask;
use crate::retention::Retention;
use crate::settlement::Settlement;
use crate::task::Status;
use crate::unique::UniqueKey;

/// Number of tasks of a chunk of these tests.
const CHUNK: usize = 3;

impl TestBroker {
    /// Evicts some tasks, and keeps their bodies as chunks do.
    pub(super) fn evict(&mut self, first: usize, tasks: usize) {
        let ids: Vec<_> = self.state.tasks.keys().copied().collect();
        let Some(first) = first.checked_rem(ids.len()) else { return };
        let end = ids.get(first + tasks).copied();
        for (id, body) in self.state.bodies_from(Some(ids[first])).take(tasks) {
            if let LiveBody::Resident(body) = body {
                self.chunks.insert(id, EncodedTask::read(&body).unwrap());
            }
        }
        self.state.evict(ids[first], end);
    }

    /// Reads back a few tasks, if the first of them is evicted.
    pub(super) fn read_back(&mut self, id: &TaskId) {
        if !self.state.is_evicted(id) {
            return;
        }
        let mut ids = self.state.tasks.range(id..).map(|(id, _)| *id);
        let chunk: Vec<_> = ids.by_ref().take(CHUNK).filter_map(|id| self.chunks.get(&id)).cloned().collect();
        let end = ids.next();
        let changed = chunk.into_iter().filter(|task| self.state.is_evicted(&task.id())).collect();
        self.state.read_back(*id, end, changed).unwrap();
        assert!(!self.state.is_evicted(id));
    }

    fn read_all_back(&mut self) {
        while let Some(id) = self.first_evicted() {
            self.read_back(&id);
        }
    }

    fn first_evicted(&self) -> Option<TaskId> {
        self.state.tasks.keys().find(|id| self.state.is_evicted(id)).copied()
    }

    /// Checks that lists, exports and counts are those of the state without evicted tasks, and the number of bytes in memory.
    /// Then all tasks are in memory.
    pub(super) fn check_evicted(&mut self) {
        assert_eq!(self.state.counts(), self.twin.counts());
        let evicted: Vec<_> = self.state.tasks.keys().filter(|id| self.state.is_evicted(id)).collect();
        assert_eq!(evicted.len(), self.state.evicted());
        for id in self.state.tasks.keys() {
            assert_eq!(self.state.rev(id).unwrap(), self.twin.rev(id).unwrap());
        }
        self.check_lists();
        self.read_all_back();
        assert_eq!(encoded(&self.state), encoded(&self.twin));
        assert_eq!(self.state.evicted(), 0);
        assert_eq!(self.state.resident_bytes(), self.twin.resident_bytes());
    }

    /// Lists and exports have the same pages.
    fn check_lists(&mut self) {
        for status in [None, Some(Status::Pending), Some(Status::Completed)] {
            let filter = Filter { status, ..Filter::default() };
            let (mut listed, mut next) = (Vec::new(), Some(None));
            while let Some(first) = next {
                while let Some(id) = self.state.list_needs(&filter, first, 4) {
                    self.read_back(&id);
                }
                let page = self.state.list(&filter, first, 4).unwrap();
                assert_eq!(page, self.twin.list(&filter, first, 4).unwrap());
                next = page.next.map(Some);
                assert!(
                    page.next.is_none_or(|next| first.is_none_or(|first| first < next)),
                    "it gets further"
                );
                listed.extend(page.tasks);
            }
            assert_eq!(listed, self.twin.list(&filter, None, usize::MAX).unwrap().tasks);
        }
        let (mut exported, mut next) = (Vec::new(), Some(None));
        while let Some(first) = next {
            while let Some(id) = self.state.export_needs(first, 4) {
                self.read_back(&id);
            }
            let page = self.state.export(first, 4).unwrap();
            assert_eq!(page, self.twin.export(first, 4).unwrap());
            assert!(page.tasks.len() <= 4 && (page.next.is_none() || !page.tasks.is_empty()));
            next = page.next.map(Some);
            exported.extend(page.tasks);
        }
        assert_eq!(exported, self.twin.export(None, usize::MAX).unwrap().tasks);
    }
}

fn broker(tasks: usize) -> (TestBroker, Vec<TaskId>) {
    let mut broker = TestBroker::new();
    let ids =
        (0..tasks).map(|number| broker.submit_input("resize", json!("x".repeat(number * 100)))).collect();
    (broker, ids)
}

#[test]
fn an_evicted_task_takes_no_bytes_and_is_counted_found_and_ordered() {
    let (mut broker, ids) = broker(9);
    let before = broker.state.resident_bytes();
    assert!(before > 3_600, "{before}");
    broker.evict(2, 5);
    assert_eq!(broker.state.evicted(), 5);
    let bytes = |state: &JournalState, id: TaskId| {
        let Some((_, LiveBody::Evicted { bytes, rev: 1 })) = state.bodies_from(Some(id)).next() else {
            panic!()
        };
        bytes as u64
    };
    let evicted: u64 = ids[2..7].iter().map(|id| bytes(&broker.state, *id)).sum();
    assert_eq!(broker.state.resident_bytes() + evicted, before);
    let claimed = broker.claim("w1", 9);
    assert_eq!(claimed.iter().map(|claim| claim.task).collect::<Vec<_>>(), ids);
    assert_eq!((broker.state.resident_bytes(), broker.state.evicted()), (0, 0), "running tasks are parsed");
    broker.check();
}

#[test]
fn a_claim_ends_before_an_evicted_task_and_others_end_at_once() {
    let (mut broker, ids) = broker(3);
    broker.evict(1, 1);
    let request = |slots: u64| {
        let lease_ids = (0..slots).map(|number| crate::ids::HexName::from_random(number.into())).collect();
        let (types, worker) = (crate::ids::TaskTypes::all(), super::broker::worker("w1"));
        crate::journal::ClaimRequest { worker, types, lease: minutes(1), lease_ids }
    };
    let claimed = broker.state.claim(&request(3), &broker.context()).answer.unwrap();
    assert_eq!((claimed.tasks.len(), claimed.evicted), (1, Some(ids[1])));
    let claimed = broker.state.claim(&request(1), &broker.context()).answer.unwrap();
    assert_eq!((claimed.tasks.len(), claimed.evicted), (1, None));
    assert_eq!(broker.state.get(&ids[1]).unwrap_err().kind(), Kind::Internal, "it was not read back");
    broker.check();
}

#[test]
fn a_purge_and_an_archive_begin_with_the_evicted_task_that_they_need() {
    let (mut broker, ids) = broker(2);
    for claim in broker.claim("w1", 2) {
        broker.settle(&claim, Settlement::complete(json!(1)));
        broker.pass(secs(1));
    }
    broker.pass(Duration::from_hours(48));
    broker.evict(1, 1);
    let retention = Retention { statuses: Vec::new(), older_than: secs(0) };
    let decision = broker.state.purge(&retention, None, 9, &broker.context());
    let page = decision.answer.unwrap();
    assert_eq!((decision.records.len(), page.evicted), (1, None), "the page ends before it");
    let second = broker.state.purge(&retention, page.next, 9, &broker.context());
    assert_eq!((second.records.len(), second.answer.unwrap().evicted), (0, Some(ids[1])));
    let page = broker.state.archivable(None, broker.now(), &EAGER);
    assert_eq!((page.batches.len(), page.evicted), (1, None));
    let page = broker.state.archivable(page.next, broker.now(), &EAGER);
    assert_eq!((page.batches.len(), page.next, page.evicted), (0, None, Some(ids[1])));
    assert_eq!(broker.purge(secs(0)), 2);
    broker.check();
}

#[test]
fn the_key_of_an_evicted_task_is_reserved_and_freed_with_it() {
    let mut broker = TestBroker::new();
    let new_task = || NewTask::new("resize", json!(1)).unwrap();
    let key = || UniqueKey { lifetime: minutes(60), ..UniqueKey::new("a".to_owned()) };
    let id = broker.submit_task(new_task(), Some(key())).unwrap().id;
    broker.evict(0, 1);
    let again = broker.submit_task(new_task(), Some(key())).unwrap();
    assert_eq!((again.id, again.existing), (id, Some(Status::Pending)));
    let claim = broker.claim("w1", 1).remove(0);
    broker.settle(&claim, Settlement::complete(json!(1)));
    broker.pass(minutes(61));
    broker.archive_with(&EAGER, |broker| broker.evict(0, 1));
    assert!(broker.state.tasks.is_empty() && broker.state.indexes.keys.is_empty());
    assert_eq!(broker.state.evicted(), 0);
    assert_ne!(broker.submit_task(new_task(), Some(key())).unwrap().id, id);
    broker.check();
}

#[test]
fn a_chunk_without_the_task_as_it_was_is_corrupt() {
    let (mut broker, ids) = broker(2);
    let state_of =
        |broker: &TestBroker| broker.state.tasks.range((Bound::Included(ids[0]), Bound::Unbounded)).count();
    assert_eq!(state_of(&broker), 2);
    broker.evict(0, 2);
    let error = broker.state.read_back(ids[0], None, vec![broker.chunks[&ids[0]].clone()]).unwrap_err();
    assert!(error.kind() == Kind::Corrupt && error.to_string().contains(&ids[1].to_string()), "{error}");
    let mut task = crate::journal::JournalTask::decode(broker.chunks[&ids[1]].body()).unwrap();
    task.task.rev += 1;
    let error = broker.state.read_back(ids[1], None, vec![task.encode()]).unwrap_err();
    assert!(error.to_string().contains("revision 2, not 1"), "{error}");
    broker.read_all_back();
    broker.check();
}

#[test]
fn a_commit_needs_the_evicted_tasks_that_it_changes() {
    let (mut broker, ids) = broker(3);
    let mut ahead = broker.replayed();
    broker.claim("w1", 2);
    broker.submit("crop");
    let lines = broker.lines()[3..].join("\n");
    assert_eq!(ahead.commit_needs(lines.as_bytes()), None);
    ahead.evict(ids[1], None);
    assert_eq!(ahead.commit_needs(lines.as_bytes()), Some(ids[1]));
    assert_eq!(ahead.replay(lines.as_bytes()).unwrap_err().kind(), Kind::Internal);
}
