//! Responses of the API.

use leasehold_core::{NewTask, Status, StoreTime, keys};
use leasehold_queue::QueueLayout;
use leasehold_store::Purpose;
use leasehold_web::{RefreshPace, WebOptions};
use serde_json::{Value, json};
use std::time::Duration;

use crate::fixture::{DashboardFixture, options};

#[tokio::test]
async fn the_overview_counts_what_the_queue_holds() {
    let fixture = DashboardFixture::new().await;
    for number in 0..5 {
        fixture.submit("a", json!(number)).await;
    }
    let later = fixture.queue.now().unwrap().earliest.plus(Duration::from_hours(1));
    fixture.queue.submit("b", json!(1)).at(later).await.unwrap();
    let cancelled = fixture.submit("b", json!(1)).await;
    fixture.queue.cancel(&cancelled).await.unwrap();
    let overview = fixture.until_read().await;
    let counts = &overview["counts"];
    for (status, count) in [("pending", 6), ("due", 5), ("scheduled", 1), ("running", 0), ("cancelled", 1)] {
        assert_eq!(counts[status], count, "{status}");
    }
    assert_eq!(
        overview["types"][0],
        json!({
            "task_type": "a", "pending": 5, "running": 0, "completed": 0, "failed": 0, "other": 0
        })
    );
    assert_eq!(overview["charts"]["submitted"].as_array().unwrap().len(), 60);
    let submitted: u64 =
        overview["charts"]["submitted"].as_array().unwrap().iter().filter_map(Value::as_u64).sum();
    assert_eq!(submitted, 7);
    assert_eq!(overview["cost"]["tasks"]["tasks"], 7);
    assert!(overview["sample"]["requests"].as_u64().unwrap() > 0);
}

#[tokio::test]
async fn an_unchanged_overview_is_304_with_its_age() {
    let fixture = DashboardFixture::new().await;
    fixture.submit("a", json!(1)).await;
    fixture.until_read().await;
    loop {
        let first = fixture.get("/api/overview").await;
        let known = format!("if-none-match: {}", first.header("etag").unwrap());
        let second = fixture.request("GET", "/api/overview", &[&known]).await;
        // A new minute may start between the two.
        if second.status == 304 {
            assert!(second.body.is_empty() && second.header("age").is_some());
            break;
        }
    }
    let old = fixture.request("GET", "/api/overview", &["if-none-match: \"0\""]).await;
    assert_eq!(old.status, 200);
}

#[tokio::test]
async fn five_thousand_tasks_are_filtered_and_paged() {
    let fixture = DashboardFixture::new().await;
    for number in 0..5_000_u32 {
        let kind = if number % 10 == 0 { "rare" } else { "common" };
        let mut task = NewTask::new(kind, json!(number)).unwrap();
        task.tags.insert("colour".into(), if number % 4 == 0 { "red" } else { "Blue:ish" }.into());
        fixture.queue.submit_task(task).await.unwrap();
    }
    fixture.until_read().await;
    let total = async |query: &str| fixture.get(&format!("/api/tasks?{query}")).await.json()["total"].clone();
    assert_eq!(total("").await, 5_000);
    assert_eq!(total("type=rare").await, 500);
    assert_eq!(total("tag=colour:red").await, 1_250);
    assert_eq!(total("tag=colour:Blue%3Aish&type=rare").await, 250);
    assert_eq!(total("tag=size").await, 0);
    assert_eq!(total("q=BLUE").await, 3_750);
    assert_eq!(total("status=due").await, 5_000);
    assert_eq!(total("status=failed").await, 0);
    let mut seen = std::collections::BTreeSet::new();
    let mut before = String::new();
    for offset in (0..5_000).step_by(200) {
        let page = fixture
            .get(&format!("/api/tasks?sort=created&order=asc&limit=1000&offset={offset}"))
            .await
            .json();
        let tasks = page["tasks"].as_array().unwrap();
        assert_eq!(tasks.len(), 200, "at most 200 per page");
        for task in tasks {
            let created = task["created_at"].as_str().unwrap().to_owned();
            assert!(created >= before);
            before = created;
            seen.insert(task["id"].as_str().unwrap().to_owned());
        }
    }
    assert_eq!(seen.len(), 5_000, "each exactly once");
    assert_eq!(fixture.get("/api/tasks?offset=5000").await.json()["tasks"], json!([]));
}

#[tokio::test]
async fn an_invalid_request_gets_an_error() {
    let fixture = DashboardFixture::new().await;
    for (path, status, words) in [
        ("/api/tasks?status=asleep", 400, "`asleep` is not a status"),
        ("/api/tasks?limit=many", 400, "limit"),
        ("/api/tasks?colour=red", 400, "colour"),
        ("/api/tasks/x", 400, "`x` is not a task id"),
        ("/api/tasks/3f2c9a4e-0d1b-4c6f-9a57-2e8b6f10c4d3", 404, "no task"),
        ("/api", 404, "path not found"),
        ("/static/../lib.rs", 404, "file not found"),
        ("/api/tasks/retry", 405, "method not allowed"),
    ] {
        let answer = fixture.get(path).await;
        assert_eq!(answer.status, status, "{path}");
        assert!(answer.error().contains(words), "{path}: {}", answer.error());
    }
    assert_eq!(fixture.post("/api/tasks/retry", "not json").await.status, 400);
    assert_eq!(fixture.post("/api/tasks/3f2c9a4e-0d1b-4c6f-9a57-2e8b6f10c4d3/explode", "").await.status, 404);
}

#[tokio::test]
async fn scripts_in_a_task_are_text_in_json() {
    let fixture = DashboardFixture::new().await;
    let script = "<script>alert(1)</script><img src=x onerror=alert(2)>";
    let mut task = NewTask::new("a", json!({"html": script})).unwrap();
    task.tags.insert(script.into(), script.into());
    let id = fixture.queue.submit_task(task).await.unwrap().id;
    fixture.until_read().await;
    for path in [format!("/api/tasks/{id}"), "/api/tasks?q=onerror".into()] {
        let answer = fixture.get(&path).await;
        assert_eq!(answer.header("content-type"), Some("application/json"));
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
    }
    let task = fixture.get(&format!("/api/tasks/{id}")).await.json();
    assert_eq!(task["task"]["input"]["html"], script);
    let rows = fixture.get("/api/tasks?q=onerror").await.json();
    assert_eq!(rows["tasks"][0]["tags"][script], script);
}

#[tokio::test]
async fn an_action_is_visible_at_once_and_rejected_when_not_allowed() {
    let fixture = DashboardFixture::new().await;
    let id = fixture.submit("a", json!(1)).await;
    fixture.until_read().await;
    let revision = fixture.get("/api/overview").await.json()["sample"]["revision"].clone();
    let act = async |action: &str| fixture.post(&format!("/api/tasks/{id}/{action}"), "").await;
    let cancelled = act("cancel").await;
    assert_eq!((cancelled.status, &cancelled.json()["task"]["status"]), (200, &json!("cancelled")));
    assert_eq!(fixture.get("/api/tasks?status=cancelled").await.json()["total"], 1);
    assert_ne!(fixture.get("/api/overview").await.json()["sample"]["revision"], revision);
    let again = act("cancel").await;
    assert_eq!((again.status, again.error()), (409, "the task is cancelled".to_owned()));
    assert_eq!(act("retry").await.json()["task"]["status"], "pending");
    assert_eq!(fixture.get(&format!("/api/tasks/{id}")).await.json()["can"], json!(["cancel"]));
    let history = leasehold_queue::Queue::from(fixture.queue.clone()).get_history(&id).await.unwrap();
    assert!(history.iter().skip(1).all(|change| change.by == "dashboard"));
}

#[tokio::test]
async fn a_scheduled_task_can_be_run_now() {
    let fixture = DashboardFixture::new().await;
    let later = fixture.queue.now().unwrap().earliest.plus(Duration::from_hours(1));
    let id = fixture.queue.submit("a", json!(1)).at(later).await.unwrap().id;
    let task = fixture.get(&format!("/api/tasks/{id}")).await.json();
    assert_eq!(task["can"], json!(["cancel", "run_now"]));
    let run = fixture.post(&format!("/api/tasks/{id}/run_now"), "").await.json();
    assert_eq!(run["task"]["is_due"], true);
    let at: StoreTime = run["task"]["available_at"].as_str().unwrap().parse().unwrap();
    assert!(at < later);
}

#[tokio::test]
async fn all_tasks_that_match_a_filter_are_changed_together() {
    let fixture = DashboardFixture::new().await;
    for number in 0..6 {
        fixture.submit(if number < 4 { "a" } else { "b" }, json!(number)).await;
    }
    fixture.until_read().await;
    let cancelled = fixture.post("/api/tasks/cancel", r#"{"type": "a", "status": null}"#).await;
    assert_eq!(cancelled.json(), json!({"done": 4, "refused": 0, "failed": 0, "error": null}));
    let counts = fixture.get("/api/overview").await.json()["counts"].clone();
    assert_eq!([&counts["cancelled"], &counts["pending"]], [&json!(4), &json!(2)]);
    let retried = fixture.post("/api/tasks/retry", r#"{"status": "cancelled"}"#).await;
    assert_eq!(retried.json(), json!({"done": 4, "refused": 0, "failed": 0, "error": null}));
}

#[tokio::test]
async fn other_views_are_filled_while_they_are_viewed() {
    let fixture = DashboardFixture::new().await;
    fixture.submit("a", json!(1)).await;
    let is_read = |answer: &Value| answer["age_secs"].is_number();
    let shards = fixture.poll_until("/api/shards", |answer| {
        let due = answer["groups"].as_array().unwrap().iter().filter_map(|group| group["due"].as_u64());
        is_read(answer) && due.sum::<u64>() == 1
    });
    assert_eq!(shards.await["groups"].as_array().unwrap().len(), 16);
    assert_eq!(fixture.poll_until("/api/workers", is_read).await["workers"], json!([]));
    assert_eq!(fixture.poll_until("/api/artifacts", is_read).await["artifacts"], json!([]));
    assert_eq!(fixture.poll_until("/api/outposts", is_read).await["nodes"], json!([]));
    let settings = fixture.get("/api/settings").await.json();
    assert_eq!(
        settings["settings"][0],
        json!({"key": "queue.store", "value": "memory://", "from": "--store"})
    );
}

#[tokio::test]
async fn metrics_have_help_and_types_and_agree_with_the_queue() {
    let fixture = DashboardFixture::new().await;
    fixture.submit("a", json!(1)).await;
    fixture.until_read().await;
    let answer = fixture.get("/metrics").await;
    assert_eq!(answer.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    let text = answer.text();
    assert!(text.contains("\nleasehold_tasks{status=\"pending\"} 1\n"), "{text}");
    assert!(
        text.contains("\nleasehold_store_requests_total{verb=\"get\",purpose=\"admin\",outcome=\"ok\"} ")
    );
    let mut families = std::collections::BTreeSet::new();
    for line in text.lines() {
        if let Some(family) = line.strip_prefix("# TYPE ") {
            let (name, kind) = family.split_once(' ').unwrap();
            assert_eq!(name.ends_with("_total"), kind == "counter", "{name}");
            assert!(families.insert(name), "{name} twice");
        } else if !line.starts_with('#') {
            let name = line.split(['{', ' ']).next().unwrap();
            assert_eq!(families.last().map(|_| families.contains(name)), Some(true), "{line}");
        }
    }
}

#[tokio::test]
async fn a_bulk_action_continues_when_a_task_is_gone() {
    let fixture = DashboardFixture::new().await;
    let ids = [
        fixture.submit("a", json!(1)).await,
        fixture.submit("a", json!(2)).await,
        fixture.submit("a", json!(3)).await,
    ];
    fixture.poll_until("/api/overview", |overview| overview["counts"]["due"] == 3).await;
    let key = keys::task(&fixture.queue.shard_len().shard_of(&ids[1]), &ids[1]);
    fixture.queue.client().delete(Purpose::Admin, &key).await.unwrap();
    let response = fixture.post("/api/tasks/cancel", r#"{"type": "a"}"#).await;
    assert_eq!(response.json(), json!({"done": 2, "refused": 1, "failed": 0, "error": null}));
    for id in [&ids[0], &ids[2]] {
        assert_eq!(fixture.queue.get(id).await.unwrap().status(), Status::Cancelled);
    }
}

#[tokio::test]
async fn a_bulk_action_completes_when_the_client_disconnects() {
    let fixture = DashboardFixture::new().await;
    for number in 0..300 {
        fixture.submit("a", json!(number)).await;
    }
    fixture.poll_until("/api/overview", |overview| overview["counts"]["due"] == 300).await;
    fixture.post_and_leave("/api/tasks/cancel", r#"{"type": "a"}"#).await;
    fixture.poll_until("/api/overview", |overview| overview["counts"]["cancelled"] == 300).await;
    assert_eq!(fixture.queue.check(false).await.unwrap().unneeded, Vec::<String>::new());
}

#[tokio::test]
async fn a_tag_may_have_colons_in_it() {
    let fixture = DashboardFixture::new().await;
    fixture.queue.submit("a", json!(1)).tag("team:a", "b:c").await.unwrap();
    fixture.submit("a", json!(2)).await;
    fixture.poll_until("/api/overview", |overview| overview["counts"]["due"] == 2).await;
    for (tag, total) in [("team:a", 1), ("team:a:b:c", 1), ("team", 0), ("team:a:b", 0)] {
        assert_eq!(fixture.get(&format!("/api/tasks?tag={tag}")).await.json()["total"], total, "{tag}");
    }
}

#[tokio::test]
async fn pages_sorted_by_waiting_contain_each_final_task_once() {
    let fixture = DashboardFixture::new().await;
    for number in 0..60 {
        let id = fixture.submit("a", json!(number)).await;
        fixture.queue.cancel(&id).await.unwrap();
    }
    fixture.poll_until("/api/overview", |overview| overview["counts"]["cancelled"] == 60).await;
    let mut ids = std::collections::BTreeSet::new();
    for offset in [0, 20, 40] {
        let page = fixture.get(&format!("/api/tasks?sort=waiting&limit=20&offset={offset}")).await.json();
        ids.extend(page["tasks"].as_array().unwrap().iter().map(|task| task["id"].to_string()));
    }
    assert_eq!(ids.len(), 60);
}

#[tokio::test]
async fn a_task_is_found_by_its_key_its_tag_and_its_input() {
    let fixture = DashboardFixture::new().await;
    let order = fixture.queue.submit("a", json!({"url": "harbour.raw"})).tag("team", "photos").key("img-1");
    order.await.unwrap();
    fixture.submit("a", json!(2)).await;
    fixture.poll_until("/api/overview", |overview| overview["counts"]["due"] == 2).await;
    for words in ["img-1", "team%3Dphotos", "team:pho", "HARBOUR", "%22url%22:%22harbour"] {
        assert_eq!(fixture.get(&format!("/api/tasks?q={words}")).await.json()["total"], 1, "{words}");
    }
}

#[tokio::test]
async fn only_a_bucket_bills_its_requests() {
    for (pace, is_billed) in [(RefreshPace::Folder, false), (RefreshPace::Bucket, true)] {
        let fixture = DashboardFixture::with(WebOptions { pace, ..options() }).await;
        assert_eq!(fixture.until_read().await["is_billed"], is_billed);
    }
}
