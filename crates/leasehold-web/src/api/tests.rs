//! Responses of the views for queues with some history.

use super::*;
use crate::testing::{DashboardFixture, body, claim};
use axum::extract::Path;
use leasehold_core::{Event, LeaseId, NewTask, Status, WorkerId};
use leasehold_queue::{Leases, QueueLayout, Settlement};
use leasehold_store::Purpose;
use std::time::Duration;

fn fail(retryable: bool) -> Settlement {
    Settlement::Fail { error: "no luck".into(), retryable, after: Some(Duration::ZERO) }
}

#[tokio::test]
async fn attempts_are_derived_from_the_history() {
    let fixture = DashboardFixture::new().await;
    let order = NewTask { max_attempts: Some(2), ..NewTask::new("a", json!(1)).unwrap() };
    let id = fixture.queue.submit_task(order).await.unwrap().id;
    fixture.run(id, Settlement::Release).await;
    fixture.run(id, fail(true)).await;
    fixture.run(id, fail(true)).await;
    fixture.queue.retry(&id).await.unwrap();
    claim(&fixture.queue, id).await.unwrap();
    let answer = body(task::task(State(fixture.app.clone()), Path(id.to_string())).await).await;
    let attempts = answer["attempts"].as_array().unwrap();
    let brief = |attempt: &Value| {
        let text = |key: &str| attempt[key].as_str().map(ToOwned::to_owned);
        (
            attempt["epoch"].as_u64().unwrap(),
            attempt["generation"].as_u64().unwrap(),
            text("ended_by"),
            text("why"),
        )
    };
    let (ended, why) = (|word: &str| Some(word.to_owned()), || Some("no luck".to_owned()));
    assert_eq!(
        attempts.iter().map(brief).collect::<Vec<_>>(),
        [
            (1, 0, ended("release"), None),
            (2, 0, ended("fail"), why()),
            (3, 0, ended("fail"), why()),
            (4, 1, None, None)
        ]
    );
    assert_eq!(answer["can"], json!(["cancel"]));
    assert_eq!(answer["task"]["status"], "running");
}

#[tokio::test]
async fn workers_without_names_are_derived_from_task_records() {
    let fixture = DashboardFixture::new().await;
    fixture.run(fixture.submit("a").await, Settlement::complete(json!(1))).await;
    fixture.run(fixture.submit("a").await, fail(false)).await;
    let id = fixture.submit("a").await;
    claim(&fixture.queue, id).await.unwrap();
    fixture.view_and_sample().await;
    let answer = body(workers::workers(State(fixture.app.clone())).await).await;
    let [worker] = answer["workers"].as_array().unwrap().as_slice() else { panic!("{answer}") };
    assert_eq!((&worker["worker_id"], &worker["kind"]), (&json!("w1"), &json!("seen")));
    assert_eq!(worker["running"], json!([id]));
    assert_eq!((&worker["done_last_hour"], &worker["failed_last_hour"]), (&json!(1), &json!(1)));
    fixture.host.advance(Duration::from_hours(2));
    fixture.view_and_sample().await;
    let later = body(workers::workers(State(fixture.app.clone())).await).await;
    assert_eq!(later["workers"][0]["done_last_hour"], 0);
}

#[tokio::test]
async fn the_shard_map_shows_holders_and_pending_tasks() {
    let fixture = DashboardFixture::new().await;
    let id = fixture.submit("a").await;
    let shard = fixture.queue.shard_len().shard_of(&id);
    let group = fixture.queue.shard_len().groups().into_iter().find(|group| group.contains(&shard)).unwrap();
    let answer = async || body(shards::shards(State(fixture.app.clone())).await).await;
    assert!(
        answer().await["groups"].as_array().unwrap().iter().all(|group| group["state"] == "free"),
        "not read yet"
    );
    hold(&fixture, &group).await;
    fixture.sample().await;
    let mine = async || {
        let answer = answer().await;
        answer["groups"]
            .as_array()
            .unwrap()
            .iter()
            .find(|group| group["first"] == json!(shard))
            .unwrap()
            .clone()
    };
    let held = mine().await;
    assert_eq!(
        (&held["state"], &held["worker_id"], &held["due"]),
        (&json!("held"), &json!("ada"), &json!(1))
    );
    let revision = fixture.app.shared.snapshot().revision();
    fixture.host.advance(Duration::from_mins(11));
    mine().await;
    fixture.sample().await;
    assert_eq!(mine().await["state"], "expired", "its worker has stopped renewing");
    assert!(fixture.app.shared.snapshot().revision() > revision);
}

/// Takes the lease on a group of shards for ten minutes.
async fn hold(fixture: &DashboardFixture, group: &leasehold_core::ShardRange) {
    let holder = leasehold_core::Holder {
        worker_id: WorkerId::checked("worker id", "ada").unwrap(),
        instance: leasehold_core::HexName::from_random(7),
        ttl: Duration::from_mins(10),
    };
    let leases = Leases::new(fixture.queue.client().clone(), holder).unwrap();
    let (key, subject) =
        (leasehold_core::keys::shard_lease(group), leasehold_queue::lease::shards_subject(group));
    leases.take(&key, &subject, None).await.unwrap();
}

#[tokio::test]
async fn an_outpost_is_derived_from_tasks_finished_offline() {
    let fixture = DashboardFixture::new().await;
    assert_eq!(fixture.overview().await["has"]["outposts"], false);
    let id = fixture.submit("a").await;
    let seen = fixture.queue.load(Purpose::Sync, &id).await.unwrap().unwrap();
    let lease_id = LeaseId::from_random(9);
    let event =
        Event::CompleteOffline { lease_id, output: json!(1), results: std::collections::BTreeMap::default() };
    let node = fixture.queue.clone().acting_as("pi-1");
    node.update_if(&seen, &event).await.unwrap();
    fixture.view_and_sample().await;
    assert_eq!(fixture.overview().await["has"]["outposts"], true);
    let answer = body(outposts::outposts(State(fixture.app.clone())).await).await;
    assert_eq!(
        (&answer["nodes"][0]["node_id"], &answer["nodes"][0]["completed_offline"]),
        (&json!("pi-1"), &json!(1))
    );
    assert_eq!(fixture.app.shared.snapshot().table.get(&id).unwrap().status, Status::Completed);
}

#[tokio::test]
async fn equal_errors_of_one_type_are_grouped_with_a_count() {
    let fixture = DashboardFixture::new().await;
    let failed = async |task_type: &str, error: &str| {
        let id = fixture.submit(task_type).await;
        fixture.host.advance(Duration::from_secs(1));
        let end = Settlement::Fail { error: error.into(), retryable: false, after: None };
        fixture.run(id, end).await.id
    };
    for number in 0..8 {
        failed("a", &format!("no luck\nin line {number}")).await;
    }
    failed("a", "something else").await;
    failed("b", "no luck").await;
    let newest = failed("a", "no luck").await;
    fixture.view_and_sample().await;
    let failures = fixture.overview().await["recent_failures"].clone();
    let brief = |row: &Value| (row["task_type"].clone(), row["error"].clone(), row["count"].clone());
    assert_eq!(
        failures.as_array().unwrap().iter().map(brief).collect::<Vec<_>>(),
        [
            (json!("a"), json!("no luck"), json!(9)),
            (json!("b"), json!("no luck"), json!(1)),
            (json!("a"), json!("something else"), json!(1)),
        ]
    );
    assert_eq!(failures[0]["id"], json!(newest), "the newest of them");
}

#[tokio::test]
async fn a_type_whose_due_tasks_no_worker_claims_is_reported_after_two_minutes() {
    let fixture = DashboardFixture::new().await;
    let untaken = async || {
        fixture.view_and_sample().await;
        let answer = fixture.overview().await["untaken"].clone();
        answer
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one["task_type"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    let long_ago = fixture.queue.now().unwrap().earliest.minus(Duration::from_hours(24));
    let waiting = fixture.queue.submit("a", json!(1)).at(long_ago).await.unwrap().id;
    let later = fixture.queue.now().unwrap().earliest.plus(Duration::from_hours(1));
    fixture.queue.submit("later", json!(1)).at(later).await.unwrap();
    let (first, second) = (fixture.submit("b").await, fixture.submit("b").await);
    // Each sample moves the clock by a minute.
    assert!(untaken().await.is_empty(), "it was submitted a minute ago, whenever it was due");
    fixture.run(first, Settlement::complete(json!(1))).await;
    assert_eq!(untaken().await, ["a"], "a task of the other type was just claimed");
    let claimed = claim(&fixture.queue, second).await.unwrap();
    assert_eq!(untaken().await, ["a"]);
    claim(&fixture.queue, waiting).await.unwrap();
    assert!(untaken().await.is_empty(), "a worker holds it");
    drop(claimed);
}
