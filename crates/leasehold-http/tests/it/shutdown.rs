//! Shutdown in two stages.

use std::sync::Arc;

use leasehold_http::testing::{ManualHost, RawConnection};
use tokio::net::TcpStream;

use crate::test_server::{LIMITS, Stop, TestServer};

const AT_GATE: &str = "GET /gate HTTP/1.1\r\nhost: x\r\n\r\n";

#[tokio::test]
async fn draining_finishes_responses_and_closes_idle_connections() {
    // No time passes: idle connections are closed at once.
    let host = ManualHost::new();
    let server = TestServer::on(LIMITS, Arc::new(host.clone())).await;
    let mut busy = RawConnection::connect(server.addr).await;
    let mut idle = RawConnection::connect(server.addr).await;
    let mut silent = RawConnection::connect(server.addr).await;
    let mut half = RawConnection::connect(server.addr).await;
    half.send("GET /he").await;
    // When another request has been answered, that half has been read.
    host.asleep(4, LIMITS.header_wait).await;
    assert_eq!(idle.get("/1").await.status, 200);
    busy.send(AT_GATE).await;
    server.holds(1).await;

    server.stop(Stop::Drain);
    for connection in [&mut idle, &mut silent, &mut half] {
        assert_eq!(connection.rest().await, b"");
    }
    server.open_gate();
    assert_eq!(busy.response().await.unwrap().body, b"xxxx");
    assert_eq!(busy.rest().await, b"");
    let addr = server.addr;
    server.ended().await;
    assert!(TcpStream::connect(addr).await.is_err());
}

#[tokio::test]
async fn aborting_does_not_wait_for_responses() {
    let server = TestServer::new(LIMITS).await;
    let mut busy = RawConnection::connect(server.addr).await;
    busy.send(AT_GATE).await;
    server.holds(1).await;
    server.stop(Stop::Abort);
    server.ended().await;
    assert_eq!(busy.rest().await, b"");
}

#[tokio::test]
async fn a_drain_that_takes_too_long_can_be_aborted() {
    let server = TestServer::new(LIMITS).await;
    let mut busy = RawConnection::connect(server.addr).await;
    let mut idle = RawConnection::connect(server.addr).await;
    assert_eq!(idle.get("/1").await.status, 200);
    busy.send(AT_GATE).await;
    server.holds(1).await;
    server.stop(Stop::Drain);
    // When an idle connection is closed, draining has begun.
    assert_eq!(idle.rest().await, b"");
    server.stop(Stop::Abort);
    server.ended().await;
    assert_eq!(busy.rest().await, b"");
}
