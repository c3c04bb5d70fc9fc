//! Number of requests to the store, by the ledger, under a simulated clock.

use super::objects::{pass, tasks};
use super::*;
use crate::testing::{DashboardFixture, StoreState};
use futures::future::join_all;
use leasehold_core::{Kind, keys};
use leasehold_queue::{QueueLayout, Settlement};
use leasehold_store::testing::FakeHost;
use leasehold_store::{MemoryStore, Store};
use serde_json::json;
use std::cell::Cell;

/// Simulates viewers that view everything once a second for `secs` seconds.
async fn view_for(fixture: &DashboardFixture, viewers: usize, secs: u64) {
    for _ in 0..secs {
        for _ in 0..viewers {
            fixture.overview().await;
            fixture.app.shared.viewers.record(Topic::Shards);
            fixture.app.shared.viewers.record(Topic::Workers);
        }
        fixture.sample().await;
        fixture.host.advance(Duration::from_secs(1));
    }
}

#[tokio::test]
async fn ten_viewers_cost_no_more_than_one() {
    for pace in [RefreshPace::Folder, RefreshPace::Bucket] {
        let mut requests = Vec::new();
        for viewers in [1, 10] {
            let fixture = DashboardFixture::at_pace(pace).await;
            for _ in 0..20 {
                fixture.submit("a").await;
            }
            view_for(&fixture, viewers, 120).await;
            requests.push(fixture.requests());
        }
        assert_eq!(requests[0], requests[1], "{pace:?}");
        assert!(requests[0][0] > 20, "{pace:?}: there was a viewer");
    }
}

#[tokio::test]
async fn without_viewers_only_the_index_is_counted_once_a_minute() {
    let fixture = DashboardFixture::at_pace(RefreshPace::Bucket).await;
    fixture.submit("a").await;
    view_for(&fixture, 0, 600).await;
    // The task of a due entry is read once.
    assert_eq!(fixture.requests(), [4 * 10, 10 + 1], "four lists and a get each time");
}

#[tokio::test]
async fn a_new_viewer_gets_fresh_data_at_once() {
    let fixture = DashboardFixture::at_pace(RefreshPace::Bucket).await;
    view_for(&fixture, 0, 30).await;
    let mut first_views = fixture.app.shared.viewers.first_views();
    let id = fixture.submit("a").await;
    fixture.overview().await;
    assert!(first_views.has_changed().unwrap(), "the sampler is woken");
    first_views.mark_unchanged();
    fixture.sample().await;
    let overview = fixture.overview().await;
    assert_eq!((&overview["counts"]["due"], &overview["index"]["due"]), (&json!(1), &json!(1)));
    assert!(fixture.app.shared.snapshot().table.get(&id).is_some());
    assert!(!first_views.has_changed().unwrap());
}

#[tokio::test]
async fn a_pass_reads_only_changed_tasks() {
    let fixture = DashboardFixture::new().await;
    let mut ids = Vec::new();
    for _ in 0..20 {
        ids.push(fixture.submit("a").await);
    }
    // The count of the index reads the task of each due entry once.
    let unread_entries = Cell::new(20);
    let read = async || {
        let before = fixture.requests()[1];
        fixture.view_and_sample().await;
        let read = fixture.app.shared.snapshot().pass.read;
        let more = (fixture.requests()[1] - before).saturating_sub(read + 1);
        assert!(more <= unread_entries.get(), "and the layout, from time to time: {more} more");
        unread_entries.set(unread_entries.get() - more);
        read
    };
    assert_eq!(read().await, 20);
    assert_eq!(read().await, 0);
    fixture.queue.cancel(&ids[3]).await.unwrap();
    assert_eq!(read().await, 1);
    assert_eq!(read().await, 0);
}

#[tokio::test]
async fn a_second_change_under_one_timestamp_is_noticed() {
    let fixture = DashboardFixture::with_coarse_stamps().await;
    let shared = &fixture.app.shared;
    let id = fixture.submit("a").await;
    fixture.view_and_sample().await;
    fixture.queue.cancel(&id).await.unwrap();
    pass(shared).await.unwrap();
    let status = || shared.snapshot().table.get(&id).unwrap().status.name();
    assert_eq!(status(), "cancelled");
    fixture.queue.retry(&id).await.unwrap();
    pass(shared).await.unwrap();
    assert_eq!(status(), "pending", "changed in the same second");
    fixture.host.advance(Duration::from_secs(4));
    let before = fixture.requests()[1];
    pass(shared).await.unwrap();
    assert_eq!(fixture.requests()[1], before + 1, "once more, when the second is surely over");
    pass(shared).await.unwrap();
    assert_eq!(fixture.requests()[1], before + 1, "and then no more");
}

#[tokio::test]
async fn passes_over_a_large_bucket_stay_below_twelve_lists_a_minute() {
    let fixture = DashboardFixture::at_pace(RefreshPace::Bucket).await;
    for _ in 0..2_500 {
        fixture.submit("a").await;
    }
    fixture.host.advance(Duration::from_mins(1));
    for _ in 0..20 * 60 {
        fixture.app.shared.viewers.record(Topic::Queue);
        tasks(&fixture.app.shared).await;
        fixture.host.advance(Duration::from_secs(1));
    }
    let [lists, gets] = fixture.requests();
    assert!((200..=12 * 20 + 3).contains(&lists), "{lists} lists in twenty minutes");
    assert!(gets < 2_550, "each task once, and the layout from time to time: {gets}");
}

#[tokio::test]
async fn a_deleted_task_is_removed_from_the_table() {
    let fixture = DashboardFixture::new().await;
    let (gone, stays) = (fixture.submit("a").await, fixture.submit("b").await);
    fixture.view_and_sample().await;
    let revision = fixture.app.shared.snapshot().revision();
    let key = keys::task(&fixture.queue.shard_len().shard_of(&gone), &gone);
    fixture.queue.client().delete(Purpose::Admin, &key).await.unwrap();
    fixture.view_and_sample().await;
    let snapshot = fixture.app.shared.snapshot();
    assert!(snapshot.table.get(&gone).is_none() && snapshot.table.get(&stays).is_some());
    assert!(snapshot.revision() > revision);
}

#[tokio::test]
async fn a_full_table_keeps_the_first_tasks_and_reports_it() {
    let fixture = DashboardFixture::new().await.with_capacity(10);
    for _ in 0..25 {
        fixture.submit("a").await;
    }
    for _ in 0..3 {
        fixture.view_and_sample().await;
    }
    let sample = &fixture.overview().await["sample"];
    assert_eq!([&sample["rows"], &sample["listed"]], [&json!(10), &json!(10)]);
    assert_eq!([&sample["is_cut"], &sample["is_complete"]], [&json!(true), &json!(false)]);
}

#[tokio::test]
async fn a_task_opened_by_several_viewers_is_read_once() {
    let fixture = DashboardFixture::new().await;
    let id = fixture.submit("a").await;
    let open = || fixture.app.task_cache.get(&fixture.app.shared, &id);
    let before = fixture.requests()[1];
    let opened = join_all((0..10).map(|_| open())).await;
    assert!(opened.iter().all(|task| task.as_ref().unwrap().id == id));
    assert_eq!(fixture.requests()[1] - before, 1);
    fixture.host.advance(Duration::from_secs(4));
    open().await.unwrap();
    assert_eq!(fixture.requests()[1] - before, 2, "an older read is repeated");
    // A missing task is cached, too.
    let nobody = leasehold_core::TaskId::from_random(1);
    for _ in 0..10 {
        assert!(fixture.app.task_cache.get(&fixture.app.shared, &nobody).await.is_err());
    }
    assert_eq!(fixture.requests()[1] - before, 3);
}

#[tokio::test]
async fn tasks_are_counted_as_finished_once_and_only_since_the_server_started() {
    let fixture = DashboardFixture::new().await;
    let complete = || Settlement::complete(json!(null));
    fixture.run(fixture.submit("before").await, complete()).await;
    fixture.view_and_sample().await;
    fixture.run(fixture.submit("after").await, complete()).await;
    for _ in 0..3 {
        fixture.view_and_sample().await;
    }
    let snapshot = fixture.app.shared.snapshot();
    assert_eq!(
        snapshot.table.finished().iter().collect::<Vec<_>>(),
        [(&leasehold_core::Status::Completed, &1)]
    );
}

#[tokio::test]
async fn a_failing_store_is_reported_until_it_recovers() {
    let (fixture, switch) = DashboardFixture::with_failing_store().await;
    let error = async || fixture.overview().await["sample"]["error"].clone();
    fixture.view_and_sample().await;
    assert_eq!(error().await, json!(null));
    switch.set(StoreState::Denied);
    fixture.view_and_sample().await;
    assert!(error().await.as_str().unwrap().contains("reads are forbidden"));
    let since = fixture.app.shared.snapshot().fault(fixture.host.instant()).unwrap().since;
    fixture.view_and_sample().await;
    assert_eq!(
        fixture.app.shared.snapshot().fault(fixture.host.instant()).unwrap().since,
        since,
        "since it started"
    );
    switch.set(StoreState::Well);
    fixture.view_and_sample().await;
    assert_eq!(error().await, json!(null));
}

#[tokio::test]
async fn an_outage_is_one_change_and_its_end_another_however_many_reads_fail() {
    let fixture = DashboardFixture::new().await;
    fixture.view_and_sample().await;
    let error = leasehold_core::Error::invalid("no such bucket");
    let note = |part, failed: Option<&leasehold_core::Error>| {
        fixture.host.advance(Duration::from_secs(10));
        let attempt = ReadAttempt { at: fixture.host.instant(), cost: SampleCost::default() };
        fixture.app.shared.snapshot_mut().note(part, attempt, failed)
    };
    let tries = [
        (Part::Index, true),
        (Part::Tasks, true),
        (Part::Index, true),
        (Part::Index, false),
        (Part::Tasks, false),
    ];
    let changes = tries.map(|(part, fails)| note(part, fails.then_some(&error)));
    assert_eq!(
        changes,
        [
            HealthChange::Failing,
            HealthChange::Same,
            HealthChange::Same,
            HealthChange::Same,
            HealthChange::Recovered
        ]
    );
}

#[tokio::test]
async fn a_store_that_does_not_respond_is_no_change_because_its_client_logs_it() {
    let fixture = DashboardFixture::new().await;
    fixture.view_and_sample().await;
    let refused = leasehold_core::Error::new(Kind::Denied, "reads are forbidden");
    let unreachable = leasehold_core::Error::new(Kind::Unavailable, "cannot be reached");
    let note = |part, failed: Option<&leasehold_core::Error>| {
        fixture.host.advance(Duration::from_secs(10));
        let attempt = ReadAttempt { at: fixture.host.instant(), cost: SampleCost::default() };
        fixture.app.shared.snapshot_mut().note(part, attempt, failed)
    };
    let outage = [(Part::Index, Some(&unreachable)), (Part::Tasks, Some(&unreachable))];
    let refusal = [(Part::Index, Some(&refused)), (Part::Index, Some(&unreachable))];
    let end = [(Part::Index, None), (Part::Tasks, None)];
    let changes = |tries: [[_; 2]; 2]| {
        tries.concat().into_iter().map(|(part, failed)| note(part, failed)).collect::<Vec<_>>()
    };
    assert_eq!(changes([outage, end]), [HealthChange::Same; 4]);
    assert!(fixture.app.shared.snapshot().fault(fixture.host.instant()).is_none());
    // A denied read meanwhile is logged here, and so is its end.
    assert_eq!(
        changes([outage, refusal]),
        [HealthChange::Same, HealthChange::Same, HealthChange::Failing, HealthChange::Same]
    );
    assert_eq!(end.map(|(part, failed)| note(part, failed)), [HealthChange::Same, HealthChange::Recovered]);
}

#[tokio::test]
async fn an_error_is_not_shown_for_long_after_the_store_recovers() {
    let (fixture, switch) = DashboardFixture::with_failing_store().await;
    fixture.view_and_sample().await;
    let failed =
        || fixture.app.shared.snapshot().fault(fixture.host.instant()).map(|fault| fault.text.clone());
    switch.set(StoreState::Denied);
    view_for(&fixture, 1, 360).await;
    assert!(failed().is_some());
    switch.set(StoreState::Well);
    view_for(&fixture, 1, 20).await;
    assert_eq!(failed(), None);
    // Nor if the viewers have left meanwhile: only the index is read then.
    switch.set(StoreState::Denied);
    view_for(&fixture, 1, 360).await;
    view_for(&fixture, 0, 60).await;
    switch.set(StoreState::Well);
    view_for(&fixture, 0, 20).await;
    assert_eq!(failed(), None);
}

#[tokio::test]
async fn a_corrupt_record_is_read_once() {
    let host = FakeHost::new();
    let real: Arc<dyn Host> = Arc::new(host.clone());
    let store = Arc::new(MemoryStore::new(&real));
    let fixture = DashboardFixture::on(host, store.clone(), RefreshPace::Folder).await;
    let id = fixture.submit("a").await;
    let key = keys::task(&fixture.queue.shard_len().shard_of(&id), &id);
    store.put(&key, bytes::Bytes::from_static(b"{"), &leasehold_store::When::Always).await.unwrap();
    fixture.view_and_sample().await;
    let [_, gets] = fixture.requests();
    assert!(gets > 0);
    fixture.view_and_sample().await;
    fixture.view_and_sample().await;
    // The layout of the queue is read once a minute.
    assert_eq!(fixture.requests()[1], gets + 2, "it has not changed");
    assert_eq!(fixture.overview().await["sample"]["corrupt"], 1);
}

#[tokio::test]
async fn the_failure_of_a_part_without_viewers_is_forgotten() {
    let fixture = DashboardFixture::new().await;
    fixture.view_and_sample().await;
    let attempt = ReadAttempt { at: fixture.host.instant(), cost: SampleCost::default() };
    let error = leasehold_core::Error::invalid("no such folder");
    fixture.app.shared.snapshot_mut().note(Part::Workers, attempt, Some(&error));
    assert!(fixture.app.shared.snapshot().fault(fixture.host.instant()).is_some());
    for _ in 0..3 {
        fixture.view_and_sample().await;
    }
    assert!(fixture.app.shared.snapshot().fault(fixture.host.instant()).is_none());
}

#[tokio::test]
async fn the_shard_map_follows_a_change_of_the_number_of_shards() {
    let fixture = DashboardFixture::new().await;
    let id = fixture.submit("a").await;
    fixture.view_and_sample().await;
    let options = leasehold_queue::MigrateOptions { removes_old_keys: false, ..Default::default() };
    fixture.queue.migrate(2, &options, &|_| ()).await.unwrap();
    fixture.app.shared.viewers.record(Topic::Shards);
    fixture.view_and_sample().await;
    fixture.view_and_sample().await;
    assert_eq!(fixture.overview().await["shards"], 256);
    // Its tasks are found in their new shards.
    assert_eq!(fixture.app.shared.queue().get(&id).await.unwrap().shard.as_str().len(), 2);
    assert!(fixture.app.shared.queue().cancel(&id).await.unwrap().is_done());
}

#[tokio::test]
async fn the_existence_of_artifacts_takes_one_list() {
    let fixture = DashboardFixture::new().await;
    let shared = &fixture.app.shared;
    shared.viewers.record(Topic::Queue);
    let [lists, _] = fixture.requests();
    artifacts(shared).await;
    assert_eq!(fixture.requests(), [lists + 1, 0]);
    assert_eq!(fixture.overview().await["has"]["artifacts"], false);
}
