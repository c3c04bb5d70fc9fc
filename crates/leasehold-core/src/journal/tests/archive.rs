//! The archive of a broker without a store, and its tables.

use bytes::Bytes;
use proptest::prelude::*;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::broker::{TestBroker, minutes, secs};
use crate::filter::Filter;
use crate::ids::{HexName, TaskId};
use crate::journal::archive::{ArchiveDay, decode_archive, encode_archives};
use crate::journal::{
    ArchiveBatch, ArchiveLimits, ArchiveName, ArchiveRef, ArchiveTable, ArchiveWork, ArchivedTask,
    EncodedTask, JournalRecord, JournalState, JournalTask, ObjectPurge, Operated, SubmitRequest, TaskPlace,
    purges_archived,
};
use crate::limits::{ARCHIVE_DEPTH_MAX, ARCHIVE_MERGE_BYTES_MAX};
use crate::new_task::NewTask;
use crate::retention::Retention;
use crate::settlement::Settlement;
use crate::step::Event;
use crate::task::Status;
use crate::time::StoreTime;

/// Limits under which everything moves at once, and few objects are merged.
pub(super) const EAGER: ArchiveLimits =
    ArchiveLimits { age: Duration::ZERO, final_live: 100, small: 2, kept: Duration::ZERO };

/// Objects of the archive, as a store has them.
pub(super) type ArchiveBodies = BTreeMap<ArchiveName, Bytes>;

impl TestBroker {
    /// Archives what may be archived. `meanwhile` happens while each object is written.
    pub(super) fn archive_with(&mut self, limits: &ArchiveLimits, mut meanwhile: impl FnMut(&mut Self)) {
        let mut after = Some(None);
        while let Some(begin) = after {
            let page = self.state.archivable(begin, self.now(), limits);
            if let Some(id) = page.evicted {
                self.read_back(&id);
                continue;
            }
            let mut batches = page.batches;
            while let Some(batch) = batches.pop() {
                match self.state.archive().merge_with(&batch, limits) {
                    Some(merged) => self.write_archive(batch, merged, &mut meanwhile),
                    None => batches.extend(batch.split().map(|(one, two)| [one, two]).into_iter().flatten()),
                }
            }
            after = page.next.map(Some);
        }
        while let Some(merged) = self.state.archive().next_merge(limits) {
            self.write_archive(ArchiveBatch { tasks: Vec::new() }, merged, &mut meanwhile);
        }
    }

    pub(super) fn archive(&mut self) {
        // A time has surely passed only after it.
        self.pass(Duration::from_millis(1));
        self.archive_with(&EAGER, |_| {});
    }

    fn write_archive(
        &mut self,
        batch: ArchiveBatch,
        merged: Vec<ArchiveRef>,
        meanwhile: &mut impl FnMut(&mut Self),
    ) {
        let mut tasks: BTreeMap<_, _> =
            merged.iter().flat_map(|object| self.archived_in(object)).map(|task| (task.id(), task)).collect();
        tasks.extend(batch.tasks.iter().map(|task| (task.id(), task.clone())));
        self.put_archive(tasks, batch, merged, meanwhile);
    }

    fn put_archive(
        &mut self,
        tasks: BTreeMap<TaskId, EncodedTask>,
        batch: ArchiveBatch,
        merged: Vec<ArchiveRef>,
        meanwhile: &mut impl FnMut(&mut Self),
    ) {
        let tasks: Vec<_> = tasks.into_values().collect();
        let written = encode_archives(&tasks, || HexName::from_random(self.draw().into()));
        for object in &written {
            self.archive.insert(object.reference.name.clone(), object.body.clone());
        }
        meanwhile(self);
        let work = ArchiveWork { batch, merged, written };
        let decision = self.decided(|state, context| state.archive_written(work.clone(), context));
        assert!(self.log(decision).unwrap());
    }

    fn archived_in(&self, object: &ArchiveRef) -> Vec<EncodedTask> {
        decode_archive("object", &self.archive[&object.name], object).unwrap()
    }

    /// Looks an archived task up.
    pub(super) fn archived(&self, id: &TaskId) -> Option<ArchivedTask> {
        let objects = self.state.archived_in(id);
        assert!(objects.len() <= ARCHIVE_DEPTH_MAX, "{objects:?}");
        objects.iter().find_map(|object| {
            let task = self.archived_in(object).into_iter().find(|task| task.id() == *id)?;
            let task = JournalTask::decode(task.body()).unwrap();
            Some(ArchivedTask { object: object.name.clone(), task })
        })
    }

    /// Applies a retention to the archive.
    pub(super) fn purge_archive(&mut self, retention: &Retention) -> u64 {
        let (mut after, mut deleted) = (None, 0);
        loop {
            let object = self.state.archive().objects_after(after.as_ref()).next().cloned();
            let Some(object) = object else { return deleted };
            after = Some(object.name.clone());
            let context = self.context();
            let effect = ObjectPurge::of(&object, retention, &context);
            let mut kept = BTreeMap::new();
            let mut purged = Vec::new();
            for task in self.archived_in(&object) {
                if purges_archived(&JournalTask::decode(task.body()).unwrap(), retention, &context) {
                    purged.push(task.id());
                } else {
                    kept.insert(task.id(), task);
                }
            }
            match effect {
                ObjectPurge::Nothing => assert!(purged.is_empty()),
                ObjectPurge::Everything => assert!(kept.is_empty()),
                ObjectPurge::MustRead => {}
            }
            for id in &purged {
                self.objects.remove(id);
            }
            if !purged.is_empty() {
                deleted += purged.len() as u64;
                self.put_archive(kept, ArchiveBatch { tasks: Vec::new() }, vec![object], &mut |_| {});
            }
        }
    }

    /// Checks the archive, and returns its tasks: each is in one object, few objects cover an id, the counts are right.
    pub(super) fn check_archive(&self) -> BTreeMap<TaskId, JournalTask> {
        let table = self.state.archive();
        let (mut tasks, mut counts) = (BTreeMap::new(), BTreeMap::<Status, u64>::new());
        for object in table.objects() {
            let found = self.archived_in(object);
            assert_eq!(found.len() as u64, object.tasks());
            for task in found {
                assert!(table.covering(&task.id()).contains(object));
                *counts.entry(task.status()).or_default() += 1;
                let ended = task.time();
                assert!(object.earliest <= ended && ended <= object.latest);
                let task = JournalTask::decode(task.body()).unwrap();
                assert_eq!(tasks.insert(task.task.id, task), None, "a task is in two objects");
            }
            check_depth(table, &object.name.first());
        }
        assert_eq!(counts, table.counts());
        tasks
    }
}

fn check_depth(table: &ArchiveTable, id: &TaskId) {
    let covering = table.objects().filter(|object| object.name.covers(id)).count();
    assert!(covering <= ARCHIVE_DEPTH_MAX, "{covering} objects cover {id}");
}

/// A broker with completed tasks, of which the first ones are archived.
fn completed(archived: usize, live: usize) -> (TestBroker, Vec<TaskId>) {
    let mut broker = TestBroker::new();
    let mut ids = Vec::new();
    for number in 0..archived + live {
        ids.push(broker.submit("resize"));
        let claim = broker.claim("w1", 1).remove(0);
        broker.settle(&claim, Settlement::complete(json!(number)));
        broker.pass(secs(1));
        if number + 1 == archived {
            broker.archive();
        }
    }
    (broker, ids)
}

#[test]
fn a_final_task_leaves_the_live_state() {
    let (mut broker, ids) = completed(3, 2);
    broker.check();
    assert_eq!((broker.state.len(), broker.state.archive().len()), (2, 1));
    assert!(matches!(broker.state.place(&ids[4]).unwrap(), TaskPlace::Live(_)));
    let TaskPlace::Archived(objects) = broker.state.place(&ids[0]).unwrap() else { panic!("it is archived") };
    assert_eq!(objects.len(), 1);
    assert_eq!(broker.state.place(&TaskId::from_random(3)).unwrap(), TaskPlace::Archived(Vec::new()));
    let counts = broker.state.counts();
    assert_eq!(counts.archived, BTreeMap::from([(Status::Completed, 3)]));
    let line = broker.lines().into_iter().find(|line| line.contains("\"kind\":\"archive\"")).unwrap();
    assert!(line.contains("\"name\":\"20231114/"), "{line}");
    let mut again = Vec::new();
    JournalRecord::read(line.as_bytes()).unwrap().write(&mut again);
    assert_eq!(String::from_utf8(again).unwrap(), format!("{line}\n"));
}

#[test]
fn a_list_refers_to_the_objects_of_its_range() {
    let (broker, ids) = completed(3, 2);
    let all = Filter::default();
    let page = broker.state.list(&all, None, 10).unwrap();
    assert_eq!((page.tasks.len(), page.archived.objects.len(), page.next), (2, 1, None));
    assert!(ids.iter().all(|id| page.archived.includes(id)));
    let page = broker.state.list(&all, None, 1).unwrap();
    assert_eq!((page.tasks.len(), page.archived.objects.len(), page.next), (1, 1, Some(ids[4])));
    let page = broker.state.list(&all, page.next, 1).unwrap();
    assert_eq!((page.tasks.len(), page.archived.objects.len(), page.next), (1, 0, None));
    let failed = Filter { status: Some(Status::Failed), ..all };
    assert_eq!(broker.state.list(&failed, None, 10).unwrap().archived.objects, []);
}

#[test]
fn a_task_with_a_key_is_archived_when_the_key_has_expired() {
    let mut broker = TestBroker::new();
    let hour = minutes(60);
    let key = crate::unique::UniqueKey { lifetime: hour, ..crate::unique::UniqueKey::new("k") };
    let id = broker.submit_task(NewTask::new("a", json!(1)).unwrap(), Some(key.clone())).unwrap().id;
    let claim = broker.claim("w1", 1).remove(0);
    broker.settle(&claim, Settlement::complete(json!(1)));
    broker.pass(minutes(59));
    broker.archive();
    assert_eq!(broker.state.len(), 1);
    broker.pass(minutes(2));
    broker.archive();
    assert_eq!(broker.state.len(), 0);
    broker.check();
    let second = broker.submit_task(NewTask::new("a", json!(2)).unwrap(), Some(key)).unwrap();
    assert!(second.is_new && second.id != id);
    broker.check();
}

#[test]
fn new_and_excess_final_tasks() {
    let (broker, _) = completed(0, 5);
    let limits = ArchiveLimits { age: minutes(5), final_live: 3, ..ArchiveLimits::default() };
    let tasks = |limits: &ArchiveLimits, now| {
        let page = broker.state.archivable(None, now, limits);
        page.batches.iter().map(|batch| batch.tasks.len()).sum::<usize>()
    };
    assert_eq!(tasks(&limits, broker.now()), 2, "the oldest of too many");
    let later = crate::Now::exactly(broker.now().latest.plus(minutes(6)));
    assert_eq!(tasks(&limits, later), 5);
}

#[test]
fn operations_on_archived_tasks() {
    let mut broker = TestBroker::new();
    let id = broker.submit("resize");
    let claim = broker.claim("w1", 1).remove(0);
    broker.settle(&claim, Settlement::Fail { error: "oh".into(), retryable: false, after: None });
    broker.archive();
    assert!(matches!(broker.operate(id, &Event::Cancel).unwrap(), Operated::Rejected(..)));
    assert!(
        broker
            .settle(&claim, Settlement::Fail { error: "oh".into(), retryable: false, after: None })
            .is_some()
    );
    assert!(matches!(broker.operate(id, &Event::Retry).unwrap(), Operated::Done(_)));
    broker.check();
    assert_eq!(broker.state.counts().archived, BTreeMap::new());
    let claim = broker.claim("w1", 1).remove(0);
    broker.settle(&claim, Settlement::complete(json!(1)));
    broker.archive();
    broker.check();
    assert_eq!(broker.archived(&id).unwrap().task.task.status(), Status::Completed);
    broker.take_over();
    broker.check();
}

#[test]
fn a_submit_that_is_repeated_finds_its_archived_task() {
    let (broker, ids) = completed(1, 0);
    let archived = broker.archived(&ids[0]).unwrap();
    let request = |input| {
        let new_task = NewTask::new("resize", input).unwrap();
        SubmitRequest { id: ids[0], new_task, key: None }
    };
    let again = broker.state.submit_archived(&archived, &request(json!(1)));
    assert!(again.records.is_empty() && again.answer.unwrap().is_new);
    assert!(broker.state.submit_archived(&archived, &request(json!(2))).answer.is_err());
    let imported = JournalTask { task: archived.task.task.clone(), key: None, claim: None };
    assert!(!broker.state.import_archived(&archived, &imported).answer.unwrap());
}

#[test]
fn a_task_that_changes_while_it_is_copied_stays_live() {
    let mut broker = TestBroker::new();
    let ids = [broker.submit("resize"), broker.submit("resize")];
    for id in ids {
        broker.operate(id, &Event::Cancel).unwrap();
    }
    let mut changed = Some(ids[0]);
    broker.pass(secs(1));
    broker.archive_with(&EAGER, |broker| {
        if let Some(id) = changed.take() {
            broker.operate(id, &Event::Retry).unwrap();
        }
    });
    broker.check();
    assert_eq!(broker.state.get(&ids[0]).unwrap().unwrap().status(), Status::Pending);
    assert_eq!(broker.state.archive().objects().next().unwrap().outdated, BTreeSet::from([ids[0]]));
}

#[test]
fn names_are_read_as_they_are_written() {
    let id = |millis| TaskId::from_time(StoreTime::from_millis(millis), 5);
    let name = ArchiveName::new(id(1_700_000_000_000), id(1_700_000_000_900), HexName::from_random(7));
    assert_eq!(name.to_string().parse::<ArchiveName>().unwrap(), name);
    assert_eq!(crate::keys::parse_journal_archive(&crate::keys::journal_archive(&name)), Some(name.clone()));
    let undated = ArchiveName::new(TaskId::from_random(1), TaskId::from_random(9), HexName::from_random(7));
    assert_eq!(undated.day(), ArchiveDay::UNDATED);
    assert_eq!(undated.to_string().parse::<ArchiveName>().unwrap(), undated);
    let text = name.to_string();
    for wrong in [&text[1..], &text[..text.len() - 1], "20231114/", "", &text.replace("20231114", "20231115")]
    {
        wrong.parse::<ArchiveName>().unwrap_err();
    }
}

#[test]
fn corrupt_changes_of_the_archive_are_explained() {
    let (broker, ids) = completed(2, 1);
    let id = |id: &TaskId| id.to_string();
    let object = broker.state.archive().objects().next().unwrap();
    let json = serde_json::to_string(object).unwrap();
    let (name, at) = (&object.name, "\"at\":\"2023-11-14T22:13:20Z\"");
    let other = format!("20231114/{}-{}-{:032x}", ids[0], ids[0], 99);
    let (live, archived) = (id(&ids[2]), id(&ids[0]));
    let changes = [
        format!(r#"{at},"added":[{json}]"#),
        format!(r#"{at},"removed":["{other}"]"#),
        format!(r#"{at},"deleted":["{name}"]"#),
        format!(r#"{at},"tasks":[{{"id":"{live}","rev":2}}]"#),
        format!(r#"{at},"tasks":[{{"id":"{archived}","rev":3}}]"#),
        format!(r#"{at},"outdated":[{{"object":"{name}","id":"{live}","status":"completed"}}]"#),
        format!(r#"{at},"outdated":[{{"object":"{name}","id":"{archived}","status":"failed"}}]"#),
        format!(r#"{at},"removed":["x"]"#),
        format!(r#"{at},"moved":[]"#),
        r#""added":[]"#.to_owned(),
    ];
    let errors: Vec<_> = changes
        .iter()
        .map(|change| {
            let mut state = broker.replayed();
            let record = format!(r#"{{"kind":"archive",{change}}}"#);
            state.replay(record.as_bytes()).unwrap_err().to_string()
        })
        .collect();
    insta::with_settings!({filters => vec![(r"[0-9a-f]{8}-[0-9a-f-]{27}", "[id]")]}, {
        insta::assert_snapshot!(errors.join("\n"));
    });
}

/// A table of objects without bodies: lengths and ranges are all that plans depend on.
fn reference(number: u128, [first, last]: [i64; 2], bytes: u64) -> ArchiveRef {
    let id = |millis: i64| TaskId::from_time(StoreTime::from_millis(1_700_000_000_000 + millis), 0);
    ArchiveRef {
        name: ArchiveName::new(id(first), id(last), HexName::from_random(number)),
        hash: crate::journal::CommitHash::NONE,
        bytes,
        counts: BTreeMap::from([(Status::Completed, 1)]),
        earliest: StoreTime::from_millis(0),
        latest: StoreTime::from_millis(0),
        keys_until: None,
        outdated: BTreeSet::new(),
    }
}

proptest! {
    /// Objects of random ranges and lengths are added as a broker does: the rules of depth and of small objects hold, and no
    /// merge is too large.
    #[test]
    fn any_sequence_of_batches_keeps_the_rules(
        batches in prop::collection::vec((0i64..100_000, 0i64..40_000, 1u64..4_000_000, any::<bool>()), 1..60),
    ) {
        let limits = ArchiveLimits { small: 4, ..ArchiveLimits::default() };
        let mut state = JournalState::default();
        for (number, (first, width, bytes, is_wide)) in batches.into_iter().enumerate() {
            let width = if is_wide { width } else { width / 1_000 };
            let ends = [first, first + width].map(|millis| {
                let id = TaskId::from_time(StoreTime::from_millis(1_700_000_000_000 + millis), 0);
                let mut task = crate::testing::pending();
                task.id = id;
                JournalTask { task, key: None, claim: None }.encode()
            });
            let mut open = vec![ArchiveBatch { tasks: ends.to_vec() }];
            while let Some(batch) = open.pop() {
                let Some(merged) = state.archive().merge_with(&batch, &limits) else {
                    open.extend(batch.split().map(|(one, two)| [one, two]).into_iter().flatten());
                    continue;
                };
                let total = merged.iter().map(|object| object.bytes).sum::<u64>();
                prop_assert!(total <= ARCHIVE_MERGE_BYTES_MAX);
                let firsts = merged.iter().map(|object| object.name.first()).chain([batch.tasks[0].id()]);
                let lasts = merged.iter().map(|object| object.name.last()).chain([batch.tasks[batch.tasks.len() - 1].id()]);
                let millis = |id: TaskId| id.time().unwrap().as_millis() - 1_700_000_000_000;
                let (begin, end) = (millis(firsts.min().unwrap()), millis(lasts.max().unwrap()));
                let pieces = i64::try_from((total + bytes).div_ceil(4 * 1_024 * 1_024)).unwrap();
                let step = (end - begin) / pieces + 1;
                let added = (0..pieces).filter(|piece| begin + piece * step <= end).map(|piece| {
                    let range = [begin + piece * step, (begin + (piece + 1) * step - 1).min(end)];
                    let number = (number as u128) * 1_000 + u128::try_from(piece).unwrap() + (open.len() as u128) * 100;
                    reference(number, range, (total + bytes) / u64::try_from(pieces).unwrap())
                });
                let mut change = crate::journal::ArchiveChange::at(StoreTime::from_millis(0));
                change.added = added.collect();
                change.removed = merged.into_iter().map(|object| object.name).collect();
                state.apply(JournalRecord::Archive(Box::new(change))).unwrap();
            }
            for object in state.archive().objects() {
                check_depth(state.archive(), &object.name.first());
            }
        }
    }
}
