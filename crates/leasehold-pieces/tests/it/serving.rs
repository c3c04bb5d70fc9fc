//! Responses of a server, its access rules, and its shutdown.

use std::sync::Arc;

use leasehold_core::Kind;
use leasehold_core::piece::PieceMap;
use leasehold_http::testing::{ManualHost, RawConnection, content_length, within_timeout};
use leasehold_pieces::serve::{PieceServer, ServeOptions};
use leasehold_store::SystemHost;
use tokio::net::TcpStream;

use crate::test_server::{TestServer, TestSource, artifact, present, secret};

fn path(rest: &str) -> String {
    format!("/v1/{}/{rest}", artifact().as_str())
}

#[tokio::test]
async fn a_server_sends_the_map_and_the_pieces_it_has() {
    let server = TestServer::new(TestSource::new(10_000, 1_024).without(3), ServeOptions::default()).await;
    let mut raw = RawConnection::connect(server.addr).await;

    let have = raw.get(&path("have")).await;
    assert_eq!(have.status, 200);
    assert!(
        have.head.contains("x-leasehold-size: 10000\r\nx-leasehold-piece-bytes: 1024\r\n"),
        "{}",
        have.head
    );
    let map = PieceMap::from_bytes(&have.body, 10).unwrap();
    assert_eq!(map.iter().collect::<Vec<_>>(), [0, 1, 2, 4, 5, 6, 7, 8, 9]);

    for (asked, run) in [("0-3", 0..3), ("9", 9..10), ("9-10", 9..10), ("4-10", 4..10)] {
        let pieces = raw.get(&path(&format!("pieces/{asked}"))).await;
        assert_eq!((pieces.status, pieces.body), (200, server.source.run(run).to_vec()), "{asked}");
    }
    assert_eq!(raw.get("/healthz").await.body, b"ok\n");
    let counts = server.counters.snapshot();
    assert_eq!((counts.requests, counts.answered, counts.connections), (6, 6, 1));
    assert_eq!(counts.bytes, 2 + 3 * 1_024 + 2 * 784 + (10_000 - 4 * 1_024) + 3);
    server.stop().await;
}

#[tokio::test]
async fn missing_pieces_are_not_found_and_no_byte_is_read() {
    let server = TestServer::new(TestSource::new(10_000, 1_024).without(3), ServeOptions::default()).await;
    let mut raw = RawConnection::connect(server.addr).await;
    for asked in ["pieces/3", "pieces/0-10", "pieces/2-4", "pieces/10", "pieces/9-11", "pieces/65535"] {
        assert_eq!(raw.get(&path(asked)).await.status, 404, "{asked}");
    }
    assert_eq!(raw.get(&format!("/v1/{}/have", "0".repeat(64))).await.status, 404);
    assert_eq!(raw.get(&format!("/v1/{}/pieces/0", "0".repeat(64))).await.status, 404);
    assert_eq!(server.source.read.load(std::sync::atomic::Ordering::SeqCst), 0);
    assert_eq!(server.counters.snapshot().refused.not_found, 8);
}

#[tokio::test]
async fn a_response_has_at_most_four_mebibytes_or_one_piece() {
    let server = TestServer::new(TestSource::new(5_000 * 1_024, 1_024), ServeOptions::default()).await;
    let mut raw = RawConnection::connect(server.addr).await;
    assert_eq!(raw.get(&path("pieces/0-4096")).await.body, server.source.run(0..4_096));
    assert_eq!(raw.get(&path("pieces/0-4097")).await.status, 400);

    let server = TestServer::new(TestSource::new(16 << 20, 8 << 20), ServeOptions::default()).await;
    let mut raw = RawConnection::connect(server.addr).await;
    assert_eq!(raw.get(&path("pieces/1")).await.body, server.source.run(1..2));
    assert_eq!(raw.get(&path("pieces/0-2")).await.status, 400);
}

#[tokio::test]
async fn a_head_request_gets_the_headers_and_reads_no_bytes() {
    let server = TestServer::new(TestSource::new(10_000, 1_024), ServeOptions::default()).await;
    let mut raw = RawConnection::connect(server.addr).await;
    for (asked, len) in [("have", 2), ("pieces/0-2", 2_048), ("pieces/9", 784)] {
        raw.send(format!("HEAD {} HTTP/1.1\r\nhost: x\r\n\r\n", path(asked))).await;
        let (status, head) = raw.head().await.unwrap();
        assert_eq!((status, content_length(&head)), (200, Some(len)), "{asked}");
    }
    assert_eq!(server.source.read.load(std::sync::atomic::Ordering::SeqCst), 0);
    assert_eq!(server.counters.snapshot().bytes, 0);
}

#[tokio::test]
async fn without_a_secret_only_this_machine_is_served() {
    for (addr, is_refused) in [
        ("0.0.0.0:0", true),
        ("[::]:0", true),
        ("[::ffff:10.0.0.1]:0", true),
        ("10.1.2.3:0", true),
        ("127.0.0.1:0", false),
    ] {
        let options = ServeOptions { addr: addr.parse().unwrap(), ..ServeOptions::default() };
        let source = Arc::new(TestSource::new(1, 1_024));
        let bound = PieceServer::bind(source, options, Arc::new(SystemHost), present()).await;
        assert_eq!(bound.is_err(), is_refused, "{addr}");
        if let Err(error) = bound {
            assert_eq!(error.kind(), Kind::Invalid);
            assert!(error.to_string().contains("set one or listen on 127.0.0.1"), "{error}");
        }
    }
}

#[tokio::test]
async fn with_a_secret_any_address_is_allowed() {
    let addr = "0.0.0.0:0".parse().unwrap();
    let options = ServeOptions { addr, secret: Some(secret()), ..ServeOptions::default() };
    let source = Arc::new(TestSource::new(1, 1_024));
    assert!(PieceServer::bind(source, options, Arc::new(SystemHost), present()).await.is_ok());
}

#[tokio::test]
async fn draining_finishes_responses_and_closes_idle_connections() {
    // No time passes: idle connections are closed at once.
    let (host, options) = (ManualHost::new(), ServeOptions::default());
    let source = TestSource::new(3 << 20, 1 << 20).shut();
    let server = TestServer::on(source, options.clone(), Arc::new(host.clone())).await;
    let (mut busy, mut idle) =
        (RawConnection::connect(server.addr).await, RawConnection::connect(server.addr).await);
    let (mut silent, mut half) =
        (RawConnection::connect(server.addr).await, RawConnection::connect(server.addr).await);
    half.send("GET /he").await;
    // When another request has been answered, that half has been read.
    host.asleep(4, options.header_wait).await;
    assert_eq!(idle.get("/healthz").await.status, 200);
    busy.send(format!("GET {} HTTP/1.1\r\nhost: x\r\n\r\n", path("pieces/0-3"))).await;
    server.source.holds(1).await;

    server.shutdown.drain();
    assert_eq!(idle.rest().await, b"");
    assert_eq!(silent.rest().await, b"");
    assert_eq!(half.rest().await, b"");
    server.source.open();
    assert_eq!(busy.response().await.unwrap().body, server.source.bytes);
    assert_eq!(busy.rest().await, b"");
    within_timeout(server.running).await.unwrap().unwrap();
    assert!(TcpStream::connect(server.addr).await.is_err());
}

#[tokio::test]
async fn aborting_does_not_wait_for_responses() {
    let server = TestServer::new(TestSource::new(3 << 20, 1 << 20).shut(), ServeOptions::default()).await;
    let mut busy = RawConnection::connect(server.addr).await;
    busy.send(format!("GET {} HTTP/1.1\r\nhost: x\r\n\r\n", path("pieces/0-3"))).await;
    server.source.holds(1).await;
    server.shutdown.abort();
    within_timeout(server.running).await.unwrap().unwrap();
    assert_eq!(busy.rest().await, b"");
    server.source.open();
}
