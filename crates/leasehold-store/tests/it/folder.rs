//! Folder store: conformance, several processes, writers killed at any instant, its clock.

use leasehold_store::testing::conformance::{Suite, SuiteOptions, races};
use leasehold_store::testing::{FakeHost, Lane, is_whole};
use leasehold_store::{
    Client, Durability, FolderAccess, FolderOptions, FolderStore, FolderTime, Get, Host, List, OpenMode,
    Purpose, PutOutcome, Store, SystemHost, When,
};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

fn host() -> Arc<dyn Host> {
    Arc::new(SystemHost)
}

fn open(root: &Path, options: FolderOptions) -> Arc<dyn Store> {
    Arc::new(FolderStore::open(root, options, &host()).unwrap())
}

fn client(root: &Path) -> Client {
    Client::new(open(root, FolderOptions::default()), host())
}

fn exerciser(action: &str, root: &Path, key: &str, number: usize) -> Child {
    Command::new(env!("CARGO_BIN_EXE_store-exerciser"))
        .args([action, root.to_str().unwrap(), key, &number.to_string()])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

fn printed(child: Child) -> usize {
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap().trim().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_durable_folder_conforms() {
    let folder = tempfile::tempdir().unwrap();
    let extent = SuiteOptions { increments: Lane::current().sized(2_000, 4_000), ..SuiteOptions::default() };
    Suite::new(open(folder.path(), FolderOptions::default()), extent).run().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_without_syncs_conforms() {
    let folder = tempfile::tempdir().unwrap();
    let options = FolderOptions { durability: Durability::Os, ..FolderOptions::default() };
    Suite::new(open(folder.path(), options), SuiteOptions::default()).run().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_on_the_time_of_a_mount_conforms() {
    let folder = tempfile::tempdir().unwrap();
    let options = FolderOptions { time: Some(FolderTime::Mount), ..FolderOptions::default() };
    let extent = SuiteOptions { increments: 100, ..SuiteOptions::default() };
    let suite = Suite::new(open(folder.path(), options), extent);
    suite.run().await.unwrap();
    let width = suite.client().now().unwrap().width().unwrap();
    assert!(width < Duration::from_secs(3), "{width:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn sixteen_processes_lose_no_increment_and_share_no_key() {
    let folder = tempfile::tempdir().unwrap();
    let times = Lane::current().sized(500, 2_000);
    let updaters: Vec<_> = (0..16).map(|_| exerciser("increment", folder.path(), "counter", times)).collect();
    let done: usize = updaters.into_iter().map(printed).sum();
    assert_eq!(done, 16 * times);
    let creators: Vec<_> = (0..16).map(|_| exerciser("create", folder.path(), "contested/", 300)).collect();
    let won: usize = creators.into_iter().map(printed).sum();
    assert_eq!(won, 300, "exactly one winner for each key");
    let counter = client(folder.path()).get(Purpose::Admin, "counter").await.unwrap().unwrap();
    assert_eq!(races::number(&counter.body), 16 * times as u64);
}

#[tokio::test(flavor = "multi_thread")]
async fn writers_killed_at_any_instant_leave_whole_objects_and_nothing_else() {
    const KEYS: usize = 20;
    const KILLS: u64 = 200;
    let folder = tempfile::tempdir().unwrap();
    let mut acknowledged = BTreeSet::new();
    for round in 0..KILLS {
        let mut writer = exerciser("overwrite", folder.path(), "o/", KEYS);
        let mut lines = BufReader::new(writer.stdout.take().unwrap()).lines();
        // Not at once, so that the kill hits writes and not the start; then at a random instant.
        acknowledged.insert(lines.next().unwrap().unwrap());
        tokio::time::sleep(Duration::from_micros((round * 7_919) % 9_000)).await;
        writer.kill().unwrap();
        writer.wait().unwrap();
        acknowledged.extend(lines.map_while(Result::ok));
        for number in 0..KEYS {
            let path = folder.path().join(format!("o/{number:03}"));
            if let Ok(body) = std::fs::read(path) {
                assert!(is_whole(&body), "object {number} is torn after kill {round}");
            }
        }
    }
    let temporary = || files(&folder.path().join(".leasehold/tmp"));
    assert!(!temporary().is_empty(), "no kill hit a write: the test shows nothing");
    // The next start removes their files, and every lock is free.
    let client = client(folder.path());
    let ours = temporary();
    assert_eq!(ours.len(), 1, "only our own lock file: {ours:?}");
    for number in 0..KEYS {
        let key = format!("o/{number:03}");
        client.put_always(Purpose::Admin, &key, "free".into()).await.unwrap();
    }
    let listed = client.list(Purpose::Admin, &List::all("o/")).await.unwrap();
    assert!(listed.entries.iter().all(|entry| entry.size == 4));
    assert!(acknowledged.iter().all(|key| listed.entries.iter().any(|entry| entry.key == *key)));
}

fn files(directory: &Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found
}

#[tokio::test]
async fn a_living_writers_temporary_files_are_not_touched() {
    let folder = tempfile::tempdir().unwrap();
    let mut writer = exerciser("overwrite", folder.path(), "o/", 5);
    let mut lines = BufReader::new(writer.stdout.take().unwrap()).lines();
    for _ in 0..50 {
        lines.next().unwrap().unwrap();
        drop(client(folder.path()));
    }
    assert!(writer.try_wait().unwrap().is_none(), "the writer died because its files were removed");
    writer.kill().unwrap();
    writer.wait().unwrap();
}

#[tokio::test]
async fn no_key_leaves_the_root() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root");
    let client = client(&root);
    for key in ["../out", "a/../../out", "/tmp/out", "a//b", "", ".leasehold/tmp/x", "a\0b", &"x".repeat(300)]
    {
        let put = client.put_always(Purpose::Admin, key, "x".into()).await;
        assert_eq!(put.unwrap_err().kind(), leasehold_core::Kind::Invalid, "{key:?}");
        assert!(client.get(Purpose::Admin, key).await.is_err());
        assert!(client.delete(Purpose::Admin, key).await.is_err());
    }
    assert!(client.ledger().snapshot().lines().next().is_none(), "no request was sent");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[tokio::test]
async fn a_key_that_begins_another_is_refused_and_harms_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let client = client(folder.path());
    client.put_always(Purpose::Admin, "a/b", "x".into()).await.unwrap();
    for (key, body) in [("a", "y"), ("a", ""), ("a/b/c", "y"), ("a/b/c", "")] {
        let error = client.put_always(Purpose::Admin, key, body.into()).await.unwrap_err();
        assert_eq!(error.kind(), leasehold_core::Kind::Invalid, "{key}: {error}");
    }
    assert_eq!(client.get(Purpose::Admin, "a/b").await.unwrap().unwrap().body, "x");
    // Once the deeper one is gone, its place is free.
    client.delete(Purpose::Admin, "a/b").await.unwrap();
    client.put_always(Purpose::Admin, "a", "y".into()).await.unwrap();
}

#[tokio::test]
async fn empty_directories_are_removed_and_created_again() {
    let folder = tempfile::tempdir().unwrap();
    let client = client(folder.path());
    for _ in 0..3 {
        client.put_always(Purpose::Admin, "ready/0/20260101-0000/x", "".into()).await.unwrap();
        client.delete(Purpose::Admin, "ready/0/20260101-0000/x").await.unwrap();
        assert!(!folder.path().join("ready").exists());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn writers_and_removers_in_one_directory_do_not_disturb_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..16 {
        let client = client(folder.path());
        tasks.spawn(async move {
            let key = format!("ready/0/minute/{number}");
            for _ in 0..200 {
                client.put_always(Purpose::Admin, &key, "".into()).await.unwrap();
                assert!(client.get(Purpose::Admin, &key).await.unwrap().is_some());
                client.delete(Purpose::Admin, &key).await.unwrap();
            }
        });
    }
    tasks.join_all().await;
    assert!(!folder.path().join("ready").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_stops_with_a_lock_makes_other_requests_fail_in_time_and_without_effect() {
    let folder = tempfile::tempdir().unwrap();
    let client = client(folder.path()).with_timeout(Duration::from_secs(1));
    client.put_always(Purpose::Admin, "k", "before".into()).await.unwrap();
    let held: Vec<_> = files(&folder.path().join(".leasehold/locks"))
        .iter()
        .map(|path| std::fs::File::open(path).unwrap())
        .inspect(|file| file.lock().unwrap())
        .collect();
    assert_eq!(held.len(), 1);
    let (put, delete) = tokio::join!(
        client.put_always(Purpose::Admin, "k", "after".into()),
        client.delete(Purpose::Admin, "k"),
    );
    for error in [put.unwrap_err(), delete.unwrap_err()] {
        assert_eq!(error.kind(), leasehold_core::Kind::Unavailable);
        let holder = format!("process {} (", std::process::id());
        let message = error.to_string();
        assert!(message.starts_with("`k` has been locked by ") && message.contains(&holder), "{message}");
        assert!(!error.outcome_is_unknown());
    }
    drop(held);
    assert_eq!(client.get(Purpose::Admin, "k").await.unwrap().unwrap().body, "before");
}

#[test]
fn a_clock_that_is_locked_by_another_process_is_reported_in_time() {
    let folder = tempfile::tempdir().unwrap();
    drop(client(folder.path()));
    let lock = std::fs::File::open(folder.path().join(".leasehold/clock/lock")).unwrap();
    lock.lock().unwrap();
    let (sender, receiver) = std::sync::mpsc::channel();
    let root = folder.path().to_owned();
    let opening = std::thread::spawn(move || {
        sender.send(FolderStore::open(root, FolderOptions::default(), &host()).err()).unwrap();
    });
    let error =
        receiver.recv_timeout(Duration::from_secs(20)).expect("it waits for ever").expect("it is locked");
    opening.join().unwrap();
    assert_eq!(error.kind(), leasehold_core::Kind::Unavailable, "{error}");
    assert!(error.to_string().contains(&format!("process {} (", std::process::id())), "{error}");
}

#[tokio::test]
async fn what_a_folder_creates_is_for_its_user_or_its_group() {
    let folder = tempfile::tempdir().unwrap();
    for (name, access, file, directory) in
        [("own", FolderAccess::Private, 0o600, 0o700), ("shared", FolderAccess::Group, 0o660, 0o2770)]
    {
        let root = folder.path().join(name);
        let client = Client::new(open(&root, FolderOptions { access, ..FolderOptions::default() }), host());
        everything(&client).await;
        for path in paths(&root) {
            let found = std::fs::metadata(&path).unwrap();
            let mode = std::os::unix::fs::PermissionsExt::mode(&found.permissions()) & 0o7777;
            assert_eq!(mode, if found.is_dir() { directory } else { file }, "{}: {mode:o}", path.display());
        }
    }
}

/// Puts an entry, an object and an upload, and removes something.
async fn everything(client: &Client) {
    client.put_always(Purpose::Admin, "a/entry", "".into()).await.unwrap();
    client.put_always(Purpose::Admin, "a/object", "x".into()).await.unwrap();
    let upload = client.upload(Purpose::Admin, "b/upload", 3).await.unwrap();
    upload.part(0, "abc".into()).await.unwrap();
    upload.finish().await.unwrap();
    client.put_always(Purpose::Admin, "c/gone", "x".into()).await.unwrap();
    client.delete(Purpose::Admin, "c/gone").await.unwrap();
}

/// Lists a directory and everything below it.
fn paths(directory: &Path) -> Vec<std::path::PathBuf> {
    let below = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let below = below.flat_map(|path| if path.is_dir() { paths(&path) } else { vec![path] });
    std::iter::once(directory.to_owned()).chain(below).collect()
}

#[test]
fn a_process_of_another_time_namespace_is_refused() {
    let elsewhere = || {
        let mut command = Command::new("unshare");
        command.args(["--time", "--fork", "--boottime", "100"]);
        command
    };
    if !elsewhere().arg("true").output().is_ok_and(|output| output.status.success()) {
        println!(
            "no permission to make a time namespace here: only the unit tests of the clock have checked this"
        );
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(printed(exerciser("increment", folder.path(), "k", 1)), 1);
    let mut command = elsewhere();
    command.arg(env!("CARGO_BIN_EXE_store-exerciser")).arg("increment").arg(folder.path()).args(["k", "1"]);
    let output = command.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && stderr.contains("time namespace"), "{stderr}");
    assert_eq!(printed(exerciser("increment", folder.path(), "k", 1)), 1);
}

#[tokio::test]
async fn an_object_that_is_too_large_is_not_read_and_can_be_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let client = client(folder.path());
    let key = "tasks/0/x.json";
    client.put_always(Purpose::Admin, key, "x".into()).await.unwrap();
    std::fs::File::create(folder.path().join(key)).unwrap().set_len(2 << 30).unwrap();
    let found = client.get(Purpose::Admin, key).await.unwrap().unwrap();
    assert!(found.body.len() < 100, "{} bytes were read", found.body.len());
    let put = client.put(Purpose::Admin, key, "small".into(), &When::Unchanged(found.version)).await.unwrap();
    assert!(matches!(put, PutOutcome::Written(_)), "{put:?}");
    assert_eq!(client.get(Purpose::Admin, key).await.unwrap().unwrap().body, "small");
    let large = vec![b'x'; 16 * 1_024 * 1_024 + 1];
    let error = client.put_always(Purpose::Admin, key, large.into()).await.unwrap_err();
    assert!(error.kind() == leasehold_core::Kind::Invalid && !error.outcome_is_unknown(), "{error}");
}

#[tokio::test]
async fn pipes_and_links_are_corrupt_and_never_block() {
    let folder = tempfile::tempdir().unwrap();
    let client = client(folder.path());
    client.put_always(Purpose::Admin, "a/b", "x".into()).await.unwrap();
    let at = |name: &str| folder.path().join(name);
    assert!(Command::new("mkfifo").arg(at("a/pipe")).status().unwrap().success());
    std::os::unix::fs::symlink(at("a/b"), at("a/link")).unwrap();
    std::os::unix::fs::symlink(at("a"), at("c")).unwrap();
    for key in ["a/pipe", "a/link"] {
        for error in [
            client.get(Purpose::Admin, key).await.unwrap_err(),
            client.get_range(Purpose::Admin, key, 0..1, None).await.unwrap_err(),
            client.put(Purpose::Admin, key, "y".into(), &When::Absent).await.unwrap_err(),
            client.put_always(Purpose::Admin, key, "".into()).await.unwrap_err(),
        ] {
            assert_eq!(error.kind(), leasehold_core::Kind::Corrupt, "{key}: {error}");
            assert!(error.to_string().contains(key), "{error}");
        }
    }
    let error = client.put_always(Purpose::Admin, "c/x", "".into()).await.unwrap_err();
    assert_eq!(error.kind(), leasehold_core::Kind::Corrupt, "{error}");
    assert!(!at("a/x").exists());
    let page = client.list(Purpose::Admin, &List::all("")).await.unwrap();
    let keys: Vec<_> = page.entries.iter().map(|entry| entry.key.as_str()).collect();
    assert_eq!(keys, ["a/b", "a/link", "a/pipe", "c"]);
    for key in ["a/link", "a/pipe", "c"] {
        client.delete(Purpose::Admin, key).await.unwrap();
    }
    assert_eq!(client.get(Purpose::Admin, "a/b").await.unwrap().unwrap().body, "x");
}

#[tokio::test]
async fn a_removed_folder_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root");
    let client = client(&root).with_timeout(Duration::from_millis(10));
    client.put_always(Purpose::Admin, "a/b", "x".into()).await.unwrap();
    std::fs::remove_dir_all(&root).unwrap();
    for (key, body) in [("a/b", ""), ("a/b", "x"), ("c/d/e", "")] {
        let error = client.put_always(Purpose::Admin, key, body.into()).await.unwrap_err();
        assert_eq!(error.kind(), leasehold_core::Kind::Unavailable, "{error}");
    }
}

#[tokio::test]
async fn names_that_no_key_can_have_are_not_listed() {
    let folder = tempfile::tempdir().unwrap();
    let client = client(folder.path());
    client.put_always(Purpose::Admin, "a/b", "x".into()).await.unwrap();
    std::fs::write(folder.path().join("a/odd name"), "").unwrap();
    std::os::unix::net::UnixListener::bind(folder.path().join("a/another socket")).unwrap();
    let page = client.list(Purpose::Admin, &List::all("")).await.unwrap();
    assert_eq!(page.entries.iter().map(|entry| entry.key.as_str()).collect::<Vec<_>>(), ["a/b"]);
    for prefix in ["/etc/", "../", ".leasehold/"] {
        assert!(client.list(Purpose::Admin, &List::all(prefix)).await.is_err());
    }
}

/// Opens a folder on a host with these clocks, and returns the folder's time in milliseconds.
fn time_seen_by(root: &Path, host: &Arc<FakeHost>) -> i64 {
    let host: Arc<dyn Host> = host.clone();
    let store = FolderStore::open(root, FolderOptions::default(), &host).unwrap();
    store.clock().now().unwrap().earliest.as_millis()
}

#[tokio::test]
async fn processes_of_one_boot_agree_however_the_wall_clock_jumps() {
    let folder = tempfile::tempdir().unwrap();
    let host = Arc::new(FakeHost::new());
    let first = time_seen_by(folder.path(), &host);
    host.jump_wall(365 * 86_400);
    assert_eq!(time_seen_by(folder.path(), &host), first);
    host.advance(Duration::from_secs(5));
    host.jump_wall(-2 * 365 * 86_400);
    assert_eq!(time_seen_by(folder.path(), &host), first + 5_000);
}

#[tokio::test]
async fn time_does_not_go_back_when_a_machine_boots_in_1970() {
    let folder = tempfile::tempdir().unwrap();
    let host = Arc::new(FakeHost::new());
    let before = {
        let as_host: Arc<dyn Host> = host.clone();
        let store = FolderStore::open(folder.path(), FolderOptions::default(), &as_host).unwrap();
        store.put("x", "x".into(), &leasehold_store::When::Always).await.unwrap();
        store.clock().now().unwrap().latest.as_millis()
    };
    // Another boot: its offset is not written yet, and the wall clock was reset.
    let clock = folder.path().join(".leasehold/clock");
    let boot = std::fs::read_dir(&clock).unwrap().map(|entry| entry.unwrap().path());
    let boot = boot.filter(|path| path.to_str().unwrap().contains("boot-")).collect::<Vec<_>>();
    assert_eq!(boot.len(), 1);
    std::fs::rename(&boot[0], clock.join("boot-of-yesterday")).unwrap();
    host.jump_wall(-1_700_000_000);
    assert!(time_seen_by(folder.path(), &host) >= before);
    assert!(!clock.join("boot-of-yesterday").exists(), "files of old boots are removed");
}

#[test]
fn a_corrupt_clock_file_is_named() {
    for content in [b"\xff\xfe".as_slice(), b"soon", b""] {
        let folder = tempfile::tempdir().unwrap();
        let host: Arc<dyn Host> = Arc::new(FakeHost::new());
        drop(FolderStore::open(folder.path(), FolderOptions::default(), &host).unwrap());
        let clock = folder.path().join(".leasehold/clock");
        let mut files = std::fs::read_dir(&clock).unwrap().map(|entry| entry.unwrap().path());
        let boot = files.find(|path| path.to_str().unwrap().contains("boot-")).unwrap();
        std::fs::write(&boot, content).unwrap();
        for mode in [OpenMode::Create, OpenMode::Write, OpenMode::Read] {
            let options = FolderOptions { mode, ..FolderOptions::default() };
            let error = FolderStore::open(folder.path(), options, &host).unwrap_err();
            let message = format!("{} is corrupt", boot.display());
            assert!(error.to_string().contains(&message), "{error}");
            assert_eq!(error.kind(), leasehold_core::Kind::Corrupt, "{error}");
        }
    }
}

#[tokio::test]
async fn modification_times_follow_the_folders_time_and_not_the_wall_clock() {
    let folder = tempfile::tempdir().unwrap();
    let host = Arc::new(FakeHost::new());
    let as_host: Arc<dyn Host> = host.clone();
    let store = FolderStore::open(folder.path(), FolderOptions::default(), &as_host).unwrap();
    for (key, body) in [("a/entry", ""), ("a/object", "x")] {
        store.put(key, body.into(), &leasehold_store::When::Always).await.unwrap();
    }
    let now = store.clock().now().unwrap().latest;
    for entry in store.list(&List::all("a/")).await.unwrap().entries {
        assert_eq!(entry.modified, now, "{}", entry.key);
    }
    assert!(matches!(store.get("a/entry", None).await.unwrap(), Get::Found(_)));
}
