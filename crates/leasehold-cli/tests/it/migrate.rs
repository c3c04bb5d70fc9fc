//! `migrate-shards` as a process: killed at any moment and started again, on a folder full of tasks in every status.
//! The audit reads the raw objects.

use leasehold_core::{
    Act, Event, NewTask, Now, ShardLen, Status, StoreTime, Task, TaskId, keys, record, step,
};
use leasehold_store::{Client, HostExt, List, OpenOptions, Purpose, SystemHost, When};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::process::Stdio;
use std::time::Duration;

use crate::common::crashes::{MACHINE, Place};
use crate::common::shown;

fn place(root: &std::path::Path) -> Place {
    Place { store: root.to_str().unwrap().into(), variables: Vec::new(), options: OpenOptions::default() }
}

/// Nobody else uses the folder, so nothing has to be waited for.
const QUICK: [&str; 4] = ["--known-secs", "0.2", "--grace-secs", "0.5"];

fn migrate<'a>(args: &[&'a str]) -> Vec<&'a str> {
    ["migrate-shards"].iter().chain(args).chain(&QUICK).copied().collect()
}

/// A task as it is after these events, an hour apart.
fn after(number: u64, events: &[Event]) -> Task {
    let host = SystemHost;
    let id = TaskId::from_random(host.random_bits());
    let began = StoreTime::from_millis(1_750_000_000_000);
    let act = |hours: u64| Act {
        by: "someone".into(),
        now: Now::exactly(began.plus(Duration::from_hours(hours))),
        write_id: leasehold_core::WriteId::from_random(host.random_bits()),
        chance: 0,
    };
    let order =
        NewTask { expires_in: Some(Duration::from_mins(90)), ..NewTask::new("t", number.into()).unwrap() };
    let mut task = order.submitted(id, ShardLen::DEFAULT.shard_of(&id), &act(0));
    for (event, hour) in events.iter().zip(1..) {
        task = step(&task, event, &act(hour)).unwrap().task;
    }
    task
}

/// What leads to each status.
fn lives() -> Vec<(Status, Vec<Event>)> {
    let lease_id = leasehold_core::LeaseId::from_random(7);
    let worker = leasehold_core::Name::checked("worker id", "w").unwrap();
    let claim = Event::Claim { worker, lease_id: lease_id.clone(), lease: Duration::from_hours(20_000) };
    let complete = Event::Complete { lease_id: lease_id.clone(), output: json!({"n": [1, 2.5]}) };
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

async fn fill(client: &Client, count: u64) {
    let lives = lives();
    let tasks = (0..count).map(|number| {
        let (status, events) = &lives[usize::try_from(number).unwrap() % lives.len()];
        let task = after(number, events);
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

/// All raw objects below `tasks/`, by their keys.
async fn raw_tasks(client: &Client) -> BTreeMap<String, Value> {
    let mut tasks = BTreeMap::new();
    for key in keys_of(client, "tasks/").await {
        if let Some(object) = client.get(Purpose::Admin, &key).await.unwrap() {
            tasks.insert(key, serde_json::from_slice(&object.body).unwrap());
        }
    }
    tasks
}

/// What does not change when a task moves, by id.
fn essence(tasks: &BTreeMap<String, Value>) -> BTreeMap<String, Value> {
    let mut all = BTreeMap::new();
    for task in tasks.values() {
        let mut task = task.clone();
        for field in ["shard", "rev", "write_id", "updated_at"] {
            task[field].take();
        }
        let twice = all.insert(task["id"].as_str().unwrap().to_owned(), task);
        assert_eq!(twice, None, "a task is there twice");
    }
    all
}

/// Every task at its one place for this length, covered by exactly the entry it calls for; nothing else is left.
async fn audit(client: &Client, len: usize, before: &BTreeMap<String, Value>) {
    let tasks = raw_tasks(client).await;
    assert_eq!(essence(&tasks), *before);
    let mut entries = BTreeSet::new();
    for (key, task) in &tasks {
        let (id, rev) = (task["id"].as_str().unwrap(), task["rev"].as_u64().unwrap());
        let shard = &id[..len];
        assert_eq!(
            (key.as_str(), task["shard"].as_str()),
            (format!("tasks/{shard}/{id}.json").as_str(), Some(shard))
        );
        let minute = |time: &str| {
            format!("{}{}{}-{}{}", &time[..4], &time[5..7], &time[8..10], &time[11..13], &time[14..16])
        };
        let time = |field: &str| task[field].as_str().unwrap();
        match task["status"].as_str().unwrap() {
            "pending" => {
                let due = minute(time("available_at").min(time("expires_at")));
                entries.insert(format!("ready/{shard}/{due}/4{id}.{rev:010}"));
            }
            "running" => {
                let due = minute(time("lease_expires_at"));
                entries.insert(format!("leases/{shard}/{due}/{id}.{rev:010}"));
            }
            _ => {}
        }
    }
    let found: BTreeSet<_> =
        [keys_of(client, "ready/").await, keys_of(client, "leases/").await].concat().into_iter().collect();
    assert_eq!(found, entries);
}

/// Where a migration stands: its phase, and whether some tasks have moved and some have not.
async fn stands(client: &Client) -> (String, bool) {
    let object = client.get(Purpose::Admin, "queue.json").await.unwrap().unwrap();
    let agreement: Value = serde_json::from_slice(&object.body).unwrap();
    if let Some(phase) = agreement["migrating"]["phase"].as_str() {
        let keys = keys_of(client, "tasks/").await;
        let lens: BTreeSet<_> = keys.iter().map(|key| key.split('/').nth(1).unwrap().len()).collect();
        return (phase.to_owned(), lens.len() == 2);
    }
    let is_left = agreement["left"].is_object() && agreement["left"]["swept_at"].is_null();
    (if is_left { "left" } else { "none" }.to_owned(), false)
}

/// Kills it at so many moments, each further on its way; gives in which phases.
async fn killed(place: &Place, client: &Client, to: &str, kills: u32) -> BTreeMap<String, u32> {
    let mut phases = BTreeMap::new();
    for kill in 0..kills {
        let mut command = place.command(&migrate(&["--to", to]));
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let pause = SystemHost.random_below(Duration::from_millis(500) * (kill + 1));
        tokio::time::sleep(Duration::from_millis(100) + pause).await;
        child.kill().unwrap();
        child.wait().unwrap();
        *phases.entry(stands(client).await.0).or_default() += 1;
    }
    phases
}

#[tokio::test(flavor = "multi_thread")]
async fn five_thousand_tasks_are_migrated_there_and_back_by_processes_that_are_killed() {
    let _machine = MACHINE.lock().await;
    let root = tempfile::tempdir().unwrap();
    let place = place(root.path());
    let queue = place.queue().await;
    let client = queue.client();
    fill(client, 5_000).await;
    let before = essence(&raw_tasks(client).await);
    assert_eq!(before.len(), 5_000);
    for (from, to, len) in [("1", "2", 2), ("2", "1", 1)] {
        let phases = killed(&place, client, to, 10).await;
        assert!(phases.contains_key("moving"), "no kill came while tasks were moved: {phases:?}");
        let output = place.command(&migrate(&["--to", to])).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        println!("to {to}, killed in {phases:?}");
        audit(client, len, &before).await;
        let refused = place.command(&["submit", "-t", "a"]).env("LEASEHOLD_SHARD_PREFIX_LEN", from).output();
        let refused = refused.unwrap();
        assert_eq!(refused.status.code(), Some(64));
        let message = format!("shard_prefix_len is {from} here, but this queue has {to}");
        assert!(String::from_utf8_lossy(&refused.stderr).contains(&message), "{refused:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_migration_that_was_killed_can_be_called_off() {
    let _machine = MACHINE.lock().await;
    let root = tempfile::tempdir().unwrap();
    let place = place(root.path());
    let queue = place.queue().await;
    let client = queue.client();
    fill(client, 800).await;
    let before = essence(&raw_tasks(client).await);
    let mut command = place.command(&migrate(&["--to", "2"]));
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    while !stands(client).await.1 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let submit = place.command(&["submit", "-t", "a"]).output().unwrap();
    assert_eq!(submit.status.code(), Some(75), "nothing is submitted meanwhile: {submit:?}");
    let output = place.command(&migrate(&["--abort"])).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let tasks = raw_tasks(client).await;
    assert_eq!(essence(&tasks), before);
    assert!(tasks.keys().all(|key| key.split('/').nth(1).unwrap().len() == 1));
    let check = place.command(&["check", "--json"]).output().unwrap();
    let checked: Value = serde_json::from_slice(&check.stdout).unwrap();
    assert_eq!((&checked["tasks"], &checked["uncovered"]), (&json!(800), &json!([])));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_migrations_say() {
    let root = tempfile::tempdir().unwrap();
    let place = place(root.path());
    let queue = place.queue().await;
    fill(queue.client(), 16).await;
    let folder = root.path().canonicalize().unwrap();
    let say = |name: &str, args: &[&str]| shown(name, &mut place.command(args), Some(&folder));
    say("migrate_dry_run", &["migrate-shards", "--to", "2", "--dry-run"]);
    say("migrate_dry_run_json", &["migrate-shards", "--to", "2", "--dry-run", "--json"]);
    say("migrate_no_wait", &migrate(&["--to", "2", "--no-wait"]));
    say("migrate_abort_too_late", &migrate(&["--abort"]));
    say("migrate_dry_run_left", &["migrate-shards", "--to", "2", "--dry-run"]);
    say("migrate_finish", &migrate(&["--to", "2"]));
    say("migrate_again", &migrate(&["--to", "2"]));
    // Else it would wait for the grace of the last one, or not, as the machine pleases.
    tokio::time::sleep(Duration::from_millis(600)).await;
    say("migrate_json", &migrate(&["--to", "1", "--json"]));
    say("migrate_wrong", &migrate(&["--to", "5"]));
    say("migrate_nowhere", &["migrate-shards"]);
    say("migrate_abort_nothing", &migrate(&["--abort"]));
}
