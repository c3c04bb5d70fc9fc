//! Number of requests to the store, by the ledger, under a simulated clock.

use super::*;
use crate::testing::{Ill, TestStand};
use futures::future::join_all;
use leasehold_core::keys;
use leasehold_queue::Settlement;
use leasehold_store::testing::FakeHost;
use leasehold_store::{MemoryStore, Store};
use serde_json::json;
use std::cell::Cell;

/// Simulates viewers that view everything once a second for `secs` seconds.
async fn watched(stand: &TestStand, viewers: usize, secs: u64) {
    for _ in 0..secs {
        for _ in 0..viewers {
            stand.overview().await;
            stand.app.shared.looks.at(Topic::Shards);
            stand.app.shared.looks.at(Topic::Workers);
        }
        stand.sample().await;
        stand.host.advance(Duration::from_secs(1));
    }
}

#[tokio::test]
async fn ten_viewers_cost_no_more_than_one() {
    for pace in [RefreshPace::Folder, RefreshPace::Bucket] {
        let mut asked = Vec::new();
        for viewers in [1, 10] {
            let stand = TestStand::at_pace(pace).await;
            for _ in 0..20 {
                stand.submit("a").await;
            }
            watched(&stand, viewers, 120).await;
            asked.push(stand.asked());
        }
        assert_eq!(asked[0], asked[1], "{pace:?}");
        assert!(asked[0][0] > 20, "{pace:?}: there was a viewer");
    }
}

#[tokio::test]
async fn without_viewers_only_the_index_is_counted_once_a_minute() {
    let stand = TestStand::at_pace(RefreshPace::Bucket).await;
    stand.submit("a").await;
    watched(&stand, 0, 600).await;
    // The task of a due entry is read once.
    assert_eq!(stand.asked(), [4 * 10, 10 + 1], "four lists and a get each time");
}

#[tokio::test]
async fn a_new_viewer_gets_fresh_data_at_once() {
    let stand = TestStand::at_pace(RefreshPace::Bucket).await;
    watched(&stand, 0, 30).await;
    let mut began = stand.app.shared.looks.began();
    let id = stand.submit("a").await;
    stand.overview().await;
    assert!(began.has_changed().unwrap(), "the sampler is woken");
    began.mark_unchanged();
    stand.sample().await;
    let overview = stand.overview().await;
    assert_eq!((&overview["counts"]["due"], &overview["index"]["due"]), (&json!(1), &json!(1)));
    assert!(stand.app.shared.board().table.get(&id).is_some());
    assert!(!began.has_changed().unwrap());
}

#[tokio::test]
async fn a_pass_reads_only_changed_tasks() {
    let stand = TestStand::new().await;
    let mut ids = Vec::new();
    for _ in 0..20 {
        ids.push(stand.submit("a").await);
    }
    // The count of the index reads the task of each due entry once.
    let doubtful = Cell::new(20);
    let read = async || {
        let before = stand.asked()[1];
        stand.look().await;
        let read = stand.app.shared.board().pass.read;
        let more = (stand.asked()[1] - before).saturating_sub(read + 1);
        assert!(more <= doubtful.get(), "and the layout, from time to time: {more} more");
        doubtful.set(doubtful.get() - more);
        read
    };
    assert_eq!(read().await, 20);
    assert_eq!(read().await, 0);
    stand.queue.cancel(&ids[3]).await.unwrap();
    assert_eq!(read().await, 1);
    assert_eq!(read().await, 0);
}

#[tokio::test]
async fn a_second_change_under_one_timestamp_is_noticed() {
    let stand = TestStand::with_coarse_stamps().await;
    let shared = &stand.app.shared;
    let id = stand.submit("a").await;
    stand.look().await;
    stand.queue.cancel(&id).await.unwrap();
    pass(shared).await.unwrap();
    let status = || shared.board().table.get(&id).unwrap().status.name();
    assert_eq!(status(), "cancelled");
    stand.queue.retry(&id).await.unwrap();
    pass(shared).await.unwrap();
    assert_eq!(status(), "pending", "changed in the same second");
    stand.host.advance(Duration::from_secs(4));
    let before = stand.asked()[1];
    pass(shared).await.unwrap();
    assert_eq!(stand.asked()[1], before + 1, "once more, when the second is surely over");
    pass(shared).await.unwrap();
    assert_eq!(stand.asked()[1], before + 1, "and then no more");
}

#[tokio::test]
async fn passes_over_a_large_bucket_stay_below_twelve_lists_a_minute() {
    let stand = TestStand::at_pace(RefreshPace::Bucket).await;
    for _ in 0..2_500 {
        stand.submit("a").await;
    }
    stand.host.advance(Duration::from_mins(1));
    for _ in 0..20 * 60 {
        stand.app.shared.looks.at(Topic::Queue);
        tasks(&stand.app.shared).await;
        stand.host.advance(Duration::from_secs(1));
    }
    let [lists, gets] = stand.asked();
    assert!((200..=12 * 20 + 3).contains(&lists), "{lists} lists in twenty minutes");
    assert!(gets < 2_550, "each task once, and the layout from time to time: {gets}");
}

#[tokio::test]
async fn a_deleted_task_is_removed_from_the_table() {
    let stand = TestStand::new().await;
    let (gone, stays) = (stand.submit("a").await, stand.submit("b").await);
    stand.look().await;
    let revision = stand.app.shared.board().revision();
    let key = keys::task(&stand.queue.shard_len().shard_of(&gone), &gone);
    stand.queue.client().delete(Purpose::Admin, &key).await.unwrap();
    stand.look().await;
    let board = stand.app.shared.board();
    assert!(board.table.get(&gone).is_none() && board.table.get(&stays).is_some());
    assert!(board.revision() > revision);
}

#[tokio::test]
async fn a_full_table_keeps_the_first_tasks_and_reports_it() {
    let stand = TestStand::new().await.with_room(10);
    for _ in 0..25 {
        stand.submit("a").await;
    }
    for _ in 0..3 {
        stand.look().await;
    }
    let sample = &stand.overview().await["sample"];
    assert_eq!([&sample["rows"], &sample["listed"]], [&json!(10), &json!(10)]);
    assert_eq!([&sample["is_cut"], &sample["is_complete"]], [&json!(true), &json!(false)]);
}

#[tokio::test]
async fn a_task_opened_by_several_viewers_is_read_once() {
    let stand = TestStand::new().await;
    let id = stand.submit("a").await;
    let open = || stand.app.opened.get(&stand.app.shared, &id);
    let before = stand.asked()[1];
    let opened = join_all((0..10).map(|_| open())).await;
    assert!(opened.iter().all(|task| task.as_ref().unwrap().id == id));
    assert_eq!(stand.asked()[1] - before, 1);
    stand.host.advance(Duration::from_secs(4));
    open().await.unwrap();
    assert_eq!(stand.asked()[1] - before, 2, "an older read is repeated");
    // A missing task is cached, too.
    let nobody = leasehold_core::TaskId::from_random(1);
    for _ in 0..10 {
        assert!(stand.app.opened.get(&stand.app.shared, &nobody).await.is_err());
    }
    assert_eq!(stand.asked()[1] - before, 3);
}

#[tokio::test]
async fn tasks_are_counted_as_finished_once_and_only_since_the_server_started() {
    let stand = TestStand::new().await;
    let complete = || Settlement::complete(json!(null));
    stand.run(stand.submit("before").await, complete()).await;
    stand.look().await;
    stand.run(stand.submit("after").await, complete()).await;
    for _ in 0..3 {
        stand.look().await;
    }
    let board = stand.app.shared.board();
    assert_eq!(board.table.finished().iter().collect::<Vec<_>>(), [(&leasehold_core::Status::Completed, &1)]);
}

#[tokio::test]
async fn a_failing_store_is_reported_until_it_recovers() {
    let (stand, state) = TestStand::ailing().await;
    let error = async || stand.overview().await["sample"]["error"].clone();
    stand.look().await;
    assert_eq!(error().await, json!(null));
    state.set(Ill::Denied);
    stand.look().await;
    assert!(error().await.as_str().unwrap().contains("reads are forbidden"));
    let since = stand.app.shared.board().fault(stand.host.instant()).unwrap().since;
    stand.look().await;
    assert_eq!(stand.app.shared.board().fault(stand.host.instant()).unwrap().since, since, "since it began");
    state.set(Ill::Well);
    stand.look().await;
    assert_eq!(error().await, json!(null));
}

#[tokio::test]
async fn an_outage_is_one_change_and_its_end_another_however_many_reads_fail() {
    let stand = TestStand::new().await;
    stand.look().await;
    let error = leasehold_core::Error::invalid("no such bucket");
    let note = |part, failed: Option<&leasehold_core::Error>| {
        stand.host.advance(Duration::from_secs(10));
        let tried = Tried { at: stand.host.instant(), took: Took::default() };
        stand.app.shared.board_mut().note(part, tried, failed)
    };
    let tries = [
        (Part::Index, true),
        (Part::Tasks, true),
        (Part::Index, true),
        (Part::Index, false),
        (Part::Tasks, false),
    ];
    let turns = tries.map(|(part, fails)| note(part, fails.then_some(&error)));
    assert_eq!(turns, [Turn::Failing, Turn::Same, Turn::Same, Turn::Same, Turn::Recovered]);
}

#[tokio::test]
async fn a_store_that_does_not_respond_is_no_change_because_its_client_logs_it() {
    let stand = TestStand::new().await;
    stand.look().await;
    let refused = leasehold_core::Error::new(Kind::Denied, "reads are forbidden");
    let unreachable = leasehold_core::Error::new(Kind::Unavailable, "cannot be reached");
    let note = |part, failed: Option<&leasehold_core::Error>| {
        stand.host.advance(Duration::from_secs(10));
        let tried = Tried { at: stand.host.instant(), took: Took::default() };
        stand.app.shared.board_mut().note(part, tried, failed)
    };
    let outage = [(Part::Index, Some(&unreachable)), (Part::Tasks, Some(&unreachable))];
    let refusal = [(Part::Index, Some(&refused)), (Part::Index, Some(&unreachable))];
    let end = [(Part::Index, None), (Part::Tasks, None)];
    let turns = |tries: [[_; 2]; 2]| {
        tries.concat().into_iter().map(|(part, failed)| note(part, failed)).collect::<Vec<_>>()
    };
    assert_eq!(turns([outage, end]), [Turn::Same; 4]);
    assert!(stand.app.shared.board().fault(stand.host.instant()).is_none());
    // A denied read meanwhile is logged here, and so is its end.
    assert_eq!(turns([outage, refusal]), [Turn::Same, Turn::Same, Turn::Failing, Turn::Same]);
    assert_eq!(end.map(|(part, failed)| note(part, failed)), [Turn::Same, Turn::Recovered]);
}

#[tokio::test]
async fn an_error_is_not_shown_for_long_after_the_store_recovers() {
    let (stand, state) = TestStand::ailing().await;
    stand.look().await;
    let failed = || stand.app.shared.board().fault(stand.host.instant()).map(|fault| fault.text.clone());
    state.set(Ill::Denied);
    watched(&stand, 1, 360).await;
    assert!(failed().is_some());
    state.set(Ill::Well);
    watched(&stand, 1, 20).await;
    assert_eq!(failed(), None);
    // Nor if the viewers have left meanwhile: only the index is read then.
    state.set(Ill::Denied);
    watched(&stand, 1, 360).await;
    watched(&stand, 0, 60).await;
    state.set(Ill::Well);
    watched(&stand, 0, 20).await;
    assert_eq!(failed(), None);
}

#[tokio::test]
async fn a_corrupt_record_is_read_once() {
    let host = FakeHost::new();
    let real: Arc<dyn Host> = Arc::new(host.clone());
    let store = Arc::new(MemoryStore::new(&real));
    let stand = TestStand::on(host, store.clone(), RefreshPace::Folder).await;
    let id = stand.submit("a").await;
    let key = keys::task(&stand.queue.shard_len().shard_of(&id), &id);
    store.put(&key, bytes::Bytes::from_static(b"{"), &leasehold_store::When::Always).await.unwrap();
    stand.look().await;
    let [_, gets] = stand.asked();
    assert!(gets > 0);
    stand.look().await;
    stand.look().await;
    // The layout of the queue is read once a minute.
    assert_eq!(stand.asked()[1], gets + 2, "it has not changed");
    assert_eq!(stand.overview().await["sample"]["corrupt"], 1);
}

#[tokio::test]
async fn the_failure_of_a_part_without_viewers_is_forgotten() {
    let stand = TestStand::new().await;
    stand.look().await;
    let tried = Tried { at: stand.host.instant(), took: Took::default() };
    let error = leasehold_core::Error::invalid("no such folder");
    stand.app.shared.board_mut().note(Part::Workers, tried, Some(&error));
    assert!(stand.app.shared.board().fault(stand.host.instant()).is_some());
    for _ in 0..3 {
        stand.look().await;
    }
    assert!(stand.app.shared.board().fault(stand.host.instant()).is_none());
}

#[tokio::test]
async fn the_shard_map_follows_a_change_of_the_number_of_shards() {
    let stand = TestStand::new().await;
    let id = stand.submit("a").await;
    stand.look().await;
    let options = leasehold_queue::MigrateOptions { sweeps: false, ..Default::default() };
    stand.queue.migrate(2, &options, &|_| ()).await.unwrap();
    stand.app.shared.looks.at(Topic::Shards);
    stand.look().await;
    stand.look().await;
    assert_eq!(stand.overview().await["shards"], 256);
    // Its tasks are found in their new shards.
    assert_eq!(stand.app.shared.queue().get(&id).await.unwrap().shard.as_str().len(), 2);
    assert!(matches!(stand.app.shared.queue().cancel(&id).await, Ok(leasehold_queue::Operated::Done(_))));
}

#[tokio::test]
async fn the_existence_of_artifacts_takes_one_list() {
    let stand = TestStand::new().await;
    let shared = &stand.app.shared;
    shared.looks.at(Topic::Queue);
    let [lists, _] = stand.asked();
    artifacts(shared).await;
    assert_eq!(stand.asked(), [lists + 1, 0]);
    assert_eq!(stand.overview().await["has"]["artifacts"], false);
}
