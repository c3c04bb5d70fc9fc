use std::fs;
use std::process::Stdio;
use std::time::Duration;

use leasehold_store::testing::SeaweedFs;
use object_store::ObjectStoreExt;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::Command;

use super::client::{BUCKET, binary, client, client_of, create, is_missing, read, update};

/// True if the process is running; a zombie is not.
fn runs(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, state)| !state.starts_with(['Z', 'X']))
}

/// Waits for the end of a process by polling: there is no event for one that is not our child.
async fn gone(pid: u32) {
    let look = async {
        while runs(pid) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), look).await.expect("the process should have ended");
}

#[tokio::test]
async fn two_servers_run_at_once_and_are_gone_after_drop() {
    let binary = binary();
    let (one, two) = tokio::try_join!(SeaweedFs::start(&binary), SeaweedFs::start(&binary)).unwrap();
    let stores = [client(&one.endpoint()), client(&two.endpoint())];
    for (weed, store) in [&one, &two].into_iter().zip(&stores) {
        weed.create_bucket(BUCKET).await.unwrap();
        create(store, "a/key", "first").await.unwrap();
    }
    stores[0].delete(&"a/key".into()).await.unwrap();
    assert!(is_missing(&stores[0], "a/key").await);
    assert_eq!(read(&stores[1], "a/key").await.unwrap(), "first");

    let pids = [one.pid().unwrap(), two.pid().unwrap()];
    let endpoints = [one.endpoint(), two.endpoint()];
    assert!(pids.iter().all(|pid| runs(*pid)));
    drop(one);
    drop(two);
    for (pid, endpoint) in pids.into_iter().zip(endpoints) {
        assert!(!runs(pid));
        let address = endpoint.trim_start_matches("http://").to_owned();
        assert!(TcpStream::connect(address).await.is_err());
    }
}

#[tokio::test]
async fn what_was_acknowledged_survives_a_kill() {
    let mut weed = SeaweedFs::start(&binary()).await.unwrap();
    weed.create_bucket(BUCKET).await.unwrap();
    let (endpoint, pid) = (weed.endpoint(), weed.pid());
    let first = create(&client(&endpoint), "a/key", "first").await.unwrap();
    weed.kill_and_restart().await.unwrap();
    assert_eq!(weed.endpoint(), endpoint);
    assert_ne!(weed.pid(), pid);
    let store = client(&endpoint);
    assert_eq!(read(&store, "a/key").await.unwrap(), "first");
    update(&store, "a/key", "second", &first).await.unwrap();
    let stale = update(&store, "a/key", "third", &first).await;
    assert!(matches!(stale, Err(object_store::Error::Precondition { .. })), "{stale:?}");
}

#[tokio::test]
async fn a_stopped_server_can_start_again() {
    let mut weed = SeaweedFs::start(&binary()).await.unwrap();
    let pid = weed.pid().unwrap();
    weed.stop().await.unwrap();
    assert!(!runs(pid));
    assert_eq!(weed.pid(), None);
    weed.restart().await.unwrap();
    weed.create_bucket(BUCKET).await.unwrap();
    create(&client(&weed.endpoint()), "a/key", "first").await.unwrap();
}

#[tokio::test]
async fn a_bucket_that_was_not_created_is_not_there() {
    let weed = SeaweedFs::start(&binary()).await.unwrap();
    let store = client_of(&weed.endpoint(), "later");
    let refused = create(&store, "a/key", "first").await.unwrap_err();
    assert!(refused.to_string().contains("NoSuchBucket"), "{refused}");
    // The earlier request has no lasting effect.
    weed.create_bucket("later").await.unwrap();
    create(&store, "a/key", "first").await.unwrap();
}

#[tokio::test]
async fn a_binary_that_fails_is_reported_with_its_log() {
    let error = SeaweedFs::start("/bin/false".as_ref()).await.unwrap_err();
    assert!(error.to_string().contains("ended with exit status: 1"), "{error}");
}

#[tokio::test]
async fn a_killed_parent_leaves_no_server() {
    let mut parent = Command::new(env!("CARGO_BIN_EXE_store-exerciser"))
        .args(["hold-weed", binary().to_str().unwrap(), "-", "0"])
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(parent.stdout.take().unwrap()).lines();
    let pid = lines.next_line().await.unwrap().expect("the parent prints the process id").parse().unwrap();
    assert!(runs(pid));
    parent.kill().await.unwrap();
    gone(pid).await;
}
