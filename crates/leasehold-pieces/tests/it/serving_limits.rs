//! Limits of a server: connections, uploads, bytes per second, timeouts.

use std::sync::Arc;
use std::time::Duration;

use leasehold_http::testing::{ManualHost, RawConnection};
use leasehold_pieces::serve::ServeOptions;

use crate::test_server::{TestServer, TestSource, artifact};

/// Longest wait of a request for an upload slot.
const UPLOAD_WAIT: Duration = Duration::from_secs(5);

fn request(rest: &str) -> String {
    format!("GET /v1/{}/{rest} HTTP/1.1\r\nhost: x\r\n\r\n", artifact().as_str())
}

#[tokio::test]
async fn a_connection_beyond_the_limit_gets_503_and_is_counted() {
    let options = ServeOptions { connections_max: 1, ..ServeOptions::default() };
    let server = TestServer::new(TestSource::new(10_000, 1_024), options).await;
    let mut first = RawConnection::connect(server.addr).await;
    assert_eq!(first.get("/healthz").await.status, 200);
    let refused = RawConnection::connect(server.addr).await.response().await.unwrap();
    assert!(refused.status == 503 && refused.head.contains("retry-after: 1\r\n"), "{refused:?}");
    let counts = server.counters.snapshot();
    assert_eq!((counts.connections, counts.refused.connections), (1, 1));
    server.stop().await;
}

#[tokio::test]
async fn concurrent_uploads_stay_within_the_limit_and_all_complete() {
    let (server, host, mut clients) = crowded().await;
    host.asleep(7, UPLOAD_WAIT).await;
    server.source.open();
    for raw in &mut clients {
        let answer = raw.response().await.unwrap();
        assert_eq!((answer.status, answer.body), (200, server.source.bytes.to_vec()));
    }
    assert_eq!(server.source.readers_max(), 3);
}

#[tokio::test]
async fn a_client_that_waits_too_long_for_an_upload_gets_503() {
    let (server, host, mut clients) = crowded().await;
    host.asleep(7, UPLOAD_WAIT).await;
    host.advance(UPLOAD_WAIT);
    let mut statuses = Vec::new();
    while server.counters.snapshot().refused.busy < 7 {
        tokio::task::yield_now().await;
    }
    server.source.open();
    for raw in &mut clients {
        let answer = raw.response().await.unwrap();
        assert_eq!(answer.status == 503, answer.head.contains("retry-after: 1\r\n"));
        statuses.push(answer.status);
    }
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 200, 200, 503, 503, 503, 503, 503, 503, 503]);
}

/// Ten requests to a server with three upload slots, whose reads are all blocked.
async fn crowded() -> (TestServer, ManualHost, Vec<RawConnection>) {
    let host = ManualHost::new();
    let options = ServeOptions { uploads_max: 3, ..ServeOptions::default() };
    let server = TestServer::on(TestSource::new(10_000, 1_024).shut(), options, Arc::new(host.clone())).await;
    let mut clients = Vec::new();
    for _ in 0..10 {
        let mut raw = RawConnection::connect(server.addr).await;
        raw.send(request("pieces/0-10")).await;
        clients.push(raw);
    }
    server.source.holds(3).await;
    (server, host, clients)
}

#[tokio::test]
async fn responses_are_sent_within_the_rate_limit() {
    let host = ManualHost::new();
    let options = ServeOptions { upload_bytes_per_sec: Some(10_240), ..ServeOptions::default() };
    let server = TestServer::on(TestSource::new(5_120, 1_024), options, Arc::new(host.clone())).await;
    let mut raw = RawConnection::connect(server.addr).await;
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
            assert_eq!(server.counters.snapshot().bytes, (part as u64 + 1) * 1_024);
            host.advance(Duration::from_millis(100));
        }
    }
    assert_eq!(got, server.source.bytes);
}

#[tokio::test]
async fn a_response_that_is_not_read_yet_keeps_its_upload() {
    let host = ManualHost::new();
    let options = ServeOptions { uploads_max: 1, ..ServeOptions::default() };
    let server =
        TestServer::on(TestSource::new(16 << 20, 16 << 20), options.clone(), Arc::new(host.clone())).await;
    let (mut lazy, mut next) =
        (RawConnection::connect_narrow(server.addr).await, RawConnection::connect(server.addr).await);
    lazy.send(request("pieces/0")).await;
    host.asleep(1, options.idle_wait).await;
    next.send(request("pieces/0")).await;
    host.asleep(1, UPLOAD_WAIT).await;
    host.advance(UPLOAD_WAIT);
    assert_eq!(next.response().await.unwrap().status, 503);
    let answer = lazy.response().await.unwrap();
    assert!(answer.status == 200 && answer.body == server.source.bytes);
}

#[tokio::test]
async fn a_response_that_is_not_read_times_out_and_frees_its_upload() {
    let host = ManualHost::new();
    let options = ServeOptions { uploads_max: 1, ..ServeOptions::default() };
    // More than the kernel buffers for a connection.
    let source = TestSource::new(16 << 20, 16 << 20);
    let server = TestServer::on(source, options.clone(), Arc::new(host.clone())).await;
    let mut lazy = RawConnection::connect_narrow(server.addr).await;
    lazy.send(request("pieces/0")).await;
    host.asleep(1, options.idle_wait).await;
    host.advance(options.idle_wait);
    assert!(lazy.rest().await.len() < 16 << 20);
    assert_eq!(server.counters.snapshot().refused.timed_out, 1);

    let mut last = RawConnection::connect(server.addr).await;
    last.send(request("pieces/0")).await;
    let answer = last.response().await.unwrap();
    assert!(answer.status == 200 && answer.body == server.source.bytes);
}
