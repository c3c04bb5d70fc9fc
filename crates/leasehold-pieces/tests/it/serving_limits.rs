//! Limits of a server: connections, uploads, bytes per second, timeouts.

use std::sync::Arc;
use std::time::Duration;

use leasehold_pieces::serve::ServeOptions;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::task::JoinSet;

use crate::hand_host::HandHost;
use crate::raw::{Answer, Raw};
use crate::stand::{Stand, TestShelf, artifact};

/// Longest wait of a request for an upload slot.
const UPLOAD_WAIT: Duration = Duration::from_secs(5);

fn request(rest: &str) -> String {
    format!("GET /v1/{}/{rest} HTTP/1.1\r\nhost: x\r\n\r\n", artifact().as_str())
}

fn may_open_many_files() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
}

#[tokio::test]
async fn of_a_thousand_connections_those_within_the_limit_are_served_and_the_others_get_503() {
    may_open_many_files();
    let options = ServeOptions { connections_max: 64, ..ServeOptions::default() };
    let stand = Stand::new(TestShelf::new(10_000, 1_024), options).await;
    let mut clients = JoinSet::new();
    for at in 0..1_000_u32 {
        let addr = stand.addr;
        clients.spawn(async move {
            let mut raw = Raw::connect(addr).await;
            // A refused connection may be closed by now.
            let _ = tokio::io::AsyncWriteExt::write_all(
                &mut raw.0,
                request(&format!("pieces/{}", at % 10)).as_bytes(),
            )
            .await;
            (at, raw.answer().await, raw)
        });
    }
    let clients = clients.join_all().await;
    let (mut served, mut told) = (0, 0);
    for (at, answer, _) in &clients {
        match answer {
            Ok(Answer { status: 200, body, .. }) => {
                assert_eq!(*body, stand.shelf.run(at % 10..at % 10 + 1));
                served += 1;
            }
            Ok(Answer { status: 503, head, .. }) => {
                assert!(head.contains("retry-after: 1\r\n"), "{head}");
                told += 1;
            }
            Ok(other) => panic!("{other:?}"),
            // Its request crossed the response: a reset.
            Err(_) => {}
        }
    }
    // All are still open, so no place was reused.
    assert_eq!(served, 64);
    assert!(told > 0);
    let counts = stand.tally.served();
    assert_eq!((counts.connections, counts.refused.connections), (64, 936));

    drop(clients);
    while Raw::connect(stand.addr).await.get_or_turned_away("/healthz").await != Some(200) {}
    stand.stop().await;
}

impl Raw {
    async fn get_or_turned_away(&mut self, path: &str) -> Option<u16> {
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n");
        tokio::io::AsyncWriteExt::write_all(&mut self.0, request.as_bytes()).await.ok()?;
        self.answer().await.ok().map(|answer| answer.status)
    }
}

#[tokio::test]
async fn no_more_uploads_than_may_read_at_a_time_and_all_get_their_bytes() {
    let (stand, host, mut clients) = crowded().await;
    host.asleep(7, UPLOAD_WAIT).await;
    stand.shelf.open();
    for raw in &mut clients {
        let answer = raw.answer().await.unwrap();
        assert_eq!((answer.status, answer.body), (200, stand.shelf.bytes.to_vec()));
    }
    assert_eq!(stand.shelf.readers_max(), 3);
}

#[tokio::test]
async fn a_client_that_waits_too_long_for_an_upload_gets_503() {
    let (stand, host, mut clients) = crowded().await;
    host.asleep(7, UPLOAD_WAIT).await;
    host.advance(UPLOAD_WAIT);
    let mut statuses = Vec::new();
    while stand.tally.served().refused.busy < 7 {
        tokio::task::yield_now().await;
    }
    stand.shelf.open();
    for raw in &mut clients {
        let answer = raw.answer().await.unwrap();
        assert_eq!(answer.status == 503, answer.head.contains("retry-after: 1\r\n"));
        statuses.push(answer.status);
    }
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 200, 200, 503, 503, 503, 503, 503, 503, 503]);
}

/// Ten requests to a server with three upload slots, whose reads are all blocked.
async fn crowded() -> (Stand, HandHost, Vec<Raw>) {
    let host = HandHost::new();
    let options = ServeOptions { uploads_max: 3, ..ServeOptions::default() };
    let stand = Stand::on(TestShelf::new(10_000, 1_024).shut(), options, Arc::new(host.clone())).await;
    let mut clients = Vec::new();
    for _ in 0..10 {
        let mut raw = Raw::connect(stand.addr).await;
        raw.send(request("pieces/0-10")).await;
        clients.push(raw);
    }
    stand.shelf.holds(3).await;
    (stand, host, clients)
}

#[tokio::test]
async fn bytes_go_out_no_faster_than_they_may() {
    let host = HandHost::new();
    let options = ServeOptions { upload_bytes_per_sec: Some(10_240), ..ServeOptions::default() };
    let stand = Stand::on(TestShelf::new(5_120, 1_024), options, Arc::new(host.clone())).await;
    let mut raw = Raw::connect(stand.addr).await;
    raw.send(request("pieces/0-5")).await;
    raw.head().await.unwrap();
    let mut got = vec![0; 5_120];
    for part in 0..5 {
        tokio::io::AsyncReadExt::read_exact(&mut raw.0, &mut got[part * 1_024..(part + 1) * 1_024])
            .await
            .unwrap();
        if part < 4 {
            // A tenth of a second for each part, and nothing before that.
            host.asleep(1, Duration::from_millis(100)).await;
            assert_eq!(stand.tally.served().bytes, (part as u64 + 1) * 1_024);
            host.advance(Duration::from_millis(100));
        }
    }
    assert_eq!(got, stand.shelf.bytes);
}

#[tokio::test]
async fn a_head_that_does_not_come_in_time_is_not_waited_for() {
    let (host, options) = (HandHost::new(), ServeOptions::default());
    let stand = Stand::on(TestShelf::new(1, 1_024), options.clone(), Arc::new(host.clone())).await;
    let (mut silent, mut slow) = (Raw::connect(stand.addr).await, Raw::connect(stand.addr).await);
    host.asleep(2, options.header_wait).await;
    let mut other = Raw::connect(stand.addr).await;
    for byte in "GET /".bytes() {
        slow.send([byte]).await;
        // When another request has been answered, the byte has been read.
        assert_eq!(other.get("/healthz").await.status, 200);
        host.advance(options.header_wait / 5);
    }
    assert_eq!(silent.rest().await, b"");
    assert_eq!(slow.rest().await, b"");
    assert_eq!(stand.tally.served().refused.slow, 2);
}

#[tokio::test]
async fn the_next_head_has_its_own_time_and_an_idle_connection_ends() {
    let (host, options) = (HandHost::new(), ServeOptions::default());
    let stand = Stand::on(TestShelf::new(1, 1_024), options.clone(), Arc::new(host.clone())).await;
    let (mut idle, mut slow) = (Raw::connect(stand.addr).await, Raw::connect(stand.addr).await);
    for raw in [&mut idle, &mut slow] {
        assert_eq!(raw.get("/healthz").await.status, 200);
    }
    host.asleep(2, options.idle_wait).await;
    slow.send("GET /he").await;
    host.asleep(1, options.header_wait).await;
    host.advance(options.header_wait);
    assert_eq!(slow.rest().await, b"");
    assert_eq!(idle.get("/healthz").await.status, 200);
    host.asleep(1, options.idle_wait).await;
    host.advance(options.idle_wait);
    assert_eq!(idle.rest().await, b"");
    assert_eq!(stand.tally.served().refused.slow, 1);
}

#[tokio::test]
async fn a_response_that_is_not_read_yet_keeps_its_upload() {
    let host = HandHost::new();
    let options = ServeOptions { uploads_max: 1, ..ServeOptions::default() };
    let stand = Stand::on(TestShelf::new(16 << 20, 16 << 20), options.clone(), Arc::new(host.clone())).await;
    let (mut lazy, mut next) = (Raw::connect_narrow(stand.addr).await, Raw::connect(stand.addr).await);
    lazy.send(request("pieces/0")).await;
    host.asleep(1, options.idle_wait).await;
    next.send(request("pieces/0")).await;
    host.asleep(1, UPLOAD_WAIT).await;
    host.advance(UPLOAD_WAIT);
    assert_eq!(next.answer().await.unwrap().status, 503);
    let answer = lazy.answer().await.unwrap();
    assert!(answer.status == 200 && answer.body == stand.shelf.bytes);
}

#[tokio::test]
async fn a_response_that_is_not_read_times_out_and_frees_its_upload() {
    let host = HandHost::new();
    let options = ServeOptions { uploads_max: 1, ..ServeOptions::default() };
    // More than the kernel buffers for a connection.
    let shelf = TestShelf::new(16 << 20, 16 << 20);
    let stand = Stand::on(shelf, options.clone(), Arc::new(host.clone())).await;
    let mut lazy = Raw::connect_narrow(stand.addr).await;
    lazy.send(request("pieces/0")).await;
    host.asleep(1, options.idle_wait).await;
    host.advance(options.idle_wait);
    assert!(lazy.rest().await.len() < 16 << 20);
    assert_eq!(stand.tally.served().refused.slow, 1);

    let mut last = Raw::connect(stand.addr).await;
    last.send(request("pieces/0")).await;
    let answer = last.answer().await.unwrap();
    assert!(answer.status == 200 && answer.body == stand.shelf.bytes);
}
