//! A broker without a store: its state, its log, the clock, and the workers.

use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{Debug, Write};
use std::time::Duration;

use super::archive::ArchiveBodies;
use crate::ids::{HexName, LeaseId, Name, TaskId, TaskTypes, WorkerId};
use crate::journal::decide::ClaimToRenew;
use crate::journal::index::TaskIndexes;
use crate::journal::state::{LiveTask, TaskBody};
use crate::journal::{
    ClaimRequest, EncodedTask, JournalContext, JournalDecision, JournalRecord, JournalState, JournalTask,
    LiveBody, LogPosition, Operated, PurgeCursor, PurgePage, RenewRequest, RenewedClaim, SettleRequest,
    SnapshotManifest, SubmitRequest, Ticked,
};
use crate::new_task::{NewTask, Submitted};
use crate::retention::Retention;
use crate::settlement::Settlement;
use crate::step::{Event, Rejected, StepContext, step};
use crate::task::{State, Status, Task};
use crate::testing::now;
use crate::time::{Now, StoreTime};
use crate::unique::UniqueKey;

pub(super) const LEASE: Duration = Duration::from_mins(1);

pub(super) fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

pub(super) fn minutes(minutes: u64) -> Duration {
    Duration::from_mins(minutes)
}

pub(super) fn worker(name: &str) -> WorkerId {
    Name::checked("worker id", name).unwrap()
}

/// A claim that some worker has, or has lost.
#[derive(Debug, Clone)]
pub(super) struct MadeClaim {
    pub(super) worker: WorkerId,
    pub(super) task: TaskId,
    pub(super) lease_id: LeaseId,
    /// Time until which the worker trusts it.
    pub(super) promised: StoreTime,
}

/// Part of a log.
enum LogPart {
    Lines(Vec<u8>),
    Fence { at: StoreTime, trusted_until: StoreTime },
}

pub(super) struct TestBroker {
    /// State of which tasks are evicted now and then.
    pub(super) state: JournalState,
    /// State with the same records of which none is: both give the same answers.
    pub(super) twin: JournalState,
    /// Tasks that were evicted, as their chunks have them.
    pub(super) chunks: BTreeMap<TaskId, EncodedTask>,
    pub(super) claims: Vec<MadeClaim>,
    /// Tasks as the object layout has them: every event by `step`, renewals included.
    pub(super) objects: BTreeMap<TaskId, Task>,
    /// Objects of the archive.
    pub(super) archive: ArchiveBodies,
    log: Vec<LogPart>,
    now: Now,
    random: u64,
}

impl TestBroker {
    pub(super) fn new() -> Self {
        let (claims, objects, log) = (Vec::new(), BTreeMap::new(), Vec::new());
        Self {
            state: JournalState::default(),
            twin: JournalState::default(),
            chunks: BTreeMap::new(),
            claims,
            objects,
            archive: ArchiveBodies::new(),
            log,
            now: now(),
            random: 0,
        }
    }

    pub(super) fn now(&self) -> Now {
        self.now
    }

    pub(super) fn pass(&mut self, time: Duration) {
        self.now.earliest = self.now.earliest.plus(time);
        self.now.latest = self.now.latest.plus(time);
    }

    /// Makes the time uncertain.
    pub(super) fn blur(&mut self, width: Duration) {
        self.now.latest = self.now.earliest.plus(width);
    }

    pub(super) fn context(&self) -> JournalContext {
        JournalContext { by: "tester".into(), now: self.now, random: u64::MAX / 2 }
    }

    pub(super) fn draw(&mut self) -> u64 {
        self.random += 1;
        self.random
    }

    pub(super) fn fresh_id(&mut self) -> TaskId {
        let random = self.draw();
        TaskId::from_time(self.now.earliest, random.into())
    }

    /// Decides by both states, which must agree.
    pub(super) fn decided<T: Debug>(
        &self,
        decide: impl Fn(&JournalState, &JournalContext) -> JournalDecision<T>,
    ) -> JournalDecision<T> {
        let context = self.context();
        let (ours, theirs) = (decide(&self.state, &context), decide(&self.twin, &context));
        assert_eq!(format!("{ours:?}"), format!("{theirs:?}"));
        ours
    }

    /// As [`Self::decided`]; reads back the task that the decision needs.
    fn decided_with<T: Debug>(
        &mut self,
        decide: impl Fn(&JournalState, &JournalContext) -> JournalDecision<T>,
        needs: impl Fn(&T) -> Option<TaskId>,
    ) -> JournalDecision<T> {
        loop {
            let decision = decide(&self.state, &self.context());
            match decision.answer.as_ref().ok().and_then(&needs) {
                Some(id) => self.read_back(&id),
                None => return self.decided(decide),
            }
        }
    }

    /// Logs a decision and returns its answer.
    pub(super) fn log<T>(&mut self, decision: JournalDecision<T>) -> crate::Result<T> {
        let (mut lines, renewals) = (Vec::new(), decision.renewals.clone());
        let logged = self.state.log(decision, &mut lines).unwrap();
        self.twin.replay(&lines).unwrap();
        for (id, renewal) in renewals {
            self.twin.renew_claim(id, renewal);
        }
        assert_eq!(lines.split_inclusive(|byte| *byte == b'\n').count(), logged.records as usize);
        if !lines.is_empty() {
            self.log.push(LogPart::Lines(lines));
        }
        logged.answer
    }

    pub(super) fn submit(&mut self, task_type: &str) -> TaskId {
        self.submit_input(task_type, json!(1))
    }

    pub(super) fn submit_input(&mut self, task_type: &str, input: Value) -> TaskId {
        self.submit_task(NewTask::new(task_type, input).unwrap(), None).unwrap().id
    }

    pub(super) fn submit_expiring(&mut self, after: Duration) -> TaskId {
        let new_task = NewTask { expires_in: Some(after), ..NewTask::new("resize", json!(1)).unwrap() };
        self.submit_task(new_task, None).unwrap().id
    }

    pub(super) fn submit_task(
        &mut self,
        new_task: NewTask,
        key: Option<UniqueKey>,
    ) -> crate::Result<Submitted> {
        let id = self.fresh_id();
        let request = SubmitRequest { id, new_task, key };
        while let Some(id) = self.state.submit_needs(&request) {
            self.read_back(&id);
        }
        let decision = self.decided(|state, context| state.submit(request.clone(), context));
        if let [JournalRecord::Submit(task)] = &decision.records[..] {
            self.objects.insert(id, JournalTask::decode(task.body()).unwrap().task);
        }
        let submitted = self.log(decision)?;
        if submitted.is_retried {
            self.object_event(submitted.id, &Event::Retry, "tester").unwrap();
        }
        Ok(submitted)
    }

    /// Claims due tasks of all types.
    pub(super) fn claim(&mut self, name: &str, slots: usize) -> Vec<MadeClaim> {
        self.claim_types(name, slots, TaskTypes::all())
    }

    pub(super) fn claim_types(&mut self, name: &str, slots: usize, types: TaskTypes) -> Vec<MadeClaim> {
        let lease_ids: Vec<_> = (0..slots).map(|_| HexName::from_random(self.draw().into())).collect();
        let request = ClaimRequest { worker: worker(name), types, lease: LEASE, lease_ids };
        assert_eq!(self.state.advance(self.now), self.twin.advance(self.now));
        let claim = |state: &JournalState, context: &_| state.claim(&request, context);
        let decision = self.decided_with(claim, |claimed| claimed.evicted);
        let tasks = self.log(decision).unwrap().tasks;
        let mut made = Vec::new();
        for task in tasks {
            let State::Running(claim) = &task.state else { panic!("expected a running task") };
            let (promised, lease_id) = (claim.expires_at, task.lease_id.clone().unwrap());
            let event =
                Event::Claim { worker: worker(name), lease_id: lease_id.clone(), lease: request.lease };
            self.object_event(task.id, &event, name).unwrap();
            made.push(MadeClaim { worker: worker(name), task: task.id, lease_id, promised });
        }
        self.claims.extend(made.clone());
        made
    }

    /// Renews all claims that a worker has ever made.
    pub(super) fn renew(&mut self, name: &str) -> Vec<Option<RenewedClaim>> {
        self.renew_with(name, None)
    }

    pub(super) fn renew_with(&mut self, name: &str, progress: Option<&Value>) -> Vec<Option<RenewedClaim>> {
        let mine: Vec<_> = self.claims.iter().filter(|claim| claim.worker == worker(name)).cloned().collect();
        let claims = mine.iter().map(|claim| ClaimToRenew {
            task: claim.task,
            lease_id: claim.lease_id.clone(),
            progress: progress.cloned(),
        });
        let request = RenewRequest { worker: worker(name), claims: claims.collect() };
        let decision = self.decided(|state, context| state.renew(request.clone(), context));
        let answers = self.log(decision).unwrap();
        for (claim, answer) in mine.iter().zip(&answers) {
            let lease_id = claim.lease_id.clone();
            let event = Event::Renew { lease_id, lease: LEASE, progress: progress.cloned() };
            let renewed = self.object_event(claim.task, &event, name);
            assert_eq!(renewed.is_ok(), answer.is_some(), "{renewed:?}");
            if let Some(answer) = answer {
                let made = self.claims.iter_mut().find(|made| made.lease_id == claim.lease_id).unwrap();
                made.promised = answer.expires_at;
            }
        }
        answers
    }

    pub(super) fn settle(&mut self, claim: &MadeClaim, settlement: Settlement) -> Option<Task> {
        let request = SettleRequest {
            task: claim.task,
            lease_id: claim.lease_id.clone(),
            settlement: settlement.clone(),
        };
        let archived = self.archived(&claim.task);
        self.read_back(&claim.task);
        let decision = self.decided(|state, context| match archived.clone() {
            Some(archived) => state.settle_archived(archived, request.clone(), context),
            None => state.settle(request.clone(), context),
        });
        let settled = self.log(decision).unwrap();
        let event = settlement.event(claim.lease_id.clone(), self.now);
        let by = claim.worker.to_string();
        match self.object_event(claim.task, &event, &by) {
            Ok(()) | Err(Rejected::AlreadyApplied) => assert!(settled.is_some()),
            Err(_) => assert!(settled.is_none()),
        }
        settled
    }

    pub(super) fn operate(&mut self, id: TaskId, event: &Event) -> crate::Result<Operated> {
        let archived = self.archived(&id);
        self.read_back(&id);
        let decision = self.decided(|state, context| match archived.clone() {
            Some(archived) => state.operate_archived(archived, event, context),
            None => state.operate(&id, event, context),
        });
        let operated = self.log(decision)?;
        match (self.object_event(id, event, "tester"), &operated) {
            (Ok(()), Operated::Done(_)) => {}
            (Err(why), Operated::Rejected(rejected, _)) => assert_eq!(why, *rejected),
            (object, journal) => panic!("{object:?}, but {journal:?}"),
        }
        Ok(operated)
    }

    pub(super) fn tick(&mut self) -> Ticked {
        let tick = |state: &JournalState, context: &_| state.tick(1_000, context);
        let decision = self.decided_with(tick, |ticked: &Ticked| ticked.evicted);
        for record in &decision.records {
            let JournalRecord::Change { task, .. } = record else { panic!("unexpected record") };
            let event =
                if self.objects[task].status() == Status::Running { Event::TimeOut } else { Event::Expire };
            let lease_id = self.objects[task].lease_id.clone();
            if let Some(claim) = self.claims.iter().find(|claim| Some(&claim.lease_id) == lease_id.as_ref()) {
                let is_broken = event == Event::TimeOut && claim.promised >= self.now.earliest;
                assert!(!is_broken, "a claim timed out that was promised until {}", claim.promised);
            }
            self.object_event(*task, &event, "tester").unwrap();
        }
        self.log(decision).unwrap()
    }

    pub(super) fn purge(&mut self, older_than: Duration) -> u64 {
        let retention = Retention { statuses: Vec::new(), older_than };
        let (mut deleted, mut next) = (0, None);
        loop {
            let decision = self.purge_page(&retention, next);
            for record in &decision.records {
                let JournalRecord::Change { task, .. } = record else { panic!("unexpected record") };
                self.objects.remove(task);
            }
            let page = self.log(decision).unwrap();
            (deleted, next) = (deleted + page.deleted, page.next);
            if next.is_none() {
                return deleted + self.purge_archive(&retention);
            }
        }
    }

    /// Decides a page of a purge. It ends before an evicted task, so the other state has other pages.
    fn purge_page(
        &mut self,
        retention: &Retention,
        after: Option<PurgeCursor>,
    ) -> JournalDecision<PurgePage> {
        loop {
            let decision = self.state.purge(retention, after, 3, &self.context());
            match decision.answer.as_ref().unwrap().evicted {
                Some(id) => self.read_back(&id),
                None => return decision,
            }
        }
    }

    /// Another broker takes over: it replays the log and puts a fence at its end.
    pub(super) fn take_over(&mut self) {
        let (at, trusted_until) = (self.now.latest, self.now.latest.plus(secs(5)));
        self.log.push(LogPart::Fence { at, trusted_until });
        (self.state, self.twin) = (self.replayed(), self.replayed());
        assert_eq!(self.state.advance(self.now), self.twin.advance(self.now));
        for (id, object) in &mut self.objects {
            let Some(task) = self.state.get(id).unwrap() else { continue };
            if let (State::Running(ours), State::Running(theirs)) = (&task.state, &mut object.state) {
                // Renewals and progress are not in the log; the fence makes up for the expiry.
                theirs.expires_at = ours.expires_at;
                theirs.renewed_at = ours.renewed_at;
                object.progress = task.progress.clone();
            }
        }
    }

    /// State of a broker that replays the log from its begin.
    pub(super) fn replayed(&self) -> JournalState {
        let mut state = JournalState::default();
        for part in &self.log {
            match part {
                LogPart::Lines(lines) => state.replay(lines).unwrap(),
                LogPart::Fence { at, trusted_until } => state.fence(*at, *trusted_until),
            }
        }
        state
    }

    pub(super) fn log_text(&self) -> String {
        let mut text = String::new();
        for part in &self.log {
            match part {
                LogPart::Lines(lines) => text.push_str(std::str::from_utf8(lines).unwrap()),
                LogPart::Fence { at, trusted_until } => {
                    writeln!(text, "fence at {at}, trusted until {trusted_until}").unwrap();
                }
            }
        }
        text
    }

    /// Lines of the log in order; none for a fence.
    pub(super) fn lines(&self) -> Vec<String> {
        self.log_text().lines().filter(|line| line.starts_with('{')).map(ToOwned::to_owned).collect()
    }

    fn object_event(&mut self, id: TaskId, event: &Event, by: &str) -> Result<(), Rejected> {
        let journal = self.context();
        let Some(object) = self.objects.get_mut(&id) else { return Err(Rejected::Lost) };
        let journal = journal.for_step(object, by);
        let context = StepContext { write_id: HexName::from_random(u128::from(self.random)), ..journal };
        *object = step(object, event, &context)?.task;
        Ok(())
    }

    /// Checks that the state has the tasks of the object layout, that its log leads to it, that a snapshot does, and that
    /// its indexes are those of its tasks.
    pub(super) fn check(&mut self) {
        self.check_evicted();
        let archived = self.check_archive();
        let live: BTreeSet<_> = self.state.tasks.keys().copied().collect();
        assert!(archived.keys().all(|id| !live.contains(id)), "a task is live and archived");
        let ids: BTreeSet<_> = live.into_iter().chain(archived.keys().copied()).collect();
        assert_eq!(ids, self.objects.keys().copied().collect());
        for (id, object) in &self.objects {
            let archived = archived.get(id).map(|archived| archived.task.clone());
            let task = self.state.get(id).unwrap().or(archived).unwrap();
            assert_eq!(comparable(&task), comparable(object));
        }
        let replayed = self.replayed();
        assert_eq!(encoded(&replayed), encoded(&self.state));
        for state in [&replayed, &self.state] {
            let resident = state.tasks.values().filter(|live| !live.is_evicted()).map(LiveTask::bytes);
            assert_eq!(state.resident_bytes(), resident.sum::<u64>());
        }
        assert_eq!(replayed.archive(), self.state.archive());
        let mut restored = JournalState::default();
        // In any order: ids of imported tasks do not follow the time.
        for body in encoded(&self.state).values().rev() {
            restored.insert(EncodedTask::read(body.as_bytes()).unwrap()).unwrap();
        }
        assert_eq!(encoded(&restored), encoded(&self.state));
        let position = LogPosition::START;
        let mut manifest =
            SnapshotManifest::new(position, self.now.latest, Vec::new(), HexName::from_random(1));
        manifest.set_archive(self.state.archive());
        let manifest = SnapshotManifest::decode("snapshot", &manifest.encode(), position).unwrap();
        assert_eq!(&manifest.archive_table(), self.state.archive());
        for state in [&self.state, &replayed, &restored] {
            assert_eq!(IndexView::of(&state.indexes, self.now), IndexView::rebuilt(state, self.now));
        }
    }
}

/// The task without the fields that count writes: a renewal is a write in the object layout only.
fn comparable(task: &Task) -> Task {
    let mut task = task.clone();
    (task.rev, task.write_id, task.updated_at) = (0, HexName::from_random(0), StoreTime::NEVER);
    for change in &mut task.history.changes {
        change.write_id = HexName::from_random(0);
    }
    task
}

/// The logged part of a state.
pub(super) fn encoded(state: &JournalState) -> BTreeMap<TaskId, String> {
    let text = |body: &[u8]| String::from_utf8(body.to_vec()).unwrap();
    let resident = state.bodies_from(None).map(|(id, body)| match body {
        LiveBody::Resident(body) => (id, text(&body)),
        LiveBody::Evicted { .. } => panic!("task {id} is evicted"),
    });
    resident.collect()
}

/// Indexes without the numbers of types, and without keys that have expired.
#[derive(Debug, PartialEq)]
struct IndexView {
    types: Vec<String>,
    scheduled: Vec<String>,
    others: String,
}

impl IndexView {
    fn of(indexes: &TaskIndexes, now: Now) -> Self {
        let TaskIndexes { types, scheduled, expiries, claims, workers, finished, keys, due_until } = indexes;
        let scheduled = scheduled.iter().map(|(key, (task_type, priority))| {
            format!("{key:?} {:?} {priority:?}", types.row(*task_type).name)
        });
        let keys: Vec<_> = keys.iter().filter(|(_, (_, expires_at))| !now.is_past(*expires_at)).collect();
        Self {
            types: types.rows().map(|row| format!("{row:?}")).collect(),
            scheduled: scheduled.collect(),
            others: format!("{expiries:?} {claims:?} {workers:?} {finished:?} {keys:?} {due_until:?}"),
        }
    }

    fn rebuilt(state: &JournalState, now: Now) -> Self {
        let mut indexes = TaskIndexes { due_until: state.indexes.due_until, ..TaskIndexes::default() };
        for (id, live) in &state.tasks {
            let task = match &live.body {
                TaskBody::Encoded(body) => JournalTask::decode(body).unwrap(),
                TaskBody::Running(running) => {
                    let current = live.load(id).unwrap().into_current();
                    JournalTask { task: current, ..running.logged.clone() }
                }
                TaskBody::Evicted { .. } => panic!("an evicted task has no body"),
            };
            let worker = if let State::Running(claim) = &task.task.state { Some(&claim.by) } else { None };
            if let Some(key) = task.reserved_key() {
                indexes.reserve(key, task.task.id);
            }
            let position = indexes.insert(&task.head(), worker);
            let of_state = (live.indexed.time, live.indexed.expires_at, live.indexed.was_scheduled);
            assert_eq!((position.time, position.expires_at, position.was_scheduled), of_state);
        }
        Self::of(&indexes, now)
    }
}
