//! Opening a queue, and being refused (promise P8).

use leasehold_core::{Kind, Reason};
use leasehold_queue::{DirectDispatch, LayoutName, ObjectQueue, Queue, QueueConfig, QueueLayout};
use leasehold_store::{
    Client, FolderOptions, FolderStore, FolderTime, Host, MemoryStore, OpenMode, Store, SystemHost, Verb,
};
use serde_json::json;
use std::sync::Arc;

use crate::support::stage::Stage;
use crate::support::{World, audit, mins, order};

async fn connect(world: &World, shard_prefix_len: Option<u8>) -> leasehold_core::Result<ObjectQueue> {
    let client = Client::new(world.store.clone(), Arc::new(world.host.clone()));
    ObjectQueue::with_config(client, QueueConfig { shard_prefix_len, ..QueueConfig::default() }).await
}

#[tokio::test]
async fn a_client_that_disagrees_is_refused_with_both_values() {
    let world = World::new().await;
    connect(&world, None).await.unwrap();
    connect(&world, Some(1)).await.unwrap();
    let before = audit::keys(&world.store, "").await;
    let error = connect(&world, Some(2)).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid);
    let message = "shard_prefix_len is set to 2, but this queue has 1; remove the setting, or correct it";
    assert_eq!(error.to_string(), message);
    for digits in [0, 5, 254] {
        assert_eq!(connect(&world, Some(digits)).await.unwrap_err().kind(), Kind::Invalid);
    }
    assert_eq!(audit::keys(&world.store, "").await, before);
}

#[tokio::test]
async fn a_queue_is_created_once_and_found_by_all() {
    let world = World::new().await;
    let again = connect(&world, None).await.unwrap();
    assert_eq!(again.meta(), world.queue.meta());
    assert_eq!(audit::keys(&world.store, "").await, ["queue.json"], "nothing is left of the probe");
}

#[tokio::test]
async fn a_description_that_cannot_be_used_is_refused_and_kept() {
    let world = World::new().await;
    let good = audit::value(&world.store, "queue.json").await.unwrap();
    let mut newer = good.clone();
    newer["format"] = json!(2);
    newer["shard_prefix_len"] = json!("many");
    let mut wide = good.clone();
    wide["shard_prefix_len"] = json!(9);
    let mut unknown = good.clone();
    unknown["layout"] = json!("columns");
    for (body, word) in [
        ("{".to_owned(), "failed to read queue.json"),
        ("null".to_owned(), "failed to read queue.json"),
        (newer.to_string(), "format 2 is not supported, only up to 1; upgrade leasehold"),
        (wide.to_string(), "failed to read queue.json"),
        (
            unknown.to_string(),
            "layout `columns` is not supported, only `objects` and `journal`; upgrade leasehold",
        ),
    ] {
        world.overwrite("queue.json", body.clone()).await;
        let error = connect(&world, None).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Corrupt);
        assert!(error.to_string().contains(word), "{error}");
        let kept =
            leasehold_store::Store::get(&*world.store, "queue.json", None).await.unwrap().found().unwrap();
        assert_eq!(kept.body, body);
    }
}

#[tokio::test]
async fn a_queue_is_created_with_the_layout_that_is_wanted_and_keeps_it() {
    let world = World::new().await;
    let open = |store: &Arc<MemoryStore>, layout| {
        let config = QueueConfig { layout, transport: None, ..QueueConfig::default() };
        Queue::with_config(client(&world, store.clone()), config)
    };
    let store = Arc::new(MemoryStore::new(&(Arc::new(world.host.clone()) as _)));
    open(&store, Some(LayoutName::Journal)).await.unwrap();
    assert_eq!(audit::value(&store, "queue.json").await.unwrap()["layout"], json!("journal"));
    let any = open(&store, None).await.unwrap();
    assert_eq!(any.objects().unwrap_err().kind(), Kind::Invalid);
    let error = open(&store, Some(LayoutName::Objects)).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "this queue has the layout `journal`, not `objects`; use a store without a queue, or move its tasks with \
         `leasehold export` and `import`"
    );
    let error = ObjectQueue::connect(client(&world, store.clone())).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid);
    assert_eq!(audit::value(&world.store, "queue.json").await.unwrap().get("layout"), None, "the default");
    assert!(open(&world.store, None).await.unwrap().objects().is_ok());
    let digits = QueueConfig { shard_prefix_len: Some(1), transport: None, ..QueueConfig::default() };
    let error = Queue::with_config(client(&world, store.clone()), digits).await.unwrap_err();
    assert!(error.to_string().contains("has the layout `journal`, which has no shards"), "{error}");
}

#[tokio::test]
async fn a_new_queue_in_a_folder_of_this_host_has_a_journal_unless_it_needs_objects() {
    let layout_in = async |time, config: QueueConfig| -> leasehold_core::Result<LayoutName> {
        let folder = tempfile::tempdir().unwrap();
        let options = FolderOptions { time: Some(time), ..FolderOptions::default() };
        let host: Arc<dyn Host> = Arc::new(SystemHost);
        let store = FolderStore::open(folder.path(), options, &host).unwrap();
        let queue = Queue::with_config(Client::new(Arc::new(store), host), config).await?;
        Ok(queue.meta().unwrap().layout)
    };
    let default = QueueConfig::default;
    let layout = |layout| QueueConfig { layout: Some(layout), ..default() };
    let (digits, direct) = (Some(2), Some(DirectDispatch::default()));
    for (time, config, expected) in [
        (FolderTime::Host, default(), LayoutName::Journal),
        (FolderTime::Mount, default(), LayoutName::Objects),
        (FolderTime::Host, layout(LayoutName::Objects), LayoutName::Objects),
        (FolderTime::Mount, layout(LayoutName::Journal), LayoutName::Journal),
        (FolderTime::Host, QueueConfig { shard_prefix_len: digits, ..default() }, LayoutName::Objects),
        (FolderTime::Host, QueueConfig { direct, ..default() }, LayoutName::Objects),
        (FolderTime::Host, QueueConfig { needs_objects: true, ..default() }, LayoutName::Objects),
        (
            FolderTime::Host,
            QueueConfig { needs_objects: true, ..layout(LayoutName::Journal) },
            LayoutName::Journal,
        ),
    ] {
        assert_eq!(layout_in(time, config.clone()).await.unwrap(), expected, "{time:?} {config:?}");
    }
    let both = QueueConfig { shard_prefix_len: digits, ..layout(LayoutName::Journal) };
    let error = layout_in(FolderTime::Host, both).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid);
    assert!(error.to_string().contains("has no shards and no direct dispatch"), "{error}");
}

#[tokio::test]
async fn an_existing_queue_in_a_folder_keeps_its_layout() {
    let folder = tempfile::tempdir().unwrap();
    ObjectQueue::connect(folder.path()).await.unwrap();
    let queue = Queue::connect(folder.path()).await.unwrap();
    assert_eq!(queue.meta().unwrap().layout, LayoutName::Objects);
}

#[tokio::test]
async fn processes_share_a_queue_in_a_folder_with_the_default_configuration() {
    let folder = tempfile::tempdir().unwrap();
    let process = || Queue::connect(folder.path());
    let (broker, client) = (process().await.unwrap(), process().await.unwrap());
    let first = broker.submit("resize", 1).await.unwrap().id;
    let second = client.submit("resize", 2).await.unwrap().id;
    assert!(client.get(&first).await.is_ok());
    assert!(broker.get(&second).await.is_ok());
    // A process that ends hands over.
    broker.close().await.unwrap();
    let third = client.submit("resize", 3).await.unwrap().id;
    for id in [first, second, third] {
        client.get(&id).await.unwrap();
    }
    client.close().await.unwrap();
}

#[tokio::test]
async fn a_place_is_an_address_or_a_path_or_an_open_store() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().to_str().unwrap();
    let queue = ObjectQueue::connect(folder.path()).await.unwrap();
    for again in [
        ObjectQueue::connect(text).await.unwrap(),
        ObjectQueue::connect(format!("file://{text}")).await.unwrap(),
        ObjectQueue::connect(queue.client().clone()).await.unwrap(),
    ] {
        assert_eq!(again.meta(), queue.meta());
    }
    assert_eq!(ObjectQueue::connect("redis://x").await.unwrap_err().kind(), Kind::Invalid);
}

fn client(world: &World, store: Arc<dyn Store>) -> Client {
    Client::new(store, Arc::new(world.host.clone()))
}

#[tokio::test]
async fn only_clients_in_create_mode_create_a_queue() {
    let world = World::new().await;
    let store = Arc::new(MemoryStore::new(&(Arc::new(world.host.clone()) as _)));
    for mode in [OpenMode::Read, OpenMode::Write] {
        let config = QueueConfig { mode, ..QueueConfig::default() };
        let error = ObjectQueue::with_config(client(&world, store.clone()), config).await.unwrap_err();
        assert_eq!((error.kind(), error.reason()), (Kind::Invalid, Some(Reason::Missing)));
        assert_eq!(error.to_string(), "no queue at memory; create one with `leasehold init`");
        assert!(audit::keys(&store, "").await.is_empty());
        let config = QueueConfig { mode, ..QueueConfig::default() };
        ObjectQueue::with_config(client(&world, world.store.clone()), config).await.unwrap();
    }
}

#[tokio::test]
async fn a_folder_that_is_missing_stays_missing_unless_a_queue_is_to_be_created() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("deep/queue");
    for mode in [OpenMode::Read, OpenMode::Write] {
        let config = QueueConfig { mode, ..QueueConfig::default() };
        let error = ObjectQueue::with_config(path.as_path(), config).await.unwrap_err();
        assert_eq!(error.reason(), Some(Reason::Missing), "{error}");
        assert!(!folder.path().join("deep").exists());
    }
    let created = ObjectQueue::connect(path.as_path()).await.unwrap();
    let id = created.submit_task(order()).await.unwrap().id;
    let config = QueueConfig { mode: OpenMode::Read, ..QueueConfig::default() };
    let reader = ObjectQueue::with_config(path.as_path(), config).await.unwrap();
    assert_eq!(reader.get(&id).await.unwrap().id, id);
    assert_eq!(reader.cancel(&id).await.unwrap_err().kind(), Kind::Denied);
}

#[tokio::test]
async fn a_queue_is_never_created_over_tasks_and_can_be_restored() {
    let world = World::with_shards(2).await;
    let id = world.submit().await;
    world.store.delete("queue.json").await.unwrap();
    let before = audit::keys(&world.store, "").await;
    for mode in [OpenMode::Create, OpenMode::Write, OpenMode::Read] {
        let config = QueueConfig { mode, ..QueueConfig::default() };
        let error = ObjectQueue::with_config(client(&world, world.store.clone()), config).await.unwrap_err();
        assert!(error.kind() == Kind::Corrupt && error.to_string().contains("--restore"), "{error}");
    }
    assert_eq!(audit::keys(&world.store, "").await, before);
    assert_eq!(world.queue.check(true).await.unwrap_err().kind(), Kind::Corrupt);
    let wrong = QueueConfig { shard_prefix_len: Some(3), ..QueueConfig::default() };
    let error = Queue::restore(client(&world, world.store.clone()), wrong).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "shard_prefix_len is set to 3, but the tasks are in shards of 2 digits; remove the setting, or correct it"
    );
    let restored = Queue::restore(client(&world, world.store.clone()), QueueConfig::default()).await.unwrap();
    assert_eq!(restored.objects().unwrap().shard_len().digits(), 2);
    assert_eq!(restored.get(&id).await.unwrap().id, id);
    let again = Queue::restore(client(&world, world.store.clone()), QueueConfig::default()).await.unwrap();
    assert_eq!(again.meta(), restored.meta());
}

#[tokio::test]
async fn a_queue_is_not_restored_while_tasks_are_in_shards_of_two_lengths() {
    let world = World::with_shards(2).await;
    let id = world.submit().await;
    world.store.delete("queue.json").await.unwrap();
    world.overwrite(&format!("tasks/0/{id}.json"), "{}").await;
    let error =
        Queue::restore(client(&world, world.store.clone()), QueueConfig::default()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Corrupt);
    assert!(error.to_string().contains("tasks/ has shards of 1 digit and of 2 digits"), "{error}");
    assert!(audit::value(&world.store, "queue.json").await.is_none());
}

#[tokio::test]
async fn a_client_finds_the_queue_that_another_creates_at_the_same_time() {
    let world = World::new().await;
    let store = Arc::new(MemoryStore::new(&(Arc::new(world.host.clone()) as _)));
    let stage = Arc::new(Stage::new(store.clone()));
    let (other, its_store) = (world.clone(), store.clone());
    stage.interrupt(|_, asked| asked.verb == Verb::List, async move {
        let created = ObjectQueue::connect(client(&other, its_store)).await.unwrap();
        created.submit_task(order()).await.unwrap();
    });
    let found = ObjectQueue::connect(client(&world, stage)).await.unwrap();
    let created = ObjectQueue::connect(client(&world, store)).await.unwrap();
    assert_eq!(found.meta(), created.meta());
}

/// Held tasks may be settled; nothing is submitted, claimed or repaired.
#[tokio::test]
async fn a_connected_client_reports_that_the_description_is_missing_and_continues_when_it_is_back() {
    let world = World::new().await;
    let kept = Store::get(&*world.store, "queue.json", None).await.unwrap().found().unwrap();
    world.store.delete("queue.json").await.unwrap();
    world.queue.ensure_writable().await.expect("it was read a moment ago");
    world.advance(QueueConfig::default().meta_refresh_interval + std::time::Duration::from_secs(1));
    let error = world.queue.ensure_writable().await.unwrap_err();
    assert!(
        error.kind() == Kind::Corrupt && error.to_string().contains("queue.json is missing at memory"),
        "{error}"
    );
    assert_eq!(world.queue.submit_task(order()).await.unwrap_err().kind(), Kind::Corrupt);
    world.advance(mins(10));
    world.overwrite("queue.json", kept.body).await;
    world.submit().await;
}

/// An acknowledged task would be in no queue.
#[tokio::test]
async fn a_connected_client_submits_nothing_into_another_queue_in_its_place() {
    let world = World::new().await;
    let kept = Store::get(&*world.store, "queue.json", None).await.unwrap().found().unwrap();
    let mut other: serde_json::Value = serde_json::from_slice(&kept.body).unwrap();
    other["queue_id"] = json!("00000000000000000000000001");
    world.overwrite("queue.json", other.to_string()).await;
    world.advance(QueueConfig::default().meta_refresh_interval + std::time::Duration::from_secs(1));
    let before = audit::keys(&world.store, "").await;
    for _ in 0..2 {
        let error = world.queue.submit_task(order()).await.unwrap_err();
        assert!(
            error.kind() == Kind::Invalid && error.to_string().contains("another queue"),
            "{:?}: {error}",
            error.kind()
        );
        assert!(world.queue.is_outdated());
    }
    assert_eq!(audit::keys(&world.store, "").await, before);
    // The right one is back, as after a restore of the wrong backup.
    world.overwrite("queue.json", kept.body).await;
    world.submit().await;
    assert!(!world.queue.is_outdated());
}

#[tokio::test]
async fn the_front_opens_the_layout_that_is_named() {
    let world = World::new().await;
    let client = || Client::new(world.store.clone(), Arc::new(world.host.clone()));
    let mut named = audit::value(&world.store, "queue.json").await.unwrap();
    named["layout"] = json!("objects");
    world.overwrite("queue.json", named.to_string()).await;
    let queue = Queue::connect(client()).await.unwrap();
    assert_eq!(queue.objects().unwrap().meta().queue_id, world.queue.meta().queue_id);
    let id = queue.submit("work", 1).await.unwrap().id;
    assert_eq!(queue.get(&id).await.unwrap(), world.queue.get(&id).await.unwrap());
    // A client that is connected starts nothing by another layout.
    for layout in ["journal", "columns"] {
        named["layout"] = json!(layout);
        world.overwrite("queue.json", named.to_string()).await;
        world.advance(mins(2));
        assert_eq!(queue.submit("work", 2).await.unwrap_err().kind(), Kind::Corrupt);
    }
    assert_eq!(Queue::connect(client()).await.unwrap_err().kind(), Kind::Corrupt);
}

#[tokio::test]
async fn a_journal_that_was_written_as_files_is_not_continued_as_objects_nor_the_other_way_round() {
    let host: Arc<dyn Host> = Arc::new(SystemHost);
    for (first, then) in [(FolderTime::Host, FolderTime::Mount), (FolderTime::Mount, FolderTime::Host)] {
        let folder = tempfile::tempdir().unwrap();
        let open = async |time| {
            let options = FolderOptions { time: Some(time), ..FolderOptions::default() };
            let store = FolderStore::open(folder.path(), options, &host).unwrap();
            let config = QueueConfig { layout: Some(LayoutName::Journal), ..QueueConfig::default() };
            Queue::with_config(Client::new(Arc::new(store), host.clone()), config).await.unwrap()
        };
        let queue = open(first).await;
        queue.submit("a", 1).await.unwrap();
        queue.close().await.unwrap();
        let error = open(then).await.submit("a", 2).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid, "{error}");
        assert!(error.to_string().contains("open the queue"), "{error}");
        // Nothing was written that would keep the first process from its log.
        let queue = open(first).await;
        assert_eq!(queue.stats().await.unwrap().due, 1, "{first:?}");
        queue.submit("a", 3).await.unwrap();
        queue.close().await.unwrap();
    }
}

#[tokio::test]
async fn a_queue_of_objects_without_tasks_is_restored_as_one() {
    let folder = tempfile::tempdir().unwrap();
    let host: Arc<dyn Host> = Arc::new(SystemHost);
    let options = FolderOptions { time: Some(FolderTime::Host), ..FolderOptions::default() };
    let store = Arc::new(FolderStore::open(folder.path(), options, &host).unwrap());
    store.put("workers/w1.json", "{}".into(), &leasehold_store::When::Absent).await.unwrap();
    let client = Client::new(store, host);
    let restored = Queue::restore(client, QueueConfig::default()).await.unwrap();
    assert_eq!(restored.meta().unwrap().layout, LayoutName::Objects);
}
