//! Real processes that share a queue in the journal layout, on any store, while the process that is the broker is killed,
//! stopped, or replaced. Checked by what was acknowledged, and by the histories of the tasks.

use leasehold_broker::UnixSockets;
use leasehold_core::journal::SubmitRequest;
use leasehold_core::{NewTask, Reason, TaskId, keys};
use leasehold_queue::{LayoutName, Queue, QueueConfig, break_lease};
use leasehold_store::testing::Lane;
use leasehold_store::{Client, Purpose};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

use super::crashes::{self, ATTEMPTS, TestStore};

/// Pause between a takeover and the next kill.
const KILL_AFTER: Duration = Duration::from_secs(2);
/// Tasks of one `submit-many`.
pub(crate) const BATCH: usize = 200;
/// Pause between two of them: the workers are busy most of the time, and never far behind.
const BATCH_PAUSE: Duration = Duration::from_secs(1);
/// Longest wait for something that another process does: longer than the lease on the journal.
pub(crate) const LONGEST: Duration = Duration::from_mins(3);

/// Queue in the journal layout, seen from the test.
pub(crate) struct SharedJournal<'a> {
    test_store: &'a TestStore,
    client: Client,
}

impl<'a> SharedJournal<'a> {
    pub(crate) fn create(test_store: &'a TestStore) -> Self {
        let created = test_store.command(&["init", "--layout", "journal"]).output().unwrap();
        assert!(created.status.success(), "{created:?}");
        Self { test_store, client: Client::open(&test_store.store, &test_store.options).unwrap() }
    }

    /// The lease on the journal.
    pub(crate) async fn lease(&self) -> Option<Value> {
        let object = self.client.get(Purpose::Admin, keys::JOURNAL_LEASE).await.unwrap()?;
        Some(serde_json::from_slice(&object.body).unwrap())
    }

    /// Waits until a process is the broker, by its id. It need not serve yet.
    pub(crate) async fn until_broker(&self, pid: u32) -> Value {
        let began = Instant::now();
        loop {
            if let Some(lease) = self.lease().await.filter(|lease| lease["pid"] == pid) {
                return lease;
            }
            assert!(began.elapsed() < LONGEST, "process {pid} is not the broker: {:?}", self.lease().await);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Queue with connections of its own, as those of another process. Without them it does not find a broker that lives.
    pub(crate) async fn process(&self, by: &str, is_connected: bool) -> Queue {
        let sockets = std::env::temp_dir().join(format!("leasehold-{}", rustix::process::geteuid().as_raw()));
        let transport = is_connected.then(|| Arc::new(UnixSockets::new(sockets)) as _);
        let layout = Some(LayoutName::Journal);
        let config = QueueConfig { layout, by: by.to_owned(), transport, ..QueueConfig::default() };
        let client = Client::open(&self.test_store.store, &self.test_store.options).unwrap();
        Queue::with_config(client, config).await.unwrap()
    }

    /// Waits until all tasks are final.
    pub(crate) async fn until_empty(&self) {
        let began = Instant::now();
        loop {
            let output = self.test_store.command(&["stats", "--json"]).output().unwrap();
            // A process may read while the log is taken over.
            let stats: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
            let left = ["due", "scheduled", "running"].map(|status| stats[status].as_u64());
            if left == [Some(0); 3] {
                return;
            }
            assert!(began.elapsed() < Lane::current().sized(1, 10) * LONGEST, "left: {stats}");
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }

    /// Checks the history of every task, and that each of these is there. Returns the number of tasks, and of those that ran
    /// more than once.
    pub(crate) fn audit(&self, acknowledged: &BTreeSet<String>) -> (usize, usize) {
        let checked = self.test_store.command(&["check"]).output().unwrap();
        assert!(checked.status.success(), "{checked:?}");
        let exported = self.test_store.command(&["export"]).output().unwrap();
        assert!(exported.status.success(), "{exported:?}");
        let mut found = BTreeMap::new();
        for line in String::from_utf8(exported.stdout).unwrap().lines() {
            let task: Value = serde_json::from_str(line).unwrap();
            // The last line counts the tasks.
            let Some(id) = task["id"].as_str() else { continue };
            crashes::audit_task(&task);
            found.insert(id.to_owned(), task["epoch"].as_u64() > Some(1));
        }
        let lost: Vec<_> = acknowledged.iter().filter(|id| !found.contains_key(*id)).collect();
        assert!(lost.is_empty(), "acknowledged, but lost: {lost:?}");
        (found.len(), found.values().filter(|again| **again).count())
    }
}

/// Submits batches until enough tasks are acknowledged, and as long as processes are killed. A batch whose process is killed counts as far as it was acknowledged.
pub(crate) async fn produce(
    running: Arc<Processes>,
    commands: Vec<Command>,
    wanted: usize,
) -> BTreeSet<String> {
    let produced = tokio::task::spawn_blocking(move || {
        let mut acknowledged = BTreeSet::new();
        for command in commands {
            if acknowledged.len() >= wanted && !running.are_killed.load(Relaxed) {
                break;
            }
            acknowledged.extend(running.submit_batch(command));
            std::thread::sleep(BATCH_PAUSE);
        }
        assert!(acknowledged.len() >= wanted, "only {} of {wanted} submits succeeded", acknowledged.len());
        acknowledged
    });
    produced.await.unwrap()
}

/// Processes of a test that may be killed.
#[derive(Default)]
pub(crate) struct Processes {
    /// Their ids.
    running: Mutex<BTreeSet<u32>>,
    are_killed: AtomicBool,
}

impl Processes {
    fn add(&self, pid: u32) {
        self.running.lock().unwrap().insert(pid);
    }

    /// Removes a process, before its id can belong to another one.
    fn remove(&self, pid: u32) {
        self.running.lock().unwrap().remove(&pid);
    }

    /// Kills a process, if it is one of this test and has not ended.
    fn kill(&self, pid: u32) -> bool {
        let running = self.running.lock().unwrap();
        running.contains(&pid)
            && Command::new("kill").args(["-KILL", &pid.to_string()]).status().unwrap().success()
    }

    /// Runs a `submit-many`, and returns the ids that it has printed.
    fn submit_batch(&self, mut command: Command) -> Vec<String> {
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        self.add(child.id());
        let task = json!({ "task_type": "noop", "max_attempts": ATTEMPTS }).to_string() + "\n";
        // It may have been killed.
        let _ = child.stdin.take().unwrap().write_all(task.repeat(BATCH).as_bytes());
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let submitted = lines.filter_map(|line| serde_json::from_str::<Value>(&line).ok());
        let ids: Vec<_> = submitted.filter_map(|line| line["id"].as_str().map(str::to_owned)).collect();
        self.remove(child.id());
        child.wait().unwrap();
        ids
    }
}

/// Runs four workers and two producers, of which the broker is killed every two seconds: nothing is lost, and every task is
/// completed once.
pub(crate) async fn killed_every_two_seconds(test_store: &TestStore, tasks: usize, kills: usize) {
    let _slot = crashes::process_slot().await;
    let (journal, running) = (SharedJournal::create(test_store), Arc::new(Processes::default()));
    let worker = |number: usize| {
        let worker = test_store.worker(&format!("w{number}"), "noop=sleep 0.2", &[]);
        running.add(worker.id());
        worker
    };
    running.are_killed.store(true, Relaxed);
    let mut workers: Vec<Child> = (0..4).map(worker).collect();
    let batches =
        || (0..tasks / BATCH + 20 * kills).map(|_| test_store.command(&["submit-many", "-", "--json"]));
    let producers = [0, 1].map(|_| tokio::spawn(produce(running.clone(), batches().collect(), tasks / 2)));
    let (mut killed, mut started) = (BTreeSet::new(), workers.len());
    let began = Instant::now();
    while killed.len() < kills {
        assert!(
            began.elapsed() < Lane::current().sized(1, 10) * LONGEST,
            "only {} brokers killed",
            killed.len()
        );
        let holder = journal.lease().await.map(|lease| lease["instance"].clone());
        tokio::time::sleep(KILL_AFTER).await;
        let Some(lease) = journal.lease().await.filter(|lease| Some(&lease["instance"]) == holder.as_ref())
        else {
            continue;
        };
        let pid = u32::try_from(lease["pid"].as_u64().unwrap()).unwrap();
        let instance = lease["instance"].as_str().unwrap().to_owned();
        if killed.contains(&instance) || !running.kill(pid) {
            continue;
        }
        killed.insert(instance);
        if let Some(at) = workers.iter().position(|worker| worker.id() == pid) {
            running.remove(pid);
            workers.remove(at).wait().unwrap();
            workers.push(worker(started));
            started += 1;
        }
    }
    running.are_killed.store(false, Relaxed);
    let mut acknowledged = BTreeSet::new();
    for producer in producers {
        acknowledged.extend(producer.await.unwrap());
    }
    journal.until_empty().await;
    for worker in workers {
        running.remove(worker.id());
        crashes::summary(worker);
    }
    let (tasks, again) = journal.audit(&acknowledged);
    assert!(tasks >= acknowledged.len());
    assert!(again > 0, "no kill hit a running task: the test shows nothing");
}

/// Connection to a broker without the code of a client, which would give up.
pub(crate) struct RawConnection {
    lines: tokio::io::Lines<tokio::io::BufReader<OwnedReadHalf>>,
    writer: OwnedWriteHalf,
}

impl RawConnection {
    /// Connects to the broker that the lease names.
    pub(crate) async fn open(lease: &Value) -> Self {
        let stream = UnixStream::connect(lease["address"]["socket"].as_str().unwrap()).await.unwrap();
        let (reader, writer) = stream.into_split();
        let mut connection = Self { lines: tokio::io::BufReader::new(reader).lines(), writer };
        connection.send(&json!({ "leasehold_broker": 1, "instance": lease["instance"] })).await;
        let hello: Value =
            serde_json::from_str(&connection.lines.next_line().await.unwrap().unwrap()).unwrap();
        assert_eq!(hello["instance"], lease["instance"]);
        connection
    }

    async fn send(&mut self, line: &Value) {
        self.writer.write_all(format!("{line}\n").as_bytes()).await.unwrap();
    }

    /// Sends a submit, and returns the id of its task.
    pub(crate) async fn submit(&mut self, number: u64, queue: &Queue) -> TaskId {
        let id = TaskId::from_time(queue.now().unwrap().earliest, u128::from(number));
        let new_task = NewTask::new("noop", json!(number)).unwrap();
        let task = SubmitRequest { id, new_task, key: None };
        self.send(&json!({ "id": number, "call": { "submit": { "task": task, "by": "raw" } } })).await;
        id
    }

    /// Sends a read that must be current.
    pub(crate) async fn count(&mut self, number: u64) {
        self.send(&json!({ "id": number, "call": { "read": { "query": "count", "freshness": "current" } } }))
            .await;
    }

    /// Next answer of the broker; none if it has disconnected.
    pub(crate) async fn answer(&mut self) -> Option<Value> {
        loop {
            let line = self.lines.next_line().await.unwrap_or_default()?;
            // An empty line shows that the broker runs.
            if let Some(answer) = line.split('\t').next().filter(|line| !line.is_empty()) {
                return Some(serde_json::from_str(answer).unwrap());
            }
        }
    }

    /// Requires that the broker disconnects, and answers nothing before.
    pub(crate) async fn assert_unanswered(mut self) {
        let answered =
            tokio::time::timeout(LONGEST, self.answer()).await.expect("the broker keeps its connection");
        assert_eq!(answered, None, "a broker that was replaced has answered");
    }
}

pub(crate) async fn assert_missing(queue: &Queue, id: &TaskId) {
    let read = queue.get(id).await;
    assert!(read.as_ref().is_err_and(|error| error.reason() == Some(Reason::Missing)), "{read:?}");
}

/// Breaks the lease of a broker that lives: of two processes that believe to be the broker, one acknowledges.
pub(crate) async fn replaced_while_it_lives(test_store: &TestStore) {
    let _slot = crashes::process_slot().await;
    let journal = SharedJournal::create(test_store);
    let replaced = test_store.worker("replaced", "noop=true", &[]);
    let lease = journal.until_broker(replaced.id()).await;
    let other = journal.process("other", false).await;
    let mut raw = RawConnection::open(&lease).await;
    let first = raw.submit(1, &other).await;
    assert_eq!(raw.answer().await.unwrap()["answer"]["is_new"], true);
    let broken = break_lease(&journal.client, keys::JOURNAL_LEASE, &Map::new()).await.unwrap();
    assert!(broken.is_some());
    let second = other.submit("noop", 2).await.unwrap().id;
    let unanswered = raw.submit(2, &other).await;
    raw.count(3).await;
    raw.assert_unanswered().await;
    assert_missing(&other, &unanswered).await;
    other.close().await.unwrap();
    journal.until_empty().await;
    crashes::summary(replaced);
    assert_eq!(journal.audit(&[first, second].map(|id| id.to_string()).into()).0, 2);
}
