//! Timeouts of connections, in the time of the host.

use std::sync::Arc;

use leasehold_http::ListenerEvent;
use leasehold_http::testing::{ManualHost, RawConnection};

use crate::test_server::{LIMITS, TestServer};

async fn server_and_host() -> (TestServer, ManualHost) {
    let host = ManualHost::new();
    (TestServer::on(LIMITS, Arc::new(host.clone())).await, host)
}

#[tokio::test]
async fn a_request_head_that_arrives_too_slowly_times_out() {
    let (server, host) = server_and_host().await;
    let mut silent = RawConnection::connect(server.addr).await;
    let mut slow = RawConnection::connect(server.addr).await;
    host.asleep(2, LIMITS.header_wait).await;
    let mut other = RawConnection::connect(server.addr).await;
    for byte in "GET /".bytes() {
        slow.send([byte]).await;
        // When another request has been answered, the byte has been read.
        assert_eq!(other.get("/1").await.status, 200);
        host.advance(LIMITS.header_wait / 5);
    }
    assert_eq!(silent.rest().await, b"");
    assert_eq!(slow.rest().await, b"");
    assert_eq!(server.count(ListenerEvent::TimedOut), 2);
}

#[tokio::test]
async fn each_request_head_has_its_own_timeout_and_an_idle_connection_is_closed() {
    let (server, host) = server_and_host().await;
    let mut idle = RawConnection::connect(server.addr).await;
    let mut slow = RawConnection::connect(server.addr).await;
    for connection in [&mut idle, &mut slow] {
        assert_eq!(connection.get("/1").await.status, 200);
    }
    host.asleep(2, LIMITS.idle_wait).await;
    slow.send("GET /he").await;
    host.asleep(1, LIMITS.header_wait).await;
    host.advance(LIMITS.header_wait);
    assert_eq!(slow.rest().await, b"");
    assert_eq!(idle.get("/1").await.status, 200);
    host.asleep(1, LIMITS.idle_wait).await;
    host.advance(LIMITS.idle_wait);
    assert_eq!(idle.rest().await, b"");
    assert_eq!(server.count(ListenerEvent::TimedOut), 1, "an idle connection does not count as slow");
}

#[tokio::test]
async fn a_response_that_is_not_read_times_out() {
    let (server, host) = server_and_host().await;
    // More than the kernel buffers for a connection.
    let bytes = 16 << 20;
    let request = format!("GET /{bytes} HTTP/1.1\r\nhost: x\r\n\r\n");
    let mut lazy = RawConnection::connect_narrow(server.addr).await;
    let mut late = RawConnection::connect_narrow(server.addr).await;
    lazy.send(&request).await;
    late.send(&request).await;
    host.asleep(2, LIMITS.idle_wait).await;
    assert_eq!(late.response().await.unwrap().body.len(), bytes, "in time, however late");
    host.advance(LIMITS.idle_wait);
    assert!(lazy.rest().await.len() < bytes);
    while server.count(ListenerEvent::TimedOut) < 1 {
        tokio::task::yield_now().await;
    }
}
