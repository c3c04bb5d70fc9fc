//! `migrate-shards` as a process, on any store: killed at any moment and started again, on a queue with tasks in every
//! status, while producers and workers go on ([`live`](super::live)). The audit reads the raw objects.

use leasehold_core::{
    Artifacts, Event, NewTask, Now, ShardLen, Status, StepContext, StoreTime, Task, TaskId, keys, record,
    step,
};
use leasehold_store::testing::Lane;
use leasehold_store::{Client, HostExt, List, Purpose, SystemHost, When};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::process::{Child, Stdio};
use std::time::Duration;

use super::crashes::{self, TestStore};
use super::live::Live;

/// Twice the time for which the clients of these tests trust the layout, and longer than any of their requests.
const KNOWN: Duration = Duration::from_secs(2);
const QUICK: [&str; 4] = ["--known-secs", "2", "--grace-secs", "1"];
/// Long enough that pending tasks do not become due and leases do not expire.
const VERY_LONG: Duration = Duration::from_hours(80_000);

pub(crate) fn migrate<'a>(args: &[&'a str]) -> Vec<&'a str> {
    ["migrate-shards"].iter().chain(args).chain(&QUICK).copied().collect()
}

/// Task after these events, an hour apart.
fn task_after(number: u64, events: &[Event]) -> Task {
    let host = SystemHost;
    let id = TaskId::from_random(host.random_bits());
    let began = StoreTime::from_millis(1_750_000_000_000);
    let act = |hours: u64| StepContext {
        by: "someone".into(),
        now: Now::exactly(began.plus(Duration::from_hours(hours))),
        write_id: leasehold_core::WriteId::from_random(host.random_bits()),
        random: 0,
    };
    let expires_in = if events.contains(&Event::Expire) { Duration::from_mins(90) } else { VERY_LONG };
    let order = NewTask { expires_in: Some(expires_in), ..NewTask::new("t", number.into()).unwrap() };
    let mut task = order.submitted(id, ShardLen::DEFAULT.shard_of(&id), &act(0));
    for (event, hour) in events.iter().zip(1..) {
        task = step(&task, event, &act(hour)).unwrap().task;
    }
    task
}

/// Events that lead to each status.
fn events_by_status() -> Vec<(Status, Vec<Event>)> {
    let lease_id = leasehold_core::LeaseId::from_random(7);
    let worker = leasehold_core::Name::checked("worker id", "w").unwrap();
    let claim = Event::Claim { worker, lease_id: lease_id.clone(), lease: VERY_LONG };
    let complete = Event::Complete {
        lease_id: lease_id.clone(),
        output: json!({"n": [1, 2.5]}),
        results: Artifacts::new(),
    };
    let fail =
        |retryable| Event::Fail { lease_id: lease_id.clone(), error: "oh".into(), retryable, after: None };
    vec![
        (Status::Pending, vec![]),
        (Status::Pending, vec![claim.clone(), fail(true)]),
        (Status::Running, vec![claim.clone()]),
        (Status::Completed, vec![claim.clone(), complete.clone()]),
        (Status::Failed, vec![claim.clone(), fail(false)]),
        (Status::Cancelled, vec![Event::Cancel]),
        (
            Status::Expired,
            vec![Event::Reschedule { at: StoreTime::from_millis(1_760_000_000_000) }, Event::Expire],
        ),
        (Status::Purged, vec![claim, complete, Event::Purge]),
    ]
}

/// Creates tasks, equally many in each status.
pub(crate) async fn fill(client: &Client, count: u64) {
    let events_by_status = events_by_status();
    let tasks = (0..count).map(|number| {
        let (status, events) = &events_by_status[usize::try_from(number).unwrap() % events_by_status.len()];
        let task = task_after(number, events);
        assert_eq!(task.status(), *status);
        task
    });
    let puts = futures::stream::iter(tasks.map(|task| async move {
        if let Some(entry) = task.entry() {
            client.put_always(Purpose::Submit, &entry.key(), "".into()).await.unwrap();
        }
        let key = keys::task(&task.shard, &task.id);
        client.put(Purpose::Submit, &key, record::write(&task).into(), &When::Absent).await.unwrap();
    }));
    futures::StreamExt::for_each(futures::StreamExt::buffer_unordered(puts, 32), |()| async {}).await;
}

async fn keys_of(client: &Client, prefix: &str) -> Vec<String> {
    let (mut keys, mut list) = (Vec::new(), List::all(prefix));
    loop {
        let page = client.list(Purpose::Admin, &list).await.unwrap();
        keys.extend(page.entries.into_iter().map(|entry| entry.key));
        match page.next {
            Some(cursor) => list = list.at(cursor),
            None => return keys,
        }
    }
}

/// Raw objects below `tasks/`, by key.
pub(crate) async fn raw_tasks(client: &Client) -> BTreeMap<String, Value> {
    let mut tasks = BTreeMap::new();
    for key in keys_of(client, "tasks/").await {
        if let Some(object) = client.get(Purpose::Admin, &key).await.unwrap() {
            tasks.insert(key, serde_json::from_slice(&object.body).unwrap());
        }
    }
    tasks
}

/// Fields of tasks that do not change in a migration, by id. Only of the tasks that no worker runs.
fn unchanged_fields(tasks: &BTreeMap<String, Value>) -> BTreeMap<String, Value> {
    let mut all = BTreeMap::new();
    for task in tasks.values().filter(|task| task["task_type"] == "t") {
        let mut task = task.clone();
        for field in ["shard", "rev", "write_id", "updated_at"] {
            task[field].take();
        }
        let twice = all.insert(task["id"].as_str().unwrap().to_owned(), task);
        assert_eq!(twice, None, "a task is there twice");
    }
    all
}

/// Checks that every task is at its key for this prefix length and has an index entry. Those that no worker runs are
/// unchanged and have exactly their entry. Nothing is left at the old keys.
async fn audit(client: &Client, len: usize, before: &BTreeMap<String, Value>) {
    let tasks = raw_tasks(client).await;
    assert_eq!(unchanged_fields(&tasks), *before);
    let mut entries = BTreeSet::new();
    for (key, task) in &tasks {
        let id = task["id"].as_str().unwrap();
        let shard = &id[..len];
        assert_eq!(
            (key.as_str(), task["shard"].as_str()),
            (format!("tasks/{shard}/{id}.json").as_str(), Some(shard))
        );
        if before.contains_key(id) {
            entries.extend(expected_entry(task));
        }
    }
    let found = [keys_of(client, "ready/").await, keys_of(client, "leases/").await].concat();
    assert!(found.iter().all(|key| key.split('/').nth(1).unwrap().len() == len), "old entries are left");
    // Outdated entries of live tasks are cleaned up later.
    let is_theirs = |key: &String| before.keys().any(|id| key.contains(id));
    assert_eq!(found.into_iter().filter(is_theirs).collect::<BTreeSet<_>>(), entries);
}

/// Index entry of a task, from its raw record.
fn expected_entry(task: &Value) -> Option<String> {
    let minute = |time: &str| {
        format!("{}{}{}-{}{}", &time[..4], &time[5..7], &time[8..10], &time[11..13], &time[14..16])
    };
    let (text, rev) = (|field: &str| task[field].as_str().unwrap(), task["rev"].as_u64().unwrap());
    let (id, shard) = (text("id"), text("shard"));
    match text("status") {
        "pending" => {
            let due = minute(text("available_at").min(text("expires_at")));
            Some(format!("ready/{shard}/{due}/4{id}.{rev:010}"))
        }
        "running" => {
            let due = minute(text("lease_expires_at"));
            Some(format!("leases/{shard}/{due}/{id}.{rev:010}"))
        }
        _ => None,
    }
}

/// Phase of a migration, from `queue.json`.
async fn phase(client: &Client) -> String {
    let object = client.get(Purpose::Admin, "queue.json").await.unwrap().unwrap();
    let agreement: Value = serde_json::from_slice(&object.body).unwrap();
    let is_left = agreement["left"].is_object() && agreement["left"]["swept_at"].is_null();
    let without = if is_left { "left" } else { "none" };
    agreement["migrating"]["phase"].as_str().unwrap_or(without).to_owned()
}

/// True if some tasks have moved and some have not.
async fn is_half_way(client: &Client) -> bool {
    let keys = keys_of(client, "tasks/").await;
    let lens: BTreeSet<_> = keys.iter().map(|key| key.split('/').nth(1).unwrap().len()).collect();
    phase(client).await == "moving" && lens.len() == 2
}

/// Waits until a migration moves tasks. If it finished before this process could read that, undoes and restarts it.
async fn until_moving(
    test_store: &TestStore,
    client: &Client,
    mut child: Child,
    from: &str,
    to: &str,
) -> Child {
    while phase(client).await != "moving" {
        tokio::time::sleep(Duration::from_millis(10)).await;
        if let Some(ended) = child.try_wait().unwrap() {
            assert!(ended.success());
            assert!(test_store.command(&migrate(&["--to", from])).output().unwrap().status.success());
            child = start_migration(test_store, to);
        }
    }
    child
}

/// Starts a migration process.
fn start_migration(test_store: &TestStore, to: &str) -> Child {
    test_store.command(&migrate(&["--to", to])).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// Kills a migration several times, each time later, and returns the phases in which it was killed.
async fn kill_repeatedly(
    test_store: &TestStore,
    client: &Client,
    from: &str,
    to: &str,
    kills: u32,
) -> BTreeMap<String, u32> {
    let mut phases = BTreeMap::new();
    let mut is_known = false;
    for kill in 0..kills {
        let mut child = start_migration(test_store, to);
        let waits = if is_known { Duration::ZERO } else { KNOWN };
        let pause = SystemHost.random_below(waits + Duration::from_millis(500) * (kill + 1));
        tokio::time::sleep(Duration::from_millis(100) + pause).await;
        if kill + 1 == kills && !phases.contains_key("moving") {
            // Random times do not reach this phase where processes start slowly.
            child = until_moving(test_store, client, child, from, to).await;
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let phase = phase(client).await;
        is_known = !["none", "announced"].contains(&phase.as_str());
        *phases.entry(phase).or_default() += 1;
    }
    phases
}

/// Migrates to two digits and back, each time with processes that are killed several times, while producers and workers
/// keep running. Returns a summary.
pub(crate) async fn migrate_and_back_with_kills(test_store: &TestStore, tasks: u64) -> String {
    let mut report = String::new();
    let _slot = crashes::process_slot().await;
    let queue = test_store.queue().await;
    let client = queue.client();
    fill(client, tasks).await;
    let before = unchanged_fields(&raw_tasks(client).await);
    assert_eq!(before.len() as u64, tasks);
    let live = Live::start(test_store).await;
    for (migrations, (from, to, len)) in (1..).zip([("1", "2", 2), ("2", "1", 1)]) {
        let phases = kill_repeatedly(test_store, client, from, to, Lane::current().sized(5, 10)).await;
        assert!(phases.contains_key("moving"), "no kill came while tasks were moved: {phases:?}");
        let output = test_store.command(&migrate(&["--to", to])).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        writeln!(report, "to {to}, killed in {phases:?}").unwrap();
        audit(client, len, &before).await;
        let refused =
            test_store.command(&["submit", "-t", "a"]).env("LEASEHOLD_SHARD_PREFIX_LEN", from).output();
        let refused = refused.unwrap();
        assert_eq!(refused.status.code(), Some(64));
        let message = format!("shard_prefix_len is set to {from}, but this queue has {to}");
        assert!(String::from_utf8_lossy(&refused.stderr).contains(&message), "{refused:?}");
        // Connected clients must read this migration before the next one.
        live.until_reconnected(migrations).await;
    }
    write!(report, "{live}").unwrap();
    live.end(client).await;
    audit(client, 1, &before).await;
    let check = test_store.command(&["check", "--json"]).output().unwrap();
    let checked: Value = serde_json::from_slice(&check.stdout).unwrap();
    assert_eq!((&checked["uncovered"], &checked["corrupt"]), (&json!([]), &json!([])));
    report
}

/// Kills a migration while it moves tasks, and aborts it: every task is back at its old key.
pub(crate) async fn abort_after_kill(test_store: &TestStore, tasks: u64) {
    let _slot = crashes::process_slot().await;
    let queue = test_store.queue().await;
    let client = queue.client();
    fill(client, tasks).await;
    let before = unchanged_fields(&raw_tasks(client).await);
    let mut child = start_migration(test_store, "2");
    while !is_half_way(client).await {
        tokio::time::sleep(Duration::from_millis(10)).await;
        if let Some(ended) = child.try_wait().unwrap() {
            // It finished before this process could read the phase: undo it, and start again.
            assert!(ended.success());
            assert!(test_store.command(&migrate(&["--to", "1"])).output().unwrap().status.success());
            child = start_migration(test_store, "2");
        }
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let submit = test_store.command(&["submit", "-t", "a"]).output().unwrap();
    assert_eq!(submit.status.code(), Some(75), "nothing is submitted meanwhile: {submit:?}");
    let output = test_store.command(&migrate(&["--abort"])).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let tasks_now = raw_tasks(client).await;
    assert_eq!(unchanged_fields(&tasks_now), before);
    assert!(tasks_now.keys().all(|key| key.split('/').nth(1).unwrap().len() == 1));
    // Entries of earlier revisions may be left: they cover their tasks until they are cleaned up.
    let check = test_store.command(&["check", "--json"]).output().unwrap();
    let checked: Value = serde_json::from_slice(&check.stdout).unwrap();
    assert_eq!((&checked["tasks"], &checked["uncovered"]), (&json!(tasks), &json!([])));
}
