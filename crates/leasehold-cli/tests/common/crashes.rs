//! Real worker processes, killed and stopped, on any store; then an audit that reads the raw objects.

use leasehold_core::{StoreTime, TaskId};
use leasehold_queue::{ObjectQueue, Queue};
use leasehold_store::testing::Lane;
use leasehold_store::{Client, List, OpenOptions, Purpose};
use serde_json::Value;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::leasehold;
use super::stalls::StallMeter;

/// Tests that fill the machine with processes, or depend on how soon one answers, run three at a time: they wait for
/// leases more than they compute.
static PROCESS_SLOTS: Semaphore = Semaphore::const_new(3);

/// Waits for a permit of [`PROCESS_SLOTS`]; dropping it releases it.
pub(crate) async fn process_slot() -> SemaphorePermit<'static> {
    PROCESS_SLOTS.acquire().await.unwrap()
}

/// Lease of workers that are killed: short, so that the tests wait little.
const LEASE: Duration = Duration::from_secs(3);
/// Attempts of a task: more than leases can expire while a busy machine stalls. Tasks that use up their attempts are tested
/// elsewhere.
pub(crate) const ATTEMPTS: u32 = 100;
/// Additional time for a busy machine.
const ALLOWANCE: Duration = Duration::from_secs(3);

/// Store, for the command line and for the library.
pub(crate) struct TestStore {
    pub(crate) store: String,
    pub(crate) variables: Vec<(&'static str, String)>,
    pub(crate) options: OpenOptions,
}

impl TestStore {
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = leasehold(args);
        command.args(["--store", &self.store]).envs(self.variables.iter().cloned());
        command
    }

    pub(crate) async fn queue(&self) -> ObjectQueue {
        ObjectQueue::connect(Client::open(&self.store, &self.options).unwrap()).await.unwrap()
    }

    pub(crate) fn worker(&self, id: &str, exec: &str, more: &[&str]) -> Child {
        self.worker_with(id, exec, LEASE, more)
    }

    /// Worker whose claims do not expire on a busy machine.
    fn patient_worker(&self, id: &str, exec: &str) -> Child {
        self.worker_with(id, exec, LEASE * 4, &[])
    }

    fn worker_with(&self, id: &str, exec: &str, lease: Duration, more: &[&str]) -> Child {
        let lease = lease.as_secs().to_string();
        let args =
            ["worker", "--id", id, "--exec", exec, "--lease-secs", &lease, "--concurrency", "16", "--json"];
        let mut command = self.command(&args);
        // Its standard error belongs into the test's log.
        command.args(more).stdout(Stdio::piped()).spawn().unwrap()
    }
}

pub(crate) fn signal(child: &Child, name: &str) {
    let done = Command::new("kill").args([name, &child.id().to_string()]).status().unwrap();
    assert!(done.success());
    if name == "-STOP" {
        // The threads of a process stop one after another: on a busy machine some of them go on for a moment.
        while !is_stopped(child) {
            std::thread::yield_now();
        }
    }
}

/// True if every thread of a process is stopped.
fn is_stopped(child: &Child) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{}/task", child.id())).unwrap();
    threads.map(|thread| std::fs::read_to_string(thread.unwrap().path().join("stat"))).all(|stat| {
        // The state follows the name of the command, which may contain parentheses.
        stat.is_ok_and(|stat| stat.rsplit_once(") ").is_some_and(|(_, fields)| fields.starts_with('T')))
    })
}

/// Stops a worker with SIGTERM, and reads its summary.
pub(crate) fn summary(child: Child) -> Value {
    signal(&child, "-TERM");
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Polls a task until another process has claimed it.
async fn until_claimed(queue: &ObjectQueue, id: &TaskId) {
    while queue.get(id).await.unwrap().epoch == 0 {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Waits until all tasks are final. A task that never completes fails the test instead of blocking it.
pub(crate) async fn until_empty(queue: &ObjectQueue) {
    let began = Instant::now();
    loop {
        let stats = queue.stats().await.unwrap();
        if stats.due + stats.scheduled + stats.running == 0 {
            return;
        }
        assert!(began.elapsed() < Lane::current().sized(5, 20) * Duration::from_mins(1), "left: {stats:?}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// Runs tasks in four processes, one of which is killed and replaced every second.
pub(crate) async fn killed_every_second(test_store: &TestStore) {
    let (tasks, kills) = Lane::current().sized((2_000, 8), (10_000, 20));
    let _slot = process_slot().await;
    let queue = test_store.queue().await;
    let submits = (0..tasks).map(|number| queue.submit("noop", number).max_attempts(ATTEMPTS));
    let submitted: Vec<_> =
        futures::StreamExt::collect(Queue::from(queue.clone()).submit_many(submits)).await;
    assert!(submitted.iter().all(Result::is_ok));
    let mut workers: Vec<_> = (0..4).map(|n| test_store.worker(&format!("w{n}"), "noop=true", &[])).collect();
    for kill in 0..kills {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let mut killed = workers.remove(0);
        killed.kill().unwrap();
        killed.wait().unwrap();
        workers.push(test_store.worker(&format!("w{}", kill + 4), "noop=true", &[]));
    }
    until_empty(&queue).await;
    let recovered: u64 =
        workers.into_iter().map(|worker| summary(worker)["counts"]["recovered"].as_u64().unwrap()).sum();
    let audit = audit(&queue).await;
    assert_eq!(audit.tasks, tasks, "a task was lost");
    assert!(
        audit.taken_over > 0,
        "no kill hit a running task: the test shows nothing ({recovered} recovered)"
    );
    // No other process uses the queue: leftovers of crashed processes can be removed as soon as their grace is over.
    let (began, meter) = (Instant::now(), StallMeter::start());
    loop {
        test_store.command(&["check", "--repair", "--grace-secs", "1"]).output().unwrap();
        let left = faults(test_store);
        if left.is_empty() {
            return;
        }
        assert!(began.elapsed() < LEASE + Duration::from_secs(30) + meter.stalled(), "{left:?}");
    }
}

/// Checks the queue while two workers, one of which is killed and replaced all the time, and a producer use it: there is no
/// inconsistency.
pub(crate) async fn checked_while_busy(test_store: &TestStore) {
    let _slot = process_slot().await;
    let queue = test_store.queue().await;
    let mut workers: Vec<_> = (0..2).map(|n| test_store.worker(&format!("w{n}"), "noop=true", &[])).collect();
    for round in 0..6 {
        let submits = (0..200).map(|number| queue.submit("noop", number).max_attempts(ATTEMPTS));
        let submitted: Vec<_> =
            futures::StreamExt::collect(Queue::from(queue.clone()).submit_many(submits)).await;
        assert!(submitted.iter().all(Result::is_ok));
        let more = tokio::spawn({
            let queue = queue.clone();
            async move {
                for number in 0..50 {
                    queue.submit("noop", number).max_attempts(ATTEMPTS).await.unwrap();
                }
            }
        });
        let mut check = test_store.command(&["check", "--json"]);
        let output = tokio::task::spawn_blocking(move || check.output()).await.unwrap().unwrap();
        assert!(output.status.success(), "{round}: {output:?}");
        more.await.unwrap();
        let mut killed = workers.remove(0);
        killed.kill().unwrap();
        killed.wait().unwrap();
        workers.push(test_store.worker(&format!("w{}", round + 2), "noop=true", &[]));
    }
    until_empty(&queue).await;
    for worker in workers {
        summary(worker);
    }
}

/// Objects that `check` reports, of all classes; none if every task has its entry, and every entry its task.
fn faults(test_store: &TestStore) -> Vec<Value> {
    let output = test_store.command(&["check", "--json"]).output().unwrap();
    let checked: Value = serde_json::from_slice(&output.stdout).unwrap();
    ["uncovered", "dangling", "leftover", "corrupt", "healing"]
        .iter()
        .flat_map(|fault| checked[fault].as_array().unwrap().clone())
        .collect()
}

pub(crate) fn assert_clean(test_store: &TestStore) {
    assert_eq!(faults(test_store), Vec::<Value>::new());
}

pub(crate) struct Audit {
    pub(crate) tasks: usize,
    taken_over: usize,
}

/// Reads every task as plain JSON and checks its history: one completion, epochs and attempts without gaps, times in
/// order, no claim before the previous lease had expired or was released.
pub(crate) async fn audit(queue: &ObjectQueue) -> Audit {
    let client = queue.client();
    let mut found = Audit { tasks: 0, taken_over: 0 };
    let mut list = List::all("tasks/");
    loop {
        let page = client.list(Purpose::Admin, &list).await.unwrap();
        for entry in page.entries {
            let body = client.get(Purpose::Admin, &entry.key).await.unwrap().unwrap().body;
            let task: Value = serde_json::from_slice(&body).unwrap();
            audit_task(&task);
            found.tasks += 1;
            found.taken_over += usize::from(task["epoch"].as_u64() > Some(1));
        }
        match page.next {
            Some(cursor) => list = list.at(cursor),
            None => return found,
        }
    }
}

pub(crate) fn audit_task(task: &Value) {
    let history = task["history"].as_array().unwrap();
    assert_eq!(task["status"], "completed", "{task}");
    let count = |event: &str| history.iter().filter(|change| change["event"] == event).count();
    assert_eq!(count("complete"), 1, "{task}");
    assert_eq!(count("claim") as u64, task["epoch"].as_u64().unwrap(), "{task}");
    assert_eq!(history[0]["event"], "submit");
    assert!(task["rev"].as_u64().unwrap() >= history.len() as u64, "every change is a revision: {task}");
    let (mut epoch, mut status) = (0, Value::Null);
    let mut last = StoreTime::from_millis(0);
    for change in history {
        assert_eq!(change["from"], status, "{task}");
        status = change["to"].clone();
        epoch += u64::from(change["event"] == "claim");
        assert_eq!(change["epoch"].as_u64(), Some(epoch), "{task}");
        let at: StoreTime = change["at"].as_str().unwrap().parse().unwrap();
        // Two processes may know the present differently, by a second or two.
        assert!(at.plus(Duration::from_secs(3)) >= last, "time goes back: {task}");
        last = at;
    }
}

/// Stops a worker for longer than its lease and continues it: it has lost its task, and can change nothing.
pub(crate) async fn stopped_longer_than_its_lease(test_store: &TestStore) {
    let _slot = process_slot().await;
    let queue = test_store.queue().await;
    let id = queue.submit("slow", ()).await.unwrap().id;
    // It must not lose its claim before it is stopped.
    let sleeper = test_store.worker_with("sleeper", "slow=sleep 600", LEASE * 2, &[]);
    until_claimed(&queue, &id).await;
    signal(&sleeper, "-STOP");
    let other = test_store.patient_worker("other", "slow=echo 2");
    let task = Queue::from(queue.clone()).wait(&id, None).await.unwrap();
    assert_eq!(task.epoch, 2);
    signal(&sleeper, "-CONT");
    // Its program ends because the run was stopped, not because 600 s have passed.
    let report = summary(sleeper);
    assert_eq!(report["counts"]["lost"], 1, "{report}");
    assert_eq!(summary(other)["counts"]["completed"], 1);
    let after = queue.get(&id).await.unwrap();
    assert_eq!(after, task, "a fenced worker has changed the task");
}

/// Kills a worker, without a monitor: its task runs again within the lease and ten seconds.
pub(crate) async fn recovered_in_time(test_store: &TestStore) {
    let _slot = process_slot().await;
    let queue = test_store.queue().await;
    let id = queue.submit("slow", ()).await.unwrap().id;
    let mut lost = test_store.worker("lost", "slow=sleep 600", &[]);
    until_claimed(&queue, &id).await;
    let other = test_store.patient_worker("other", "slow=true");
    let meter = StallMeter::start();
    lost.kill().unwrap();
    lost.wait().unwrap();
    let died_at = queue.now().unwrap().latest_known();
    let task = Queue::from(queue.clone()).wait(&id, None).await.unwrap();
    let claims: Vec<_> = task.history.events().filter(|change| change.event == "claim").collect();
    assert_eq!(claims.len(), 2);
    // Renewals may have prolonged the first claim until its worker crashed.
    let waited = claims[1].at.since(died_at);
    let stalled = meter.stalled();
    assert!(
        waited <= LEASE + Duration::from_secs(10) + ALLOWANCE + stalled,
        "{waited:?}, stalled {stalled:?}"
    );
    summary(other);
}

/// Interrupts a worker: a task that does not finish within the drain time is released, keeps its attempts, and runs at once
/// elsewhere.
pub(crate) async fn interrupted(test_store: &TestStore) {
    let _slot = process_slot().await;
    let queue = test_store.queue().await;
    let id = queue.submit("slow", ()).await.unwrap().id;
    let args = ["worker", "--id", "first", "--exec", "slow=sleep 600", "--drain-secs", "1", "--json"];
    let first = test_store.command(&args).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    until_claimed(&queue, &id).await;
    signal(&first, "-INT");
    let output = first.wait_with_output().unwrap();
    assert!(output.status.success());
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["counts"]["put_back"], 1);
    let task = queue.get(&id).await.unwrap();
    assert_eq!((task.status(), task.attempt), (leasehold_core::Status::Pending, 0));
    let second = test_store.patient_worker("second", "slow=true");
    let task = Queue::from(queue.clone()).wait(&id, None).await.unwrap();
    assert_eq!((task.status(), task.attempt, task.epoch), (leasehold_core::Status::Completed, 1, 2));
    summary(second);
}
